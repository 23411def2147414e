

#include "server/serve.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/protobuf/stubs/logging.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/host_port.h"
#include "runtime/base/log.h"
#include "runtime/base/process/child_process.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/base/process/wake_event.h"
#include "runtime/base/status_macros.h"
#include "server/auth/access_options.h"
#include "server/buffers/buffers.h"
#include "server/connections/grpc_log.h"
#include "server/console/console.h"
#include "server/core/core.h"
#include "server/device_set.h"
#include "server/endpoints.h"
#include "server/graphs/graphs.h"
#include "server/lanes/lane_table.h"
#include "server/metrics/daemon_sources.h"
#include "server/metrics/metrics_server.h"
#include "server/models/models.h"
#include "server/operator_setup.h"
#include "server/operators/installs.h"
#include "server/operators/operators_dir.h"
#include "server/services.h"
#include "server/startup_report.h"

namespace resident {
namespace {

// Time limit for tasks that ended with their engines to be answered, and then for the remaining
// calls to send their last answers.
constexpr absl::Duration kLastAnswers = absl::Seconds(2);

// --node_name, or the host's name.
std::string FindNodeName(const ServeOptions& options) {
  if (!options.node_name.empty()) return options.node_name;
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || !IsNodeName(name)) return "localhost";
  return name;
}

CoreOptions MakeCoreOptions(const ServeOptions& options, const Endpoints& endpoints,
                            const Operators& operators) {
  return {.limits = options.limits,
          .staging_bytes = options.device_limits.staging_mib << 20,
          .task_time_limit = options.task_time_limit,
          .credentials = endpoints.credentials(),
          .local_address = endpoints.local_address(),
          .node = {.id = operators.node_id(), .name = FindNodeName(options)}};
}

BuffersOptions MakeBuffersOptions(const ServeOptions& options, const Endpoints& endpoints) {
  return {.allow_shared_memory = options.allow_shared_memory,
          .named_shared_memory = !endpoints.credentials() && OnLoopback(options.address),
          .load_dir = options.load_dir};
}

GraphsOptions MakeGraphsOptions(const ServeOptions& options, const Endpoints& endpoints) {
  return {.in_engine = options.graphs_in_engine,
          .keep_traces =
              options.console && !options.metrics_address.empty() && !endpoints.credentials()};
}

// Whether one of `signals` arrives in this time.
bool AwaitSignal(const sigset_t& signals, std::chrono::milliseconds time) {
  const absl::Time deadline = absl::Now() + absl::FromChrono(time);
  do {
    const timespec left = absl::ToTimespec(std::max(deadline - absl::Now(), absl::ZeroDuration()));
    if (sigtimedwait(&signals, nullptr, &left) > 0) return true;
  } while (absl::Now() < deadline);  // Another signal can end the wait early.
  return false;
}

// The parts of a daemon, constructed in the order of the members. Each part refers only to the
// parts above it. The parts above call it only through callbacks of devices, endpoints and
// services; ~Daemon stops these callbacks before it destroys anything.
class Daemon {
 public:
  // The error says why the daemon cannot serve; it is shown to the user.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const ServeOptions& options,
                                                       const OperatorOptions& operator_options);
  // Called only by Start.
  Daemon(const ServeOptions& options, Clock::time_point started,
         std::unique_ptr<Endpoints> endpoints, std::unique_ptr<DeviceSet> devices,
         std::unique_ptr<Operators> operators, const std::string& operators_dir)
      : options_(options),
        started_(started),
        endpoints_(std::move(endpoints)),
        devices_(std::move(devices)),
        operators_(std::move(operators)),
        core_(MakeCoreOptions(options, *endpoints_, *operators_), devices_->devices(),
              devices_->registry(), operators_->manager(), endpoints_->access()),
        buffers_(core_, MakeBuffersOptions(options, *endpoints_)),
        installs_(core_),
        graphs_(buffers_, MakeGraphsOptions(options, *endpoints_)),
        lanes_(core_, {options.max_lanes, options.task_time_limit}),
        models_(graphs_, installs_) {
    if (operators_dir.empty()) return;
    operators_dir_.emplace(operators_dir, core_, [this] { services_->health().Update(); });
  }
  ~Daemon();

  std::string Banner() const { return MakeBanner(addresses_, options_.access, *devices_); }
  // Writes --port_file, if there is one.
  absl::Status ReportAddresses() const { return WritePortFile(options_.port_file, addresses_); }
  // Reloads policy, tokens and certificates.
  void ReloadAccess() { endpoints_->files().Reload(); }
  // Announces the end for --drain_notice, or until one of `signals` arrives. Then refuses new work
  // and finishes accepted tasks, for at most --drain_timeout or until one of `signals` arrives.
  void Drain(const sigset_t& signals);

 private:
  absl::Status StartServing();
  absl::Status StartMetrics();
  DaemonFacts MakeFacts() const {
    return {.started = started_,
            .metrics_address = addresses_.metrics,
            .gpu_unavailable_reason = devices_->gpu_unavailable_reason(),
            .lanes = DescribeLanes(),
            .operators_dir = DescribeOperatorsDir()};
  }
  // Null: there is none.
  std::function<v1::OperatorsDirStatus()> DescribeOperatorsDir() const {
    if (!operators_dir_.has_value()) return nullptr;
    return [this] { return operators_dir_->view(); };
  }
  // For the status of a client.
  std::function<void(ClientId, v1::ClientStatus*)> DescribeLanes() const {
    return [this](ClientId client, v1::ClientStatus* out) {
      const LaneTable::Figures lanes = lanes_.OfClient(client);
      if (lanes.lanes == 0) return;
      out->set_lanes(lanes.lanes);
      out->set_lane_slots(lanes.slots);
      out->set_lane_calls(lanes.calls);
      out->set_lane_buffers(lanes.buffers);
      out->set_lane_refused(lanes.refused);
    };
  }

  const ServeOptions options_;
  const Clock::time_point started_;
  const std::unique_ptr<Endpoints> endpoints_;
  const std::unique_ptr<DeviceSet> devices_;
  const std::unique_ptr<Operators> operators_;
  Core core_;
  Buffers buffers_;
  Installs installs_;
  Graphs graphs_;
  LaneTable lanes_;
  Models models_;
  std::atomic<bool> end_announced_{false};  // For /readyz.
  // Set by StartServing.
  Addresses addresses_;
  std::optional<Console> console_;          // Its page is part of `metrics_`.
  std::unique_ptr<MetricsServer> metrics_;  // Null: none.
  std::optional<Services> services_;
  std::optional<OperatorsDir> operators_dir_;  // Of --operators_dir, if there is one.
};

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const ServeOptions& options,
                                                      const OperatorOptions& operator_options) {
  const Clock::time_point started = Clock::now();
  ASSIGN_OR_RETURN(auto endpoints, Endpoints::Bind(options));
  ASSIGN_OR_RETURN(auto devices, DeviceSet::Start(options));
  ASSIGN_OR_RETURN(auto operators, Operators::Open(options, operator_options, *devices));
  auto daemon = std::make_unique<Daemon>(options, started, std::move(endpoints), std::move(devices),
                                         std::move(operators), operator_options.operators_dir);
  RETURN_IF_ERROR(daemon->StartServing());
  return daemon;
}

absl::Status Daemon::StartServing() {
  for (DeviceControl* device : devices_->controls()) {
    device->OnRestart([this, device](const std::shared_ptr<EngineSession>& session) {
      core_.RestoreBuffers(*device, *session);
      lanes_.OnRestart(device->index(), session);
    });
  }
  RETURN_IF_ERROR(operators_->Restore(graphs_, models_));
  for (DeviceControl* device : devices_->controls()) {
    device->OnFault([this, device](const DeviceFault& fault) {
      return operators_->manager().OnFault(*device, fault);
    });
  }
  RETURN_IF_ERROR(StartMetrics());
  services_.emplace(
      graphs_, buffers_, installs_, lanes_, models_, *endpoints_, devices_->controls(),
      AdminService::Facts{.daemon = MakeFacts(), .drain_timeout = options_.drain_timeout},
      options_.inference);
  for (DeviceControl* device : devices_->controls()) {
    device->OnStateChange([this](Device::State) { services_->health().Update(); });
  }
  // Before the first call is answered, so that the daemon is not ready too early.
  if (operators_dir_.has_value()) RETURN_IF_ERROR(operators_dir_->Start());
  RETURN_IF_ERROR(services_->Start(options_.max_connection_age));
  addresses_.grpc = endpoints_->address();
  addresses_.local = endpoints_->local_address();
  return absl::OkStatus();
}

absl::Status Daemon::StartMetrics() {
  if (options_.metrics_address.empty()) return absl::OkStatus();
  std::vector<HttpPath> pages;
  if (options_.console) {
    console_.emplace(graphs_, MakeFacts());
    pages = console_->paths();
  }
  MetricsSources sources =
      MakeDaemonSources(graphs_, lanes_, endpoints_->listener(), endpoints_->files());
  sources.ready = [this] { return core_.ready() && !end_announced_; };
  sources.operators_dir = DescribeOperatorsDir();
  ASSIGN_OR_RETURN(metrics_, MetricsServer::Start(options_.metrics_address, std::move(sources),
                                                  options_.metrics_hosts, pages));
  addresses_.metrics = absl::StrCat(HostPart(options_.metrics_address), ":", metrics_->port());
  return absl::OkStatus();
}

void Daemon::Drain(const sigset_t& signals) {
  if (options_.drain_notice.count() > 0) {
    end_announced_ = true;
    services_->AnnounceDrain();
    LogInfo("health is NOT_SERVING; the drain begins after --drain_notice, or with another signal");
    AwaitSignal(signals, options_.drain_notice);
  }
  endpoints_->files().Stop();
  if (operators_dir_.has_value()) operators_dir_->RequestStop();
  services_->BeginDrain();
  core_.streams.EndAtDrain(errors::Draining());
  const absl::Time deadline = absl::Now() + absl::FromChrono(options_.drain_timeout);
  uint64_t left = 0;
  while ((left = core_.gate.AwaitEmpty(std::min(deadline, absl::Now() + absl::Milliseconds(100)))) >
             0 &&
         absl::Now() < deadline) {
    if (AwaitSignal(signals, std::chrono::milliseconds(0))) break;
  }
  if (left > 0) {
    LogWarning(left, " tasks did not end within --drain_timeout and are answered UNAVAILABLE");
  }
}

// Ends the daemon, after Drain or when its start fails, in this order:
Daemon::~Daemon() {
  // 1. Withdraw installs that wait for a device, and end the work for --operators_dir.
  if (operators_dir_.has_value()) operators_dir_->RequestStop();
  operators_->manager().Stop();
  if (operators_dir_.has_value()) operators_dir_->Join();
  // 2. End the engines; the remaining tasks end with UNAVAILABLE. Devices call no callback any
  // more.
  devices_->Shutdown();
  // 3. Send those answers, then end the streams.
  core_.gate.AwaitEmpty(absl::Now() + kLastAnswers);
  core_.streams.EndAll(errors::Draining());
  // 4. Accept no more connections, and end the remaining calls.
  endpoints_->Close();
  if (services_) services_->Stop(kLastAnswers);
  // 5. Refuse what waits to be admitted, then let the pools finish the posted work.
  core_.Stop();
  // 6. Destroy the members, from the last to the first. Only scrapes still call them, and the
  // metrics page is destroyed before the parts that it reads.
}

// Kills all child processes, with what compilers have started, and ends this process.
[[noreturn]] void EndWithChildren() {
  // Only this thread starts processes, and the kernel kills them when it ends. A compiler is the
  // leader of a group, unless it has just been started.
  RunOnProcessThread([] {
    std::ifstream children("/proc/thread-self/children");
    for (pid_t child = 0; children >> child;) {
      kill(-child, SIGKILL);
      kill(child, SIGKILL);
    }
    _exit(0);
  });
  _exit(0);
}

// While it exists, one of `signals` ends the process at once: a daemon that starts has accepted no
// work that it would have to finish, and engines, compilers and a large state folder may take
// minutes. What the state folder contains is right after an end at any time. Signals that come
// later stay pending for whoever waits for them.
class EndAtSignal {
 public:
  // `hold`: of the log's lines so far, which are written then.
  EndAtSignal(const sigset_t& signals, LogHold& hold)
      : signals_(signalfd(-1, &signals, SFD_CLOEXEC)), thread_([this, &hold] { Wait(hold); }) {}
  ~EndAtSignal() {
    started_.Signal();
    thread_.join();
  }

 private:
  void Wait(LogHold& hold) {
    pollfd events[] = {{signals_.get(), POLLIN, 0}, {started_.fd(), POLLIN, 0}};
    while (poll(events, 2, -1) < 0) {
    }
    if (events[0].revents == 0) return;
    hold.Release();
    LogInfo("a signal ends the daemon, which has not served yet");
    EndWithChildren();
  }

  const UniqueFd signals_;
  WakeEvent started_;
  std::thread thread_;  // Uses the members above.
};

}  // namespace

absl::Status Serve(const ServeOptions& options, const OperatorOptions& operator_options) {
  assert(gettid() == getpid());
  // Other processes of the same user cannot read this one's memory (keys, tokens, clients' data)
  // or trace it, and it leaves no core file.
  prctl(PR_SET_DUMPABLE, 0);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigset_t handled = signals;
  // Also without TLS and policy, because otherwise `systemctl reload` would end the daemon.
  sigaddset(&handled, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // The sender of a malformed message gets an error; do not also fill the log with it.
  google::protobuf::SetLogHandler(nullptr);
  GrpcLog::Install();

  LogHold hold;
  std::unique_ptr<Daemon> daemon;
  {
    const EndAtSignal end_at_signal(signals, hold);
    ASSIGN_OR_RETURN(daemon, Daemon::Start(options, operator_options));
  }
  printf("%s\n", daemon->Banner().c_str());
  fflush(stdout);
  hold.Release();
  RETURN_IF_ERROR(
      daemon->ReportAddresses());  // Who waits for the file finds all lines of the start.

  int signal_number = 0;
  while (sigwait(&handled, &signal_number) == 0 && signal_number == SIGHUP) {
    if (options.access.credentials()) {
      daemon->ReloadAccess();
    } else {
      LogInfo("SIGHUP: nothing to reload without --tls_cert or --policy");
    }
  }
  daemon->Drain(signals);
  return absl::OkStatus();
}

}  // namespace resident
