#include "server/rpc/buffer_access.h"

#include "runtime/base/errors/buffer_errors.h"
#include "runtime/base/errors/daemon_errors.h"

namespace resident {

absl::StatusOr<std::shared_ptr<EngineSession>> FindEngine(const Core& core, const Buffer& buffer) {
  if (buffer.memory == nullptr) {
    return errors::LostBuffer(buffer.id, buffer.device, buffer.lost_cause);
  }
  std::shared_ptr<EngineSession> session = core.devices[buffer.device]->session();
  if (session == nullptr || session->epoch() != buffer.epoch) {
    return errors::DeviceUnavailable(buffer.device, "its engine is being replaced");
  }
  return session;
}

absl::Status CopyError(const std::string& what, const Batch& copy) {
  if (copy.status[0] == TaskStatus::kCancelled) return errors::Cancelled();
  return errors::TransferFailed(what, copy.cause.empty() ? "the copy failed" : copy.cause);
}

}  // namespace resident
