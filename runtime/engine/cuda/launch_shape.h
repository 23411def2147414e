// The launch configuration of the resident kernel, and of the graph kernel beside it: threads of a
// block, blocks of an SM, SMs.
//
// Settings are compared with the GPU's resources before anything is launched, and refused with
// the numbers of both. Nothing here calls the driver.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_LAUNCH_SHAPE_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_LAUNCH_SHAPE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// The resources of one block, and below, those of an SM.
struct BlockFootprint {
  uint32_t threads = 0;       // Including the control warp.
  uint32_t registers = 0;     // For each thread.
  uint32_t shared_bytes = 0;  // As declared; the driver takes kReservedSharedBytes more.
};
struct SmResources {
  uint32_t threads = 0;
  uint32_t registers = 0;
  uint32_t shared_bytes = 0;
  uint32_t blocks = 0;
};

// Shared memory that the driver reserves for each block (CUDA C++ Programming Guide, compute
// capability 8.0 and later).
inline constexpr uint32_t kReservedSharedBytes = 1024;

// Threads of a block that run operators, for --threads_per_block=`setting` (0: the maximum).
// INVALID_ARGUMENT: not a multiple of 32 in the range that the kernel was built for.
absl::StatusOr<uint32_t> ComputeThreads(uint32_t setting);

// Blocks on each SM, for --blocks_per_sm=`setting` (0: as many as fit, but no more than run
// operators on 512 threads). `fit`: how many fit according to the driver. INVALID_ARGUMENT: fewer
// than `setting` fit; the message has the resources of a block and of the SM.
absl::StatusOr<uint32_t> BlocksPerSm(uint32_t setting, uint32_t fit, const BlockFootprint& block,
                                     const SmResources& sm);

// INVALID_ARGUMENT: --sms_free=`setting` leaves none of `sms` SMs for the kernel.
absl::Status CheckSmsFree(uint32_t setting, uint32_t sms);

// Blocks of the kernel on `sms` SMs: at most `max_blocks` (0: no limit), and as many as the ring
// can serve. INVALID_ARGUMENT: fewer than two, one that polls and one that works.
absl::StatusOr<uint32_t> CountBlocks(uint32_t sms, uint32_t per_sm, uint32_t max_blocks);

// Blocks of the graph kernel, of `blocks` that the resident kernel has if it is alone, with
// `per_sm` on each SM: one for each SM of the blocks that work, and at most half of all, so that
// the resident kernel keeps the others. 0: there are too few. At most kMaxGraphWorkers.
uint32_t GraphBlocks(uint32_t blocks, uint32_t per_sm);

// The registers that a thread with `registers` takes: they are allocated in multiples of eight.
uint32_t AllocatedRegisters(uint32_t registers);

// Whether a block of the graph kernel fits on an SM in place of one of `per_sm` blocks of the
// resident kernel. If not, the engine executes no graphs, or takes no pages.
bool FitsBeside(const BlockFootprint& graph_block, const BlockFootprint& block, uint32_t per_sm,
                const SmResources& sm);

// Share of an SM's shared memory that `per_sm` blocks need, in percent. What is left is L1,
// which a wide task's loads in flight need.
uint32_t SharedMemoryPercent(uint32_t per_sm, const BlockFootprint& block, const SmResources& sm);
// The same with a block of the graph kernel in place of one of them.
uint32_t SharedMemoryPercentBeside(const BlockFootprint& graph_block, const BlockFootprint& block,
                                   uint32_t per_sm, const SmResources& sm);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_LAUNCH_SHAPE_H_
