// GraphSessionCalls: the calls of resident.v1.Graphs that open, copy, close and list graph
// sessions: their handlers (unary_call.h).
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_SESSION_CALLS_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_SESSION_CALLS_H_

#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "resident/v1/graphs.pb.h"
#include "server/core/core.h"
#include "server/graphs/graphs.h"
#include "server/rpc/unary_call.h"

namespace resident {

// FAILED_PRECONDITION: the engine with the session's states has ended.
absl::Status CheckStates(const Core& core, const GraphSession& session);

class GraphSessionCalls {
 public:
  explicit GraphSessionCalls(Graphs& graphs) : core_(graphs.core), graphs_(graphs) {}

  absl::Status Open(UnaryCall& call, const grpc::CallbackServerContext& context,
                    const v1::OpenGraphSessionRequest& request,
                    v1::OpenGraphSessionResponse& response);
  absl::Status Fork(UnaryCall& call, const grpc::CallbackServerContext& context,
                    const v1::ForkGraphSessionRequest& request,
                    v1::ForkGraphSessionResponse& response);
  absl::Status Close(const grpc::CallbackServerContext& context,
                     const v1::CloseGraphSessionRequest& request);
  absl::Status Describe(const grpc::CallbackServerContext& context,
                        const v1::DescribeGraphSessionRequest& request,
                        v1::DescribeGraphSessionResponse& response);
  absl::Status List(const grpc::CallbackServerContext& context,
                    v1::ListGraphSessionsResponse& response);

 private:
  Core& core_;
  Graphs& graphs_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_SESSION_CALLS_H_
