// Checks each call of an operator by itself: dtypes, numbers of dimensions, shapes and scalars
// against the signature (205 to 207, 211, 212, 303), rows outside of their tensor (203), and the
// memory that the node writes (208, 402, 405, 406).
#ifndef RESIDENT_RUNTIME_GRAPH_CALLS_H_
#define RESIDENT_RUNTIME_GRAPH_CALLS_H_

#include <cstdint>

#include "runtime/graph/check_budget.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// Nodes without an operator are skipped: the builder has reported them.
void CheckCalls(const Graph& graph, Findings* findings, CheckBudget& budget);
// Checks one of them.
void CheckCall(const Graph& graph, uint32_t node, Findings* findings, CheckBudget& budget);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_CALLS_H_
