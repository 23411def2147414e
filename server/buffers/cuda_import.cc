#include "server/buffers/cuda_import.h"

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "runtime/base/process/unique_fd.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/buffers/errors.h"

namespace resident {
namespace {

// The memory of a buffer, kept until the buffer is destroyed, so that it can be mapped into the
// next engine.
struct CudaMemory {
  UniqueFd fd;
  std::string handle;  // In place of a descriptor.
  uint64_t allocation_bytes = 0;
  SharedSlots::Ticket slot;
};

absl::StatusOr<Placement> FindGpu(const Core& core, const std::string& uuid) {
  bool has_gpu = false;
  for (size_t i = 0; i < core.devices.size(); ++i) {
    const EngineInfo info = core.devices[i]->snapshot().info;
    if (!info.traits.maps_device_memory) continue;
    has_gpu = true;
    if (info.uuid == uuid) {
      return PlaceBuffer(core.devices, static_cast<uint32_t>(i), std::nullopt, 0);
    }
  }
  return has_gpu ? errors::NoGpuWithUuid(uuid) : errors::NoGpu();
}

}  // namespace

absl::Status CheckCudaImport(const Buffers& buffers, const v1::ImportCudaRequest& request) {
  if (!buffers.allow_shared_memory) return errors::SharedMemoryDisabled();
  if (request.descriptor_token().empty() == request.ipc_handle().empty()) {
    return errors::CudaTokenOrHandle(!request.ipc_handle().empty());
  }
  const bool local_socket = !buffers.core.local_address.empty();
  if (request.ipc_handle().empty()) {
    return local_socket ? absl::OkStatus() : errors::NoLocalSocket();
  }
  if (!buffers.named_shared_memory) {
    return errors::CudaNotByHandle(buffers.core.credentials ? "the daemon's callers have identities"
                                                            : "the daemon serves other machines",
                                   local_socket);
  }
  if (request.ipc_handle().size() != kDeviceHandleBytes) {
    return errors::CudaHandleBytes(request.ipc_handle().size(), kDeviceHandleBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Buffer>> ImportCuda(Buffers& buffers, const Client& client,
                                                         const v1::ImportCudaRequest& request) {
  assert(CheckCudaImport(buffers, request).ok());
  Core& core = buffers.core;
  const auto memory = std::make_shared<CudaMemory>();
  if (request.ipc_handle().empty()) {
    ASSIGN_OR_RETURN(const int passed,
                     buffers.passed_descriptors->Take(PassedDescriptors::Kind::kDeviceMemory,
                                                      request.descriptor_token(), client.session(),
                                                      PassedDescriptors::Clock::now()));
    memory->fd.Reset(passed);
  }
  memory->handle = request.ipc_handle();
  memory->allocation_bytes = request.allocation_bytes();
  BufferSpec spec;
  RETURN_IF_ERROR(ReadBufferSpec(request.dtype(), request.shape(), &spec));
  RETURN_IF_ERROR(CheckFits(spec, "allocation_bytes", request.allocation_bytes()));
  RETURN_IF_ERROR(ReserveBufferBytes(client, &spec));
  ASSIGN_OR_RETURN(memory->slot,
                   buffers.shared_memory_slots.Take(NameHolder(client.account(), client.peer())));
  ASSIGN_OR_RETURN(const Placement place, FindGpu(core, request.device_uuid()));
  spec.device = place.device;
  return core.buffers.Adopt(spec, client.id(), *place.session, Buffer::Place::kImportedDevice,
                            [memory](EngineSession& session, uint64_t bytes) {
                              return memory->handle.empty()
                                         ? session.MapDeviceDescriptor(
                                               memory->fd.get(), memory->allocation_bytes, bytes)
                                         : session.MapSharedDevice(memory->handle, bytes);
                            });
}

}  // namespace resident
