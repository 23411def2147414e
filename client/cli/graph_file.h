// Reads a task graph from a file (docs/graph_format.md): the messages of resident/v1/graphs.proto
// as JSON. Names of nodes, as all commands print them.
//
//   ASSIGN_OR_RETURN(const v1::Graph graph, ParseGraph("decode.json", text));
#ifndef RESIDENT_CLIENT_CLI_GRAPH_FILE_H_
#define RESIDENT_CLIENT_CLI_GRAPH_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "resident/v1/graphs.pb.h"

namespace resident::cli {

// INVALID_ARGUMENT: the message begins with GRAPH_E101 (it cannot be parsed) or GRAPH_E108 (a field
// is unknown) and contains the position. `path`: for messages.
absl::StatusOr<v1::Graph> ParseGraph(const std::string& path, const std::string& text);

// The name of a node, or its index as "#7". REQUIRES: the graph has the node.
std::string GraphNodeName(const v1::Graph& graph, uint32_t index);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_GRAPH_FILE_H_
