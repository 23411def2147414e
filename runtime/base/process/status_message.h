// Converts absl::Status to its message in the protocols of child processes, and back.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_STATUS_MESSAGE_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_STATUS_MESSAGE_H_

#include "absl/status/status.h"
#include "resident/internal/status.pb.h"

namespace resident {

// Bytes that are not UTF-8 are replaced.
void SetStatus(const absl::Status& status, internal::Status* to);
absl::Status GetStatus(const internal::Status& from);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_STATUS_MESSAGE_H_
