#include "runtime/graph/check.h"

#include "runtime/graph/calls.h"
#include "runtime/graph/explicit_order.h"
#include "runtime/graph/loop.h"

namespace resident::graph {

GraphCheck CheckGraph(const Graph& graph, Findings* findings, const DeviceLimit& limit) {
  GraphCheck check;
  CheckCalls(graph, findings);
  CheckLoop(graph, findings);
  CheckCounters(graph, findings);
  if (findings->errors() > 0) return check;
  check.order = DeriveOrder(graph, findings);
  if (check.order.has_value() && graph.explicit_order() && findings->errors() == 0) {
    std::optional<Dependencies> step_order;
    if (graph.loop.has_value()) step_order = DeriveStepOrder(graph, findings);
    if (findings->errors() == 0) {
      CheckExplicitOrder(graph, *check.order, step_order.has_value() ? &*step_order : nullptr,
                         findings);
    }
  }
  CheckMemory(graph, limit, findings);
  check.accepted = findings->errors() == 0;
  return check;
}

int64_t BytesOf(const Graph& graph, TensorKind kind) {
  int64_t bytes = 0;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].kind == kind) bytes += graph.root_bytes[i];
  }
  return bytes;
}

}  // namespace resident::graph
