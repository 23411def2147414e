#include "server/buffers/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/buffers/errors.h"
#include "server/connections/errors.h"

namespace resident {
namespace {

bool IsValidName(const std::string& name) {
  return name.size() >= 2 && name.size() <= 255 && name[0] == '/' &&
         name.find('/', 1) == std::string::npos && name.find('\0') == std::string::npos &&
         name != "/." && name != "/..";
}

}  // namespace

absl::StatusOr<int> OpenSharedMemory(const std::string& name, uint64_t size_bytes) {
  if (!IsValidName(name)) return errors::SharedMemoryName(name);
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) {
    if (errno == ENOENT) return errors::SharedMemoryMissing(name);
    return errors::SharedMemoryDenied(name, strerror(errno));
  }
  struct stat object {};
  absl::Status status;
  if (fstat(fd, &object) != 0 || !S_ISREG(object.st_mode)) {
    status = errors::SharedMemoryDenied(name, "it is not a regular object");
  } else if (object.st_uid != geteuid() && (object.st_mode & 0006) != 0006) {
    status = errors::SharedMemoryDenied(name, "it belongs to another user");
  } else if (size_bytes == 0 || size_bytes > static_cast<uint64_t>(object.st_size)) {
    status = errors::SharedMemorySize(name, size_bytes, static_cast<uint64_t>(object.st_size));
  }
  if (status.ok()) return fd;
  close(fd);
  return status;
}

absl::Status CheckSharedSize(int fd, uint64_t size_bytes) {
  struct stat object {};
  if (fstat(fd, &object) != 0) return errors::DescriptorIsNotSharedMemory();
  const auto bytes = static_cast<uint64_t>(object.st_size);
  if (size_bytes == 0 || size_bytes > bytes) return errors::DescriptorSize(size_bytes, bytes);
  return absl::OkStatus();
}

}  // namespace resident
