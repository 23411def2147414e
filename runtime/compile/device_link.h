// Modules from units, and the inspection of units that are PTX: what needs nvJitLink. In a
// build without CUDA the functions exist and say so.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_
#define RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/compile/inspect.h"

namespace resident {

// The module of an inspected cubin (runtime/engine/image/operator_module.h).
// INVALID_ARGUMENT: it cannot be linked, and what the linker says.
absl::StatusOr<std::string> LinkModule(const std::string& symbol, const std::string& unit,
                                       int architecture);

// As InspectCubin, of PTX: what the linker makes of it is looked at, and becomes `module`.
absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request, std::string* module);

// "nvJitLink 13.0".
absl::StatusOr<std::string> LinkerVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_
