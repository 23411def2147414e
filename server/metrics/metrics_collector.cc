#include "server/metrics/metrics_collector.h"

#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"
#include "server/metrics/process_metrics.h"

namespace resident {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr std::array<const char*, OperatorStats::kStatuses> kTaskStatusNames = {
    "ok",      "invalid_argument", "deadline_exceeded", "cancelled",
    "aborted", "unavailable",      "internal"};

constexpr std::array<std::pair<Device::State, const char*>, 6> kStateNames = {{
    {Device::State::kStarting, "starting"},
    {Device::State::kResident, "resident"},
    {Device::State::kIdleParked, "idle_parked"},
    {Device::State::kParked, "parked"},
    {Device::State::kRestarting, "restarting"},
    {Device::State::kUnhealthy, "unhealthy"},
}};

MetricFamily Family(std::string name, MetricType type, std::string help) {
  MetricFamily family;
  family.name = std::move(name);
  family.type = type;
  family.help = std::move(help);
  return family;
}

void AddCounter(MetricFamily& family, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  family.metric.push_back(std::move(metric));
}

void AddGauge(MetricFamily& family, Labels labels, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  family.metric.push_back(std::move(metric));
}

void AddHistogram(MetricFamily& family, Labels labels, const DurationHistogram& durations) {
  ClientMetric metric;
  metric.label = std::move(labels);
  uint64_t count = 0;
  for (int b = 0; b < DurationHistogram::kBuckets; ++b) {
    count += durations.count(b);
    // The last bucket has no upper bound.
    const double bound = b + 1 < DurationHistogram::kBuckets
                             ? static_cast<double>(DurationHistogram::UpperBoundNs(b)) * 1e-9
                             : INFINITY;
    metric.histogram.bucket.push_back({count, bound});
  }
  // The sum of the buckets read above, so that count and buckets agree while other threads observe.
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = static_cast<double>(durations.sum_ns()) * 1e-9;
  family.metric.push_back(std::move(metric));
}

// A family with one series.
MetricFamily Single(std::string name, MetricType type, std::string help, double value) {
  MetricFamily family = Family(std::move(name), type, std::move(help));
  if (type == MetricType::Counter) {
    AddCounter(family, {}, value);
  } else {
    AddGauge(family, {}, value);
  }
  return family;
}

void CollectOperators(const std::vector<OperatorSeries>& operators,
                      std::vector<MetricFamily>& families) {
  MetricFamily tasks =
      Family("resident_tasks_total", MetricType::Counter, "Tasks that ended, by how they ended.");
  MetricFamily queued =
      Family("resident_batch_queued_seconds", MetricType::Histogram,
             "Time of a batch from its admission until its last task was in the ring.");
  MetricFamily device = Family("resident_task_device_seconds", MetricType::Histogram,
                               "Time of a task on the device.");
  MetricFamily whole = Family("resident_batch_seconds", MetricType::Histogram,
                              "Time of a batch from its admission until its last task ended.");
  for (const OperatorSeries& series : operators) {
    const OperatorStats& stats = *series.stats;
    // Most operators are never called.
    if (stats.all_tasks() == 0) continue;
    const Labels labels = {{"operator", stats.name()},
                           {"version", std::to_string(stats.version())},
                           {"device", std::to_string(series.device)}};
    for (int status = 0; status < OperatorStats::kStatuses; ++status) {
      const uint64_t count = stats.tasks(status);
      if (count == 0) continue;
      Labels with_status = labels;
      with_status.push_back({"status", kTaskStatusNames[status]});
      AddCounter(tasks, std::move(with_status), static_cast<double>(count));
    }
    AddHistogram(queued, labels, stats.queued);
    AddHistogram(device, labels, stats.device);
    AddHistogram(whole, labels, stats.whole);
  }
  for (MetricFamily* family : {&tasks, &queued, &device, &whole}) {
    families.push_back(std::move(*family));
  }
}

// The families with one series for each device.
class DeviceFamilies {
 public:
  void Add(const Device& device, uint64_t buffers, const StagingFigures& staging,
           const LaneFigures& lanes) {
    const Device::Snapshot snapshot = device.snapshot();
    const Labels labels = {{"device", std::to_string(device.index())}};

    for (const auto& [state, name] : kStateNames) {
      AddGauge(state_, With(labels, "state", name), snapshot.state == state ? 1 : 0);
    }
    AddGauge(info_,
             With(With(labels, "engine", snapshot.info.traits.engine), "name", snapshot.info.name),
             1);
    AddGauge(generation_, labels, static_cast<double>(snapshot.info.generation));
    AddCounter(changes_, With(labels, "outcome", "ok"),
               static_cast<double>(snapshot.generation_changes));
    AddCounter(changes_, With(labels, "outcome", "failed"),
               static_cast<double>(snapshot.failed_generation_changes));
    AddHistogram(pause_, labels, device.generation_pause());
    AddGauge(workers_, labels, snapshot.info.workers);

    AddGauge(queue_, labels, static_cast<double>(snapshot.queue.queued_tasks));
    AddGauge(occupancy_, labels, snapshot.queue.in_flight);
    AddGauge(slots_, labels, snapshot.queue.ring_slots);
    AddCounter(busy_, labels, std::chrono::duration<double>(snapshot.queue.busy).count());

    AddCounter(parks_, labels, static_cast<double>(snapshot.parks));
    AddCounter(resumes_, labels, static_cast<double>(snapshot.resumes));
    AddHistogram(park_, labels, device.park_duration());
    AddHistogram(resume_, labels, device.resume_duration());

    for (const EngineEndReason reason : kEngineEndReasons) {
      const auto found = snapshot.restarts_by_reason.find(reason);
      const uint64_t count = found == snapshot.restarts_by_reason.end() ? 0 : found->second;
      AddCounter(restarts_, With(labels, "cause", ReasonLabel(reason)), static_cast<double>(count));
    }

    AddGauge(spare_, labels, snapshot.spare_pid != 0 ? 1 : 0);
    AddGauge(last_restart_, labels,
             std::chrono::duration<double>(snapshot.last_restart.total).count());

    AddGauge(memory_, labels, static_cast<double>(snapshot.info.memory_bytes));
    AddGauge(memory_used_, labels, static_cast<double>(snapshot.memory_used_bytes));
    AddGauge(buffers_, labels, static_cast<double>(buffers));
    AddGauge(staging_used_, labels, static_cast<double>(staging.used_bytes));
    AddGauge(staging_waiting_, labels, static_cast<double>(staging.waiting));

    AddGauge(lanes_, labels, static_cast<double>(lanes.lanes));
    for (const auto& [result, count] :
         {std::pair("ok", lanes.ok), std::pair("failed", lanes.failed),
          std::pair("refused", lanes.refused), std::pair("cancelled", lanes.cancelled)}) {
      AddCounter(submissions_, With(labels, "result", result), static_cast<double>(count));
    }
    AddCounter(lane_joined_, labels, static_cast<double>(lanes.joined));
    AddCounter(lane_wakeups_, labels, static_cast<double>(snapshot.queue.lane_wakeups));
    AddCounter(lane_polling_, labels,
               std::chrono::duration<double>(snapshot.queue.lane_polling).count());
    for (const auto& [reason, name] : {std::pair(StopReason::kTimeLimit, "time_limit"),
                                       std::pair(StopReason::kDeadline, "deadline"),
                                       std::pair(StopReason::kCancelled, "cancelled"),
                                       std::pair(StopReason::kLanesApart, "lanes_apart")}) {
      AddCounter(stopped_, With(labels, "reason", name),
                 static_cast<double>(snapshot.queue.stopped[static_cast<size_t>(reason)]));
    }

    AddHistogram(stop_, labels, device.stop_duration());

    if (const auto engine = ReadProcess(snapshot.engine_pid)) {
      AddCounter(engine_cpu_, labels, engine->cpu_seconds);
      AddGauge(engine_memory_, labels, static_cast<double>(engine->resident_bytes));
    }
  }

  void MoveTo(std::vector<MetricFamily>& families) {
    for (MetricFamily* family :
         {&state_,       &info_,          &generation_,   &changes_,      &pause_,
          &workers_,     &queue_,         &occupancy_,    &slots_,        &busy_,
          &parks_,       &resumes_,       &park_,         &resume_,       &restarts_,
          &memory_,      &memory_used_,   &buffers_,      &staging_used_, &staging_waiting_,
          &engine_cpu_,  &engine_memory_, &spare_,        &last_restart_, &lanes_,
          &submissions_, &lane_joined_,   &lane_wakeups_, &lane_polling_, &stopped_,
          &stop_}) {
      families.push_back(std::move(*family));
    }
  }

 private:
  static Labels With(Labels labels, std::string name, std::string value) {
    labels.push_back({std::move(name), std::move(value)});
    return labels;
  }

  MetricFamily state_ = Family("resident_device_state", MetricType::Gauge,
                               "1 for the state that the device is in, 0 for the others.");
  MetricFamily info_ = Family("resident_device_info", MetricType::Gauge,
                              "Always 1; the labels describe the device.");
  MetricFamily generation_ = Family(
      "resident_generation", MetricType::Gauge,
      "Generation of code on the device: starts at 1 and increases by 1 for each image loaded.");
  MetricFamily workers_ = Family("resident_workers", MetricType::Gauge,
                                 "Blocks of the resident kernel, or worker threads of the CPU.");
  MetricFamily queue_ = Family("resident_queue_tasks", MetricType::Gauge,
                               "Tasks admitted and not yet in the ring, of all clients.");
  MetricFamily occupancy_ = Family("resident_ring_occupancy", MetricType::Gauge,
                                   "Slots of the ring that hold a task: submitted, not completed.");
  MetricFamily slots_ =
      Family("resident_ring_slots", MetricType::Gauge,
             "Slots of the ring. Minus the occupancy: the credits left for submission.");
  MetricFamily busy_ = Family("resident_device_busy_seconds_total", MetricType::Counter,
                              "Time in which at least one task was queued or in the ring.");
  MetricFamily changes_ = Family("resident_generation_changes_total", MetricType::Counter,
                                 "Changes of the generation of code, by how they ended.");
  MetricFamily pause_ = Family("resident_generation_pause_seconds", MetricType::Histogram,
                               "Time for which a change of generation delayed tasks.");
  MetricFamily parks_ = Family("resident_parks_total", MetricType::Counter,
                               "Number of times that the kernel left the device.");
  MetricFamily resumes_ = Family("resident_resumes_total", MetricType::Counter,
                                 "Number of times that the kernel was started again.");
  MetricFamily park_ = Family("resident_park_seconds", MetricType::Histogram,
                              "Time from the park marker until the kernel had left the device.");
  MetricFamily resume_ = Family("resident_resume_seconds", MetricType::Histogram,
                                "Time to start a parked kernel again.");
  MetricFamily restarts_ = Family("resident_engine_restarts_total", MetricType::Counter,
                                  "Engine processes that ended and were replaced, by cause.");
  MetricFamily spare_ =
      Family("resident_spare_engine", MetricType::Gauge,
             "1 if a spare engine is ready to replace the device's engine, 0 if not.");
  MetricFamily last_restart_ =
      Family("resident_engine_last_restart_seconds", MetricType::Gauge,
             "Time from the end of the last engine that was replaced until "
             "the next one served; 0 if none was replaced.");
  MetricFamily memory_ = Family("resident_device_memory_bytes", MetricType::Gauge,
                                "Device memory reserved for buffers.");
  MetricFamily memory_used_ = Family("resident_device_memory_used_bytes", MetricType::Gauge,
                                     "Device memory that buffers use.");
  MetricFamily buffers_ = Family("resident_buffers", MetricType::Gauge, "Buffers on the device.");
  MetricFamily staging_used_ =
      Family("resident_staging_used_bytes", MetricType::Gauge,
             "Staging memory that batches with inline or returned tensors, and transfers, hold.");
  MetricFamily staging_waiting_ = Family("resident_staging_waiting", MetricType::Gauge,
                                         "Streams and transfers that wait for staging memory.");
  MetricFamily lanes_ = Family("resident_lanes", MetricType::Gauge, "Open local lanes.");
  MetricFamily submissions_ =
      Family("resident_lane_submissions_total", MetricType::Counter,
             "Submissions of local lanes that ended, by result: ok, failed (another status of a "
             "task), refused (not accepted), cancelled.");
  MetricFamily lane_joined_ =
      Family("resident_lane_joined_tasks_total", MetricType::Counter,
             "Submissions of local lanes that waited and were joined into ranges.");
  MetricFamily lane_wakeups_ = Family("resident_lane_wakeups_total", MetricType::Counter,
                                      "Local lanes that were asleep and were polled again.");
  MetricFamily lane_polling_ = Family("resident_lane_poll_seconds_total", MetricType::Counter,
                                      "Time in which local lanes were polled without a result.");
  MetricFamily stopped_ =
      Family("resident_tasks_stopped_total", MetricType::Counter,
             "Tasks that were stopped while they ran, or behind one of their range, by reason: "
             "time_limit, deadline, cancelled, lanes_apart.");
  MetricFamily stop_ = Family("resident_stop_seconds", MetricType::Histogram,
                              "Time from a request to stop a task that runs, because of its "
                              "deadline or a cancellation, until it had ended.");
  MetricFamily engine_cpu_ =
      Family("resident_engine_cpu_seconds_total", MetricType::Counter,
             "Processor time of the device's engine process; restarts at 0 with each engine.");
  MetricFamily engine_memory_ =
      Family("resident_engine_resident_memory_bytes", MetricType::Gauge,
             "Resident memory of the device's engine process, the shared region included.");
};

// "invalid_argument".
std::string CodeName(int code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)));
}

// Codes that are reported, with the value 0, before the first batch is refused with them.
bool IsUsualRefusal(absl::StatusCode code) {
  return code == absl::StatusCode::kInvalidArgument ||
         code == absl::StatusCode::kResourceExhausted || code == absl::StatusCode::kUnavailable;
}

void CollectRpc(const RpcCounters& rpc, std::vector<MetricFamily>& families) {
  families.push_back(
      Single("resident_rpc_received_bytes_total", MetricType::Counter,
             "Bytes of requests that carry work: Run, Submit, Install, and data of Upload.",
             static_cast<double>(rpc.received_bytes())));
  families.push_back(
      Single("resident_rpc_sent_bytes_total", MetricType::Counter,
             "Bytes of responses to Run, Submit, Install and Watch, and data of Download.",
             static_cast<double>(rpc.sent_bytes())));
  families.push_back(Single("resident_batches_total", MetricType::Counter,
                            "Batches that clients sent, refused ones included.",
                            static_cast<double>(rpc.batches())));
  MetricFamily refused = Family("resident_refused_batches_total", MetricType::Counter,
                                "Batches refused before any of their tasks ran, by status code.");
  for (int code = 1; code < RpcCounters::kCodes; ++code) {
    const uint64_t count = rpc.refused(code);
    if (count == 0 && !IsUsualRefusal(static_cast<absl::StatusCode>(code))) continue;
    AddCounter(refused, {{"code", CodeName(code)}}, static_cast<double>(count));
  }
  families.push_back(std::move(refused));
}

void CollectAccess(const Access& access, const AccessFiles::Counters& files,
                   std::vector<MetricFamily>& families) {
  MetricFamily denied = Family("resident_denied_calls_total", MetricType::Counter,
                               "Calls refused because of the caller's identity, by status code.");
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnauthenticated, absl::StatusCode::kPermissionDenied}) {
    AddCounter(denied, {{"code", CodeName(static_cast<int>(code))}},
               static_cast<double>(access.denied(code)));
  }
  families.push_back(std::move(denied));
  families.push_back(Single("resident_access_reloads_total", MetricType::Counter,
                            "Policy, token and certificate files that were reloaded.",
                            static_cast<double>(files.reloads)));
  families.push_back(
      Single("resident_access_reload_failures_total", MetricType::Counter,
             "Policy, token and certificate files that failed to reload; the previous "
             "contents stay in force.",
             static_cast<double>(files.failures)));
  families.push_back(Single("resident_certificate_expires_seconds", MetricType::Gauge,
                            "When the server's certificate expires, in seconds since the epoch; "
                            "+Inf without one.",
                            files.certificate_expires == 0
                                ? std::numeric_limits<double>::infinity()
                                : static_cast<double>(files.certificate_expires)));
}

void CollectChanges(const MetricsSources& sources, std::vector<MetricFamily>& families) {
  MetricFamily events = Family("resident_operator_events_total", MetricType::Counter,
                               "Changes of operators, as Operators.Watch reports them, by kind.");
  for (const auto& [event, count] : sources.operator_events()) {
    AddCounter(events, {{"event", event}}, static_cast<double>(count));
  }
  MetricFamily refusals = Family("resident_isolation_refusals_total", MetricType::Counter,
                                 "Installs whose code could not be made stoppable, by the rule "
                                 "that refused it.");
  for (const auto& [rule, count] : sources.isolation_refusals()) {
    AddCounter(refusals, {{"rule", rule}}, static_cast<double>(count));
  }
  MetricFamily shadowed =
      Family("resident_trial_shadow_tasks", MetricType::Gauge,
             "Tasks that a version on trial has run in addition to the active version.");
  MetricFamily mismatches =
      Family("resident_trial_shadow_mismatches", MetricType::Gauge,
             "Shadow tasks whose outputs differed by more than the tolerance.");
  for (const TrialSeries& trial : sources.trials()) {
    const Labels labels = {{"operator", trial.operator_name},
                           {"version", std::to_string(trial.version)}};
    AddGauge(shadowed, labels, static_cast<double>(trial.shadow_tasks));
    AddGauge(mismatches, labels, static_cast<double>(trial.shadow_mismatches));
  }
  MetricFamily active =
      Family("resident_operator_active_info", MetricType::Gauge,
             "Always 1; the labels name the version of each installed operator that serves.");
  for (const ActiveSeries& series : sources.active()) {
    AddGauge(active,
             {{"operator", series.operator_name},
              {"set", series.set},
              {"label", series.label},
              {"hash", series.hash}},
             1);
  }
  families.push_back(std::move(active));
  families.push_back(Single("resident_claim_seconds", MetricType::Gauge,
                            "Time since the plan that has the daemon's claim was claimed first; 0: "
                            "there is no claim.",
                            sources.claim_seconds()));
  for (MetricFamily* family : {&events, &refusals, &shadowed, &mismatches}) {
    families.push_back(std::move(*family));
  }
}

void CollectOperatorsDir(const MetricsSources& sources, std::vector<MetricFamily>& families) {
  using Status = v1::OperatorsDirStatus;
  constexpr std::array<std::pair<Status::State, const char*>, 3> kStates = {{
      {Status::STATE_APPLIED, "applied"},
      {Status::STATE_APPLYING, "applying"},
      {Status::STATE_FAILED, "failed"},
  }};
  const Status status = sources.operators_dir ? sources.operators_dir() : Status();
  MetricFamily state =
      Family("resident_operators_dir_state", MetricType::Gauge,
             "1 for the state of the set in --operators_dir; 0 for all: there is no such folder.");
  for (const auto& [value, name] : kStates) {
    AddGauge(state, {{"state", name}}, status.state() == value ? 1 : 0);
  }
  families.push_back(std::move(state));
  families.push_back(Single("resident_operators_drift", MetricType::Gauge,
                            "Whether other versions serve than --operators_dir says, because they "
                            "were changed otherwise.",
                            status.drift() ? 1 : 0));
}

void CollectNativeForms(const MetricsSources& sources, std::vector<MetricFamily>& families) {
  const OperatorManager::NativeCounters forms = sources.native_forms();
  families.push_back(Single("resident_flux_native_forms", MetricType::Gauge,
                            "Installed FLUX programs whose native code serves.",
                            static_cast<double>(forms.serving)));
  families.push_back(Single("resident_flux_native_comparisons_total", MetricType::Counter,
                            "Batches of native code that also ran on the interpreter.",
                            static_cast<double>(forms.comparisons)));
  families.push_back(Single("resident_flux_native_mismatch_total", MetricType::Counter,
                            "Native code of FLUX programs whose results differed from the "
                            "interpreter's.",
                            static_cast<double>(forms.mismatches)));
  families.push_back(
      Single("resident_flux_native_quarantined_total", MetricType::Counter,
             "Native code of FLUX programs that was taken out of service: it differed, "
             "or caused a fault.",
             static_cast<double>(forms.quarantined)));
}

void CollectGraphs(const MetricsSources& sources, std::vector<MetricFamily>& families) {
  const GraphFigures graphs = sources.graphs();
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    families.push_back(Single(name, MetricType::Gauge, help, static_cast<double>(value)));
  };
  gauge("resident_graphs", "Loaded graphs.", graphs.loaded);
  gauge("resident_graph_bytes", "Memory of the front end that loaded graphs use.",
        graphs.loaded_bytes);
  gauge("resident_graph_sessions", "Open graph sessions.", graphs.sessions);
  gauge("resident_graph_session_bytes", "Device memory that graph sessions have allocated.",
        graphs.session_bytes);
  MetricFamily runs = Family("resident_graph_runs_total", MetricType::Counter,
                             "Runs of graphs that have ended, by how they ended.");
  AddCounter(runs, {{"outcome", "ok"}}, static_cast<double>(sources.rpc.graph_runs()));
  AddCounter(runs, {{"outcome", "failed"}}, static_cast<double>(sources.rpc.failed_graph_runs()));
  families.push_back(std::move(runs));
  families.push_back(Single("resident_graph_steps_total", MetricType::Counter,
                            "Complete steps of these runs.",
                            static_cast<double>(sources.rpc.graph_steps())));
}

// Only models that are loaded have series.
void CollectModels(const MetricsSources& sources, std::vector<MetricFamily>& families) {
  const std::vector<v1::Model> models = sources.models();
  if (models.empty()) return;
  MetricFamily requests = Family("resident_model_requests_total", MetricType::Counter,
                                 "Requests to models that have ended, by how they ended.");
  MetricFamily device = Family("resident_model_device_seconds_total", MetricType::Counter,
                               "Time on the device of the executions that did not fail.");
  MetricFamily rows = Family("resident_model_rows_total", MetricType::Counter,
                             "Rows of the requests that did not fail.");
  MetricFamily executions =
      Family("resident_model_executions_total", MetricType::Counter,
             "Executions that did not fail; requests that are combined share one.");
  MetricFamily active = Family("resident_model_active", MetricType::Gauge,
                               "1 for the version that serves requests without a version.");
  MetricFamily instances =
      Family("resident_model_instances", MetricType::Gauge, "Instances that exist.");
  MetricFamily weights = Family("resident_model_weight_bytes", MetricType::Gauge,
                                "Bytes of the weights, in the daemon's memory and on the device.");
  MetricFamily misses = Family("resident_model_plan_misses_total", MetricType::Counter,
                               "Requests that waited until their plan was made.");
  MetricFamily plans = Family("resident_model_plans", MetricType::Gauge, "Plans that exist.");
  for (const v1::Model& model : models) {
    for (const v1::ModelVersion& version : model.versions()) {
      const Labels labels = {{"model", model.name()},
                             {"version", std::to_string(version.version())}};
      Labels ok = labels, failed = labels;
      ok.push_back({"outcome", "ok"});
      failed.push_back({"outcome", "failed"});
      AddCounter(requests, ok, static_cast<double>(version.requests() - version.failed()));
      AddCounter(requests, failed, static_cast<double>(version.failed()));
      AddCounter(device, labels, static_cast<double>(version.device_ns()) * 1e-9);
      AddCounter(rows, labels, static_cast<double>(version.rows()));
      AddCounter(executions, labels, static_cast<double>(version.executions()));
      AddGauge(active, labels, version.state() == v1::ModelVersion::STATE_ACTIVE ? 1 : 0);
      AddGauge(instances, labels, static_cast<double>(version.instances()));
      AddGauge(weights, labels, static_cast<double>(version.weight_bytes()));
      if (version.dimensions().empty()) continue;
      AddCounter(misses, labels, static_cast<double>(version.plan_misses()));
      AddGauge(plans, labels, static_cast<double>(version.plans_size()));
    }
  }
  for (MetricFamily* const family :
       {&requests, &device, &rows, &executions, &active, &instances, &weights}) {
    families.push_back(std::move(*family));
  }
  if (plans.metric.empty()) return;
  families.push_back(std::move(misses));
  families.push_back(std::move(plans));
}

void CollectProcess(std::vector<MetricFamily>& families) {
  const auto process = ReadProcess(getpid());
  if (!process.has_value()) return;
  families.push_back(Single("process_cpu_seconds_total", MetricType::Counter,
                            "User and system processor time of the front end.",
                            process->cpu_seconds));
  families.push_back(Single("process_start_time_seconds", MetricType::Gauge,
                            "When the front end started, in seconds since the epoch.",
                            process->start_time_seconds));
  families.push_back(Single("process_resident_memory_bytes", MetricType::Gauge,
                            "Resident memory of the front end.",
                            static_cast<double>(process->resident_bytes)));
  families.push_back(Single("process_virtual_memory_bytes", MetricType::Gauge,
                            "Virtual memory of the front end.",
                            static_cast<double>(process->virtual_bytes)));
  families.push_back(Single("process_threads", MetricType::Gauge, "Threads of the front end.",
                            static_cast<double>(process->threads)));
  families.push_back(Single("process_open_fds", MetricType::Gauge,
                            "File descriptors that the front end has open.",
                            static_cast<double>(process->open_fds)));
  families.push_back(Single("process_max_fds", MetricType::Gauge,
                            "File descriptors that the front end may have open.",
                            static_cast<double>(process->max_fds)));
}

}  // namespace

std::vector<MetricFamily> MetricsCollector::Collect() const {
  std::vector<MetricFamily> families;

  MetricFamily build = Family("resident_build_info", MetricType::Gauge,
                              "Always 1; the label is the version of residentd.");
  AddGauge(build, {{"version", sources_.version}}, 1);
  families.push_back(std::move(build));

  CollectOperators(sources_.operators(), families);
  CollectChanges(sources_, families);
  CollectOperatorsDir(sources_, families);
  CollectNativeForms(sources_, families);
  CollectGraphs(sources_, families);
  CollectModels(sources_, families);

  DeviceFamilies devices;
  for (const Device* device : sources_.devices) {
    const uint32_t index = device->index();
    devices.Add(*device, sources_.buffers(index), sources_.staging(index), sources_.lanes(index));
  }
  devices.MoveTo(families);

  families.push_back(Single("resident_clients", MetricType::Gauge, "Open sessions.",
                            static_cast<double>(sources_.clients())));
  const ConnectionFigures connections = sources_.connections();
  families.push_back(Single("resident_connections", MetricType::Gauge, "Connections of clients.",
                            static_cast<double>(connections.open)));
  families.push_back(Single("resident_connections_refused_total", MetricType::Counter,
                            "Connections closed because there were too many.",
                            static_cast<double>(connections.refused)));
  MetricFamily closed = Family("resident_connections_closed_total", MetricType::Counter,
                               "Connections that the daemon closed, by reason.");
  for (const auto& [reason, count] :
       {std::pair("idle", connections.closed_idle), std::pair("bytes", connections.closed_bytes),
        std::pair("room", connections.closed_for_room),
        std::pair("unfinished", connections.closed_unfinished),
        std::pair("silent", connections.closed_silent)}) {
    AddCounter(closed, {{"reason", reason}}, static_cast<double>(count));
  }
  families.push_back(std::move(closed));
  families.push_back(Single("resident_connections_without_call_total", MetricType::Counter,
                            "Connections that ended before any call came over them.",
                            static_cast<double>(connections.without_call)));
  families.push_back(Single("resident_grpc_log_lines_suppressed_total", MetricType::Counter,
                            "Lines that gRPC logged over the limit, which were not written.",
                            static_cast<double>(sources_.log_lines_suppressed())));
  MetricFamily host = Family("resident_host_memory_used_bytes", MetricType::Gauge,
                             "Memory of the front end that clients use, by purpose.");
  for (const auto& [purpose, bytes] : sources_.host_memory()) {
    AddGauge(host, {{"purpose", purpose}}, static_cast<double>(bytes));
  }
  families.push_back(std::move(host));
  CollectRpc(sources_.rpc, families);
  CollectAccess(sources_.access, sources_.access_files(), families);
  CollectProcess(families);
  return families;
}

}  // namespace resident
