#include "runtime/device/live_session.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr uint64_t kMemoryGranule = 256;
constexpr uint64_t kStagingGranule = 64;

absl::Status NoRoom(const char* what, uint64_t bytes, const AddressAllocator& allocator,
                    const char* fix) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " is full: ", bytes, " bytes were requested, ", allocator.free_bytes(),
                   " of ", allocator.size_bytes(), " are free, ", allocator.largest_free_bytes(),
                   " of them in one piece. Fix: ", fix));
}

}  // namespace

struct LiveSession::HeldMemory : DeviceMemory {
  HeldMemory(std::shared_ptr<LiveSession> from, uint64_t address, uint64_t size_bytes)
      : DeviceMemory{address, size_bytes}, session(std::move(from)) {}
  ~HeldMemory() { session->FreeMemory(address); }
  const std::shared_ptr<LiveSession> session;
};

struct LiveSession::HeldStaging : StagingMemory {
  HeldStaging(std::shared_ptr<LiveSession> from, uint8_t* host, uint64_t address,
              uint64_t size_bytes)
      : StagingMemory{host, address, size_bytes}, session(std::move(from)) {}
  ~HeldStaging() { session->FreeStaging(address); }
  const std::shared_ptr<LiveSession> session;
};

struct LiveSession::HeldMapping : DeviceMemory {
  HeldMapping(std::shared_ptr<LiveSession> from, const SharedMapping& mapping, uint64_t size_bytes)
      : DeviceMemory{mapping.address, size_bytes}, session(std::move(from)), id(mapping.id) {}
  ~HeldMapping() { session->ReleaseMapping(id); }
  const std::shared_ptr<LiveSession> session;
  const uint64_t id;
};

LiveSession::LiveSession(uint64_t epoch, const EngineInfo& info,
                         std::shared_ptr<SharedRegion> region, std::shared_ptr<EngineClient> client)
    : epoch_(epoch),
      info_(info),
      region_(std::move(region)),
      memory_(info.memory_address, info.memory_bytes, kMemoryGranule),
      staging_(info.region_address + region_->layout().staging, region_->layout().staging_bytes,
               kStagingGranule),
      client_(std::move(client)) {}

absl::StatusOr<std::shared_ptr<const DeviceMemory>> LiveSession::AllocateMemory(uint64_t bytes) {
  std::optional<uint64_t> address;
  {
    absl::MutexLock lock(&memory_mu_);
    address = memory_.Allocate(bytes);
    if (!address) {
      return NoRoom("device memory", bytes, memory_, "free buffers, or raise --device_memory_mib");
    }
  }
  return std::make_shared<HeldMemory>(shared_from_this(), *address, bytes);
}

uint64_t LiveSession::memory_used_bytes() const {
  absl::MutexLock lock(&memory_mu_);
  return memory_.used_bytes();
}

absl::StatusOr<std::shared_ptr<const StagingMemory>> LiveSession::AllocateStaging(uint64_t bytes) {
  std::optional<uint64_t> address;
  {
    absl::MutexLock lock(&staging_mu_);
    address = staging_.Allocate(bytes);
    if (!address) {
      return NoRoom("staging memory", bytes, staging_,
                    "wait for results, send less inline data, or raise --staging_mib");
    }
  }
  return std::make_shared<HeldStaging>(
      shared_from_this(), region_->base() + (*address - info_.region_address), *address, bytes);
}

absl::StatusOr<std::shared_ptr<const DeviceMemory>> LiveSession::MapShared(int fd, uint64_t bytes) {
  struct stat object;
  if (fstat(fd, &object) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a shared-memory object: ", strerror(errno)));
  }
  // A task that accessed memory beyond the object's end would fault.
  if (bytes == 0 || bytes > static_cast<uint64_t>(object.st_size)) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes of a shared-memory object of ", object.st_size,
                     " bytes were requested. Fix: use a size from 1 to the object's"));
  }
  ASSIGN_OR_RETURN(const auto client, FindClient());
  ASSIGN_OR_RETURN(const SharedMapping mapping, client->MapShared(fd, bytes));
  return std::make_shared<HeldMapping>(shared_from_this(), mapping, bytes);
}

absl::StatusOr<std::shared_ptr<const DeviceMemory>> LiveSession::MapSharedDevice(
    const std::string& handle, uint64_t bytes) {
  ASSIGN_OR_RETURN(const auto client, FindClient());
  ASSIGN_OR_RETURN(const SharedMapping mapping, client->MapSharedDevice(handle, bytes));
  return std::make_shared<HeldMapping>(shared_from_this(), mapping, bytes);
}

absl::StatusOr<std::shared_ptr<const DeviceMemory>> LiveSession::MapDeviceDescriptor(
    int fd, uint64_t allocation_bytes, uint64_t bytes) {
  if (bytes == 0 || bytes > allocation_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes of device memory of ", allocation_bytes,
                     " bytes were requested. Fix: use a size from 1 to the allocation's"));
  }
  ASSIGN_OR_RETURN(const auto client, FindClient());
  ASSIGN_OR_RETURN(const SharedMapping mapping, client->MapDeviceDescriptor(fd, allocation_bytes));
  return std::make_shared<HeldMapping>(shared_from_this(), mapping, bytes);
}

absl::StatusOr<std::shared_ptr<EngineClient>> LiveSession::FindClient() {
  absl::MutexLock lock(&client_mu_);
  if (client_ == nullptr) {
    return absl::UnavailableError(
        "the engine that the memory was to be shared with has ended. Fix: try again");
  }
  return client_;
}

void LiveSession::End() {
  std::shared_ptr<EngineClient> client;  // Destroyed after the lock is released.
  absl::MutexLock lock(&client_mu_);
  client_.swap(client);
}

void LiveSession::FreeMemory(uint64_t address) {
  absl::MutexLock lock(&memory_mu_);
  memory_.Free(address);
}

void LiveSession::FreeStaging(uint64_t address) {
  absl::MutexLock lock(&staging_mu_);
  staging_.Free(address);
}

void LiveSession::ReleaseMapping(uint64_t mapping) {
  std::shared_ptr<EngineClient> client;
  {
    absl::MutexLock lock(&client_mu_);
    client = client_;
  }
  if (client != nullptr) client->StartUnmapShared(mapping);
}

}  // namespace resident
