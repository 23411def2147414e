// Regions: clients' shared memory that requests of the Open Inference Protocol name
// (SystemSharedMemoryRegister, CudaSharedMemoryRegister). The protocol has no sessions, so that a
// region belongs to the daemon: every caller may name it. Therefore regions are accepted only where
// shared memory may be imported by its name, that is, where callers have no identities
// (Core::named_shared_memory). A CUDA handle proves as little as a name.
//
// A region is a buffer of the owner kBufferOwner, which counts like any buffer, and the descriptor
// of the memory, or the CUDA handle. Tasks read and write the buffer in place. Values that the
// front end needs itself are read and written through the descriptor, never through a mapping,
// because the client may truncate the memory at any time. The front end has no access to CUDA
// memory.
//
// A region ends when it is unregistered, or when it was not used for `idle`. A request that uses it
// keeps it until its tasks have ended, and Unregister waits for these requests.
//
// Thread safety: all members may be called from any thread. Register waits for an engine.
//
//   ASSIGN_OR_RETURN(const std::shared_ptr<Region> region, regions->Find("input"));
//   column->add_buffer_ids(region->buffer());
#ifndef RESIDENT_SERVER_INFERENCE_REGIONS_H_
#define RESIDENT_SERVER_INFERENCE_REGIONS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "grpcpp/alarm.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/device/buffer_table.h"
#include "server/buffers/buffers.h"
#include "server/core/shared_slots.h"
#include "server/workload/placement.h"

namespace resident {

enum class RegionKind : uint8_t {
  kSystem,  // A POSIX shared-memory object.
  kCuda,    // Device memory of another process.
};

// What a client registers.
struct RegionSpec {
  RegionKind kind = RegionKind::kSystem;
  std::string name;  // Unique among the regions of both kinds.
  // kSystem: the name of the shared-memory object, and where the region begins in it.
  std::string key = {};
  uint64_t offset = 0;
  uint64_t bytes = 0;
  // kCuda: of kDeviceHandleBytes, and the index of the device.
  std::string handle = {};
  int64_t device = 0;
};

class Region {
 public:
  // The memory. Its buffer keeps it, so that it can be mapped into each engine.
  struct Object {
    UniqueFd fd;         // RegionKind::kSystem.
    std::string handle;  // RegionKind::kCuda.
    SharedSlots::Ticket slot;
  };

  Region(BufferTable& buffers, RegionSpec spec, std::shared_ptr<const Object> object,
         const Buffer& buffer);
  // Frees the buffer, and ends the calls that wait for this region.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  const RegionSpec& spec() const { return spec_; }
  // The buffer's id; it begins at the beginning of the object.
  uint64_t buffer() const { return buffer_; }
  uint32_t device() const { return device_; }

  // Offsets are relative to the region. FAILED_PRECONDITION: the client truncated the memory.
  // REQUIRES: RegionKind::kSystem.
  absl::StatusOr<std::string> Read(uint64_t offset, uint64_t bytes) const;
  absl::Status Write(uint64_t offset, const std::string& bytes) const;

 private:
  friend class Regions;

  BufferTable& buffers_;
  const RegionSpec spec_;
  const std::shared_ptr<const Object> object_;
  const uint64_t buffer_;
  const uint32_t device_;
  // The end of the last use.
  std::atomic<Clock::time_point> used_ = Clock::now();
  // Guarded by Regions::mu_ until the region is removed. Destroyed with the region.
  std::vector<std::shared_ptr<const void>> waiting_;
};

class Regions : public std::enable_shared_from_this<Regions> {
 public:
  // The owner of the regions' buffers; the ids of all clients are smaller.
  static constexpr ClientId kBufferOwner = UINT64_MAX - 1;

  // `idle` 0: regions do not end by themselves.
  Regions(Buffers& buffers, std::chrono::milliseconds idle);

  // Unregisters all regions. No timer runs afterwards. REQUIRES: nothing is registered any more.
  void Close();

  // Errors: FAILED_PRECONDITION (shared memory is not accepted by its name), ALREADY_EXISTS,
  // RESOURCE_EXHAUSTED, those of Buffers.ImportShared and of Engine::MapSharedDevice. Waits for an
  // engine.
  absl::Status Register(RegionSpec spec, const Client& client);
  // Removes the region of this kind; all of them if the name is empty. Notified when no request
  // uses them.
  std::shared_ptr<absl::Notification> Unregister(RegionKind kind, const std::string& name);
  // The region of this kind; all of them if the name is empty. NOT_FOUND.
  absl::StatusOr<std::vector<RegionSpec>> List(RegionKind kind, const std::string& name) const;

  // For a request, which uses the region until the last copy of the pointer is destroyed.
  // NOT_FOUND. FAILED_PRECONDITION: an engine could not map it.
  absl::StatusOr<std::shared_ptr<Region>> Find(const std::string& name);

 private:
  absl::Status CheckAllowed(RegionKind kind) const;
  // The object of a region, which holds a slot of the client.
  absl::StatusOr<std::shared_ptr<Region::Object>> Open(const RegionSpec& spec,
                                                       const Client& client) const;
  // Where the region's memory is mapped. All system regions are on one device, so that a request
  // may use several of them.
  absl::StatusOr<Placement> ChoosePlace(const RegionSpec& spec) const;
  // Creates the region and its buffer.
  absl::StatusOr<std::shared_ptr<Region>> Map(const RegionSpec& spec, const Client& client);
  // Removes regions that were not used for idle_, and calls itself again later.
  void RemoveIdle();
  void StartTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Buffers& buffers_;
  Core& core_;
  const std::chrono::milliseconds idle_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, std::shared_ptr<Region>> regions_ ABSL_GUARDED_BY(mu_);
  bool timing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int removing_ ABSL_GUARDED_BY(mu_) = 0;  // Timers that destroy regions.
  std::unique_ptr<grpc::Alarm> timer_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_REGIONS_H_
