// Reads the resources of the functions of a linked image (cubin).
#ifndef RESIDENT_RUNTIME_IMAGE_CUBIN_H_
#define RESIDENT_RUNTIME_IMAGE_CUBIN_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/image/nv_info.h"

namespace resident {

// Returns the resources by symbol. INVALID_ARGUMENT: not a cubin, or a damaged one; the message
// says which part is damaged.
absl::StatusOr<std::map<std::string, FunctionResources>> ReadCubin(const std::string& image);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_CUBIN_H_
