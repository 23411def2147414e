#include "server/rpc/health_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/status.h"

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
    "resident.v1.Admin",
};

absl::Status CheckName(const std::string& service) {
  if (service.size() <= kMaxHealthNameBytes) return absl::OkStatus();
  return errors::HealthNameTooLong(service.size(), kMaxHealthNameBytes);
}

}  // namespace

// One Watch. Operations are started under mu_, and none after Finish.
class HealthService::WatchStream final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                                         public LiveStream,
                                         public std::enable_shared_from_this<WatchStream> {
 public:
  // Owns itself until gRPC is done with it.
  static WatchStream* Start(HealthService& health, const std::string& peer,
                            const std::string& service) {
    std::shared_ptr<WatchStream> watch(new WatchStream(health, peer, service));
    watch->self_ = watch;
    health.core_.streams.Add(watch);
    const absl::Status status = watch->Open();
    if (!status.ok()) watch->End(status);
    return watch.get();  // gRPC destroys nothing before this handler has returned.
  }

  const std::string& service() const { return service_; }

  // The service's status is `status` from here on.
  void Tell(Status::ServingStatus status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    latest_ = status;
    Advance();
  }
  void End(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    if (end_.ok()) end_ = status;
    Advance();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok && end_.ok()) end_ = errors::Cancelled();
    Advance();
  }
  void OnCancel() override { End(errors::Cancelled()); }
  void OnDone() override {
    health_.core_.streams.Remove(this);
    if (opened_) {
      health_.Remove(this);
      health_.on_watch_(peer_, /*open=*/false);
    }
    self_.reset();
  }

 private:
  WatchStream(HealthService& health, std::string peer, std::string service)
      : health_(health), peer_(std::move(peer)), service_(std::move(service)) {}

  absl::Status Open() {
    absl::Status status = CheckName(service_);
    if (!status.ok()) return status;
    // Callers are not identified here: slots are counted by the caller's address.
    ASSIGN_OR_RETURN(auto slot, health_.slots_.Take(
                                    HolderOf(*health_.core_.access.anybody()->account(), peer_)));
    slot_ = std::move(slot);
    opened_ = true;
    health_.on_watch_(peer_, /*open=*/true);
    health_.Add(this);
    return absl::OkStatus();
  }

  // Writes the latest status, unless the client has it or a write is under way.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || writing_) return;
    if (!end_.ok()) {
      finished_ = true;
      Finish(ToGrpc(end_));
    } else if (!written_ || response_.status() != latest_) {
      response_.set_status(latest_);
      written_ = writing_ = true;
      StartWrite(&response_);
    }
  }

  HealthService& health_;
  const std::string peer_;
  const std::string service_;
  bool opened_ = false;                // Before the handler returns.
  std::shared_ptr<WatchStream> self_;  // Until OnDone.
  SharedSlots::Ticket slot_;

  absl::Mutex mu_;
  Status::ServingStatus latest_ ABSL_GUARDED_BY(mu_) = HealthCheckResponse::UNKNOWN;
  HealthCheckResponse response_ ABSL_GUARDED_BY(mu_);  // gRPC's while writing_.
  bool written_ ABSL_GUARDED_BY(mu_) = false;          // response_ has been, at least once.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // How the stream ends.
};

void HealthService::Update() {
  // Held while states are read: of two callers, the later one tells the later state.
  absl::MutexLock lock(&mu_);
  const bool draining = core_.gate.draining();
  bool any_usable = false;
  for (const Device* device : core_.devices) {
    const bool usable = device->snapshot().state != Device::State::kUnhealthy;
    any_usable |= usable;
    serving_[absl::StrCat("resident.device/", device->index())] = usable && !draining;
  }
  for (const char* name : kServices) serving_[name] = any_usable && !draining;
  for (WatchStream* watch : watches_) watch->Tell(StatusOf(watch->service()));
}

HealthService::Status::ServingStatus HealthService::StatusOf(const std::string& service) const {
  const auto found = serving_.find(service);
  if (found == serving_.end()) return Status::SERVICE_UNKNOWN;
  return found->second ? Status::SERVING : Status::NOT_SERVING;
}

void HealthService::Add(WatchStream* watch) {
  absl::MutexLock lock(&mu_);
  watches_.insert(watch);
  watch->Tell(StatusOf(watch->service()));
}

void HealthService::Remove(WatchStream* watch) {
  absl::MutexLock lock(&mu_);
  watches_.erase(watch);
}

grpc::ServerUnaryReactor* HealthService::Check(CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  absl::Status status = CheckName(request->service());
  if (status.ok()) {
    absl::MutexLock lock(&mu_);
    response->set_status(StatusOf(request->service()));
  }
  if (response->status() == HealthCheckResponse::SERVICE_UNKNOWN) {
    status = errors::UnknownHealthService(request->service());
  }
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    CallbackServerContext* context, const HealthCheckRequest* request) {
  return WatchStream::Start(*this, context->peer(), request->service());
}

}  // namespace resident
