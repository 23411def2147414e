// HostRing: the front end's side of the ring (kernels/layout/ring_layout.h).
//
//   std::optional<uint64_t> sequence = ring.Reserve();   // nullopt: the ring is full.
//   *ring.arguments(*sequence) = ...;                    // If the task is not compact.
//   ring.Publish(*sequence, descriptor);
//   ring.Consume([](uint64_t sequence, const TaskCompletion& completion) { ... });
//
// Thread safety: one thread at a time (ensured by runtime/queue/device_queue.h); the
// device may read and write the region at any time.
//
// Memory ordering: what the thread wrote before Publish() is visible to the operator
// that runs the task. What the operator wrote is visible to the thread once Consume()
// has reported its completion.
//
// Invariants:
//   1. A slot belongs to its task from Reserve() until Consume() has reported it. If
//      the task still runs when the next lap reaches its slot, the slot is skipped: a
//      skip marker is published in its submission slot (which the device has already
//      read), and the task keeps its completion slot and argument block.
//   2. The device has read every submission below `read_`. This follows from the
//      completions, because the device reads in order. A submission slot is written
//      only after the device has read its previous content.
//   3. In-flight tasks form a list in submission order. The device starts tasks in
//      that order on at most worker_count blocks, so no task behind worker_count
//      uncompleted tasks has completed: a scan for completions ends there. Graphs do not
//      count, because a worker may start a task beside them.
#ifndef RESIDENT_RUNTIME_RING_HOST_RING_H_
#define RESIDENT_RUNTIME_RING_HOST_RING_H_

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/layout/ring_layout.h"
#include "runtime/ring/shared_region.h"
#include "runtime/ring/slot_codec.h"

namespace resident {

class HostRing {
 public:
  // `worker_count`: number of blocks (or threads) that run tasks.
  HostRing(std::shared_ptr<const SharedRegion> region, uint32_t worker_count);
  HostRing(const HostRing&) = delete;
  HostRing& operator=(const HostRing&) = delete;

  // The next task's sequence number; nullopt when the ring is full.
  std::optional<uint64_t> Reserve();

  // The argument block of a reserved task.
  ArgumentBlock* arguments(uint64_t sequence) {
    return region_->argument_blocks() + (sequence & mask_);
  }

  // Makes a reserved task visible to the device. Fills in the token.
  void Publish(uint64_t sequence, const TaskDescriptor& task);

  // Asks the device to stop a task in flight, for a reason that is not kNone. What is asked later
  // for the same task replaces it. False: the device may find out late, because the ring is full;
  // ask again.
  bool PublishStop(uint64_t sequence, StopReason reason);

  // Publishes a park marker; false when the ring is full. Nothing may be reserved or
  // published behind it until the kernel has left.
  bool PublishPark();

  // The kernel has left and is back. It has read every submission, including markers, which
  // have no completions. REQUIRES: the kernel left because of the park marker.
  void NoteResumed() {
    assert(parked_);
    parked_ = false;
    read_ = next_sequence_;
  }

  // Reports completed tasks, oldest first, at most `max_completions`; returns their number.
  // Stops after `max_uncompleted` tasks that have not completed; with worker_count() it finds
  // every completion of a task. Graphs do not count; a graph behind these tasks is found later.
  // Reading slots that the device is about to write slows the device down (4.5 M tasks a second
  // instead of 22 M with 4 such tasks, see docs/benchmarks), so a thread with more to publish
  // passes 1. `report` may reserve and publish.
  template <typename Report>
  uint32_t Consume(Report report, uint32_t max_completions = UINT32_MAX,
                   uint32_t max_uncompleted = UINT32_MAX);

  // Calls visit(sequence) for each task in flight, oldest first.
  template <typename Visit>
  void ForEachInFlight(Visit visit) const {
    for (uint32_t slot = next_[head_]; slot != head_; slot = next_[slot]) visit(sequence_[slot]);
  }
  // The sequence number of the task in flight with this stamp, if there is one.
  std::optional<uint64_t> InFlightWithStamp(uint32_t stamp) const;

  uint32_t in_flight() const { return in_flight_; }
  // Whether Reserve() would return nullopt now. Markers take slots too, so a ring can
  // be full with fewer than slots() tasks in flight.
  bool full() const { return in_flight_ == slots() || !SubmissionSlotRead(stop_slots_); }
  uint32_t slots() const { return mask_ + 1; }
  uint32_t worker_count() const { return worker_count_; }
  uint64_t next_sequence() const { return next_sequence_; }
  const SharedRegion& region() const { return *region_; }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};

  // Submission slots that tasks leave to stops; a very small ring leaves none.
  static constexpr uint32_t kMaxStopSlots = 8;

  // Whether the submission slot of next_sequence_, and those of `more` behind it, may be written.
  bool SubmissionSlotRead(uint32_t more = 0) const {
    return next_sequence_ + more < read_ + slots();
  }
  void Write(RingSlot& slot, const TaskDescriptor& task, uint64_t sequence);
  void Unlink(uint32_t slot);

  const std::shared_ptr<const SharedRegion> region_;
  const uint32_t mask_;
  const uint32_t worker_count_;
  const uint32_t stop_slots_;
  const uint32_t head_;  // Sentinel of the in-flight list: index slots().

  uint64_t next_sequence_;
  uint64_t read_;        // Invariant 2.
  bool parked_ = false;  // From the park marker until NoteResumed.
  uint32_t in_flight_ = 0;
  std::vector<uint64_t> sequence_;  // Sequence number of the task in each slot, or kFree.
  std::vector<uint8_t> is_graph_;   // Whether the task in each slot is a graph.
  std::vector<uint32_t> next_;      // In-flight list: invariant 3.
  std::vector<uint32_t> previous_;
};

// Implementation details follow.

template <typename Report>
uint32_t HostRing::Consume(Report report, uint32_t max_completions, uint32_t max_uncompleted) {
  RingSlot* const completions = region_->completions();
  uint32_t consumed = 0;
  uint32_t uncompleted = 0;
  TaskCompletion completion;
  uint32_t slot = next_[head_];
  max_uncompleted = std::min(max_uncompleted, worker_count_);
  while (slot != head_ && uncompleted < max_uncompleted && consumed < max_completions) {
    const uint32_t following = next_[slot];
    const uint64_t sequence = sequence_[slot];
    if (IsReady(completions[slot], sequence)) {
      ReadSlot(completions[slot], &completion);
      Unlink(slot);
      if (sequence >= read_) read_ = sequence + 1;
      ++consumed;
      report(sequence, completion);
    } else if (!is_graph_[slot]) {
      ++uncompleted;
    }
    slot = following;
  }
  return consumed;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_RING_HOST_RING_H_
