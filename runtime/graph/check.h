// CheckGraph: whether a graph may be used, with everything that is wrong with it.
//
// Checks are made in this order: each element by itself (GraphBuilder), each call of an operator,
// the loop, and the counters; then, only if none of these found an error, the flow of data, an
// explicit order, and last the memory. What a later group would find in a graph with earlier errors
// would mostly follow from them.
//
// Thread safety: pure functions.
//
//   Findings findings;
//   GraphBuilder builder(catalog, &findings);  ...
//   const GraphCheck check = CheckGraph(builder.Finish(), &findings, {}, &budget);
//   if (check.accepted) ...
#ifndef RESIDENT_RUNTIME_GRAPH_CHECK_H_
#define RESIDENT_RUNTIME_GRAPH_CHECK_H_

#include <cstdint>
#include <optional>

#include "runtime/graph/check_budget.h"
#include "runtime/graph/dataflow.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/memory.h"

namespace resident::graph {

struct GraphCheck {
  bool accepted = false;
  // Absent if the check ended before.
  std::optional<Dependencies> order;
  // Nodes on the longest chain of them.
  uint32_t longest_chain = 0;
};

// A graph that was accepted, and the order that was derived.
struct CheckedGraph {
  Graph graph;
  Dependencies order;
};

// `findings`: those of the graph's builder, to which this check adds its own. `limit`: of the
// devices on which it is to run. `budget`: of the builder; null: one of the check's own.
GraphCheck CheckGraph(const Graph& graph, Findings* findings, const DeviceLimit& limit = {},
                      CheckBudget* budget = nullptr);

// Bytes of the memory of all tensors of a kind.
int64_t BytesOf(const Graph& graph, TensorKind kind);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_CHECK_H_
