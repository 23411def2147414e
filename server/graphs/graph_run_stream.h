// GraphRunStream: one Graphs.Run: checks the graph, or finds the loaded one, runs it, and sends
// what the run reports. In a graph session, it takes what the run leaves back into the session.
//
// Thread safety: see BidiStream. mu_ may be held when the run's mutex is locked, never the reverse.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_RUN_STREAM_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_RUN_STREAM_H_

#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "resident/v1/graphs.pb.h"
#include "server/graphs/graph_run.h"
#include "server/graphs/graphs.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class GraphRunStream final : public BidiStream<NoMessage, v1::RunGraphResponse> {
 public:
  GraphRunStream(Transport& transport, Graphs& graphs)
      : BidiStream(transport, graphs.core), graphs_(graphs), checker_(graphs.checker) {}
  void Open(const grpc::CallbackServerContext& context, const v1::RunGraphRequest& request);

  // A run would lack tickets from then on.
  bool ends_at_drain() const override { return true; }

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return run_ != nullptr; }

  absl::Status Enter(const grpc::CallbackServerContext& context,
                     const v1::RunGraphRequest& request);
  // Checks the graph on a thread of the checker, unless it is checked, and lets OnChecked run.
  void PostCheck(const grpc::CallbackServerContext& context) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets checked_.
  absl::Status CheckGraph(graph::CheckBudget& budget);
  void OnChecked(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Starts the run. REQUIRES: it has its session, if there is one.
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TakeSession(std::optional<GraphSessionState>* state);
  // `charge`: of the response and of those before it, until it is written or dropped.
  void Send(v1::RunGraphResponse response, Budget::Charge charge = {}) ABSL_LOCKS_EXCLUDED(mu_);
  void EndUse(const GraphRun& run, absl::StatusOr<v1::GraphResult>& result);
  void OnRunEnd(absl::StatusOr<v1::GraphResult> result) ABSL_LOCKS_EXCLUDED(mu_);

  Graphs& graphs_;
  GraphChecker& checker_;
  DrainGate::Entry entry_;
  SharedSlots::Ticket slot_;
  std::shared_ptr<Client> client_;
  v1::RunGraphRequest request_;
  // For a run of a loaded graph, and of one in a graph session; otherwise null.
  std::shared_ptr<LoadedGraph> loaded_;
  std::shared_ptr<GraphSession> session_;
  GraphSessionUse use_;
  // Null once it has been answered.
  std::shared_ptr<GraphChecker::Check> check_ ABSL_GUARDED_BY(mu_);
  LoadedGraph::Checked checked_;
  Clock::time_point deadline_;
  std::shared_ptr<GraphRun> run_ ABSL_GUARDED_BY(mu_);
  grpc::Alarm deadline_alarm_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_RUN_STREAM_H_
