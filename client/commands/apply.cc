// apply, diff: a set of operators on every node of a target.
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "client/rollout/rollout.h"
#include "client/rollout/set_file.h"
#include "runtime/base/share.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {

// A number of nodes, or a share of all: "2", "1%".
struct NodeCount {
  uint32_t nodes = 0;
  double share = 0;
};

bool AbslParseFlag(absl::string_view text, NodeCount* count, std::string* error) {
  absl::string_view number = text;
  if (!absl::ConsumeSuffix(&number, "%")) return absl::SimpleAtoi(text, &count->nodes);
  Share share;
  if (!AbslParseFlag(text, &share, error)) return false;
  count->share = share.value;
  return true;
}

std::string AbslUnparseFlag(const NodeCount& count) {
  return count.share > 0 ? absl::StrCat(count.share * 100, "%") : absl::StrCat(count.nodes);
}

// Ascending shares, of which the last is all: "25%,100%".
struct Waves {
  std::vector<double> shares = {0.25, 1};
};

bool AbslParseFlag(absl::string_view text, Waves* waves, std::string* error) {
  waves->shares.clear();
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    Share share;
    if (!AbslParseFlag(part, &share, error)) return false;
    const double last = waves->shares.empty() ? 0 : waves->shares.back();
    if (share.value <= last) {
      *error = "each share is larger than the one before";
      return false;
    }
    waves->shares.push_back(share.value);
  }
  *error = "the last share is 100%";
  return waves->shares.back() == 1;
}

std::string AbslUnparseFlag(const Waves& waves) {
  std::string text;
  for (const double share : waves.shares) {
    absl::StrAppend(&text, text.empty() ? "" : ",", share * 100, "%");
  }
  return text;
}

}  // namespace resident::cli

namespace resident::cli {
namespace {

using rollout::Outcome;
using rollout::Result;

struct ApplyFlags {
  std::string targets;
  rollout::Options options;
  std::string canary_nodes;
  std::optional<absl::Duration> bake;
  NodeCount max_down;
  Waves waves;
  bool dry_run = false;
  bool undo = false;
};

std::string DefaultHolder() {
  char host[65] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat("residentctl ", getpid(), " on ", host);
}

std::string Shown(const std::string& hash) { return hash.empty() ? "-" : ShortHash(hash); }

void PrintDifferences(const std::vector<rollout::Difference>& differences, size_t nodes,
                      size_t down) {
  if (Common().json) return;
  Table table({"NODE", "OPERATOR", "ACTIVE", "WANTED", "ACTION"});
  for (const rollout::Difference& d : differences) {
    table.Add({d.node, d.name, Shown(d.active), Shown(d.wanted),
               d.why.empty() ? d.action : absl::StrCat(d.action, ": ", d.why)});
  }
  if (!table.empty()) Print(table.ToString());
  Print(absl::StrCat(nodes, " nodes, ", down, " down, ", differences.size(), " differences\n"));
  std::fflush(stdout);
}

Json DifferencesJson(const std::vector<rollout::Difference>& differences) {
  Json list = Json::array();
  for (const rollout::Difference& d : differences) {
    list.push_back({{"node", d.node},
                    {"operator", d.name},
                    {"active", d.active},
                    {"wanted", d.wanted},
                    {"action", d.action},
                    {"why", d.why}});
  }
  return list;
}

const char* ResultName(Result result) {
  switch (result) {
    case Result::kApplied:
      return "applied";
    case Result::kRolledBack:
      return "rolled_back";
    case Result::kUnreachable:
      return "unreachable";
    case Result::kRefused:
      return "refused";
    case Result::kIncomplete:
      return "incomplete";
  }
  return "";
}

int ExitCode(Result result) {
  switch (result) {
    case Result::kApplied:
      return kExitOk;
    case Result::kRolledBack:
      return kExitFailed;
    case Result::kUnreachable:
      return kExitUnreachable;
    case Result::kRefused:
      return kExitRefused;
    case Result::kIncomplete:
      return kExitIncomplete;
  }
  return kExitIncomplete;
}

// A file and the nodes that were looked at.
struct Looked {
  rollout::SetFile file;
  std::unique_ptr<rollout::Rollout> rollout;
};

// Returns an exit code if it failed.
std::optional<int> Look(const std::string& path, const ApplyFlags& flags, Looked* looked) {
  absl::StatusOr<rollout::SetFile> file = rollout::ReadSetFileAt(path);
  if (!file.ok()) return UsageError(file.status());
  looked->file = *std::move(file);
  rollout::Options options = flags.options;
  options.target = flags.targets.empty() ? Common().server : flags.targets;
  options.holder = DefaultHolder();
  options.bake = flags.bake.value_or(looked->file.set.bake_time.value_or(options.bake));
  options.waves = flags.waves.shares;
  options.max_down = flags.max_down.nodes;
  options.max_down_share = flags.max_down.share;
  if (!flags.canary_nodes.empty()) {
    const auto names = SplitList(flags.canary_nodes, "--canary_nodes");
    if (!names.ok()) return UsageError(names.status());
    options.canary_nodes.assign(names->begin(), names->end());
  }
  const bool json = Common().json;
  looked->rollout = std::make_unique<rollout::Rollout>(
      looked->file, options,
      [](const std::string& address, const std::string& host, absl::Duration timeout) {
        return Connect(/*session=*/false, address, host, timeout);
      },
      [json](const std::string& step, const std::string& text) {
        if (json) {
          PrintJsonLine({{"step", step}, {"text", text}});
        } else {
          Print(absl::StrCat(step, ": ", text, "\n"));
          std::fflush(stdout);
        }
      });
  const absl::Status status = looked->rollout->Look();
  if (status.ok()) return std::nullopt;
  if (absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) {
    return UsageError(status);
  }
  (void)CallError(status);
  return kExitUnreachable;
}

int Apply(const std::string& path, const ApplyFlags& flags) {
  if (flags.undo && (flags.dry_run || flags.options.again)) {
    return UsageError("--undo excludes --dry_run and --again. Fix: give one of them");
  }
  if (flags.options.percent > 0 && flags.options.canary == 0 && flags.canary_nodes.empty()) {
    return UsageError("--percent needs a node to try the versions on. Fix: give --canary");
  }
  Looked looked;
  if (const std::optional<int> code = Look(path, flags, &looked)) return *code;
  const std::vector<rollout::Difference> differences = looked.rollout->Differences();
  if (!flags.undo) {
    PrintDifferences(differences, looked.rollout->nodes(), looked.rollout->down());
  }
  if (Common().json && !flags.undo) {
    PrintJsonLine({{"step", "plan"}, {"differences", DifferencesJson(differences)}});
  }
  if (flags.dry_run) return kExitOk;
  const Outcome outcome = flags.undo ? looked.rollout->Undo() : looked.rollout->Run();
  const bool undone = flags.undo && outcome.result == Result::kRolledBack;
  const int code = undone ? kExitOk : ExitCode(outcome.result);
  if (Common().json) {
    PrintJsonLine({{"result", ResultName(outcome.result)},
                   {"exit", code},
                   {"set", looked.file.set.set},
                   {"plan", looked.file.plan},
                   {"nodes", looked.rollout->nodes()},
                   {"why", outcome.why}});
    return code;
  }
  const std::string what =
      absl::StrCat("set ", looked.file.set.set, ", plan ", Shown(looked.file.plan));
  if (code == kExitOk) {
    Print(undone ? absl::StrCat(what, ": undone; every node serves what it served before\n")
                 : absl::StrCat(what, ": every node serves it\n"));
    return code;
  }
  std::fflush(stdout);
  std::fprintf(stderr, "residentctl: %s\n",
               absl::StrCat(what, ": ",
                            outcome.result == Result::kRolledBack
                                ? "failed; every node that answers serves what it served before: "
                                : "",
                            outcome.why)
                   .c_str());
  return code;
}

int Diff(const std::string& path, const ApplyFlags& flags) {
  Looked looked;
  if (const std::optional<int> code = Look(path, flags, &looked)) return *code;
  const std::vector<rollout::Difference> differences = looked.rollout->Differences();
  PrintDifferences(differences, looked.rollout->nodes(), looked.rollout->down());
  if (Common().json) {
    PrintJson({{"nodes", looked.rollout->nodes()},
               {"down", looked.rollout->down()},
               {"differences", DifferencesJson(differences)}});
  }
  return differences.empty() ? kExitOk : kExitFailed;
}

void AddTargetFlags(Command& command, ApplyFlags& flags) {
  command.Flag("targets", &flags.targets,
               "dns:///NAME:PORT or ipv4:HOST:PORT,HOST:PORT: the nodes; default: --server");
  command.Flag("max_down", &flags.max_down, "nodes that may be down: a number, or a share as 1%",
               {.fix = "give a number of nodes, or a share such as 1%"});
  command.Flag("parallel", &flags.options.parallel, "nodes that are asked or changed at a time",
               {.low = 1, .high = 256});
}

}  // namespace

void AddApply(Command& program) {
  Command& apply = program.Add(
      "apply", "bring a set of operators to every node of a target",
      "FILE lists operators, and the files that they are made of (docs/fleet.md). The steps: look "
      "at\n"
      "all nodes, claim them, load what they lack on all of them, make it serve on --canary nodes "
      "and\n"
      "watch these for --bake, then on the others in --waves, then look for nodes that were added\n"
      "meanwhile. If a step fails, every node goes back to what it served before.\n"
      "No state is kept here: run the same command again after it was interrupted.\n"
      "Exit status: 0 every node serves the set; 1 it failed, and every node that answers serves "
      "what\n"
      "it served before; 3 nodes are down and 4 something prevents it, nothing was changed; 6 a "
      "node is\n"
      "in neither state: run it again.\n"
      "  residentctl apply operators.yaml --targets dns:///residentd-all:50051 --dry_run\n"
      "  residentctl apply operators.yaml --targets dns:///residentd-all:50051\n"
      "  residentctl apply operators.yaml --targets dns:///residentd-all:50051 --undo\n");
  auto flags = std::make_shared<ApplyFlags>();
  rollout::Options& options = flags->options;
  static const FlagRule<absl::Duration>& time =
      *new FlagRule<absl::Duration>{.low = absl::ZeroDuration(),
                                    .high = absl::Hours(30 * 24),
                                    .fix = "give 0s to 720h, e.g. 60s"};
  AddTargetFlags(apply, *flags);
  apply.Flag("canary", &options.canary, "nodes that are changed first; 0: none");
  apply.Flag("canary_nodes", &flags->canary_nodes,
             "names or addresses of the nodes that are changed first, separated by commas");
  apply.Flag("percent", &options.percent,
             "share of the batches on the canary that the new versions serve first, for --bake; 0: "
             "they serve all at once",
             {.low = 0, .high = 100, .fix = "give a number from 0 to 100"});
  apply.Flag("bake", &flags->bake,
             "how long the canary is watched; default: bake.time of the set, or 1m",
             {.holds =
                  [](const std::optional<absl::Duration>& bake) {
                    return !bake.has_value() || (*bake >= *time.low && *bake <= *time.high);
                  },
              .fix = time.fix});
  apply.Flag("min_tasks", &options.min_tasks,
             "tasks that each changed operator must serve on the canary; 0: any number");
  apply.Flag("waves", &flags->waves,
             "shares of the other nodes that are changed one after the other",
             {.fix = "give ascending shares of which the last is 100%, such as 10%,50%,100%"});
  apply.Flag("wave_bake", &options.wave_bake, "how long the nodes of a wave are watched", time);
  apply.Flag("lease", &options.lease,
             "how long a claim lasts if this command is killed; a node that is watched may be "
             "silent for a "
             "third of it",
             {.low = absl::Seconds(1), .high = absl::Minutes(10), .fix = "give 1s to 10m"});
  apply.Flag("publish", &options.publish,
             "folder to write the set and its files to when every node serves it");
  apply.Flag("again", &options.again, "try a plan again that has failed before");
  apply.Flag("steal", &options.steal, "end another plan's claim; needs the role admin");
  apply.Flag("dry_run", &flags->dry_run, "only print what would be done");
  apply.Flag("undo", &flags->undo, "go back to what served before this set was applied");
  apply.Run("FILE", [flags](const Words& words) { return Apply(words[0], *flags); });
}

void AddDiff(Command& program) {
  Command& diff =
      program.Add("diff", "compare the nodes of a target with a set of operators",
                  "Prints what `residentctl apply` would do. Exit status 0 if every node serves "
                  "the set, 1 if one\n"
                  "differs, more on an error.\n"
                  "  residentctl diff operators.yaml --targets dns:///residentd-all:50051\n");
  auto flags = std::make_shared<ApplyFlags>();
  AddTargetFlags(diff, *flags);
  diff.Run("FILE", [flags](const Words& words) { return Diff(words[0], *flags); });
}

}  // namespace resident::cli
