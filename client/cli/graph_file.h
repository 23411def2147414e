// Reads a task graph from a file (docs/graph_format.md): the messages of resident/v1/graphs.proto
// as JSON.
//
//   ASSIGN_OR_RETURN(const v1::Graph graph, ParseGraph("decode.json", text));
#ifndef RESIDENT_CLIENT_CLI_GRAPH_FILE_H_
#define RESIDENT_CLIENT_CLI_GRAPH_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "resident/v1/graphs.pb.h"

namespace resident::cli {

// INVALID_ARGUMENT: the message begins with GRAPH_E101 (it cannot be parsed) or GRAPH_E108 (a field
// is unknown) and contains the position. `path`: for messages.
absl::StatusOr<v1::Graph> ParseGraph(const std::string& path, const std::string& text);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_GRAPH_FILE_H_
