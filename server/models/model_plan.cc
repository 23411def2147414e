#include "server/models/model_plan.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"
#include "server/graphs/errors.h"
#include "server/models/errors.h"

namespace resident {
namespace {

absl::StatusOr<Budget::Charge> Take(Budget& budget, const ModelParts& parts, uint64_t bytes) {
  auto charge = budget.Acquire(parts.account, bytes);
  if (!charge.has_value()) return errors::ModelMemoryFull(bytes, budget.used(), budget.limit());
  return *std::move(charge);
}

absl::Status SetWeights(const ModelParts& parts, const graph::Graph& graph,
                        internal::ImportResponse& response, ModelPlan* plan) {
  std::map<std::string, std::string> own;
  for (v1::ModelWeightPart& part : *response.mutable_weights()) {
    own[part.tensor()] = std::move(*part.mutable_data());
  }
  auto set = std::make_shared<WeightSet>();
  for (const uint32_t index : plan->interface.weights) {
    const std::string tensor = graph.TensorName(index);
    const auto wanted = static_cast<uint64_t>(graph.root_bytes[index]);
    const auto shared = parts.weights->contents.find(tensor);
    const auto found = own.find(tensor);
    const bool is_shared = shared != parts.weights->contents.end();
    if (!is_shared && found == own.end()) return errors::ModelWeightBytes(tensor, 0, wanted);
    const uint64_t got = is_shared ? shared->second.size() : found->second.size();
    if (got != wanted) return errors::ModelWeightBytes(tensor, got, wanted);
    if (!is_shared) set->contents[tensor] = std::move(found->second);
  }
  if (set->contents.empty()) return absl::OkStatus();
  plan->weights = std::move(set);
  plan->charge.Clear();  // That for the answer.
  ASSIGN_OR_RETURN(plan->charge, Take(*parts.weight_memory, parts, plan->weights->bytes()));
  return absl::OkStatus();
}

}  // namespace

uint64_t WeightSet::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [tensor, content] : contents) bytes += content.size();
  return bytes;
}

std::string SizesText(const ModelInterface& interface, const PlanSizes& sizes) {
  std::string text;
  for (size_t i = 0; i < sizes.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", interface.dimensions[i].name, "=", sizes[i]);
  }
  return text;
}

absl::StatusOr<std::shared_ptr<const ModelPlan>> MakePlan(const ModelParts& parts,
                                                          const PlanSizes& sizes,
                                                          const Registry& registry,
                                                          graph::CheckBudget& budget,
                                                          const std::function<bool()>& withdrawn) {
  assert(parts.source != nullptr);
  auto plan = std::make_shared<ModelPlan>();
  internal::ImportPlan wanted;
  wanted.mutable_sizes()->Add(sizes.begin(), sizes.end());
  for (const auto& [tensor, content] : parts.weights->contents) wanted.add_weights(tensor);
  const auto take = [&](uint64_t bytes) -> absl::Status {
    // The answer, and what is made of it.
    ASSIGN_OR_RETURN(plan->charge, Take(*parts.weight_memory, parts, 2 * bytes));
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(internal::ImportResponse response,
                   ImportModel(*parts.source, wanted, withdrawn, take));
  if (!response.findings().empty()) {
    const v1::GraphFinding& first = response.findings(0);
    return absl::InvalidArgumentError(absl::StrCat(first.code(), ": ", first.message()));
  }
  const auto nodes = static_cast<uint64_t>(response.graph().nodes_size());
  if (nodes > graph::kMaxRunNodes) return errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes);
  const v1::Graph graph = AddDeviceCopies(std::move(*response.mutable_graph()));
  plan->graph = std::make_shared<LoadedGraph>(parts.name, SerializeGraph(graph), graph,
                                              *parts.graph_memory, parts.account);
  ASSIGN_OR_RETURN(Budget::Charge content,
                   Take(*parts.graph_memory, parts, plan->graph->content().size()));
  plan->graph->Keep(std::move(content));
  ASSIGN_OR_RETURN(const LoadedGraph::Checked checked, plan->graph->Check(registry, budget));
  for (const graph::OperatorInfo& op : checked->written_operators()) {
    RETURN_IF_ERROR(parts.identity->MaySubmit(op.name));
  }
  ASSIGN_OR_RETURN(plan->interface, ReadInterface(checked->graph));
  RETURN_IF_ERROR(SortPorts(parts.interface(), sizes, &plan->interface));
  RETURN_IF_ERROR(SetWeights(parts, checked->graph, response, plan.get()));
  if (plan->weights == nullptr) plan->charge.Clear();
  return plan;
}

}  // namespace resident
