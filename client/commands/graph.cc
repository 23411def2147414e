// graph: checks and shows task graphs.
#include <memory>

#include "client/cli/common_options.h"
#include "client/cli/exit_codes.h"
#include "client/cli/graph_file.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/graph_text.h"

namespace resident::cli {
namespace {

// Reads the file and lets the daemon check it. Returns the exit code if that fails, otherwise
// nullopt.
std::optional<int> Check(const std::string& path, bool dependencies, v1::Graph* graph,
                         v1::GraphReport* report) {
  std::string text;
  if (absl::Status status = ReadFile(path, &text); !status.ok()) return UsageError(status);
  absl::StatusOr<v1::Graph> parsed = ParseGraph(path, text);
  if (!parsed.ok()) return UsageError(parsed.status());
  *graph = *std::move(parsed);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::GraphReport> checked = (*client)->ValidateGraph(*graph, dependencies);
  if (!checked.ok()) return CallError(checked.status());
  *report = *std::move(checked);
  return std::nullopt;
}

int Validate(const std::string& path) {
  v1::Graph graph;
  v1::GraphReport report;
  if (const std::optional<int> failed = Check(path, /*dependencies=*/false, &graph, &report)) {
    return *failed;
  }
  if (Common().json) {
    PrintJson(ToJson(report));
  } else {
    Print(ReportText(graph, report));
  }
  return report.accepted() ? kExitOk : kExitFailed;
}

int Show(const std::string& path, bool dot) {
  v1::Graph graph;
  v1::GraphReport report;
  if (const std::optional<int> failed = Check(path, /*dependencies=*/true, &graph, &report)) {
    return *failed;
  }
  if (Common().json) {
    PrintJson(ToJson(report));
  } else if (!report.accepted()) {
    Print(ReportText(graph, report));
  } else if (dot) {
    Print(GraphDot(graph, report));
  } else {
    Print(GraphText(graph, report));
    Print("\n");
    Print(ReportText(graph, report));
  }
  return report.accepted() ? kExitOk : kExitFailed;
}

}  // namespace

void AddGraph(Command& program) {
  Command& graph = program.Add(
      "graph", "check and show task graphs",
      "FILE contains a graph as JSON (docs/graph_format.md) and may be - for stdin. validate\n"
      "checks it against the operators that serve, and prints each finding with its code; exit\n"
      "status 1 if the graph is refused. show also prints the nodes for which each node waits,\n"
      "which follow from the memory that nodes read and write; nodes of one stage may run at the\n"
      "same time. --dot prints the same for Graphviz:\n"
      "  residentctl graph validate decode.json\n"
      "  residentctl graph show decode.json --dot | dot -Tsvg > decode.svg\n");
  graph.Add("validate", "check a graph").Run("FILE", [](const Words& words) {
    return Validate(words[0]);
  });
  auto dot = std::make_shared<bool>(false);
  Command& show = graph.Add("show", "check a graph and show its order");
  show.Flag("dot", dot.get(), "print the language of Graphviz");
  show.Run("FILE", [dot](const Words& words) { return Show(words[0], *dot); });
}

}  // namespace resident::cli
