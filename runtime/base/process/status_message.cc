#include "runtime/base/process/status_message.h"

#include "runtime/base/utf8.h"

namespace resident {

void SetStatus(const absl::Status& status, internal::Status* to) {
  to->set_code(static_cast<int32_t>(status.code()));
  to->set_message(ToUtf8(status.message()));
}

absl::Status GetStatus(const internal::Status& from) {
  return absl::Status(static_cast<absl::StatusCode>(from.code()), from.message());
}

}  // namespace resident
