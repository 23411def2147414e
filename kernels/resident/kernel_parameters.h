// What the engine hands to the resident kernel at launch, and the device memory that
// the kernel keeps its own state in. Shared by host and device.
#ifndef RESIDENT_KERNELS_RESIDENT_KERNEL_PARAMETERS_H_
#define RESIDENT_KERNELS_RESIDENT_KERNEL_PARAMETERS_H_

#include "kernels/layout/ring_layout.h"
#include "kernels/sdk/block.h"

namespace resident {

inline constexpr char kResidentKernelName[] = "resident_kernel";
// Threads of a block that run operators; it has a control warp beside them. The most is
// Block::kMaxThreads, in units compiled for a GPU.
inline constexpr u32 kMinComputeThreads = 32;
inline constexpr u32 kMaxComputeThreads = 256;
// The most registers that a thread of the kernel, and so an operator, may use, so that two
// of the largest blocks fit on an SM. bazel/cuda_image.bzl compiles with the same number.
// With three blocks and 72 registers, the loads of a wide add no longer fit in registers
// together, and it reaches 0.66 of a copy's bandwidth in place of 0.9 (docs/benchmarks).
inline constexpr u32 kMaxRegisters = 96;
inline constexpr u32 kLargestBlocksPerSm = 2;
// Stack of a thread, and what of it an operator with all that it calls may use: the kernel
// calls operators through pointers, so no compiler adds up the two.
inline constexpr u32 kThreadStackBytes = 2048;
inline constexpr u32 kKernelStackBytes = 128;
inline constexpr u32 kOperatorStackBytes = kThreadStackBytes - kKernelStackBytes;

// Slots of the device ring: a power of two. More than tasks can be in flight, since a
// wide task takes one for each block that works on it.
inline constexpr u32 kDeviceRingSlots = 16384;
inline constexpr u32 kDeviceRingQuarters = 4;

// Progress of one wide task; zero between tasks.
struct WideProgress {
  u32 next_chunk;
  u32 blocks_done;
  u32 status_and_detail;
  // Not 0: the task's arguments stand in `wide_arguments`.
  u32 arguments_ready;
  u64 start_ns;
  u64 reserved2;
};
static_assert(sizeof(WideProgress) == 32, "");

// In device memory, zero at first; keeps its contents across park and resume.
struct KernelState {
  // Device-ring slot that the next worker takes. Tickets are handed out in order.
  alignas(128) u64 next_ticket;
  // Device-ring slots that workers have read, by quarter: the poller writes a quarter
  // again only when all its slots of the lap before were read.
  alignas(128) u64 taken[kDeviceRingQuarters];
  // Device-ring slots filled so far. The poller's own, kept here across a park.
  alignas(128) u64 filled;
};

struct KernelParameters {
  // In host memory, as the device sees it.
  ControlBlock* control;
  Breadcrumb* breadcrumbs;
  const RingSlot* submissions;
  RingSlot* completions;
  const ArgumentBlock* argument_blocks;
  // In device memory.
  KernelState* state;
  RingSlot* device_ring;          // kDeviceRingSlots.
  WideProgress* wide;             // One for each submission slot,
  ArgumentBlock* wide_arguments;  // likewise.
  unsigned char* scratch;         // kScratchBytes for each block.
  u64 first_sequence;
  u32 slot_mask;  // Submission slots - 1.
  u32 reserved;
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_KERNEL_PARAMETERS_H_
