// Converts absl::Status to grpc::Status. All services use this function.
#ifndef RESIDENT_SERVER_CORE_STATUS_H_
#define RESIDENT_SERVER_CORE_STATUS_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace resident {

// A message is sent in a header. Clients accept 8 KiB of headers in total, and each byte that is
// not printable ASCII takes three.
inline constexpr size_t kMaxStatusMessageBytes = 2048;
// The limit of the details, which gRPC sends in base64 (a third more) beside the message.
inline constexpr size_t kMaxStatusDetailBytes = 1024;

// The message with at most about kMaxStatusMessageBytes. The middle of a longer one is left out: it
// begins with what was wrong and ends with what to do.
std::string ShortenMessage(absl::string_view message);

// Codes have the same numbers on both sides. The message is shortened. If the status has a reason
// (runtime/base/errors/reason.h), it becomes a google.rpc.ErrorInfo in the trailing metadata
// grpc-status-details-bin.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_STATUS_H_
