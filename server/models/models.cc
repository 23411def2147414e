#include "server/models/models.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/base/status_macros.h"
#include "server/models/errors.h"
#include "server/models/graph_model.h"
#include "server/workload/workload.h"

namespace resident {
namespace {

// The work of a request to a version that cannot serve.
class RefusedWork final : public Workload {
 public:
  explicit RefusedWork(absl::Status why) : why_(std::move(why)) {}
  absl::Status Check() override { return why_; }
  Needs ResourcesNeeded() const override { return {}; }
  void Fill(const Ticket&, RequestBatch&) override {}
  void BuildResult(const RequestBatch&, v1::BatchResult*) const override {}

 private:
  const absl::Status why_;
};

// A version that a restart could not restore.
class UnavailableModel final : public ServedModel {
 public:
  UnavailableModel(StoredModel::Version stored, absl::Status why)
      : stored_(std::move(stored)), why_(std::move(why)) {}

  const std::string& content_hash() const override { return stored_.content_hash; }
  const StoredModel::Version& stored() const override { return stored_; }
  std::unique_ptr<Workload> MakeWorkload(const v1::Batch&, uint32_t) const override {
    return std::make_unique<RefusedWork>(why_);
  }
  void Describe(v1::ModelVersion* out) const override {
    out->set_content_hash(stored_.content_hash);
    out->set_device(stored_.device);
    out->set_max_instances(stored_.instances);
    out->set_unavailable(std::string(why_.message()));
  }

 private:
  const StoredModel::Version stored_;
  const absl::Status why_;
};

absl::StatusOr<std::shared_ptr<const ServedModel>> MakeModel(Models& models, StateStore& state,
                                                             const std::string& name,
                                                             const StoredModel::Version& stored) {
  Core& core = models.core;
  ASSIGN_OR_RETURN(const std::string content, state.GetBlob(stored.graph_sha256));
  v1::Graph message;
  if (!message.ParseFromString(content)) return errors::StoredModelDamaged(name, stored.version);
  const v1::Graph plan = AddDeviceCopies(std::move(message));
  const auto account = models.FindAccount(stored.loaded_by);
  auto largest = std::make_shared<ModelPlan>();
  largest->graph =
      std::make_shared<LoadedGraph>(name, SerializeGraph(plan), plan, models.checked, account);
  ModelParts parts;
  graph::CheckBudget budget;
  ASSIGN_OR_RETURN(parts.checked, largest->graph->Check(core.registry, budget));
  ASSIGN_OR_RETURN(largest->interface, ReadInterface(parts.checked->graph));
  parts.weights = std::make_shared<WeightSet>();
  for (const uint32_t tensor : largest->interface.weights) {
    const std::string wanted = parts.checked->graph.TensorName(tensor);
    for (const StoredModel::Weight& weight : stored.weights) {
      if (weight.tensor != wanted) continue;
      ASSIGN_OR_RETURN(parts.weights->contents[wanted], state.GetBlob(weight.sha256));
    }
  }
  if (parts.weights->contents.size() != largest->interface.weights.size()) {
    return errors::StoredModelDamaged(name, stored.version);
  }
  uint64_t bytes = parts.weights->bytes();
  if (!stored.source_sha256.empty()) {
    internal::PlanRules rules;
    if (!rules.ParseFromString(stored.plan_rules) || rules.dimensions().empty()) {
      return errors::StoredModelDamaged(name, stored.version);
    }
    RETURN_IF_ERROR(SetDimensions(rules, &largest->interface));
    ASSIGN_OR_RETURN(const std::string source, state.GetBlob(stored.source_sha256));
    ASSIGN_OR_RETURN(parts.source, ImportSource::FromContent(source));
    bytes += source.size();
  }
  if (stored.device >= core.devices.size()) {
    return errors::ModelDeviceGone(name, stored.version, stored.device);
  }
  // A daemon with other limits may have stored more than this one allows; it is kept.
  auto charge = models.weights.Acquire(account, bytes);
  parts.name = name;
  parts.largest = std::move(largest);
  parts.device = stored.device;
  parts.max_instances = stored.instances;
  parts.max_combined_rows = stored.max_combined_rows;
  parts.identity = core.access.FindAccount(stored.loaded_by);
  parts.client = core.clients.MakeInternal("model " + name, parts.identity);
  parts.holder = absl::StrCat("identity ", stored.loaded_by);
  parts.account = account;
  parts.weight_memory = &models.weights;
  parts.graph_memory = &models.checked;
  parts.plans = &models.plans;
  return std::make_shared<const GraphModel>(
      models.graphs, name, stored, ModelPlans::Make(models.graphs, std::move(parts)),
      charge.has_value() ? *std::move(charge) : Budget::Charge());
}

}  // namespace

std::vector<std::string> Models::Restore(StateStore* state, const BakeOptions& bake) {
  std::vector<std::string> warnings;
  absl::MutexLock change(&change_mu_);
  state_ = state;
  bake_ = bake;
  for (StoredModel stored : state->models()) {
    std::vector<std::shared_ptr<const ServedModel>> versions;
    for (const StoredModel::Version& version : stored.versions) {
      auto made = MakeModel(*this, *state, stored.name, version);
      if (!made.ok()) {
        warnings.push_back(absl::StrCat("version ", version.version, " of model ", stored.name,
                                        " is not available: ", made.status().message()));
        if (version.version == stored.share_version) stored.share_version = 0;
        made = std::make_shared<const UnavailableModel>(
            version, absl::Status(absl::StatusCode::kUnavailable, made.status().message()));
      }
      versions.push_back(*std::move(made));
    }
    core.models.Restore(stored, std::move(versions));
  }
  return warnings;
}

std::shared_ptr<Budget::Account> Models::FindAccount(const std::string& identity) {
  absl::MutexLock lock(&accounts_mu_);
  std::shared_ptr<Budget::Account>& known = accounts_[identity];
  if (known == nullptr) known = std::make_shared<Budget::Account>();
  return known;
}

absl::Status Models::Save(const std::string& name, absl::Span<const std::string_view> contents) {
  if (state_ == nullptr) return absl::OkStatus();
  const std::optional<StoredModel> stored = core.models.Store(name);
  return stored.has_value() ? state_->PutModel(*stored, contents) : state_->DropModel(name);
}

void Models::Record(const std::string& name, OperatorEvent event) {
  if (state_ == nullptr) return;
  event.operator_name = name;
  event.message = event.message.empty() ? "model" : absl::StrCat("model: ", event.message);
  // An event that cannot be written is lost, but the change that it describes is not.
  state_->AppendEvent(std::move(event)).status().IgnoreError();
}

Models::Change Models::Saved(const std::string& name, Change change, OperatorEvent event) {
  if (!change.ok()) return change;
  bakes_.Forget(name, change->revision);
  const absl::Status saved = Save(name, {});
  Record(name, std::move(event));  // The change has taken effect, also if it is not stored.
  RETURN_IF_ERROR(saved);
  return change;
}

absl::StatusOr<ModelTable::Added> Models::Add(const std::string& name,
                                              std::shared_ptr<const ServedModel> served,
                                              const std::string& loaded_by,
                                              absl::Span<const std::string_view> contents) {
  absl::MutexLock change(&change_mu_);
  OperatorEvent event;
  event.kind = EventKind::kInstalled;
  event.actor = loaded_by;
  event.content_hash = served->content_hash();
  ASSIGN_OR_RETURN(
      const ModelTable::Added added,
      core.models.Add(name, std::move(served), absl::ToUnixMillis(absl::Now()), loaded_by));
  if (added.already_loaded) return added;
  const absl::Status saved = Save(name, contents);
  if (!saved.ok()) {
    core.models.Remove(name, added.version, std::nullopt).status().IgnoreError();
    return saved;
  }
  event.version = added.version;
  Record(name, std::move(event));
  return added;
}

Models::Change Models::Activate(const std::string& name, uint32_t version,
                                ModelTable::Revision expected, const BakeOptions& bake,
                                const std::string& actor) {
  absl::MutexLock lock(&change_mu_);
  const auto before = core.models.Describe(name);
  const Change change = core.models.Activate(name, version, expected);
  if (!change.ok()) return change;
  if (before->revision == change->revision) {
    // The change that made it active may not have been stored.
    RETURN_IF_ERROR(Save(name, {}));
    return change;
  }
  OperatorEvent event;
  event.kind = EventKind::kActivated;
  event.version = change->version;
  event.actor = actor;
  Change saved = Saved(name, change, std::move(event));
  if (change->version != change->previous_version) StartBake(name, *change, bake);
  return saved;
}

Models::Change Models::Rollback(const std::string& name, ModelTable::Revision expected,
                                const std::string& actor) {
  absl::MutexLock lock(&change_mu_);
  Change change = core.models.Rollback(name, expected);
  OperatorEvent event;
  event.kind = EventKind::kRolledBack;
  event.version = change.ok() ? change->version : 0;
  event.actor = actor;
  return Saved(name, std::move(change), std::move(event));
}

Models::Change Models::Share(const std::string& name, uint32_t version, double percent,
                             ModelTable::Revision expected, const std::string& actor) {
  absl::MutexLock lock(&change_mu_);
  const auto before = core.models.Describe(name);
  Change change = core.models.Share(name, version, percent, expected);
  const auto after = core.models.Describe(name);
  OperatorEvent event;
  event.kind = EventKind::kPromoted;
  event.version = version;
  if (version == 0 && before.ok() && after.ok()) {
    event.version = percent > 0 ? after->share_version : before->share_version;
  }
  event.actor = actor;
  event.message = absl::StrCat(percent, " percent of the requests");
  return Saved(name, std::move(change), std::move(event));
}

Models::Change Models::Remove(const std::string& name, uint32_t version,
                              ModelTable::Revision expected, const std::string& actor) {
  absl::MutexLock lock(&change_mu_);
  Change change = core.models.Remove(name, version, expected);
  OperatorEvent event;
  event.kind = EventKind::kRemoved;
  event.version = version;
  event.actor = actor;
  return Saved(name, std::move(change), std::move(event));
}

void Models::StartBake(const std::string& name, const ModelTable::Change& change,
                       const BakeOptions& wanted) {
  const auto found = core.models.Find(name, change.version);
  if (!found.ok()) return;
  uint64_t before_p99_ns = 0;
  if (change.previous_version != 0) {
    const auto before = core.models.Find(name, change.previous_version);
    if (before.ok()) before_p99_ns = before->served->CountServed({}).p99_ns;
  }
  bakes_.Watch(name, change.version, change.revision, WithDefaults(wanted, bake_), before_p99_ns,
               [served = found->served, earlier = found->served->CountServed({})] {
                 const ServedModel::Counters now = served->CountServed(earlier.device_times);
                 return BakeCounters{.tasks = now.requests - earlier.requests,
                                     .failed = now.failed - earlier.failed,
                                     .p99_ns = now.p99_ns};
               });
}

void Models::OnRegression(const BakeWatcher::Regression& regression) {
  absl::MutexLock lock(&change_mu_);
  OperatorEvent event;
  event.kind = EventKind::kRegressed;
  event.version = regression.version;
  event.actor = kDaemonActor;
  event.message = regression.reason;
  if (regression.action == BakeAction::kRollBack) {
    // Not if the model was changed meanwhile: that request has priority. A load changes nothing
    // here, but the revision.
    const auto now = core.models.Describe(regression.name);
    const bool serves = now.ok() && std::ranges::any_of(now->versions, [&](const auto& version) {
                          return version.version == regression.version &&
                                 version.state == ModelTable::State::kActive;
                        });
    Change change =
        core.models.Rollback(regression.name, serves ? now->revision : regression.revision);
    if (change.ok()) {
      event.kind = EventKind::kRolledBack;
      event.version = change->version;
      event.message = absl::StrCat("rolled back automatically: ", regression.reason);
      Saved(regression.name, std::move(change), std::move(event)).status().IgnoreError();
      return;
    }
  }
  Record(regression.name, std::move(event));
}

}  // namespace resident
