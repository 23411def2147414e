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
#include <string>
#include <string_view>
#include <vector>

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

// What Fuse (fuse.h) made of a graph. Without fused nodes, all members but `serving` are empty.
struct Fusion {
  // A node as it was written: its index, and its name.
  struct Written {
    uint32_t index = 0;
    std::string_view name;
  };
  // A node that executes several written nodes. `node`: its index in the present graph. The last
  // written one is what it is called by: the present node has its name and its place.
  struct Fused {
    uint32_t node = 0;
    std::vector<Written> written;  // By index.
  };

  std::vector<Fused> fused;  // By node.
  // By node of the present graph: its index as it was written.
  std::vector<uint32_t> written;
  uint32_t written_nodes = 0;
  // The operators that the written nodes call. They decide who may run the graph, and whether it
  // fits the operators.
  std::vector<OperatorInfo> operators;
  // Bit i: the built-in version of FusionOperators()[i] served then; nullopt: the result of Fuse
  // does not depend on that.
  std::optional<uint32_t> serving;
};

// A graph that was accepted, and the order that was derived.
struct CheckedGraph {
  Graph graph;
  Dependencies order;
  Fusion fusion = {};

  // The operators of the graph as it was written.
  const std::vector<OperatorInfo>& written_operators() const {
    return fusion.fused.empty() ? graph.operators : fusion.operators;
  }
  // The index of a node as the graph was written. Copies of records follow the nodes in both.
  uint32_t WrittenIndex(uint32_t node) const;
  // The node's name, or "#7", as the graph was written.
  std::string WrittenName(uint32_t node) const;
  // The names of the other nodes that a node executes: "norm, #7".
  std::string OtherNames(uint32_t node) const;
};

// `findings`: those of the graph's builder, to which this check adds its own. `limit`: of the
// devices on which it is to run. `budget`: of the builder; null: one of the check's own.
GraphCheck CheckGraph(const Graph& graph, Findings* findings, const DeviceLimit& limit = {},
                      CheckBudget* budget = nullptr);

// Bytes of the memory of all tensors of a kind.
int64_t CountBytes(const Graph& graph, TensorKind kind);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_CHECK_H_
