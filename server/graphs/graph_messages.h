// Checks graphs that are messages (reader/graph_reader.h), and describes as messages what was
// found.
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
#include "server/graphs/reader/graph_reader.h"

namespace resident {

// `dependencies`: whether to list them. `budget`: of the check; once it has ended, no more are
// listed.
void FillGraphReport(const graph::Graph& graph, const graph::GraphCheck& check,
                     const graph::Findings& findings, bool dependencies, graph::CheckBudget& budget,
                     v1::GraphReport* report);

// Lists what Fuse has fused.
void FillFusions(const graph::CheckedGraph& checked, v1::GraphReport* report);

// ReadGraph, CheckGraph, FillGraphReport, Fuse and FillFusions.
v1::GraphReport ValidateGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                              bool dependencies, const graph::DeviceLimit& limit = {},
                              graph::CheckBudget* budget = nullptr);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_MESSAGES_H_
