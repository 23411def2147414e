// status: the current state of the daemon.
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/status_text.h"
#include "client/version.h"

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

// health: whether the daemon accepts work, for health checks of containers and load balancers.

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

// version: the versions of residentctl, and of the daemon if one answers.

namespace {

int Version(const Words&) {
  // It is not an error if no daemon answers.
  std::string server;
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (client.ok()) {
    absl::StatusOr<v1::StatusResponse> status = (*client)->Status();
    if (status.ok()) server = status->version();
  }
  if (Common().json) {
    Json json = {{"residentctl", kClientVersion}, {"address", Common().server}};
    json["residentd"] = server.empty() ? Json(nullptr) : Json(server);
    PrintJson(json);
    return kExitOk;
  }
  Print(absl::StrCat("residentctl ", kClientVersion, "\n"));
  Print(server.empty() ? absl::StrCat("residentd   not reached at ", Common().server, "\n")
                       : absl::StrCat("residentd   ", server, " at ", Common().server, "\n"));
  return kExitOk;
}

}  // namespace

void AddVersion(Command& program) {
  program.Add("version", "versions of residentctl and of the daemon")
      .Alias("--version")
      .Run("", Version);
}

}  // namespace resident::cli
