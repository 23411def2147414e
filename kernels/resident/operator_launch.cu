// The kernel that runs one operator of the jump table and ends.
//
// It is part of the same image as the resident kernel, so that the operators are compiled and
// embedded once.
#include "kernels/layout/ring_layout.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/operator_launch.h"
#include "kernels/sdk/operator.h"

namespace resident {

// Defined by the jump table that is linked into this image.
extern __constant__ OperatorFunction kJumpTable[kMaxOperatorSlots];

namespace {

__shared__ BlockState launch_state;

// For a launch with programmatic dependent launch, which other launches ignore: lets the blocks of
// the next launch start as soon as all of this one's have started.
__device__ __forceinline__ void AllowNextLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// For such a launch: waits until the launches before it have ended; what they wrote is visible.
__device__ __forceinline__ void AwaitPreviousLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// (compute threads) Makes the launch the block's task.
__device__ __forceinline__ void TakeLaunch(const OperatorLaunch& launch) {
  const u32 threads = blockDim.x - kControlThreads;
  const u32 words = launch.argument_count * (sizeof(Argument) / sizeof(u64));
  const u64* const from = reinterpret_cast<const u64*>(launch.arguments);
  u64* const to = reinterpret_cast<u64*>(&launch_state.arguments);
  for (u32 i = threadIdx.x; i < words; i += threads) to[i] = from[i];
  if (threadIdx.x < kResultBytes) launch_state.result[threadIdx.x] = 0;
  if (threadIdx.x != 0) return;
  launch_state.descriptor = TaskDescriptor{};
  launch_state.descriptor.operator_slot = static_cast<u16>(launch.operator_slot);
  launch_state.descriptor.set_argument_count(launch.argument_count);
  launch_state.descriptor.set_chunks(launch.chunks);
  launch_state.chunk = blockIdx.x;
  launch_state.chunk_count = launch.chunks;
  launch_state.scratch = launch.scratch + blockIdx.x * kScratchBytes;
  launch_state.status_and_detail = 0;
  launch_state.inputs = InputState::kReady;
  launch_state.task_memory = launch.task_memory;
  launch_state.barrier_arrivals = 0;
}

// (one thread, after a barrier) Writes the block's failure, and its result. If several blocks of a
// launch fail, one of their failures is kept.
__device__ __forceinline__ void ReportOutcome(const OperatorLaunch& launch) {
  LaunchOutcome* const outcome = launch.outcome;
  const u32 failure = launch_state.status_and_detail;
  volatile u32* const kept = &outcome->status_and_detail;
  if (failure != 0 && *kept == 0) {
    *const_cast<volatile u64*>(&outcome->launch) = launch.launch;
    *kept = failure;
  }
  if (launch.returns_result) {
    for (u32 i = 0; i < kResultBytes; ++i) outcome->result[i] = launch_state.result[i];
  }
}

}  // namespace
}  // namespace resident

// The bounds are those of the resident kernel: they limit the kernel, and so the operators, to
// resident::kMaxRegisters.
extern "C" __global__ void __launch_bounds__(resident::kMaxComputeThreads +
                                                 resident::kControlThreads,
                                             resident::kLargestBlocksPerSm)
    resident_launch_operator(const __grid_constant__ resident::OperatorLaunch launch) {
  using namespace resident;
  AllowNextLaunch();
  if (threadIdx.x < blockDim.x - kControlThreads) {
    Block block(&launch_state);
    TakeLaunch(launch);
    AwaitPreviousLaunch();
    block.barrier();
    const OperatorFunction function =
        launch.operator_slot < kMaxOperatorSlots ? kJumpTable[launch.operator_slot] : nullptr;
    if (function == nullptr) {
      block.fail(CompletionStatus::kNoOperator);
    } else {
      for (u64 chunk = blockIdx.x; chunk < launch.chunks; chunk += gridDim.x) {
        if (chunk != blockIdx.x) {
          block.barrier();  // All threads have finished the previous chunk.
          if (threadIdx.x == 0) launch_state.chunk = chunk;
          block.barrier();
        }
        RESIDENT_OPERATOR_ABI function(&launch_state);
      }
    }
    block.barrier();
    if (threadIdx.x == 0) ReportOutcome(launch);
  }
  // The control threads wait: a block's named barriers then never meet threads that have exited.
  __syncthreads();
}
