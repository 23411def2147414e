// RingBacklog: how much work is in the ring, in worker time, and whether there is room for
// more. What keeps a client's lone task from waiting long behind another's tasks: they go
// into the ring only while it holds less than kTargetRingDelay of each worker's time, or
// too little to keep the workers busy.
//
// The time of a task is estimated for each operator slot from those that completed. A slot
// of which none has is taken to need kUnknownTask, so that few of its tasks are in the
// ring until the first completes. A new estimate counts at once for the tasks that are in
// the ring already. Tasks of one slot that differ widely are judged by their average.
//
// Not for accounting: the estimate of a wide task is its duration times the blocks that
// may work on it, which it may not have had to itself.
//
// Thread safety: one thread at a time.
//
// Invariants:
//   1. backlog_ns() is the sum over all slots of (block tasks in the ring) * (estimate),
//      where a wide task counts as BlocksOf() of them.
//   2. Every task added is removed, or the backlog cleared, in the end.
//
//   backlog.Add(slot, blocks);                        // With the publication.
//   backlog.Remove(slot, blocks);                     // With the completion, and then
//   backlog.Observe(slot, duration_ns);               // if it says what a task takes.
//   while (backlog.HasRoom()) ...
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
  // A lone task waits about as long behind those in the ring.
  static constexpr std::chrono::nanoseconds kTargetRingDelay = std::chrono::milliseconds(1);
  // Estimate of a task of a slot of which none has completed: what fills the ring.
  static constexpr std::chrono::nanoseconds kUnknownTask = kTargetRingDelay;

  // Starts with no task in the ring; keeps the estimates.
  void Start(uint32_t workers) {
    workers_ = workers;
    target_ns_ = static_cast<uint64_t>(kTargetRingDelay.count()) * workers;
    Clear();
  }

  // The blocks that a task may occupy at once.
  uint32_t BlocksOf(const TaskDescriptor& task) const {
    const bool wide = !(task.flags & kTaskCompact) && task.words[1] > 1;
    return wide ? static_cast<uint32_t>(std::min<uint64_t>(task.words[1], workers_)) : 1;
  }

  void Add(uint32_t slot, uint32_t blocks) {
    Slot& s = slots_[Index(slot)];
    s.blocks += blocks;
    blocks_ += blocks;
    backlog_ns_ += uint64_t{blocks} * s.estimate_ns;
  }

  void Remove(uint32_t slot, uint32_t blocks) {
    Slot& s = slots_[Index(slot)];
    s.blocks -= blocks;
    blocks_ -= blocks;
    backlog_ns_ -= uint64_t{blocks} * s.estimate_ns;
  }

  // A task of the slot took this long.
  void Observe(uint32_t slot, uint32_t duration_ns) {
    Slot& s = slots_[Index(slot)];
    const int64_t off = int64_t{duration_ns} - s.estimate_ns;
    SetEstimate(s, s.known ? s.estimate_ns + off / kWeight : duration_ns);
    s.known = true;
  }

  // The slot's operator is another one from now on.
  void Forget(uint32_t slot) {
    Slot& s = slots_[Index(slot)];
    SetEstimate(s, kUnknownTask.count());
    s.known = false;
  }

  // The tasks in the ring are gone.
  void Clear() {
    for (Slot& s : slots_) s.blocks = 0;
    blocks_ = 0;
    backlog_ns_ = 0;
  }

  bool HasRoom() const { return blocks_ < 2 * workers_ || backlog_ns_ < target_ns_; }

  uint64_t blocks() const { return blocks_; }
  uint64_t backlog_ns() const { return backlog_ns_; }

 private:
  // A new duration moves the estimate by 1/kWeight of the difference.
  static constexpr int64_t kWeight = 16;

  struct Slot {
    uint32_t estimate_ns = kUnknownTask.count();
    bool known = false;
    uint64_t blocks = 0;  // In the ring.
  };

  // The device refuses tasks of slots that it does not have; they share a place here.
  static uint32_t Index(uint32_t slot) { return std::min(slot, kMaxOperatorSlots); }

  void SetEstimate(Slot& s, int64_t estimate_ns) {
    backlog_ns_ += s.blocks * (static_cast<uint64_t>(estimate_ns) - s.estimate_ns);
    s.estimate_ns = static_cast<uint32_t>(estimate_ns);
  }

  std::array<Slot, kMaxOperatorSlots + 1> slots_{};
  uint64_t workers_ = 0;
  uint64_t target_ns_ = 0;
  uint64_t blocks_ = 0;
  uint64_t backlog_ns_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_RING_BACKLOG_H_
