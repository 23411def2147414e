// The launcher in a build without the CUDA toolkit: Create returns an error.
#include "runtime/engine/cuda/operator_launcher.h"

namespace resident {

absl::StatusOr<std::unique_ptr<OperatorLauncher>> OperatorLauncher::Create(int, uint32_t) {
  return absl::UnavailableError(
      "this build has no CUDA. Fix: build with the CUDA toolkit in /usr/local/cuda or $CUDA_HOME");
}

}  // namespace resident
