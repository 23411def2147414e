// state: checks and repairs a daemon's state folder. It accesses the folder directly, while no
// daemon uses it.
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "runtime/state/state_check.h"

namespace resident::cli {
namespace {

void PrintLines(std::string_view title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  Print(absl::StrCat(absl::string_view(title.data(), title.size()), "\n"));
  for (const std::string& line : lines) Print(absl::StrCat("  ", line, "\n"));
}

int Examine(const std::string& folder, bool repair) {
  const absl::StatusOr<StateReport> report = repair ? RepairState(folder) : CheckState(folder);
  if (!report.ok()) return CallError(report.status());
  // The problems in the report of a repair have been corrected.
  const bool good = repair || report->problems.empty();
  if (Common().json) {
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
    Print("no problems found\n");
  } else if (!repair) {
    Print(report->starts ? "a daemon starts with this folder as it is\n"
                         : absl::StrCat("a daemon does not start with this folder. Fix: "
                                        "residentctl state repair ",
                                        folder, "\n"));
  }
  return good ? kExitOk : kExitFailed;
}

}  // namespace

void AddState(Command& program) {
  Command& state = program.Add(
      "state", "check or repair a daemon's state folder (--state_dir)",
      "Accesses the folder directly, while no daemon uses it. check lists the contents and the\n"
      "problems; exit status 1 if there are problems. repair writes a new database with all\n"
      "readable rows (and keeps a copy of the old one), removes damaged files, and lists what was\n"
      "lost.\n");
  state.Add("check", "list contents and problems").Run("DIR", [](const Words& words) {
    return Examine(words[0], /*repair=*/false);
  });
  state.Add("repair", "remove damaged contents").Run("DIR", [](const Words& words) {
    return Examine(words[0], /*repair=*/true);
  });
}

}  // namespace resident::cli
