// status: the current state of the daemon.
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/status_text.h"

namespace resident::cli {
namespace {

int Status(const Words&) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::StatusResponse> status = (*client)->Status();
  if (!status.ok()) return CallError(status.status());
  if (Common().json) {
    PrintJson(ToJson(*status));
  } else {
    Print(StatusText(*status, (*client)->address()));
  }
  return kExitOk;
}

}  // namespace

void AddStatus(Command& program) {
  program.Add("status", "devices, queues and clients of the daemon").Run("", Status);
}

}  // namespace resident::cli
