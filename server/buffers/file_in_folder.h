// Opens a file below a folder, by a path from a client, so that no path leaves the folder: neither
// by "..", nor by an absolute path, nor by symbolic links.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_BUFFERS_FILE_IN_FOLDER_H_
#define RESIDENT_SERVER_BUFFERS_FILE_IN_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "runtime/base/process/unique_fd.h"

namespace resident {

// Opens the file for reading; a FIFO without a writer does not block. Errors: NOT_FOUND,
// PERMISSION_DENIED (the path leaves the folder, or the file cannot be read), INVALID_ARGUMENT (the
// path is empty), INTERNAL (other errors of the system).
absl::StatusOr<UniqueFd> OpenFileInFolder(const std::string& folder, const std::string& path);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_FILE_IN_FOLDER_H_
