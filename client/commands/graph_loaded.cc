#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/graph_file.h"
#include "client/cli/output.h"
#include "client/cli/proto_json.h"
#include "client/commands/graph_commands.h"

namespace resident::cli {
namespace {

// Digits of an id that are printed, and that a word must have at least.
constexpr size_t kMinDigits = 4;

// UTC, with seconds.
std::string TimeText(int64_t milliseconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(milliseconds),
                          absl::UTCTimeZone());
}

int LoadGraph(const std::string& path, bool fuse) {
  std::string text;
  if (absl::Status status = ReadFile(path, &text); !status.ok()) return UsageError(status);
  absl::StatusOr<v1::Graph> graph = ParseGraph(path, text);
  if (!graph.ok()) return UsageError(graph.status());
  ApplyFuseFlag(fuse, &*graph);
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::LoadGraphResponse> loaded = (*client)->LoadGraph(*graph);
  if (!loaded.ok()) return CallError(loaded.status());
  if (Common().json) {
    PrintJson(ToJson(*loaded));
  } else {
    Print(ReportText(*graph, loaded->report()));
    if (loaded->report().accepted()) {
      Print(absl::StrCat(loaded->already_loaded() ? "was loaded already: " : "loaded: ",
                         loaded->graph_id(), "\n"));
    }
  }
  return loaded->report().accepted() ? kExitOk : kExitFailed;
}

int ListGraphs() {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<std::vector<v1::LoadedGraph>> graphs = (*client)->ListGraphs();
  if (!graphs.ok()) return CallError(graphs.status());
  if (Common().json) {
    Json json = Json::array();
    for (const v1::LoadedGraph& graph : *graphs) json.push_back(ToJson(graph));
    PrintJson(json);
    return kExitOk;
  }
  Table table({"ID", "NAME", "STATE", "NODES", "SIZE", "RUNS", "SESSIONS", "LOADED", "BY"},
              {Table::kLeft, Table::kLeft, Table::kLeft, Table::kRight, Table::kRight,
               Table::kRight, Table::kRight});
  for (const v1::LoadedGraph& graph : *graphs) {
    table.Add({ShortHash(graph.graph_id()), graph.name(), EnumName(graph.state()),
               FormatExact(graph.nodes()), FormatBytes(graph.size_bytes()),
               FormatExact(graph.runs()), FormatExact(graph.sessions()),
               TimeText(graph.loaded_ms()), absl::StrJoin(graph.holders(), ", ")});
  }
  Print(table.empty() ? "no graphs are loaded\n" : table.ToString());
  return kExitOk;
}

int DescribeGraph(const std::string& word) {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::LoadedGraph> found = FindLoadedGraph(**client, word);
  if (!found.ok()) return CallError(found.status());
  const absl::StatusOr<v1::DescribeGraphResponse> described =
      (*client)->DescribeGraph(found->graph_id());
  if (!described.ok()) return CallError(described.status());
  const v1::LoadedGraph& graph = described->loaded();
  if (Common().json) {
    PrintJson(ToJson(*described));
    return kExitOk;
  }
  Table table({});
  table.Add({"id", graph.graph_id()});
  table.Add({"name", graph.name()});
  table.Add({"state", EnumName(graph.state())});
  table.Add(
      {"loaded", absl::StrCat(TimeText(graph.loaded_ms()), graph.holders().empty() ? "" : " by ",
                              absl::StrJoin(graph.holders(), ", "))});
  table.Add({"memory", absl::StrCat(FormatBytes(graph.memory_bytes()), ", of these ",
                                    FormatBytes(graph.size_bytes()), " as a message")});
  table.Add({"runs",
             absl::StrCat(FormatExact(graph.runs()), ", ", FormatExact(graph.steps()), " steps")});
  table.Add({"sessions", FormatExact(graph.sessions())});
  Print(table.ToString());
  Print("\n");
  Print(GraphText(described->graph(), v1::GraphReport()));
  return kExitOk;
}

int UnloadGraph(const std::string& word, bool for_all) {
  const absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  const absl::StatusOr<v1::LoadedGraph> found = FindLoadedGraph(**client, word);
  if (!found.ok()) return CallError(found.status());
  const absl::StatusOr<bool> removed = (*client)->UnloadGraph(found->graph_id(), for_all);
  if (!removed.ok()) return CallError(removed.status());
  if (Common().json) {
    PrintJson({{"graph_id", found->graph_id()}, {"removed", *removed}});
  } else {
    Print(absl::StrCat("unloaded ", found->graph_id(),
                       *removed ? "\n" : "; other callers still hold it\n"));
  }
  return kExitOk;
}

}  // namespace

absl::StatusOr<v1::LoadedGraph> FindLoadedGraph(client::Client& client, const std::string& word) {
  absl::StatusOr<std::vector<v1::LoadedGraph>> graphs = client.ListGraphs();
  if (!graphs.ok()) return graphs.status();
  std::vector<const v1::LoadedGraph*> found;
  for (const v1::LoadedGraph& graph : *graphs) {
    if (graph.graph_id() == word) return graph;
    const bool prefix = word.size() >= kMinDigits && absl::StartsWith(graph.graph_id(), word);
    if (graph.name() == word || prefix) found.push_back(&graph);
  }
  if (found.size() == 1) return *found[0];
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat("no graph with the id or name '", word,
                                            "' is loaded. Fix: run `residentctl graph list`"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "'", word, "' stands for ", found.size(), " loaded graphs, such as ", found[0]->graph_id(),
      " and ", found[1]->graph_id(), ". Fix: give more digits of the id"));
}

void AddGraphLoaded(Command& graph) {
  auto fuse = std::make_shared<bool>(true);
  Command& load = graph.Add("load", "check a graph and keep it in the daemon");
  AddFuseFlag(load, fuse.get());
  load.Run("FILE", [fuse](const Words& words) { return LoadGraph(words[0], *fuse); });
  graph.Add("list", "list the loaded graphs").Run("", [](const Words&) { return ListGraphs(); });
  graph.Add("describe", "show a loaded graph").Run("GRAPH", [](const Words& words) {
    return DescribeGraph(words[0]);
  });
  auto for_all = std::make_shared<bool>(false);
  Command& unload = graph.Add("unload", "end the hold of a loaded graph");
  unload.Flag("for_all", for_all.get(), "for all callers that have loaded it (role admin)");
  unload.Run("GRAPH", [for_all](const Words& words) { return UnloadGraph(words[0], *for_all); });
}

}  // namespace resident::cli
