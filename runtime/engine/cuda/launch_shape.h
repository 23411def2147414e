// How the resident kernel is laid out on a GPU: threads of a block, blocks of an SM, SMs.
//
// Settings are held against what the GPU has before anything is launched, and refused with
// the numbers of both. Nothing here calls the driver.
//
// Thread safety: functions of their arguments.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_LAUNCH_SHAPE_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_LAUNCH_SHAPE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// What one block takes, and what an SM has of it.
struct BlockFootprint {
  uint32_t threads = 0;       // With the control warp.
  uint32_t registers = 0;     // Of a thread.
  uint32_t shared_bytes = 0;  // As declared; the driver takes kReservedSharedBytes more.
};
struct SmResources {
  uint32_t threads = 0;
  uint32_t registers = 0;
  uint32_t shared_bytes = 0;
  uint32_t blocks = 0;
};

// Shared memory that the driver keeps of each block (CUDA C++ Programming Guide, compute
// capability 8.0 and later).
inline constexpr uint32_t kReservedSharedBytes = 1024;

// Threads of a block that run operators, for --threads_per_block=`setting` (0: the most).
// INVALID_ARGUMENT: not a multiple of 32 in the range that the kernel was built for.
absl::StatusOr<uint32_t> ComputeThreads(uint32_t setting);

// Blocks on each SM, for --blocks_per_sm=`setting` (0: as many as fit, but no more than run
// operators on 512 threads). `fit`: how many the driver says fit. INVALID_ARGUMENT: fewer
// than that fit; the message has what a block takes and what the SM has.
absl::StatusOr<uint32_t> BlocksPerSm(uint32_t setting, uint32_t fit, const BlockFootprint& block,
                                     const SmResources& sm);

// INVALID_ARGUMENT: --sms_free=`setting` leaves none of `sms`.
absl::Status CheckSmsFree(uint32_t setting, uint32_t sms);

// Blocks of the kernel on `sms` SMs: at most `most` (0: no limit), and as many as the ring
// can serve. INVALID_ARGUMENT: fewer than two, one that polls and one that works.
absl::StatusOr<uint32_t> CountBlocks(uint32_t sms, uint32_t per_sm, uint32_t most);

// Share of an SM's shared memory that `per_sm` blocks need, in percent. What is left is L1,
// which a wide task's loads in flight need.
uint32_t SharedMemoryPercent(uint32_t per_sm, const BlockFootprint& block, const SmResources& sm);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_LAUNCH_SHAPE_H_
