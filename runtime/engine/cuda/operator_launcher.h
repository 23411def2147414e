// OperatorLauncher: runs one built-in operator with one launch, without a resident kernel. For
// programs that use the operators as a library (library/resident_ops.h).
//
// It uses the device's primary context, which is also that of the CUDA runtime, so that streams and
// memory of the CUDA runtime can be used with it. Create raises the context's limit of the stack of
// a thread to what operators may use. All memory is allocated by Create. Launch only launches.
//
// Thread safety: one thread at a time. Different launchers are independent.
//
// Memory ordering: a launch is ordered by its stream. The launches of one launcher share scratch
// memory and `outcome`: they must not overlap in time, which one stream guarantees. The host may
// access outcome() when the stream is synchronized.
//
//   ASSIGN_OR_RETURN(auto launcher, OperatorLauncher::Create(/*ordinal=*/0, /*max_blocks=*/0));
//   RETURN_IF_ERROR(launcher->Launch(launch, stream));
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_OPERATOR_LAUNCHER_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_OPERATOR_LAUNCHER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/resident/operator_launch.h"

namespace resident {

class OperatorLauncher {
 public:
  // `max_blocks`: maximum number of blocks of a launch, each of which has kScratchBytes of device
  // memory; 0: as many as run on the device at the same time. UNAVAILABLE: no CUDA, no such device,
  // or no code for it. RESOURCE_EXHAUSTED: not enough memory.
  static absl::StatusOr<std::unique_ptr<OperatorLauncher>> Create(int ordinal, uint32_t max_blocks);
  virtual ~OperatorLauncher() = default;

  // Launches `launch`, whose outcome and scratch the launcher sets, on the CUstream or cudaStream_t
  // `stream`; null: the context's default stream.
  virtual absl::Status Launch(OperatorLaunch& launch, void* stream) = 0;

  virtual LaunchOutcome* outcome() = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_OPERATOR_LAUNCHER_H_
