// GraphSessionCalls: the calls of resident.v1.Graphs that open, copy, close and list graph
// sessions: their handlers (unary_call.h).
//
// Thread safety: gRPC makes calls from any thread.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_SESSION_CALLS_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_SESSION_CALLS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "resident/v1/graphs.pb.h"
#include "server/core/core.h"
#include "server/graphs/graphs.h"
#include "server/rpc/unary_call.h"
#include "server/workload/workload.h"

namespace resident {

// TaskChain: executes a client's tasks, one after the other, and calls back when the last one has
// ended or one has failed. For work that prepares memory; a graph's run has its own scheduler
// (graph_run.h).
//
// Thread safety: Start is called once; the callback is called once, from any thread.
//
//   std::make_shared<TaskChain>(core, client, std::move(tasks), deadline, done)->Start();
class TaskChain : public std::enable_shared_from_this<TaskChain> {
 public:
  using Done = std::function<void(const absl::Status& status)>;

  // `tasks`: batches of one task that are not checked yet: each is when its turn comes.
  TaskChain(Core& core, std::shared_ptr<Client> client,
            std::vector<std::unique_ptr<Workload>> tasks, Clock::time_point deadline, Done done)
      : core_(core),
        client_(std::move(client)),
        tasks_(std::move(tasks)),
        deadline_(deadline),
        done_(std::move(done)),
        wait_(core.admission) {}

  void Start() { Next(); }

 private:
  void Next();
  void Admit(absl::StatusOr<Ticket> ticket);
  void Answer(RequestBatch& batch);
  void End(const absl::Status& status);

  Core& core_;
  const std::shared_ptr<Client> client_;
  std::vector<std::unique_ptr<Workload>> tasks_;  // Null: its turn has come.
  const Clock::time_point deadline_;
  Done done_;
  Admission::Wait wait_;
  size_t next_ = 0;
};

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
