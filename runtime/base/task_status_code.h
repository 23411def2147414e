// The status code that stands for the status of a task, for clients and protocols that have only
// status codes.
//
// Thread safety: a function without state.
#ifndef RESIDENT_RUNTIME_BASE_TASK_STATUS_CODE_H_
#define RESIDENT_RUNTIME_BASE_TASK_STATUS_CODE_H_

#include "absl/status/status.h"
#include "resident/v1/types.pb.h"

namespace resident {

inline absl::StatusCode ToStatusCode(v1::TaskStatus status) {
  switch (status) {
    case v1::TASK_STATUS_OK:
      return absl::StatusCode::kOk;
    case v1::TASK_STATUS_INVALID_ARGUMENT:
      return absl::StatusCode::kInvalidArgument;
    case v1::TASK_STATUS_DEADLINE_EXCEEDED:
      return absl::StatusCode::kDeadlineExceeded;
    case v1::TASK_STATUS_CANCELLED:
      return absl::StatusCode::kCancelled;
    case v1::TASK_STATUS_ABORTED:
      return absl::StatusCode::kAborted;
    case v1::TASK_STATUS_UNAVAILABLE:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_TASK_STATUS_CODE_H_
