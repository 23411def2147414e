// Converts absl::Status to grpc::Status. All services use this function.
#ifndef RESIDENT_SERVER_RPC_STATUS_H_
#define RESIDENT_SERVER_RPC_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/support/status.h"

namespace resident {

// A message is sent in a header. Clients accept 8 KiB of headers in total, and each byte that is
// not printable ASCII takes three.
inline constexpr size_t kMaxStatusMessageBytes = 2048;

// Codes have the same numbers on both sides. The middle of a message that is too long is left out:
// it begins with what was wrong and ends with what to do.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const absl::string_view message = status.message();
  if (message.size() <= kMaxStatusMessageBytes) return grpc::Status(code, std::string(message));
  constexpr size_t kEnd = kMaxStatusMessageBytes / 4;
  return grpc::Status(code, absl::StrCat(message.substr(0, kMaxStatusMessageBytes - kEnd),
                                         " [...] ", message.substr(message.size() - kEnd)));
}

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_STATUS_H_
