// The device ring: how the poller writes its slots for the workers (docs/ring.md).
#ifndef RESIDENT_KERNELS_RESIDENT_DEVICE_RING_CUH_
#define RESIDENT_KERNELS_RESIDENT_DEVICE_RING_CUH_

#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/memory_access.cuh"
#include "kernels/resident/task_stop.cuh"

namespace resident {
namespace {

static_assert((kDeviceRingSlots & (kDeviceRingSlots - 1)) == 0, "");
constexpr u32 kQuarterSlots = kDeviceRingSlots / kDeviceRingQuarters;
// Looks at a quarter that is not free, about 50 us, after which the poller copies the stop words.
constexpr u32 kLooksToCopy = 128;

// The lane whose chunk of a slot has the number of a copy, as its second word: words[4] of the
// descriptor, which a task with arguments does not use otherwise.
constexpr u32 kCopyNumberPart = 3;
__device__ __forceinline__ u32 NumberOfCopy(const TaskDescriptor& task) {
  return static_cast<u32>(task.words[4]);
}

// (warp) Waits until so many slots of a quarter have been read.
__device__ __noinline__ void AwaitTaken(const LaunchParameters& p, const u64* taken, u64 wanted) {
  for (u32 looks = 1; LoadDevice(taken) < wanted; ++looks) {
    if (looks % kLooksToCopy == 0) CopyStopWords(p);
  }
}

// (warp) Fills device-ring slots. Lane l passes chunk l % 4 of the (l / 4)-th of up to 8
// tasks; `count` is the number of tasks.
class DeviceRingWriter {
 public:
  __device__ explicit DeviceRingWriter(const LaunchParameters& p)
      : p_(p), filled_(p.state->filled) {}

  // Waits until `count` slots may be written, which are fewer than a quarter.
  __device__ __forceinline__ void AwaitRoom(u32 count) {
    const u64 last = filled_ + count - 1;
    if (filled_ % kQuarterSlots == 0) AwaitQuarter(filled_);
    if (last / kQuarterSlots != filled_ / kQuarterSlots) AwaitQuarter(last);
  }

  // REQUIRES: room for them.
  __device__ __forceinline__ void Write(StampedChunk chunk, u32 count) {
    const u64 index = filled_ + LaneId() / kChunksPerSlot;
    if (LaneId() < count * kChunksPerSlot) {
      chunk.stamp = Stamp(index);
      StoreChunkDevice(
          p_.device_ring[index & (kDeviceRingSlots - 1)].chunks + LaneId() % kChunksPerSlot, chunk);
    }
    filled_ += count;
  }

  // Writes the same task to `count` slots. Lane l has chunk l % 4. kNumbered: of a wide task, whose
  // copies get their numbers (NumberOfCopy).
  template <bool kNumbered = false>
  __device__ void WriteCopies(StampedChunk chunk, u32 count) {
    constexpr u32 kAtOnce = kWarp / kChunksPerSlot;
    const u32 part = LaneId() % kChunksPerSlot;
    for (u32 done = 0; done < count;) {
      const u32 at = static_cast<u32>(filled_ % kQuarterSlots);
      if (at == 0) AwaitQuarter(filled_);
      const u32 here = min(count - done, kQuarterSlots - at);
      StampedChunk* const to = p_.device_ring[filled_ & (kDeviceRingSlots - 1)].chunks + part;
#pragma unroll 4
      for (u32 i = LaneId() / kChunksPerSlot; i < here; i += kAtOnce) {
        chunk.stamp = Stamp(filled_ + i);
        if (kNumbered && part == kCopyNumberPart) chunk.payload[1] = done + i;
        StoreChunkDevice(to + i * kChunksPerSlot, chunk);
      }
      filled_ += here;
      done += here;
    }
  }

  __device__ u64 filled() const { return filled_; }

  // (warp) Whether all slots have been read.
  __device__ __forceinline__ bool AllTaken() const {
    u64 taken = 0;
#pragma unroll
    for (u32 i = 0; i < kDeviceRingQuarters; ++i) taken += LoadDevice(&p_.state->taken[i]);
    return __shfl_sync(kAllLanes, taken, 0) == filled_;
  }

 private:
  // Waits until all slots of the quarter of `index` were read in the previous lap.
  __device__ void AwaitQuarter(u64 index) {
    const u64 lap = index / kDeviceRingSlots;
    const u64* taken = &p_.state->taken[index / kQuarterSlots % kDeviceRingQuarters];
    if (LoadDevice(taken) < lap * kQuarterSlots) AwaitTaken(p_, taken, lap * kQuarterSlots);
  }

  const LaunchParameters& p_;
  u64 filled_;
};

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_DEVICE_RING_CUH_
