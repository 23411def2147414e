// How a task is stopped: between its chunks, tasks of a range and nodes; and within an operator
// whose code looks at Confine::stop (kernels/layout/confine.h): while such a one runs, the control
// warp of its block looks at the stop words and at the clock every 10 us, and sets it. For other
// operators nothing is done that takes time.
//
// Stop words in device memory are written by the poller, which finds them in the ring. The poller
// watches the lone task of its own block, too. While it waits for room in the device ring, it reads
// nothing behind: then it copies the stop words of the host.
#ifndef RESIDENT_KERNELS_RESIDENT_TASK_STOP_CUH_
#define RESIDENT_KERNELS_RESIDENT_TASK_STOP_CUH_

#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/memory_access.cuh"
#include "kernels/resident/phase_barrier.cuh"

namespace resident {
namespace {

// How long the control warp waits between two looks.
constexpr u32 kLookNs = 10'000;

// (warp) The stop word of a task, for StopOf. Nothing waits for it until it is used.
__device__ __forceinline__ u64 LoadStopWord(const LaunchParameters& p, u32 token) {
  return LoadDevice(p.stop_words + (token & p.slot_mask));
}

// (warp) Lets the operator return that the block runs.
__device__ __forceinline__ void StopOperator(StopReason reason) {
  if (LaneId() == 0) {
    *static_cast<volatile u32*>(&own.confine.stop) = static_cast<u32>(reason);
  }
  __syncwarp();
}

// (warp) Why the task of the block has to stop, if it has. `since_ns`: when it began.
__device__ __noinline__ StopReason LookForStop(const LaunchParameters& p, u64 since_ns) {
  const u32 token = own.handover.token;
  const StopReason reason = StopOf(LoadStopWord(p, token), token);
  if (reason != StopReason::kNone) return reason;
  const u32 limit_us = LimitsOf(own.handover.operator_slot) & kMaxTaskLimit;
  const u64 now = __shfl_sync(kAllLanes, NanosecondClock(), 0);
  const bool late = limit_us != 0 && now > since_ns && now - since_ns > u64{limit_us} * 1000;
  return late ? StopReason::kTimeLimit : StopReason::kNone;
}

// (warp) Waits until the compute warps have returned from an operator that can be stopped: the
// phase with this parity of a barrier in shared memory. Stops it if it has to. `since_ns`: when the
// task began; 0: now.
__device__ __noinline__ void AwaitWatched(const LaunchParameters& p, u32 barrier, u32 parity,
                                          u64 since_ns) {
  if (since_ns == 0) since_ns = __shfl_sync(kAllLanes, NanosecondClock(), 0);
  while (!__all_sync(kAllLanes, TestPhaseFor(barrier, parity, kLookNs))) {
    const StopReason reason = LookForStop(p, since_ns);
    if (reason != StopReason::kNone) StopOperator(reason);
  }
}

// (warp of block 0) The poller executes a stop that it has read.
__device__ __noinline__ void TakeStop(const LaunchParameters& p, u32 token, StopReason reason) {
  if (LaneId() == 0) StoreDevice(p.stop_words + (token & p.slot_mask), StopWord(token, reason));
  const bool runs = own.handover.state == kRunning && own.handover.token == token;
  if (runs && IsWatched(own.handover.operator_slot)) StopOperator(reason);
}

// (warp of block 0) Watches the lone task of the poller's block.
__device__ __noinline__ void WatchLoneTask(const LaunchParameters& p) {
  const StopReason reason = LookForStop(p, own.handover.start_ns);
  if (reason != StopReason::kNone) StopOperator(reason);
}

// (warp of block 0) Copies the stop words of the host, and watches the lone task.
__device__ __noinline__ void CopyStopWords(const LaunchParameters& p) {
#pragma unroll 8
  for (u32 i = LaneId(); i <= p.slot_mask; i += kWarp) {
    const u64 word = LoadSystem(p.host_stop_words + i);
    if (word != 0) StoreDevice(p.stop_words + i, word);
  }
  __syncwarp();
  if (own.handover.state == kRunning && IsWatched(own.handover.operator_slot)) WatchLoneTask(p);
}

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_TASK_STOP_CUH_
