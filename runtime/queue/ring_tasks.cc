#include "runtime/queue/ring_tasks.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
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

// Worker time of all workers that the piece of a range takes, about. Pieces of several clients take
// turns, and a few of them are in the ring at a time (RingBacklog::kTargetRingDelay).
constexpr nanoseconds kPieceTime = std::chrono::microseconds(250);
// How long the tasks take that a block claims at a time, about, and the number of claims that each
// block gets at least, if there are enough tasks.
constexpr nanoseconds kClaimTime = std::chrono::microseconds(5);
constexpr uint32_t kClaimsPerWorker = 4;
// Until a piece of a batch has ended, its pieces have at most so many tasks for each worker.
constexpr uint32_t kFirstTasksOfWorker = 16;

TaskStatus ToTaskStatus(CompletionStatus status, uint16_t detail) {
  switch (status) {
    case CompletionStatus::kOk:
      return TaskStatus::kOk;
    case CompletionStatus::kInvalidArgument:
      return TaskStatus::kInvalidArgument;
    case CompletionStatus::kInternal:
    case CompletionStatus::kNoOperator:
    case CompletionStatus::kOutOfBounds:
      return TaskStatus::kInternal;
    case CompletionStatus::kStopped:
      switch (static_cast<StopReason>(detail)) {
        case StopReason::kDeadline:
          return TaskStatus::kDeadlineExceeded;
        case StopReason::kCancelled:
          return TaskStatus::kCancelled;
        default:
          return TaskStatus::kAborted;
      }
  }
  return TaskStatus::kInternal;
}

}  // namespace

void RingTasks::SetRing(std::shared_ptr<HostRing> ring) {
  assert(ring_ == nullptr);
  entries_.assign(ring->slots(), Entry{});
  seen_.assign(ring->worker_count(), SeenTask{});
  backlog_.Start(ring->worker_count());
  ring_ = std::move(ring);
  held_ = park_due_ = park_published_ = false;
  next_stop_ = Clock::time_point::max();
  ++room_version_;
}

uint32_t RingTasks::SubmitFrom(const std::shared_ptr<Batch>& batch, uint32_t max_tasks) {
  assert(!batch->in_order || batch->finished == batch->submitted);
  const uint32_t left = batch->count() - batch->submitted;
  uint32_t submitted = 0;
  if (batch->range) {
    const Entry piece = CutPiece(batch);
    if (SubmitPiece(piece)) submitted = piece.count;
    batch->submitted += submitted;
  } else {
    const uint32_t limit = std::min({left, max_tasks, batch->in_order ? 1u : UINT32_MAX});
    while (submitted < limit && SubmitTask({batch, batch->submitted})) {
      ++batch->submitted;
      ++submitted;
    }
  }
  batch->use->RemoveTasks(submitted);
  return submitted;
}

RingBacklog::Task RingTasks::Estimate(const Entry& entry) const {
  const Batch& batch = *entry.batch;
  RingBacklog::Task estimate{.slot = batch.operator_slot(entry.index),
                             .bound_ns = batch.task_bound_ns,
                             .long_task = batch.long_tasks};
  if (batch.graph) {
    estimate.slot = kGraphSlot;
    estimate.blocks =
        static_cast<uint32_t>(std::min<uint64_t>(batch.graph->workers, backlog_.workers()));
    estimate.bound_ns = batch.graph->worker_ns;
    estimate.only_bound = true;
  } else if (batch.range) {
    const uint32_t claims = (entry.count + entry.claim - 1) / entry.claim;
    estimate.blocks = static_cast<uint32_t>(std::min<uint64_t>(claims, backlog_.workers()));
    estimate.range_tasks = entry.count;
  } else {
    estimate.blocks = backlog_.CountBlocks(batch.tasks[entry.index]);
  }
  return estimate;
}

RingTasks::Entry RingTasks::CutPiece(const std::shared_ptr<Batch>& batch) const {
  Entry piece{batch, batch->submitted, batch->count() - batch->submitted, 1};
  const uint32_t slot = batch->operator_slot(0);
  const uint32_t workers = static_cast<uint32_t>(backlog_.workers());
  if (batch->long_tasks || backlog_.IsLong(slot)) {
    piece.count = 1;  // Long tasks leave some workers to other clients.
    return piece;
  }
  uint64_t average_ns = backlog_.AverageNs(slot);
  if (average_ns == 0) {
    // The ring takes two such pieces.
    piece.count = std::min(piece.count, workers);
    return piece;
  }
  // The average is that of the operator. The batch's own tasks may take longer.
  if (batch->range_ran != 0) {
    average_ns = std::max(average_ns, batch->range_ns / batch->range_ran);
  } else {
    piece.count = std::min(piece.count, kFirstTasksOfWorker * workers);
  }
  const auto count_tasks = [&](nanoseconds worker_time) {
    return std::max<uint64_t>(static_cast<uint64_t>(worker_time.count()) / average_ns, 1);
  };
  piece.count =
      static_cast<uint32_t>(std::min<uint64_t>(piece.count, count_tasks(kPieceTime * workers)));
  const uint64_t short_claim = std::min<uint64_t>(count_tasks(kClaimTime), kMaxRangeClaim / 4);
  const uint64_t even_claim = piece.count / (uint64_t{workers} * kClaimsPerWorker);
  piece.claim =
      static_cast<uint32_t>(std::min<uint64_t>(std::max(short_claim, even_claim), kMaxRangeClaim));
  return piece;
}

std::optional<uint64_t> RingTasks::Admit(const Entry& entry) {
  const RingBacklog::Task estimate = Estimate(entry);
  if (ring_->full() || held_ || !backlog_.HasRoomFor(estimate)) return std::nullopt;
  const std::optional<uint64_t> sequence = ring_->Reserve();
  if (!sequence) return std::nullopt;
  if (ring_->in_flight() == 1) busy_since_ = Clock::now();
  assert(this->entry(*sequence).batch == nullptr);
  this->entry(*sequence) = entry;
  next_stop_ = std::min(next_stop_, entry.batch->deadline);
  backlog_.Add(estimate);
  return sequence;
}

bool RingTasks::SubmitTask(const Entry& entry) {
  const std::optional<uint64_t> sequence = Admit(entry);
  if (!sequence) return false;
  const Batch& batch = *entry.batch;
  if (const uint32_t n = batch.arguments_per_task; n != 0) {
    std::memcpy(ring_->arguments(*sequence)->arguments,
                batch.arguments.data() + size_t{entry.index} * n, n * sizeof(Argument));
  }
  ring_->Publish(*sequence, batch.tasks[entry.index]);
  return true;
}

bool RingTasks::SubmitPiece(const Entry& entry) {
  const std::optional<uint64_t> sequence = Admit(entry);
  if (!sequence) return false;
  const TaskRange& range = *entry.batch->range;
  ArgumentBlock* const block = ring_->arguments(*sequence);
  const uint32_t n = static_cast<uint32_t>(range.arguments.size());
  std::ranges::copy(range.arguments, block->arguments);
  std::ranges::copy(range.columns, ColumnsOf(block, n));
  RangeDescriptor descriptor = range.descriptor;
  descriptor.flags |= kTaskRange;
  descriptor.arguments = static_cast<u8>(n);
  descriptor.first = entry.index;
  descriptor.count = entry.count;
  descriptor.claim = entry.claim;
  descriptor.max_blocks = kMaxTaskBlocks;
  ring_->Publish(*sequence, std::bit_cast<TaskDescriptor>(descriptor));
  return true;
}

void RingTasks::RingDoorbell() { Doorbell::ForWorkers(ring_->region().control()).Ring(); }

bool RingTasks::Consume(bool full_scan, FinishedBatches* finished) {
  if (in_flight() == 0) return false;
  const auto report = [&](uint64_t sequence, const TaskCompletion& completion) {
    Entry& entry = this->entry(sequence);
    const RingBacklog::Task estimate = Estimate(entry);
    backlog_.Remove(estimate);
    // The duration of a refused task does not predict that of a task that is not refused.
    if (completion.status == CompletionStatus::kOk && !entry.batch->graph) {
      const uint64_t worker_ns = uint64_t{completion.duration_ns} * estimate.blocks;
      backlog_.Observe(estimate.slot, entry.batch->range
                                          ? static_cast<uint32_t>(worker_ns / entry.count)
                                          : completion.duration_ns);
      if (entry.batch->range) {
        entry.batch->range_ns += worker_ns;
        entry.batch->range_ran += entry.count;
      }
    }
    if (entry.batch->range) {
      FinishPiece(entry, completion, finished);
    } else {
      FinishTask(entry, completion, finished);
    }
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

void RingTasks::FinishTask(Entry& entry, const TaskCompletion& completion,
                           FinishedBatches* finished) {
  Batch& batch = *entry.batch;
  const TaskStatus status = NoteStatus(completion.status, completion.detail);
  batch.status[entry.index] = status;
  batch.device_ns[entry.index] = completion.duration_ns;
  batch.detail[entry.index] = completion.detail;
  if (batch.wants_results) {
    std::memcpy(batch.results[entry.index].data(), completion.result, kResultBytes);
  }
  if (status != TaskStatus::kOk) ++batch.failed;
  Close(entry, /*lost=*/false, finished);
}

void RingTasks::FinishPiece(Entry& entry, const TaskCompletion& completion,
                            FinishedBatches* finished) {
  Batch& batch = *entry.batch;
  if (completion.status != CompletionStatus::kOk) {  // No task of the piece ran.
    EndWith(entry, NoteStatus(completion.status, completion.detail));
    return Close(entry, /*lost=*/false, finished);
  }
  const uint32_t end = entry.index + entry.count;
  const RangeOutcome* const outcomes = batch.range->outcomes;
  if (batch.range->times()) {
    for (uint32_t i = entry.index; i < end; ++i) batch.device_ns[i] = outcomes[i].duration_ns;
  }
  uint32_t failed = 0;
  std::memcpy(&failed, completion.result, sizeof(failed));
  if (failed != 0) {
    PrepareFailures(batch);
    for (uint32_t i = entry.index; i < end; ++i) {
      const uint32_t packed = outcomes[i].status_and_detail;
      if (packed == 0) continue;
      batch.detail[i] = static_cast<uint16_t>(packed >> 16);
      batch.status[i] = NoteStatus(static_cast<CompletionStatus>(packed & 0xffff), batch.detail[i]);
      ++batch.failed;
    }
  }
  Close(entry, /*lost=*/false, finished);
}

TaskStatus RingTasks::NoteStatus(CompletionStatus status, uint16_t detail) {
  if (status == CompletionStatus::kStopped && detail < stopped_.size()) {
    ++stopped_[detail];
    stops_changed_ = true;
  }
  return ToTaskStatus(status, detail);
}

void RingTasks::EndWith(Entry& entry, TaskStatus status) {
  Batch& batch = *entry.batch;
  PrepareFailures(batch);
  std::fill_n(batch.status.begin() + entry.index, entry.count, status);
  batch.failed += entry.count;
}

void RingTasks::Close(Entry& entry, bool lost, FinishedBatches* finished) {
  Batch& batch = *entry.batch;
  if (entry.stop != StopReason::kNone && !lost) {
    const std::chrono::nanoseconds took = Clock::now() - entry.stop_asked;
    stop_durations_.Observe(static_cast<uint64_t>(took.count()));
  }
  batch.finished += entry.count;
  const bool more = batch.submitted < batch.count();
  if (batch.finished == batch.count()) {
    finished->push_back(std::move(entry.batch));
  } else if (batch.in_order && more && !lost) {
    ready_.push_back(std::move(entry.batch));
  } else if (batch.in_order && more) {
    SkipRest(entry.batch, TaskStatus::kUnavailable, batch.cause, finished);
  }
  entry.batch.reset();
}

StopReason RingTasks::ReasonToStop(const Entry& entry, Clock::time_point now) {
  const Batch& batch = *entry.batch;
  if (batch.cancelled.load(std::memory_order_relaxed)) return StopReason::kCancelled;
  if (batch.task_cancelled != nullptr &&
      batch.task_cancelled(batch, entry.index + entry.count - 1)) {
    return StopReason::kCancelled;
  }
  return now >= batch.deadline ? StopReason::kDeadline : StopReason::kNone;
}

bool RingTasks::StopExpired(Clock::time_point now) {
  next_stop_ = Clock::time_point::max();
  if (ring_ == nullptr || ring_->in_flight() == 0) return false;
  bool expired = false;
  ring_->ForEachInFlight([&](uint64_t sequence) {
    const Entry& entry = this->entry(sequence);
    if (ReasonToStop(entry, now) != StopReason::kNone) {
      expired = true;
    } else {
      next_stop_ = std::min(next_stop_, entry.batch->deadline);
    }
  });
  if (!expired) return false;
  // Only what runs: the other tasks of the batches may be many, and most of them are short.
  bool published = false;
  for (uint32_t w = 0; w < seen_.size(); ++w) {
    const auto sequence = ring_->InFlightWithStamp(ReadBreadcrumb(w).stamp);
    if (!sequence) continue;
    Entry& running = entry(*sequence);
    const StopReason reason = ReasonToStop(running, now);
    if (reason == StopReason::kNone || running.stop != StopReason::kNone) continue;
    published = true;
    if (!ring_->PublishStop(*sequence, reason)) continue;
    running.stop = reason;
    running.stop_asked = Clock::now();
  }
  if (published) RingDoorbell();
  next_stop_ = std::min(next_stop_, now + kStopInterval);
  return published;
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
  assert(ring_ != nullptr);
  // Completions that arrived before the end still count.
  while (Consume(/*full_scan=*/true, finished)) {
  }
  ring_->ForEachInFlight([&](uint64_t sequence) {
    Entry& entry = this->entry(sequence);
    Batch& batch = *entry.batch;
    const bool suspect = IsSuspect(sequence, entry, suspects);
    batch.cause = suspect ? absl::StrCat(cause, "; its operator is a suspect")
                          : absl::StrCat(cause,
                                         "; the task may have run. Fix: send it again if "
                                         "that is safe");
    EndWith(entry, suspect ? TaskStatus::kAborted : TaskStatus::kUnavailable);
    Close(entry, /*lost=*/true, finished);
  });
  backlog_.Clear();
  ring_.reset();
}

bool RingTasks::IsSuspect(uint64_t sequence, Entry& entry,
                          const std::vector<uint32_t>& suspects) const {
  Batch& batch = *entry.batch;
  const auto listed = [&](uint32_t slot) {
    return std::find(suspects.begin(), suspects.end(), slot) != suspects.end();
  };
  if (!batch.graph) return listed(batch.operator_slot(entry.index));
  for (uint32_t w = 0; w < seen_.size(); ++w) {
    const Breadcrumb breadcrumb = ReadBreadcrumb(w);
    if (ring_->InFlightWithStamp(breadcrumb.stamp) != sequence) continue;
    if (!listed(batch.graph->operator_slot(breadcrumb.task))) continue;
    batch.suspect = breadcrumb.task;
    // The worker that faulted is the best one to name.
    if (breadcrumb.fault_signal != 0) break;
  }
  return batch.suspect.has_value();
}

bool RingTasks::PublishPark() {
  assert(held_);
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
    if (seen_[w].stamp != breadcrumb.stamp || seen_[w].task != breadcrumb.task) {
      seen_[w] = {breadcrumb.stamp, breadcrumb.task, passed};
      continue;
    }
    // Not the breadcrumb's slot, which may be that of the worker's next task.
    const Entry& entry = this->entry(*sequence);
    const Batch& batch = *entry.batch;
    const uint32_t operator_slot = batch.graph ? batch.graph->operator_slot(breadcrumb.task)
                                               : batch.operator_slot(entry.index);
    if (passed - seen_[w].since > limit(operator_slot)) {
      overdue.push_back({*sequence, operator_slot, passed - seen_[w].since});
    }
  }
  if (const auto activity = std::max(last_completion_, busy_since_); activity != last_activity_) {
    last_activity_ = activity;
    idle_since_ = passed;
  }
  // The completion of a range or a graph follows the end of its last task a little later.
  if (any_running) idle_since_ = passed;
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
    RunningTask task{*sequence, w, batch.client, {}, {}};
    if (batch.graph) {
      task.task.operator_slot = static_cast<u16>(batch.graph->operator_slot(breadcrumb.task));
    } else if (batch.range) {
      const uint32_t last = entry.index + entry.count - 1;
      task.task =
          batch.range->Describe(std::clamp(breadcrumb.task, entry.index, last), &task.arguments);
    } else {
      task.task = batch.tasks[entry.index];
      const auto arguments =
          batch.arguments.begin() + ptrdiff_t{entry.index} * batch.arguments_per_task;
      task.arguments.assign(arguments, arguments + batch.arguments_per_task);
    }
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
  read.task = std::atomic_ref<uint32_t>(breadcrumb.task).load(std::memory_order_relaxed);
  read.fault_signal =
      std::atomic_ref<uint32_t>(breadcrumb.fault_signal).load(std::memory_order_relaxed);
  return read;
}

}  // namespace resident
