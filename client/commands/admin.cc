// admin: park, resume, drain.
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

ABSL_FLAG(absl::Duration, drain_timeout, absl::ZeroDuration(),
          "how long drain may take; 0 is the daemon's own --drain_timeout");

namespace resident::cli {
namespace {

constexpr std::string_view kUsage = "residentctl admin park DEVICE | resume DEVICE | drain";

int Report(const Json& json, std::string_view text) {
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(json);
  } else {
    Print(text);
  }
  return kExitOk;
}

int Drain(client::Client& client) {
  absl::StatusOr<uint64_t> remaining = client.Drain(absl::GetFlag(FLAGS_drain_timeout));
  if (!remaining.ok()) return CallError(remaining.status());
  return Report({{"drained", true}, {"remaining_tasks", *remaining}},
                "drained: the daemon takes no more work\n");
}

}  // namespace

int RunAdmin(const std::vector<std::string>& words) {
  const std::string action = words.empty() ? "" : words[0];
  const bool on_device = action == "park" || action == "resume";
  if (!on_device && action != "drain") {
    return UsageError(
        action.empty() ? "admin needs an action" : absl::StrCat("admin cannot '", action, "'"),
        kUsage);
  }
  if (words.size() != (on_device ? 2u : 1u)) {
    return UsageError(on_device ? absl::StrCat("admin ", action, " takes one device")
                                : std::string("admin drain takes no words"),
                      kUsage);
  }
  const absl::Duration drain_timeout = absl::GetFlag(FLAGS_drain_timeout);
  if (drain_timeout < absl::ZeroDuration() || drain_timeout > absl::Hours(24)) {
    return UsageError("--drain_timeout must be 0s to 24h", "as in --drain_timeout=30s");
  }
  uint32_t device = 0;
  if (on_device) {
    absl::StatusOr<uint32_t> parsed = ParseDevice(words[1]);
    if (!parsed.ok()) return UsageError(parsed.status());
    device = *parsed;
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  if (action == "drain") return Drain(**client);
  const bool park = action == "park";
  const absl::Status status = park ? (*client)->Park(device) : (*client)->Resume(device);
  if (!status.ok()) return CallError(status);
  return Report({{"device", device}, {"state", park ? "parked" : "resident"}},
                absl::StrCat("device ", device, park ? " is parked\n" : " is resident\n"));
}

}  // namespace resident::cli
