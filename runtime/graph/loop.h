// Checks the loop of a graph: what stops it, its updates of scalars, and the records of its streams
// (602 to 604).
#ifndef RESIDENT_RUNTIME_GRAPH_LOOP_H_
#define RESIDENT_RUNTIME_GRAPH_LOOP_H_

#include "runtime/graph/check_budget.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// Nothing to do for a graph without a loop.
void CheckLoop(const Graph& graph, Findings* findings, CheckBudget& budget);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_LOOP_H_
