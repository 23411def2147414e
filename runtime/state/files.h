// File operations of the state folder. A file is either complete or does not exist.
//
// There is a crash point (CrashPoint) before and after each step that changes what a restart
// would find after a crash.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_FILES_H_
#define RESIDENT_RUNTIME_STATE_FILES_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// CrashPoint: a point in the code at which a test can kill the process, to test what a restart
// restores from the disk.
//
// There is one before and one after each step of a durable write. They are numbered from
// 1 in the order in which a process reaches them; with RESIDENTD_CRASH_POINT=N in its
// environment the process sends itself SIGKILL at the Nth. Without the variable this costs a
// load and a branch. It is no risk: a user who can set a daemon's environment can also kill it.
void CrashPoint();

// Suffix of files that are being written. At a start, such a file was left by a crash.
inline constexpr char kTemporarySuffix[] = ".new";

// UNAVAILABLE with the path, the failed operation, and the text of errno.
absl::Status FileError(const std::string& what, const std::string& path);

// Creates the folder, accessible only to its owner, unless it exists.
absl::Status MakeFolder(const std::string& path);
// NOT_FOUND: it does not exist.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// Writes a file with these contents durably: to a temporary file in the same folder, then
// fdatasync, rename, fsync of the folder.
absl::Status WriteWholeFile(const std::string& path, const std::vector<std::string_view>& parts);
// Writes all bytes at the current position of the file.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path);
absl::Status SyncFolder(const std::string& path);
// Renames a file durably within its folder; replaces an existing file.
absl::Status RenameFile(const std::string& from, const std::string& to);
// OK also if it does not exist.
absl::Status RemoveFile(const std::string& path);
// Names of regular files, sorted.
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& folder);

// StateLock: ensures that only one process at a time uses a state folder.
//
// It is a kernel lock (flock) on STATE_DIR/lock, which is released whenever its holder ends. The
// file contains the pid of the holder. It is never removed, because a lock on a removed file would
// not stop another process.
//
// Thread safety: an object may be used by one thread at a time.
class StateLock {
 public:
  // FAILED_PRECONDITION: another process has it; the message contains its pid.
  static absl::StatusOr<std::unique_ptr<StateLock>> Take(const std::string& folder);
  ~StateLock();
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  explicit StateLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_FILES_H_
