#include "server/buffers/buffers.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/buffers/errors.h"
#include "server/connections/errors.h"
#include "server/workload/errors.h"

namespace resident {

void DescribeBuffer(const Buffer& buffer, v1::BufferInfo* info) {
  info->set_id(buffer.id);
  info->set_device(buffer.device);
  info->set_dtype(static_cast<v1::DType>(buffer.dtype));
  for (const int64_t dim : buffer.shape) info->add_shape(static_cast<uint64_t>(dim));
  info->set_size_bytes(buffer.size_bytes);
  info->set_durable(buffer.durable);
  info->set_shared(buffer.place == Buffer::Place::kHost);
  info->set_imported(buffer.place == Buffer::Place::kImportedDevice);
  info->set_name(buffer.name);
}

absl::Status ReadBufferSpec(int dtype, const google::protobuf::RepeatedField<uint64_t>& shape,
                            BufferSpec* spec) {
  if (!v1::DType_IsValid(dtype)) {
    return errors::BadBufferType(absl::StrCat("dtype has the unknown value ", dtype));
  }
  spec->dtype = static_cast<DType>(dtype);
  if (shape.size() > static_cast<int>(kMaxRank)) {
    return errors::BadBufferType(absl::StrCat("a shape of ", shape.size(), " dimensions"));
  }
  for (const uint64_t dim : shape) {
    if (dim > (uint64_t{1} << 60)) {
      return errors::BadBufferType(absl::StrCat("dimension ", dim, " is too large"));
    }
    spec->shape.push_back(static_cast<int64_t>(dim));
  }
  return absl::OkStatus();
}

absl::Status CheckFits(const BufferSpec& spec, const char* field, uint64_t bytes) {
  const auto elements = ElementCount(spec.shape);
  const uint64_t size = SizeOf(spec.dtype == DType::kInvalid ? DType::kU8 : spec.dtype);
  if (elements.has_value() && static_cast<uint64_t>(*elements) <= bytes / size) {
    return absl::OkStatus();
  }
  return errors::MemoryShape(ShapeText(spec.shape), DTypeName(spec.dtype), field, bytes);
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

absl::Status FindOutcome(const std::string& what, const Batch& piece) {
  if (piece.status[0] == TaskStatus::kOk) return absl::OkStatus();
  if (piece.status[0] == TaskStatus::kCancelled) return errors::Cancelled();
  return errors::TransferFailed(what, piece.cause.empty() ? "the copy failed" : piece.cause);
}

namespace {

bool IsValidName(const std::string& name) {
  return name.size() >= 2 && name.size() <= 255 && name[0] == '/' &&
         name.find('/', 1) == std::string::npos && name.find('\0') == std::string::npos &&
         name != "/." && name != "/..";
}

}  // namespace

absl::StatusOr<int> OpenSharedMemory(const std::string& name, uint64_t size_bytes) {
  if (!IsValidName(name)) return errors::SharedMemoryName(name);
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) {
    if (errno == ENOENT) return errors::SharedMemoryMissing(name);
    return errors::SharedMemoryDenied(name, strerror(errno));
  }
  struct stat object {};
  absl::Status status;
  if (fstat(fd, &object) != 0 || !S_ISREG(object.st_mode)) {
    status = errors::SharedMemoryDenied(name, "it is not a regular object");
  } else if (object.st_uid != geteuid() && (object.st_mode & 0006) != 0006) {
    status = errors::SharedMemoryDenied(name, "it belongs to another user");
  } else if (size_bytes == 0 || size_bytes > static_cast<uint64_t>(object.st_size)) {
    status = errors::SharedMemorySize(name, size_bytes, static_cast<uint64_t>(object.st_size));
  }
  if (status.ok()) return fd;
  close(fd);
  return status;
}

absl::Status CheckSharedSize(int fd, uint64_t size_bytes) {
  struct stat object {};
  if (fstat(fd, &object) != 0) return errors::DescriptorIsNotSharedMemory();
  const auto bytes = static_cast<uint64_t>(object.st_size);
  if (size_bytes == 0 || size_bytes > bytes) return errors::DescriptorSize(size_bytes, bytes);
  return absl::OkStatus();
}

}  // namespace resident
