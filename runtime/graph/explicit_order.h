// Explicit order: counters and blocks of a graph that was written for another system.
//
// A node starts when every counter for which it waits has reached the threshold, and when the node
// before it in its block has ended. A node that has ended adds 1 to the counter that it signals.
// CheckCounters checks the counters by themselves (502 to 506). CheckExplicitOrder proves that they
// imply every derived dependency (501, 507 to 510), and with a loop also that a step comes after
// the step before it (601).
//
// The proof is exact. Without blocks, nodes with equal waits and equal signal are one class, and
// each class has a row of bits for the classes before it. With blocks, each node has a vector
// clock: for each block the number of nodes that have ended before. What fits neither is refused
// (106).
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_GRAPH_EXPLICIT_ORDER_H_
#define RESIDENT_RUNTIME_GRAPH_EXPLICIT_ORDER_H_

#include "runtime/graph/check_budget.h"
#include "runtime/graph/dataflow.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

void CheckCounters(const Graph& graph, Findings* findings, CheckBudget& budget);

// `step_order`: null without a loop. REQUIRES: CheckCounters found nothing.
void CheckExplicitOrder(const Graph& graph, const Dependencies& order,
                        const Dependencies* step_order, Findings* findings, CheckBudget& budget);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_EXPLICIT_ORDER_H_
