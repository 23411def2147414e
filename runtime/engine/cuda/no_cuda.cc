// The CUDA engine in a build without the CUDA toolkit: CreateCudaEngine and ListCudaDevices return
// an error.
#include "runtime/engine/cuda/cuda_registration.h"

namespace resident {
namespace {

absl::Status BuiltWithout() {
  return absl::UnavailableError(
      "this build has no CUDA. Fix: build with the CUDA toolkit in /usr/local/cuda or $CUDA_HOME");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(int) { return BuiltWithout(); }

void OpenCudaDriver() {}

absl::StatusOr<std::vector<std::string>> ListCudaDevices() { return BuiltWithout(); }

}  // namespace resident
