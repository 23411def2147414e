#include "runtime/queue/batch_outcome.h"

#include <algorithm>
#include <array>

#include "runtime/queue/operator_stats.h"
#include "runtime/queue/queue_use.h"

namespace resident {
namespace {

// Up to this many durations are added to the histogram one by one.
constexpr size_t kMaxCountedSingly = 16;

}  // namespace

void PrepareOutcomes(Batch& batch) {
  const uint32_t count = batch.count();
  if (!batch.range) PrepareFailures(batch);
  if (!batch.range || batch.range->times()) batch.device_ns.assign(count, 0);
  if (batch.wants_results) batch.results.resize(count);
}

void PrepareFailures(Batch& batch) {
  if (!batch.status.empty()) return;
  batch.status.assign(batch.count(), TaskStatus::kOk);
  batch.detail.assign(batch.count(), 0);
}

std::optional<SkipReason> ReasonToSkip(const Batch& batch, const TimeSource& time) {
  if (batch.cancelled.load(std::memory_order_relaxed)) {
    return SkipReason{TaskStatus::kCancelled, "cancelled before the task reached the device"};
  }
  if (batch.deadline != Clock::time_point::max() && time.Now() >= batch.deadline) {
    return SkipReason{
        TaskStatus::kDeadlineExceeded,
        "the deadline passed before the task reached the device. Fix: allow more time, or send "
        "fewer tasks at once"};
  }
  return std::nullopt;
}

void SkipRest(const std::shared_ptr<Batch>& batch, TaskStatus status, const std::string& cause,
              FinishedBatches* finished) {
  const uint32_t count = batch->count();
  if (batch->submitted == count) return;
  PrepareFailures(*batch);
  // A batch has one cause. Do not overwrite the cause of tasks that may have run.
  if (batch->cause.empty()) batch->cause = cause;
  const uint32_t skipped = count - batch->submitted;
  std::fill(batch->status.begin() + batch->submitted, batch->status.end(), status);
  batch->submitted = count;
  batch->use->RemoveTasks(skipped);
  batch->skipped += skipped;
  batch->failed += skipped;
  batch->finished += skipped;
  if (batch->finished == count) finished->push_back(batch);
}

void ObserveQueued(const Batch& batch) {
  if (batch.stats == nullptr) return;
  batch.stats->queued.Observe((Clock::now() - batch.enqueued_at).count());
}

void CountOutcomes(const Batch& batch) {
  if (batch.stats == nullptr) return;
  std::array<uint64_t, OperatorStats::kStatuses> by_status{};
  if (batch.failed == 0) {
    by_status[0] = batch.count();
  } else {
    for (TaskStatus status : batch.status) ++by_status[static_cast<size_t>(status)];
  }
  for (int s = 0; s < OperatorStats::kStatuses; ++s) {
    if (by_status[s] != 0) batch.stats->CountTasks(s, by_status[s]);
  }
  if (batch.range && !batch.range->times()) {
    // Only the sum is known: each task that ran counts with the average.
    const uint64_t ran = batch.range_ran;
    if (ran != 0) batch.stats->device.Observe(batch.range_ns / ran, ran);
  }
  // For a few tasks, clearing and reading a Local costs more than counting each one directly.
  if (batch.device_ns.size() <= kMaxCountedSingly) {
    for (uint32_t ns : batch.device_ns) {
      if (ns != 0) batch.stats->device.Observe(ns);
    }
  } else {
    DurationHistogram::Local device;
    for (uint32_t ns : batch.device_ns) {
      if (ns != 0) device.Observe(ns);
    }
    batch.stats->device.Add(device);
  }
  batch.stats->whole.Observe((Clock::now() - batch.enqueued_at).count());
}

}  // namespace resident
