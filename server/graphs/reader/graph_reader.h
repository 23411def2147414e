// ReadGraph: from a message with names to a Graph with indices.
//
// It checks everything that one element of the graph shows by itself: names, limits, shapes, views,
// scalars, and that arguments belong to parameters (codes 1xx, most of 2xx, 301, 302, 304). What
// the calls and their order mean is checked by CheckGraph (runtime/graph/check.h). It goes on after
// an error, so that one check finds all of them. An element with an error keeps its place: indices
// are those of the message.
//
// Thread safety: a pure function.
//
//   graph::Findings findings;
//   const graph::Graph graph = ReadGraph(message, catalog, &findings);
//   ... complete only if findings.errors() == 0
#ifndef RESIDENT_SERVER_GRAPHS_READER_GRAPH_READER_H_
#define RESIDENT_SERVER_GRAPHS_READER_GRAPH_READER_H_

#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/operator_catalog.h"

namespace resident {

// Adds what is wrong with the graph's elements to `findings`, also fields that this version does
// not know (108). The graph may be checked in any case. `budget`: of the check; null: its own.
graph::Graph ReadGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                       graph::Findings* findings, graph::CheckBudget* budget = nullptr);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_READER_GRAPH_READER_H_
