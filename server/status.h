// The one place that turns absl::Status into grpc::Status.
#ifndef RESIDENT_SERVER_STATUS_H_
#define RESIDENT_SERVER_STATUS_H_

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace resident {

// Codes have the same numbers on both sides.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace resident

#endif  // RESIDENT_SERVER_STATUS_H_
