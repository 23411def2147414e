// GraphRunStream: one Graphs.Run: checks the graph, or finds the loaded one, runs it, and sends
// what the run reports. In a graph session, it takes what the run leaves back into the session.
//
// Thread safety: see BidiStream. mu_ may be held when the run's mutex is locked, never the reverse.
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/fuse.h"
#include "runtime/graph/limits.h"
#include "server/core/registry_catalog.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_messages.h"
#include "server/graphs/graph_run.h"
#include "server/graphs/graph_session_calls.h"
#include "server/graphs/graphs.h"
#include "server/graphs/graphs_service.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"

namespace resident {
namespace {

class GraphRunStream final : public BidiStream<NoMessage, v1::RunGraphResponse> {
 public:
  GraphRunStream(Transport& transport, Graphs& graphs)
      : BidiStream(transport, graphs.core), graphs_(graphs), checker_(graphs.checker) {}
  void Open(const grpc::CallbackServerContext& context, const v1::RunGraphRequest& request) {
    Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Graphs/Run"));
    const absl::Status entered = Enter(context, request);
    if (entered.ok()) return PostCheck(context);
    absl::MutexLock lock(&mu_);
    Conclude(entered);
  }

  // A run would lack tickets from then on.
  bool ends_at_drain() const override { return true; }

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (run_ != nullptr) run_->EventSent();
  }

  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (check_ != nullptr) checker_.Cancel(check_);
    if (run_ != nullptr) {
      run_->Cancel(status);
    } else if (session_ != nullptr) {
      use_.Leave(*session_);
    }
    DropUnread();
    Conclude(status);
  }

  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return run_ != nullptr; }

  absl::Status Enter(const grpc::CallbackServerContext& context,
                     const v1::RunGraphRequest& request) {
    if (request.source_case() == v1::RunGraphRequest::SOURCE_NOT_SET) return errors::NoGraph();
    const auto nodes = static_cast<uint64_t>(request.graph().nodes_size());
    if (nodes > graph::kMaxRunNodes) return errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes);
    const bool in_session = request.source_case() == v1::RunGraphRequest::kGraphSession;
    ASSIGN_OR_RETURN(client_,
                     in_session ? FindSessionClient(context, core_) : FindClient(context, core_));
    if (request.source_case() == v1::RunGraphRequest::kGraphId) {
      ASSIGN_OR_RETURN(loaded_, graphs_.store.Find(request.graph_id()));
    } else if (in_session) {
      ASSIGN_OR_RETURN(session_, graphs_.sessions.Find(client_->id(), request.graph_session()));
      loaded_ = session_->graph();
    }
    ASSIGN_OR_RETURN(slot_,
                     checker_.run_slots().Take(NameHolder(client_->account(), context.peer())));
    ASSIGN_OR_RETURN(entry_, core_.gate.Enter(1));
    v1::BatchOptions options;
    options.set_timeout_us(request.timeout_us());
    const Clock::time_point now = core_.time.Now();
    deadline_ = BatchDeadline(options, ReadDeadline(context, now), now);
    request_ = request;
    if (deadline_ != Clock::time_point::max()) {
      // Also while the run waits for its client to read.
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - now);
      CallAfter(deadline_alarm_, std::max(left, std::chrono::milliseconds(0)),
                [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                  if (!ending()) OnEnd(errors::DeadlineExceeded());
                });
    }
    return absl::OkStatus();
  }

  // Checks the graph on a thread of the checker, unless it is checked, and lets OnChecked run.
  void PostCheck(const grpc::CallbackServerContext& context) ABSL_LOCKS_EXCLUDED(mu_) {
    if (loaded_ != nullptr) {
      absl::StatusOr<LoadedGraph::Checked> found = loaded_->FindChecked(core_.registry);
      if (!found.ok() || *found != nullptr) {
        const absl::Status status = found.status();
        if (status.ok()) checked_ = *std::move(found);
        return core_.runner.Post([self = Ref(this), status] { self->OnChecked(status); });
      }
    }
    const auto self = Ref(this);
    const auto check = checker_.Post(
        {.holder = NameHolder(client_->account(), context.peer()),
         .deadline = deadline_,
         .runs = true},
        [self](graph::CheckBudget& budget) { return self->CheckGraph(budget); },
        // Not on a thread of the checker: the run's preparation takes a while, too.
        [self](const absl::Status& status) {
          self->core_.runner.Post([self, status] { self->OnChecked(status); });
        });
    absl::MutexLock lock(&mu_);
    if (!check.ok()) {
      if (!ending()) Conclude(check.status());
    } else if (ending()) {
      checker_.Cancel(*check);
    } else {
      check_ = *check;
    }
  }

  // Sets checked_.
  absl::Status CheckGraph(graph::CheckBudget& budget) {
    if (loaded_ != nullptr) {
      ASSIGN_OR_RETURN(checked_, loaded_->FindChecked(core_.registry));
      if (checked_ == nullptr) {
        ASSIGN_OR_RETURN(checked_, loaded_->Check(core_.registry, budget));
      }
      return absl::OkStatus();
    }
    graph::Findings findings;
    graph::Graph graph =
        ReadGraph(request_.graph(), RegistryCatalog(core_.registry), &findings, &budget);
    graph::GraphCheck check = graph::CheckGraph(graph, &findings, {}, &budget);
    if (findings.errors() > 0) return GraphRefusal(findings);
    // The checker replaces this with the reason.
    if (!check.accepted) return errors::Cancelled();
    graph::CheckedGraph checked = {std::move(graph), *std::move(check.order)};
    graph::Fuse(RegistryCatalog(core_.registry), &checked, &budget);
    checked_ = std::make_shared<const graph::CheckedGraph>(std::move(checked));
    return absl::OkStatus();
  }

  void OnChecked(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      check_ = nullptr;
      if (ending()) return;
      if (!status.ok()) return Conclude(status);
      const bool has_session = session_ == nullptr || use_.Acquire(session_, [self = Ref(this)] {
        self->core_.runner.Post([self] { self->Start(); });
      });
      if (!has_session) return;
    }
    Start();
  }

  // Starts the run. REQUIRES: it has its session, if there is one.
  void Start() ABSL_LOCKS_EXCLUDED(mu_) {
    std::optional<GraphSessionState> state;
    const absl::Status taken = TakeSession(&state);
    const auto run = std::make_shared<GraphRun>(graphs_, client_, checked_);
    bool starts = false;
    {
      absl::MutexLock lock(&mu_);
      starts = taken.ok() && !ending();
      if (starts) run_ = run;
    }
    if (!starts) {
      // Before the client sees the end of the call.
      use_.End();
      absl::MutexLock lock(&mu_);
      if (!ending()) Conclude(taken);
      return;
    }
    request_.clear_graph();
    run->Start(
        request_, std::move(state), deadline_,
        [self = Ref(this)](v1::RunGraphResponse event) { self->Send(std::move(event)); },
        [self = Ref(this)](absl::StatusOr<v1::GraphResult> result) {
          self->OnRunEnd(std::move(result));
        });
  }

  absl::Status TakeSession(std::optional<GraphSessionState>* state) {
    if (session_ == nullptr) return absl::OkStatus();
    // The drain has ended the run before it, which may have interrupted the session.
    if (core_.gate.draining()) return errors::Draining();
    RETURN_IF_ERROR(CheckStates(core_, *session_));
    ASSIGN_OR_RETURN(*state, use_.Take(request_.repeat_interrupted()));
    return absl::OkStatus();
  }

  // `charge`: of the response and of those before it, until it is written or dropped.
  void Send(v1::RunGraphResponse response, Budget::Charge charge = {}) ABSL_LOCKS_EXCLUDED(mu_) {
    core_.counters.Sent(response.ByteSizeLong());
    absl::MutexLock lock(&mu_);
    // A run that was cancelled counts no events any more. The run is charged for its events.
    if (!ending()) Write(std::move(response), std::move(charge));
  }

  void EndUse(const GraphRun& run, absl::StatusOr<v1::GraphResult>& result) {
    const GraphRunLeft left = run.left();
    core_.counters.CountGraphRun(result.ok(), left.steps);
    if (loaded_ != nullptr) {
      loaded_->runs.fetch_add(1, std::memory_order_relaxed);
      loaded_->steps.fetch_add(left.steps, std::memory_order_relaxed);
    }
    if (session_ == nullptr) return;
    if (result.ok()) {
      const graph::Graph& graph = session_->checked()->graph;
      for (size_t i = 0; i < left.scalars.size(); ++i) {
        (*result->mutable_next_scalars())[std::string(graph.scalars[i].name)] = left.scalars[i];
      }
    }
    // Before the client sees the end of the run, so that it can run the session again.
    use_.End(left);
  }

  void OnRunEnd(absl::StatusOr<v1::GraphResult> result) ABSL_LOCKS_EXCLUDED(mu_) {
    std::shared_ptr<GraphRun> run;
    {
      absl::MutexLock lock(&mu_);
      run = std::exchange(run_, nullptr);  // The run refers to this object.
    }
    EndUse(*run, result);
    const absl::Status status = result.status();
    if (status.ok()) {
      v1::RunGraphResponse response;
      *response.mutable_result() = *std::move(result);
      // The run's own memory is free before the client reads, but not that of its answers.
      Send(std::move(response), run->TakeHostCharge());
    }
    absl::MutexLock lock(&mu_);
    Conclude(status);
  }

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

}  // namespace

grpc::ServerWriteReactor<v1::RunGraphResponse>* StartGraphRun(grpc::CallbackServerContext& context,
                                                              Graphs& graphs,
                                                              const v1::RunGraphRequest& request) {
  return StartWriteCall<GraphRunStream>(context, graphs, request);
}

}  // namespace resident
