// admin: park, resume, drain.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"

namespace resident::cli {
namespace {

int Report(const Json& json, std::string_view text) {
  if (Common().json) {
    PrintJson(json);
  } else {
    Print(text);
  }
  return kExitOk;
}

int Drain(absl::Duration timeout) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<uint64_t> remaining = (*client)->Drain(timeout);
  if (!remaining.ok()) return CallError(remaining.status());
  return Report({{"drained", true}, {"remaining_tasks", *remaining}},
                "drained: the daemon accepts no more work\n");
}

int Switch(const std::string& word, bool park) {
  uint32_t device;
  if (!absl::SimpleAtoi(word, &device)) {
    return UsageError(absl::StrCat("invalid device '", word,
                                   "'. Fix: give an index from the DEVICE column of residentctl "
                                   "status"));
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::Status status = park ? (*client)->Park(device) : (*client)->Resume(device);
  if (!status.ok()) return CallError(status);
  return Report({{"device", device}, {"state", park ? "parked" : "resident"}},
                absl::StrCat("device ", device, park ? " is parked\n" : " is resident\n"));
}

}  // namespace

void AddAdmin(Command& program) {
  Command& admin = program.Add("admin", "park a device, resume it, drain the daemon",
                               "park removes the kernel from a device, resume launches it again. "
                               "drain finishes queued work\n"
                               "and refuses new work until the daemon is restarted.\n");
  admin.Add("park", "remove the kernel from a device").Run("DEVICE", [](const Words& words) {
    return Switch(words[0], /*park=*/true);
  });
  admin.Add("resume", "launch the kernel again").Run("DEVICE", [](const Words& words) {
    return Switch(words[0], /*park=*/false);
  });
  Command& drain = admin.Add("drain", "finish queued work and refuse new work");
  auto timeout = std::make_shared<absl::Duration>(absl::ZeroDuration());
  drain.Flag("drain_timeout", timeout.get(),
             "how long drain may take; 0: the daemon's --drain_timeout",
             {.low = absl::ZeroDuration(), .high = absl::Hours(24), .fix = "give 0s to 24h"});
  drain.Run("", [timeout](const Words&) { return Drain(*timeout); });
}

}  // namespace resident::cli
