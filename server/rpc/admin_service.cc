#include "server/rpc/admin_service.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/call.h"
#include "server/rpc/listings.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

// Interval of the checks whether a drain has ended or its caller has gone.
constexpr std::chrono::milliseconds kDrainPoll{20};

// Waits for a Drain without blocking a thread.
class DrainWait : public std::enable_shared_from_this<DrainWait> {
 public:
  // `ended` returns whether the wait is over, and ends the call if so.
  explicit DrainWait(std::function<bool()> ended) : ended_(std::move(ended)) {}

  void Poll() {
    if (ended_()) return;
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(std::chrono::system_clock::now() + kDrainPoll,
                [self = shared_from_this()](bool) { self->Poll(); });
  }

 private:
  const std::function<bool()> ended_;
  std::unique_ptr<grpc::Alarm> alarm_;
};

}  // namespace

AdminService::AdminService(Core& core, std::vector<DeviceControl*> devices, Facts facts,
                           std::function<void()> begin_drain)
    : core_(core),
      devices_(std::move(devices)),
      facts_(std::move(facts)),
      begin_drain_(std::move(begin_drain)) {}
AdminService::~AdminService() = default;

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context,
                                               const v1::StatusRequest*,
                                               v1::StatusResponse* response) {
  auto* const reactor = context->DefaultReactor();
  const auto caller = IdentifyCaller(*context, core_);
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  FillStatus(core_, facts_.daemon, Viewer::Of(**caller), response);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Park(grpc::CallbackServerContext* context,
                                             const v1::ParkRequest* request, v1::ParkResponse*) {
  return OnDevice(context, request->device(), &DeviceControl::StartPark);
}

grpc::ServerUnaryReactor* AdminService::Resume(grpc::CallbackServerContext* context,
                                               const v1::ResumeRequest* request,
                                               v1::ResumeResponse*) {
  return OnDevice(context, request->device(), &DeviceControl::StartResume);
}

grpc::ServerUnaryReactor* AdminService::OnDevice(
    grpc::CallbackServerContext* context, uint32_t device,
    void (DeviceControl::*start)(DeviceControl::Waiter)) {
  auto* const reactor = context->DefaultReactor();
  if (device >= devices_.size()) {
    reactor->Finish(ToGrpc(errors::UnknownDevice(device, devices_.size())));
    return reactor;
  }
  // The context is valid until the call is finished.
  (devices_[device]->*start)(
      {[reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); },
       [context] { return context->IsCancelled(); }});
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  auto* const reactor = context->DefaultReactor();
  const uint64_t default_ms = static_cast<uint64_t>(facts_.drain_timeout.count());
  // Limited to a day, because large values would overflow.
  const uint64_t timeout_ms = std::min<uint64_t>(
      request->timeout_ms() == 0 ? default_ms : request->timeout_ms(), 24 * 3600 * 1000);
  const absl::Time deadline = absl::Now() + absl::Milliseconds(static_cast<int64_t>(timeout_ms));
  core_.pools.blocking.Post([this, context, reactor, response, deadline] {
    begin_drain_();
    std::make_shared<DrainWait>([context, reactor, response, deadline, gate = &core_.gate] {
      const uint64_t remaining = gate->AwaitEmpty(absl::InfinitePast());
      if (remaining != 0 && absl::Now() < deadline && !context->IsCancelled()) return false;
      response->set_remaining_tasks(remaining);
      reactor->Finish(remaining == 0 ? grpc::Status::OK
                                     : ToGrpc(errors::DrainUnfinished(remaining)));
      return true;
    })->Poll();
  });
  return reactor;
}

}  // namespace resident
