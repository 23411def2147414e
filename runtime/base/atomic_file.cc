#include "runtime/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

absl::Status Failed(absl::string_view step) {
  return absl::UnavailableError(absl::StrCat(step, ": ", strerror(errno)));
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed("write");
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts,
                                 const AtomicFileOptions& options) {
  std::string temporary = path + ".XXXXXX";
  // mkostemp opens with O_EXCL, so it does not follow a link of that name.
  int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return Failed("create");
  absl::Cleanup remove_temporary = [&] {
    if (fd >= 0) close(fd);
    unlink(temporary.c_str());
  };
  for (const absl::string_view part : parts) RETURN_IF_ERROR(WriteAll(fd, part));
  if (fchmod(fd, options.mode) != 0) return Failed("chmod");
  // Some file systems report a full disk only here.
  if (close(std::exchange(fd, -1)) != 0) return Failed("close");
  if (rename(temporary.c_str(), path.c_str()) != 0) return Failed("rename");
  std::move(remove_temporary).Cancel();
  return absl::OkStatus();
}

}  // namespace resident
