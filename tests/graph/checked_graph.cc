#include "tests/graph/checked_graph.h"

#include <utility>

#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"

namespace resident::testing {

std::optional<graph::CheckedGraph> CheckBuiltinGraph(const v1::Graph& message) {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  graph::Findings findings;
  graph::CheckedGraph checked;
  checked.graph = ReadGraph(message, *catalog, &findings);
  graph::GraphCheck check = graph::CheckGraph(checked.graph, &findings);
  if (!check.accepted) return std::nullopt;
  checked.order = *std::move(check.order);
  return checked;
}

}  // namespace resident::testing
