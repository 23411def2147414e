#include "server/rpc/operators_service.h"

#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/operator_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/install_stream.h"
#include "server/rpc/listings.h"
#include "server/rpc/operator_messages.h"
#include "server/rpc/status.h"
#include "server/rpc/watch_stream.h"

namespace resident {
namespace {

// Sets the actor of the request; if the caller may not make the change, replaces the request by the
// error.
template <typename Request>
void SetActor(const grpc::CallbackServerContext& context, const Core& core,
              absl::StatusOr<Request>& request) {
  if (!request.ok()) return;
  auto actor = AuthorizeChange(context, core, request->name);
  if (actor.ok()) {
    request->actor = *std::move(actor);
  } else {
    request = actor.status();
  }
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& why) {
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(why));
  return reactor;
}

}  // namespace

OperatorsService::OperatorsService(Core& core) : core_(core) {}
OperatorsService::~OperatorsService() = default;

grpc::ServerUnaryReactor* OperatorsService::List(grpc::CallbackServerContext* context,
                                                 const v1::ListOperatorsRequest*,
                                                 v1::ListOperatorsResponse* response) {
  const auto caller = IdentifyCaller(*context, core_);
  if (!caller.ok()) return Refuse(context, caller.status());
  const Viewer viewer = Viewer::Of(**caller);
  const std::vector<OperatorResources> resources = CollectResources(core_);
  for (const OperatorView& op : core_.registry.List()) {
    FillOperator(op, core_, resources, viewer, response->add_operators());
  }
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* OperatorsService::Describe(grpc::CallbackServerContext* context,
                                                     const v1::DescribeOperatorRequest* request,
                                                     v1::DescribeOperatorResponse* response) {
  const auto caller = IdentifyCaller(*context, core_);
  if (!caller.ok()) return Refuse(context, caller.status());
  const auto op = core_.registry.Describe(request->name());
  if (op.ok()) {
    FillOperator(*op, core_, CollectResources(core_), Viewer::Of(**caller),
                 response->mutable_operator_());
  }
  auto* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(op.status()));
  return reactor;
}

grpc::ServerUnaryReactor* OperatorsService::Change(grpc::CallbackServerContext* context,
                                                   WorkerPool& pool,
                                                   std::function<absl::Status()> change) {
  auto* const reactor = context->DefaultReactor();
  if (!core_.gate.Enter(1)) {
    reactor->Finish(ToGrpc(errors::Draining()));
    return reactor;
  }
  pool.Post([this, reactor, change = std::move(change)] {
    reactor->Finish(ToGrpc(change()));
    core_.gate.Leave(1);
  });
  return reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* OperatorsService::Install(
    grpc::CallbackServerContext* context) {
  return StartBidiCall<InstallStream>(*context, core_);
}

grpc::ServerUnaryReactor* OperatorsService::Activate(grpc::CallbackServerContext* context,
                                                     const v1::ActivateRequest* message,
                                                     v1::ActivateResponse* response) {
  auto request = ParseSwitch(*message);
  SetActor(*context, core_, request);
  if (!request.ok()) return Refuse(context, request.status());
  WorkerPool& pool = request->force ? core_.pools.rounds : core_.pools.changes;
  return Change(context, pool, [this, response, request = std::move(request)] {
    ASSIGN_OR_RETURN(const auto done, core_.operators.Activate(*request));
    response->set_version(done.version);
    response->set_previous_version(done.previous_version);
    response->set_revision(done.revision);
    response->set_switch_ns(static_cast<uint64_t>(done.switch_time.count()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OperatorsService::Rollback(grpc::CallbackServerContext* context,
                                                     const v1::RollbackRequest* message,
                                                     v1::RollbackResponse* response) {
  absl::StatusOr<SwitchRequest> request = ParseSwitch(*message);
  SetActor(*context, core_, request);
  if (!request.ok()) return Refuse(context, request.status());
  return Change(context, core_.pools.changes, [this, response, request = std::move(request)] {
    ASSIGN_OR_RETURN(const auto done, core_.operators.Rollback(*request));
    response->set_version(done.version);
    response->set_from_version(done.previous_version);
    response->set_revision(done.revision);
    response->set_switch_ns(static_cast<uint64_t>(done.switch_time.count()));
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* OperatorsService::Remove(grpc::CallbackServerContext* context,
                                                   const v1::RemoveRequest* request,
                                                   v1::RemoveResponse* response) {
  const auto actor = AuthorizeChange(*context, core_, request->name());
  if (!actor.ok()) return Refuse(context, actor.status());
  auto* const reactor = context->DefaultReactor();
  if (!core_.gate.Enter(1)) {
    reactor->Finish(ToGrpc(errors::Draining()));
    return reactor;
  }
  core_.pools.changes.Post([this, context, request, response, reactor, actor = *actor] {
    const auto done = [this, reactor](const absl::Status& status) {
      reactor->Finish(ToGrpc(status));
      core_.gate.Leave(1);
    };
    std::optional<uint64_t> expected;
    if (request->has_expected_revision()) expected = request->expected_revision();
    auto removal = core_.operators.Remove(request->name(), expected, actor);
    if (!removal.ok()) return done(removal.status());
    response->set_revision(removal->revision);
    removals_.Add({request->name(), std::move(removal->drained),
                   ReadDeadline(*context, Clock::now()),
                   [context] { return context->IsCancelled(); }, done});
  });
  return reactor;
}

grpc::ServerUnaryReactor* OperatorsService::Promote(grpc::CallbackServerContext* context,
                                                    const v1::PromoteRequest* message,
                                                    v1::PromoteResponse* response) {
  auto request = ParsePromote(*message);
  SetActor(*context, core_, request);
  if (!request.ok()) return Refuse(context, request.status());
  return Change(context, core_.pools.changes, [this, response, request = std::move(request)] {
    const auto revision = core_.operators.Promote(*request);
    if (revision.ok()) response->set_revision(*revision);
    return revision.status();
  });
}

grpc::ServerWriteReactor<v1::WatchResponse>* OperatorsService::Watch(
    grpc::CallbackServerContext* context, const v1::WatchRequest* request) {
  return StartWriteCall<WatchStream>(*context, core_, *request);
}

grpc::ServerUnaryReactor* OperatorsService::Audit(grpc::CallbackServerContext* context,
                                                  const v1::AuditRequest* request,
                                                  v1::AuditResponse* response) {
  auto* const reactor = context->DefaultReactor();
  if (request->count() > kMaxAuditEvents) {
    reactor->Finish(ToGrpc(errors::TooManyAuditEvents(request->count(), kMaxAuditEvents)));
    return reactor;
  }
  core_.pools.blocking.Post([this, reactor, request, response] {
    const size_t max_events = request->count() == 0 ? kDefaultAuditEvents : request->count();
    for (const OperatorEvent& event :
         core_.operators.EventsBefore(request->before_revision(), request->name(), max_events)) {
      FillEvent(event, response->add_events());
    }
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace resident
