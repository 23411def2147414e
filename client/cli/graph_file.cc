#include "client/cli/graph_file.h"

#include <cassert>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "runtime/graph/finding.h"

namespace resident::cli {

absl::StatusOr<v1::Graph> ParseGraph(const std::string& path, const std::string& text) {
  v1::Graph graph;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &graph);
  if (status.ok()) return graph;
  const std::string what(status.message().data(), status.message().size());
  // Protobuf has no code of its own for a field that does not exist.
  const bool unknown_field = absl::StrContains(what, "Cannot find field");
  return absl::InvalidArgumentError(absl::StrCat(
      graph::CodeName(unknown_field ? graph::Code::kUnknownField : graph::Code::kUnparsable), " ",
      path, ": ", what, ". Fix: write the graph as docs/graph_format.md describes"));
}

std::string GraphNodeName(const v1::Graph& graph, uint32_t index) {
  assert(index < static_cast<uint32_t>(graph.nodes_size()));
  const std::string& name = graph.nodes(static_cast<int>(index)).name();
  return name.empty() ? absl::StrCat("#", index) : name;
}

}  // namespace resident::cli
