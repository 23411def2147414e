// The safetensors files that a word of the command line stands for.
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_IMPORTERS_SAFETENSORS_PATHS_H_
#define RESIDENT_CLIENT_IMPORTERS_SAFETENSORS_PATHS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace resident::cli {

// Of one index.
inline constexpr size_t kMaxSafetensorsFiles = 1024;

// `path`: a safetensors file, the index of several (*.index.json), or the folder of a model, which
// has model.safetensors or model.safetensors.index.json. Paths in alphabetical order; one that is
// neither an index nor a folder is returned as it is. INVALID_ARGUMENT: an index is damaged, or a
// folder has no files.
absl::StatusOr<std::vector<std::string>> SafetensorsPaths(const std::string& path);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_SAFETENSORS_PATHS_H_
