#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/graph_profile.h"
#include "client/cli/output.h"
#include "client/commands/graph_commands.h"

namespace resident::cli {
namespace {

struct TraceOptions {
  GraphRunOptions run;
  std::string out;
};

struct Totals {
  uint64_t work_ns = 0;
  uint64_t wait_ns = 0;
  uint64_t critical_ns = 0;
  uint64_t gap_ns = 0;

  uint64_t path_ns() const { return critical_ns + gap_ns; }
};

std::string Duration(uint64_t ns) { return HumanDuration(absl::Nanoseconds(ns)); }

std::string Percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "";
  return absl::StrFormat("%.1f%%", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string ProfileText(const GraphProfile& profile,
                        const std::vector<GraphProfile::Operator>& operators, const Totals& totals,
                        const v1::GraphResult& result) {
  Table table({"OPERATOR", "CHUNKS", "WORK", "SHARE", "WAITING", "CRITICAL PATH", "SHARE"},
              {Table::kLeft, Table::kRight, Table::kRight, Table::kRight, Table::kRight,
               Table::kRight, Table::kRight});
  for (const GraphProfile::Operator& op : operators) {
    table.Add({op.name, FormatExact(op.chunks), Duration(op.work_ns),
               Percent(op.work_ns, totals.work_ns), Duration(op.wait_ns), Duration(op.critical_ns),
               Percent(op.critical_ns, totals.path_ns())});
  }
  table.Add({"(between chunks)", "", "", "", "", Duration(totals.gap_ns),
             Percent(totals.gap_ns, totals.path_ns())});
  table.Add({"(all)", FormatExact(profile.events().size()), Duration(totals.work_ns), "",
             Duration(totals.wait_ns), Duration(totals.path_ns()), ""});
  const size_t workers = profile.CountWorkers();
  std::string text = absl::StrCat(
      table.ToString(), FormatExact(result.steps()), result.steps() == 1 ? " step" : " steps",
      " on device ", result.device(), ", ", workers, workers == 1 ? " worker" : " workers", "\n");
  if (result.dropped_trace_events() > 0) {
    absl::StrAppend(&text, FormatExact(result.dropped_trace_events()),
                    " chunks are missing, because a part of the run had more of them than the "
                    "memory for its trace takes: all sums are too small\n");
  }
  return text;
}

Json ProfileJson(const GraphProfile& profile, const std::vector<GraphProfile::Operator>& operators,
                 const Totals& totals, const v1::GraphResult& result) {
  Json json = {{"steps", result.steps()},
               {"device", result.device()},
               {"workers", profile.CountWorkers()},
               {"chunks", profile.events().size()},
               {"dropped_chunks", result.dropped_trace_events()},
               {"work_ns", totals.work_ns},
               {"waiting_ns", totals.wait_ns},
               {"critical_path_ns", totals.path_ns()},
               {"critical_gap_ns", totals.gap_ns},
               {"operators", Json::array()}};
  for (const GraphProfile::Operator& op : operators) {
    json["operators"].push_back({{"operator", op.name},
                                 {"chunks", op.chunks},
                                 {"work_ns", op.work_ns},
                                 {"waiting_ns", op.wait_ns},
                                 {"critical_ns", op.critical_ns}});
  }
  return json;
}

int Trace(const Words& words, const TraceOptions& options) {
  if (absl::Status status = CheckWritable(options.out); !status.ok()) return UsageError(status);
  PreparedGraphRun run;
  if (const std::optional<int> failed = PrepareGraphRun(words, options.run, &run)) return *failed;
  const absl::StatusOr<v1::GraphReport> report =
      run.client->ValidateGraph(run.graph(), /*dependencies=*/true);
  if (!report.ok()) return CallError(report.status());
  if (!report->accepted()) {
    Print(ReportText(run.graph(), *report));
    return kExitFailed;
  }
  // A graph that can run may have more dependencies than a report lists.
  const auto listed = static_cast<uint64_t>(report->dependencies_size());
  if (listed < report->dependency_count()) {
    return CallError(absl::FailedPreconditionError(absl::StrCat(
        "the graph has ", report->dependency_count(), " dependencies, of which the daemon lists ",
        listed, ", so that its critical path cannot be found. Fix: trace a part of the graph")));
  }
  GraphProfile profile(run.graph(), *report);
  run.request.set_trace(true);
  const absl::StatusOr<v1::GraphResult> result = run.client->RunGraph(
      run.request, /*on_step=*/nullptr, [&](const v1::GraphTrace& trace) { profile.Add(trace); });
  if (!result.ok()) return CallError(result.status());
  if (absl::Status status = WriteOutputs(*result, run.files); !status.ok()) {
    return WriteError(status);
  }
  const std::vector<GraphProfile::PathPart> path = profile.CriticalPath();
  if (!options.out.empty()) {
    const absl::Status written = WriteFile(options.out, profile.PerfettoJson(path));
    if (!written.ok()) return WriteError(written);
  }
  const std::vector<GraphProfile::Operator> operators = profile.Operators(path);
  Totals totals;
  for (const GraphProfile::Operator& op : operators) {
    totals.work_ns += op.work_ns;
    totals.wait_ns += op.wait_ns;
    totals.critical_ns += op.critical_ns;
  }
  for (const GraphProfile::PathPart& part : path) totals.gap_ns += part.gap_ns;
  if (Common().json) {
    PrintJson(ProfileJson(profile, operators, totals, *result));
  } else {
    Print(ProfileText(profile, operators, totals, *result));
  }
  return kExitOk;
}

}  // namespace

void AddGraphTrace(Command& graph) {
  auto options = std::make_shared<TraceOptions>();
  Command& trace = graph.Add(
      "trace", "run a graph once and show where its time goes",
      "Takes the arguments of graph run. Prints for each operator its chunks (parts of nodes that\n"
      "workers execute), their work, the time for which workers waited before them, and their\n"
      "part of the critical path. --out writes a trace with a track for each worker, which\n"
      "https://ui.perfetto.dev shows. Only for runs that the engine executes itself:\n"
      "  residentctl graph trace feature.json x=1,2,3 scale=0.5 --out trace.json\n");
  AddGraphRunFlags(trace, &options->run);
  AddOutFlag(trace, &options->out);
  trace.Run(kGraphRunWords, [options](const Words& words) { return Trace(words, *options); });
}

}  // namespace resident::cli
