// EngineSession: one engine process, from its start to its end, and its memory for batches.
//
// Each session has an epoch: addresses belong to a session and are invalid after it. The object
// stays usable after its engine has ended, but the memory is then usable by this process only.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_SESSION_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/engine/engine.h"

namespace resident {

// Memory that is freed with its last reference.
struct DeviceMemory {
  uint64_t address;     // Address for operators.
  uint64_t size_bytes;  // The requested size.
};
struct StagingMemory {
  uint8_t* host;     // Address in this process.
  uint64_t address;  // Address for operators.
  uint64_t size_bytes;
};

class EngineSession {
 public:
  virtual ~EngineSession() = default;

  virtual uint64_t epoch() const = 0;
  virtual const EngineInfo& info() const = 0;

  // Allocates device memory for a buffer, aligned to 256 bytes. RESOURCE_EXHAUSTED: the message has
  // the sizes that were requested, that are free, and that are free in one piece.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> AllocateMemory(uint64_t bytes) = 0;
  virtual uint64_t memory_used_bytes() const = 0;

  // Allocates staging memory for a batch's inline data, aligned to 64 bytes and not initialized.
  // RESOURCE_EXHAUSTED: see above.
  virtual absl::StatusOr<std::shared_ptr<const StagingMemory>> AllocateStaging(uint64_t bytes) = 0;

  // Maps a client's shared-memory object for operators, until the last reference is destroyed. The
  // caller keeps `fd`. UNAVAILABLE: the engine has ended.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapShared(int fd, uint64_t bytes) = 0;
  // The same for device memory of another process. Errors: those of Engine::MapSharedDevice.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapSharedDevice(
      const std::string& handle, uint64_t bytes) = 0;
  // The same for the first `bytes` bytes of device memory that its process exported a descriptor
  // of. The caller keeps `fd`. Errors: those of Engine::MapDeviceDescriptor.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapDeviceDescriptor(
      int fd, uint64_t allocation_bytes, uint64_t bytes) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_SESSION_H_
