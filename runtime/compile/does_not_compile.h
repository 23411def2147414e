// DoesNotCompile: the error of a source that a compiler refuses, with the first thing that
// it said. The whole log travels beside it.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_COMPILE_DOES_NOT_COMPILE_H_
#define RESIDENT_RUNTIME_COMPILE_DOES_NOT_COMPILE_H_

#include <string>

#include "absl/status/status.h"

namespace resident {

// INVALID_ARGUMENT. `log`: of g++, clang or NVRTC.
absl::Status DoesNotCompile(const std::string& log);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_DOES_NOT_COMPILE_H_
