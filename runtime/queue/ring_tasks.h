// RingTasks: the tasks of batches that are in a device's ring, and the in-order batches
// that are under way. Submits them, records their outcomes (batch_outcome.h), and tells
// what workers are running. Whose turn it is: client_queues.h.
//
// Thread safety: one thread at a time (DeviceQueue's pump_mu_).
//
// Invariants:
//   1. entries_[s] holds a batch exactly while the ring has a task in slot s in flight.
//   2. An in-order batch with tasks left is in one place: an entry, or `ordered_ready_`.
//   3. During a hold nothing is published but the park marker. A park is a hold, from
//      before its marker until the kernel is back.
//
//   tasks.SetRing(ring);
//   published |= tasks.SubmitReady(&finished);              // In-order batches go on.
//   published |= tasks.SubmitFrom(batch, quantum) > 0;
//   if (published) tasks.RingDoorbell();
//   tasks.Consume(thorough, &finished);
#ifndef RESIDENT_RUNTIME_QUEUE_RING_TASKS_H_
#define RESIDENT_RUNTIME_QUEUE_RING_TASKS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/process/watched_time.h"
#include "runtime/queue/batch.h"
#include "runtime/queue/batch_outcome.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/ring_backlog.h"
#include "runtime/ring/host_ring.h"

namespace resident {

class RingTasks {
 public:
  // REQUIRES: no ring.
  void SetRing(std::shared_ptr<HostRing> ring);
  const std::shared_ptr<HostRing>& ring() const { return ring_; }
  uint32_t in_flight() const { return ring_ == nullptr ? 0 : ring_->in_flight(); }

  // Whether a task may be submitted. REQUIRES: a ring.
  bool HasRoom() const { return backlog_.HasRoom() && !ring_->full() && !held_; }
  // Submits the next tasks of a batch, at most `most`, while there is room; returns how
  // many. The batch is not in-order.
  uint32_t SubmitFrom(const std::shared_ptr<Batch>& batch, uint32_t most);
  // Submits the first task of an in-order batch and sees to the others from then on.
  // Returns whether a task was published.
  bool StartOrdered(std::shared_ptr<Batch> batch, FinishedBatches* finished);
  // Submits the next tasks of in-order batches whose last one has completed. Returns
  // whether a task was published.
  bool SubmitReady(FinishedBatches* finished);
  bool ordered_waiting() const { return !ordered_ready_.empty(); }
  // Wakes workers that sleep: after publications.
  void RingDoorbell();

  // Records completed tasks; returns whether there were any. `thorough`: finds every one.
  bool Consume(bool thorough, FinishedBatches* finished);

  // Cancels the in-order batches of a client that are under way.
  void CancelOrdered(ClientId client);
  // Skips in-order batches under way that were cancelled or are past their deadline.
  void SkipDoomed(FinishedBatches* finished);

  // The engine has ended, see DeviceQueue::LoseRing. `not_run`: what is said of tasks of
  // in-order batches that had not been submitted. REQUIRES: a ring.
  void LoseRing(const std::string& cause, const std::string& not_run,
                const std::vector<uint32_t>& suspects, FinishedBatches* finished);

  // Nothing is submitted from now on, until EndPark.
  void Hold() { held_ = true; }
  // Submits the park marker; false if the ring is full. REQUIRES: a hold.
  bool PublishPark();
  // Holds, and submits the park marker; if the ring is full, a SubmitDuePark does.
  void BeginPark() {
    Hold();
    park_due_ = !PublishPark();
  }
  void SubmitDuePark() {
    if (park_due_) park_due_ = !PublishPark();
  }
  // The kernel is back, or was not parked after a Hold.
  void EndPark();

  // To be called every so often while tasks are in flight: time counts as far as these calls
  // saw it pass.
  std::vector<OverdueTask> FindOverdue(const TimeLimit& limit);
  std::vector<uint32_t> RunningSlots() const;
  std::vector<RunningTask> RunningTasks() const;

  // See DeviceQueue::ForgetEstimate.
  void ForgetEstimate(uint32_t operator_slot) { backlog_.Forget(operator_slot); }

 private:
  // The task in a ring slot.
  struct Entry {
    std::shared_ptr<Batch> batch;
    uint32_t index = 0;
  };

  // What a worker was seen running, and since when, by `time_`.
  struct Crumb {
    uint32_t stamp = 0;
    std::chrono::nanoseconds since{0};
  };
  // Of the time between two calls of FindOverdue, at most.
  static constexpr std::chrono::milliseconds kMostOfALook{200};

  Entry& entry(uint64_t sequence) { return entries_[sequence & (ring_->slots() - 1)]; }
  // Puts one task into the ring; false when it is full.
  bool SubmitOne(const std::shared_ptr<Batch>& batch, uint32_t index);
  // Submits the next task of an in-order batch, or skips what is left of it.
  bool SubmitOrdered(std::shared_ptr<Batch> batch, FinishedBatches* finished);
  // Records the outcome of the task in a slot and empties the entry.
  void Finish(Entry& entry, TaskStatus status, uint32_t device_ns, uint16_t detail,
              FinishedBatches* finished);
  Breadcrumb ReadCrumb(uint32_t worker) const;

  std::shared_ptr<HostRing> ring_;
  std::vector<Entry> entries_;  // By ring slot.
  std::vector<Crumb> crumbs_;   // By worker.
  // In-order batches whose last task has completed.
  std::deque<std::shared_ptr<Batch>> ordered_ready_;
  RingBacklog backlog_;
  bool held_ = false;
  bool park_due_ = false;  // The marker waits for room.
  bool park_published_ = false;
  Clock::time_point last_completion_ = Clock::now();
  Clock::time_point busy_since_ = Clock::now();
  Clock::time_point looked_past_;
  // Of FindOverdue: what happened last, and since when it has been quiet, by `time_`.
  WatchedTime time_{kMostOfALook, Clock::now()};
  Clock::time_point stirred_;
  std::chrono::nanoseconds quiet_since_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_RING_TASKS_H_
