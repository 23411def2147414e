// ops: what the daemon can run, and changing it. One function for each action; installing
// is ops_install.cc, looking at changes ops_watch.cc.
#include "client/commands/ops.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/ops_text.h"
#include "client/operators.h"
#include "runtime/base/share.h"

namespace resident::cli {

// "5%", "5" or "0.5%".
struct PercentFlag {
  double percent = 0;
};

bool AbslParseFlag(absl::string_view text, PercentFlag* flag, std::string* error) {
  absl::string_view number = text;
  absl::ConsumeSuffix(&number, "%");
  if (absl::SimpleAtod(number, &flag->percent) && flag->percent >= 0 && flag->percent <= 100) {
    return true;
  }
  *error = "a percentage is 0% to 100%";
  return false;
}

std::string AbslUnparseFlag(const PercentFlag& flag) { return absl::StrCat(flag.percent, "%"); }

}  // namespace resident::cli

ABSL_FLAG(std::optional<uint64_t>, revision, std::nullopt,
          "change the operator only if this is its revision; 0: only if it does not exist");
ABSL_FLAG(bool, force, false, "activate: also a quarantined version");
ABSL_FLAG(resident::cli::PercentFlag, shadow, {},
          "promote: share of the batches that the standby version runs beside the active one");
ABSL_FLAG(resident::cli::PercentFlag, traffic, {},
          "promote: share of the batches that the standby version serves");
ABSL_FLAG(absl::Duration, bake, absl::ZeroDuration(),
          "activate, promote: how long the version is watched; 0s: the daemon's --bake_time");
ABSL_FLAG(std::string, on_regression, "",
          "activate, promote: off, warn or roll_back; without it the daemon's --bake_action");
ABSL_FLAG(resident::Share, max_error_rate, {},
          "activate, promote: share of failed tasks that is a regression, 1% or 0.01; 0: the "
          "daemon's");
ABSL_FLAG(double, max_latency_ratio, 0,
          "activate, promote: p99 over the version's before; 0: the daemon's");
ABSL_FLAG(resident::Share, max_mismatch_rate, {},
          "activate, promote: share of shadowed tasks that differ, 1% or 0.01; 0: the daemon's");
ABSL_FLAG(uint64_t, min_tasks, 0,
          "activate, promote: tasks before anything is judged; 0: the daemon's --bake_min_tasks");

namespace resident::cli {
namespace {

constexpr std::string_view kUsage =
    "residentctl ops [list | show NAME | install NAME ... | activate NAME [VERSION] | "
    "rollback NAME | remove NAME | promote NAME [VERSION] | watch [NAME] | audit [NAME]]";

int List() {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<std::vector<v1::Operator>> operators = (*client)->ListOperators();
  if (!operators.ok()) return CallError(operators.status());
  if (absl::GetFlag(FLAGS_json)) {
    Json list = Json::array();
    for (const v1::Operator& op : *operators) list.push_back(ToJson(op));
    PrintJson({{"operators", list}});
  } else {
    Print(OperatorsText(*operators));
  }
  return kExitOk;
}

int Show(const std::string& name) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::Operator> op = (*client)->DescribeOperator(name);
  if (!op.ok()) return CallError(op.status());
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(ToJson(*op));
  } else {
    Print(OperatorText(*op));
  }
  return kExitOk;
}

// Version of a word like "3" or "v3".
bool ParseVersion(absl::string_view word, uint32_t* version) {
  absl::ConsumePrefix(&word, "v");
  return absl::SimpleAtoi(word, version) && *version > 0;
}

absl::StatusOr<client::ChangeOptions> ReadChangeOptions() {
  client::ChangeOptions options;
  options.expected_revision = absl::GetFlag(FLAGS_revision);
  options.force = absl::GetFlag(FLAGS_force);
  const std::string action = absl::GetFlag(FLAGS_on_regression);
  if (action == "off") {
    options.bake.set_action(v1::BakeOptions::ACTION_OFF);
  } else if (action == "warn") {
    options.bake.set_action(v1::BakeOptions::ACTION_WARN);
  } else if (action == "roll_back") {
    options.bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
  } else if (!action.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--on_regression cannot be '", action, "'. Fix: off, warn or roll_back"));
  }
  if (absl::GetFlag(FLAGS_bake) < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--bake is negative. Fix: as in --bake=10m");
  }
  options.bake.set_time_ms(static_cast<uint64_t>(
      absl::ToInt64Milliseconds(std::min(absl::GetFlag(FLAGS_bake), absl::Hours(24 * 365)))));
  options.bake.set_max_error_rate(absl::GetFlag(FLAGS_max_error_rate).value);
  const double latency_ratio = absl::GetFlag(FLAGS_max_latency_ratio);
  if (!std::isfinite(latency_ratio) || latency_ratio < 0) {
    return absl::InvalidArgumentError(
        "--max_latency_ratio is a number of 0 or more. Fix: as in --max_latency_ratio=2");
  }
  options.bake.set_max_latency_ratio(latency_ratio);
  options.bake.set_max_mismatch_rate(absl::GetFlag(FLAGS_max_mismatch_rate).value);
  options.bake.set_min_tasks(absl::GetFlag(FLAGS_min_tasks));
  return options;
}

std::string SwitchTime(uint64_t nanoseconds) {
  return HumanDuration(absl::Nanoseconds(static_cast<int64_t>(nanoseconds)));
}

int Activate(client::Operators& operators, const std::string& name,
             const client::ChangeOptions& options) {
  absl::StatusOr<v1::ActivateResponse> done = operators.Activate(name, options);
  if (!done.ok()) return CallError(done.status());
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(ToJson(*done));
    return kExitOk;
  }
  Print(absl::StrCat(name, " version ", done->version(), " serves",
                     done->previous_version() == 0
                         ? ""
                         : absl::StrCat(" in place of version ", done->previous_version()),
                     "; switched in ", SwitchTime(done->switch_ns()), ", revision ",
                     done->revision(), "\n"));
  if (done->previous_version() != 0) {
    Print(absl::StrCat("back: residentctl ops rollback ", name, "\n"));
  }
  return kExitOk;
}

int Rollback(client::Operators& operators, const std::string& name) {
  absl::StatusOr<v1::RollbackResponse> done =
      operators.Rollback(name, absl::GetFlag(FLAGS_revision));
  if (!done.ok()) return CallError(done.status());
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(ToJson(*done));
  } else {
    Print(absl::StrCat(name, " version ", done->version(), " serves again, in place of version ",
                       done->from_version(), "; switched in ", SwitchTime(done->switch_ns()),
                       ", revision ", done->revision(), "\n"));
  }
  return kExitOk;
}

int Remove(client::Operators& operators, const std::string& name) {
  absl::StatusOr<v1::RemoveResponse> done = operators.Remove(name, absl::GetFlag(FLAGS_revision));
  if (!done.ok()) return CallError(done.status());
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(ToJson(*done));
  } else {
    Print(absl::StrCat(name, " is removed, revision ", done->revision(), "\n"));
  }
  return kExitOk;
}

int Promote(client::Operators& operators, const std::string& name,
            const client::ChangeOptions& options) {
  const double shadow = absl::GetFlag(FLAGS_shadow).percent;
  const double traffic = absl::GetFlag(FLAGS_traffic).percent;
  absl::StatusOr<v1::PromoteResponse> done = operators.Promote(name, shadow, traffic, options);
  if (!done.ok()) return CallError(done.status());
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(ToJson(*done));
  } else if (shadow == 0 && traffic == 0) {
    Print(absl::StrCat("the trial of ", name, " has ended, revision ", done->revision(), "\n"));
  } else {
    Print(absl::StrCat("the standby version of ", name, " serves ", traffic,
                       " % of the batches and runs beside ", shadow, " %, revision ",
                       done->revision(), "\nhow it does: residentctl ops show ", name, "\n"));
  }
  return kExitOk;
}

// What names an operator and perhaps a version.
int Change(const std::string& action, const std::vector<std::string>& words) {
  const bool takes_version = action == "activate" || action == "promote";
  if (words.size() < 2 || words.size() > (takes_version ? 3 : 2)) {
    return UsageError(absl::StrCat("ops ", action, " takes one NAME",
                                   takes_version ? " and perhaps a VERSION" : ""),
                      kUsage);
  }
  absl::StatusOr<client::ChangeOptions> options = ReadChangeOptions();
  if (!options.ok()) return UsageError(options.status());
  if (words.size() == 3 && !ParseVersion(words[2], &options->version)) {
    return UsageError(absl::StrCat("'", words[2], "' is no version"),
                      "a number as in the VERSION column of residentctl ops show");
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  const std::string& name = words[1];
  if (action == "activate") return Activate(operators, name, *options);
  if (action == "rollback") return Rollback(operators, name);
  if (action == "remove") return Remove(operators, name);
  return Promote(operators, name, *options);
}

}  // namespace

int RunOps(const std::vector<std::string>& words) {
  const std::string action = words.empty() ? "list" : words[0];
  if (action == "list") {
    return words.size() <= 1 ? List() : UsageError("ops list takes no words", kUsage);
  }
  if (action == "show") {
    return words.size() == 2 ? Show(words[1]) : UsageError("ops show takes one NAME", kUsage);
  }
  if (action == "install") return InstallOperator({words.begin() + 1, words.end()});
  if (action == "watch") return WatchOperators({words.begin() + 1, words.end()});
  if (action == "audit") return AuditOperators({words.begin() + 1, words.end()});
  if (action == "activate" || action == "rollback" || action == "remove" || action == "promote") {
    return Change(action, words);
  }
  if (words.size() == 1) return Show(action);
  return UsageError(absl::StrCat("ops cannot '", action, "'"), kUsage);
}

}  // namespace resident::cli
