

#include "runtime/engine/control/engine_service.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/engine_messages.h"

namespace resident {
namespace {

constexpr std::chrono::milliseconds kBeatWhileStarting{50};
// A prepared engine should use no processor time, and the front end does not check its heartbeat.
constexpr std::chrono::milliseconds kBeatWhilePrepared{5'000};

// The front end reads it after the process has ended, so no memory ordering is needed.
void WriteExitReason(ControlBlock* control, const std::string& reason) {
  const size_t length = std::min<size_t>(reason.size(), kExitReasonBytes - 1);
  memcpy(control->exit_reason, reason.data(), length);
  control->exit_reason[length] = '\0';
}

}  // namespace

EngineService::EngineService(int region_fd, EngineFactory factory,
                             std::function<absl::Status()> confine)
    : factory_(std::move(factory)), confine_(std::move(confine)), region_fd_(region_fd) {}

std::optional<EngineService::Lane> EngineService::FindLane(const internal::EngineRequest& request) {
  switch (request.call_case()) {
    case internal::EngineRequest::kShutdown:
      return std::nullopt;
    case internal::EngineRequest::kPreload:
      return Lane::kPreload;
    case internal::EngineRequest::kMapShared:
    case internal::EngineRequest::kUnmapShared:
      return Lane::kMappings;
    default:
      return Lane::kKernel;
  }
}

internal::EngineResponse EngineService::Serve(const internal::EngineRequest& request, int fd) {
  internal::EngineResponse response;
  response.set_id(request.id());
  const absl::Status status = ServeCall(request, fd, &response);
  if (!status.ok()) response.clear_result();
  SetStatus(status, response.mutable_status());
  return response;
}

absl::Status EngineService::ServeCall(const internal::EngineRequest& request, int fd,
                                      internal::EngineResponse* response) {
  switch (request.call_case()) {
    case internal::EngineRequest::kPrepare:
      return Prepare(request.prepare(), response->mutable_prepare());
    case internal::EngineRequest::kStart:
      return Start(request.start(), fd, response->mutable_start());
    case internal::EngineRequest::kAwaitPark: {
      ASSIGN_OR_RETURN(Engine* const engine, FindRunning());
      return engine->AwaitPark(std::chrono::nanoseconds(request.await_park().timeout_ns()));
    }
    case internal::EngineRequest::kResume: {
      ASSIGN_OR_RETURN(Engine* const engine, FindRunning());
      return engine->Resume();
    }
    case internal::EngineRequest::kPreload:
      return Preload(request.preload(), fd, response->mutable_preload());
    case internal::EngineRequest::kSwitchGeneration:
      return Switch(request.switch_generation(), response->mutable_switch_generation());
    case internal::EngineRequest::kMapShared:
      return MapShared(request.map_shared(), request.id(), fd, response->mutable_map_shared());
    case internal::EngineRequest::kUnmapShared:
      return UnmapShared(request.unmap_shared());
    case internal::EngineRequest::kShutdown: {
      absl::MutexLock lock(&mu_);
      shutdown_ = true;
      return absl::OkStatus();
    }
    case internal::EngineRequest::CALL_NOT_SET:
      break;
  }
  return absl::UnimplementedError("the request contains no call that this engine supports");
}

bool EngineService::AwaitShutdown(std::chrono::milliseconds timeout) {
  absl::MutexLock lock(&mu_);
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return shutdown_ || changed_; };
  mu_.AwaitWithTimeout(absl::Condition(&due), absl::FromChrono(timeout));
  changed_ = false;
  return shutdown_;
}

absl::Status EngineService::Beat() {
  absl::MutexLock lock(&mu_);
  if (region_ == nullptr) return absl::OkStatus();
  std::atomic_ref<u64>(region_->control()->heartbeat).fetch_add(1, std::memory_order_relaxed);
  if (progress_ != Progress::kRunning) return absl::OkStatus();
  absl::Status health = engine_->Health();
  if (!health.ok()) WriteExitReason(region_->control(), std::string(health.message()));
  return health;
}

std::chrono::milliseconds EngineService::BeatEvery() {
  absl::MutexLock lock(&mu_);
  if (progress_ == Progress::kPrepared) return kBeatWhilePrepared;
  if (progress_ != Progress::kRunning) return kBeatWhileStarting;
  return std::min(beat_every_, engine_->health_interval());
}

absl::StatusOr<Engine*> EngineService::FindRunning() {
  absl::MutexLock lock(&mu_);
  if (progress_ != Progress::kRunning) {
    return absl::FailedPreconditionError("the engine was not started");
  }
  return engine_;
}

bool EngineService::Enter(Progress from, Progress to) {
  absl::MutexLock lock(&mu_);
  if (progress_ != from) return false;
  progress_ = to;
  changed_ = true;
  return true;
}

absl::Status EngineService::Prepare(const internal::PrepareRequest& request,
                                    internal::PrepareResponse* response) {
  if (!Enter(Progress::kNew, Progress::kPreparing)) {
    return absl::FailedPreconditionError("the engine was prepared before");
  }
  PhaseTimer timer;
  ASSIGN_OR_RETURN(auto region, SharedRegion::Attach(region_fd_.Release()));
  const SharedRegion* const attached = region.get();
  {
    // The heartbeat begins before the device is opened, because that takes long.
    absl::MutexLock lock(&mu_);
    region_ = std::move(region);
  }
  ASSIGN_OR_RETURN(auto engine, factory_(request.ordinal()));
  timer.Mark("driver");
  Engine* const created = engine.release();
  {
    absl::MutexLock lock(&mu_);
    engine_ = created;
  }
  ASSIGN_OR_RETURN(auto prepared, created->Prepare(*attached));
  RETURN_IF_ERROR(confine_());
  Enter(Progress::kPreparing, Progress::kPrepared);
  prepared.insert(prepared.begin(), timer.phases().begin(), timer.phases().end());
  *response->mutable_phases() = ToMessage(prepared);
  return absl::OkStatus();
}

absl::Status EngineService::Start(const internal::StartRequest& request, int fd,
                                  internal::StartResponse* response) {
  EngineOptions options = FromMessage(request);
  if (request.has_generation()) {
    ASSIGN_OR_RETURN(auto generation, UnpackGeneration(request.generation(), fd));
    options.generation = std::move(generation);
  }
  if (!Enter(Progress::kPrepared, Progress::kStarting)) {
    return absl::FailedPreconditionError("the engine is not prepared, or was started before");
  }
  Engine* engine = nullptr;
  {
    absl::MutexLock lock(&mu_);
    beat_every_ = options.beat_every;
    engine = engine_;
  }
  ASSIGN_OR_RETURN(const EngineInfo info, engine->Start(options));
  Enter(Progress::kStarting, Progress::kRunning);
  *response = ToMessage(info);
  return absl::OkStatus();
}

absl::Status EngineService::Preload(const internal::PreloadRequest& request, int fd,
                                    internal::PreloadResponse* response) {
  ASSIGN_OR_RETURN(auto generation, UnpackGeneration(request.generation(), fd));
  ASSIGN_OR_RETURN(Engine* const engine, FindRunning());
  absl::MutexLock lock(&preload_mu_);
  ASSIGN_OR_RETURN(const auto operators, engine->Preload(std::move(generation)));
  *response->mutable_operators() = ToMessage(operators);
  return absl::OkStatus();
}

absl::Status EngineService::Switch(const internal::SwitchRequest& request,
                                   internal::SwitchResponse* response) {
  ASSIGN_OR_RETURN(Engine* const engine, FindRunning());
  absl::MutexLock lock(&preload_mu_);
  ASSIGN_OR_RETURN(const auto times,
                   engine->Switch(request.change(), request.launch(),
                                  std::chrono::nanoseconds(request.park_timeout_ns())));
  *response = ToMessage(times);
  return absl::OkStatus();
}

absl::Status EngineService::MapShared(const internal::MapSharedRequest& request, uint64_t id,
                                      int fd, internal::MapSharedResponse* response) {
  const bool device = !request.device_handle().empty();
  if (!device && fd < 0) {
    return absl::ResourceExhaustedError(
        "the descriptor of the memory did not arrive. Fix: raise the limit on open files of the "
        "service");
  }
  ASSIGN_OR_RETURN(Engine* const engine, FindRunning());
  const uint64_t bytes = request.size_bytes();
  ASSIGN_OR_RETURN(const uint64_t address,
                   device ? engine->MapSharedDevice(request.device_handle(), bytes)
                   : request.device_descriptor() ? engine->MapDeviceDescriptor(fd, bytes)
                                                 : engine->MapShared(fd, bytes));
  mapped_[id] = address;
  response->set_address(address);
  return absl::OkStatus();
}

absl::Status EngineService::UnmapShared(const internal::UnmapSharedRequest& request) {
  ASSIGN_OR_RETURN(Engine* const engine, FindRunning());
  const auto found = mapped_.find(request.mapping());
  if (found == mapped_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no mapping ", request.mapping()));
  }
  const uint64_t address = found->second;
  mapped_.erase(found);
  return engine->UnmapShared(address);
}

}  // namespace resident
