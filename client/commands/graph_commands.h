// The commands of `residentctl graph`, and what they share.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_COMMANDS_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_COMMANDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/commands/command.h"
#include "client/residentd_client.h"
#include "resident/v1/graphs.pb.h"

namespace resident::cli {

// `graph trace`: runs a graph once and shows where its time goes.
void AddGraphTrace(Command& graph);

// `graph llama`: converts the folder of a Llama model into a graph that decodes.
void AddGraphLlama(Command& graph);

// `graph load`, `list`, `describe`, `unload`: graphs that the daemon keeps.
void AddGraphLoaded(Command& graph);

// The loaded graph that `word` names: its id, the first 4 or more digits of its id, or its name.
// NOT_FOUND: there is none. FAILED_PRECONDITION: there are several.
absl::StatusOr<v1::LoadedGraph> FindLoadedGraph(client::Client& client, const std::string& word);

// Graphs and reports about them as text.

// Every finding on a line, then a line that says whether the graph is accepted.
std::string ReportText(const v1::Graph& graph, const v1::GraphReport& report);

// The tensors and the nodes in their order, with the nodes for which each waits, and which of them
// are executed together. REQUIRES: the report is that of the graph, with its dependencies.
std::string GraphText(const v1::Graph& graph, const v1::GraphReport& report);

// `graph run`: runs a graph once, with values from the command line.
void AddGraphRun(Command& graph);

// --fuse, of all commands that read a graph: with false, the daemon fuses no nodes of it.
void AddFuseFlag(Command& command, bool* fuse);
void ApplyFuseFlag(bool fuse, v1::Graph* graph);

inline constexpr char kGraphRunWords[] = "FILE|GRAPH [NAME=VALUE]...";

struct GraphRunOptions {
  std::optional<uint32_t> device;
  uint64_t steps = 0;
  bool fuse = true;
};
void AddGraphRunFlags(Command& command, GraphRunOptions* options);

// A run that can be sent.
struct PreparedGraphRun {
  std::unique_ptr<client::Client> client;
  v1::RunGraphRequest request;
  v1::Graph loaded;  // If the request has an id.
  // Files of outputs, by tensor.
  std::map<std::string, std::string> files;

  const v1::Graph& graph() const { return request.has_graph() ? request.graph() : loaded; }
};

// Reads the words of the command line, and connects. Returns the exit code if that fails, otherwise
// nullopt.
std::optional<int> PrepareGraphRun(const Words& words, const GraphRunOptions& options,
                                   PreparedGraphRun* run);

// Writes the outputs that have files.
absl::Status WriteOutputs(const v1::GraphResult& result,
                          const std::map<std::string, std::string>& files);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_COMMANDS_H_
