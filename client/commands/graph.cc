// graph: checks, shows, loads, runs and imports task graphs.
#include <cstdio>
#include <memory>
#include <string>

#include "client/cli/common_options.h"
#include "client/cli/graph_file.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/graph_commands.h"
#include "client/importers/amk/import.h"

namespace resident::cli {
namespace {

// Reads the file and lets the daemon check it. Returns the exit code if that fails, otherwise
// nullopt.
std::optional<int> Check(const std::string& path, bool fuse, bool dependencies, v1::Graph* graph,
                         v1::GraphReport* report) {
  std::string text;
  if (absl::Status status = ReadFile(path, &text); !status.ok()) return UsageError(status);
  absl::StatusOr<v1::Graph> parsed = ParseGraph(path, text);
  if (!parsed.ok()) return UsageError(parsed.status());
  *graph = *std::move(parsed);
  ApplyFuseFlag(fuse, graph);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::GraphReport> checked = (*client)->ValidateGraph(*graph, dependencies);
  if (!checked.ok()) return CallError(checked.status());
  *report = *std::move(checked);
  return std::nullopt;
}

int Validate(const std::string& path, bool fuse) {
  v1::Graph graph;
  v1::GraphReport report;
  if (const std::optional<int> failed =
          Check(path, fuse, /*dependencies=*/false, &graph, &report)) {
    return *failed;
  }
  if (Common().json) {
    PrintJson(ToJson(report));
  } else {
    Print(ReportText(graph, report));
  }
  return report.accepted() ? kExitOk : kExitFailed;
}

// Prints a picture, or what is wrong with the graph.
int Draw(const std::string& path, v1::RenderGraphRequest::Format format) {
  v1::RenderGraphRequest request;
  request.set_format(format);
  std::string text;
  if (absl::Status status = ReadFile(path, &text); !status.ok()) return UsageError(status);
  absl::StatusOr<v1::Graph> graph = ParseGraph(path, text);
  if (!graph.ok()) return UsageError(graph.status());
  *request.mutable_graph() = *std::move(graph);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::RenderGraphResponse> drawn = (*client)->RenderGraph(request);
  if (!drawn.ok()) return CallError(drawn.status());
  if (Common().json) {
    PrintJson(ToJson(*drawn));
  } else if (!drawn->report().accepted()) {
    Print(ReportText(request.graph(), drawn->report()));
  } else {
    Print(drawn->picture());
  }
  return drawn->report().accepted() ? kExitOk : kExitFailed;
}

int Show(const std::string& path, bool fuse) {
  v1::Graph graph;
  v1::GraphReport report;
  if (const std::optional<int> failed = Check(path, fuse, /*dependencies=*/true, &graph, &report)) {
    return *failed;
  }
  if (Common().json) {
    PrintJson(ToJson(report));
  } else if (!report.accepted()) {
    Print(ReportText(graph, report));
  } else {
    Print(GraphText(graph, report));
    Print("\n");
    Print(ReportText(graph, report));
  }
  return report.accepted() ? kExitOk : kExitFailed;
}

// Converts a file of another system; needs no daemon.
int Import(const std::string& amk, const std::string& out) {
  if (amk.empty())
    return UsageError("graph import needs --amk FILE", "residentctl help graph import");
  std::string text;
  if (absl::Status status = ReadFile(amk, &text); !status.ok()) return UsageError(status);
  const absl::StatusOr<AmkGraph> imported = ImportAmk(amk, text);
  if (!imported.ok()) return UsageError(imported.status());
  const absl::StatusOr<std::string> json = GraphJson(imported->graph);
  if (!json.ok()) return UsageError(json.status());
  for (const std::string& note : imported->notes) {
    std::fprintf(stderr, "note: %s: %s\n", amk.c_str(), note.c_str());
  }
  if (out.empty()) {
    Print(*json);
    return kExitOk;
  }
  if (absl::Status status = WriteFile(out, *json); !status.ok()) return WriteError(status);
  return kExitOk;
}

}  // namespace

void AddGraph(Command& program) {
  Command& graph = program.Add(
      "graph", "check, show, load, run and import task graphs",
      "FILE contains a graph as JSON (docs/graph_format.md) and may be - for stdin. validate\n"
      "checks it against the operators that serve, and prints each finding with its code; exit\n"
      "status 1 if the graph is refused. show also prints the nodes for which each node waits,\n"
      "which follow from the memory that nodes read and write; nodes of one stage may run at the\n"
      "same time. Last it prints the nodes that one operator executes together, which\n"
      "--fuse=false of validate, show, load, run and trace prevents. --svg prints a picture of "
      "them, --dot the same for Graphviz:\n"
      "  residentctl graph validate decode.json\n"
      "  residentctl graph show decode.json --svg > decode.svg\n"
      "run executes the graph. NAME is a tensor or a scalar of the graph, and VALUE is 1,2,3 or\n"
      "0.5*1024 or @FILE (raw little-endian elements) or buffer:ID (a buffer, by its id or name).\n"
      "Weights that are not given are the buffers of the same name, states begin with zeros, and\n"
      "OUTPUT=@FILE writes an output to a file. Each step of a graph with streams prints a line.\n"
      "  residentctl graph run feature.json x=1,2,3 scale=0.5\n"
      "load keeps a graph in the daemon, so that runs need not send and check it. GRAPH is its "
      "id,\n"
      "the first digits of the id, or its name; run accepts it in place of FILE:\n"
      "  residentctl graph load feature.json\n"
      "  residentctl graph run feature x=1,2,3 scale=0.5\n");
  auto fuse = std::make_shared<bool>(true);
  Command& validate = graph.Add("validate", "check a graph");
  AddFuseFlag(validate, fuse.get());
  validate.Run("FILE", [fuse](const Words& words) { return Validate(words[0], *fuse); });
  AddGraphRun(graph);
  AddGraphTrace(graph);
  AddGraphLoaded(graph);
  auto dot = std::make_shared<bool>(false);
  Command& show = graph.Add("show", "check a graph and show its order");
  show.Flag("dot", dot.get(), "print the language of Graphviz");
  auto svg = std::make_shared<bool>(false);
  show.Flag("svg", svg.get(), "print a picture");
  AddFuseFlag(show, fuse.get());
  auto amk = std::make_shared<std::string>();
  auto out = std::make_shared<std::string>();
  Command& importer = graph.Add(
      "import", "convert a graph of another system",
      "Prints a task graph of AutoMegaKernel (AMK) as a graph of residentd, or writes it\n"
      "to --out; docs/graph_amk.md describes the conversion. No daemon is needed; graph\n"
      "validate checks the result:\n"
      "  residentctl graph import --amk decode.amk.json --out decode.json\n"
      "  residentctl graph validate decode.json\n");
  importer.Flag("amk", amk.get(), "the file of AMK, as JSON; - is stdin");
  AddOutFlag(importer, out.get());
  importer.Run("", [amk, out](const Words&) { return Import(*amk, *out); });
  AddGraphLlama(graph);
  show.Run("FILE", [dot, svg, fuse](const Words& words) {
    if (*dot && *svg) {
      return UsageError("--dot and --svg exclude each other", "residentctl help graph show");
    }
    if (*dot) return Draw(words[0], v1::RenderGraphRequest::FORMAT_DOT);
    if (*svg) return Draw(words[0], v1::RenderGraphRequest::FORMAT_SVG);
    return Show(words[0], *fuse);
  });
}

}  // namespace resident::cli
