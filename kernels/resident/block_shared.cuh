// What the resident kernel and the graph kernel use of a block: its shared memory, and how its
// control warp takes a task, notes it for the host and completes it.
#ifndef RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_
#define RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_

#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/memory_access.cuh"
#include "kernels/sdk/operator.h"

namespace resident {

// The function in each operator slot; null for empty slots. Defined by the jump table that
// is linked into this image.
extern __constant__ OperatorFunction kJumpTable[kMaxOperatorSlots];

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

// A block that reads a slot with this flag leaves: a worker in the device ring, and a graph worker
// in its mailbox.
constexpr u32 kLeave = kTaskPark;

__device__ __forceinline__ u32 LaneId() { return threadIdx.x % kWarp; }

// (all threads) The beginning of a block. `worker`: its number among those of both kernels.
__device__ __forceinline__ void InitializeBlock(const LaunchParameters& p, u32 worker) {
  if (threadIdx.x == 0) {
    handover = Handover{};
    handover.breadcrumb = p.breadcrumbs + worker;
    block_state.scratch = p.scratch + worker * kScratchBytes;
    block_state.inputs = InputState::kReady;
    block_state.task_memory = nullptr;
  }
  if (threadIdx.x < kResultBytes / 4) reinterpret_cast<u32*>(block_state.result)[threadIdx.x] = 0;
  __syncthreads();
}

// (compute warps) Calls the operator of the block's task, and waits until all threads have
// returned.
__device__ __forceinline__ void RunBlockOperator() {
  const u32 slot = block_state.descriptor.operator_slot;
  const OperatorFunction function = slot < kMaxOperatorSlots ? kJumpTable[slot] : nullptr;
  if (function != nullptr) {
    RESIDENT_OPERATOR_ABI function(&block_state);
  } else {
    Block(&block_state).fail(CompletionStatus::kNoOperator);
  }
  Block(&block_state).barrier();
}

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
__device__ __forceinline__ void StoreCompletion(const LaunchParameters& p, u32 token,
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
