// What a linked image (cubin) says of its functions.
#ifndef RESIDENT_RUNTIME_ENGINE_IMAGE_CUBIN_H_
#define RESIDENT_RUNTIME_ENGINE_IMAGE_CUBIN_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/engine/image/nv_info.h"

namespace resident {

// By symbol. INVALID_ARGUMENT: not a cubin, or one that is damaged: which part.
absl::StatusOr<std::map<std::string, FunctionResources>> ReadCubin(const std::string& image);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_IMAGE_CUBIN_H_
