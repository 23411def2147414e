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
#include "server/rpc/checked_call.h"
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

GraphsService::GraphsService(Core& core) : core_(core), checker_(core), sessions_(checker_) {}
GraphsService::~GraphsService() = default;

absl::StatusOr<GraphChecker::Caller> GraphsService::FindCaller(
    const grpc::CallbackServerContext& context) const {
  ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(context, core_));
  return GraphChecker::Caller{.holder = NameHolder(*identity->account(), context.peer()),
                              .deadline = ReadDeadline(context, core_.time.Now())};
}

grpc::ServerUnaryReactor* GraphsService::Validate(grpc::CallbackServerContext* context,
                                                  const v1::ValidateGraphRequest* request,
                                                  v1::ValidateGraphResponse* response) {
  if (!request->has_graph()) return FinishNow(*context, errors::NoGraph());
  auto* const call = new CheckedCall(checker_);
  call->Start(FindCaller(*context), [this, request, response](graph::CheckBudget& budget) {
    *response->mutable_report() =
        ValidateGraph(request->graph(), RegistryCatalog(core_.registry), request->dependencies(),
                      FindDeviceLimit(core_), &budget);
    return absl::OkStatus();
  });
  return call;
}

grpc::ServerUnaryReactor* GraphsService::Render(grpc::CallbackServerContext* context,
                                                const v1::RenderGraphRequest* request,
                                                v1::RenderGraphResponse* response) {
  if (absl::Status checked = CheckRender(*request); !checked.ok()) {
    return FinishNow(*context, checked);
  }
  auto* const call = new CheckedCall(checker_);
  call->Start(FindCaller(*context), [this, request, response](graph::CheckBudget& budget) {
    return RenderGraph(*request, RegistryCatalog(core_.registry), budget, response);
  });
  return call;
}

grpc::ServerWriteReactor<v1::RunGraphResponse>* GraphsService::Run(
    grpc::CallbackServerContext* context, const v1::RunGraphRequest* request) {
  return StartWriteCall<GraphRunStream>(*context, checker_, *request);
}

// --- Loaded graphs ---------------------------------------------------------------

absl::Status GraphsService::DoLoad(const GraphStore::Caller& caller, const v1::Graph& message,
                                   graph::CheckBudget& budget, v1::LoadGraphResponse& response) {
  LoadedGraph::Revisions revisions = LoadedGraph::ReadRevisions(message, core_.registry);
  graph::Findings findings;
  graph::Graph graph = ReadGraph(message, RegistryCatalog(core_.registry), &findings, &budget);
  graph::GraphCheck check = graph::CheckGraph(graph, &findings, FindDeviceLimit(core_), &budget);
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
  const GraphStore::Caller holder{(*identity)->name(),
                                  NameHolder(*(*identity)->account(), context->peer())};
  auto* const call = new CheckedCall(checker_);
  call->Start(FindCaller(*context), [this, request, response, holder](graph::CheckBudget& budget) {
    return DoLoad(holder, request->graph(), budget, *response);
  });
  return call;
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
