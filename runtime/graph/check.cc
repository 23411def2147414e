#include "runtime/graph/check.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "runtime/graph/calls.h"
#include "runtime/graph/explicit_order.h"
#include "runtime/graph/loop.h"

namespace resident::graph {

namespace {

std::string NameNode(uint32_t index, std::string_view name) {
  return name.empty() ? absl::StrCat("#", index) : std::string(name);
}

GraphCheck CheckAll(const Graph& graph, Findings* findings, const DeviceLimit& limit,
                    CheckBudget& budget) {
  GraphCheck check;
  CheckCalls(graph, findings, budget);
  CheckLoop(graph, findings, budget);
  CheckCounters(graph, findings, budget);
  if (findings->errors() > 0 || budget.ended()) return check;
  check.order = DeriveOrder(graph, findings, budget);
  if (check.order.has_value() && graph.explicit_order() && findings->errors() == 0) {
    std::optional<Dependencies> step_order;
    if (graph.loop.has_value()) step_order = DeriveStepOrder(graph, findings, budget);
    if (findings->errors() == 0 && !budget.ended()) {
      CheckExplicitOrder(graph, *check.order, step_order.has_value() ? &*step_order : nullptr,
                         findings, budget);
    }
  }
  if (check.order.has_value()) check.longest_chain = check.order->LongestChain(&budget);
  CheckMemory(graph, limit, findings);
  return check;
}

// 106: the check has ended before it knew everything.
void ReportEnd(const Graph& graph, const CheckBudget& budget, Findings* findings) {
  Findings::Place place;
  if (budget.node() < graph.nodes.size()) place.node = graph.NodeName(budget.node());
  if (budget.end() == CheckBudget::End::kSteps) {
    findings->Add(Code::kOverLimit, std::move(place),
                  absl::StrCat("the check takes more than ", budget.step_limit(),
                               " steps, which were used up at this node. Fix: split the graph, or "
                               "use views with fewer, longer rows"));
  } else if (budget.end() == CheckBudget::End::kBytes) {
    findings->Add(Code::kOverLimit, std::move(place),
                  absl::StrCat("the check takes more than ", budget.byte_limit(),
                               " bytes of memory, which were used up at this node. Fix: split the "
                               "graph, or use views with fewer, longer rows"));
  }
}

}  // namespace

uint32_t CheckedGraph::WrittenIndex(uint32_t node) const {
  if (fusion.fused.empty()) return node;
  const auto nodes = static_cast<uint32_t>(fusion.written.size());
  return node < nodes ? fusion.written[node] : fusion.written_nodes + (node - nodes);
}

std::string CheckedGraph::WrittenName(uint32_t node) const {
  return NameNode(WrittenIndex(node), graph.nodes[node].name);
}

std::string CheckedGraph::OtherNames(uint32_t node) const {
  const auto found =
      std::lower_bound(fusion.fused.begin(), fusion.fused.end(), node,
                       [](const Fusion::Fused& each, uint32_t index) { return each.node < index; });
  if (found == fusion.fused.end() || found->node != node) return "";
  return absl::StrJoin(absl::MakeConstSpan(found->written).first(found->written.size() - 1), ", ",
                       [](std::string* out, const Fusion::Written& each) {
                         *out += NameNode(each.index, each.name);
                       });
}

GraphCheck CheckGraph(const Graph& graph, Findings* findings, const DeviceLimit& limit,
                      CheckBudget* budget) {
  CheckBudget own;
  if (budget == nullptr) {
    budget = &own;
    own.TakeElements(graph.nodes.size() + graph.tensors.size() + graph.counters.size() +
                     graph.arguments.size() + graph.axes.size() + graph.waits.size());
  }
  GraphCheck check;
  if (!budget->ended()) check = CheckAll(graph, findings, limit, *budget);
  if (budget->ended()) ReportEnd(graph, *budget, findings);
  check.accepted = findings->errors() == 0 && !budget->ended();
  return check;
}

int64_t CountBytes(const Graph& graph, TensorKind kind) {
  int64_t bytes = 0;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    if (graph.tensors[i].kind == kind) bytes += graph.root_bytes[i];
  }
  return bytes;
}

}  // namespace resident::graph
