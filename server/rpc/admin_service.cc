#include "server/rpc/admin_service.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "grpcpp/alarm.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/call.h"
#include "server/rpc/status.h"
#include "server/rpc/version.h"

namespace resident {
namespace {

// Enough to distinguish sessions, too few to use one.
constexpr size_t kShownSessionChars = 8;
// Interval of the checks whether a drain has ended or its caller has gone.
constexpr std::chrono::milliseconds kDrainPoll{20};

void DescribeDevice(const Core& core, Device& device, bool sees_others, v1::DeviceStatus* out) {
  const Device::Snapshot snapshot = device.snapshot();
  const EngineInfo& info = snapshot.info;
  out->set_device(device.index());
  out->set_name(info.name);
  out->set_engine(info.traits.engine);
  out->set_uuid(info.uuid);
  out->set_state(static_cast<v1::DeviceStatus::State>(snapshot.state));
  // The detail can name others' operators, and contains text from an engine, which is not trusted.
  if (sees_others) out->set_detail(snapshot.detail);
  out->set_engine_pid(snapshot.engine_pid);
  out->set_spare_engine_pid(snapshot.spare_pid);
  out->set_generation(info.generation);
  out->set_parks(snapshot.parks);
  out->set_resumes(snapshot.resumes);
  uint64_t restarts = 0;
  for (const auto& [reason, count] : snapshot.restarts_by_reason) restarts += count;
  out->set_restarts(restarts);
  out->mutable_ring()->set_slots(snapshot.queue.ring_slots);
  out->mutable_ring()->set_in_flight(snapshot.queue.in_flight);
  out->mutable_ring()->set_next_sequence(snapshot.queue.next_sequence);
  out->set_queued_tasks(snapshot.queue.queued_tasks);
  out->set_completed_tasks(snapshot.queue.completed_tasks);
  out->set_memory_total_bytes(info.memory_bytes);
  out->set_memory_used_bytes(snapshot.memory_used_bytes);
  out->set_buffers(core.buffers.CountOn(device.index()));
  out->set_blocks(info.workers);
  out->set_threads_per_block(info.threads_per_block);
}

void DescribeClient(const Core& core, const Client& client, v1::ClientStatus* out) {
  // Only a part of a session's id, because the id gives access to the session's buffers.
  out->set_id(client.is_session() ? client.session().substr(0, kShownSessionChars) : client.peer());
  out->set_name(client.name());
  out->set_peer(client.peer());
  uint64_t queued = 0;
  uint64_t completed = 0;
  for (Device* device : core.devices) {
    for (const ClientId id : {client.id(), client.transfer_id()}) {
      const DeviceQueue::ClientCounters counters = device->queue().client_counters(id);
      queued += counters.queued_tasks;
      completed += counters.completed_tasks;
    }
  }
  out->set_queued_tasks(queued);
  out->set_completed_tasks(completed);
  const BufferTable::Usage usage = core.buffers.usage(client.id());
  out->set_buffers(usage.buffers);
  out->set_buffer_bytes(usage.bytes);
}

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

grpc::ServerUnaryReactor* AdminService::Status(grpc::CallbackServerContext* context,
                                               const v1::StatusRequest*,
                                               v1::StatusResponse* response) {
  auto* const reactor = context->DefaultReactor();
  const auto caller = IdentifyCaller(*context, core_);
  if (!caller.ok()) {
    reactor->Finish(ToGrpc(caller.status()));
    return reactor;
  }
  const bool sees_others = MaySeeOthers(**caller);
  response->set_version(kVersion);
  response->set_uptime_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - facts_.started).count());
  response->set_pid(getpid());
  response->set_draining(core_.gate.draining());
  response->set_metrics_address(facts_.metrics_address);
  response->set_local_address(core_.local_address);
  response->set_gpu_unavailable_reason(facts_.gpu_unavailable_reason);
  for (Device* device : core_.devices) {
    DescribeDevice(core_, *device, sees_others, response->add_devices());
  }
  for (const auto& client : core_.clients.List()) {
    if (!sees_others && client->account().name() != (*caller)->name()) continue;
    DescribeClient(core_, *client, response->add_clients());
  }
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
