// Converts a task graph of AutoMegaKernel (AMK) into a graph of this project. docs/graph_amk.md
// describes the mapping of each opcode, and what is refused.
//
// The importer does not judge the order of the tasks or the flow of data: counters, waits and
// assignments are converted, and the validator (runtime/graph) checks them.
//
// Thread safety: pure functions.
//
//   ASSIGN_OR_RETURN(const AmkGraph imported, ImportAmk("decode.json", text));
#ifndef RESIDENT_CLIENT_IMPORTERS_AMK_IMPORT_H_
#define RESIDENT_CLIENT_IMPORTERS_AMK_IMPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/graphs.pb.h"

namespace resident::cli {

struct AmkGraph {
  v1::Graph graph;
  // What of the file has no effect in the graph, for people; at most 20.
  std::vector<std::string> notes;
};

// INVALID_ARGUMENT: the file cannot be parsed, or a task cannot be expressed; the message names the
// position, the buffer, or the task and its opcode. `path`: for messages.
absl::StatusOr<AmkGraph> ImportAmk(const std::string& path, const std::string& text);

// The graph in Protobuf's JSON mapping with the field names of graphs.proto.
absl::StatusOr<std::string> GraphJson(const v1::Graph& graph);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_AMK_IMPORT_H_
