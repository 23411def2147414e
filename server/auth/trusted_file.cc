#include "server/auth/trusted_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

std::string ModeText(const struct stat& info) {
  return absl::StrFormat("mode %04o", info.st_mode & 07777);
}

// Whether nobody can write to the file or folder although its mode allows it. Kubernetes mounts
// ConfigMaps and Secrets so, and gives their folders the mode 2777.
bool OnReadOnlyMount(const std::string& path) {
  struct statvfs mount {};
  return statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_RDONLY) != 0;
}

absl::Status Unreadable(const std::string& path, int error) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrCat("cannot read ", path, ": ", strerror(error),
                                   ". Fix: use a file that the daemon may read"));
}

absl::Status CheckMode(const std::string& path, const struct stat& info,
                       std::vector<std::string>* warnings) {
  if ((info.st_mode & (S_IWOTH | S_IWGRP)) != 0 && OnReadOnlyMount(path)) return absl::OkStatus();
  if ((info.st_mode & S_IWOTH) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " may be written by every user of this machine (", ModeText(info),
                     "), any of whom could gain all rights. Fix: chmod o-w ", path,
                     S_ISDIR(info.st_mode)
                         ? absl::StrCat("; in Kubernetes, whose volumes have such modes, use a "
                                        "folder inside the volume, such as ",
                                        path, "/state")
                         : std::string()));
  }
  if ((info.st_mode & S_IWGRP) != 0) {
    warnings->push_back(absl::StrCat(path, " may be written by its group (", ModeText(info),
                                     "), whose members could gain all rights. Fix: "
                                     "chmod g-w ",
                                     path));
  }
  if (info.st_uid != 0 && info.st_uid != geteuid()) {
    warnings->push_back(absl::StrCat(path, " belongs to user ", info.st_uid,
                                     ", who can change it at any time. Fix: chown it to the "
                                     "daemon's user (",
                                     geteuid(), ") or root"));
  }
  return absl::OkStatus();
}

// A user who may write a folder can replace the files in it.
void CheckFolderAround(const std::string& path, std::vector<std::string>* warnings) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0 || (info.st_mode & S_ISVTX) != 0) return;
  if ((info.st_mode & S_IWOTH) == 0 || OnReadOnlyMount(folder)) return;
  warnings->push_back(absl::StrCat(
      "the folder ", folder, " of ", path, " may be written by every user of this machine (",
      ModeText(info), "), who could replace the file. Fix: chmod o-w ", folder));
}

// Checks and reads an open file. `path` is for errors, and for the mount and the folder of the
// file.
absl::StatusOr<std::string> ReadTrusted(int fd, const std::string& path, size_t max_bytes,
                                        bool secret, std::vector<std::string>* warnings) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return Unreadable(path, errno);
  // A pipe or a device, such as /dev/fd/3, is trusted: the user who started the daemon has
  // passed it.
  if (S_ISREG(info.st_mode)) {
    RETURN_IF_ERROR(CheckMode(path, info, warnings));
    if (secret && (info.st_mode & S_IROTH) != 0) {
      warnings->push_back(absl::StrCat("the private key ", path,
                                       " may be read by every user of this machine (",
                                       ModeText(info), "). Fix: chmod o-r ", path));
    }
    CheckFolderAround(path, warnings);
  }
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t got = read(fd, piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(path, errno);
    if (got == 0) return text;
    text.append(piece, static_cast<size_t>(got));
    if (text.size() > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " has more than ", max_bytes,
                       " bytes. Fix: check the path, or make the file smaller"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t max_bytes, bool secret,
                                            std::vector<std::string>* warnings) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Unreadable(path, errno);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  return ReadTrusted(fd, path, max_bytes, secret, warnings);
}

absl::StatusOr<std::string> ReadTrustedFileIn(int folder_fd, const std::string& folder,
                                              const std::string& path, size_t max_bytes,
                                              std::vector<std::string>* warnings) {
  const std::string full = absl::StrCat(folder, "/", path);
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const int fd = static_cast<int>(syscall(SYS_openat2, folder_fd, path.c_str(), &how, sizeof(how)));
  if (fd < 0 && errno == EXDEV) {
    return absl::InvalidArgumentError(
        absl::StrCat(full, " leads out of its folder. Fix: put the file into it"));
  }
  if (fd < 0) return Unreadable(full, errno);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0) return Unreadable(full, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(full, " is not a regular file. Fix: name a file"));
  }
  return ReadTrusted(fd, full, max_bytes, /*secret=*/false, warnings);
}

absl::Status CheckTrustedFolder(const std::string& path, std::vector<std::string>* warnings) {
  struct stat info {};
  // Other errors are reported when the folder is used.
  if (stat(path.c_str(), &info) != 0) return absl::OkStatus();
  const absl::Status usable = CheckMode(path, info, warnings);
  if (usable.ok()) CheckFolderAround(path, warnings);
  return usable;
}

}  // namespace resident
