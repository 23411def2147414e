// Errors of calls and their messages.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_RPC_ERRORS_H_
#define RESIDENT_SERVER_RPC_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

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
absl::Status DrainUnfinished(uint64_t remaining);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_RPC_ERRORS_H_
