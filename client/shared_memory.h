// SharedMemory: memory that a daemon on this machine can use in place, as a buffer.
//
//   auto memory = resident::client::SharedMemory::Create(3 * sizeof(float));
//   auto x = (*client)->ImportShared<float>(memory->fd(), {3});
//   memory->As<float>()[0] = 1;       // Tasks that use *x read and write it here.
//
// It cannot be truncated (F_SEAL_SHRINK), which a daemon requires if its callers have identities.
// The object may be destroyed before the buffer; tasks that use the memory are not affected.
//
// Memory ordering: data that was written before a batch was sent is visible to its tasks; data that
// they wrote is visible once the batch's result has arrived. In between, writes of one side can
// become visible to the other at any time.
//
// Thread safety: that of a pointer.
#ifndef RESIDENT_CLIENT_SHARED_MEMORY_H_
#define RESIDENT_CLIENT_SHARED_MEMORY_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace resident::client {

class SharedMemory {
 public:
  // The memory is initialised with zeros. Errors: RESOURCE_EXHAUSTED, INVALID_ARGUMENT (0 bytes).
  static absl::StatusOr<SharedMemory> Create(uint64_t size_bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // This object keeps ownership.
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
