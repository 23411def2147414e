// RingBacklog: how much work is in the ring, in worker time, and whether there is room for
// more. It bounds how long a client's lone task waits behind the tasks of others.
//
// The estimate of a task's time is the sum of two figures:
//
//   average   The average of the completed tasks of the operator slot. A slot without completed
//             tasks counts as kUnknownTask, and so does one whose durations vary by more than
//             kVaryingFactor, for the next kVaryingTasks of its tasks. A new average applies at
//             once to the tasks that are in the ring already.
//   bound     In addition, how long the task may take, if the creator of the batch sets it
//             (Batch::task_bound_ns). This is used for FLUX programs: they share one operator
//             slot, so the duration of one client's programs does not predict that of the next
//             client's. It is the whole estimate of a graph, whose nodes call several operators:
//             what its last quantum took.
//
// There is room while one of these holds:
//
//   1. fewer blocks are occupied than there are workers: a worker would be idle;
//   2. fewer than two blocks for each worker are occupied, and by the averages they end soon
//      (kMaxBusy): the second block hides the time between a completion and the next submission;
//   3. the tasks in the ring take less than kTargetRingDelay of each worker's time.
//
// Long tasks, for which others should not wait, may not occupy all workers: of eight or more
// workers they leave one in eight free, so that another client's short task starts at once. A task
// is long if the creator of the batch says so (Batch::long_tasks), or if the average of its slot is
// above kLongForOthers. One long task is always taken, however many blocks it occupies.
//
// Limitation: tasks of a slot with a short average are submitted before the first of them can
// prove to be long. Rule 3 bounds their number by the average.
//
// Not for accounting: the estimate of a wide task is its duration times the blocks that may
// work on it, and fewer may have done so.
//
// Thread safety: one thread at a time.
//
// Invariants:
//   1. backlog_ns() is the sum over all slots of (work in the ring) * (estimate), plus the
//      bounds of the tasks that have one. A wide task counts as CountBlocks() blocks, a range as
//      its tasks.
//   2. Every task that is added is later removed, or the backlog is cleared.
//
//   const RingBacklog::Task task{slot, blocks, bound_ns, long_task};
//   if (backlog.HasRoomFor(task)) backlog.Add(task);  // When the task is published.
//   backlog.Remove(task);                             // When it has completed;
//   backlog.Observe(slot, duration_ns);               // then, if it ended OK.
#ifndef RESIDENT_RUNTIME_QUEUE_RING_BACKLOG_H_
#define RESIDENT_RUNTIME_QUEUE_RING_BACKLOG_H_

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "kernels/layout/ring_layout.h"
#include "kernels/layout/task.h"

namespace resident {

class RingBacklog {
 public:
  // A lone task waits about this long behind the tasks in the ring.
  static constexpr std::chrono::nanoseconds kTargetRingDelay = std::chrono::milliseconds(1);
  // Estimate of a task whose duration is unknown: it fills the ring.
  static constexpr std::chrono::nanoseconds kUnknownTask = kTargetRingDelay;
  // A worker gets a second task only while those in the ring take less than this.
  static constexpr std::chrono::nanoseconds kMaxBusy = std::chrono::milliseconds(50);
  // Durations of a slot vary if a duration and the average differ by this factor and the longer
  // of the two exceeds kLongTask. Shorter tasks do not delay other clients.
  static constexpr int64_t kVaryingFactor = 16;
  static constexpr std::chrono::nanoseconds kLongTask = std::chrono::milliseconds(20);
  static constexpr uint32_t kVaryingTasks = 16'384;
  // A task of a slot with a longer average is long.
  static constexpr std::chrono::nanoseconds kLongForOthers = std::chrono::milliseconds(250);

  struct Task {
    uint32_t slot = 0;
    // CountBlocks of the task.
    uint32_t blocks = 1;
    // Worker time that the task may take; 0: unknown.
    uint64_t bound_ns = 0;
    // Batch::long_tasks.
    bool long_task = false;
    // The tasks of a range, each of which takes the average; 0: each of its blocks does.
    uint32_t range_tasks = 0;
    // Whether `bound_ns` is the whole estimate, because the task is of no slot.
    bool only_bound = false;
  };

  // Starts with no task in the ring; keeps the averages.
  void Start(uint32_t workers) {
    workers_ = workers;
    Clear();
  }

  uint64_t workers() const { return workers_; }

  // The blocks that a task may occupy at once.
  uint32_t CountBlocks(const TaskDescriptor& task) const {
    const bool wide = !(task.flags & kTaskCompact) && task.chunks() > 1;
    return wide ? static_cast<uint32_t>(std::min<uint64_t>(task.chunks(), workers_)) : 1;
  }

  void Add(const Task& task) { Change(task, 1); }
  void Remove(const Task& task) { Change(task, -1); }

  // The average of the slot's tasks in nanoseconds; 0: unknown, or the durations vary.
  uint32_t AverageNs(uint32_t slot) const {
    const Slot& s = slots_[Index(slot)];
    return !s.known || s.varying_tasks != 0 ? 0 : std::max(s.average_ns, 1u);
  }
  // Whether the slot's tasks are long by their average.
  bool IsLong(uint32_t slot) const { return slots_[Index(slot)].is_long; }

  // A task of the slot took this long.
  void Observe(uint32_t slot, uint32_t duration_ns) {
    Slot& s = slots_[Index(slot)];
    const int64_t shorter = std::min<int64_t>(duration_ns, s.average_ns);
    const int64_t longer = std::max<int64_t>(duration_ns, s.average_ns);
    if (s.known && longer > kLongTask.count() && longer > kVaryingFactor * shorter) {
      s.varying_tasks = kVaryingTasks;
    } else if (s.varying_tasks > 0) {
      --s.varying_tasks;
    }
    const int64_t off = int64_t{duration_ns} - s.average_ns;
    s.average_ns = static_cast<uint32_t>(s.known ? s.average_ns + off / kWeight : duration_ns);
    s.known = true;
    UpdateEstimate(s);
  }

  // The slot has another operator from now on.
  void Forget(uint32_t slot) {
    Slot& s = slots_[Index(slot)];
    s.known = false;
    s.varying_tasks = 0;
    UpdateEstimate(s);
  }

  // Removes all tasks, for example because the ring was lost.
  void Clear() {
    for (Slot& s : slots_) s.blocks = s.work = s.known_long_blocks = 0;
    blocks_ = average_ns_ = bound_ns_ = long_blocks_ = 0;
  }

  bool HasRoom() const {
    return blocks_ < workers_ ||
           (blocks_ < 2 * workers_ && average_ns_ < workers_ * kMaxBusy.count()) ||
           backlog_ns() < workers_ * kTargetRingDelay.count();
  }

  // Whether there is room for this task.
  bool HasRoomFor(const Task& task) const {
    if (!HasRoom()) return false;
    const bool is_long = task.long_task || slots_[Index(task.slot)].is_long;
    return !is_long || long_blocks_ == 0 || long_blocks_ + task.blocks <= workers_ - workers_ / 8;
  }

  uint64_t blocks() const { return blocks_; }
  uint64_t backlog_ns() const { return average_ns_ + bound_ns_; }

 private:
  // A new duration moves the average by 1/kWeight of the difference.
  static constexpr int64_t kWeight = 16;

  struct Slot {
    uint32_t average_ns = 0;
    uint32_t estimate_ns = kUnknownTask.count();
    bool known = false;
    uint32_t varying_tasks = 0;  // At least this many more tasks count as unknown.
    uint64_t blocks = 0;         // In the ring.
    uint64_t work = 0;           // Of these, in averages.
    // The part of `blocks` of tasks that are long whatever the average is.
    uint64_t known_long_blocks = 0;
    bool is_long = false;  // By its average.

    uint64_t long_blocks() const { return is_long ? blocks : known_long_blocks; }
  };

  // The device refuses tasks of slots that it does not have; these share one element here.
  static uint32_t Index(uint32_t slot) { return std::min(slot, kMaxOperatorSlots); }

  void Change(const Task& task, int64_t sign) {
    Slot& s = slots_[Index(task.slot)];
    const uint64_t blocks = static_cast<uint64_t>(sign * int64_t{task.blocks});
    const uint32_t averages = task.only_bound         ? 0
                              : task.range_tasks != 0 ? task.range_tasks
                                                      : task.blocks;
    const uint64_t work = static_cast<uint64_t>(sign * int64_t{averages});
    long_blocks_ -= s.long_blocks();
    s.blocks += blocks;
    s.work += work;
    if (task.long_task) s.known_long_blocks += blocks;
    long_blocks_ += s.long_blocks();
    blocks_ += blocks;
    average_ns_ += work * s.estimate_ns;
    bound_ns_ += static_cast<uint64_t>(sign) * task.bound_ns;
  }

  void UpdateEstimate(Slot& s) {
    constexpr uint32_t kUnknown = kUnknownTask.count();
    const uint32_t estimate = !s.known               ? kUnknown
                              : s.varying_tasks != 0 ? std::max(s.average_ns, kUnknown)
                                                     : s.average_ns;
    average_ns_ += s.work * (uint64_t{estimate} - s.estimate_ns);
    s.estimate_ns = estimate;
    long_blocks_ -= s.long_blocks();
    s.is_long = s.known && s.average_ns > kLongForOthers.count();
    long_blocks_ += s.long_blocks();
  }

  std::array<Slot, kMaxOperatorSlots + 1> slots_{};
  uint64_t workers_ = 0;
  uint64_t blocks_ = 0;
  uint64_t average_ns_ = 0;
  uint64_t bound_ns_ = 0;
  uint64_t long_blocks_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_RING_BACKLOG_H_
