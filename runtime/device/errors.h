// Errors of devices and of their buffers.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_DEVICE_ERRORS_H_
#define RESIDENT_RUNTIME_DEVICE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status LostBuffer(uint64_t id, uint32_t device, const std::string& cause);
absl::Status BadBufferType(const std::string& what);
absl::Status BufferNameTooLong(size_t bytes, size_t limit);
absl::Status TooManyBuffers(uint64_t limit, bool durable);
absl::Status ClientMemory(uint64_t bytes, uint64_t used, uint64_t limit_mib);
absl::Status BeyondBufferEnd(uint64_t id, uint64_t offset, uint64_t bytes, uint64_t size);
// A write to a durable buffer started on an engine that was then replaced.
absl::Status EngineReplacedDuringWrite(uint64_t id);
absl::Status PersistDuringUpload(uint64_t id);
// Memory of the front end for copies of durable buffers.
absl::Status NoHostMemory(uint64_t bytes);
// The copies are over the limit of a client or of all clients.
absl::Status HostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client);

absl::Status DeviceUnavailable(uint32_t device, const std::string& detail);
// `detail` ends with "Fix: ...".
absl::Status DeviceUnhealthy(uint32_t device, const std::string& detail);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_DEVICE_ERRORS_H_
