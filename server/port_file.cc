#include "server/port_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

constexpr mode_t kMode = 0644;

// 0, or why not.
int WriteAll(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t wrote = write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    done += static_cast<size_t>(wrote);
  }
  return fchmod(fd, kMode) == 0 ? 0 : errno;
}

}  // namespace

absl::Status WritePortFile(const std::string& path, const std::string& text) {
  std::string draft = path + ".XXXXXX";
  // O_EXCL: a link of that name is an error.
  const int fd = mkostemp(draft.data(), O_CLOEXEC);
  int error = fd < 0 ? errno : WriteAll(fd, text);
  if (fd >= 0) {
    if (close(fd) != 0 && error == 0) error = errno;
    if (error == 0 && rename(draft.c_str(), path.c_str()) != 0) error = errno;
    if (error != 0) unlink(draft.c_str());
  }
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write --port_file=", path, ": ", strerror(error),
                   ". Fix: give a path in a folder that is there and that the daemon may write"));
}

}  // namespace resident
