#include "runtime/install/live_operator_manager.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/device/arguments_text.h"
#include "runtime/install/install_errors.h"
#include "runtime/install/install_run.h"
#include "runtime/install/unit_payload.h"

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
          {.park_deadline = options.park_deadline}, sources.registry, sources.devices,
          [this](const Device& device, uint64_t number,
                 const GenerationStager::Versions& versions) {
            return VersionBuilder::MakeGeneration(VersionBuilder::TargetOf(device), number,
                                                  MembersOf(versions));
          },
          [this](uint64_t number, const GenerationStager::Versions& staged) {
            NoteGeneration(number, staged);
          }) {}

LiveOperatorManager::~LiveOperatorManager() = default;

absl::Status LiveOperatorManager::Install(
    const InstallRequest& request, const std::function<void(const InstallProgress&)>& progress,
    const std::function<bool()>& withdrawn) {
  return InstallRun(*this, request, progress, withdrawn).Run();
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Activate(const SwitchRequest& request) {
  if (request.force) {
    absl::Status brought = BringBack(request.name, request.version);
    if (!brought.ok()) return brought;
  }
  absl::StatusOr<RegistryChange> change =
      sources_.registry->Activate(request.name, request.version, request.expected_revision,
                                  request.force, CommitAs(request.actor));
  if (change.ok()) StartBake(*change, request.bake);
  return Finish(std::move(change));
}

absl::Status LiveOperatorManager::BringBack(const std::string& name, uint32_t version) {
  const auto view = sources_.registry->Describe(name);
  if (!view.ok()) return view.status();
  const VersionView* found = view->Find(version == 0 ? view->standby_version : version);
  if (found == nullptr || found->slot == kNoSlot) return absl::OkStatus();
  std::shared_ptr<const OperatorVersion> held = sources_.registry->FindBySlot(found->slot);
  if (held == nullptr || stager_.Contains(*held)) return absl::OkStatus();
  return stager_.Stage(std::move(held));
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Rollback(const SwitchRequest& request) {
  bakes_.Forget(request.name);
  return Finish(sources_.registry->Rollback(request.name, request.expected_revision,
                                            CommitAs(request.actor)));
}

absl::StatusOr<uint64_t> LiveOperatorManager::Promote(const PromoteRequest& request) {
  absl::StatusOr<RegistryChange> change = sources_.registry->SetTrial(
      request.name, request.version, request.traffic_percent, request.shadow_percent,
      request.expected_revision, CommitAs(request.actor));
  if (!change.ok()) return change.status();
  {
    absl::MutexLock lock(&mu_);
    shadows_.erase({change->name, change->version});
  }
  StartBake(*change, request.bake);
  return change->revision;
}

absl::StatusOr<uint64_t> LiveOperatorManager::Remove(
    const std::string& name, std::optional<uint64_t> expected_revision, const std::string& actor,
    std::chrono::steady_clock::time_point deadline) {
  std::vector<std::shared_ptr<absl::Notification>> drained;
  absl::StatusOr<RegistryChange> change =
      sources_.registry->Remove(name, expected_revision, CommitAs(actor), &drained);
  if (!change.ok()) return change.status();
  bakes_.Forget(name);
  const absl::Time until =
      absl::Now() + absl::FromChrono(deadline - std::chrono::steady_clock::now());
  for (const auto& last_task : drained) {
    if (!last_task->WaitForNotificationWithDeadline(until)) return errors::RemovedButRunning(name);
  }
  return change->revision;
}

absl::StatusOr<SwitchResult> LiveOperatorManager::Finish(absl::StatusOr<RegistryChange> change) {
  if (!change.ok()) return change.status();
  return SwitchResult{change->active_version, change->previous_version, change->revision,
                      change->switch_time};
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

void LiveOperatorManager::NoteGeneration(uint64_t number,
                                         const GenerationStager::Versions& staged) {
  OperatorEvent event;
  event.kind = EventKind::kGeneration;
  event.actor = kDaemon;
  event.generation = number;
  event.message =
      absl::StrCat(staged.size(), staged.size() == 1 ? " version" : " versions", " came in");
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
  absl::MutexLock lock(&mu_);
  const auto shadow = shadows_.find({name, version});
  if (shadow != shadows_.end()) {
    counters.shadow_tasks = shadow->second.tasks;
    counters.shadow_mismatches = shadow->second.mismatches;
  }
  return counters;
}

void LiveOperatorManager::StartBake(const RegistryChange& change, const BakeOptions& wanted) {
  const bool trial = change.kind == EventKind::kPromoted;
  if (trial && change.traffic_percent == 0 && change.shadow_percent == 0) {
    bakes_.Forget(change.name);
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
  absl::MutexLock lock(&mu_);
  ShadowCounters& counters = shadows_[{shadow.op->name(), shadow.version}];
  counters.tasks += tasks;
  counters.mismatches += mismatches;
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
    if (fault.kind == "hang") overdue.push_back(version);
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
      absl::StrAppend(&reason, "; its arguments: ", ArgumentsText(task));
      break;
    }
    bakes_.Forget(version->op->name());
    sources_.registry
        ->Quarantine(version->op->name(), version->version, reason, CommitAs(kDaemon, reason))
        .IgnoreError();  // Removed, or quarantined by another device's fault.
  }
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
