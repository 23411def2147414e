// Checks the names of an install's files, under which they include one another.
//
// Names become paths below the folder of a compilation, next to those of the SDK's headers. The
// front end and the compile process use the same check.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_SOURCE_FILES_H_
#define RESIDENT_RUNTIME_COMPILE_SOURCE_FILES_H_

#include <map>
#include <string>

#include "absl/status/status.h"

namespace resident {

// INVALID_ARGUMENT: not a relative path of letters, digits and _-./ that stays below its
// folder; longer than kMaxInstallFileNameBytes; in a folder of the SDK.
absl::Status CheckFileName(const std::string& name);

// INVALID_ARGUMENT: the file to compile is not among `files` (name to contents).
absl::Status CheckMainFile(const std::map<std::string, std::string>& files,
                           const std::string& main_file);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_SOURCE_FILES_H_
