// EngineSession: the life of one engine process, and the memory that batches take of it.
//
// Each session has an epoch: addresses belong to a session and are invalid after it. The object
// stays usable after its engine has ended; what it then hands out is only memory of this process.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_ENGINE_SESSION_H_
#define RESIDENT_RUNTIME_DEVICE_ENGINE_SESSION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "runtime/engine/engine.h"

namespace resident {

// Memory that returns to its allocator with the last reference.
struct DeviceMemory {
  uint64_t address;     // As operators see it.
  uint64_t size_bytes;  // As it was requested.
};
struct StagingMemory {
  uint8_t* host;     // As this process sees it.
  uint64_t address;  // As operators see it.
  uint64_t size_bytes;
};

class EngineSession {
 public:
  virtual ~EngineSession() = default;

  virtual uint64_t epoch() const = 0;
  virtual const EngineInfo& info() const = 0;

  // Device memory for a buffer, aligned to 256 bytes. RESOURCE_EXHAUSTED: how much was requested,
  // is free, and is free in one piece.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> AllocateMemory(uint64_t bytes) = 0;
  virtual uint64_t memory_used_bytes() const = 0;

  // Staging memory for what a batch carries inline, aligned to 64 bytes. Its contents are not
  // initialised. RESOURCE_EXHAUSTED as above.
  virtual absl::StatusOr<std::shared_ptr<const StagingMemory>> AllocateStaging(uint64_t bytes) = 0;

  // Maps a client's shared-memory object for operators, until the last reference is gone. The
  // caller keeps `fd`. UNAVAILABLE: the engine has ended.
  virtual absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapShared(int fd, uint64_t bytes) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ENGINE_SESSION_H_
