#include "server/graphs/graph_render.h"

#include <cassert>

#include "runtime/base/status_macros.h"
#include "runtime/graph/drawing.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_messages.h"

namespace resident {

absl::Status CheckRender(const v1::RenderGraphRequest& request) {
  if (!request.has_graph()) return errors::NoGraph();
  if (request.format() != v1::RenderGraphRequest::FORMAT_DOT &&
      request.format() != v1::RenderGraphRequest::FORMAT_SVG) {
    return errors::UnknownDrawingFormat(request.format());
  }
  return graph::CheckDrawable(static_cast<uint64_t>(request.graph().nodes_size()),
                              static_cast<graph::DrawingFormat>(request.format()));
}

absl::Status RenderGraph(const v1::RenderGraphRequest& request,
                         const graph::OperatorCatalog& catalog, graph::CheckBudget& budget,
                         v1::RenderGraphResponse* response) {
  assert(CheckRender(request).ok());
  graph::Findings findings;
  const graph::Graph graph = ReadGraph(request.graph(), catalog, &findings, &budget);
  const graph::GraphCheck check = CheckGraph(graph, &findings, {}, &budget);
  FillGraphReport(graph, check, findings, /*dependencies=*/false, budget,
                  response->mutable_report());
  if (!check.accepted) return absl::OkStatus();
  ASSIGN_OR_RETURN(
      *response->mutable_picture(),
      DrawGraph(graph, *check.order, static_cast<graph::DrawingFormat>(request.format())));
  return absl::OkStatus();
}

}  // namespace resident
