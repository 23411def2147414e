// This header has what the resident kernel and the graph kernel use of a block: its shared memory,
// and how its control warp takes a task, notes it for the host and completes it.
#ifndef RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_
#define RESIDENT_KERNELS_RESIDENT_BLOCK_SHARED_CUH_

#include "kernels/layout/confine.h"
#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/memory_access.cuh"
#include "kernels/resident/phase_barrier.cuh"
#include "kernels/sdk/operator.h"

namespace resident {

// The function in each operator slot; null for empty slots. Defined by the jump table that
// is linked into this image.
extern __constant__ OperatorFunction kJumpTable[kMaxOperatorSlots];
// Their limits (kernel_parameters.h).
extern __constant__ u32 kTaskLimits[kMaxOperatorSlots];

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

// Data that control and compute warps of a block exchange, and what the kernel needs of a task
// after its operator has returned: the operator may have overwritten anything in its BlockState.
struct Handover {
  // Of the block's task.
  u32 token;
  u32 operator_slot;
  u32 flags;
  u32 wide;  // The block runs one chunk of a wide task.
  u64 start_ns;
  u32 leave;
  volatile u32 state;  // Block 0: a LoneState.
  // A worker: a phase ends when the compute warps have executed a task that is watched.
  u64 finished;
  u32 executed;  // Phases that the control warp has waited for.
  // Threads of the block, and those of them that run operators.
  volatile u32 block_threads;
  volatile u32 operator_threads;
  // By warp that runs operators: not 0: the task is watched.
  volatile u32 watched[kConfinedWarps];
  unsigned char* scratch;  // The block's.
  Breadcrumb* breadcrumb;  // The block's.
};

// The shared memory of a block that both kernels have.
struct BlockShared {
  Confine confine;
  Handover handover;
  // What operators read and write.
  BlockState state;
};

__shared__ BlockShared own;

// A block that reads a slot with this flag leaves: a worker in the device ring, and a graph worker
// in its mailbox.
constexpr u32 kLeave = kTaskPark;

__device__ __forceinline__ u32 LaneId() { return threadIdx.x % kWarp; }

// (all threads) The beginning of a block. `worker`: its number among those of both kernels.
__device__ __forceinline__ void InitializeBlock(const LaunchParameters& p, u32 worker) {
  if (threadIdx.x == 0) {
#if defined(__CUDA_ARCH__)
    if (SharedAddress(&own.confine) != ConfineAddress(__CUDA_ARCH__ / 10)) __trap();
#endif
    own.handover = Handover{};
    own.handover.block_threads = blockDim.x;
    own.handover.operator_threads = Block(&own.state).threads();
    own.handover.breadcrumb = p.breadcrumbs + worker;
    own.handover.scratch = p.scratch + worker * kScratchBytes;
    own.confine = Confine{};
    InitializePhases(SharedAddress(&own.handover.finished), 1);
  }
  if (threadIdx.x < kResultBytes / 4) reinterpret_cast<u32*>(own.state.result)[threadIdx.x] = 0;
  __syncthreads();
}

// The limits of the operator in a slot, and whether it can be stopped while it runs, so that the
// control warp watches it.
__device__ __forceinline__ u32 LimitsOf(u32 slot) {
  return slot < kMaxOperatorSlots ? kTaskLimits[slot] : 0;
}
__device__ __forceinline__ bool IsWatched(u32 slot) {
  return (LimitsOf(slot) & kCanBeStopped) != 0;
}

// (compute warps) Waits until all threads have returned from an operator that can be stopped. Its
// own barriers have a false operand, so that threads that have returned do not end here before the
// others, however many barriers they have left out. The lanes of a warp may have come apart, and a
// barrier counts any of them as the whole warp: they arrive together.
__device__ __forceinline__ void AwaitReturnOfAll(u32 threads) {
  __syncwarp();
  u32 all_returned;
  do {
    asm volatile(
        "{\n.reg .pred returned, all;\n"
        "setp.eq.u32 returned, 0, 0;\n"
        "barrier.cta.red.and.pred all, 1, %1, returned;\n"
        "selp.u32 %0, 1, 0, all;\n}"
        : "=r"(all_returned)
        : "r"(threads)
        : "memory");
  } while (all_returned == 0);
}

// (compute warps) Calls the operator of the block's task, and waits until all threads have
// returned. Returns whether the task is watched.
//
// Nothing that is needed behind the call is kept on the stack: it would be read from the L2 cache,
// because fences of the control warp empty the L1 cache, which takes 0.3 us.
__device__ __forceinline__ bool RunBlockOperator() {
  const u32 slot = own.handover.operator_slot;
  const OperatorFunction function = slot < kMaxOperatorSlots ? kJumpTable[slot] : nullptr;
  own.handover.watched[threadIdx.x / kWarp] = LimitsOf(slot) & kCanBeStopped;
  if (function != nullptr) {
    RESIDENT_OPERATOR_ABI function(&own.state);
  } else {
    Block(&own.state).fail(CompletionStatus::kNoOperator);
  }
  const u32 threads = own.handover.operator_threads;
  const bool watched = own.handover.watched[threadIdx.x / kWarp] != 0;
  if (watched) {
    AwaitReturnOfAll(threads);
  } else {
    asm volatile("barrier.sync 1, %0;" ::"r"(threads) : "memory");
  }
  return watched;
}

// Why the operator was told to return, if it was.
__device__ __forceinline__ StopReason ReadStop() {
  return static_cast<StopReason>(*static_cast<volatile u32*>(&own.confine.stop));
}

// CompletionStatus | detail << 16 of an operator that has returned. Only one that is watched was
// told to.
__device__ __forceinline__ u32 ReadOutcome(bool watched) {
  if (watched) {
    const StopReason stop = ReadStop();
    if (stop != StopReason::kNone) return PackStopped(stop);
  }
  return own.state.status_and_detail;
}

// (warp) Before another operator is called than one that was watched, and has returned.
__device__ __noinline__ void ClearStop() {
  if (ReadStop() == StopReason::kNone) return;
  __syncwarp();  // All lanes have read it.
  if (LaneId() < kConfinedWarps) own.confine.meetings[LaneId()] = MeetingWords{};
  if (LaneId() == 0) own.confine.stop = 0;
  __syncwarp();
}

// Payload words of a descriptor: chunk c has words 3c to 3c + 2. Word 0 is the token,
// word 1 has the operator slot (low half) and the flags.
__device__ __forceinline__ u32 FlagsOf(u32 word1) { return word1 >> 16 & 0xff; }
__device__ __forceinline__ u32 OperatorSlotOf(u32 word1) { return word1 & 0xffff; }

// Makes a slot the block's task. Lanes 0 to 3 have its chunks.
__device__ __forceinline__ void TakeDescriptor(const StampedChunk& chunk) {
  if (LaneId() < kChunksPerSlot) {
    u32* to = reinterpret_cast<u32*>(&own.state.descriptor) + 3 * LaneId();
    to[0] = chunk.payload[0];
    to[1] = chunk.payload[1];
    to[2] = chunk.payload[2];
  }
  if (LaneId() == 0) {
    own.handover.token = chunk.payload[0];
    own.handover.operator_slot = OperatorSlotOf(chunk.payload[1]);
    own.handover.flags = FlagsOf(chunk.payload[1]);
  }
  __syncwarp();
}

// (warp) Sets what an operator finds in the block's state besides its arguments and memory,
// whatever the one before has stored there: a block task without results. Each lane has a word of
// it.
class StateReset {
 public:
  __device__ StateReset() {
    const u32 lane = LaneId();
    u64* const words[] = {&own.state.chunk,
                          &own.state.chunk_count,
                          reinterpret_cast<u64*>(&own.state.scratch),
                          reinterpret_cast<u64*>(&own.state.status_and_detail),
                          reinterpret_cast<u64*>(&own.state.inputs),
                          reinterpret_cast<u64*>(&own.state.task_memory)};
    constexpr u32 kWords = sizeof(words) / sizeof(words[0]);
    at_ = 0;
#pragma unroll
    for (u32 w = 0; w < kWords; ++w) {
      if (lane == w) at_ = SharedAddress(words[w]);
    }
    if (lane >= kWords && lane < kWords + kResultBytes / sizeof(u64)) {
      at_ = SharedAddress(reinterpret_cast<u64*>(own.state.result) + lane - kWords);
    }
    value_ = lane == 1 ? 1 : lane == 2 ? reinterpret_cast<u64>(own.handover.scratch) : 0;
  }
  __device__ __forceinline__ void operator()() const {
    if (at_ != 0) asm volatile("st.shared.u64 [%0], %1;" ::"r"(at_), "l"(value_) : "memory");
  }

 private:
  u32 at_;  // In shared memory; 0: none.
  u64 value_;
};
static_assert(__builtin_offsetof(BlockState, barrier_arrivals) ==
                      __builtin_offsetof(BlockState, status_and_detail) + sizeof(u32) &&
                  __builtin_offsetof(BlockState, status_and_detail) % sizeof(u64) == 0,
              "both are one word");
static_assert(__builtin_offsetof(BlockState, task_memory) ==
                      __builtin_offsetof(BlockState, inputs) + sizeof(u64) &&
                  static_cast<u32>(InputState::kReady) == 0,
              "the state of the inputs is a word of its own");

// The token whose stamp is 0: no task.
constexpr u32 kNoToken = ~0u;

// (lane 0) Writes the block's current task for the host; `task`: its index, if it is of a range.
__device__ __forceinline__ void WriteBreadcrumb(u32 token, u32 operator_slot, u32 task = 0) {
  asm volatile(
      "st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(own.handover.breadcrumb),
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
  const u32* result = reinterpret_cast<const u32*>(own.state.result);
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
