#include "server/serve.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/server_builder.h"
#include "nlohmann/json.hpp"
#include "runtime/base/atomic_file.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/host_port.h"
#include "runtime/base/log.h"
#include "runtime/base/process/descriptor_limit.h"
#include "runtime/base/sandbox/sandbox.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/compiler.h"
#include "runtime/operators/install/live_operator_manager.h"
#include "server/auth/access_files.h"
#include "server/auth/method_roles.h"
#include "server/auth/presented.h"
#include "server/auth/server_credentials.h"
#include "server/auth/trusted_file.h"
#include "server/connections/grpc_log.h"
#include "server/connections/heap_trimmer.h"
#include "server/connections/listener.h"
#include "server/connections/local_socket.h"
#include "server/connections/passed_descriptors.h"
#include "server/device_list.h"
#include "server/metrics/metrics_server.h"
#include "server/metrics/operator_event_counter.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/admitted_service.h"
#include "server/rpc/buffers_service.h"
#include "server/rpc/channelz_service.h"
#include "server/rpc/core.h"
#include "server/rpc/executor_service.h"
#include "server/rpc/health_service.h"
#include "server/rpc/operators_service.h"
#include "server/rpc/reflection_service.h"
#include "server/rpc/sessions_service.h"
#include "server/rpc/version.h"
#include "server/workload/copy_task.h"

namespace resident {
namespace {

// Client of the queue that restores durable buffers; clients' ids are below it.
constexpr ClientId kRestoreClient = UINT64_MAX;
// How long calls may take to get their last answers out at the end.
constexpr auto kLastAnswers = std::chrono::seconds(2);
constexpr int kBlockingThreads = 4;
constexpr int kChangeThreads = 2;
constexpr int kRoundThreads = 2;

int AnswerThreads() {
  return std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()) / 4, 2, 4);
}

// "invalid_argument".
std::string CodeName(int code) {
  std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return tolower(c); });
  return name;
}

RpcTotals TotalsOf(const RpcCounters& counters) {
  RpcTotals totals;
  totals.received_bytes = counters.received_bytes();
  totals.sent_bytes = counters.sent_bytes();
  totals.batches = counters.batches();
  for (int code = 1; code < RpcCounters::kCodes; ++code) {
    if (counters.refused(code) != 0)
      totals.refused_batches[CodeName(code)] = counters.refused(code);
  }
  return totals;
}

std::vector<TrialSeries> TrialsOf(const Core& core) {
  std::vector<TrialSeries> trials;
  for (const OperatorView& op : core.registry->List()) {
    if (op.trial.version == 0) continue;
    const auto counters = core.operators->trial_counters(op.op->name());
    trials.push_back(
        {op.op->name(), op.trial.version, counters.shadow_tasks, counters.shadow_mismatches});
  }
  return trials;
}

// As many as are wanted, if the process may have the descriptors beside `own` others.
uint32_t MostConnections(uint32_t wanted, uint32_t own) {
  const uint64_t descriptors = RaiseDescriptorLimit(uint64_t{wanted} + own);
  if (descriptors >= uint64_t{wanted} + own) return wanted;
  const uint64_t most =
      std::max(descriptors / 2, descriptors - std::min<uint64_t>(descriptors, own));
  LogWarning("at most ", most, " connections, not --max_connections=", wanted,
             ": the process may have ", descriptors,
             " descriptors. Fix: raise LimitNOFILE, or ulimit -Hn");
  return static_cast<uint32_t>(most);
}

// Everything that serves. Made in the order of its members, ended by Stop.
class Daemon {
 public:
  Daemon(const ServeOptions& options, const OperatorOptions& operator_options)
      : options_(options), operator_options_(operator_options) {}
  // Devices call back into what is destroyed before them.
  ~Daemon() {
    if (listener_ != nullptr) listener_->Stop();
    for (const auto& device : devices_) device->Shutdown();
    admission_.Stop();
  }

  absl::Status Start();
  // Looks at policy, tokens and certificates now.
  void ReloadAccess() { access_files_.Reload(); }
  // Ends once a signal has come. `signals`: those that cut the draining short.
  void Stop(const sigset_t& signals);
  std::string Banner() const;
  // Writes --port_file.
  absl::Status TellPorts() const;

 private:
  absl::Status StartDevicesAndRegistry();
  absl::Status StartOperators();
  void ConnectCore();
  absl::Status StartMetrics();
  absl::Status BindLocalSocket();
  absl::Status StartServer();
  // Registers the service with gRPC, behind the access check.
  void AddService(grpc::ServerBuilder& builder, grpc::Service& service, const char* full_name);
  // Whether a call may go on; tells the listener of it.
  absl::Status Admit(const std::string& method, const grpc::CallbackServerContext& context);
  void RestoreBuffers(Device& device, EngineSession& session);
  // The gate has been closed.
  void OnDraining();

  const ServeOptions options_;
  const OperatorOptions operator_options_;
  // Outlive the devices, whose queues hold batches with their tickets.
  DrainGate gate_;
  Admission admission_{options_.limits, &gate_};
  std::string gpu_unavailable_reason_;
  std::unique_ptr<Registry> registry_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<EngineChoice> engines_;  // Of the devices, by index.
  std::unique_ptr<Compiler> compiler_;
  std::unique_ptr<StateStore> state_;
  std::unique_ptr<LiveOperatorManager> manager_;
  std::unique_ptr<ShadowRunner> shadow_;
  std::unique_ptr<BufferTable> buffers_;
  std::unique_ptr<ClientTable> clients_;
  RpcCounters counters_;
  SharedSlots watch_slots_{{.what = "Operators.Watch streams", .quota = "watches"}, kMaxWatchers};
  SharedSlots install_slots_{
      {.what = "installs under way", .flag = "--max_installs", .quota = "installs"},
      options_.limits.max_installs};
  LiveStreams streams_;
  Access access_;
  ServerCredentials credentials_;
  AccessFiles access_files_{options_.access, &access_, &credentials_};
  std::unique_ptr<Planner> planner_;
  std::unique_ptr<WorkerPool> answers_;
  std::unique_ptr<WorkerPool> fills_;
  std::unique_ptr<WorkerPool> blocking_;
  std::unique_ptr<WorkerPool> disk_;
  std::unique_ptr<WorkerPool> changes_;
  std::unique_ptr<WorkerPool> rounds_;
  std::unique_ptr<WorkerPool> installs_;
  std::unique_ptr<BatchRunner> runner_;
  Core core_;
  std::unique_ptr<OperatorEventCounter> event_counter_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<HeapTrimmer> trimmer_;
  std::shared_ptr<PassedDescriptors> passed_descriptors_;  // Null: there is no local socket.
  std::unique_ptr<LocalSocket> local_;                     // Likewise.
  std::unique_ptr<MetricsServer> metrics_;
  std::unique_ptr<ExecutorService> executor_;
  std::unique_ptr<SessionsService> sessions_;
  std::unique_ptr<BuffersService> buffers_service_;
  std::unique_ptr<OperatorsService> operators_;
  std::unique_ptr<AdminService> admin_;
  std::unique_ptr<HealthService> health_;
  std::unique_ptr<ReflectionService> reflection_;
  ChannelzService channelz_;
  std::vector<std::unique_ptr<AdmittedService>> admitted_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

absl::Status Daemon::StartDevicesAndRegistry() {
  ASSIGN_OR_RETURN(DeviceChoices choices, ChooseDevices(options_.devices));
  gpu_unavailable_reason_ = choices.gpu_unavailable_reason;
  ASSIGN_OR_RETURN(auto registry,
                   Registry::Create({.devices = static_cast<uint32_t>(choices.devices.size()),
                                     .test_operators = options_.test_operators}));
  registry_ = std::move(registry);
  const Registry* const names = registry_.get();
  const SlotInfo slots = {.name =
                              [names](uint32_t slot) {
                                const auto version = names->FindBySlot(slot);
                                if (version == nullptr) return absl::StrCat("operator slot ", slot);
                                if (version->builtin) return version->op->name();
                                return absl::StrCat(version->op->name(), " version ",
                                                    version->version);
                              },
                          .time_limit =
                              [names](uint32_t slot) {
                                const auto version = names->FindBySlot(slot);
                                return version == nullptr ? std::chrono::milliseconds(0)
                                                          : version->spec.task_time_limit;
                              }};
  engines_ = choices.devices;
  ASSIGN_OR_RETURN(auto devices, StartDevices(choices, options_, slots));
  devices_ = std::move(devices);
  return absl::OkStatus();
}

absl::Status Daemon::StartOperators() {
  std::vector<std::string> warnings;
  if (!operator_options_.state_dir.empty()) {
    RETURN_IF_ERROR(CheckTrustedFolder(operator_options_.state_dir, &warnings));
  }
  ASSIGN_OR_RETURN(auto state, StateStore::Open({.directory = operator_options_.state_dir}));
  state_ = std::move(state);
  CompilerOptions compiling = operator_options_.compiler;
  if (!operator_options_.state_dir.empty()) {
    compiling.cache_dir = operator_options_.state_dir + "/cache";
  }
  std::vector<Device*> started;
  for (Device* device : core_.devices) {
    if (!device->started()) continue;
    started.push_back(device);
    compiling.ahead.push_back(device->snapshot().info.traits.compile_target);
  }
  ASSIGN_OR_RETURN(auto compiler, Compiler::Create(compiling));
  compiler_ = std::move(compiler);
  LiveOperatorManager::Options options = operator_options_.manager;
  options.task_time_limit = options_.task_time_limit;
  manager_ = std::make_unique<LiveOperatorManager>(
      options, LiveOperatorManager::Sources{registry_.get(), state_.get(), compiler_.get(), started,
                                            engines_});
  core_.operators = manager_.get();
  for (const std::string& warning : state_->warnings()) warnings.push_back(warning);
  for (std::string& open : DescribeSandbox().missing) warnings.push_back(std::move(open));
  absl::Status restored = manager_->Restore(&warnings);
  for (std::string& warning : buffers_->Load(state_.get())) {
    warnings.push_back(std::move(warning));
  }
  for (Device* device : core_.devices) {
    if (const auto session = device->session()) RestoreBuffers(*device, *session);
  }
  for (const std::string& warning : warnings) LogWarning(warning);
  if (!restored.ok()) return restored;
  for (Device* device : core_.devices) {
    device->OnFault(
        [this, device](const DeviceFault& fault) { return manager_->OnFault(*device, fault); });
  }
  return absl::OkStatus();
}

void Daemon::RestoreBuffers(Device& device, EngineSession& session) {
  const auto copy_bytes = registry_->Resolve(kCopyBytesOperator, 0);
  if (!copy_bytes.ok()) return;
  device.queue().AddClient(kRestoreClient);
  buffers_->OnRestart(device.index(), session, device.snapshot().detail,
                      [&](EngineSession& engine, const DeviceMemory& memory, uint64_t bytes,
                          const BufferTable::Fill& fill) {
                        return WriteAndWait(*copy_bytes, device, kRestoreClient, engine,
                                            memory.address, bytes, fill);
                      });
}

void Daemon::ConnectCore() {
  for (const auto& device : devices_) {
    core_.devices.push_back(device.get());
    admission_.AddDevice(options_.device_limits.staging_mib << 20);
  }
  buffers_ = std::make_unique<BufferTable>(options_.limits);
  clients_ = std::make_unique<ClientTable>(options_.limits, core_.devices, buffers_.get());
  health_ = std::make_unique<HealthService>(
      &core_, [this](const std::string& peer, bool open) { listener_->OnWatch(peer, open); });
  planner_ = std::make_unique<Planner>(PlanSources{&core_.limits, registry_.get(), buffers_.get(),
                                                   core_.devices, options_.task_time_limit});
  answers_ = std::make_unique<WorkerPool>(AnswerThreads());
  // Making the tasks of large batches that waited must not delay answers.
  fills_ = std::make_unique<WorkerPool>(AnswerThreads());
  admission_.Start([this](std::function<void()> work) { fills_->Post(std::move(work)); });
  blocking_ = std::make_unique<WorkerPool>(kBlockingThreads);
  disk_ = std::make_unique<WorkerPool>(1);
  changes_ = std::make_unique<WorkerPool>(kChangeThreads);
  rounds_ = std::make_unique<WorkerPool>(kRoundThreads);
  installs_ = std::make_unique<WorkerPool>(static_cast<int>(options_.limits.max_installs));
  shadow_ = std::make_unique<ShadowRunner>(
      registry_.get(), core_.devices, answers_.get(),
      [this](const OperatorVersion& version, uint64_t tasks, uint64_t mismatches) {
        manager_->RecordShadow(version, tasks, mismatches);
      });
  runner_ = std::make_unique<BatchRunner>(planner_.get(), core_.devices, &gate_, answers_.get(),
                                          shadow_.get());
  core_.limits = options_.limits;
  core_.registry = registry_.get();
  core_.buffers = buffers_.get();
  core_.clients = clients_.get();
  core_.runner = runner_.get();
  core_.gate = &gate_;
  core_.access = &access_;
  core_.credentials = options_.access.credentials();
  core_.counters = &counters_;
  core_.admission = &admission_;
  core_.streams = &streams_;
  core_.watch_slots = &watch_slots_;
  core_.install_slots = &install_slots_;
  core_.blocking = blocking_.get();
  core_.disk = disk_.get();
  core_.changes = changes_.get();
  core_.rounds = rounds_.get();
  core_.installs = installs_.get();
  core_.allow_shared_memory = options_.allow_shared_memory;
  core_.named_shared_memory = !core_.credentials && OnLoopback(options_.address);
  if (local_ != nullptr) {
    passed_descriptors_ = std::make_shared<PassedDescriptors>();
    core_.passed_descriptors = passed_descriptors_.get();
    core_.local_address = options_.local_address;
  }
  core_.drain_timeout = options_.drain_timeout;
  core_.gpu_unavailable_reason = gpu_unavailable_reason_;
  core_.on_draining = [this] { OnDraining(); };
  for (Device* device : core_.devices) {
    device->OnRestart([this, device](const std::shared_ptr<EngineSession>& session) {
      RestoreBuffers(*device, *session);
    });
    device->OnStateChange([this](Device::State) { health_->Update(); });
  }
}

absl::Status Daemon::StartMetrics() {
  event_counter_ = std::make_unique<OperatorEventCounter>(core_.operators);
  if (options_.metrics_address.empty()) return absl::OkStatus();
  MetricsSources sources;
  sources.version = kVersion;
  sources.devices.assign(core_.devices.begin(), core_.devices.end());
  sources.operators = [this] {
    std::vector<OperatorSeries> series;
    registry_->ForEachStats(
        [&](uint32_t device, const std::shared_ptr<const OperatorStats>& stats) {
          series.push_back({device, stats});
        });
    return series;
  };
  sources.buffers = [this](uint32_t device) { return buffers_->CountOn(device); };
  sources.staging = [this](uint32_t device) {
    return StagingFigures{admission_.staging_used(device), admission_.staging_waiting(device)};
  };
  sources.host_memory = [this] {
    const Budget& host = admission_.host();
    return std::map<std::string, uint64_t>{{"requests", host.used(Budget::Purpose::kRequests)},
                                           {"batches", host.used(Budget::Purpose::kBatches)},
                                           {"answers", host.used(Budget::Purpose::kAnswers)},
                                           {"downloads", host.used(Budget::Purpose::kDownloads)},
                                           {"durable_copies", buffers_->copies_bytes()}};
  };
  sources.clients = [this] { return clients_->sessions(); };
  sources.connections = [this] { return listener_->Figures(); };
  sources.log_lines_suppressed = [] { return GrpcLog::Install().suppressed(); };
  sources.rpc = [this] { return TotalsOf(counters_); };
  sources.access = [this] {
    const AccessFiles::Counters files = access_files_.counters();
    return AccessTotals{access_.denied(absl::StatusCode::kUnauthenticated),
                        access_.denied(absl::StatusCode::kPermissionDenied), files.reloads,
                        files.failures, files.certificate_expires};
  };
  sources.operator_events = [this] { return event_counter_->counts(); };
  sources.trials = [this] { return TrialsOf(core_); };
  ASSIGN_OR_RETURN(auto metrics, MetricsServer::Start(options_.metrics_address, std::move(sources),
                                                      options_.metrics_hosts));
  metrics_ = std::move(metrics);
  core_.metrics_address = absl::StrCat(HostPart(options_.metrics_address), ":", metrics_->port());
  return absl::OkStatus();
}

absl::Status Daemon::StartServer() {
  executor_ = std::make_unique<ExecutorService>(&core_);
  sessions_ = std::make_unique<SessionsService>(&core_);
  buffers_service_ = std::make_unique<BuffersService>(&core_);
  operators_ = std::make_unique<OperatorsService>(&core_);
  admin_ = std::make_unique<AdminService>(&core_);
  reflection_ = std::make_unique<ReflectionService>(
      &core_,
      std::vector<std::string>{
          v1::Admin::service_full_name(), v1::Buffers::service_full_name(),
          v1::Executor::service_full_name(), v1::Operators::service_full_name(),
          v1::Sessions::service_full_name(), grpc::channelz::v1::Channelz::service_full_name(),
          grpc::health::v1::Health::service_full_name(),
          grpc::reflection::v1alpha::ServerReflection::service_full_name()});

  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.limits.max_message_mib) << 20);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options_.limits.max_connection_streams));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, static_cast<int>(kHandshakeMs));
  // Bounds the headers of a call once they are complete. gRPC 1.51 stores them until then,
  // whatever they take: the listener bounds what a connection without an admitted call sends.
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(kMaxMetadataBytes));
  // A client that vanished without a word is noticed, and its session ended.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      credentials_.Make(options_.access));
  AddService(builder, *executor_, v1::Executor::service_full_name());
  AddService(builder, *sessions_, v1::Sessions::service_full_name());
  AddService(builder, *buffers_service_, v1::Buffers::service_full_name());
  AddService(builder, *operators_, v1::Operators::service_full_name());
  AddService(builder, *admin_, v1::Admin::service_full_name());
  AddService(builder, *health_, grpc::health::v1::Health::service_full_name());
  AddService(builder, *reflection_,
             grpc::reflection::v1alpha::ServerReflection::service_full_name());
  AddService(builder, channelz_, grpc::channelz::v1::Channelz::service_full_name());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC did not start its server");
  address_ = absl::StrCat(HostPart(options_.address), ":", listener_->port());
  health_->Update();
  access_files_.Watch([this] { streams_.EndRefused(); });
  uint32_t own_descriptors = kOwnDescriptors;
  if (local_ != nullptr) {
    own_descriptors += kLocalDescriptors;
    local_->Start(
        {.is_session = [this](const std::string& session) { return clients_->HasSession(session); },
         .sealed = core_.credentials},
        passed_descriptors_);
  }
  trimmer_ = std::make_unique<HeapTrimmer>([this] { return listener_->Figures().ended; });
  const Limits& limits = options_.limits;
  return listener_->Start(
      {.max_connections = MostConnections(limits.max_connections, own_descriptors),
       .max_address_connections = limits.max_address_connections,
       .max_unadmitted_idle = std::chrono::milliseconds(limits.max_unadmitted_idle_ms),
       .max_unadmitted_bytes = uint64_t{limits.max_unadmitted_kib} << 10},
      std::move(acceptor));
}

absl::Status Daemon::BindLocalSocket() {
  if (options_.local_address.empty() || !options_.allow_shared_memory) return absl::OkStatus();
  ASSIGN_OR_RETURN(auto local, LocalSocket::Bind(options_.local_address));
  local_ = std::move(local);
  return absl::OkStatus();
}

void Daemon::AddService(grpc::ServerBuilder& builder, grpc::Service& service,
                        const char* full_name) {
  admitted_.push_back(std::make_unique<AdmittedService>(
      service, full_name,
      [this](const std::string& method, const grpc::CallbackServerContext& context) {
        return Admit(method, context);
      }));
  builder.RegisterService(admitted_.back().get());
}

absl::Status Daemon::Admit(const std::string& method, const grpc::CallbackServerContext& context) {
  absl::Status status;
  bool known = true;  // The caller has a credential, where one is asked for.
  if (core_.credentials) {
    const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
    const Presented presented = PresentedBy(context.client_metadata(), *auth);
    status = access_.Admit(method, presented);
    known = status.ok() && (!RuleOf(method).open_to_all || access_.Identify(presented).ok());
  }
  listener_->OnCall(context.peer(), known);
  return status;
}

absl::Status Daemon::Start() {
  ASSIGN_OR_RETURN(auto listener, Listener::Bind("address", options_.address));
  listener_ = std::move(listener);
  absl::Status status;
  if (!options_.metrics_address.empty()) {
    status = CheckListen("metrics_address", options_.metrics_address);
  }
  if (status.ok()) status = CheckAccessOptions(options_.access, options_.address);
  if (!status.ok()) return status;
  if (const std::string warning = AccessWarning(options_.access, options_.address);
      !warning.empty()) {
    LogWarning(warning);
  }
  if (status.ok()) status = BindLocalSocket();
  if (status.ok()) status = access_files_.Load();
  if (status.ok()) status = StartDevicesAndRegistry();
  if (!status.ok()) return status;
  ConnectCore();
  status = StartOperators();
  if (status.ok()) status = StartMetrics();
  if (status.ok()) status = StartServer();
  return status;
}

std::string Daemon::Banner() const {
  const std::string devices =
      absl::StrJoin(core_.devices, "; ", [](std::string* out, const Device* device) {
        const EngineInfo info = device->snapshot().info;
        absl::StrAppend(out, "device ", device->index(), ": ", info.name);
        if (!device->started()) return absl::StrAppend(out, " (unhealthy: it did not start)");
        absl::StrAppend(out, " (", info.traits.engine, ", ", info.workers, " ",
                        info.traits.work_units, ")");
      });
  const SandboxLayers layers = DescribeSandbox();
  return absl::StrCat(
      "residentd ", kVersion, ": serving on ", address_, " (", DescribeAccess(options_.access),
      "); metrics ",
      core_.metrics_address.empty() ? "off"
                                    : absl::StrCat("at http://", core_.metrics_address, "/metrics"),
      core_.local_address.empty() ? "" : absl::StrCat("; shared memory at ", core_.local_address),
      "; ", devices,
      gpu_unavailable_reason_.empty() ? "" : absl::StrCat("; no GPU: ", gpu_unavailable_reason_),
      "\nresidentd: compilers are confined by ", layers.held,
      "\nresidentd: engines are confined by ", layers.engines);
}

absl::Status Daemon::TellPorts() const {
  if (options_.port_file.empty()) return absl::OkStatus();
  const nlohmann::json ports = {{"address", address_},
                                {"metrics_address", core_.metrics_address},
                                {"local_address", core_.local_address},
                                {"pid", static_cast<int64_t>(getpid())}};
  // Everybody may read the file.
  const absl::Status written =
      WriteFileAtomically(options_.port_file, {ports.dump(), "\n"}, {.mode = 0644});
  if (written.ok()) return written;
  return absl::UnavailableError(
      absl::StrCat("cannot write --port_file=", options_.port_file, ": ", written.message(),
                   ". Fix: give a path in an existing folder that the daemon may write"));
}

void Daemon::OnDraining() {
  health_->Update();
  // Batches that wait to be admitted are refused now.
  admission_.Wake();
}

void Daemon::Stop(const sigset_t& signals) {
  access_files_.Stop();
  gate_.Close();
  OnDraining();
  streams_.EndAtDrain(errors::Draining());
  const absl::Time deadline = absl::Now() + absl::FromChrono(options_.drain_timeout);
  uint64_t left = 0;
  while ((left = gate_.AwaitEmpty(std::min(deadline, absl::Now() + absl::Milliseconds(100)))) > 0 &&
         absl::Now() < deadline) {
    const timespec now{0, 0};
    if (sigtimedwait(&signals, nullptr, &now) > 0) break;
  }
  if (left > 0) {
    LogWarning(left,
               " tasks were not finished within --drain_timeout and are answered UNAVAILABLE");
  }
  manager_->Stop();
  // What is left ends UNAVAILABLE with its engine; then the streams are ended.
  for (const auto& device : devices_) device->Shutdown();
  gate_.AwaitEmpty(absl::Now() + absl::FromChrono(kLastAnswers));
  streams_.EndAll(errors::Draining());
  listener_->Stop();
  if (local_ != nullptr) local_->Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kLastAnswers);
  server_->Wait();
  admission_.Stop();
  // Batches refer to the pools, the pools to nothing else.
  installs_.reset();
  rounds_.reset();
  changes_.reset();
  disk_.reset();
  blocking_.reset();
  fills_.reset();
  answers_.reset();
  metrics_.reset();
}

}  // namespace

absl::Status Serve(const ServeOptions& options, const OperatorOptions& operator_options) {
  // Other processes of the same user cannot read this one's memory (keys, tokens, clients' data)
  // or trace it, and it leaves no core file.
  prctl(PR_SET_DUMPABLE, 0);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigset_t heard = signals;
  // Always, or `systemctl reload` would end a daemon without TLS and policy.
  sigaddset(&heard, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &heard, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A malformed message is its sender's affair, who is told; it does not fill the log.
  google::protobuf::SetLogHandler(nullptr);
  GrpcLog::Install();

  Daemon daemon(options, operator_options);
  absl::Status status = daemon.Start();
  if (status.ok()) status = daemon.TellPorts();
  if (!status.ok()) return status;
  printf("%s\n", daemon.Banner().c_str());
  fflush(stdout);

  int signal_number = 0;
  while (sigwait(&heard, &signal_number) == 0 && signal_number == SIGHUP) {
    if (options.access.credentials()) {
      daemon.ReloadAccess();
    } else {
      LogInfo("SIGHUP: nothing to reload without --tls_cert or --policy");
    }
  }
  daemon.Stop(signals);
  return absl::OkStatus();
}

}  // namespace resident
