#include "runtime/operators/install/live_operator_manager.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/operator_errors.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/arguments_text.h"
#include "runtime/operators/install/install_run.h"
#include "runtime/operators/install/unit_payload.h"

namespace resident {
namespace {

// The actor of what the daemon does by itself.
constexpr char kDaemon[] = "residentd";

std::vector<VersionBuilder::Member> MembersOf(const GenerationStager::Versions& versions) {
  std::vector<VersionBuilder::Member> members;
  for (const auto& version : versions) {
    members.push_back(
        {version->slot, std::dynamic_pointer_cast<const UnitPayload>(version->payload)});
  }
  return members;
}

uint64_t P99Ns(const VersionView& version) {
  uint64_t worst = 0;
  for (const auto& stats : version.stats) worst = std::max(worst, stats->device.Percentile(0.99));
  return worst;
}

}  // namespace

LiveOperatorManager::LiveOperatorManager(const Options& options, const Sources& sources)
    : options_(options),
      sources_(sources),
      builder_(sources.compiler, sources.devices),
      bakes_([this](const BakeWatcher::Regression& regression) { OnRegression(regression); }),
      stager_(
          {.park_deadline = options.park_deadline, .last_number = sources.state->generation()},
          sources.registry, sources.devices,
          [this](const Device& device, uint64_t number,
                 const GenerationStager::Versions& versions) {
            return VersionBuilder::MakeGeneration(device.snapshot().info.traits.compile_target,
                                                  number, MembersOf(versions));
          },
          [this](uint64_t number, const GenerationStager::Versions& staged,
                 const GenerationStager::Versions& members) {
            NoteGeneration(number, staged.size(), members.size());
          }) {}

LiveOperatorManager::~LiveOperatorManager() = default;

absl::Status LiveOperatorManager::Install(
    const InstallRequest& request, const std::function<void(const InstallProgress&)>& progress,
    const std::function<bool()>& withdrawn) {
  return InstallRun(*this, request, progress, withdrawn).Run();
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Activate(const SwitchRequest& request) {
  absl::StatusOr<GenerationStager::Kept> kept;
  if (request.force) kept = BringBack(request);
  if (request.force && !kept.ok()) return kept.status();
  const auto began = std::chrono::steady_clock::now();
  const absl::StatusOr<RegistryChange> change =
      sources_.registry->Activate(request.name, request.version, request.expected_revision,
                                  request.force, CommitAs(request.actor));
  if (change.ok()) StartBake(*change, request.bake);
  return Finish(began, change);
}

absl::StatusOr<GenerationStager::Kept> LiveOperatorManager::BringBack(
    const SwitchRequest& request) {
  ASSIGN_OR_RETURN(const auto view, sources_.registry->Describe(request.name));
  if (request.expected_revision.value_or(view.revision) != view.revision) {
    return errors::StaleRevision(request.name, *request.expected_revision, view.revision);
  }
  // What cannot be activated is refused by the registry.
  GenerationStager::Kept nothing;
  const VersionView* found =
      view.Find(request.version == 0 ? view.standby_version : request.version);
  if (found == nullptr || found->slot == kNoSlot) return nothing;
  const std::shared_ptr<const OperatorVersion> held = sources_.registry->FindBySlot(found->slot);
  if (held == nullptr || held->state.load() == VersionState::kValidated) return nothing;
  // Before it is looked for: from here on nothing takes it out.
  GenerationStager::Kept kept = stager_.Keep(held);
  if (!stager_.Contains(*held)) {
    RETURN_IF_ERROR(stager_.Stage(held));
  }
  return kept;
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Rollback(const SwitchRequest& request) {
  const auto began = std::chrono::steady_clock::now();
  const absl::StatusOr<RegistryChange> change =
      sources_.registry->Rollback(request.name, request.expected_revision, CommitAs(request.actor));
  // One that is refused has decided nothing of what is watched.
  if (change.ok()) bakes_.Forget(request.name, change->revision);
  return Finish(began, change);
}

absl::StatusOr<uint64_t> LiveOperatorManager::Promote(const PromoteRequest& request) {
  ASSIGN_OR_RETURN(RegistryChange change,
                   sources_.registry->SetTrial(request.name, request.version,
                                               request.traffic_percent, request.shadow_percent,
                                               request.expected_revision, CommitAs(request.actor)));
  shadows_.Forget(change.name, change.version);
  StartBake(change, request.bake);
  RETURN_IF_ERROR(sources_.state->Sync());
  return change.revision;
}

absl::StatusOr<OperatorManager::Removal> LiveOperatorManager::Remove(
    const std::string& name, std::optional<uint64_t> expected_revision, const std::string& actor) {
  Removal removal;
  ASSIGN_OR_RETURN(
      RegistryChange change,
      sources_.registry->Remove(name, expected_revision, CommitAs(actor), &removal.drained));
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

Registry::Commit LiveOperatorManager::CommitAs(const std::string& actor,
                                               const std::string& message) {
  return [this, actor, message](const RegistryChange& change) {
    return sources_.state->Append(change, {.actor = actor, .message = message});
  };
}

void LiveOperatorManager::Note(OperatorEvent event) {
  // An event that cannot be written is lost, but not the change that it tells of.
  sources_.state->AppendEvent(std::move(event)).IgnoreError();
}

void LiveOperatorManager::NoteGeneration(uint64_t number, uint64_t staged, uint64_t members) {
  OperatorEvent event;
  event.kind = EventKind::kGeneration;
  event.actor = kDaemon;
  event.generation = number;
  // Without a version that came in it is the one that a start makes.
  const uint64_t count = staged == 0 ? members : staged;
  event.message = absl::StrCat(count, count == 1 ? " version" : " versions",
                               staged == 0 ? " restored" : " came in");
  Note(std::move(event));
}

// --- Bakes and trials ---------------------------------------------------------------

BakeCounters LiveOperatorManager::CountersOf(const std::string& name, uint32_t version) const {
  BakeCounters counters;
  const auto view = sources_.registry->Describe(name);
  const VersionView* found = view.ok() ? view->Find(version) : nullptr;
  if (found != nullptr) {
    counters.tasks = found->tasks();
    counters.failed = found->failed_tasks();
    counters.p99_ns = P99Ns(*found);
  }
  const ShadowTally::Counters shadow = shadows_.Of(name, version);
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
  // Judged against what serves beside it, or served before it.
  const uint32_t against = trial ? change.active_version : change.previous_version;
  const auto view = sources_.registry->Describe(change.name);
  const VersionView* before = view.ok() ? view->Find(against) : nullptr;
  const BakeCounters served = CountersOf(change.name, change.version);
  bakes_.Watch(change.name, change.version, change.revision, WithDefaults(wanted, options_.bake),
               before == nullptr ? 0 : P99Ns(*before),
               [this, name = change.name, version = change.version, served] {
                 BakeCounters counters = CountersOf(name, version);
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
    const std::string why = absl::StrCat("rolled back by itself: ", regression.reason);
    const auto view = sources_.registry->Describe(regression.name);
    const bool serves = view.ok() && view->active_version == regression.version;
    // Somebody who changed the operator meanwhile has decided otherwise.
    const auto change =
        serves || (view.ok() && view->trial.version == regression.version)
            ? sources_.registry->Rollback(regression.name, regression.revision,
                                          CommitAs(kDaemon, why))
            : absl::StatusOr<RegistryChange>(absl::AbortedError("changed meanwhile"));
    if (change.ok()) {
      sources_.state->Sync().IgnoreError();  // The store says so, and tries again.
      return;
    }
  }
  OperatorEvent event;
  event.kind = EventKind::kRegressed;
  event.operator_name = regression.name;
  event.version = regression.version;
  event.actor = kDaemon;
  event.message = regression.reason;
  Note(std::move(event));
}

void LiveOperatorManager::RecordShadow(const OperatorVersion& shadow, uint64_t tasks,
                                       uint64_t mismatches) {
  shadows_.Add(shadow, tasks, mismatches);
}

OperatorManager::TrialCounters LiveOperatorManager::trial_counters(const std::string& name) const {
  TrialCounters counters;
  const auto view = sources_.registry->Describe(name);
  if (!view.ok() || view->trial.version == 0) return counters;
  const BakeCounters standby = CountersOf(name, view->trial.version);
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
  // A built-in operator is never to blame. Of several others the one that came last is:
  // what has served for long has shown that it can.
  std::shared_ptr<const OperatorVersion> guilty;
  std::vector<std::shared_ptr<const OperatorVersion>> overdue;
  for (const uint32_t slot : fault.suspects) {
    auto version = sources_.registry->FindBySlot(slot);
    if (version == nullptr || version->builtin) continue;
    if (fault.reason == EngineEndReason::kHang) overdue.push_back(version);
    if (guilty == nullptr || version->spec.installed_ms > guilty->spec.installed_ms ||
        (version->spec.installed_ms == guilty->spec.installed_ms &&
         version->version > guilty->version)) {
      guilty = std::move(version);
    }
  }
  if (guilty == nullptr) return nullptr;
  // A task that ran past its limit is guilty by itself, whatever ran beside it.
  if (overdue.empty()) overdue.push_back(guilty);
  for (const auto& version : overdue) {
    std::string reason = fault.cause;
    for (const RunningTask& task : fault.running) {
      if (task.task.operator_slot != version->slot) continue;
      absl::StrAppend(&reason, kArgumentsOfReason, ArgumentsText(task));
      break;
    }
    // It fails if the version was removed, or quarantined by another device's fault.
    const auto change = sources_.registry->Quarantine(version->op->name(), version->version, reason,
                                                      CommitAs(kDaemon, reason));
    if (!change.ok()) continue;
    bakes_.Forget(version->op->name());
    if (!change->commit_status.ok()) {
      LogError("version ", version->version, " of ", version->op->name(),
               " is quarantined, but the state folder does not say so yet: a restart before the "
               "next change would bring it back: ",
               change->commit_status.ToString());
    }
  }
  sources_.state->Sync().IgnoreError();  // The store says so, and tries again.
  return stager_.Replacement(device);
}

// --- Events -------------------------------------------------------------------------

absl::StatusOr<std::vector<OperatorEvent>> LiveOperatorManager::EventsAfter(uint64_t after,
                                                                            size_t most) const {
  return sources_.state->EventsAfter(after, most);
}

std::vector<OperatorEvent> LiveOperatorManager::EventsBefore(uint64_t before,
                                                             const std::string& name,
                                                             size_t most) const {
  return sources_.state->EventsBefore(before, name, most);
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
