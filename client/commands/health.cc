// health: whether the daemon takes work, for health checks of containers and balancers.
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

namespace resident::cli {

int RunHealth(const std::vector<std::string>& words) {
  if (words.size() > 1) {
    return UsageError("health takes at most one service", "residentctl health [SERVICE]");
  }
  const std::string service = words.empty() ? "" : words[0];
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<bool> serving = (*client)->IsServing(service);
  if (!serving.ok()) return CallError(serving.status());
  const std::string state = *serving ? "SERVING" : "NOT_SERVING";
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson({{"service", service}, {"status", state}});
  } else {
    Print(absl::StrCat(state, "\n"));
  }
  return *serving ? kExitOk : kExitFailed;
}

}  // namespace resident::cli
