#include "server/buffers/buffer_access.h"

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/workload/errors.h"

namespace resident {

void DescribeBuffer(const Buffer& buffer, v1::BufferInfo* info) {
  info->set_id(buffer.id);
  info->set_device(buffer.device);
  info->set_dtype(static_cast<v1::DType>(buffer.dtype));
  for (const int64_t dim : buffer.shape) info->add_shape(static_cast<uint64_t>(dim));
  info->set_size_bytes(buffer.size_bytes);
  info->set_durable(buffer.durable);
  info->set_shared(buffer.shared());
  info->set_name(buffer.name);
}

absl::StatusOr<Placement> ChooseBufferDevice(const Core& core, const Client& client,
                                             std::optional<uint32_t> wanted, uint64_t bytes) {
  const BufferTable::Usage usage = core.buffers.usage(client.id());
  std::optional<uint32_t> home;
  if (usage.buffers > 0) home = usage.newest_device;
  return PlaceBuffer(core.devices, wanted, home, bytes);
}

absl::Status ReserveBufferBytes(const Client& client, BufferSpec* spec) {
  const auto elements = ElementCount(spec->shape);
  if (!elements.has_value() || spec->dtype == DType::kInvalid) return absl::OkStatus();
  ASSIGN_OR_RETURN(auto held, client.account().ReserveBufferBytes(static_cast<uint64_t>(*elements) *
                                                                  SizeOf(spec->dtype)));
  spec->quota = std::move(held);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Buffer>> AllocateBuffer(Core& core, const Client& client,
                                                             std::optional<uint32_t> wanted,
                                                             BufferSpec spec) {
  // The buffer table refuses one that is too large for any device.
  const uint64_t elements = static_cast<uint64_t>(ElementCount(spec.shape).value_or(0));
  ASSIGN_OR_RETURN(const Placement place,
                   ChooseBufferDevice(core, client, wanted, elements * SizeOf(spec.dtype)));
  spec.device = place.device;
  RETURN_IF_ERROR(ReserveBufferBytes(client, &spec));
  return core.buffers.Allocate(spec, client.id(), *place.session);
}

absl::StatusOr<std::shared_ptr<EngineSession>> FindEngine(const Core& core, const Buffer& buffer) {
  if (buffer.memory == nullptr) {
    return errors::LostBuffer(buffer.id, buffer.device, buffer.lost_cause);
  }
  std::shared_ptr<EngineSession> session = core.devices[buffer.device]->session();
  if (session == nullptr || session->epoch() != buffer.epoch) {
    return errors::DeviceUnavailable(buffer.device, "its engine is being replaced");
  }
  return session;
}

absl::Status CopyError(const std::string& what, const Batch& copy) {
  if (copy.status[0] == TaskStatus::kCancelled) return errors::Cancelled();
  return errors::TransferFailed(what, copy.cause.empty() ? "the copy failed" : copy.cause);
}

}  // namespace resident
