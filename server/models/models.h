// Models: what the calls of resident.v1.Models share. Which versions serve is in Core::models.
//
// A change takes effect, is then written to the state folder, and is then answered. Changes are
// made one after the other, so that the folder has them in their order. Each is an event of the
// audit log, under the model's name.
//
// Thread safety: all members may be called from any thread. Those that change a model wait for the
// disk of the state folder.
#ifndef RESIDENT_SERVER_MODELS_MODELS_H_
#define RESIDENT_SERVER_MODELS_MODELS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/graph/limits.h"
#include "runtime/model/operator_event.h"
#include "runtime/operators/trial/bake_watcher.h"
#include "runtime/state/state_store.h"
#include "server/admission/budget.h"
#include "server/core/core.h"
#include "server/graphs/graphs.h"
#include "server/models/model_plans.h"
#include "server/models/table/model_table.h"
#include "server/operators/installs.h"

namespace resident {

class Models {
 public:
  using Change = absl::StatusOr<ModelTable::Change>;

  // All must outlive it; no call of theirs is left when it is destroyed.
  Models(Graphs& the_graphs, Installs& the_installs)
      : graphs(the_graphs),
        core(the_graphs.core),
        installs(the_installs),
        weights({.limit = core.limits.max_host_mib << 20,
                 .client_limit = core.limits.max_client_host_mib << 20}),
        bakes_([this](const BakeWatcher::Regression& regression) { OnRegression(regression); }) {}
  ~Models() { core.models.Close(); }
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  // Stores models in the state folder from now on, and adds those that are there. A version whose
  // graph does not fit the operators is there, and its requests are refused with the reason. Call
  // it once, before the other members. Returns warnings about versions that could not be read.
  // `bake`: the defaults of Activate.
  std::vector<std::string> Restore(StateStore* state, const BakeOptions& bake)
      ABSL_LOCKS_EXCLUDED(change_mu_);

  // As those of ModelTable; `contents`: of the version's blobs. Errors: also those of
  // StateStore::PutModel: then Add has changed nothing, and the others have taken effect.
  absl::StatusOr<ModelTable::Added> Add(const std::string& name,
                                        std::shared_ptr<const ServedModel> served,
                                        const std::string& loaded_by,
                                        absl::Span<const std::string_view> contents)
      ABSL_LOCKS_EXCLUDED(change_mu_);
  // `bake`: for how long the version is compared with the one before, and what follows if it has
  // regressed. A later change ends the comparison.
  Change Activate(const std::string& name, uint32_t version, ModelTable::Revision expected,
                  const BakeOptions& bake, const std::string& actor)
      ABSL_LOCKS_EXCLUDED(change_mu_);
  Change Rollback(const std::string& name, ModelTable::Revision expected, const std::string& actor)
      ABSL_LOCKS_EXCLUDED(change_mu_);
  Change Share(const std::string& name, uint32_t version, double percent,
               ModelTable::Revision expected, const std::string& actor)
      ABSL_LOCKS_EXCLUDED(change_mu_);
  Change Remove(const std::string& name, uint32_t version, ModelTable::Revision expected,
                const std::string& actor) ABSL_LOCKS_EXCLUDED(change_mu_);

  // What an identity holds of the budgets below.
  std::shared_ptr<Budget::Account> FindAccount(const std::string& identity)
      ABSL_LOCKS_EXCLUDED(accounts_mu_);

  Graphs& graphs;
  Core& core;
  Installs& installs;
  // The daemon's memory for the contents of weights, and for graphs and their checked forms.
  Budget weights;
  Budget checked{{.limit = graph::kMaxLoadedBytes}};
  AllModelPlans plans;

 private:
  // Writes what the table has of the model.
  absl::Status Save(const std::string& name, absl::Span<const std::string_view> contents)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  // Ends a bake that began before the change, stores the change, and records it as an event.
  Change Saved(const std::string& name, Change change, OperatorEvent event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void Record(const std::string& name, OperatorEvent event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void StartBake(const std::string& name, const ModelTable::Change& change,
                 const BakeOptions& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mu_);
  void OnRegression(const BakeWatcher::Regression& regression) ABSL_LOCKS_EXCLUDED(change_mu_);

  absl::Mutex change_mu_;
  StateStore* state_ ABSL_GUARDED_BY(change_mu_) = nullptr;  // Null: models are not stored.
  absl::Mutex accounts_mu_;
  std::map<std::string, std::shared_ptr<Budget::Account>> accounts_ ABSL_GUARDED_BY(accounts_mu_);
  BakeOptions bake_;   // Set by Restore.
  BakeWatcher bakes_;  // Last: its thread uses the other members.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODELS_H_
