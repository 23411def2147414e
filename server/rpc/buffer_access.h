// What uploads, downloads and Persist ask of a buffer before and after a copy.
//
// Thread safety: functions without state of their own.
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

// Why a copy, a batch of one task, did not end OK. `what`: "the upload".
absl::Status CopyError(const std::string& what, const Batch& copy);

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_BUFFER_ACCESS_H_
