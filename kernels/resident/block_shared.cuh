// What all parts of the resident kernel use of a block: its shared memory, and how its control warp
// takes a task, notes it for the host and completes it.
#ifndef RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_
#define RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_

#include "kernels/graph/gang_walk.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/memory_access.cuh"
#include "kernels/sdk/block.h"

namespace resident {
namespace {

constexpr u32 kWarp = 32;
constexpr u32 kAllLanes = 0xffffffffu;

// The state of the compute warps of block 0.
enum LoneState : u32 {
  kIdle = 0,
  kRunning = 1,
  // The task's completion is stored, or will be next; its fence is not complete.
  kFencing = 2,
};

// Data that control and compute warps of a block exchange.
struct Handover {
  u32 leave;
  u32 wide;            // The block runs one chunk of a wide task.
  volatile u32 state;  // Block 0: a LoneState.
  u32 reserved;
  u64 start_ns;
  Breadcrumb* breadcrumb;  // The block's.
};

__shared__ BlockState block_state;
__shared__ Handover handover;
// What the poller knows of the graph workers; see graph_worker.cuh. Times are in cycles.
struct MailState {
  u32 open;
  u32 entered_all;
  u32 members;
  u32 next_worker;
  long long last_mail;
  long long last_call;
  long long call_cycles;
};

// What a control warp has beside the state of its block.
__shared__ union Prepared {
  // The addresses and scalars of a range's claim: for each argument one for each task.
  u64 claim_values[kMaxRangeArguments][kMaxRangeClaim];
  // The next node of a graph, and the scalars of its step.
  GangMemory gang;
  // Block 0's.
  MailState mail;
} prepared;
static_assert(kMaxRangeClaim <= kWarp, "each lane has a task of the claim");

__device__ __forceinline__ u32 LaneId() { return threadIdx.x % kWarp; }

// Payload words of a descriptor: chunk c has words 3c to 3c + 2. Word 0 is the token,
// word 1 has the operator slot (low half) and the flags.
__device__ __forceinline__ u32 FlagsOf(u32 word1) { return word1 >> 16 & 0xff; }
__device__ __forceinline__ u32 OperatorSlotOf(u32 word1) { return word1 & 0xffff; }

// Makes a slot the block's task. Lanes 0 to 3 have its chunks.
__device__ __forceinline__ void TakeDescriptor(const StampedChunk& chunk) {
  if (LaneId() < kChunksPerSlot) {
    u32* to = reinterpret_cast<u32*>(&block_state.descriptor) + 3 * LaneId();
    to[0] = chunk.payload[0];
    to[1] = chunk.payload[1];
    to[2] = chunk.payload[2];
  }
  __syncwarp();
}

// (warp) Clears the results of the previous operator.
__device__ __forceinline__ void ClearOutcome() {
  if (LaneId() < kResultBytes / 4) reinterpret_cast<u32*>(block_state.result)[LaneId()] = 0;
  if (LaneId() == 0) {
    block_state.status_and_detail = 0;
    block_state.barrier_arrivals = 0;
  }
}

// The token whose stamp is 0: no task.
constexpr u32 kNoToken = ~0u;

// (lane 0) Writes the block's current task for the host; `task`: its index, if it is of a range.
__device__ __forceinline__ void WriteBreadcrumb(u32 token, u32 operator_slot, u32 task = 0) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(handover.breadcrumb),
               "r"(Stamp(token)), "r"(operator_slot), "r"(0u), "r"(task)
               : "memory");
}

// Before a worker's completion, on which the host may rely. With outputs in device memory only, the
// host relies on nothing but that later tasks see what this one wrote.
__device__ __forceinline__ void FenceOutputs(bool device_outputs) {
  if (device_outputs) {
    FenceDevice();
  } else {
    FenceSystem();
  }
}

// (warp, after a barrier) Stores a completion. The caller executes the fence.
__device__ __forceinline__ void StoreCompletion(const KernelParameters& p, u32 token,
                                                u32 status_and_detail, u64 start_ns) {
  const u64 elapsed = NanosecondClock() - start_ns;
  const u32 lane = LaneId();
  if (lane >= kChunksPerSlot) return;
  const u32* result = reinterpret_cast<const u32*>(block_state.result);
  StampedChunk chunk;
  chunk.stamp = Stamp(token);
  // Words 0-1 start, 2 duration, 3 status and detail, 4-11 result.
  chunk.payload[0] = lane == 0   ? static_cast<u32>(start_ns)
                     : lane == 1 ? status_and_detail
                                 : result[3 * lane - 4];
  chunk.payload[1] = lane == 0 ? static_cast<u32>(start_ns >> 32) : result[3 * lane - 3];
  chunk.payload[2] = lane == 0 ? static_cast<u32>(elapsed < 0xffffffffu ? elapsed : 0xffffffffu)
                               : result[3 * lane - 2];
  StoreChunkSystem(p.completions[token & p.slot_mask].chunks + lane, chunk);
}

// (warp) Counts the block as finished; returns whether it is the last of `blocks`.
__device__ __forceinline__ bool IsLastToFinish(WideProgress* wide, u32 blocks) {
  u32 done = 0;
  if (LaneId() == 0) done = FetchAddDevice(&wide->blocks_done, 1) + 1;
  return __shfl_sync(kAllLanes, done, 0) == blocks;
}

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_
