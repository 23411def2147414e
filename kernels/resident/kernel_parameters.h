// Limits of the resident kernel and the graph kernel, and their own state in device memory. Shared
// by host and device.
#ifndef RESIDENT_KERNELS_RESIDENT_KERNEL_PARAMETERS_H_
#define RESIDENT_KERNELS_RESIDENT_KERNEL_PARAMETERS_H_

#include "kernels/layout/ring_layout.h"
#include "kernels/sdk/block.h"

namespace resident {

inline constexpr char kResidentKernelName[] = "resident_kernel";
// The kernel that executes graphs beside it, and its form for graphs that have streams
// (graph_kernel.cu).
inline constexpr char kGraphKernelName[] = "resident_graph_kernel";
inline constexpr char kGraphStreamKernelName[] = "resident_graph_stream_kernel";
// Limits of the number of threads of a block that run operators. The block has a control warp in
// addition. The maximum is Block::kMaxThreads in units that are compiled for a GPU.
inline constexpr u32 kMinComputeThreads = 32;
inline constexpr u32 kMaxComputeThreads = 256;
// Maximum number of registers of a thread of the kernel, and so of an operator, with which two
// of the largest blocks fit on an SM. bazel/cuda_image.bzl compiles with the same number.
// With three blocks and 72 registers, the loads of a wide add do not all fit in registers,
// and it reaches 0.66 of a copy's bandwidth instead of 0.9 (docs/benchmarks).
inline constexpr u32 kMaxRegisters = 96;
inline constexpr u32 kLargestBlocksPerSm = 2;
// Stack of a thread, and the part of it that an operator with all functions that it calls may
// use. The kernel calls operators through pointers, so no compiler computes their sum.
inline constexpr u32 kThreadStackBytes = 2048;
inline constexpr u32 kKernelStackBytes = 128;
inline constexpr u32 kOperatorStackBytes = kThreadStackBytes - kKernelStackBytes;

// The graph kernel: registers of a thread, which is as many as fit beside the resident kernel. The
// form for graphs that have streams has as many threads as there can be, a warp more than a block
// of the resident kernel, its loader, and a ring of pages in dynamic shared memory
// (stream_ring.cuh).
inline constexpr u32 kGraphRegisters = 104;
inline constexpr u32 kLoaderThreads = 32;
inline constexpr u32 kRingPages = 6;
inline constexpr u32 kRingAlignment = 1024;
inline constexpr u32 kRingBytes = kRingPages * 16384 + kRingAlignment;

// An entry of kTaskLimits: how long a task may run, in microseconds, 0: any time; and whether the
// operator can be stopped while it runs.
inline constexpr u32 kMaxTaskLimit = 0x7fffffff;
inline constexpr u32 kCanBeStopped = 0x80000000;

// Slots of the device ring: a power of two. There are more than tasks can be in flight, because
// a wide task uses one for each block that works on it.
inline constexpr u32 kDeviceRingSlots = 16384;
inline constexpr u32 kDeviceRingQuarters = 4;

// Progress of one wide task or range; zero between tasks.
struct WideProgress {
  u32 next_chunk;  // Of a range: the next claim.
  u32 blocks_done;
  u32 status_and_detail;
  // Not 0: the task's arguments are in `wide_arguments`.
  u32 arguments_ready;
  u64 start_ns;
  u32 failed;  // Tasks of a range that did not end OK.
  u32 reserved;
};
static_assert(sizeof(WideProgress) == 32, "");
static_assert(__builtin_offsetof(WideProgress, next_chunk) == 0, "");
static_assert(__builtin_offsetof(WideProgress, blocks_done) == 4, "");
static_assert(__builtin_offsetof(WideProgress, status_and_detail) == 8, "");
static_assert(__builtin_offsetof(WideProgress, arguments_ready) == 12, "");
static_assert(__builtin_offsetof(WideProgress, start_ns) == 16, "");
static_assert(__builtin_offsetof(WideProgress, failed) == 24, "");

// In device memory, initially zero; keeps its contents across park and resume.
struct KernelState {
  // Device-ring slot of the next worker. Tickets are assigned in order.
  alignas(128) u64 next_ticket;
  // Device-ring slots that workers have read, for each quarter: the poller writes to a
  // quarter again only when all its slots of the previous lap were read.
  alignas(128) u64 taken[kDeviceRingQuarters];
  // Device-ring slots filled so far. Only the poller uses it; it is stored here during a park.
  alignas(128) u64 filled;
};
static_assert(sizeof(KernelState) == 384, "");
static_assert(__builtin_offsetof(KernelState, next_ticket) == 0, "");
static_assert(__builtin_offsetof(KernelState, taken) == 128, "");
static_assert(__builtin_offsetof(KernelState, filled) == 256, "");

// Graph workers: the blocks of the graph kernel, at most one on each SM.
inline constexpr u32 kMaxGraphWorkers = 256;

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_KERNEL_PARAMETERS_H_
