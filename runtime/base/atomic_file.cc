#include "runtime/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

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

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd,
                       const AtomicFileOptions& options)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd), options_(options) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::exchange(other.fd_, -1)),
      options_(other.options_) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path,
                                              const AtomicFileOptions& options) {
  std::string temporary = path + ".XXXXXX";
  // mkostemp opens with O_EXCL, so it does not follow a link of that name.
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return Failed("create");
  return AtomicFile(path, std::move(temporary), fd, options);
}

absl::Status AtomicFile::Append(absl::string_view bytes) { return WriteAll(fd_, bytes); }

absl::Status AtomicFile::Commit() {
  if (fchmod(fd_, options_.mode) != 0) return Failed("chmod");
  // Some file systems report a full disk only here.
  if (close(std::exchange(fd_, -1)) != 0) return Failed("close");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename");
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts,
                                 const AtomicFileOptions& options) {
  ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path, options));
  for (const absl::string_view part : parts) RETURN_IF_ERROR(file.Append(part));
  return file.Commit();
}

}  // namespace resident
