#include "server/rpc/health_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/core/status.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/errors.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

using grpc::CallbackServerContext;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr const char* kServices[] = {
    "",
    "resident.v1.Executor",
    "resident.v1.Sessions",
    "resident.v1.Buffers",
    "resident.v1.Operators",
    "resident.v1.Graphs",
    "resident.v1.Admin",
};

absl::Status CheckName(const std::string& service) {
  if (service.size() <= kMaxHealthNameBytes) return absl::OkStatus();
  return errors::HealthNameTooLong(service.size(), kMaxHealthNameBytes);
}

}  // namespace

// One Watch.
class HealthService::WatchStream final : public BidiStream<NoMessage, HealthCheckResponse> {
 public:
  WatchStream(Transport& transport, HealthService& health)
      : BidiStream(transport, health.core_), health_(health) {}

  void Open(const CallbackServerContext& context, const std::string& service) {
    peer_ = context.peer();
    service_ = service;
    Register();
    const absl::Status status = Begin();
    absl::MutexLock lock(&mu_);
    if (!status.ok()) Conclude(status);
  }
  const std::string& service() const { return service_; }

  // Writes the service's new status.
  void Tell(Status::ServingStatus status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    latest_ = status;
    WriteLatest();
  }

  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { WriteLatest(); }
  void OnDone() override {
    if (joined_) health_.Leave(peer_);
    if (!opened_) return;
    health_.Remove(this);
    health_.on_watch_(peer_, /*open=*/false);
  }

 private:
  absl::Status Begin() {
    RETURN_IF_ERROR(CheckName(service_));
    joined_ = health_.Join(peer_);
    if (!joined_) {
      // Callers are not identified here: slots are counted by the caller's address.
      ASSIGN_OR_RETURN(slot_, health_.slots_.Take(
                                  NameHolder(*health_.core_.access.anonymous()->account(), peer_)));
    }
    opened_ = true;
    health_.on_watch_(peer_, /*open=*/true);
    health_.Add(this);
    return absl::OkStatus();
  }

  // Writes the latest status, unless the client has it or a write is under way.
  void WriteLatest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ending() || writing() || written_ == latest_) return;
    written_ = latest_;
    HealthCheckResponse response;
    response.set_status(latest_);
    Write(std::move(response));
  }

  HealthService& health_;
  // Set before the service's method returns.
  std::string peer_;
  std::string service_;
  bool joined_ = false;  // It is part of the connection, and needs no slot.
  bool opened_ = false;
  SharedSlots::Ticket slot_;

  Status::ServingStatus latest_ ABSL_GUARDED_BY(mu_) = HealthCheckResponse::UNKNOWN;
  std::optional<Status::ServingStatus> written_ ABSL_GUARDED_BY(mu_);  // Written last.
};

HealthService::HealthService(Core& core, OnWatch on_watch)
    : core_(core), on_watch_(std::move(on_watch)) {}
HealthService::~HealthService() = default;

void HealthService::Update() {
  // Locked while states are read, so that of two concurrent callers the later one writes the later
  // state.
  absl::MutexLock lock(&mu_);
  const bool serves = !end_announced_ && !core_.gate.draining() && core_.set_applied;
  bool any_usable = false;
  for (const Device* device : core_.devices) {
    const bool usable = device->snapshot().state != Device::State::kUnhealthy;
    any_usable |= usable;
    serving_[absl::StrCat("resident.device/", device->index())] = usable && serves;
  }
  for (const char* name : kServices) serving_[name] = any_usable && serves;
  for (WatchStream* watch : watches_) watch->Tell(FindStatus(watch->service()));
}

void HealthService::AnnounceEnd() {
  {
    absl::MutexLock lock(&mu_);
    end_announced_ = true;
  }
  Update();
}

bool HealthService::end_announced() const {
  absl::ReaderMutexLock lock(&mu_);
  return end_announced_;
}

HealthService::Status::ServingStatus HealthService::FindStatus(const std::string& service) const {
  const auto found = serving_.find(service);
  if (found == serving_.end()) return Status::SERVICE_UNKNOWN;
  return found->second ? Status::SERVING : Status::NOT_SERVING;
}

void HealthService::Add(WatchStream* watch) {
  absl::MutexLock lock(&mu_);
  watches_.insert(watch);
  watch->Tell(FindStatus(watch->service()));
}

void HealthService::Remove(WatchStream* watch) {
  absl::MutexLock lock(&mu_);
  watches_.erase(watch);
}

bool HealthService::Join(const std::string& peer) {
  absl::MutexLock lock(&mu_);
  return joined_peers_.insert(peer).second;
}

void HealthService::Leave(const std::string& peer) {
  absl::MutexLock lock(&mu_);
  joined_peers_.erase(peer);
}

grpc::ServerUnaryReactor* HealthService::Check(CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
    RETURN_IF_ERROR(CheckName(request->service()));
    absl::MutexLock lock(&mu_);
    response->set_status(FindStatus(request->service()));
    if (response->status() != HealthCheckResponse::SERVICE_UNKNOWN) return absl::OkStatus();
    return errors::UnknownHealthService(request->service());
  });
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    CallbackServerContext* context, const HealthCheckRequest* request) {
  return StartWriteCall<WatchStream>(*context, *this, request->service());
}

}  // namespace resident
