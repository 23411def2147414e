// The call Graphs.Render, without gRPC.
//
// Thread safety: pure functions.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_RENDER_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_RENDER_H_

#include "absl/status/status.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/operator_catalog.h"

namespace resident {

// INVALID_ARGUMENT: no graph, an unknown format, or more nodes than a picture may have.
absl::Status CheckRender(const v1::RenderGraphRequest& request);

// Checks the graph within the budget and draws it. A graph that is refused has a report and no
// picture. INVALID_ARGUMENT: it is too large for a picture. REQUIRES: CheckRender is OK.
absl::Status RenderGraph(const v1::RenderGraphRequest& request,
                         const graph::OperatorCatalog& catalog, graph::CheckBudget& budget,
                         v1::RenderGraphResponse* response);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_RENDER_H_
