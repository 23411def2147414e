#include "client/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace resident::client {

absl::StatusOr<SharedMemory> SharedMemory::Create(uint64_t size_bytes) {
  if (size_bytes == 0 || size_bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat("invalid size of shared memory: ", size_bytes,
                                                   " bytes. Fix: request at least 1"));
  }
  const int fd = memfd_create("residentd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  void* data = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(size_bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0) {
    data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (data != MAP_FAILED) return SharedMemory(fd, data, size_bytes);
  const int error = errno;
  if (fd >= 0) close(fd);
  return absl::ResourceExhaustedError(absl::StrCat("cannot create shared memory of ", size_bytes,
                                                   " bytes: ", strerror(error),
                                                   ". Fix: request less"));
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this == &other) return *this;
  Release();
  fd_ = std::exchange(other.fd_, -1);
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  return *this;
}

SharedMemory::~SharedMemory() { Release(); }

void SharedMemory::Release() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace resident::client
