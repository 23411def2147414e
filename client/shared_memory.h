// SharedMemory: memory that a daemon on this machine can use in place, as a buffer.
//
//   auto memory = resident::client::SharedMemory::Create(3 * sizeof(float));
//   auto x = (*client)->ImportShared<float>(memory->fd(), {3});
//   memory->As<float>()[0] = 1;       // Tasks that use *x read and write it here.
//
// It cannot be truncated (F_SEAL_SHRINK), which a daemon whose callers have identities requires.
// The buffer does not keep it from being destroyed, nor does destroying it harm tasks that use it.
//
// Memory ordering: what was written before a batch was sent is seen by its tasks; what they wrote
// is seen once the batch's result is here. In between both sides see each other's writes at any
// time.
//
// Thread safety: as a pointer.
#ifndef RESIDENT_CLIENT_SHARED_MEMORY_H_
#define RESIDENT_CLIENT_SHARED_MEMORY_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace resident::client {

class SharedMemory {
 public:
  // Zeroes. RESOURCE_EXHAUSTED, INVALID_ARGUMENT (0 bytes).
  static absl::StatusOr<SharedMemory> Create(uint64_t size_bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // Stays this object's.
  int fd() const { return fd_; }
  void* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }
  template <typename T>
  std::span<T> As() const {
    return {static_cast<T*>(data_), size_bytes_ / sizeof(T)};
  }

 private:
  SharedMemory(int fd, void* data, uint64_t size_bytes)
      : fd_(fd), data_(data), size_bytes_(size_bytes) {}
  void Release();

  int fd_ = -1;
  void* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_SHARED_MEMORY_H_
