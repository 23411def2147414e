// LiveSession: the EngineSession of an engine process: allocates its device memory and staging
// memory, and maps clients' shared memory through its control connection.
//
// Allocated memory holds a reference to the session, and the session to the region's mapping,
// so memory of this process stays valid while there are references to it.
//
// A mapping is released by a call to the engine, without waiting for the response: the last
// reference is often released by a queue that must not block, and the engine may have stopped.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_DEVICE_LIVE_SESSION_H_
#define RESIDENT_RUNTIME_DEVICE_LIVE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/address_allocator.h"
#include "runtime/device/engine_session.h"
#include "runtime/engine/control/engine_client.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class LiveSession final : public EngineSession, public std::enable_shared_from_this<LiveSession> {
 public:
  LiveSession(uint64_t epoch, const EngineInfo& info, std::shared_ptr<SharedRegion> region,
              std::shared_ptr<EngineClient> client);

  uint64_t epoch() const override { return epoch_; }
  const EngineInfo& info() const override { return info_; }
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> AllocateMemory(uint64_t bytes) override;
  uint64_t memory_used_bytes() const override;
  absl::StatusOr<std::shared_ptr<const StagingMemory>> AllocateStaging(uint64_t bytes) override;
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapShared(int fd, uint64_t bytes) override;
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapSharedDevice(const std::string& handle,
                                                                      uint64_t bytes) override;
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> MapDeviceDescriptor(int fd,
                                                                          uint64_t allocation_bytes,
                                                                          uint64_t bytes) override;

  // The engine has ended: no more calls are sent to it.
  void End();

 private:
  struct HeldMemory;
  struct HeldStaging;
  struct HeldMapping;

  // The connection to the engine. UNAVAILABLE: the engine has ended.
  absl::StatusOr<std::shared_ptr<EngineClient>> FindClient();
  void FreeMemory(uint64_t address);
  void FreeStaging(uint64_t address);
  void ReleaseMapping(uint64_t mapping);

  const uint64_t epoch_;
  const EngineInfo info_;
  const std::shared_ptr<SharedRegion> region_;

  mutable absl::Mutex memory_mu_;
  AddressAllocator memory_ ABSL_GUARDED_BY(memory_mu_);
  absl::Mutex staging_mu_;
  AddressAllocator staging_ ABSL_GUARDED_BY(staging_mu_);
  absl::Mutex client_mu_;
  std::shared_ptr<EngineClient> client_ ABSL_GUARDED_BY(client_mu_);  // Null after End().
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_LIVE_SESSION_H_
