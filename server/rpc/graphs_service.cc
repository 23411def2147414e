#include "server/rpc/graphs_service.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/graph_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/limits.h"
#include "server/rpc/call.h"
#include "server/rpc/graph_memory.h"
#include "server/rpc/graph_messages.h"
#include "server/rpc/graph_render.h"
#include "server/rpc/graph_run_stream.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/listings.h"
#include "server/rpc/registry_catalog.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

grpc::ServerUnaryReactor* FinishNow(grpc::CallbackServerContext& context,
                                    const absl::Status& status) {
  auto* const reactor = context.DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

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
    *response->mutable_report() = ValidateGraph(request->graph(), RegistryCatalog(core_.registry),
                                                request->dependencies(), FindDeviceLimit(core_));
    reactor->Finish(grpc::Status::OK);
    core_.gate.Leave(1);
  });
  if (posted.ok()) return reactor;
  core_.gate.Leave(1);
  return refuse(posted);
}

grpc::ServerUnaryReactor* GraphsService::Render(grpc::CallbackServerContext* context,
                                                const v1::RenderGraphRequest* request,
                                                v1::RenderGraphResponse* response) {
  auto* const reactor = context->DefaultReactor();
  const auto refuse = [&](const absl::Status& why) {
    reactor->Finish(ToGrpc(why));
    return reactor;
  };
  if (absl::Status checked = CheckRender(*request); !checked.ok()) return refuse(checked);
  if (!core_.gate.Enter(1)) return refuse(errors::Draining());
  const absl::Status posted = checker_.Post([this, reactor, request, response] {
    reactor->Finish(ToGrpc(RenderGraph(*request, RegistryCatalog(core_.registry), response)));
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

// --- Loaded graphs ---------------------------------------------------------------

absl::Status GraphsService::DoLoad(const GraphStore::Caller& caller, const v1::Graph& message,
                                   v1::LoadGraphResponse& response) {
  LoadedGraph::Revisions revisions = LoadedGraph::ReadRevisions(message, core_.registry);
  graph::Findings findings;
  graph::Graph graph = ReadGraph(message, RegistryCatalog(core_.registry), &findings);
  graph::GraphCheck check = graph::CheckGraph(graph, &findings, FindDeviceLimit(core_));
  FillGraphReport(graph, check, findings, /*dependencies=*/false, response.mutable_report());
  if (!check.accepted) return absl::OkStatus();
  if (check.order->size() > graph::kMaxRunDependencies) {
    return errors::TooManyDependenciesToRun(check.order->size(), graph::kMaxRunDependencies);
  }
  ASSIGN_OR_RETURN(const GraphStore::Added added,
                   core_.graphs.Load(caller, message, {std::move(graph), *std::move(check.order)},
                                     std::move(revisions)));
  response.set_graph_id(added.graph->id());
  response.set_already_loaded(added.already_loaded);
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* GraphsService::Load(grpc::CallbackServerContext* context,
                                              const v1::LoadGraphRequest* request,
                                              v1::LoadGraphResponse* response) {
  if (!request->has_graph()) return FinishNow(*context, errors::NoGraph());
  const auto nodes = static_cast<uint64_t>(request->graph().nodes_size());
  if (nodes > graph::kMaxRunNodes) {
    return FinishNow(*context, errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes));
  }
  const auto identity = IdentifyCaller(*context, core_);
  if (!identity.ok()) return FinishNow(*context, identity.status());
  GraphStore::Caller caller{(*identity)->name(),
                            NameHolder(*(*identity)->account(), context->peer())};
  if (!core_.gate.Enter(1)) return FinishNow(*context, errors::Draining());
  auto* const reactor = context->DefaultReactor();
  const absl::Status posted =
      checker_.Post([this, reactor, request, response, caller = std::move(caller)] {
        const absl::Status status = DoLoad(caller, request->graph(), *response);
        core_.gate.Leave(1);
        reactor->Finish(ToGrpc(status));
      });
  if (posted.ok()) return reactor;
  core_.gate.Leave(1);
  reactor->Finish(ToGrpc(posted));
  return reactor;
}

grpc::ServerUnaryReactor* GraphsService::List(grpc::CallbackServerContext* context,
                                              const v1::ListGraphsRequest*,
                                              v1::ListGraphsResponse* response) {
  const auto identity = IdentifyCaller(*context, core_);
  if (identity.ok()) {
    for (const auto& graph : core_.graphs.List()) {
      FillLoadedGraph(core_, *graph, Viewer::Of(**identity), response->add_graphs());
    }
  }
  return FinishNow(*context, identity.status());
}

grpc::ServerUnaryReactor* GraphsService::Describe(grpc::CallbackServerContext* context,
                                                  const v1::DescribeGraphRequest* request,
                                                  v1::DescribeGraphResponse* response) {
  const auto identity = IdentifyCaller(*context, core_);
  if (!identity.ok()) return FinishNow(*context, identity.status());
  const auto graph = core_.graphs.Find(request->graph_id());
  if (!graph.ok()) return FinishNow(*context, graph.status());
  FillLoadedGraph(core_, **graph, Viewer::Of(**identity), response->mutable_loaded());
  response->mutable_graph()->ParseFromString((*graph)->content());
  return FinishNow(*context, absl::OkStatus());
}

grpc::ServerUnaryReactor* GraphsService::Unload(grpc::CallbackServerContext* context,
                                                const v1::UnloadGraphRequest* request,
                                                v1::UnloadGraphResponse* response) {
  const auto identity = IdentifyCaller(*context, core_);
  if (!identity.ok()) return FinishNow(*context, identity.status());
  if (request->for_all() && !MaySeeOthers(**identity)) {
    return FinishNow(*context, errors::UnloadForAllNeedsAdmin((*identity)->name()));
  }
  auto* const reactor = context->DefaultReactor();
  core_.pools.disk.Post([this, reactor, request, response, caller = (*identity)->name()] {
    const absl::StatusOr<bool> removed =
        core_.graphs.Unload(request->graph_id(), caller, request->for_all());
    if (removed.ok()) response->set_removed(*removed);
    reactor->Finish(ToGrpc(removed.status()));
  });
  return reactor;
}

// --- Graph sessions --------------------------------------------------------------

grpc::ServerUnaryReactor* GraphsService::OpenSession(grpc::CallbackServerContext* context,
                                                     const v1::OpenGraphSessionRequest* request,
                                                     v1::OpenGraphSessionResponse* response) {
  return sessions_.Open(*context, *request, *response);
}

grpc::ServerUnaryReactor* GraphsService::ForkSession(grpc::CallbackServerContext* context,
                                                     const v1::ForkGraphSessionRequest* request,
                                                     v1::ForkGraphSessionResponse* response) {
  return sessions_.Fork(*context, *request, *response);
}

grpc::ServerUnaryReactor* GraphsService::CloseSession(grpc::CallbackServerContext* context,
                                                      const v1::CloseGraphSessionRequest* request,
                                                      v1::CloseGraphSessionResponse*) {
  return FinishNow(*context, sessions_.Close(*context, *request));
}

grpc::ServerUnaryReactor* GraphsService::DescribeSession(
    grpc::CallbackServerContext* context, const v1::DescribeGraphSessionRequest* request,
    v1::DescribeGraphSessionResponse* response) {
  return FinishNow(*context, sessions_.Describe(*context, *request, *response));
}

grpc::ServerUnaryReactor* GraphsService::ListSessions(grpc::CallbackServerContext* context,
                                                      const v1::ListGraphSessionsRequest*,
                                                      v1::ListGraphSessionsResponse* response) {
  return FinishNow(*context, sessions_.List(*context, *response));
}

}  // namespace resident
