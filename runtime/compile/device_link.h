// Images of generations from their units, and the inspection of units that are PTX: what
// needs nvJitLink. In a build without CUDA the functions exist and say so.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_
#define RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/compile/inspect.h"
#include "runtime/engine/generation.h"

namespace resident {

// The image for a GPU of compute capability major.minor: kernel, built-in operators, jump
// table and the units, each a relocatable cubin or PTX. INVALID_ARGUMENT: the units do
// not go together.
absl::StatusOr<std::string> LinkGeneration(int major, int minor,
                                           const std::vector<GenerationOperator>& operators);

// As InspectCubin, of PTX: what the linker makes of it is looked at.
absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request);

// "nvJitLink 13.0".
absl::StatusOr<std::string> LinkerVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_
