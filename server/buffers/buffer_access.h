// What the calls that make, fill and read buffers share.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_BUFFERS_BUFFER_ACCESS_H_
#define RESIDENT_SERVER_BUFFERS_BUFFER_ACCESS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/buffers.pb.h"
#include "server/core/core.h"
#include "server/workload/placement.h"

namespace resident {

void DescribeBuffer(const Buffer& buffer, v1::BufferInfo* info);

// Chooses a device with `bytes` of free memory for a client's buffer; `wanted`: the device that the
// client requests, if any.
absl::StatusOr<Placement> ChooseBufferDevice(const Core& core, const Client& client,
                                             std::optional<uint32_t> wanted, uint64_t bytes);
// Takes the buffer's bytes from its identity's quota. The buffer table refuses a shape that is too
// large for any device.
absl::Status ReserveBufferBytes(const Client& client, BufferSpec* spec);
// Allocates a client's buffer, with a device and the quota in addition to `spec`. It waits for the
// disk if the buffer is durable and BufferTable::on_disk().
absl::StatusOr<std::shared_ptr<const Buffer>> AllocateBuffer(Core& core, const Client& client,
                                                             std::optional<uint32_t> wanted,
                                                             BufferSpec spec);

// The engine that the buffer's memory belongs to. Errors: FAILED_PRECONDITION (the
// buffer was lost), UNAVAILABLE (no engine, or it is being replaced).
absl::StatusOr<std::shared_ptr<EngineSession>> FindEngine(const Core& core, const Buffer& buffer);

// The error of a copy (a batch of one task) that failed. `what`: "the upload".
absl::Status CopyError(const std::string& what, const Batch& copy);

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_BUFFER_ACCESS_H_
