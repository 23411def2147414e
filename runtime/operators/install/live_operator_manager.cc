#include "runtime/operators/install/live_operator_manager.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/ptx/ptx_rules.h"
#include "runtime/device/engine_end.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/install/install_run.h"
#include "runtime/operators/install/version_builder.h"

namespace resident {

void ShadowTally::Add(const OperatorVersion& version, uint64_t tasks, uint64_t mismatches) {
  absl::MutexLock lock(&mu_);
  const auto [entry, fresh] = entries_.try_emplace({version.op->name(), version.version});
  if (fresh) {
    entry->second.gone = version.drained;
    std::erase_if(entries_, [](const auto& other) { return other.second.gone->HasBeenNotified(); });
  }
  entry->second.counters.tasks += tasks;
  entry->second.counters.mismatches += mismatches;
}

ShadowTally::Counters ShadowTally::Get(const std::string& name, uint32_t version) const {
  absl::MutexLock lock(&mu_);
  const auto entry = entries_.find({name, version});
  return entry == entries_.end() ? Counters() : entry->second.counters;
}

void ShadowTally::Forget(const std::string& name, uint32_t version) {
  absl::MutexLock lock(&mu_);
  entries_.erase({name, version});
}

size_t ShadowTally::size() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

namespace {

// The actor of changes that the daemon makes itself.
constexpr char kDaemon[] = "residentd";

std::vector<VersionBuilder::Member> MakeMembers(const GenerationLoader::Versions& versions) {
  std::vector<VersionBuilder::Member> members;
  for (const auto& version : versions) {
    members.push_back({version->slot,
                       std::dynamic_pointer_cast<const UnitPayload>(version->payload),
                       version->spec.task_time_limit});
  }
  return members;
}

// Of refusals that name none, such as those of cubins.
constexpr char kOtherRule[] = "other";

std::vector<DurationHistogram::Counts> CountLatencies(const VersionView& version) {
  std::vector<DurationHistogram::Counts> counts;
  for (const auto& stats : version.stats) counts.push_back(stats->device.counts());
  return counts;
}

bool HasNativeForm(const VersionView& version) {
  return version.native.has_value() && version.native->state != NativeForm::State::kOff;
}

// The p99 of the device with the highest one, without the tasks in `earlier`.
uint64_t P99Ns(const VersionView& version,
               const std::vector<DurationHistogram::Counts>& earlier = {}) {
  uint64_t worst = 0;
  for (size_t device = 0; device < version.stats.size(); ++device) {
    const DurationHistogram& histogram = version.stats[device]->device;
    const uint64_t p99 = device < earlier.size() ? histogram.Percentile(0.99, earlier[device])
                                                 : histogram.Percentile(0.99);
    worst = std::max(worst, p99);
  }
  return worst;
}

}  // namespace

LiveOperatorManager::LiveOperatorManager(const Options& options, const Sources& sources)
    : options_(options),
      sources_(sources),
      claims_(sources.registry, sources.state),
      builder_(sources.compiler, sources.devices),
      bakes_([this](const BakeWatcher::Regression& regression) { OnRegression(regression); }),
      loader_(
          {.park_deadline = options.park_deadline, .last_number = sources.state->generation()},
          sources.registry, sources.devices,
          [this](const Device& device, uint64_t number,
                 const GenerationLoader::Versions& versions) {
            return VersionBuilder::MakeGeneration(device.snapshot().info.traits.compile_target,
                                                  number, MakeMembers(versions));
          },
          [this](uint64_t number, const GenerationLoader::Versions& loaded,
                 const GenerationLoader::Versions& members) {
            RecordGeneration(number, loaded.size(), members.size());
          }),
      natives_(
          {.enabled = options.flux_native,
           .park_deadline = options.park_deadline,
           .quarantine_file = options.native_quarantine_file,
           .max_forms = options.max_native_forms},
          {sources.registry,
           &loader_,
           {&builder_, &verdicts_, sources.devices, sources.engines, options.engine_program}}) {
  absl::MutexLock lock(&mu_);
  for (const std::string& rule : PtxRefusingRules()) isolation_refusals_[rule] = 0;
  isolation_refusals_[kOtherRule] = 0;
}

LiveOperatorManager::~LiveOperatorManager() = default;

void LiveOperatorManager::CountIsolationRefusal(const std::string& reason) {
  const std::string rule = FindRefusingPtxRule(reason);
  absl::MutexLock lock(&mu_);
  ++isolation_refusals_[rule.empty() ? kOtherRule : rule];
}

absl::Status LiveOperatorManager::Install(
    const InstallRequest& request, const std::function<void(const InstallProgress&)>& progress,
    const std::function<bool()>& withdrawn) {
  return InstallRun(*this, request, progress, withdrawn).Run();
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Activate(const SwitchRequest& request) {
  absl::StatusOr<GenerationLoader::Kept> kept;
  if (request.force) kept = ReloadStandby(request);
  if (request.force && !kept.ok()) return kept.status();
  const auto began = std::chrono::steady_clock::now();
  const absl::StatusOr<RegistryChange> change = sources_.registry->Activate(
      request.name, request.version, request.expected_revision, request.force,
      CommitFor({.actor = request.actor, .context = request.context}));
  if (change.ok()) StartBake(*change, request.bake);
  if (change.ok()) RequestNativeForm(request.name, change->active_version);
  return Finish(began, change);
}

void LiveOperatorManager::RequestNativeForm(const std::string& name, uint32_t version) {
  const auto resolved = sources_.registry->ResolveProgram(name, version);
  if (resolved.ok()) natives_.Request(resolved->version, {});
}

absl::StatusOr<GenerationLoader::Kept> LiveOperatorManager::ReloadStandby(
    const SwitchRequest& request) {
  ASSIGN_OR_RETURN(const auto view, sources_.registry->Describe(request.name));
  if (request.expected_revision.value_or(view.revision) != view.revision) {
    return errors::StaleRevision(request.name, *request.expected_revision, view.revision);
  }
  // The registry refuses a version that cannot be activated.
  GenerationLoader::Kept nothing;
  const VersionView* found =
      view.Find(request.version == 0 ? view.standby_version : request.version);
  if (found == nullptr || found->slot == kNoSlot) return nothing;
  const std::shared_ptr<const OperatorVersion> held = sources_.registry->FindBySlot(found->slot);
  if (held == nullptr || held->state.load() == VersionState::kValidated) return nothing;
  // Kept before Contains is checked, so that no round removes it after the check.
  GenerationLoader::Kept kept = loader_.Keep(held);
  if (!loader_.Contains(*held)) {
    RETURN_IF_ERROR(loader_.Load(held));
  }
  return kept;
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Rollback(const SwitchRequest& request) {
  const auto began = std::chrono::steady_clock::now();
  const absl::StatusOr<RegistryChange> change =
      sources_.registry->Rollback(request.name, request.expected_revision,
                                  CommitFor({.actor = request.actor, .context = request.context}));
  // A refused rollback does not end the bake.
  if (change.ok()) bakes_.Forget(request.name, change->revision);
  if (change.ok()) RequestNativeForm(request.name, change->active_version);
  return Finish(began, change);
}

absl::StatusOr<uint64_t> LiveOperatorManager::Promote(const PromoteRequest& request) {
  ASSIGN_OR_RETURN(
      RegistryChange change,
      sources_.registry->SetTrial(request.name, request.version, request.traffic_percent,
                                  request.shadow_percent, request.expected_revision,
                                  CommitFor({.actor = request.actor, .context = request.context})));
  shadows_.Forget(change.name, change.version);
  StartBake(change, request.bake);
  RETURN_IF_ERROR(sources_.state->Sync());
  return change.revision;
}

absl::StatusOr<OperatorManager::Removal> LiveOperatorManager::Remove(
    const std::string& name, std::optional<uint64_t> expected_revision, const std::string& actor,
    const ChangeContext& context) {
  Removal removal;
  ASSIGN_OR_RETURN(
      RegistryChange change,
      sources_.registry->Remove(name, expected_revision,
                                CommitFor({.actor = actor, .context = context}), &removal.drained));
  bakes_.Forget(name, change.revision);
  RETURN_IF_ERROR(sources_.state->Sync());
  removal.revision = change.revision;
  return removal;
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Finish(
    std::chrono::steady_clock::time_point began, const absl::StatusOr<RegistryChange>& change) {
  if (!change.ok()) return change.status();
  RETURN_IF_ERROR(sources_.state->Sync());
  return SwitchResult{change->active_version, change->previous_version, change->revision,
                      change->switched_at - began};
}

Registry::Commit LiveOperatorManager::CommitOwn(const std::string& message) {
  return [this, message](const RegistryChange& change) {
    return sources_.state->Append(change, {.actor = kDaemon, .message = message});
  };
}

Registry::Commit LiveOperatorManager::CommitFor(const StateStore::Origin& origin) {
  return [this, origin](const RegistryChange& change) -> absl::StatusOr<uint64_t> {
    if (origin.context.authorize) RETURN_IF_ERROR(origin.context.authorize());
    RETURN_IF_ERROR(claims_.Check(change.name, origin.context));
    // A rollback is urgent, and a trial does not change the active version.
    if (change.kind != EventKind::kRolledBack && change.kind != EventKind::kPromoted) {
      const std::string hash = change.spec == nullptr ? "" : change.spec->content_hash;
      RETURN_IF_ERROR(claims_.CheckListed(change.name, hash, origin.context));
    }
    return sources_.state->Append(change, origin);
  };
}

void LiveOperatorManager::RecordEvent(OperatorEvent event) {
  // If an event cannot be written it is lost, but the change that it describes is not.
  sources_.state->AppendEvent(std::move(event)).IgnoreError();
}

void LiveOperatorManager::RecordGeneration(uint64_t number, uint64_t loaded, uint64_t members) {
  OperatorEvent event;
  event.kind = EventKind::kGeneration;
  event.actor = kDaemon;
  event.generation = number;
  // No version was added: this is the generation that a start restores.
  const uint64_t count = loaded == 0 ? members : loaded;
  event.message = absl::StrCat(count, count == 1 ? " version" : " versions",
                               loaded == 0 ? " restored" : " added");
  RecordEvent(std::move(event));
}

// --- Bakes and trials ---------------------------------------------------------------

BakeCounters LiveOperatorManager::ReadCounters(
    const std::string& name, uint32_t version,
    const std::vector<DurationHistogram::Counts>& earlier) const {
  BakeCounters counters;
  const auto view = sources_.registry->Describe(name);
  const VersionView* found = view.ok() ? view->Find(version) : nullptr;
  if (found != nullptr) {
    counters.tasks = found->tasks();
    counters.failed = found->failed_tasks();
    counters.p99_ns = P99Ns(*found, earlier);
  }
  const ShadowTally::Counters shadow = shadows_.Get(name, version);
  counters.shadow_tasks = shadow.tasks;
  counters.shadow_mismatches = shadow.mismatches;
  return counters;
}

void LiveOperatorManager::StartBake(const RegistryChange& change, const BakeOptions& wanted) {
  const bool trial = change.kind == EventKind::kPromoted;
  if (trial && change.traffic_percent == 0 && change.shadow_percent == 0) {
    bakes_.Forget(change.name, change.revision);
    return;
  }
  // A trial is compared with the active version, an activation with the previous one.
  const uint32_t against = trial ? change.active_version : change.previous_version;
  const auto view = sources_.registry->Describe(change.name);
  const VersionView* before = view.ok() ? view->Find(against) : nullptr;
  const VersionView* now = view.ok() ? view->Find(change.version) : nullptr;
  const BakeCounters served = ReadCounters(change.name, change.version);
  // Of versions with native code, one may be interpreted while the other one is not.
  const bool comparable =
      before != nullptr && !HasNativeForm(*before) && (now == nullptr || !HasNativeForm(*now));
  bakes_.Watch(
      change.name, change.version, change.revision, WithDefaults(wanted, options_.bake),
      comparable ? P99Ns(*before) : 0,
      [this, name = change.name, version = change.version, served,
       earlier = now == nullptr ? std::vector<DurationHistogram::Counts>() : CountLatencies(*now)] {
        BakeCounters counters = ReadCounters(name, version, earlier);
        counters.tasks -= std::min(served.tasks, counters.tasks);
        counters.failed -= std::min(served.failed, counters.failed);
        counters.shadow_tasks -= std::min(served.shadow_tasks, counters.shadow_tasks);
        counters.shadow_mismatches -=
            std::min(served.shadow_mismatches, counters.shadow_mismatches);
        return counters;
      });
}

void LiveOperatorManager::OnRegression(const BakeWatcher::Regression& regression) {
  if (regression.action == BakeAction::kRollBack) {
    const std::string why = absl::StrCat("rolled back automatically: ", regression.reason);
    const auto view = sources_.registry->Describe(regression.name);
    const bool serves = view.ok() && view->active_version == regression.version;
    // Not if the operator was changed meanwhile: that request has priority.
    const auto change =
        serves || (view.ok() && view->trial.version == regression.version)
            ? sources_.registry->Rollback(regression.name, regression.revision, CommitOwn(why))
            : absl::StatusOr<RegistryChange>(absl::AbortedError("changed meanwhile"));
    if (change.ok()) {
      sources_.state->Sync().IgnoreError();  // The store logs the error and retries.
      return;
    }
  }
  OperatorEvent event;
  event.kind = EventKind::kRegressed;
  event.operator_name = regression.name;
  event.version = regression.version;
  event.actor = kDaemon;
  event.message = regression.reason;
  RecordEvent(std::move(event));
}

void LiveOperatorManager::RecordShadow(const OperatorVersion& judged, uint64_t tasks,
                                       uint64_t mismatches) {
  if (judged.spec.kind == OperatorKind::kBytecode && judged.slot != kNoSlot) {
    natives_.RecordComparison(judged, mismatches);
  } else {
    shadows_.Add(judged, tasks, mismatches);
  }
}

OperatorManager::TrialCounters LiveOperatorManager::trial_counters(const std::string& name) const {
  TrialCounters counters;
  const auto view = sources_.registry->Describe(name);
  if (!view.ok() || view->trial.version == 0) return counters;
  const BakeCounters standby = ReadCounters(name, view->trial.version);
  counters.shadow_tasks = standby.shadow_tasks;
  counters.shadow_mismatches = standby.shadow_mismatches;
  const auto mean = [&](uint32_t version) {
    const VersionView* found = view->Find(version);
    uint64_t tasks = 0, sum_ns = 0;
    if (found != nullptr) {
      for (const auto& stats : found->stats) {
        tasks += stats->all_tasks();
        sum_ns += stats->device.sum_ns();
      }
    }
    return tasks == 0 ? 0 : static_cast<double>(sum_ns) / static_cast<double>(tasks);
  };
  const double active = mean(view->active_version);
  if (active > 0) counters.latency_ratio = mean(view->trial.version) / active;
  return counters;
}

// --- Faults -------------------------------------------------------------------------

std::shared_ptr<const Generation> LiveOperatorManager::OnFault(const Device& device,
                                                               const DeviceFault& fault) {
  // A built-in operator is never quarantined. Of several others, the version that was
  // installed last is: older ones have served without a fault.
  //
  // The native form of a program is taken out of service, and not the program: the interpreter
  // runs it.
  std::shared_ptr<const OperatorVersion> faulted;
  std::vector<std::shared_ptr<const OperatorVersion>> overdue;
  for (const uint32_t slot : fault.suspects) {
    auto version = sources_.registry->FindBySlot(slot);
    if (version == nullptr || version->builtin) continue;
    if (fault.reason == EngineEndReason::kHang) overdue.push_back(version);
    if (faulted == nullptr || version->spec.installed_ms > faulted->spec.installed_ms ||
        (version->spec.installed_ms == faulted->spec.installed_ms &&
         version->version > faulted->version)) {
      faulted = std::move(version);
    }
  }
  if (faulted == nullptr) return nullptr;
  // A task that ran past its limit is always at fault itself.
  if (overdue.empty()) overdue.push_back(faulted);
  for (const auto& version : overdue) {
    std::string reason = fault.cause;
    for (const RunningTask& task : fault.running) {
      if (task.task.operator_slot != version->slot) continue;
      absl::StrAppend(&reason, kArgumentsOfReason, ArgumentsText(task));
      break;
    }
    if (version->spec.kind == OperatorKind::kBytecode) {
      natives_.Quarantine(*version, PublicReason(reason));
      continue;
    }
    // Fails if the version was removed, or was quarantined by another device's fault.
    const auto change = sources_.registry->Quarantine(version->op->name(), version->version, reason,
                                                      CommitOwn(reason));
    if (!change.ok()) continue;
    bakes_.Forget(version->op->name());
    if (!change->commit_status.ok()) {
      LogError("version ", version->version, " of ", version->op->name(),
               " is quarantined, but the state folder does not record it yet: a restart before the "
               "next change would restore it as it was: ",
               change->commit_status.ToString());
    }
  }
  sources_.state->Sync().IgnoreError();  // The store logs the error and retries.
  return loader_.Replacement(device);
}

// --- Events -------------------------------------------------------------------------

absl::StatusOr<std::vector<OperatorEvent>> LiveOperatorManager::EventsAfter(
    uint64_t after, size_t max_events) const {
  return sources_.state->EventsAfter(after, max_events);
}

std::vector<OperatorEvent> LiveOperatorManager::EventsBefore(uint64_t before,
                                                             const std::string& name,
                                                             size_t max_events) const {
  return sources_.state->EventsBefore(before, name, max_events);
}

uint64_t LiveOperatorManager::revision() const { return sources_.state->revision(); }

uint64_t LiveOperatorManager::OperatorRevision(const std::string& name) const {
  return sources_.registry->Revision(name);
}

uint64_t LiveOperatorManager::Subscribe(std::function<void()> wake) {
  return sources_.state->Subscribe(std::move(wake));
}

void LiveOperatorManager::Unsubscribe(uint64_t token) { sources_.state->Unsubscribe(token); }

}  // namespace resident
