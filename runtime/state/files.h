// Files that are whole or not there: the few calls that the state folder is made of.
//
// Every step that changes what a crash would leave is between two crash points
// (crash_point.h).
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_STATE_FILES_H_
#define RESIDENT_RUNTIME_STATE_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// Ending of files that are being written; those that are found were left by a crash.
inline constexpr char kDraftEnding[] = ".new";

// UNAVAILABLE with the path, what was tried, and the system's reason. Names errno.
absl::Status FileError(const std::string& what, const std::string& path);

// Makes the folder, readable by its owner alone, unless it is there.
absl::Status MakeFolder(const std::string& path);
// NOT_FOUND: it is not there.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// Puts a file with these contents at `path`, on disk: a draft beside it, fdatasync,
// rename, fsync of the folder.
absl::Status WriteWholeFile(const std::string& path, const std::vector<std::string_view>& parts);
// All of it at the file's position.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path);
absl::Status SyncFolder(const std::string& path);
// Puts a file in the place of another one in the same folder, on disk.
absl::Status RenameFile(const std::string& from, const std::string& to);
// OK also if it is not there.
absl::Status RemoveFile(const std::string& path);
// Names of plain files, sorted.
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& folder);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_FILES_H_
