#include "server/auth/published_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace resident {
namespace {

absl::Status Failed(const char* call) {
  return absl::InternalError(
      absl::StrCat("cannot keep certificates in memory: ", call, ": ", strerror(errno),
                   ". Fix: check the system's memory and the process's limit of open files"));
}

}  // namespace

PublishedFile::~PublishedFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status PublishedFile::Set(const std::string& contents) {
  int fd = memfd_create("resident-published", MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create");
  absl::Cleanup close_fd = [&fd] { close(fd); };
  if (fchmod(fd, 0600) != 0) return Failed("fchmod");
  for (size_t done = 0; done < contents.size();) {
    const ssize_t wrote = write(fd, contents.data() + done, contents.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed("write");
    done += static_cast<size_t>(wrote);
  }
  const timespec version{.tv_sec = ++versions_, .tv_nsec = 0};
  const timespec times[2] = {version, version};
  if (futimens(fd, times) != 0) return Failed("futimens");
  if (fd_ < 0) {
    std::move(close_fd).Cancel();
    fd_ = fd;
    return absl::OkStatus();
  }
  if (dup3(fd, fd_, O_CLOEXEC) < 0) return Failed("dup3");
  return absl::OkStatus();
}

std::string PublishedFile::path() const {
  assert(fd_ >= 0);
  return absl::StrCat("/proc/self/fd/", fd_);
}

}  // namespace resident
