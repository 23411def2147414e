#include "runtime/device/buffer_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/state/errors.h"

namespace resident {
namespace {

StoredBuffer ToStored(const Buffer& buffer) {
  return {.id = buffer.id,
          .name = buffer.name,
          .device = buffer.device,
          .dtype = static_cast<uint32_t>(buffer.dtype),
          .shape = {buffer.shape.begin(), buffer.shape.end()},
          .size_bytes = buffer.size_bytes};
}

}  // namespace

void BufferTable::AddOwner(ClientId owner) {
  absl::MutexLock lock(&mu_);
  owners_.try_emplace(owner);
}

void BufferTable::RemoveOwner(ClientId owner) {
  // Destroyed outside the lock: this returns the memory to its allocator.
  std::vector<std::shared_ptr<const Buffer>> freed;
  absl::MutexLock lock(&mu_);
  owners_.erase(owner);
  for (auto it = buffers_.begin(); it != buffers_.end();) {
    const auto current = it++;
    if (current->second->owner == owner && !current->second->durable) {
      freed.push_back(std::move(current->second));
      buffers_.erase(current);
    }
  }
}

absl::Status BufferTable::CheckSpec(const BufferSpec& spec, uint64_t* bytes) const {
  if (SizeOf(spec.dtype) == 0) return errors::BadBufferType("dtype is not set");
  if (spec.shape.size() > kMaxRank) {
    return errors::BadBufferType(absl::StrCat("a shape of ", spec.shape.size(), " dimensions"));
  }
  const std::optional<int64_t> count = ElementCount(spec.shape);
  if (!count.has_value() || *count > (int64_t{1} << 58)) {
    return errors::BadBufferType(
        absl::StrCat("the size of shape ", ShapeText(spec.shape), " overflows 64 bits"));
  }
  if (*count == 0) {
    return errors::BadBufferType(absl::StrCat("shape ", ShapeText(spec.shape), " has size 0"));
  }
  if (spec.name.size() > kMaxBufferNameBytes) {
    return errors::BufferNameTooLong(spec.name.size(), kMaxBufferNameBytes);
  }
  *bytes = static_cast<uint64_t>(*count) * SizeOf(spec.dtype);
  return absl::OkStatus();
}

absl::Status BufferTable::Reserve(const BufferSpec& spec, ClientId owner, uint64_t bytes,
                                  DurableUse* use) {
  absl::MutexLock lock(&mu_);
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return errors::NoSession();
  Usage& usage = found->second.usage;
  if (usage.buffers >= limits_.max_buffers) {
    return errors::TooManyBuffers(limits_.max_buffers, /*durable=*/false);
  }
  if (spec.durable && durable_ >= limits_.max_buffers) {
    return errors::TooManyBuffers(limits_.max_buffers, /*durable=*/true);
  }
  const uint64_t limit_bytes = limits_.max_client_memory_mib << 20;
  if (limit_bytes != 0 && (bytes > limit_bytes || usage.bytes > limit_bytes - bytes)) {
    return errors::ClientMemory(bytes, usage.bytes, limits_.max_client_memory_mib);
  }
  ++usage.buffers;
  usage.bytes += bytes;
  if (spec.durable) ++durable_;
  *use = found->second.durable;
  return absl::OkStatus();
}

void BufferTable::Unreserve(ClientId owner, uint64_t bytes, bool durable) {
  if (durable) --durable_;
  const auto found = owners_.find(owner);
  if (found == owners_.end()) return;
  --found->second.usage.buffers;
  found->second.usage.bytes -= bytes;
}

absl::StatusOr<std::shared_ptr<const Buffer>> BufferTable::Insert(std::shared_ptr<Buffer> buffer) {
  absl::MutexLock lock(&mu_);
  const auto owner = owners_.find(buffer->owner);
  if (owner == owners_.end()) {  // Its session has ended meanwhile.
    Unreserve(buffer->owner, buffer->size_bytes, buffer->durable);
    return errors::NoSession();
  }
  const auto restarted = restarted_.find(buffer->device);
  if (restarted != restarted_.end() && buffer->epoch < restarted->second.epoch) {
    Unreserve(buffer->owner, buffer->size_bytes, buffer->durable);
    return errors::DeviceUnavailable(buffer->device, restarted->second.cause);
  }
  owner->second.usage.newest_device = buffer->device;
  buffer->id = next_id_++;
  buffers_[buffer->id] = buffer;
  return std::shared_ptr<const Buffer>(std::move(buffer));
}

absl::StatusOr<std::shared_ptr<const Buffer>> BufferTable::Allocate(const BufferSpec& spec,
                                                                    ClientId owner,
                                                                    EngineSession& session) {
  uint64_t bytes = 0;
  absl::Status status = CheckSpec(spec, &bytes);
  DurableUse use;
  if (status.ok()) status = Reserve(spec, owner, bytes, &use);
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<DurableCopy>> copy(nullptr);
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> memory(nullptr);
  if (spec.durable) copy = DurableCopy::Make(memory_, use.copies, bytes, session.epoch());
  if (copy.ok()) memory = session.AllocateMemory(bytes);
  if (!copy.ok() || !memory.ok()) {
    absl::MutexLock lock(&mu_);
    Unreserve(owner, bytes, spec.durable);
    return copy.ok() ? memory.status() : copy.status();
  }
  auto buffer = std::make_shared<Buffer>();
  buffer->device = spec.device;
  buffer->owner = owner;
  buffer->dtype = spec.dtype;
  buffer->shape = spec.shape;
  buffer->size_bytes = bytes;
  buffer->durable = spec.durable;
  buffer->internal = spec.internal;
  buffer->name = spec.name;
  buffer->quota = spec.quota;
  buffer->memory = *std::move(memory);
  buffer->epoch = session.epoch();
  buffer->host_copy = *std::move(copy);
  return spec.durable && on_disk() ? InsertDurable(std::move(buffer)) : Insert(std::move(buffer));
}

absl::StatusOr<std::shared_ptr<const Buffer>> BufferTable::InsertDurable(
    std::shared_ptr<Buffer> buffer) {
  const ClientId owner = buffer->owner;
  // Other sessions find the buffer when it is inserted; their writes are saved after this one.
  absl::MutexLock save(&save_mu_);
  absl::StatusOr<std::shared_ptr<const Buffer>> inserted = Insert(std::move(buffer));
  if (!inserted.ok()) return inserted;
  // Empty contents: the buffer has not been written to, and needs no space on disk.
  const absl::Status saved = state_->PutBuffer(ToStored(**inserted), {});
  if (saved.ok()) return inserted;
  // Remove it from the table, even if it cannot be removed from the disk.
  state_->DropBuffer((*inserted)->id).IgnoreError();
  Forget(owner, (*inserted)->id).IgnoreError();
  return saved;
}

absl::StatusOr<std::unique_ptr<DurableWrite>> BufferTable::StartWrite(DurableCopy::Kind kind,
                                                                      ClientId client,
                                                                      const Buffer& buffer) {
  if (buffer.memory == nullptr) {
    return errors::LostBuffer(buffer.id, buffer.device, buffer.lost_cause);
  }
  std::shared_ptr<HostUsage> use;
  {
    absl::ReaderMutexLock lock(&mu_);
    const auto found = owners_.find(client);
    if (found == owners_.end()) return errors::NoSession();
    use = found->second.durable.writes;
  }
  return buffer.host_copy->StartWrite(kind, buffer.id, buffer.epoch, std::move(use));
}

absl::Status BufferTable::Save(const Buffer& buffer) {
  if (!on_disk() || buffer.host_copy == nullptr) return absl::OkStatus();
  absl::MutexLock save(&save_mu_);
  {
    absl::ReaderMutexLock lock(&mu_);
    if (!buffers_.contains(buffer.id)) return absl::OkStatus();
  }
  // The contents are read under save_mu_: otherwise a save that began later could write first. They
  // are copied, because uploads must not wait for the disk.
  return state_->PutBuffer(ToStored(buffer), buffer.host_copy->Contents());
}

std::vector<std::string> BufferTable::Load(StateStore* state) {
  std::vector<std::string> warnings;
  state_ = state;
  if (!on_disk()) return warnings;
  for (const StoredBuffer& stored : state_->buffers()) {
    const absl::StatusOr<std::string> contents = state_->ReadBuffer(stored.id);
    if (!contents.ok()) {
      warnings.push_back(absl::StrCat("durable buffer ", stored.id,
                                      " is not restored: ", contents.status().message()));
      continue;
    }
    // Empty contents: the buffer was never written to.
    auto copy = DurableCopy::Restore(
        memory_, stored.size_bytes,
        {reinterpret_cast<const uint8_t*>(contents->data()), contents->size()});
    if (!copy.ok()) {
      warnings.push_back(absl::StrCat("durable buffer ", stored.id,
                                      " is not restored: ", copy.status().message()));
      continue;
    }
    auto buffer = std::make_shared<Buffer>();
    buffer->id = stored.id;
    buffer->device = stored.device;
    buffer->dtype = static_cast<DType>(stored.dtype);
    buffer->shape.assign(stored.shape.begin(), stored.shape.end());
    buffer->size_bytes = stored.size_bytes;
    buffer->durable = true;
    buffer->name = stored.name;
    buffer->lost_cause = "the daemon was restarted, and the device has not started since";
    buffer->host_copy = *std::move(copy);
    absl::MutexLock lock(&mu_);
    ++durable_;
    buffers_[buffer->id] = std::move(buffer);
  }
  absl::MutexLock lock(&mu_);
  next_id_ = std::max(next_id_, state_->highest_buffer() + 1);
  return warnings;
}

absl::StatusOr<std::shared_ptr<const Buffer>> BufferTable::Adopt(const BufferSpec& spec,
                                                                 ClientId owner,
                                                                 EngineSession& session,
                                                                 Buffer::Place place,
                                                                 MapMemory map) {
  uint64_t bytes = 0;
  absl::Status status = CheckSpec(spec, &bytes);
  DurableUse use;
  if (status.ok()) status = Reserve(spec, owner, bytes, &use);
  if (!status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> memory = map(session, bytes);
  if (!memory.ok()) {
    absl::MutexLock lock(&mu_);
    Unreserve(owner, bytes, spec.durable);
    return memory.status();
  }
  auto buffer = std::make_shared<Buffer>();
  buffer->device = spec.device;
  buffer->owner = owner;
  buffer->dtype = spec.dtype;
  buffer->shape = spec.shape;
  buffer->size_bytes = bytes;
  buffer->place = place;
  buffer->map = std::make_shared<const MapMemory>(std::move(map));
  buffer->name = spec.name;
  buffer->quota = spec.quota;
  buffer->memory = *std::move(memory);
  buffer->epoch = session.epoch();
  return Insert(std::move(buffer));
}

absl::StatusOr<std::shared_ptr<const Buffer>> BufferTable::Find(ClientId client,
                                                                uint64_t id) const {
  absl::ReaderMutexLock lock(&mu_);
  const auto found = buffers_.find(id);
  if (found == buffers_.end() || !Visible(*found->second, client)) {
    return errors::UnknownBuffer(id);
  }
  return found->second;
}

absl::Status BufferTable::FindAll(ClientId client, absl::Span<const uint64_t> ids,
                                  FoundBuffers& found, KeptAlive& hold) const {
  found.clear();
  found.reserve(ids.size());
  absl::ReaderMutexLock lock(&mu_);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0 && ids[i] == ids[i - 1]) {
      found.push_back(found.back());
      continue;
    }
    const auto entry = buffers_.find(ids[i]);
    if (entry == buffers_.end() || !Visible(*entry->second, client)) {
      return errors::UnknownBuffer(ids[i]);
    }
    found.push_back(entry->second.get());
    hold.push_back(entry->second);
  }
  return absl::OkStatus();
}

absl::Status BufferTable::Free(ClientId client, uint64_t id) {
  ASSIGN_OR_RETURN(const std::shared_ptr<const Buffer> buffer, Find(client, id));
  if (!buffer->durable || !on_disk()) return Forget(client, id);
  absl::MutexLock save(&save_mu_);
  // Drop it from the disk first: a buffer whose Free was acknowledged must not be restored.
  RETURN_IF_ERROR(state_->DropBuffer(id));
  return Forget(client, id);
}

absl::Status BufferTable::Forget(ClientId client, uint64_t id) {
  std::shared_ptr<const Buffer> freed;  // Destroyed outside the lock.
  absl::MutexLock lock(&mu_);
  const auto found = buffers_.find(id);
  if (found == buffers_.end() || !Visible(*found->second, client)) {
    return errors::UnknownBuffer(id);
  }
  freed = std::move(found->second);
  buffers_.erase(found);
  Unreserve(freed->owner, freed->size_bytes, freed->durable);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<const Buffer>> BufferTable::List(ClientId client) const {
  std::vector<std::shared_ptr<const Buffer>> list;
  {
    absl::ReaderMutexLock lock(&mu_);
    for (const auto& [id, buffer] : buffers_) {
      if (Visible(*buffer, client)) list.push_back(buffer);
    }
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a->id < b->id; });
  return list;
}

BufferTable::Usage BufferTable::usage(ClientId owner) const {
  absl::ReaderMutexLock lock(&mu_);
  const auto found = owners_.find(owner);
  return found == owners_.end() ? Usage() : found->second.usage;
}

uint64_t BufferTable::CountOn(uint32_t device) const {
  absl::ReaderMutexLock lock(&mu_);
  return std::count_if(buffers_.begin(), buffers_.end(),
                       [&](const auto& entry) { return entry.second->device == device; });
}

absl::StatusOr<std::shared_ptr<const DeviceMemory>> BufferTable::MoveMemory(
    const Buffer& old, EngineSession& session, const Restore& restore) {
  if (old.map != nullptr) return (*old.map)(session, old.size_bytes);
  // From now on no write to the earlier engine's memory changes the copy.
  if (!old.durable || !old.host_copy->Mirror(session.epoch())) return nullptr;
  ASSIGN_OR_RETURN(std::shared_ptr<const DeviceMemory> memory,
                   session.AllocateMemory(old.size_bytes));
  RETURN_IF_ERROR(restore(session, *memory, old.size_bytes,
                          [&](uint64_t offset, absl::Span<uint8_t> to) -> absl::Status {
                            return old.host_copy->Read(session.epoch(), offset, to)
                                       ? absl::OkStatus()
                                       : errors::EngineReplacedDuringWrite(old.id);
                          }));
  return memory;
}

std::shared_ptr<Buffer> BufferTable::MoveToEngine(const Buffer& old, EngineSession& session,
                                                  const std::string& cause,
                                                  const Restore& restore) {
  auto buffer = std::make_shared<Buffer>(old);
  buffer->memory = nullptr;
  buffer->lost_cause = cause;
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> memory = MoveMemory(old, session, restore);
  if (!memory.ok()) {
    absl::StrAppend(&buffer->lost_cause, "; it could not be restored: ", memory.status().message());
  } else if (*memory != nullptr) {
    buffer->memory = *std::move(memory);
    buffer->epoch = session.epoch();
    buffer->lost_cause.clear();
  }
  return buffer;
}

void BufferTable::OnRestart(uint32_t device, EngineSession& session, const std::string& cause,
                            const Restore& restore) {
  std::vector<std::shared_ptr<const Buffer>> affected;
  {
    absl::MutexLock lock(&mu_);
    Restarted& restarted = restarted_[device];
    // A newer engine may have started while this call waited.
    if (restarted.epoch > session.epoch()) return;
    restarted = {session.epoch(), cause};
    for (const auto& [id, buffer] : buffers_) {
      if (buffer->device == device && buffer->epoch < session.epoch()) affected.push_back(buffer);
    }
  }
  for (const std::shared_ptr<const Buffer>& old : affected) {
    std::shared_ptr<const Buffer> buffer = MoveToEngine(*old, session, cause, restore);
    std::shared_ptr<const Buffer> previous;  // Destroyed outside the lock.
    absl::MutexLock lock(&mu_);
    if (restarted_[device].epoch != session.epoch()) return;  // The newer engine's call restores.
    const auto found = buffers_.find(old->id);
    if (found != buffers_.end()) previous = std::exchange(found->second, std::move(buffer));
  }
}

}  // namespace resident
