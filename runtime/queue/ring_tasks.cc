#include "runtime/queue/ring_tasks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/queue/queue_use.h"
#include "runtime/ring/doorbell.h"

namespace resident {
namespace {

using std::chrono::nanoseconds;

// Completions consumed in one iteration, so that submissions are not delayed for long.
constexpr uint32_t kMaxConsumed = 1024;
// With more tasks in flight than this, a late task delays the discovery of the completions behind
// it by up to kFullScanInterval.
constexpr uint32_t kFewInFlight = 16;
constexpr nanoseconds kFullScanInterval = std::chrono::microseconds(10);

TaskStatus ToTaskStatus(CompletionStatus status) {
  switch (status) {
    case CompletionStatus::kOk:
      return TaskStatus::kOk;
    case CompletionStatus::kInvalidArgument:
      return TaskStatus::kInvalidArgument;
    case CompletionStatus::kInternal:
    case CompletionStatus::kNoOperator:
    case CompletionStatus::kOutOfBounds:
      return TaskStatus::kInternal;
  }
  return TaskStatus::kInternal;
}

}  // namespace

void RingTasks::SetRing(std::shared_ptr<HostRing> ring) {
  entries_.assign(ring->slots(), Entry{});
  seen_.assign(ring->worker_count(), SeenTask{});
  backlog_.Start(ring->worker_count());
  ring_ = std::move(ring);
  held_ = park_due_ = park_published_ = false;
  ++room_version_;
}

uint32_t RingTasks::SubmitFrom(const std::shared_ptr<Batch>& batch, uint32_t max_tasks) {
  const uint32_t left = static_cast<uint32_t>(batch->tasks.size()) - batch->submitted;
  const uint32_t limit = std::min({left, max_tasks, batch->in_order ? 1u : UINT32_MAX});
  uint32_t submitted = 0;
  while (submitted < limit && SubmitOne(batch, batch->submitted)) {
    ++batch->submitted;
    ++submitted;
  }
  batch->use->RemoveTasks(submitted);
  return submitted;
}

RingBacklog::Task RingTasks::DescribeTask(const Batch& batch, uint32_t index) const {
  const TaskDescriptor& task = batch.tasks[index];
  return {task.operator_slot, backlog_.CountBlocks(task), batch.task_bound_ns, batch.long_tasks};
}

bool RingTasks::SubmitOne(const std::shared_ptr<Batch>& batch, uint32_t index) {
  const RingBacklog::Task estimate = DescribeTask(*batch, index);
  if (ring_->full() || held_ || !backlog_.HasRoomFor(estimate)) return false;
  const std::optional<uint64_t> sequence = ring_->Reserve();
  if (!sequence) return false;
  if (ring_->in_flight() == 1) busy_since_ = Clock::now();
  if (batch->arguments_per_task != 0) {
    const uint32_t n = batch->arguments_per_task;
    std::memcpy(ring_->arguments(*sequence)->arguments, batch->arguments.data() + size_t{index} * n,
                n * sizeof(Argument));
  }
  Entry& entry = this->entry(*sequence);
  entry.batch = batch;
  entry.index = index;
  backlog_.Add(estimate);
  ring_->Publish(*sequence, batch->tasks[index]);
  return true;
}

void RingTasks::RingDoorbell() { Doorbell::ForWorkers(ring_->region().control()).Ring(); }

bool RingTasks::Consume(bool full_scan, FinishedBatches* finished) {
  if (in_flight() == 0) return false;
  const auto report = [&](uint64_t sequence, const TaskCompletion& completion) {
    Entry& entry = this->entry(sequence);
    const RingBacklog::Task estimate = DescribeTask(*entry.batch, entry.index);
    backlog_.Remove(estimate);
    // The duration of a refused task does not predict that of a task that is not refused.
    if (completion.status == CompletionStatus::kOk) {
      backlog_.Observe(estimate.slot, completion.duration_ns);
    }
    if (entry.batch->wants_results) {
      std::memcpy(entry.batch->results[entry.index].data(), completion.result, kResultBytes);
    }
    Finish(entry, ToTaskStatus(completion.status), completion.duration_ns, completion.detail,
           finished);
  };
  // Tasks usually complete in order, so the oldest is checked first. The tasks behind it are
  // checked when few are in flight, and every kFullScanInterval (see HostRing::Consume).
  uint32_t consumed = 0;
  if (ring_->in_flight() > kFewInFlight) consumed = ring_->Consume(report, kMaxConsumed, 1);
  if (consumed == 0) {
    const Clock::time_point now = Clock::now();
    if (full_scan || ring_->in_flight() <= kFewInFlight ||
        now - last_full_scan_ > kFullScanInterval) {
      last_full_scan_ = now;
      consumed = ring_->Consume(report, kMaxConsumed);
    }
  }
  if (consumed == 0) return false;
  ++room_version_;
  last_completion_ = Clock::now();
  return true;
}

void RingTasks::Finish(Entry& entry, TaskStatus status, uint32_t device_ns, uint16_t detail,
                       FinishedBatches* finished) {
  Batch& batch = *entry.batch;
  batch.status[entry.index] = status;
  batch.device_ns[entry.index] = device_ns;
  batch.detail[entry.index] = detail;
  if (status != TaskStatus::kOk) ++batch.failed;
  ++batch.finished;
  if (batch.finished == batch.tasks.size()) {
    finished->push_back(std::move(entry.batch));
  } else if (batch.in_order && batch.submitted < batch.tasks.size() &&
             status != TaskStatus::kAborted && status != TaskStatus::kUnavailable) {
    ready_.push_back(std::move(entry.batch));
  } else if (batch.in_order && batch.submitted < batch.tasks.size()) {
    SkipRest(entry.batch, TaskStatus::kUnavailable, batch.cause, finished);
  }
  entry.batch.reset();
}

void RingTasks::CancelInOrder(ClientId client) {
  if (ring_ == nullptr) return;
  ring_->ForEachInFlight([&](uint64_t sequence) {
    Batch& batch = *entry(sequence).batch;
    if (batch.client == client && batch.in_order) batch.cancelled = true;
  });
}

void RingTasks::LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects,
                         FinishedBatches* finished) {
  // Completions that arrived before the end still count.
  while (Consume(/*full_scan=*/true, finished)) {
  }
  ring_->ForEachInFlight([&](uint64_t sequence) {
    Entry& entry = this->entry(sequence);
    Batch& batch = *entry.batch;
    const bool suspect = std::find(suspects.begin(), suspects.end(),
                                   batch.tasks[entry.index].operator_slot) != suspects.end();
    batch.cause = suspect ? absl::StrCat(cause, "; its operator is a suspect")
                          : absl::StrCat(cause,
                                         "; the task may have run. Fix: send it again if "
                                         "that is safe");
    Finish(entry, suspect ? TaskStatus::kAborted : TaskStatus::kUnavailable, 0, 0, finished);
  });
  backlog_.Clear();
  ring_.reset();
}

bool RingTasks::PublishPark() {
  if (!ring_->PublishPark()) return false;
  RingDoorbell();
  park_published_ = true;
  return true;
}

void RingTasks::EndPark() {
  if (park_published_ && ring_ != nullptr) ring_->NoteResumed();
  held_ = park_due_ = park_published_ = false;
  ++room_version_;
}

std::vector<OverdueTask> RingTasks::FindOverdue(const TimeLimit& limit) {
  std::vector<OverdueTask> overdue;
  if (ring_ == nullptr) return overdue;
  const Clock::time_point now = Clock::now();
  const nanoseconds passed = time_.Look(now);
  bool any_running = false;
  for (uint32_t w = 0; w < seen_.size(); ++w) {
    const Breadcrumb breadcrumb = ReadBreadcrumb(w);
    const auto sequence = ring_->InFlightWithStamp(breadcrumb.stamp);
    if (!sequence) {
      seen_[w].stamp = 0;
      continue;
    }
    any_running = true;
    if (seen_[w].stamp != breadcrumb.stamp) {
      seen_[w] = {breadcrumb.stamp, passed};
      continue;
    }
    // Not the breadcrumb's slot, which may be that of the worker's next task.
    const Entry& entry = this->entry(*sequence);
    const uint32_t operator_slot = entry.batch->tasks[entry.index].operator_slot;
    if (passed - seen_[w].since > limit(operator_slot)) {
      overdue.push_back({*sequence, operator_slot, passed - seen_[w].since});
    }
  }
  if (const auto activity = std::max(last_completion_, busy_since_); activity != last_activity_) {
    last_activity_ = activity;
    idle_since_ = passed;
  }
  const nanoseconds idle = passed - idle_since_;
  if (!any_running && ring_->in_flight() > 0 && idle > limit(kNoOperatorSlot)) {
    overdue.push_back({ring_->next_sequence(), kNoOperatorSlot, idle});
  }
  return overdue;
}

std::vector<RunningTask> RingTasks::RunningTasks() const {
  std::vector<RunningTask> running;
  if (ring_ == nullptr) return running;
  // The CPU engine records which worker faulted; then only the tasks of such workers are returned.
  bool faulted = false;
  for (uint32_t w = 0; w < seen_.size(); ++w) {
    const Breadcrumb breadcrumb = ReadBreadcrumb(w);
    const auto sequence = ring_->InFlightWithStamp(breadcrumb.stamp);
    if (!sequence) continue;
    if (breadcrumb.fault_signal != 0 && !faulted) {
      faulted = true;
      running.clear();
    }
    if (faulted != (breadcrumb.fault_signal != 0)) continue;
    const Entry& entry = entries_[*sequence & (ring_->slots() - 1)];
    const Batch& batch = *entry.batch;
    RunningTask task{*sequence, w, batch.client, batch.tasks[entry.index], {}};
    const auto arguments =
        batch.arguments.begin() + ptrdiff_t{entry.index} * batch.arguments_per_task;
    task.arguments.assign(arguments, arguments + batch.arguments_per_task);
    running.push_back(std::move(task));
  }
  return running;
}

std::vector<uint32_t> RingTasks::RunningSlots() const {
  std::vector<uint32_t> slots;
  for (const RunningTask& task : RunningTasks()) slots.push_back(task.task.operator_slot);
  std::sort(slots.begin(), slots.end());
  slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  return slots;
}

Breadcrumb RingTasks::ReadBreadcrumb(uint32_t worker) const {
  Breadcrumb& breadcrumb = ring_->region().breadcrumbs()[worker];
  Breadcrumb read{};
  read.stamp = std::atomic_ref<uint32_t>(breadcrumb.stamp).load(std::memory_order_acquire);
  read.operator_slot =
      std::atomic_ref<uint32_t>(breadcrumb.operator_slot).load(std::memory_order_relaxed);
  read.fault_signal =
      std::atomic_ref<uint32_t>(breadcrumb.fault_signal).load(std::memory_order_relaxed);
  return read;
}

}  // namespace resident
