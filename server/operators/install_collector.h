// InstallCollector: combines the messages of one Operators.Install into one InstallRequest.
//
//   header ──▶ files and examples, in any order ──▶ Finish
//
// Data is checked against the limits on installs (runtime/base/limits.h) before it is stored.
// Whether examples fit the signature is not checked here.
//
// Thread safety: an object belongs to one thread at a time.
//
//   InstallCollector collector;
//   RETURN_IF_ERROR(collector.Add(message));    // each, in order
//   ASSIGN_OR_RETURN(InstallRequest request, collector.Finish());
#ifndef RESIDENT_SERVER_OPERATORS_INSTALL_COLLECTOR_H_
#define RESIDENT_SERVER_OPERATORS_INSTALL_COLLECTOR_H_

#include <cassert>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/operators.pb.h"
#include "runtime/operators/install/operator_manager.h"

namespace resident {

class InstallCollector {
 public:
  // INVALID_ARGUMENT: out of order, malformed, or over a limit. Moves the bytes out of the message.
  // After an error nothing more may be added.
  absl::Status Add(v1::InstallRequest& message);

  // Called after the last message. INVALID_ARGUMENT: something is missing.
  absl::StatusOr<InstallRequest> Finish();

  // The operator's name. REQUIRES: the header was added.
  const std::string& name() const {
    assert(has_header_);
    return request_.name;
  }
  OperatorKind kind() const {
    assert(has_header_);
    return request_.kind;
  }

 private:
  absl::Status AddHeader(v1::InstallHeader& header);
  absl::Status AddFile(v1::InstallFile& file);
  absl::Status AddExample(v1::InstallExample& message);

  InstallRequest request_;
  bool has_header_ = false;
  uint64_t file_bytes_ = 0;
  uint64_t example_bytes_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_INSTALL_COLLECTOR_H_
