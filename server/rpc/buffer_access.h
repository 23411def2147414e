// Checks of a buffer before and after a copy, for uploads, downloads and Persist.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_RPC_BUFFER_ACCESS_H_
#define RESIDENT_SERVER_RPC_BUFFER_ACCESS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/rpc/core.h"

namespace resident {

// The engine that the buffer's memory belongs to. Errors: FAILED_PRECONDITION (the
// buffer was lost), UNAVAILABLE (no engine, or it is being replaced).
absl::StatusOr<std::shared_ptr<EngineSession>> FindEngine(const Core& core, const Buffer& buffer);

// The error of a copy (a batch of one task) that failed. `what`: "the upload".
absl::Status CopyError(const std::string& what, const Batch& copy);

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_BUFFER_ACCESS_H_
