// The cause of an error in a form for programs, beside the message for people. It travels as a
// payload of the status; server/core/status.h sends it as a google.rpc.ErrorInfo.
//
// Errors of arguments have one (argument_errors.h), so that a client can show which argument to
// correct without reading the message. Refusals of a batch that pass by themselves have one
// (DRAINING, NO_DEVICE, DEVICE_UNAVAILABLE, QUEUE_FULL, STAGING_FULL, MEMORY_FULL, TASK_QUOTA,
// UNKNOWN_SESSION, SESSION_ELSEWHERE), so that a client knows that the batch did not run and can be
// sent again. Do not use these names for an error of tasks that may have run. NODE_FAILED names the
// node of a task graph that ended its run (graph_errors.h).
//
// Thread safety: functions without state.
//
//   return WithReason(std::move(status), {"SHAPE_MISMATCH", {{"argument", "y"}, {"got", "[2]"}}});
//   if (std::optional<ErrorReason> reason = FindReason(status)) ...
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_REASON_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_REASON_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace resident::errors {

struct ErrorReason {
  // Capital letters, digits and underscores.
  std::string name;
  // Keys and values. Each value is shortened to kMaxReasonValueBytes.
  std::vector<std::pair<std::string, std::string>> details;
};

inline constexpr size_t kMaxReasonValueBytes = 128;

// REQUIRES: the status is not OK.
absl::Status WithReason(absl::Status status, const ErrorReason& reason);
// nullopt: the status has none.
std::optional<ErrorReason> FindReason(const absl::Status& status);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_REASON_H_
