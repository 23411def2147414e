#include "runtime/ring/host_ring.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "kernels/graph/graph_task.h"
#include "runtime/base/futex.h"
#include "runtime/ring/doorbell.h"
#include "runtime/ring/slot_codec.h"

namespace resident {

HostRing::HostRing(std::shared_ptr<const SharedRegion> region, uint32_t worker_count)
    : region_(std::move(region)),
      mask_(region_->layout().slots - 1),
      worker_count_(worker_count),
      stop_slots_(std::min(kMaxStopSlots, slots() / 512)),
      head_(region_->layout().slots),
      next_sequence_(region_->control()->resume_sequence),
      read_(next_sequence_),
      sequence_(slots(), kFree),
      is_graph_(slots(), 0),
      next_(slots() + 1, head_),
      previous_(slots() + 1, head_) {}

std::optional<uint64_t> HostRing::Reserve() {
  assert(!parked_);
  while (!full()) {
    const uint64_t sequence = next_sequence_++;
    const uint32_t slot = static_cast<uint32_t>(sequence) & mask_;
    if (sequence_[slot] != kFree) {  // Its task still runs: skip this slot.
      TaskDescriptor skip{};
      skip.flags = kTaskSkip;
      Write(region_->submissions()[slot], skip, sequence);
      continue;
    }
    sequence_[slot] = sequence;
    const uint32_t last = previous_[head_];
    next_[last] = slot;
    previous_[slot] = last;
    next_[slot] = head_;
    previous_[head_] = slot;
    ++in_flight_;
    return sequence;
  }
  return std::nullopt;
}

void HostRing::Publish(uint64_t sequence, const TaskDescriptor& task) {
  assert(sequence_[sequence & mask_] == sequence);  // It is reserved.
  Write(region_->submissions()[sequence & mask_], task, sequence);
  if (task.flags & kTaskGraph) {
    is_graph_[sequence & mask_] = 1;
    // A GPU's engine may have to launch a kernel that executes it.
    Doorbell::ForWorkers(region_->control()).RingForAll();
  }
}

bool HostRing::PublishStop(uint64_t sequence, StopReason reason) {
  assert(sequence_[sequence & mask_] == sequence);  // It is in flight.
  const u64 word = StopWord(static_cast<u32>(sequence), reason);
  std::atomic_ref<u64>(region_->stop_words()[sequence & mask_]).store(word);
  u32* const event = &region_->control()->stop_event;
  std::atomic_ref<u32>(*event).fetch_add(1);
  FutexWake(event);
  // Nothing may be published behind a park marker: the device reads the words until it has left.
  if (parked_) return true;
  if (!SubmissionSlotRead()) return false;
  TaskDescriptor stop{};
  stop.flags = kTaskStop;
  stop.words[0] = static_cast<u32>(sequence);
  stop.words[1] = static_cast<u32>(reason);
  Write(region_->submissions()[next_sequence_ & mask_], stop, next_sequence_);
  ++next_sequence_;
  return true;
}

bool HostRing::PublishPark() {
  if (!SubmissionSlotRead()) return false;
  const uint64_t sequence = next_sequence_++;
  TaskDescriptor park{};
  park.flags = kTaskPark;
  Write(region_->submissions()[sequence & mask_], park, sequence);
  parked_ = true;
  return true;
}

void HostRing::Write(RingSlot& slot, const TaskDescriptor& task, uint64_t sequence) {
  TaskDescriptor stamped = task;
  stamped.token = static_cast<uint32_t>(sequence);
  WriteSlot(slot, stamped, sequence);
}

void HostRing::Unlink(uint32_t slot) {
  assert(in_flight_ > 0 && sequence_[slot] != kFree);
  next_[previous_[slot]] = next_[slot];
  previous_[next_[slot]] = previous_[slot];
  sequence_[slot] = kFree;
  is_graph_[slot] = 0;
  --in_flight_;
}

std::optional<uint64_t> HostRing::InFlightWithStamp(uint32_t stamp) const {
  if (stamp == 0) return std::nullopt;
  const uint64_t sequence = sequence_[(stamp - 1) & mask_];
  if (sequence == kFree || Stamp(sequence) != stamp) return std::nullopt;
  return sequence;
}

}  // namespace resident
