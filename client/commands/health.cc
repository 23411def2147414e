// health: whether the daemon accepts work, for health checks of containers and load balancers.
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

namespace resident::cli {

void AddHealth(Command& program) {
  Command& health = program.Add(
      "health", "query gRPC's health service: whether the daemon accepts work",
      "Prints SERVING, or NOT_SERVING while the daemon drains or every device is unhealthy. Exit\n"
      "status 0 only if it is SERVING, so that a container's health check can use this command.\n"
      "SERVICE is a gRPC service's full name, or resident.device/N for device N; without it, all\n"
      "of them. With TLS it needs the same certificates as other commands, but never a token.\n"
      "  residentctl health --timeout=2s\n"
      "  residentctl health resident.v1.Executor\n"
      "  residentctl health resident.device/0\n");
  health.Run("[SERVICE]", [](const Words& words) {
    const std::string service = words.empty() ? "" : words[0];
    absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
    if (!client.ok()) return CallError(client.status());
    absl::StatusOr<bool> serving = (*client)->IsServing(service);
    if (!serving.ok()) return CallError(serving.status());
    const std::string state = *serving ? "SERVING" : "NOT_SERVING";
    if (Common().json) {
      PrintJson({{"service", service}, {"status", state}});
    } else {
      Print(absl::StrCat(state, "\n"));
    }
    return *serving ? kExitOk : kExitFailed;
  });
}

}  // namespace resident::cli
