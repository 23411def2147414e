#include "server/rpc/graphs_service.h"

#include <string>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/graph_errors.h"
#include "runtime/base/errors/operator_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/operator_catalog.h"
#include "runtime/operators/registry/registry.h"
#include "server/rpc/graph_messages.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

// The operators that serve. It looks at the registry's listing, so that a check does not count as a
// request of a version on trial.
class RegistryCatalog final : public graph::OperatorCatalog {
 public:
  explicit RegistryCatalog(const Registry& registry) : registry_(registry) {}

  absl::StatusOr<graph::OperatorInfo> Find(const std::string& name,
                                           uint32_t version) const override {
    ASSIGN_OR_RETURN(const OperatorView view, registry_.Describe(name));
    if (name == kCompareOperator || name == kFluxRunOperator) {
      return errors::OperatorNotForGraphs(name, "only the daemon itself calls it");
    }
    if (view.op->bytecode()) {
      return errors::OperatorNotForGraphs(name, "it is a FLUX program");
    }
    const uint32_t wanted = version == 0 ? view.active_version : version;
    const VersionView* const found = view.Find(wanted);
    if (version == 0 && found == nullptr) {
      return errors::NoActiveVersion(name, view.standby_version, "");
    }
    if (found == nullptr) return errors::UnknownVersion(name, version, view.active_version);
    if (found->state == VersionState::kQuarantined) {
      return errors::VersionQuarantined(name, wanted, PublicReason(found->quarantine_reason));
    }
    if (found->slot == kNoSlot) {
      return errors::OperatorNotForGraphs(name, "this version is not in the kernel any more");
    }
    graph::OperatorInfo info;
    info.name = name;
    info.version = wanted;
    info.signature = view.op->signature();
    info.split = found->split;
    info.builtin = found->builtin;
    return info;
  }

 private:
  const Registry& registry_;
};

}  // namespace

grpc::ServerUnaryReactor* GraphsService::Validate(grpc::CallbackServerContext* context,
                                                  const v1::ValidateGraphRequest* request,
                                                  v1::ValidateGraphResponse* response) {
  auto* const reactor = context->DefaultReactor();
  if (!request->has_graph()) {
    reactor->Finish(ToGrpc(errors::NoGraph()));
    return reactor;
  }
  if (!core_.gate.Enter(1)) {
    reactor->Finish(ToGrpc(errors::Draining()));
    return reactor;
  }
  if (checks_.fetch_add(1, std::memory_order_relaxed) >= graph::kMaxChecks) {
    checks_.fetch_sub(1, std::memory_order_relaxed);
    core_.gate.Leave(1);
    reactor->Finish(ToGrpc(errors::TooManyGraphChecks(graph::kMaxChecks)));
    return reactor;
  }
  threads_.Post([this, reactor, request, response] {
    *response->mutable_report() =
        ValidateGraph(request->graph(), RegistryCatalog(core_.registry), request->dependencies());
    checks_.fetch_sub(1, std::memory_order_relaxed);
    reactor->Finish(grpc::Status::OK);
    core_.gate.Leave(1);
  });
  return reactor;
}

}  // namespace resident
