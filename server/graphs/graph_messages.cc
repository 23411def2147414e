#include "server/graphs/graph_messages.h"

#include <cstdint>
#include <utility>

#include "runtime/graph/fuse.h"

namespace resident {
namespace {

// Dependencies in one report.
constexpr uint64_t kMaxListedDependencies = 1u << 20;

}  // namespace

void FillGraphReport(const graph::Graph& graph, const graph::GraphCheck& check,
                     const graph::Findings& findings, bool dependencies, graph::CheckBudget& budget,
                     v1::GraphReport* report) {
  using graph::TensorKind;
  report->set_accepted(check.accepted);
  report->set_errors(findings.errors());
  report->set_warnings(findings.warnings());
  for (const graph::Finding& finding : findings.list()) {
    v1::GraphFinding* const to = report->add_findings();
    to->set_code(graph::CodeName(finding.code));
    to->set_warning(finding.warning);
    to->set_node(finding.node);
    to->set_tensor(finding.tensor);
    to->set_message(finding.message);
  }
  const auto bytes = [&](TensorKind kind) {
    return static_cast<uint64_t>(graph::CountBytes(graph, kind));
  };
  report->set_weight_bytes(bytes(TensorKind::kWeight));
  report->set_state_bytes(bytes(TensorKind::kState));
  report->set_activation_bytes(bytes(TensorKind::kActivation));
  report->set_other_bytes(bytes(TensorKind::kConst) + bytes(TensorKind::kInput) +
                          bytes(TensorKind::kOutput) + bytes(TensorKind::kStream));
  if (!check.order.has_value()) return;
  report->set_dependency_count(check.order->size());
  report->set_longest_chain(check.longest_chain);
  if (!dependencies || !check.accepted) return;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    for (const graph::Dependency& dependency : check.order->Of(n)) {
      if (static_cast<uint64_t>(report->dependencies_size()) == kMaxListedDependencies ||
          !budget.Take()) {
        return;
      }
      v1::GraphDependency* const to = report->add_dependencies();
      to->set_node(n);
      to->set_after(dependency.after);
      to->set_kind(static_cast<v1::GraphDependency::Kind>(dependency.kind));
    }
  }
}

void FillFusions(const graph::CheckedGraph& checked, v1::GraphReport* report) {
  for (const graph::Fusion::Fused& fused : checked.fusion.fused) {
    v1::GraphFusion* const to = report->add_fusions();
    to->set_operator_(checked.graph.operators[checked.graph.nodes[fused.node].op].name);
    for (const graph::Fusion::Written& node : fused.written) to->add_nodes(node.index);
  }
}

v1::GraphReport ValidateGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                              bool dependencies, const graph::DeviceLimit& limit,
                              graph::CheckBudget* budget) {
  graph::CheckBudget own;
  if (budget == nullptr) budget = &own;
  graph::Findings findings;
  graph::Graph graph = ReadGraph(message, catalog, &findings, budget);
  graph::GraphCheck check = CheckGraph(graph, &findings, limit, budget);
  v1::GraphReport report;
  FillGraphReport(graph, check, findings, dependencies, *budget, &report);
  if (!check.accepted) return report;
  graph::CheckedGraph checked = {std::move(graph), *std::move(check.order)};
  graph::Fuse(catalog, &checked, budget);
  FillFusions(checked, &report);
  return report;
}

}  // namespace resident
