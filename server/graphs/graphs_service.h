// GraphsService: resident.v1.Graphs.
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPHS_SERVICE_H_
#define RESIDENT_SERVER_GRAPHS_GRAPHS_SERVICE_H_

#include "resident/v1/graphs.grpc.pb.h"
#include "server/graphs/graph_session_calls.h"
#include "server/graphs/graphs.h"
#include "server/rpc/unary_call.h"

namespace resident {

class GraphsService final : public v1::Graphs::CallbackService {
 public:
  explicit GraphsService(Graphs& graphs);
  ~GraphsService() override;

  grpc::ServerUnaryReactor* Validate(grpc::CallbackServerContext* context,
                                     const v1::ValidateGraphRequest* request,
                                     v1::ValidateGraphResponse* response) override;
  grpc::ServerUnaryReactor* Render(grpc::CallbackServerContext* context,
                                   const v1::RenderGraphRequest* request,
                                   v1::RenderGraphResponse* response) override;
  grpc::ServerWriteReactor<v1::RunGraphResponse>* Run(grpc::CallbackServerContext* context,
                                                      const v1::RunGraphRequest* request) override;

  grpc::ServerUnaryReactor* Load(grpc::CallbackServerContext* context,
                                 const v1::LoadGraphRequest* request,
                                 v1::LoadGraphResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const v1::ListGraphsRequest* request,
                                 v1::ListGraphsResponse* response) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const v1::DescribeGraphRequest* request,
                                     v1::DescribeGraphResponse* response) override;
  grpc::ServerUnaryReactor* Unload(grpc::CallbackServerContext* context,
                                   const v1::UnloadGraphRequest* request,
                                   v1::UnloadGraphResponse* response) override;

  grpc::ServerUnaryReactor* OpenSession(grpc::CallbackServerContext* context,
                                        const v1::OpenGraphSessionRequest* request,
                                        v1::OpenGraphSessionResponse* response) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const v1::ForkGraphSessionRequest* request,
                                        v1::ForkGraphSessionResponse* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseGraphSessionRequest* request,
                                         v1::CloseGraphSessionResponse* response) override;
  grpc::ServerUnaryReactor* DescribeSession(grpc::CallbackServerContext* context,
                                            const v1::DescribeGraphSessionRequest* request,
                                            v1::DescribeGraphSessionResponse* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const v1::ListGraphSessionsRequest* request,
                                         v1::ListGraphSessionsResponse* response) override;

 private:
  // Answers with the result of `work`, which checks a graph and ends when the call does.
  absl::Status PostCheck(UnaryCall& call, const grpc::CallbackServerContext& context,
                         GraphChecker::Work work);
  absl::Status DoLoad(const GraphStore::Caller& caller, const v1::Graph& graph,
                      graph::CheckBudget& budget, v1::LoadGraphResponse& response);

  Core& core_;
  Graphs& graphs_;
  GraphSessionCalls sessions_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPHS_SERVICE_H_
