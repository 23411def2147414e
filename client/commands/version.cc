// version: the versions of residentctl, and of the daemon if one answers.
#include "client/version.h"

#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

namespace resident::cli {
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
