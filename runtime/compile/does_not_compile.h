// DoesNotCompile: the error for a source that does not compile, with the first error of the
// compiler's log. The whole log is returned separately.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_COMPILE_DOES_NOT_COMPILE_H_
#define RESIDENT_RUNTIME_COMPILE_DOES_NOT_COMPILE_H_

#include <string>

#include "absl/status/status.h"

namespace resident {

// Returns INVALID_ARGUMENT. `log`: the output of g++, clang or NVRTC.
absl::Status DoesNotCompile(const std::string& log);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_DOES_NOT_COMPILE_H_
