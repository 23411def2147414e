// Errors of sources and formulas.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_COMPILE_ERRORS_H_
#define RESIDENT_RUNTIME_COMPILE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace resident::errors {

// `what`: the problem at bytes [position, position + width) of the expression. `fix` may be
// empty.
absl::Status BadExpression(std::string_view text, size_t position, size_t width,
                           const std::string& what, const std::string& fix);

absl::Status InstallFileName(const std::string& name, const std::string& what);
absl::Status InstallMissingFile(const std::string& name, size_t files);
absl::Status InstallWithdrawn();
absl::Status CompileFolderFull(uint64_t limit_mib, uint64_t limit_entries);

}  // namespace resident::errors

namespace resident {

// The error for a source that does not compile, with the first error of the compiler's log. The
// whole log is returned separately. Returns INVALID_ARGUMENT. `log`: the output of g++, clang or
// NVRTC.
absl::Status DoesNotCompile(const std::string& log);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_ERRORS_H_
