#include "runtime/engine/process/engine_service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "runtime/engine/process/descriptor_channel.h"
#include "runtime/engine/process/engine_messages.h"

namespace resident {
namespace {

// Read by the front end once the process has ended, so no order is needed.
void WriteLastWords(ControlBlock* control, const std::string& words) {
  const size_t length = std::min<size_t>(words.size(), kLastWordsBytes - 1);
  memcpy(control->last_words, words.data(), length);
  control->last_words[length] = '\0';
}

}  // namespace

EngineService::EngineService(int region_fd, int descriptor_socket, EngineFactory factory)
    : descriptor_socket_(descriptor_socket), factory_(std::move(factory)), region_fd_(region_fd) {}

EngineService::~EngineService() {
  if (region_fd_ >= 0) close(region_fd_);
  close(descriptor_socket_);
}

bool EngineService::AwaitShutdown(std::chrono::milliseconds most) {
  absl::MutexLock lock(&mu_);
  return mu_.AwaitWithTimeout(absl::Condition(&shutdown_), absl::FromChrono(most));
}

absl::Status EngineService::Beat() {
  absl::MutexLock lock(&mu_);
  if (region_ == nullptr) return absl::OkStatus();
  std::atomic_ref<u64>(region_->control()->heartbeat).fetch_add(1, std::memory_order_relaxed);
  if (!running_) return absl::OkStatus();
  absl::Status health = engine_->Health();
  if (!health.ok()) WriteLastWords(region_->control(), std::string(health.message()));
  return health;
}

absl::StatusOr<Engine*> EngineService::Running() {
  absl::MutexLock lock(&mu_);
  if (!running_) return absl::FailedPreconditionError("the engine was not started");
  return engine_;
}

absl::StatusOr<EngineInfo> EngineService::StartEngine(const internal::StartRequest& request) {
  if (region_fd_ < 0) return absl::FailedPreconditionError("the engine was started before");
  if (request.kind() == internal::StartRequest::KIND_UNSPECIFIED) {
    return absl::InvalidArgumentError("no kind of engine was asked for");
  }
  auto region = SharedRegion::Attach(std::exchange(region_fd_, -1));
  if (!region.ok()) return region.status();
  auto engine = factory_(request.kind() == internal::StartRequest::KIND_CUDA, FromMessage(request));
  if (!engine.ok()) return engine.status();
  const SharedRegion* attached = region->get();
  Engine* const created = engine->release();
  {
    // From here on the heart beats: starting a device takes a while.
    absl::MutexLock lock(&mu_);
    region_ = *std::move(region);
    engine_ = created;
  }
  absl::StatusOr<EngineInfo> info = created->Start(*attached);
  if (info.ok()) {
    absl::MutexLock lock(&mu_);
    running_ = true;
  }
  return info;
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

grpc::Status EngineService::MapShared(grpc::ServerContext* context,
                                      const internal::MapSharedRequest* request,
                                      internal::MapSharedResponse* response) {
  absl::MutexLock call(&call_mu_);
  const absl::StatusOr<int> fd = ReceiveDescriptor(descriptor_socket_, request->token());
  if (!fd.ok()) return ToControlStatus(fd.status());
  absl::Cleanup close_fd = [&] { close(*fd); };
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  const absl::StatusOr<uint64_t> address = (*engine)->MapShared(*fd, request->size_bytes());
  if (!address.ok()) return ToControlStatus(address.status());
  response->set_address(*address);
  return grpc::Status::OK;
}

grpc::Status EngineService::UnmapShared(grpc::ServerContext* context,
                                        const internal::UnmapSharedRequest* request,
                                        internal::UnmapSharedResponse* response) {
  absl::MutexLock call(&call_mu_);
  const absl::StatusOr<Engine*> engine = Running();
  if (!engine.ok()) return ToControlStatus(engine.status());
  return ToControlStatus((*engine)->UnmapShared(request->address()));
}

grpc::Status EngineService::Shutdown(grpc::ServerContext* context,
                                     const internal::ShutdownRequest* request,
                                     internal::ShutdownResponse* response) {
  absl::MutexLock lock(&mu_);
  shutdown_ = true;
  return grpc::Status::OK;
}

}  // namespace resident
