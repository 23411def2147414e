
#include "server/operators/operators_service.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/core/status.h"
#include "server/operators/errors.h"
#include "server/operators/install_stream.h"
#include "server/operators/installs.h"
#include "server/operators/operator_messages.h"
#include "server/operators/removal_waits.h"
#include "server/operators/watch_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

// Install reads bytes (message_bytes.h); for the other methods, see v1::Operators::CallbackService.
using ClaimCallbacks = v1::Operators::WithCallbackMethod_Claim<
    v1::Operators::WithCallbackMethod_Release<v1::Operators::Service>>;
using OperatorsCallbacks = v1::Operators::WithCallbackMethod_List<
    v1::Operators::WithCallbackMethod_Describe<v1::Operators::WithCallbackMethod_Summary<
        v1::Operators::WithRawCallbackMethod_Install<v1::Operators::WithCallbackMethod_Activate<
            v1::Operators::WithCallbackMethod_Rollback<v1::Operators::WithCallbackMethod_Remove<
                v1::Operators::WithCallbackMethod_Promote<v1::Operators::WithCallbackMethod_Watch<
                    v1::Operators::WithCallbackMethod_Audit<ClaimCallbacks>>>>>>>>>>;

class OperatorsService final : public OperatorsCallbacks {
 public:
  explicit OperatorsService(Installs& installs) : core_(installs.core), installs_(installs) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListOperatorsRequest*,
                                 v1::ListOperatorsResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto caller, IdentifyCaller(*context, core_));
      const std::vector<OperatorResources> resources = CollectResources(core_);
      for (const OperatorView& op : core_.registry.List()) {
        FillOperator(op, core_, resources, Viewer::Of(*caller), response->add_operators());
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeOperatorRequest* request,
                                     v1::DescribeOperatorResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto caller, IdentifyCaller(*context, core_));
      ASSIGN_OR_RETURN(const OperatorView op, core_.registry.Describe(request->name()));
      FillOperator(op, core_, CollectResources(core_), Viewer::Of(*caller),
                   response->mutable_operator_());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Summary(grpc::CallbackServerContext* context, const v1::SummaryRequest*,
                                    v1::SummaryResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) {
      FillSummary(core_, response);
      return absl::OkStatus();
    });
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Install(
      grpc::CallbackServerContext* context) override {
    return StartBidiCall<InstallStream>(*context, installs_);
  }

  grpc::ServerUnaryReactor* Activate(grpc::CallbackServerContext* context,
                                     const v1::ActivateRequest* message,
                                     v1::ActivateResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(SwitchRequest request, ParseSwitch(*message));
      ASSIGN_OR_RETURN(request.actor, AuthorizeChange(*context, core_, request.name, kInstallRoles,
                                                      &request.context));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      WorkerPool& pool = request.force ? core_.pools.rounds : core_.pools.changes;
      return call.Post(pool, [this, response, request = std::move(request)]() -> absl::Status {
        ASSIGN_OR_RETURN(const auto done, core_.operators.Activate(request));
        response->set_version(done.version);
        response->set_previous_version(done.previous_version);
        response->set_revision(done.revision);
        response->set_switch_ns(static_cast<uint64_t>(done.switch_time.count()));
        return absl::OkStatus();
      });
    });
  }

  grpc::ServerUnaryReactor* Rollback(grpc::CallbackServerContext* context,
                                     const v1::RollbackRequest* message,
                                     v1::RollbackResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(SwitchRequest request, ParseSwitch(*message));
      ASSIGN_OR_RETURN(request.actor, AuthorizeChange(*context, core_, request.name, kInstallRoles,
                                                      &request.context));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      return call.Post(core_.pools.changes,
                       [this, response, request = std::move(request)]() -> absl::Status {
                         ASSIGN_OR_RETURN(const auto done, core_.operators.Rollback(request));
                         response->set_version(done.version);
                         response->set_from_version(done.previous_version);
                         response->set_revision(done.revision);
                         response->set_switch_ns(static_cast<uint64_t>(done.switch_time.count()));
                         return absl::OkStatus();
                       });
    });
  }

  grpc::ServerUnaryReactor* Remove(grpc::CallbackServerContext* context,
                                   const v1::RemoveRequest* request,
                                   v1::RemoveResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(ChangeContext change, ParseContext(request->context()));
      ASSIGN_OR_RETURN(std::string actor,
                       AuthorizeChange(*context, core_, request->name(), kInstallRoles, &change));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      core_.pools.changes.Post([this, context, request, response, actor = std::move(actor),
                                change = std::move(change), answer = call.Defer()] {
        std::optional<uint64_t> expected;
        if (request->has_expected_revision()) expected = request->expected_revision();
        auto removal = core_.operators.Remove(request->name(), expected, actor, change);
        if (!removal.ok()) return answer->Finish(removal.status());
        response->set_revision(removal->revision);
        removals_.Add({request->name(), std::move(removal->drained),
                       ReadDeadline(*context, Clock::now()),
                       [answer] { return answer->cancelled(); },
                       [answer](const absl::Status& status) { answer->Finish(status); }});
      });
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Promote(grpc::CallbackServerContext* context,
                                    const v1::PromoteRequest* message,
                                    v1::PromoteResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(PromoteRequest request, ParsePromote(*message));
      ASSIGN_OR_RETURN(request.actor, AuthorizeChange(*context, core_, request.name, kInstallRoles,
                                                      &request.context));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      return call.Post(
          core_.pools.changes, [this, response, request = std::move(request)]() -> absl::Status {
            ASSIGN_OR_RETURN(const uint64_t revision, core_.operators.Promote(request));
            response->set_revision(revision);
            return absl::OkStatus();
          });
    });
  }

  grpc::ServerUnaryReactor* Claim(grpc::CallbackServerContext* context,
                                  const v1::ClaimRequest* message,
                                  v1::ClaimResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(PlanClaim claim, ParseClaim(*message));
      ASSIGN_OR_RETURN(const auto caller, IdentifyCaller(*context, core_));
      for (const std::string& name : claim.names) {
        RETURN_IF_ERROR(caller->account()->MayInstall(name));
      }
      // A plan that has a record is claimed with the names of the record.
      for (const PlanRecord& plan : core_.operators.plans().plans) {
        if (plan.plan != claim.plan) continue;
        for (const auto& [name, content_hash] : plan.before) {
          RETURN_IF_ERROR(caller->account()->MayInstall(name));
        }
      }
      if (claim.steal) {
        RETURN_IF_ERROR(caller->Has(Role::kAdmin, "resident.v1.Operators/Claim with steal"));
      }
      RETURN_IF_ERROR(call.Enter(core_.gate));
      return call.Post(core_.pools.changes,
                       [this, response, claim = std::move(claim)]() -> absl::Status {
                         ASSIGN_OR_RETURN(const ClaimedPlan claimed, core_.operators.Claim(claim));
                         FillClaim(claimed, response);
                         response->set_node_id(core_.node.id);
                         return absl::OkStatus();
                       });
    });
  }

  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse*) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto ended, ParsePlanState(request->state(), "ReleaseRequest.state"));
      RETURN_IF_ERROR(call.Enter(core_.gate));
      return call.Post(core_.pools.changes, [this, request, ended] {
        return core_.operators.Release(request->plan(), request->lease(), ended);
      });
    });
  }

  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override {
    return StartWriteCall<WatchStream>(*context, installs_, *request);
  }

  grpc::ServerUnaryReactor* Audit(grpc::CallbackServerContext* context,
                                  const v1::AuditRequest* request,
                                  v1::AuditResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      if (request->count() > kMaxAuditEvents) {
        return errors::TooManyAuditEvents(request->count(), kMaxAuditEvents);
      }
      response->set_node_id(core_.node.id);
      response->set_node_name(core_.node.name);
      return call.Post(core_.pools.disk, [this, request, response] {
        const size_t max_events = request->count() == 0 ? kDefaultAuditEvents : request->count();
        for (const OperatorEvent& event : core_.operators.EventsBefore(
                 request->before_revision(), request->name(), max_events)) {
          FillEvent(event, response->add_events());
        }
        return absl::OkStatus();
      });
    });
  }

 private:
  Core& core_;
  Installs& installs_;
  RemovalWaits removals_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeOperatorsService(Installs& installs) {
  return std::make_unique<OperatorsService>(installs);
}

}  // namespace resident
