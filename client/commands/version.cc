// version: of residentctl, and of the daemon if one answers.
#include "client/version.h"

#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

namespace resident::cli {

int RunVersion(const std::vector<std::string>& words) {
  if (!words.empty()) return UsageError("version takes no words");
  // A daemon that is not there is no error here: the question was about versions.
  std::string server;
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (client.ok()) {
    absl::StatusOr<v1::StatusResponse> status = (*client)->Status();
    if (status.ok()) server = status->version();
  }
  if (absl::GetFlag(FLAGS_json)) {
    Json json = {{"residentctl", kClientVersion}, {"address", ServerAddress()}};
    json["residentd"] = server.empty() ? Json(nullptr) : Json(server);
    PrintJson(json);
    return kExitOk;
  }
  Print(absl::StrCat("residentctl ", kClientVersion, "\n"));
  Print(server.empty() ? absl::StrCat("residentd   not reached at ", ServerAddress(), "\n")
                       : absl::StrCat("residentd   ", server, " at ", ServerAddress(), "\n"));
  return kExitOk;
}

}  // namespace resident::cli
