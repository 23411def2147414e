#include "runtime/state/state_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/state/errors.h"
#include "runtime/state/files.h"

namespace resident {

absl::StatusOr<std::unique_ptr<StateLock>> StateLock::Take(const std::string& folder) {
  const std::string path = folder + "/lock";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("open", path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const bool held = errno == EWOULDBLOCK;
    const absl::Status status = held ? absl::OkStatus() : FileError("lock", path);
    close(fd);
    if (!held) return status;
    // The file is empty between the other process's flock and its write; then the pid is unknown.
    const absl::StatusOr<std::string> text = ReadWholeFile(path);
    int64_t pid = 0;
    if (text.ok()) (void)absl::SimpleAtoi(absl::StripSuffix(*text, "\n"), &pid);
    return errors::StateFolderInUse(folder, pid);
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  absl::Status status;
  if (ftruncate(fd, 0) != 0) status = FileError("write", path);
  if (status.ok()) status = WriteAll(fd, pid, path);
  if (!status.ok()) {
    close(fd);
    return status;
  }
  return std::unique_ptr<StateLock>(new StateLock(fd));
}

StateLock::~StateLock() { close(fd_); }

}  // namespace resident
