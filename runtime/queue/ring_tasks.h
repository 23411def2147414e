// RingTasks: the tasks of batches that are in a device's ring. Submits them, records their
// outcomes (batch_outcome.h), and returns what workers are running. client_queues.h chooses which
// batch is served next.
//
// Thread safety: one thread at a time (DeviceQueue's dispatch_mu_).
//
// Invariants:
//   1. entries_[s] holds a batch exactly while the ring has a task in slot s in flight.
//   2. An in-order batch of which a task has been submitted is in one place: an entry, `ready_`,
//      or the queue of its client, until its last task has an outcome.
//   3. During a hold nothing is published except the park marker. A park includes a hold that
//      begins before its marker and ends when the kernel is back.
//
//   tasks.SetRing(ring);
//   published |= tasks.SubmitFrom(batch, quantum) > 0;
//   if (published) tasks.RingDoorbell();
//   tasks.Consume(full_scan, &finished);
//   for (auto& batch : tasks.TakeReady()) ... queue it again ...
#ifndef RESIDENT_RUNTIME_QUEUE_RING_TASKS_H_
#define RESIDENT_RUNTIME_QUEUE_RING_TASKS_H_

#include <array>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/process/watched_time.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/batch_outcome.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/operator_stats.h"
#include "runtime/queue/ring_backlog.h"
#include "runtime/ring/host_ring.h"

namespace resident {

class RingTasks {
 public:
  // `stop_durations`: gets the time from each request to stop a task until its completion arrived.
  explicit RingTasks(DurationHistogram* stop_durations) : stop_durations_(*stop_durations) {}

  // REQUIRES: no ring.
  void SetRing(std::shared_ptr<HostRing> ring);
  const std::shared_ptr<HostRing>& ring() const { return ring_; }
  uint32_t in_flight() const { return ring_ == nullptr ? 0 : ring_->in_flight(); }

  // Whether a task that is not long may be submitted. REQUIRES: a ring.
  bool HasRoom() const {
    assert(ring_ != nullptr);
    return backlog_.HasRoom() && !ring_->full() && !held_;
  }
  // Changes whenever there may be room for a task for which there was none.
  uint64_t room_version() const { return room_version_; }
  // Submits the next tasks of a batch, at most `max_tasks`, while there is room; returns how
  // many. Submits only one task of an in-order batch. REQUIRES: its previous task has completed. Of
  // a range it submits one piece, which may have more than `max_tasks` tasks, but takes a bounded
  // time.
  uint32_t SubmitFrom(const std::shared_ptr<Batch>& batch, uint32_t max_tasks);
  // Wakes sleeping workers. Call it after publications.
  void RingDoorbell();

  // Records completed tasks; returns whether there were any. `full_scan`: finds every one.
  bool Consume(bool full_scan, FinishedBatches* finished);
  // In-order batches whose last submitted task has completed, and that have more tasks.
  bool has_ready() const { return !ready_.empty(); }
  std::vector<std::shared_ptr<Batch>> TakeReady() { return std::exchange(ready_, {}); }

  // Asks the device to stop the tasks that workers run of batches that were cancelled, or whose
  // deadline has passed at `now`; returns whether there were any. Call it at next_stop(), and when
  // a batch was cancelled.
  bool StopExpired(Clock::time_point now);
  // When there may be a task to stop; max(): no task in the ring has a deadline, or was cancelled.
  Clock::time_point next_stop() const { return next_stop_; }
  // Tasks that were stopped, and whether there are more than when this was called last.
  uint64_t stopped(StopReason reason) const { return stopped_[static_cast<size_t>(reason)]; }
  bool TakeStopsChanged() { return std::exchange(stops_changed_, false); }

  // Cancels the in-order batches of a client that have a task in the ring.
  void CancelInOrder(ClientId client);

  // The engine has ended, see DeviceQueue::LoseRing. REQUIRES: a ring.
  void LoseRing(const std::string& cause, const std::vector<uint32_t>& suspects,
                FinishedBatches* finished);

  // Stops submissions until EndPark.
  void Hold() { held_ = true; }
  bool held() const { return held_; }
  // Submits the park marker; false if the ring is full. REQUIRES: a hold.
  bool PublishPark();
  // Holds, and submits the park marker; if the ring is full, a later SubmitDuePark submits it.
  void BeginPark() {
    Hold();
    park_due_ = !PublishPark();
  }
  void SubmitDuePark() {
    if (park_due_) park_due_ = !PublishPark();
  }
  // The kernel is back, or was not parked after a Hold.
  void EndPark();

  // Must be called regularly while tasks are in flight: only kMaxPerCheck of a longer gap between
  // two calls counts.
  std::vector<OverdueTask> FindOverdue(const TimeLimit& limit);
  std::vector<uint32_t> RunningSlots() const;
  std::vector<RunningTask> RunningTasks() const;

  // See DeviceQueue::ForgetEstimate.
  void ForgetEstimate(uint32_t operator_slot) {
    backlog_.Forget(operator_slot);
    ++room_version_;
  }

 private:
  // The task in a ring slot, or the piece of a range: tasks [index, index + count).
  struct Entry {
    std::shared_ptr<Batch> batch;
    uint32_t index = 0;
    uint32_t count = 1;
    uint32_t claim = 1;  // Tasks that a block takes at a time.
    // Why the device was asked to stop it, if it was, and when.
    StopReason stop = StopReason::kNone;
    Clock::time_point stop_asked = {};
  };

  // The task that a worker was seen running, and since when, measured by `time_`.
  struct SeenTask {
    uint32_t stamp = 0;
    uint32_t task = 0;  // Breadcrumb::task.
    std::chrono::nanoseconds since{0};
  };
  // Between two looks for tasks of an expired batch that have begun meanwhile.
  static constexpr std::chrono::microseconds kStopInterval{200};
  // Limit on the time that counts between two calls of FindOverdue.
  static constexpr std::chrono::milliseconds kMaxPerCheck{200};

  Entry& entry(uint64_t sequence) { return entries_[sequence & (ring_->slots() - 1)]; }
  RingBacklog::Task Estimate(const Entry& entry) const;
  // The next piece of a batch's range.
  Entry CutPiece(const std::shared_ptr<Batch>& batch) const;
  // Reserves a slot for the entry; nullopt when there is no room for it.
  std::optional<uint64_t> Admit(const Entry& entry);
  // Puts the entry's task or piece into the ring; false when there is no room for it.
  bool SubmitTask(const Entry& entry);
  bool SubmitPiece(const Entry& entry);
  void FinishTask(Entry& entry, const TaskCompletion& completion, FinishedBatches* finished);
  void FinishPiece(Entry& entry, const TaskCompletion& completion, FinishedBatches* finished);
  // Records this outcome for all tasks of the entry.
  void EndWith(Entry& entry, TaskStatus status);
  // Empties the entry: its tasks have outcomes. `lost`: they ended with the engine.
  void Close(Entry& entry, bool lost, FinishedBatches* finished);
  // Counts a task that was stopped. Returns its status.
  TaskStatus NoteStatus(CompletionStatus status, uint16_t detail);
  // Why the tasks of an entry are to stop at `now`.
  static StopReason ReasonToStop(const Entry& entry, Clock::time_point now);
  // Whether one of the operators in `suspects` was running in the entry; sets Batch::suspect.
  bool IsSuspect(uint64_t sequence, Entry& entry, const std::vector<uint32_t>& suspects) const;
  Breadcrumb ReadBreadcrumb(uint32_t worker) const;

  DurationHistogram& stop_durations_;
  std::shared_ptr<HostRing> ring_;
  std::vector<Entry> entries_;                 // By ring slot.
  std::vector<SeenTask> seen_;                 // By worker.
  std::vector<std::shared_ptr<Batch>> ready_;  // See TakeReady.
  RingBacklog backlog_;
  uint64_t room_version_ = 0;
  bool held_ = false;
  bool park_due_ = false;  // The marker waits for room.
  bool park_published_ = false;
  Clock::time_point next_stop_ = Clock::time_point::max();
  std::array<uint64_t, kStopReasons> stopped_{};
  bool stops_changed_ = false;
  Clock::time_point last_completion_ = Clock::now();
  Clock::time_point busy_since_ = Clock::now();
  Clock::time_point last_full_scan_;
  // For FindOverdue: the time of the last activity (a completion, or a submission to an empty
  // ring), and the value of `time_` when it was noticed, or when a worker was last seen running.
  WatchedTime time_{kMaxPerCheck, Clock::now()};
  Clock::time_point last_activity_;
  std::chrono::nanoseconds idle_since_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_RING_TASKS_H_
