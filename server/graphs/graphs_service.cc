#include "server/graphs/graphs_service.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "resident/v1/graphs.grpc.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/fuse.h"
#include "runtime/graph/limits.h"
#include "server/core/registry_catalog.h"
#include "server/core/status.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_memory.h"
#include "server/graphs/graph_messages.h"
#include "server/graphs/graph_render.h"
#include "server/graphs/graph_session_calls.h"
#include "server/graphs/graphs.h"
#include "server/rpc/call.h"
#include "server/rpc/unary_call.h"

namespace resident {
namespace {

class GraphsService final : public v1::Graphs::CallbackService {
 public:
  explicit GraphsService(Graphs& graphs) : core_(graphs.core), graphs_(graphs), sessions_(graphs) {}

  grpc::ServerUnaryReactor* Validate(grpc::CallbackServerContext* context,
                                     const v1::ValidateGraphRequest* request,
                                     v1::ValidateGraphResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) {
      if (!request->has_graph()) return errors::NoGraph();
      return PostCheck(call, *context, [this, request, response](graph::CheckBudget& budget) {
        *response->mutable_report() =
            ValidateGraph(request->graph(), RegistryCatalog(core_.registry),
                          request->dependencies(), FindDeviceLimit(graphs_.buffers), &budget);
        return absl::OkStatus();
      });
    });
  }

  grpc::ServerUnaryReactor* Render(grpc::CallbackServerContext* context,
                                   const v1::RenderGraphRequest* request,
                                   v1::RenderGraphResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      RETURN_IF_ERROR(CheckRender(*request));
      return PostCheck(call, *context, [this, request, response](graph::CheckBudget& budget) {
        return RenderGraph(*request, RegistryCatalog(core_.registry), budget, response);
      });
    });
  }

  grpc::ServerWriteReactor<v1::RunGraphResponse>* Run(grpc::CallbackServerContext* context,
                                                      const v1::RunGraphRequest* request) override {
    return StartGraphRun(*context, graphs_, *request);
  }

  // --- Loaded graphs ---------------------------------------------------------------

  grpc::ServerUnaryReactor* Load(grpc::CallbackServerContext* context,
                                 const v1::LoadGraphRequest* request,
                                 v1::LoadGraphResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      if (!request->has_graph()) return errors::NoGraph();
      const auto nodes = static_cast<uint64_t>(request->graph().nodes_size());
      if (nodes > graph::kMaxRunNodes) return errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes);
      ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(*context, core_));
      GraphStore::Caller holder{identity->name(),
                                NameHolder(*identity->account(), context->peer())};
      return PostCheck(
          call, *context,
          [this, request, response, holder = std::move(holder)](graph::CheckBudget& budget) {
            return DoLoad(holder, request->graph(), budget, *response);
          });
    });
  }

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListGraphsRequest*,
                                 v1::ListGraphsResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(*context, core_));
      for (const auto& graph : graphs_.store.List()) {
        graphs_.Describe(*graph, Viewer::Of(*identity), response->add_graphs());
      }
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeGraphRequest* request,
                                     v1::DescribeGraphResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall&) -> absl::Status {
      ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(*context, core_));
      ASSIGN_OR_RETURN(const auto graph, graphs_.store.Find(request->graph_id()));
      graphs_.Describe(*graph, Viewer::Of(*identity), response->mutable_loaded());
      response->mutable_graph()->ParseFromString(graph->content());
      return absl::OkStatus();
    });
  }

  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context,
                                   const v1::UnloadGraphRequest* request,
                                   v1::UnloadGraphResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
      ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(*context, core_));
      if (request->for_all() && !MaySeeOthers(*identity)) {
        return errors::UnloadForAllNeedsAdmin(identity->name());
      }
      return call.Post(
          core_.pools.disk, [this, request, response, caller = identity->name()]() -> absl::Status {
            ASSIGN_OR_RETURN(const bool removed,
                             graphs_.store.Unload(request->graph_id(), caller, request->for_all()));
            response->set_removed(removed);
            return absl::OkStatus();
          });
    });
  }

  // --- Graph sessions --------------------------------------------------------------

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenGraphSessionRequest* request,
                                        v1::OpenGraphSessionResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) {
      return sessions_.Open(call, *context, *request, *response);
    });
  }

  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const v1::ForkGraphSessionRequest* request,
                                        v1::ForkGraphSessionResponse* response) override {
    return UnaryCall::Serve(*context, [&](UnaryCall& call) {
      return sessions_.Fork(call, *context, *request, *response);
    });
  }

  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseGraphSessionRequest* request,
                                         v1::CloseGraphSessionResponse*) override {
    return UnaryCall::Serve(*context,
                            [&](UnaryCall&) { return sessions_.Close(*context, *request); });
  }

  grpc::ServerUnaryReactor* DescribeSession(grpc::CallbackServerContext* context,
                                            const v1::DescribeGraphSessionRequest* request,
                                            v1::DescribeGraphSessionResponse* response) override {
    return UnaryCall::Serve(
        *context, [&](UnaryCall&) { return sessions_.Describe(*context, *request, *response); });
  }

  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListGraphSessionsRequest*,
                                         v1::ListGraphSessionsResponse* response) override {
    return UnaryCall::Serve(*context,
                            [&](UnaryCall&) { return sessions_.List(*context, *response); });
  }

 private:
  // Answers with the result of `work`, which checks a graph and ends when the call does.
  absl::Status PostCheck(UnaryCall& call, const grpc::CallbackServerContext& context,
                         GraphChecker::Work work) {
    ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(context, core_));
    RETURN_IF_ERROR(call.Enter(core_.gate));
    GraphChecker::Caller caller{.holder = NameHolder(*identity->account(), context.peer()),
                                .deadline = ReadDeadline(context, core_.time.Now())};
    return graphs_.checker.PostFor(
        call, std::move(caller), std::move(work),
        [answer = call.Defer()](const absl::Status& status) { answer->Finish(status); });
  }

  absl::Status DoLoad(const GraphStore::Caller& caller, const v1::Graph& message,
                      graph::CheckBudget& budget, v1::LoadGraphResponse& response) {
    LoadedGraph::Revisions revisions = LoadedGraph::ReadRevisions(message, core_.registry);
    graph::Findings findings;
    graph::Graph graph = ReadGraph(message, RegistryCatalog(core_.registry), &findings, &budget);
    graph::GraphCheck check =
        graph::CheckGraph(graph, &findings, FindDeviceLimit(graphs_.buffers), &budget);
    FillGraphReport(graph, check, findings, /*dependencies=*/false, budget,
                    response.mutable_report());
    if (!check.accepted) return absl::OkStatus();
    if (check.order->size() > graph::kMaxRunDependencies) {
      return errors::TooManyDependenciesToRun(check.order->size(), graph::kMaxRunDependencies);
    }
    graph::CheckedGraph checked = {std::move(graph), *std::move(check.order)};
    graph::Fuse(RegistryCatalog(core_.registry), &checked, &budget);
    FillFusions(checked, response.mutable_report());
    ASSIGN_OR_RETURN(const GraphStore::Added added,
                     graphs_.store.Load(caller, message, std::move(checked), std::move(revisions)));
    response.set_graph_id(added.graph->id());
    response.set_already_loaded(added.already_loaded);
    return absl::OkStatus();
  }

  Core& core_;
  Graphs& graphs_;
  GraphSessionCalls sessions_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGraphsService(Graphs& graphs) {
  return std::make_unique<GraphsService>(graphs);
}

}  // namespace resident
