// Converts graphs from messages to the runtime's form, and what was found to messages.
//
// Thread safety: pure functions.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_MESSAGES_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_MESSAGES_H_

#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/operator_catalog.h"

namespace resident {

// Adds what is wrong with the graph's elements to `findings`, also fields that this version does
// not know (108). The graph may be checked in any case. `budget`: of the check; null: its own.
graph::Graph ReadGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                       graph::Findings* findings, graph::CheckBudget* budget = nullptr);

// `dependencies`: whether to list them.
void FillGraphReport(const graph::Graph& graph, const graph::GraphCheck& check,
                     const graph::Findings& findings, bool dependencies, v1::GraphReport* report);

// ReadGraph, CheckGraph and FillGraphReport.
v1::GraphReport ValidateGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                              bool dependencies, const graph::DeviceLimit& limit = {},
                              graph::CheckBudget* budget = nullptr);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_MESSAGES_H_
