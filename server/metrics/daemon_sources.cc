#include "server/metrics/daemon_sources.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/connections/grpc_log.h"
#include "server/core/version.h"

namespace resident {
namespace {

constexpr size_t kEventsRead = 64;

constexpr std::array<std::pair<EventKind, const char*>, 10> kKinds = {{
    {EventKind::kInstalled, "installed"},
    {EventKind::kRejected, "rejected"},
    {EventKind::kActivated, "activated"},
    {EventKind::kRolledBack, "rolled_back"},
    {EventKind::kRemoved, "removed"},
    {EventKind::kPromoted, "promoted"},
    {EventKind::kQuarantined, "quarantined"},
    {EventKind::kRetired, "retired"},
    {EventKind::kGeneration, "generation"},
    {EventKind::kRegressed, "regressed"},
}};

}  // namespace

OperatorEventCounter::OperatorEventCounter(OperatorManager* manager)
    : manager_(manager),
      after_(manager->revision()),
      subscription_(manager->Subscribe([this] { Count(); })) {}

OperatorEventCounter::~OperatorEventCounter() { manager_->Unsubscribe(subscription_); }

void OperatorEventCounter::Count() {
  absl::MutexLock lock(&mu_);
  while (true) {
    const auto events = manager_->EventsAfter(after_, kEventsRead);
    if (!events.ok()) {
      // More events came at once than the manager keeps; the lost ones are not counted.
      after_ = manager_->revision();
      return;
    }
    if (events->empty()) return;
    for (const OperatorEvent& event : *events) ++counts_[event.kind];
    after_ = events->back().revision;
  }
}

std::map<std::string, uint64_t> OperatorEventCounter::counts() const {
  absl::MutexLock lock(&mu_);
  std::map<std::string, uint64_t> by_name;
  for (const auto& [kind, name] : kKinds) {
    const auto found = counts_.find(kind);
    by_name[name] = found == counts_.end() ? 0 : found->second;
  }
  return by_name;
}

namespace {

std::vector<OperatorSeries> ListOperators(const Core& core) {
  std::vector<OperatorSeries> series;
  core.registry.ForEachStats(
      [&](uint32_t device, const std::shared_ptr<const OperatorStats>& stats) {
        series.push_back({device, stats});
      });
  std::sort(series.begin(), series.end(), [](const OperatorSeries& a, const OperatorSeries& b) {
    return std::tie(a.stats->name(), a.device) < std::tie(b.stats->name(), b.device);
  });
  return series;
}

std::vector<TrialSeries> ListTrials(const Core& core) {
  std::vector<TrialSeries> trials;
  for (const OperatorView& op : core.registry.List()) {
    if (op.trial.version == 0) continue;
    const auto counters = core.operators.trial_counters(op.op->name());
    trials.push_back(
        {op.op->name(), op.trial.version, counters.shadow_tasks, counters.shadow_mismatches});
  }
  return trials;
}

std::vector<ActiveSeries> ListActive(const Core& core) {
  std::vector<ActiveSeries> series;
  for (const OperatorView& op : core.registry.List()) {
    const VersionView* const active = op.active_version == 0 ? nullptr : op.Find(op.active_version);
    if (active == nullptr || active->builtin) continue;
    series.push_back({op.op->name(), active->spec.set, active->label,
                      active->spec.content_hash.substr(0, kMinHashDigits)});
  }
  return series;
}

double ReadClaimAge(const Core& core) {
  const PlanTable plans = core.operators.plans();
  for (const PlanRecord& plan : plans.plans) {
    if (plans.lease == 0 || plan.plan != plans.claimed) continue;
    const absl::Duration age = absl::Now() - absl::FromUnixMillis(plan.claimed_ms);
    return std::max(0.0, absl::ToDoubleSeconds(age));
  }
  return 0;
}

std::map<std::string, uint64_t> MeasureHostMemory(const Core& core) {
  const Budget& host = core.admission.host();
  return {{"requests", host.used(Budget::Purpose::kRequests)},
          {"batches", host.used(Budget::Purpose::kBatches)},
          {"answers", host.used(Budget::Purpose::kAnswers)},
          {"downloads", host.used(Budget::Purpose::kDownloads)},
          {"durable_copies", core.buffers.copies_bytes()}};
}

std::vector<v1::Model> ListModels(const Core& core) {
  std::vector<v1::Model> models;
  for (const ModelTable::Model& model : core.models.List()) {
    v1::Model& to = models.emplace_back();
    to.set_name(model.name);
    for (const ModelTable::Version& version : model.versions) {
      v1::ModelVersion* const added = to.add_versions();
      version.served->Describe(added);
      added->set_version(version.version);
      if (version.state == ModelTable::State::kActive) {
        added->set_state(v1::ModelVersion::STATE_ACTIVE);
      }
    }
  }
  return models;
}

}  // namespace

MetricsSources MakeDaemonSources(const Graphs& graphs, const LaneTable& lanes, Listener& listener,
                                 const AccessFiles& files) {
  const Core& core = graphs.core;
  return {.version = kVersion,
          .devices = {core.devices.begin(), core.devices.end()},
          .rpc = core.counters,
          .access = core.access,
          .access_files = [&files] { return files.counters(); },
          .operators = [&core] { return ListOperators(core); },
          .buffers = [&core](uint32_t device) { return core.buffers.CountOn(device); },
          .staging =
              [&core](uint32_t device) {
                return StagingFigures{core.admission.staging_used(device),
                                      core.admission.staging_waiting(device)};
              },
          .lanes =
              [&lanes](uint32_t device) {
                const LaneCounters& counters = lanes.counters(device);
                return LaneFigures{lanes.CountOn(device),     counters.ok.load(),
                                   counters.failed.load(),    counters.refused.load(),
                                   counters.cancelled.load(), counters.joined.load()};
              },
          .host_memory = [&core] { return MeasureHostMemory(core); },
          .graphs =
              [&graphs] {
                return GraphFigures{graphs.store.count(), graphs.store.bytes(),
                                    graphs.sessions.count(), graphs.sessions.bytes()};
              },
          .models = [&core] { return ListModels(core); },
          .clients = [&core] { return core.clients.sessions(); },
          .connections = [&listener] { return listener.Figures(); },
          .log_lines_suppressed = [] { return GrpcLog::Install().suppressed(); },
          .operator_events = [events = std::make_shared<OperatorEventCounter>(
                                  &core.operators)] { return events->counts(); },
          .trials = [&core] { return ListTrials(core); },
          .native_forms = [&core] { return core.operators.native_counters(); },
          .isolation_refusals = [&core] { return core.operators.isolation_refusals(); },
          .active = [&core] { return ListActive(core); },
          .claim_seconds = [&core] { return ReadClaimAge(core); },
          .operators_dir = nullptr,
          .ready = [&core] { return core.ready(); }};
}

}  // namespace resident
