// ManualDevice: the device's side of a ring, controlled by a test: the test completes each
// task itself, so each state lasts until the test ends it. It runs no operators. For tests
// with a real engine see tests/support/engine_harness.h.
//
// Thread safety: one thread at a time; another thread may use the ring.
//
//   ManualDevice device;
//   queue.SetRing(device.NewRing());
//   ... enqueue a batch, wait until its first task is in flight ...
//   device.Complete(0);
#ifndef RESIDENT_RUNTIME_QUEUE_MANUAL_DEVICE_H_
#define RESIDENT_RUNTIME_QUEUE_MANUAL_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/layout/ring_layout.h"
#include "runtime/ring/host_ring.h"
#include "runtime/ring/shared_region.h"
#include "runtime/ring/slot_codec.h"

namespace resident {

class ManualDevice {
 public:
  static constexpr uint32_t kSlots = 64;
  // The ring takes two tasks of unknown duration for each worker (ring_backlog.h).
  static constexpr uint32_t kWorkers = kSlots / 2;

  // An empty ring that starts at sequence number 0. Only one may be in use at a time.
  std::shared_ptr<HostRing> NewRing() {
    std::memset(region_->submissions(), 0, kSlots * sizeof(RingSlot));
    std::memset(region_->completions(), 0, kSlots * sizeof(RingSlot));
    return std::make_shared<HostRing>(region_, kWorkers);
  }

  // The task in the ring; waits until it is published.
  TaskDescriptor Submitted(uint64_t sequence) const {
    RingSlot& slot = region_->submissions()[sequence % kSlots];
    while (!IsReady(slot, sequence)) {
    }
    TaskDescriptor task;
    ReadSlot(slot, &task);
    return task;
  }

  // The task ends OK.
  void Complete(uint64_t sequence) {
    TaskCompletion completion{};
    completion.duration_ns = 100;
    const auto* payload = reinterpret_cast<const uint8_t*>(&completion);
    for (StampedChunk& chunk : region_->completions()[sequence % kSlots].chunks) {
      std::memcpy(chunk.payload, payload, kChunkPayloadBytes);
      payload += kChunkPayloadBytes;
      std::atomic_ref<uint32_t>(chunk.stamp).store(Stamp(sequence), std::memory_order_release);
    }
  }

  // The worker runs the task; its breadcrumb names this operator, and `task` (Breadcrumb::task).
  void Run(uint32_t worker, uint64_t sequence, uint32_t operator_slot, uint32_t task = 0) {
    Breadcrumb& breadcrumb = region_->breadcrumbs()[worker];
    std::atomic_ref<uint32_t>(breadcrumb.task).store(task, std::memory_order_relaxed);
    std::atomic_ref<uint32_t>(breadcrumb.operator_slot)
        .store(operator_slot, std::memory_order_relaxed);
    std::atomic_ref<uint32_t>(breadcrumb.stamp).store(Stamp(sequence), std::memory_order_release);
  }

 private:
  const std::shared_ptr<SharedRegion> region_ = *SharedRegion::Create(kSlots, 4096);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_MANUAL_DEVICE_H_
