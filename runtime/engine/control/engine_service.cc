#include "runtime/engine/control/engine_service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/control/engine_messages.h"
#include "runtime/engine/control/generation_transfer.h"

namespace resident {
namespace {

constexpr std::chrono::milliseconds kBeatWhileStarting{50};
// A prepared engine is watched by other means; it is to cost no processor time.
constexpr std::chrono::milliseconds kBeatWhilePrepared{5'000};

// Read by the front end once the process has ended, so no order is needed.
void WriteLastWords(ControlBlock* control, const std::string& words) {
  const size_t length = std::min<size_t>(words.size(), kLastWordsBytes - 1);
  memcpy(control->last_words, words.data(), length);
  control->last_words[length] = '\0';
}

}  // namespace

EngineService::EngineService(int region_fd, int descriptor_socket, EngineFactory factory,
                             std::function<absl::Status()> confine)
    : descriptor_socket_(descriptor_socket),
      factory_(std::move(factory)),
      confine_(std::move(confine)),
      inbox_(descriptor_socket),
      region_fd_(region_fd) {}

EngineService::~EngineService() {
  if (region_fd_ >= 0) close(region_fd_);
  close(descriptor_socket_);
}

bool EngineService::AwaitShutdown(std::chrono::milliseconds most) {
  absl::MutexLock lock(&mu_);
  const auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return shutdown_ || changed_; };
  mu_.AwaitWithTimeout(absl::Condition(&news), absl::FromChrono(most));
  changed_ = false;
  return shutdown_;
}

absl::Status EngineService::Beat() {
  absl::MutexLock lock(&mu_);
  if (region_ == nullptr) return absl::OkStatus();
  std::atomic_ref<u64>(region_->control()->heartbeat).fetch_add(1, std::memory_order_relaxed);
  if (stage_ != Progress::kRunning) return absl::OkStatus();
  absl::Status health = engine_->Health();
  if (!health.ok()) WriteLastWords(region_->control(), std::string(health.message()));
  return health;
}

std::chrono::milliseconds EngineService::BeatEvery() {
  absl::MutexLock lock(&mu_);
  if (stage_ == Progress::kPrepared) return kBeatWhilePrepared;
  if (stage_ != Progress::kRunning) return kBeatWhileStarting;
  return std::min(beat_every_, engine_->health_interval());
}

absl::StatusOr<Engine*> EngineService::Running() {
  absl::MutexLock lock(&mu_);
  if (stage_ != Progress::kRunning) {
    return absl::FailedPreconditionError("the engine was not started");
  }
  return engine_;
}

bool EngineService::Enter(Progress from, Progress to) {
  absl::MutexLock lock(&mu_);
  if (stage_ != from) return false;
  stage_ = to;
  changed_ = true;
  return true;
}

absl::StatusOr<std::vector<EnginePhase>> EngineService::PrepareEngine(
    const internal::PrepareRequest& request) {
  if (!Enter(Progress::kNew, Progress::kPreparing)) {
    return absl::FailedPreconditionError("the engine was prepared before");
  }
  PhaseTimer timer;
  ASSIGN_OR_RETURN(auto region, SharedRegion::Attach(std::exchange(region_fd_, -1)));
  const SharedRegion* const attached = region.get();
  {
    // From here on the heart beats: bringing a device up takes a while.
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
  return prepared;
}

absl::StatusOr<EngineInfo> EngineService::StartEngine(const internal::StartRequest& request) {
  EngineOptions options = FromMessage(request);
  if (request.has_generation()) {
    ASSIGN_OR_RETURN(auto generation, Receive(request.generation()));
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
  absl::StatusOr<EngineInfo> info = engine->Start(options);
  if (info.ok()) Enter(Progress::kStarting, Progress::kRunning);
  return info;
}

grpc::Status EngineService::Prepare(grpc::ServerContext* context,
                                    const internal::PrepareRequest* request,
                                    internal::PrepareResponse* response) {
  absl::MutexLock call(&call_mu_);
  const auto phases = PrepareEngine(*request);
  if (!phases.ok()) return ToControlStatus(phases.status());
  *response->mutable_phases() = ToMessage(*phases);
  return grpc::Status::OK;
}

grpc::Status EngineService::Start(grpc::ServerContext* context,
                                  const internal::StartRequest* request,
                                  internal::StartResponse* response) {
  absl::MutexLock call(&call_mu_);
  const absl::StatusOr<EngineInfo> info = StartEngine(*request);
  if (!info.ok()) return ToControlStatus(info.status());
  *response = ToMessage(*info);
  return grpc::Status::OK;
}

grpc::Status EngineService::AwaitPark(grpc::ServerContext* context,
                                      const internal::AwaitParkRequest* request,
                                      internal::AwaitParkResponse* response) {
  absl::MutexLock call(&call_mu_);
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  return ToControlStatus((*engine)->AwaitPark(std::chrono::nanoseconds(request->most_ns())));
}

grpc::Status EngineService::Resume(grpc::ServerContext* context,
                                   const internal::ResumeRequest* request,
                                   internal::ResumeResponse* response) {
  absl::MutexLock call(&call_mu_);
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  return ToControlStatus((*engine)->Resume());
}

absl::StatusOr<std::shared_ptr<const Generation>> EngineService::Receive(
    const internal::Generation& message) {
  if (message.token() == 0) return UnpackGeneration(message, -1);
  ASSIGN_OR_RETURN(const int fd, inbox_.Receive(message.token()));
  absl::Cleanup close_fd = [&] { close(fd); };
  return UnpackGeneration(message, fd);
}

grpc::Status EngineService::Stage(grpc::ServerContext* context,
                                  const internal::StageRequest* request,
                                  internal::StageResponse* response) {
  absl::MutexLock stage(&stage_mu_);
  auto generation = Receive(request->generation());
  if (!generation.ok()) return ToControlStatus(generation.status());
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  const auto operators = (*engine)->Stage(*std::move(generation));
  if (!operators.ok()) return ToControlStatus(operators.status());
  *response->mutable_operators() = ToMessage(*operators);
  return grpc::Status::OK;
}

grpc::Status EngineService::Switch(grpc::ServerContext* context,
                                   const internal::SwitchRequest* request,
                                   internal::SwitchResponse* response) {
  absl::MutexLock stage(&stage_mu_);
  absl::MutexLock call(&call_mu_);
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  const auto times = (*engine)->Switch(request->change(), request->launch(),
                                       std::chrono::nanoseconds(request->most_ns()));
  if (!times.ok()) return ToControlStatus(times.status());
  *response = ToMessage(*times);
  return grpc::Status::OK;
}

grpc::Status EngineService::MapShared(grpc::ServerContext* context,
                                      const internal::MapSharedRequest* request,
                                      internal::MapSharedResponse* response) {
  absl::MutexLock map(&map_mu_);
  const absl::StatusOr<int> fd = inbox_.Receive(request->token());
  if (!fd.ok()) return ToControlStatus(fd.status());
  absl::Cleanup close_fd = [&] { close(*fd); };
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  const absl::StatusOr<uint64_t> address = (*engine)->MapShared(*fd, request->size_bytes());
  if (!address.ok()) return ToControlStatus(address.status());
  {
    absl::MutexLock mapped(&mapped_mu_);
    // Asked under the lock: a caller who gives up later finds the mapping here.
    if (context == nullptr || !context->IsCancelled()) {
      mapped_[request->token()] = *address;
      response->set_address(*address);
      return grpc::Status::OK;
    }
  }
  (*engine)->UnmapShared(*address).IgnoreError();
  return grpc::Status(grpc::StatusCode::CANCELLED, "the caller has given up");
}

grpc::Status EngineService::UnmapShared(grpc::ServerContext* context,
                                        const internal::UnmapSharedRequest* request,
                                        internal::UnmapSharedResponse* response) {
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  uint64_t address = 0;
  {
    absl::MutexLock mapped(&mapped_mu_);
    const auto found = mapped_.find(request->token());
    if (found == mapped_.end()) {
      return grpc::Status(grpc::StatusCode::NOT_FOUND, "no shared object is mapped by that token");
    }
    address = found->second;
    mapped_.erase(found);
  }
  return ToControlStatus((*engine)->UnmapShared(address));
}

grpc::Status EngineService::Shutdown(grpc::ServerContext* context,
                                     const internal::ShutdownRequest* request,
                                     internal::ShutdownResponse* response) {
  absl::MutexLock lock(&mu_);
  shutdown_ = true;
  return grpc::Status::OK;
}

}  // namespace resident
