#include "server/rpc/admin_service.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "runtime/base/status_macros.h"
#include "server/core/daemon_status.h"
#include "server/core/status.h"
#include "server/rpc/call.h"
#include "server/rpc/errors.h"
#include "server/rpc/unary_call.h"
#include "server/workload/errors.h"

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
  return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
    ASSIGN_OR_RETURN(const auto caller, IdentifyCaller(*context, core_));
    FillStatus(core_, facts_.daemon, Viewer::Of(*caller), response);
    return absl::OkStatus();
  });
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
  return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
    if (device >= devices_.size()) return errors::UnknownDevice(device, devices_.size());
    const std::shared_ptr<UnaryCall> answer = call.Defer();
    (devices_[device]->*start)({[answer](const absl::Status& status) { answer->Finish(status); },
                                [answer] { return answer->cancelled(); }});
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
    const uint64_t default_ms = static_cast<uint64_t>(facts_.drain_timeout.count());
    // Limited to a day, because large values would overflow.
    const uint64_t timeout_ms = std::min<uint64_t>(
        request->timeout_ms() == 0 ? default_ms : request->timeout_ms(), 24 * 3600 * 1000);
    const absl::Time deadline = absl::Now() + absl::Milliseconds(static_cast<int64_t>(timeout_ms));
    core_.pools.blocking.Post([this, response, deadline, answer = call.Defer()] {
      begin_drain_();
      std::make_shared<DrainWait>([answer, response, deadline, gate = &core_.gate] {
        const uint64_t remaining = gate->AwaitEmpty(absl::InfinitePast());
        if (remaining != 0 && absl::Now() < deadline && !answer->cancelled()) return false;
        response->set_remaining_tasks(remaining);
        answer->Finish(remaining == 0 ? absl::OkStatus() : errors::DrainUnfinished(remaining));
        return true;
      })->Poll();
    });
    return absl::OkStatus();
  });
}

}  // namespace resident
