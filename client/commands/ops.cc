// ops: lists and changes the daemon's operators. There is one function for each action; install
// is in ops_install.cc, watch and audit are in ops_watch.cc.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/commands/bake_flags.h"
#include "client/commands/command.h"
#include "client/commands/ops_text.h"
#include "client/operators.h"
#include "runtime/base/nearest.h"

namespace resident::cli {
namespace {

// The flags of all changes; each action uses some of them.
struct ChangeFlags {
  std::optional<uint64_t> revision;
  bool force = false;
  PercentFlag shadow;
  PercentFlag traffic;
  BakeFlags bake;
};

int Show(const std::string& name) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::Operator> op = (*client)->DescribeOperator(name);
  if (!op.ok()) return CallError(op.status());
  if (Common().json) {
    PrintJson(ToJson(*op));
  } else {
    Print(OperatorText(*op));
  }
  return kExitOk;
}

int Explain(const Words& words) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::Operator> op = (*client)->DescribeOperator(words[0]);
  if (!op.ok()) return CallError(op.status());
  if (Common().json) {
    PrintJson(ToJson(*op));
  } else {
    Print(IsolationText(*op));
  }
  return kExitOk;
}

// `ops NAME`, where NAME may be a mistyped command of `ops`.
int ShowOrSuggest(const std::string& name, const Command& ops) {
  std::vector<std::string_view> commands;
  for (const auto& command : ops.commands()) commands.push_back(command->name());
  const std::string nearest = Nearest(name, commands);
  if (nearest.empty()) return Show(name);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::Status found = (*client)->DescribeOperator(name).status();
  if (!absl::IsNotFound(found)) return Show(name);
  return UsageError(absl::StrCat("ops has no command '", name, "', and there is no operator '",
                                 name, "'. Fix: did you mean `residentctl ops ", nearest, "`?"));
}

// Lists all operators, or shows the named one.
int List(const Words& words) {
  if (!words.empty()) return Show(words[0]);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<std::vector<v1::Operator>> operators = (*client)->ListOperators();
  if (!operators.ok()) return CallError(operators.status());
  if (Common().json) {
    Json list = Json::array();
    for (const v1::Operator& op : *operators) list.push_back(ToJson(op));
    PrintJson({{"operators", list}});
  } else {
    Print(OperatorsText(*operators));
  }
  return kExitOk;
}

int Summary(const Words&) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::SummaryResponse> summary = client::Operators(**client).Summary();
  if (!summary.ok()) return CallError(summary.status());
  if (Common().json) {
    PrintJson(ToJson(*summary));
  } else {
    Print(SummaryText(*summary));
  }
  return kExitOk;
}

// Parses a version such as "3" or "v3".
bool ParseVersion(absl::string_view word, uint32_t* version) {
  absl::ConsumePrefix(&word, "v");
  return absl::SimpleAtoi(word, version) && *version > 0;
}

client::ChangeOptions ToOptions(const ChangeFlags& flags) {
  client::ChangeOptions options;
  options.expected_revision = flags.revision;
  options.force = flags.force;
  options.bake = ToMessage(flags.bake);
  return options;
}

std::string SwitchTime(uint64_t nanoseconds) {
  return HumanDuration(absl::Nanoseconds(static_cast<int64_t>(nanoseconds)));
}

int Activate(client::Operators& operators, const std::string& name,
             const client::ChangeOptions& options) {
  absl::StatusOr<v1::ActivateResponse> done = operators.Activate(name, options);
  if (!done.ok()) return CallError(done.status());
  if (Common().json) {
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
    Print(absl::StrCat("to undo: residentctl ops rollback ", name, "\n"));
  }
  return kExitOk;
}

int Rollback(client::Operators& operators, const std::string& name,
             const client::ChangeOptions& options) {
  absl::StatusOr<v1::RollbackResponse> done = operators.Rollback(name, options.expected_revision);
  if (!done.ok()) return CallError(done.status());
  if (Common().json) {
    PrintJson(ToJson(*done));
  } else {
    Print(absl::StrCat(name, " version ", done->version(), " serves again, in place of version ",
                       done->from_version(), "; switched in ", SwitchTime(done->switch_ns()),
                       ", revision ", done->revision(), "\n"));
  }
  return kExitOk;
}

int Remove(client::Operators& operators, const std::string& name,
           const client::ChangeOptions& options) {
  absl::StatusOr<v1::RemoveResponse> done = operators.Remove(name, options);
  if (!done.ok()) return CallError(done.status());
  if (Common().json) {
    PrintJson(ToJson(*done));
  } else {
    Print(absl::StrCat(name, " is removed, revision ", done->revision(), "\n"));
  }
  return kExitOk;
}

int Promote(client::Operators& operators, const std::string& name,
            const client::ChangeOptions& options, double shadow, double traffic) {
  absl::StatusOr<v1::PromoteResponse> done = operators.Promote(name, shadow, traffic, options);
  if (!done.ok()) return CallError(done.status());
  if (Common().json) {
    PrintJson(ToJson(*done));
  } else if (shadow == 0 && traffic == 0) {
    Print(absl::StrCat("the trial of ", name, " has ended, revision ", done->revision(), "\n"));
  } else {
    Print(absl::StrCat("the standby version of ", name, " serves ", traffic,
                       " % of the batches and shadows ", shadow, " %, revision ", done->revision(),
                       "\nto see the results: residentctl ops show ", name, "\n"));
  }
  return kExitOk;
}

// Changes an operator. words[0] is its name, the optional words[1] its version.
using Action = std::function<int(client::Operators&, const std::string& name,
                                 const client::ChangeOptions& options)>;

int Change(const Words& words, const ChangeFlags& flags, const Action& action) {
  client::ChangeOptions options = ToOptions(flags);
  if (words.size() > 1 && !ParseVersion(words[1], &options.version)) {
    return UsageError(absl::StrCat("invalid version '", words[1],
                                   "'. Fix: give a number from the VERSION column of residentctl "
                                   "ops show"));
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  return action(operators, words[0], options);
}

}  // namespace

void AddOps(Command& program) {
  Command& ops = program.Add(
      "ops", "list and change operators",
      "Without a command it lists the operators, or shows the named one.\n"
      "install compiles a version, validates it on examples and loads it; the daemon continues "
      "to\n"
      "serve. activate makes it serve, rollback makes the previous version serve again. FILE is\n"
      "source that uses the operator SDK, followed by the files that it includes; its comments "
      "may\n"
      "contain the signature:\n"
      "  // signature: x: in f32[*S], out: out f32[*S]\n"
      "  // split: out 4096\n"
      "  // summary: x squared\n"
      "Use --expr, --flux or --object in place of FILE. --example gives a JSON file with one "
      "object\n"
      "or a list of objects, with values by parameter name:\n"
      "  {\"inputs\": {\"x\": [1, 2]}, \"outputs\": {\"out\": [1, 4]}, \"relative_tolerance\": "
      "1e-5}\n"
      "A value is a number, nested lists, or {\"shape\": [2, 2], \"data\": [...], \"dtype\": "
      "\"f16\"};\n"
      "an output that is omitted is compared with the active version's.\n"
      "promote tries the standby version on live traffic: with --shadow=5% it also runs 5% of the\n"
      "batches and its outputs are compared, with --traffic=10% it serves 10% of them; 0% of both\n"
      "ends the trial.\n"
      "watch follows changes until interrupted; audit lists past ones, newest first.\n"
      "  residentctl ops install swish --expr 'x * sigmoid(x)' --wait=active\n"
      "  residentctl ops install swish swish.cc --example=swish.json\n"
      "  residentctl ops activate swish --bake=10m --on_regression=roll_back\n"
      "  residentctl ops rollback swish\n");
  auto flags = std::make_shared<ChangeFlags>();
  const auto add = [&](const char* name, const char* summary, const char* usage,
                       Action action) -> Command& {
    Command& command = ops.Add(name, summary);
    AddRevisionFlag(command, &flags->revision);
    command.Run(usage, [flags, action = std::move(action)](const Words& words) {
      return Change(words, *flags, action);
    });
    return command;
  };
  ops.Run("[NAME]", [&ops](const Words& words) {
    return words.empty() ? List(words) : ShowOrSuggest(words[0], ops);
  });
  ops.Add("list", "list the operators").Run("", List);
  ops.Add("show", "show one operator and its versions").Run("NAME", List);
  ops.Add("explain", "show how each version of an operator is isolated, and why")
      .Run("NAME", Explain);
  ops.Add("summary", "list the installed versions in the kernel, to compare daemons")
      .Run("", Summary);
  AddOpsInstall(ops);
  Command& activate = add("activate", "make a version serve", "NAME [VERSION]", Activate);
  activate.Flag(
      "force", &flags->force,
      "allow a quarantined version, and an operator that the set of --operators_dir lists");
  AddBakeFlags(activate, /*shadows=*/true, flags->bake);
  add("rollback", "make the previous version serve again", "NAME", Rollback);
  add("remove", "remove an operator", "NAME", Remove)
      .Flag("force", &flags->force, "also one that the set of --operators_dir lists");
  Command& promote =
      add("promote", "try the standby version on live traffic", "NAME [VERSION]",
          [flags](client::Operators& operators, const std::string& name,
                  const client::ChangeOptions& options) {
            return Promote(operators, name, options, flags->shadow.percent, flags->traffic.percent);
          });
  promote.Flag("shadow", &flags->shadow,
               "share of the batches that the standby version also runs, for comparison");
  promote.Flag("traffic", &flags->traffic, "share of the batches that the standby version serves");
  AddBakeFlags(promote, /*shadows=*/true, flags->bake);
  AddOpsWatch(ops);
}

}  // namespace resident::cli
