// Links units into modules and inspects units that are PTX, with nvJitLink. In a build without
// CUDA the functions exist and return an error.
//
// Thread safety: the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_
#define RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/compile/inspect.h"

namespace resident {

// Returns the module of an inspected cubin (runtime/image/operator_module.h).
// INVALID_ARGUMENT: it cannot be linked; the message has the linker's.
absl::StatusOr<std::string> LinkModule(const std::string& symbol, const std::string& unit,
                                       int architecture);

// Like InspectCubin, for PTX: links it, inspects the result and stores it in `module`.
absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request, std::string* module);

// Returns "nvJitLink 13.0", for example.
absl::StatusOr<std::string> LinkerVersion();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_DEVICE_LINK_H_
