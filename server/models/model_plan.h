// ModelPlan: a graph of a version of a model, for one set of sizes.
//
// A version has one plan, or, if it was loaded with bounds of dimensions (OnnxModel.max_sizes), one
// for each set of their sizes that requests have: all sizes but that of the batch are numbers in
// the graph, so that nothing is padded. A further plan is made of what the version keeps of its
// files (model_import.h), and is checked as the first one is.
//
// WeightSet: the contents of weights and constants, in the daemon's memory, and their one copy on
// the device. The plans of a version share the weights of the graph of the largest sizes; what only
// the graph of other sizes has, such as the first rows of a table of positions, is the plan's own.
//
// Thread safety: a WeightSet's contents and a plan do not change. The copy on the device is for the
// one who makes an instance (model_instances.h).
//
//   ASSIGN_OR_RETURN(const auto plan, MakePlan(parts, sizes, registry, budget, withdrawn));
#ifndef RESIDENT_SERVER_MODELS_MODEL_PLAN_H_
#define RESIDENT_SERVER_MODELS_MODEL_PLAN_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/graph/check_budget.h"
#include "runtime/operators/registry/registry.h"
#include "server/admission/budget.h"
#include "server/auth/account.h"
#include "server/core/client_table.h"
#include "server/graphs/graph_store.h"
#include "server/models/model_graph.h"
#include "server/models/model_import.h"

namespace resident {

struct WeightSet {
  uint64_t bytes() const;

  std::map<std::string, std::string> contents;  // By tensor.

  // The copy on the device: of this engine, as long as `memory` lives. By tensor.
  uint64_t epoch = 0;
  std::weak_ptr<const void> memory;
  std::map<std::string, uint64_t> addresses;
  // Keeps it without an instance; null: nothing does.
  std::shared_ptr<const void> kept;
};

struct ModelPlan {
  std::shared_ptr<LoadedGraph> graph;
  ModelInterface interface;
  // Those that the version does not share; null: none.
  std::shared_ptr<WeightSet> weights;
  Budget::Charge charge;  // For these.
};

class AllModelPlans;

// Sizes of a plan, by index in ModelInterface::dimensions.
using PlanSizes = std::vector<int64_t>;

// What the plans of a version have in common.
struct ModelParts {
  static constexpr uint32_t kDefaultInstances = 2;

  std::string name;
  // The plan of the largest sizes, and its first checked form, for the ranges of scalars, which do
  // not change. With `source`, no request uses it.
  std::shared_ptr<const ModelPlan> largest;
  LoadedGraph::Checked checked;
  std::shared_ptr<WeightSet> weights;
  // What further plans are made of; null: there is one plan.
  std::shared_ptr<const ImportSource> source;

  uint32_t device = 0;
  // Of each plan.
  uint32_t max_instances = kDefaultInstances;
  // Owns the memory on the device, and its tasks set that memory.
  std::shared_ptr<Client> client;
  // Rows of a batch of several requests at most; 0: as many as one request may have.
  uint32_t max_combined_rows = 0;
  // Who loaded the model: for the checker of graphs (NameHolder), its rights, and what it holds of
  // the budgets of models.
  std::string holder;
  std::shared_ptr<Account> identity;
  std::shared_ptr<Budget::Account> account;
  // For the contents of weights, and for graphs; they outlive the version.
  Budget* weight_memory = nullptr;
  Budget* graph_memory = nullptr;
  // Those of all versions; it outlives the version.
  AllModelPlans* plans = nullptr;

  const ModelInterface& interface() const { return largest->interface; }
};

// "sequence=12, width=3".
std::string SizesText(const ModelInterface& interface, const PlanSizes& sizes);

// INVALID_ARGUMENT: the model has no graph for these sizes. Other errors: as for a load. REQUIRES:
// parts.source; called on a thread that may block.
absl::StatusOr<std::shared_ptr<const ModelPlan>> MakePlan(const ModelParts& parts,
                                                          const PlanSizes& sizes,
                                                          const Registry& registry,
                                                          graph::CheckBudget& budget,
                                                          const std::function<bool()>& withdrawn);

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_PLAN_H_
