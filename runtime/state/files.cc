#include "runtime/state/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/state/errors.h"

namespace resident {

void CrashPoint() {
  static const long at = [] {
    const char* const text = getenv("RESIDENTD_CRASH_POINT");
    return text == nullptr ? 0L : strtol(text, nullptr, 10);
  }();
  if (at <= 0) return;
  static std::atomic<long> reached{0};
  if (reached.fetch_add(1) + 1 == at) kill(getpid(), SIGKILL);
}

absl::Status FileError(const std::string& what, const std::string& path) {
  const int error = errno;
  return absl::UnavailableError(absl::StrCat(
      "cannot ", what, " ", path, ": ", strerror(error), ". Fix: ",
      error == ENOSPC || error == EDQUOT
          ? "free space on the disk of --state_dir"
          : "make --state_dir a folder that the daemon may read and write, on a disk that works"));
}

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  struct stat found;
  if (errno == EEXIST && stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) {
    return absl::OkStatus();
  }
  return FileError("make the folder", path);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat("no file ", path, ". Fix: none"));
    return FileError("read", path);
  }
  const absl::Cleanup closed = [fd] { close(fd); };
  struct stat found;
  if (fstat(fd, &found) != 0) return FileError("read", path);
  std::string bytes(static_cast<size_t>(found.st_size), '\0');
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = read(fd, bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError("read", path);
    if (got == 0) break;
    at += static_cast<size_t>(got);
  }
  bytes.resize(at);
  return bytes;
}

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return FileError("write", path);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

absl::Status WriteWholeFile(const std::string& path, const std::vector<std::string_view>& parts) {
  const std::string temporary = path + kTemporarySuffix;
  CrashPoint();
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("write", temporary);
  absl::Status status;
  for (const std::string_view part : parts) {
    if (status.ok()) status = WriteAll(fd, part, temporary);
  }
  CrashPoint();
  if (status.ok() && fdatasync(fd) != 0) status = FileError("sync", temporary);
  CrashPoint();
  close(fd);
  if (status.ok()) status = RenameFile(temporary, path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status RenameFile(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return FileError("rename", from);
  CrashPoint();
  return SyncFolder(to.substr(0, to.rfind('/')));
}

absl::Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("sync", path);
  const bool synced = fsync(fd) == 0;
  const absl::Status status = synced ? absl::OkStatus() : FileError("sync", path);
  close(fd);
  CrashPoint();
  return status;
}

absl::Status RemoveFile(const std::string& path) {
  CrashPoint();
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return FileError("remove", path);
  CrashPoint();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& folder) {
  DIR* const open = opendir(folder.c_str());
  if (open == nullptr) return FileError("list", folder);
  const absl::Cleanup closed = [open] { closedir(open); };
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(open);
    if (entry == nullptr && errno != 0) return FileError("list", folder);
    if (entry == nullptr) break;
    bool regular = entry->d_type == DT_REG;
    if (entry->d_type == DT_UNKNOWN) {  // Some file systems do not return the type.
      struct stat found = {};
      regular = fstatat(dirfd(open), entry->d_name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISREG(found.st_mode);
    }
    if (regular) names.push_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

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
