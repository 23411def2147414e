// The launch parameters of the kernel that runs one operator and ends, for programs that use the
// operators without the daemon (library/resident_ops.h). Shared by host and device.
//
// A launch has up to one block for each chunk. Block b runs the chunks b, b + blocks, ... A GPU
// starts the blocks of a launch in the order of their numbers: if each has one chunk, these are
// started in their order, so that the chunks may share memory (Block::task_memory). A block
// has the same threads as one of the resident kernel: up to kMaxComputeThreads that run the
// operator, and kControlThreads, which wait here for the end of the block.
#ifndef RESIDENT_KERNELS_RESIDENT_OPERATOR_LAUNCH_H_
#define RESIDENT_KERNELS_RESIDENT_OPERATOR_LAUNCH_H_

#include "kernels/layout/task.h"

namespace resident {

inline constexpr char kOperatorLaunchName[] = "resident_launch_operator";

// How launches ended, in host memory that the device can write. The launches of one record do
// not overlap in time; the host reads and clears the record while none is running.
struct LaunchOutcome {
  // The first failure: CompletionStatus | detail << 16, and the launch that failed. 0: none.
  u32 status_and_detail;
  u32 reserved;
  u64 launch;
  // The value that the last launch with `returns_result` returned.
  u8 result[kResultBytes];
};
static_assert(sizeof(LaunchOutcome) == 48, "");

struct TaskMemory;  // kernels/sdk/block.h

struct OperatorLaunch {
  u32 operator_slot;
  u32 argument_count;
  u64 chunks;  // 1 to kMaxTaskChunks.
  u64 launch;  // Number of this launch.
  LaunchOutcome* outcome;
  unsigned char* scratch;  // kScratchBytes for each block.
  // Of all launches of one record, which do not overlap in time. Zero before the first one.
  TaskMemory* task_memory;
  u32 returns_result;
  u32 reserved;
  Argument arguments[kMaxArguments];
};
static_assert(sizeof(OperatorLaunch) <= 4096, "a kernel has at most 4 KiB of parameters");
static_assert(sizeof(Argument) % sizeof(u64) == 0, "arguments are copied word by word");

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_OPERATOR_LAUNCH_H_
