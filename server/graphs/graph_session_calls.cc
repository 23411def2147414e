#include "server/graphs/graph_session_calls.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/memory.h"
#include "server/buffers/buffers.h"
#include "server/core/status.h"
#include "server/core/task_chain.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_binding.h"
#include "server/graphs/graph_memory.h"
#include "server/graphs/graph_sessions.h"
#include "server/graphs/graph_tasks.h"
#include "server/rpc/call.h"
#include "server/workload/copy_workload.h"

namespace resident {
namespace {

using graph::TensorKind;

void FillSession(const Core& core, const GraphSession& session, v1::GraphSession* message) {
  const GraphSession::Snapshot snapshot = session.snapshot();
  message->set_session_id(session.id());
  message->set_graph_id(session.graph()->id());
  message->set_state(!CheckStates(core, session).ok() ? v1::GraphSession::STATE_LOST
                     : snapshot.busy                  ? v1::GraphSession::STATE_BUSY
                     : snapshot.interrupted           ? v1::GraphSession::STATE_INTERRUPTED
                                                      : v1::GraphSession::STATE_READY);
  message->set_device(snapshot.device);
  message->set_state_bytes(session.memory().bytes);
  message->set_runs(snapshot.runs);
  message->set_steps(snapshot.steps);
  const graph::Graph& graph = session.checked()->graph;
  for (size_t i = 0; i < graph.scalars.size(); ++i) {
    if (!snapshot.scalars[i].has_value()) continue;
    (*message->mutable_scalars())[std::string(graph.scalars[i].name)] = *snapshot.scalars[i];
  }
}

// One OpenSession or ForkSession, until it is answered.
class Opening : public std::enable_shared_from_this<Opening> {
 public:
  Opening(Graphs& graphs, v1::GraphSession* response)
      : graphs_(graphs), core_(graphs.core), response_(response) {}

  // If the handler fails, it answers the call. Finish answers once the handler has returned OK.
  absl::Status Enter(UnaryCall& call, const grpc::CallbackServerContext& context) {
    ASSIGN_OR_RETURN(client_, FindSessionClient(context, core_));
    deadline_ = ReadDeadline(context, core_.time.Now());
    ASSIGN_OR_RETURN(slot_,
                     graphs_.sessions.TakeSlot(NameHolder(client_->account(), context.peer())));
    RETURN_IF_ERROR(call.Enter(core_.gate));
    call_ = call.Defer();
    return absl::OkStatus();
  }
  Client& client() { return *client_; }
  GraphChecker::Caller checker_caller(const grpc::CallbackServerContext& context) const {
    return {.holder = NameHolder(client_->account(), context.peer()), .deadline = deadline_};
  }

  void Open(std::shared_ptr<LoadedGraph> graph, LoadedGraph::Checked checked,
            v1::OpenGraphSessionRequest request) {
    graph_ = std::move(graph);
    checked_ = std::move(checked);
    const absl::Status prepared = PrepareNew(request);
    if (!prepared.ok()) return Finish(prepared);
    RunTasks();
  }

  void Fork(std::shared_ptr<GraphSession> source) {
    graph_ = source->graph();
    checked_ = source->checked();
    const absl::Status prepared = PrepareCopy(source);
    source.reset();  // The use keeps it until the answer.
    if (!prepared.ok()) return Finish(prepared);
    RunTasks();
  }

  void Finish(const absl::Status& status) {
    // What the new session does not have is free before the answer.
    tasks_.clear();
    source_.End();
    charge_.Clear();
    memory_ = {};
    slot_ = {};
    call_->Finish(status);
  }

 private:
  absl::Status PrepareNew(v1::OpenGraphSessionRequest& request) {
    const graph::Graph& graph = checked_->graph;
    std::optional<uint32_t> device;
    if (request.has_device()) device = request.device();
    ASSIGN_OR_RETURN(memory_.host, AcquireHost(graph.tensors.size() * sizeof(GraphPlace)));
    GraphBinder binder(core_, *client_, graph, device);
    binder.OpenSession();
    RETURN_IF_ERROR(binder.BindAll(*request.mutable_bindings()));
    RETURN_IF_ERROR(binder.BindByName(/*inputs=*/false));
    ASSIGN_OR_RETURN(state_.scalars, BindScalars(graph, request.scalars(), nullptr));
    GraphMemory memory = binder.Take();
    state_.places = std::move(memory.places);
    // For the contents that are sent, until they are on the device.
    uint64_t sent = 0;
    for (const auto& [tensor, data] : memory.writes) sent += data.size();
    ASSIGN_OR_RETURN(charge_, AcquireHost(sent));
    RETURN_IF_ERROR(CheckNeeds(memory));
    std::vector<uint32_t> states;
    std::vector<uint32_t> constants;
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].root != i || state_.places[i].buffer != 0) continue;
      if (graph.tensors[i].kind == TensorKind::kState) states.push_back(i);
      if (graph::IsReadOnly(graph.tensors[i].kind) && memory.bound[i]) constants.push_back(i);
    }
    ASSIGN_OR_RETURN(memory_.constants, Allocate(constants, memory.device));
    ASSIGN_OR_RETURN(memory_.states, Allocate(states, memory.device));
    if (!states.empty()) memory_.state_buffer = state_.places[states[0]].buffer;
    if (!memory.device.has_value()) {
      ASSIGN_OR_RETURN(const Placement place, ChooseBufferDevice(core_, *client_, std::nullopt, 0));
      memory.device = place.device;
    }
    state_.device = *memory.device;
    const PlanSources& sources = core_.planner.sources();
    for (const uint32_t i : states) {
      if (memory.bound[i]) continue;
      tasks_.push_back(CopyWorkload::Clear(sources, FindPart(state_.places[i]),
                                           static_cast<uint64_t>(graph.root_bytes[i])));
    }
    for (auto& [tensor, data] : memory.writes) {
      const GraphPlace& place = state_.places[graph.tensors[tensor].root];
      tasks_.push_back(CopyWorkload::WriteData(sources, FindPart(place), std::move(data)));
    }
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT: the session and a run in it together need more memory than the device has.
  absl::Status CheckNeeds(const GraphMemory& memory) const {
    const graph::Graph& graph = checked_->graph;
    graph::MemorySum needs;
    const std::vector<uint64_t> bytes = graph::RunBytes(graph);
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      const TensorKind kind = graph.tensors[i].kind;
      if (graph.tensors[i].root != i || state_.places[i].buffer != 0) continue;
      // Each run binds inputs and outputs, to memory that is not known yet.
      const bool is_input = graph::IsReadOnly(kind) && !memory.bound[i];
      if (!is_input && kind != TensorKind::kOutput) needs.Add(kind, bytes[i]);
    }
    AddBoundBuffers(core_, *client_, state_.places, &needs);
    return CheckDeviceMemory(graphs_.buffers, memory.device, needs);
  }

  CopyWorkload::Part FindPart(const GraphPlace& place) const {
    return {client_->id(), place.buffer, place.offset};
  }

  // RESOURCE_EXHAUSTED.
  absl::StatusOr<Budget::Charge> AcquireHost(uint64_t bytes) {
    return core_.admission.AcquireForGraph(*client_->accounts(), bytes, Budget::Purpose::kBatches);
  }

  absl::Status PrepareCopy(const std::shared_ptr<GraphSession>& source) {
    RETURN_IF_ERROR(CheckStates(core_, *source));
    if (!source_.Acquire(source, nullptr)) return errors::GraphSessionBusy(source->id());
    ASSIGN_OR_RETURN(memory_.host,
                     AcquireHost(checked_->graph.tensors.size() * sizeof(GraphPlace)));
    ASSIGN_OR_RETURN(state_, source_.Take(/*repeat_interrupted=*/false));
    const std::vector<GraphPlace> from = state_.places;
    const graph::Graph& graph = checked_->graph;
    std::vector<uint32_t> states;
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].root == i && graph.tensors[i].kind == TensorKind::kState) {
        states.push_back(i);
      }
    }
    memory_.constants = source->memory().constants;
    std::optional<uint32_t> device = state_.device;
    ASSIGN_OR_RETURN(memory_.states, Allocate(states, device));
    if (!states.empty()) memory_.state_buffer = state_.places[states[0]].buffer;
    for (const uint32_t i : states) {
      tasks_.push_back(CopyWorkload::Copy(core_.planner.sources(), FindPart(from[i]),
                                          FindPart(state_.places[i]),
                                          static_cast<uint64_t>(graph.root_bytes[i])));
    }
    return absl::OkStatus();
  }

  // Allocates memory for the tensors; the result frees it. Sets the device if there is none.
  absl::StatusOr<std::shared_ptr<const void>> Allocate(const std::vector<uint32_t>& tensors,
                                                       std::optional<uint32_t>& device) {
    if (tensors.empty()) return nullptr;
    ASSIGN_OR_RETURN(const auto buffer,
                     AllocateTensors(core_, *client_, device, tensors,
                                     graph::RunBytes(checked_->graph), &state_.places));
    device = buffer->device;
    memory_.bytes += buffer->size_bytes;
    // NOT_FOUND: the client's session has ended, or the client has freed it.
    return std::shared_ptr<const void>(
        nullptr, [this_core = &core_, client = client_->id(), id = buffer->id](const void*) {
          this_core->buffers.Free(client, id).IgnoreError();
        });
  }

  void RunTasks() {
    std::make_shared<TaskChain>(
        core_, client_, [self = shared_from_this()] { return self->NextTask(); }, deadline_,
        [self = shared_from_this()](const absl::Status& status) { self->OnTasksEnd(status); })
        ->Start();
  }

  std::unique_ptr<Workload> NextTask() {
    return next_ == tasks_.size() ? nullptr : std::move(tasks_[next_++]);
  }

  void OnTasksEnd(const absl::Status& status) {
    if (!status.ok()) return Finish(status);
    auto session =
        std::make_shared<GraphSession>(graphs_.sessions.NewId(), client_->id(), graph_, checked_,
                                       std::move(state_), std::move(memory_), std::move(slot_));
    FillSession(core_, *session, response_);
    const bool added = graphs_.sessions.Add(
        std::move(session), [this] { return core_.clients.HasSession(client_->session()); });
    Finish(added ? absl::OkStatus() : errors::UnknownSession(client_->session()));
  }

  Graphs& graphs_;
  Core& core_;
  v1::GraphSession* const response_;
  std::shared_ptr<UnaryCall> call_;
  std::shared_ptr<Client> client_;
  Clock::time_point deadline_;
  SharedSlots::Ticket slot_;
  std::shared_ptr<LoadedGraph> graph_;
  LoadedGraph::Checked checked_;
  GraphSessionUse source_;
  GraphSessionState state_;
  GraphSession::Memory memory_;
  std::vector<std::unique_ptr<Workload>> tasks_;
  size_t next_ = 0;  // The one whose turn is next.
  Budget::Charge charge_;
};

}  // namespace

absl::Status CheckStates(const Core& core, const GraphSession& session) {
  const uint64_t id = session.memory().state_buffer;
  if (id == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto buffer, core.buffers.Find(session.client(), id));
  if (buffer->memory != nullptr) return absl::OkStatus();
  return errors::GraphSessionLost(session.id(), buffer->device, buffer->lost_cause);
}

absl::Status GraphSessionCalls::Open(UnaryCall& call, const grpc::CallbackServerContext& context,
                                     const v1::OpenGraphSessionRequest& request,
                                     v1::OpenGraphSessionResponse& response) {
  const auto opening = std::make_shared<Opening>(graphs_, response.mutable_session());
  RETURN_IF_ERROR(opening->Enter(call, context));
  ASSIGN_OR_RETURN(const auto graph, graphs_.store.Find(request.graph_id()));
  ASSIGN_OR_RETURN(const auto checked, graph->FindChecked(core_.registry));
  if (checked != nullptr) {
    core_.runner.Post(
        [opening, graph, checked, &request] { opening->Open(graph, checked, request); });
    return absl::OkStatus();
  }
  const auto now = std::make_shared<LoadedGraph::Checked>();
  return graphs_.checker.PostFor(
      call, opening->checker_caller(context),
      [this, graph, now](graph::CheckBudget& budget) -> absl::Status {
        ASSIGN_OR_RETURN(*now, graph->Check(core_.registry, budget));
        return absl::OkStatus();
      },
      [opening, graph, now, &request](const absl::Status& status) {
        if (!status.ok()) return opening->Finish(status);
        opening->Open(graph, *now, request);
      });
}

absl::Status GraphSessionCalls::Fork(UnaryCall& call, const grpc::CallbackServerContext& context,
                                     const v1::ForkGraphSessionRequest& request,
                                     v1::ForkGraphSessionResponse& response) {
  const auto opening = std::make_shared<Opening>(graphs_, response.mutable_session());
  RETURN_IF_ERROR(opening->Enter(call, context));
  ASSIGN_OR_RETURN(auto source,
                   graphs_.sessions.Find(opening->client().id(), request.session_id()));
  core_.runner.Post(
      [opening, source = std::move(source)]() mutable { opening->Fork(std::move(source)); });
  return absl::OkStatus();
}

absl::Status GraphSessionCalls::Close(const grpc::CallbackServerContext& context,
                                      const v1::CloseGraphSessionRequest& request) {
  ASSIGN_OR_RETURN(const auto client, FindSessionClient(context, core_));
  return graphs_.sessions.Close(client->id(), request.session_id());
}

absl::Status GraphSessionCalls::Describe(const grpc::CallbackServerContext& context,
                                         const v1::DescribeGraphSessionRequest& request,
                                         v1::DescribeGraphSessionResponse& response) {
  ASSIGN_OR_RETURN(const auto client, FindSessionClient(context, core_));
  ASSIGN_OR_RETURN(const auto session, graphs_.sessions.Find(client->id(), request.session_id()));
  FillSession(core_, *session, response.mutable_session());
  return absl::OkStatus();
}

absl::Status GraphSessionCalls::List(const grpc::CallbackServerContext& context,
                                     v1::ListGraphSessionsResponse& response) {
  ASSIGN_OR_RETURN(const auto client, FindSessionClient(context, core_));
  for (const auto& session : graphs_.sessions.List(client->id())) {
    FillSession(core_, *session, response.add_sessions());
  }
  return absl::OkStatus();
}

}  // namespace resident
