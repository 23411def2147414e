// state: what is in a daemon's state folder, and repairing it. Works on the folder itself,
// while no daemon does.
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "runtime/state/state_check.h"

namespace resident::cli {
namespace {

constexpr std::string_view kUsage = "residentctl state check DIR | repair DIR";

void PrintLines(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  Print(absl::StrCat(absl::string_view(title.data(), title.size()), "\n"));
  for (const std::string& line : lines) Print(absl::StrCat("  ", line, "\n"));
}

}  // namespace

int RunState(const std::vector<std::string>& words) {
  const std::string action = words.empty() ? "" : words[0];
  if (action != "check" && action != "repair") {
    return UsageError(
        action.empty() ? "state needs an action" : absl::StrCat("state cannot '", action, "'"),
        kUsage);
  }
  if (words.size() != 2) {
    return UsageError(absl::StrCat("state ", action, " takes one folder"), kUsage);
  }
  const bool repair = action == "repair";
  const absl::StatusOr<StateReport> report = repair ? RepairState(words[1]) : CheckState(words[1]);
  if (!report.ok()) return CallError(report.status());
  // A repair's problems are those that there were.
  const bool good = repair || report->problems.empty();
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson({{"contents", report->contents},
               {"problems", report->problems},
               {"repairs", report->repairs},
               {"starts", report->starts}});
    return good ? kExitOk : kExitFailed;
  }
  PrintLines("contents", report->contents);
  PrintLines(repair ? "problems found" : "problems", report->problems);
  PrintLines("repaired", report->repairs);
  if (report->problems.empty()) {
    Print("nothing is wrong\n");
  } else if (!repair) {
    Print(report->starts ? "a daemon starts with this folder as it is\n"
                         : absl::StrCat("a daemon does not start with this folder. Fix: "
                                        "residentctl state repair ",
                                        words[1], "\n"));
  }
  return good ? kExitOk : kExitFailed;
}

}  // namespace resident::cli
