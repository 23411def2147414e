// graph run: runs a graph once, with values from the command line. `graph trace` uses a part of it.
#ifndef RESIDENT_CLIENT_COMMANDS_GRAPH_RUN_H_
#define RESIDENT_CLIENT_COMMANDS_GRAPH_RUN_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/commands/command.h"
#include "client/residentd_client.h"

namespace resident::cli {

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

#endif  // RESIDENT_CLIENT_COMMANDS_GRAPH_RUN_H_
