
#include "server/inference/regions.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/buffers/buffers.h"
#include "server/buffers/errors.h"
#include "server/inference/errors.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

// Between two scans for idle regions.
constexpr std::chrono::milliseconds kMinPause{10};

// Notifies when it is destroyed.
class NotifyAtEnd {
 public:
  explicit NotifyAtEnd(std::shared_ptr<absl::Notification> ended) : ended_(std::move(ended)) {}
  ~NotifyAtEnd() { ended_->Notify(); }
  NotifyAtEnd(const NotifyAtEnd&) = delete;
  NotifyAtEnd& operator=(const NotifyAtEnd&) = delete;

 private:
  const std::shared_ptr<absl::Notification> ended_;
};

// The object's name as shm_open takes it: clients also send it without the slash.
std::string ObjectName(const std::string& key) {
  return absl::StrCat("/", key.substr(std::min(key.find_first_not_of('/'), key.size())));
}

}  // namespace

Region::Region(BufferTable& buffers, RegionSpec spec, std::shared_ptr<const Object> object,
               const Buffer& buffer)
    : buffers_(buffers),
      spec_(std::move(spec)),
      object_(std::move(object)),
      buffer_(buffer.id),
      device_(buffer.device) {}

Region::~Region() { (void)buffers_.Free(Regions::kBufferOwner, buffer_); }

absl::StatusOr<std::string> Region::Read(uint64_t offset, uint64_t bytes) const {
  assert(spec_.kind == RegionKind::kSystem);
  std::string data(bytes, '\0');
  for (uint64_t have = 0; have < bytes;) {
    const ssize_t got = pread(object_->fd.get(), data.data() + have, bytes - have,
                              static_cast<off_t>(spec_.offset + offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return errors::RegionTruncated(spec_.name);
    have += static_cast<uint64_t>(got);
  }
  return data;
}

absl::Status Region::Write(uint64_t offset, const std::string& bytes) const {
  assert(spec_.kind == RegionKind::kSystem);
  // A write would extend memory that was truncated.
  struct stat object {};
  if (fstat(object_->fd.get(), &object) != 0 ||
      static_cast<uint64_t>(object.st_size) < spec_.offset + offset + bytes.size()) {
    return errors::RegionTruncated(spec_.name);
  }
  for (uint64_t done = 0; done < bytes.size();) {
    const ssize_t wrote = pwrite(object_->fd.get(), bytes.data() + done, bytes.size() - done,
                                 static_cast<off_t>(spec_.offset + offset + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return errors::RegionTruncated(spec_.name);
    done += static_cast<uint64_t>(wrote);
  }
  return absl::OkStatus();
}

Regions::Regions(Buffers& buffers, std::chrono::milliseconds idle)
    : buffers_(buffers), core_(buffers.core), idle_(idle) {
  core_.buffers.AddOwner(kBufferOwner);
}

absl::Status Regions::CheckAllowed(RegionKind kind) const {
  if (!buffers_.allow_shared_memory) return errors::SharedMemoryDisabled();
  if (buffers_.named_shared_memory) return absl::OkStatus();
  const char* const why = core_.credentials ? "the daemon's callers have identities"
                                            : "the daemon serves other machines";
  if (kind == RegionKind::kCuda) return errors::CudaRegionsNotAccepted(why);
  return errors::SharedMemoryNotByName(why, !core_.local_address.empty());
}

absl::StatusOr<std::shared_ptr<Region::Object>> Regions::Open(const RegionSpec& spec,
                                                              const Client& client) const {
  auto object = std::make_shared<Region::Object>();
  ASSIGN_OR_RETURN(object->slot,
                   buffers_.shared_memory_slots.Take(NameHolder(client.account(), client.peer())));
  if (spec.kind == RegionKind::kCuda) {
    object->handle = spec.handle;
    return object;
  }
  ASSIGN_OR_RETURN(const int fd, OpenSharedMemory(ObjectName(spec.key), spec.offset + spec.bytes));
  object->fd.Reset(fd);
  return object;
}

absl::StatusOr<Placement> Regions::ChoosePlace(const RegionSpec& spec) const {
  if (spec.kind == RegionKind::kCuda) {
    if (spec.device < 0 || static_cast<uint64_t>(spec.device) >= core_.devices.size()) {
      return errors::UnknownDevice(spec.device, core_.devices.size());
    }
    const auto device = static_cast<uint32_t>(spec.device);
    ASSIGN_OR_RETURN(Placement place, PlaceBuffer(core_.devices, device, std::nullopt, 0));
    const EngineTraits& traits = place.session->info().traits;
    if (!traits.maps_device_memory) return errors::CudaRegionsUnsupported(device, traits.engine);
    return place;
  }
  std::optional<uint32_t> wanted;  // That of the other system regions.
  std::optional<uint32_t> home;    // Without one, the first device of those that have regions.
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [name, region] : regions_) {
      if (region->spec().kind == RegionKind::kSystem) wanted = region->device();
      if (!home.has_value() || region->device() < *home) home = region->device();
    }
  }
  return PlaceBuffer(core_.devices, wanted, home, 0);
}

absl::StatusOr<std::shared_ptr<Region>> Regions::Map(const RegionSpec& spec, const Client& client) {
  const uint64_t bytes = spec.offset + spec.bytes;
  ASSIGN_OR_RETURN(const std::shared_ptr<Region::Object> object, Open(spec, client));
  BufferSpec buffer;
  buffer.dtype = DType::kU8;
  buffer.shape = {static_cast<int64_t>(bytes)};
  buffer.name = spec.name;
  ASSIGN_OR_RETURN(buffer.quota, client.account().ReserveBufferBytes(bytes));
  ASSIGN_OR_RETURN(const Placement place, ChoosePlace(spec));
  buffer.device = place.device;
  ASSIGN_OR_RETURN(const auto adopted,
                   core_.buffers.Adopt(buffer, kBufferOwner, *place.session,
                                       object->handle.empty() ? Buffer::Place::kHost
                                                              : Buffer::Place::kImportedDevice,
                                       [object](EngineSession& session, uint64_t size) {
                                         return object->handle.empty()
                                                    ? session.MapShared(object->fd.get(), size)
                                                    : session.MapSharedDevice(object->handle, size);
                                       }));
  return std::make_shared<Region>(core_.buffers, spec, object, *adopted);
}

absl::Status Regions::Register(RegionSpec spec, const Client& client) {
  RETURN_IF_ERROR(CheckAllowed(spec.kind));
  if (core_.gate.draining()) return errors::Draining();
  if (spec.name.empty() || spec.name.size() > kMaxBufferNameBytes) {
    return errors::RegionName(spec.name.size(), kMaxBufferNameBytes);
  }
  constexpr uint64_t kMaxBytes = uint64_t{1} << 59;
  if (spec.bytes == 0 || spec.bytes > kMaxBytes || spec.offset > kMaxBytes) {
    return errors::RegionSize(spec.name, spec.offset, spec.bytes);
  }
  if (spec.kind == RegionKind::kCuda && spec.handle.size() != kDeviceHandleBytes) {
    return errors::CudaHandleSize(spec.name, spec.handle.size(), kDeviceHandleBytes);
  }
  {
    absl::MutexLock lock(&mu_);
    if (regions_.contains(spec.name)) return errors::RegionExists(spec.name);
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Region> region, Map(spec, client));
  absl::MutexLock lock(&mu_);
  assert(!closed_);
  // Another call may have registered the name meanwhile.
  if (!regions_.emplace(spec.name, region).second) return errors::RegionExists(spec.name);
  StartTimer();
  return absl::OkStatus();
}

std::shared_ptr<absl::Notification> Regions::Unregister(RegionKind kind, const std::string& name) {
  auto unused = std::make_shared<absl::Notification>();
  const auto ended = std::make_shared<NotifyAtEnd>(unused);
  std::vector<std::shared_ptr<Region>> removed;  // Destroyed after the lock is released.
  absl::MutexLock lock(&mu_);
  for (auto it = regions_.begin(); it != regions_.end();) {
    const auto current = it++;
    if (current->second->spec().kind != kind) continue;
    if (!name.empty() && current->first != name) continue;
    current->second->waiting_.push_back(ended);
    removed.push_back(std::move(current->second));
    regions_.erase(current);
  }
  return unused;
}

absl::StatusOr<std::vector<RegionSpec>> Regions::List(RegionKind kind,
                                                      const std::string& name) const {
  std::vector<RegionSpec> specs;
  absl::MutexLock lock(&mu_);
  for (const auto& [key, region] : regions_) {
    if (region->spec().kind != kind) continue;
    if (name.empty() || key == name) specs.push_back(region->spec());
  }
  if (specs.empty() && !name.empty()) return errors::UnknownRegion(name);
  return specs;
}

absl::StatusOr<std::shared_ptr<Region>> Regions::Find(const std::string& name) {
  absl::MutexLock lock(&mu_);
  const auto found = regions_.find(name);
  if (found == regions_.end()) return errors::UnknownRegion(name);
  const std::shared_ptr<Region>& region = found->second;
  ASSIGN_OR_RETURN(const auto buffer, core_.buffers.Find(kBufferOwner, region->buffer()));
  if (buffer->memory == nullptr) return errors::RegionLost(name, buffer->lost_cause);
  region->used_ = Clock::now();
  return std::shared_ptr<Region>(region.get(),
                                 [region](Region* used) { used->used_ = Clock::now(); });
}

void Regions::StartTimer() {
  if (closed_ || timing_ || idle_.count() == 0 || regions_.empty()) return;
  timing_ = true;
  Clock::time_point oldest = Clock::time_point::max();
  for (const auto& [name, region] : regions_) oldest = std::min(oldest, region->used_.load());
  const auto left = std::max<Clock::duration>(oldest + idle_ - Clock::now(), kMinPause);
  // A new object, because this may be the callback of the previous one.
  timer_ = std::make_unique<grpc::Alarm>();
  timer_->Set(std::chrono::system_clock::now() +
                  std::chrono::duration_cast<std::chrono::system_clock::duration>(left),
              [weak = weak_from_this()](bool passed) {
                const std::shared_ptr<Regions> self = weak.lock();
                if (passed && self != nullptr) self->RemoveIdle();
              });
}

void Regions::RemoveIdle() {
  std::vector<std::shared_ptr<Region>> removed;  // Destroyed after the lock is released.
  {
    absl::MutexLock lock(&mu_);
    timing_ = false;
    if (closed_) return;
    const Clock::time_point now = Clock::now();
    for (auto it = regions_.begin(); it != regions_.end();) {
      const auto current = it++;
      // A region that a request uses has another reference.
      if (current->second.use_count() > 1) current->second->used_ = now;
      if (now - current->second->used_.load() < idle_) continue;
      removed.push_back(std::move(current->second));
      regions_.erase(current);
    }
    ++removing_;
    StartTimer();
  }
  removed.clear();
  absl::MutexLock lock(&mu_);
  --removing_;
}

void Regions::Close() {
  std::unique_ptr<grpc::Alarm> timer;
  absl::flat_hash_map<std::string, std::shared_ptr<Region>> removed;
  const auto removed_idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return removing_ == 0; };
  absl::MutexLock lock(&mu_);
  closed_ = true;
  timer = std::move(timer_);
  removed.swap(regions_);
  mu_.Await(absl::Condition(&removed_idle));
}

}  // namespace resident
