// GraphRun: one execution of a graph, as batches of one task each, so that a run takes its client's
// turn among all other work, and deadlines and engines that end are treated as those of any other
// task. Steps are executed in one of two ways:
//
//   in quanta      The engine executes nodes and steps by itself for a few milliseconds, as one
//                  task (server/graphs/graph_quanta.h).
//   node by node   Each node is a task, submitted once the nodes that it waits for have ended: on
//                  engines that do not execute graphs, and in steps for which a version on trial
//                  has to run beside the active one.
//
//   memory set ─┬─▶ a quantum of steps ─────────────────────────────┬──▶ outputs read ──▶ ended
//               ├─▶ nodes of a step ──▶ records and stop value read ─┤
//               └───────────────────── next step ◀───────────────────┘
//
// A task that fails, Cancel, and the deadline end the run: tasks that wait are withdrawn, a quantum
// in the ring is aborted, and the run ends when the tasks in the ring have ended.
//
// Invariants:
//   1. `on_end` is called exactly once, after the last batch has been answered. Its memory on the
//      device has been freed by then.
//   2. A step begins only while the client has not taken fewer than `max_unsent_` steps, so that a
//      client that does not read makes the daemon hold about kMaxUnsentBytes. In a run that is
//      traced, a quantum begins only when the client has taken everything, so that the daemon holds
//      the trace of one quantum.
//
// Thread safety: all members may be called from any thread. Callbacks are called without mu_ held,
// one after the other.
//
//   auto run = std::make_shared<GraphRun>(graphs, client, checked);
//   run->Start(request, std::nullopt, deadline, on_event, on_end);
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_RUN_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_RUN_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/memory.h"
#include "server/graphs/graph_binding.h"
#include "server/graphs/graph_quanta.h"
#include "server/graphs/graph_tasks.h"
#include "server/graphs/graphs.h"
#include "server/workload/workload.h"

namespace resident {

class GraphRun : public std::enable_shared_from_this<GraphRun> {
 public:
  // Records of a step, or a trace.
  using OnEvent = std::function<void(v1::RunGraphResponse event)>;
  using OnEnd = std::function<void(absl::StatusOr<v1::GraphResult> result)>;

  // Steps, and bytes of their records, that the client has not taken; at least one step.
  static constexpr uint32_t kMaxUnsentSteps = 1024;
  static constexpr uint64_t kMaxUnsentBytes = 8u << 20;
  // Tasks of a run that are submitted at one time.
  static constexpr size_t kMaxSubmitted = 64;

  // `client`: that of a session, or of a connection without one, unless the run uses a graph
  // session.
  GraphRun(Graphs& graphs, std::shared_ptr<Client> client,
           std::shared_ptr<const graph::CheckedGraph> checked)
      : graphs_(graphs),
        core_(graphs.core),
        client_(std::move(client)),
        checked_(std::move(checked)),
        graph_(checked_->graph),
        order_(checked_->order) {}

  // Takes the bindings' data out of `request`. `session`: what the run's graph session holds, if it
  // has one. Also errors that are found at once are reported by `on_end`.
  void Start(v1::RunGraphRequest& request, std::optional<GraphSessionState> session,
             Clock::time_point deadline, OnEvent on_event, OnEnd on_end);
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // The client has taken an event.
  void EventSent() ABSL_LOCKS_EXCLUDED(mu_);
  // What the run leaves to the next one in its session. REQUIRES: `on_end` was called.
  GraphRunLeft left() const ABSL_LOCKS_EXCLUDED(mu_);
  // The charge of the daemon's memory, for the answers that are not yet written. REQUIRES: `on_end`
  // was called.
  Budget::Charge TakeHostCharge() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Phase { kSetup, kQuantum, kNodes, kRecords, kOutputs, kEnded };
  // A task that was submitted.
  struct Call {
    explicit Call(Admission& admission) : wait(admission) {}

    Phase phase = Phase::kSetup;
    // Index in the phase's items.
    uint32_t item = 0;
    // The batch of a node, or of a tensor that is read.
    v1::Batch message;
    std::unique_ptr<Workload> work;
    Admission::Wait wait;
    // Set from its launch until it is answered.
    std::shared_ptr<RequestBatch> batch;
    // The `work` of a quantum, also after that was moved to the batch.
    const QuantumWorkload* quantum = nullptr;
    // Whether its batch was taken by the queue, so that it has its staging memory until the answer.
    bool launched = false;
  };
  using Calls = std::vector<std::shared_ptr<Call>>;
  // The number of nodes that each version of an operator executed.
  using VersionCounts = std::map<std::pair<std::string, uint32_t>, uint64_t>;
  using VersionMessages = google::protobuf::RepeatedPtrField<v1::GraphVersion>;

  // The parts of Start, in its order.
  absl::Status Prepare(v1::RunGraphRequest& request);
  absl::Status CheckRights() const;
  absl::Status SetScalars(const v1::RunGraphRequest& request);
  absl::Status BindMemory(v1::RunGraphRequest& request);
  // Takes the daemon's memory that the run needs until it ends, with `quanta_bytes` for quanta.
  absl::Status TakeHostMemory(uint64_t quanta_bytes);
  // Allocates the run's own memory, and chooses its device. `needs`: set to what the run needs.
  absl::Status AllocateRest(GraphMemory& memory, graph::MemorySum& needs);
  // Lowers the graph, if its device can execute it, and allocates memory for its image. `needs`:
  // what the run needs beside that.
  absl::Status MakeQuanta(const graph::StreamRecords& records, const GraphMemory& memory,
                          graph::MemorySum& needs);
  // Frees a buffer of the run; 0: none.
  void FreeMemory(uint64_t* buffer, ClientId access);

  // The number of tasks of a phase, and one of them.
  size_t CountItems(Phase phase) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::unique_ptr<Workload> MakeCopy(uint32_t item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Batch MakeBatch(Phase phase, uint32_t item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Begin(Phase phase) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins the phases that follow, until one has tasks, the run must wait for the client to take
  // events, or it has ended.
  void BeginNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MustWaitForClient() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return unsent_ >= (trace_ ? 1 : max_unsent_);
  }
  Phase NextPhase() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why no further step follows; END_UNSPECIFIED: one follows, and the scalars have its values.
  v1::GraphResult::End AdvanceStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeResult(const Call& call, const RequestBatch& batch, v1::BatchResult& result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeStopValue(const std::string& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How the next step is executed.
  Phase StepPhase() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return quanta_ != nullptr ? Phase::kQuantum : Phase::kNodes;
  }
  // Reports the records of the present step, and begins the next one.
  void EndStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets the next step that is reported name these versions, unless the client knows that they
  // executed it. REQUIRES: they do not change before that step ends.
  void ReportVersions(VersionCounts versions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts the versions that execute each step of the last quantum.
  VersionCounts CountQuantumVersions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void AddVersions(const VersionCounts& versions, VersionMessages* messages);
  // What a quantum did until it ended, also if a node failed.
  void TakeQuantum(const QuantumWorkload& work, const QuantumReport& report,
                   const RequestBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeTrace(const QuantumWorkload& work, const QuantumReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::GraphStep ReadRecords(const QuantumWorkload& work, uint32_t step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A quantum did not end OK.
  absl::Status DescribeQuantumError(const QuantumReport& report, RequestBatch& batch)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return started_ && submitted_.empty() && (phase_ == Phase::kEnded || !failed_.ok());
  }
  absl::StatusOr<v1::GraphResult> TakeEnd() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Withdraws everything that is not in the ring.
  void Fail(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Calls TakeReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Submits what is ready, and reports what there is to report.
  void Continue() ABSL_LOCKS_EXCLUDED(mu_);
  void Report() ABSL_LOCKS_EXCLUDED(mu_);
  // Continue on another thread, for callers that may hold locks which the callbacks need.
  void ContinueLater();
  void Submit(const std::shared_ptr<Call>& call) ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the work of a call, and checks it. False: it is a quantum, and the step has to run node by
  // node.
  absl::StatusOr<bool> MakeWork(Call& call) ABSL_LOCKS_EXCLUDED(mu_);
  void Admit(const std::shared_ptr<Call>& call, absl::StatusOr<Ticket> ticket)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Answer(const std::shared_ptr<Call>& call, RequestBatch& batch) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a quantum that is in flight.
  void Abort(const Call& call) const;
  // The call did not run.
  void Refuse(const std::shared_ptr<Call>& call, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // A quantum that did not run has not begun a step.
  void NoteNotRun(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (call.phase == Phase::kQuantum && quanta_ != nullptr) in_step_ = quanta_->in_step();
  }
  // `version`: the one that executed the node; 0: none was chosen.
  absl::Status DescribeError(const Call& call, absl::StatusCode code, uint32_t version,
                             const std::string& what) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status DescribeNodeError(uint32_t node, absl::StatusCode code, uint32_t version,
                                 uint64_t step, const std::string& what) const;

  Graphs& graphs_;
  Core& core_;
  const std::shared_ptr<Client> client_;
  const std::shared_ptr<const graph::CheckedGraph> checked_;
  const graph::Graph& graph_;
  const graph::Dependencies& order_;
  // The nodes that wait for each node: waiting_[waiting_ends_[n - 1], waiting_ends_[n]).
  std::vector<uint32_t> waiting_;
  std::vector<uint64_t> waiting_ends_;
  // Set by Start.
  std::optional<GraphSessionState> session_;
  Clock::time_point deadline_;
  OnEvent on_event_;
  OnEnd on_end_;
  uint64_t max_steps_ = 1;
  bool trace_ = false;
  uint32_t device_ = 0;
  std::unique_ptr<const GraphTasks> tasks_;
  // Null: all steps run node by node. Used by one call at a time.
  std::unique_ptr<GraphQuanta> quanta_;
  // The buffer of its image, which only the daemon can access, and the bytes that a task writes
  // there.
  uint64_t image_ = 0;
  uint64_t image_piece_ = 0;
  uint32_t max_unsent_ = kMaxUnsentSteps;
  Budget::Charge host_charge_;
  // The run's own memory; 0: none.
  uint64_t memory_ = 0;
  // Tensors whose contents are sent, and those that are cleared.
  std::vector<std::pair<uint32_t, std::string>> writes_;
  std::vector<uint32_t> clears_;
  // Tensors that are read after each step (the streams, then the stop tensor), and at the end.
  std::vector<uint32_t> streams_;
  std::vector<uint32_t> outputs_;
  // By row of graph_.operators: the nodes that call it.
  std::vector<uint64_t> nodes_of_operators_;

  mutable absl::Mutex mu_;
  // Whether Start has prepared the run; nothing is reported before.
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kSetup;
  // The scalars' values in the present step, and in the one that follows the complete steps.
  std::vector<double> values_ ABSL_GUARDED_BY(mu_);
  std::vector<double> next_values_ ABSL_GUARDED_BY(mu_);
  uint64_t complete_ ABSL_GUARDED_BY(mu_) = 0;
  // Whether a task of the step after them was submitted.
  bool in_step_ ABSL_GUARDED_BY(mu_) = false;
  // The phase's tasks that can be submitted, those that have not ended, and, by node, the nodes
  // that it still waits for.
  std::deque<uint32_t> ready_ ABSL_GUARDED_BY(mu_);
  size_t unfinished_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> blockers_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Call*, std::shared_ptr<Call>> submitted_ ABSL_GUARDED_BY(mu_);
  // Whether the next step waits for EventSent.
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  // Whether a thread calls the callbacks.
  bool reporting_ ABSL_GUARDED_BY(mu_) = false;
  // Events that were not reported yet, and the number of those that EventSent has not counted.
  std::deque<v1::RunGraphResponse> events_ ABSL_GUARDED_BY(mu_);
  uint32_t unsent_ ABSL_GUARDED_BY(mu_) = 0;
  // The present step's records.
  v1::GraphStep step_ ABSL_GUARDED_BY(mu_);
  // Whether the stop tensor has a stop value.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  VersionCounts versions_ ABSL_GUARDED_BY(mu_);
  // The versions of the present step's nodes that have ended, if it is executed node by node.
  VersionCounts step_versions_ ABSL_GUARDED_BY(mu_);
  // The versions of the last step that was reported, or of the next one if `new_versions_` is not
  // empty: then these are sent with it.
  VersionCounts reported_versions_ ABSL_GUARDED_BY(mu_);
  VersionMessages new_versions_ ABSL_GUARDED_BY(mu_);
  v1::GraphResult result_ ABSL_GUARDED_BY(mu_);
  uint64_t kept_trace_ ABSL_GUARDED_BY(mu_) = 0;  // See RecentTraces::Add.
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_RUN_H_
