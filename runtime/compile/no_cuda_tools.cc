// cuda_tools.h in a build without the CUDA toolkit: all functions return an error.
#include "runtime/compile/cuda_tools.h"

namespace resident {
namespace {

absl::Status BuiltWithout() {
  return absl::UnavailableError(
      "this build has no CUDA. Fix: build with the CUDA toolkit in /usr/local/cuda or $CUDA_HOME");
}

}  // namespace

absl::StatusOr<std::string> NvrtcVersion() { return BuiltWithout(); }
absl::StatusOr<std::string> WarmNvrtc() { return BuiltWithout(); }
absl::StatusOr<std::string> NvrtcCompile(const NvrtcSource&, std::string*) {
  return BuiltWithout();
}

absl::StatusOr<std::string> LinkModule(const std::string&, const std::string&, int, uint32_t) {
  return BuiltWithout();
}
absl::StatusOr<std::string> CheckPtxObject(const InspectRequest&) { return BuiltWithout(); }
absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest&, std::string*) {
  return BuiltWithout();
}
absl::StatusOr<std::string> LinkerVersion() { return BuiltWithout(); }

}  // namespace resident
