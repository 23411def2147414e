#include "server/rpc/graphs_service.h"

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/graph_errors.h"
#include "server/rpc/graph_messages.h"
#include "server/rpc/graph_run_stream.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/registry_catalog.h"
#include "server/rpc/status.h"

namespace resident {

grpc::ServerUnaryReactor* GraphsService::Validate(grpc::CallbackServerContext* context,
                                                  const v1::ValidateGraphRequest* request,
                                                  v1::ValidateGraphResponse* response) {
  auto* const reactor = context->DefaultReactor();
  const auto refuse = [&](const absl::Status& why) {
    reactor->Finish(ToGrpc(why));
    return reactor;
  };
  if (!request->has_graph()) return refuse(errors::NoGraph());
  if (!core_.gate.Enter(1)) return refuse(errors::Draining());
  const absl::Status posted = checker_.Post([this, reactor, request, response] {
    *response->mutable_report() =
        ValidateGraph(request->graph(), RegistryCatalog(core_.registry), request->dependencies());
    reactor->Finish(grpc::Status::OK);
    core_.gate.Leave(1);
  });
  if (posted.ok()) return reactor;
  core_.gate.Leave(1);
  return refuse(posted);
}

grpc::ServerWriteReactor<v1::RunGraphResponse>* GraphsService::Run(
    grpc::CallbackServerContext* context, const v1::RunGraphRequest* request) {
  return StartWriteCall<GraphRunStream>(*context, checker_, *request);
}

}  // namespace resident
