// Errors of sessions, devices and the daemon as a whole. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_DAEMON_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_DAEMON_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NoSession();
absl::Status UnknownSession(const std::string& id);
// Numbers of slots that callers share (server/rpc/shared_slots.h).
struct SlotFigures {
  uint64_t total;
  uint64_t free;
  // Slots of the holder.
  uint64_t held;
};
// `what`: "sessions". `flag`: the flag that sets their number; empty: none.
absl::Status NoSlot(const std::string& what, const std::string& holder, const SlotFigures& slots,
                    const std::string& flag);
absl::Status SlotQuota(const std::string& what, const std::string& holder, uint64_t held,
                       uint64_t quota, const std::string& quota_name);
absl::Status NoHostMemory(uint64_t bytes);
// The copies of durable buffers are over the limit of a client or of all clients.
absl::Status HostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client);
// The same for a run of a graph or a graph session, and for what else clients use.
absl::Status GraphHostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client);
// Bytes that a batch's tasks need, and bytes in use by its client and by all clients.
struct BatchMemoryFigures {
  uint64_t wanted;
  uint64_t of_client;
  uint64_t of_all;
  uint64_t limit;
};
absl::Status BatchMemoryFull(const BatchMemoryFigures& bytes, bool client);
absl::Status ClientNameTooLong(size_t bytes, size_t limit);
absl::Status UnknownDevice(int64_t device, size_t devices);
absl::Status DeviceUnavailable(uint32_t device, const std::string& detail);
// `detail` ends with "Fix: ...".
absl::Status DeviceUnhealthy(uint32_t device, const std::string& detail);
absl::Status NoDeviceAvailable();
absl::Status Draining();
absl::Status UnreadableMessage(const std::string& type);
// A message with more sub-messages, texts and unknown fields than its method takes.
absl::Status TooManyObjects(const std::string& type, uint64_t limit);
// A message of `length` bytes would take more than `limit_bytes` of memory once it is parsed.
absl::Status MessageTakesTooMuch(const std::string& type, uint64_t length, uint64_t limit_bytes);
// The memory of a client's messages and unread answers (CallMemory), and the limits.
struct CallMemoryFigures {
  uint64_t of_client;
  uint64_t of_all;
  uint64_t client_limit;
  uint64_t limit;
};
absl::Status CallMemoryFull(const CallMemoryFigures& bytes);
absl::Status TooManyBatches(uint64_t batches, uint32_t limit);
absl::Status UnknownHealthService(const std::string& name);
absl::Status HealthNameTooLong(size_t bytes, size_t limit);
absl::Status NoChannelzEntity();
absl::Status Cancelled();
absl::Status DeadlineExceeded();
absl::Status DrainUnfinished(uint64_t remaining);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_DAEMON_ERRORS_H_
