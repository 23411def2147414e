// The flow of data through the nodes in their order: which node must wait for which (the derived
// dependencies), and whether everything that is read or returned was written.
//
// Dependencies are exact for strided views, and use everything that a node may access, whatever the
// scalars are. A dependency that follows from others may be missing: if a, b and c write the same
// memory, c waits for b, and b for a.
//
// If dimensions or rows depend on scalars, it is also checked for the ends of their ranges whether
// everything was written.
//
// Thread safety: none.
//
//   std::optional<Dependencies> order = DeriveOrder(graph, &findings, budget);
//   for (const Dependency& dependency : order->Of(node)) ...
#ifndef RESIDENT_RUNTIME_GRAPH_DATAFLOW_H_
#define RESIDENT_RUNTIME_GRAPH_DATAFLOW_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// The values are those of resident.v1.GraphDependency.Kind.
enum class DependencyKind : uint32_t {
  kReadAfterWrite = 1,
  kWriteAfterRead = 2,
  kWriteAfterWrite = 3
};

// There are tens of millions of them in a large graph: four bytes each.
struct Dependency {
  // The node that must end first. Within a step its index is smaller.
  uint32_t after : 30 = 0;
  // The lowest of several kinds.
  DependencyKind kind : 2 = DependencyKind::kReadAfterWrite;
};
static_assert(sizeof(Dependency) == 4);

class Dependencies {
 public:
  // The dependencies of a node, by the other node. At most one for each other node.
  absl::Span<const Dependency> Of(uint32_t node) const {
    return absl::MakeConstSpan(list_).subspan(ends_[node], ends_[node + 1] - ends_[node]);
  }
  uint64_t size() const { return list_.size(); }
  size_t nodes() const { return ends_.size() - 1; }
  // Nodes on the longest chain of dependencies. `budget`: of a check; once that has ended, the
  // result is 0.
  uint32_t LongestChain(CheckBudget* budget = nullptr) const;
  // By node: the longest chain that ends before it. Empty if the check has ended.
  std::vector<uint32_t> Levels(CheckBudget* budget = nullptr) const;

  // Appends those of the next node.
  void Add(absl::Span<const Dependency> of_node) {
    list_.insert(list_.end(), of_node.begin(), of_node.end());
    ends_.push_back(list_.size());
  }

 private:
  std::vector<Dependency> list_;
  std::vector<uint64_t> ends_ = {0};
};

// Nullopt: the graph is over a limit, or the check has ended. Adds 106, 401, 403, 404, 407 and 408.
// REQUIRES: the graph has no errors so far.
std::optional<Dependencies> DeriveOrder(const Graph& graph, Findings* findings,
                                        CheckBudget& budget);

// The dependencies across the end of a step: of each node, the nodes of the step before that must
// end first. Nullopt: as for DeriveOrder. REQUIRES: DeriveOrder found no errors.
std::optional<Dependencies> DeriveStepOrder(const Graph& graph, Findings* findings,
                                            CheckBudget& budget);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_DATAFLOW_H_
