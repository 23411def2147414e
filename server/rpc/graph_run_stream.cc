#include "server/rpc/graph_run_stream.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/graph_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/limits.h"
#include "server/rpc/call.h"
#include "server/rpc/graph_messages.h"
#include "server/rpc/registry_catalog.h"

namespace resident {
namespace {

absl::Status Refusal(const graph::Findings& findings) {
  for (const graph::Finding& finding : findings.list()) {
    if (finding.warning) continue;
    std::string place = graph::CodeName(finding.code);
    if (!finding.node.empty()) place += ", node " + finding.node;
    if (!finding.tensor.empty()) place += ", tensor " + finding.tensor;
    return errors::GraphRefused(place + ": " + finding.message, findings.errors() - 1);
  }
  return absl::OkStatus();
}

}  // namespace

GraphRunStream::~GraphRunStream() {
  if (entered_) core_.gate.Leave(1);
}

void GraphRunStream::Open(const grpc::CallbackServerContext& context,
                          const v1::RunGraphRequest& request) {
  Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Graphs/Run"));
  const absl::Status entered = Enter(context, request);
  if (entered.ok()) return checker_.PostRun([self = Ref(this)] { self->Check(); });
  absl::MutexLock lock(&mu_);
  Conclude(entered);
}

absl::Status GraphRunStream::Enter(const grpc::CallbackServerContext& context,
                                   const v1::RunGraphRequest& request) {
  if (!request.has_graph()) return errors::NoGraph();
  const auto nodes = static_cast<uint64_t>(request.graph().nodes_size());
  if (nodes > graph::kMaxRunNodes) return errors::TooManyNodesToRun(nodes, graph::kMaxRunNodes);
  ASSIGN_OR_RETURN(client_, FindSessionClient(context, core_));
  ASSIGN_OR_RETURN(slot_,
                   checker_.run_slots().Take(NameHolder(client_->account(), context.peer())));
  if (!core_.gate.Enter(1)) return errors::Draining();
  entered_ = true;
  v1::BatchOptions options;
  options.set_timeout_us(request.timeout_us());
  deadline_ = BatchDeadline(options, ReadDeadline(context));
  request_ = request;
  if (deadline_ != Clock::time_point::max()) {
    // Also while the run waits for its client to read.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    CallAfter(deadline_alarm_, std::max(left, std::chrono::milliseconds(0)),
              [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                if (!ending()) OnEnd(errors::DeadlineExceeded());
              });
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<GraphRun>> GraphRunStream::MakeRun() const {
  graph::Findings findings;
  graph::Graph graph = ReadGraph(request_.graph(), RegistryCatalog(core_.registry), &findings);
  graph::GraphCheck check = graph::CheckGraph(graph, &findings);
  if (!check.accepted) return Refusal(findings);
  return std::make_shared<GraphRun>(core_, client_,
                                    std::make_shared<graph::CheckedGraph>(graph::CheckedGraph{
                                        std::move(graph), *std::move(check.order)}));
}

void GraphRunStream::Check() {
  {
    absl::MutexLock lock(&mu_);
    if (ending()) return;
  }
  absl::StatusOr<std::shared_ptr<GraphRun>> run = MakeRun();
  {
    absl::MutexLock lock(&mu_);
    if (ending()) return;
    if (!run.ok()) return Conclude(run.status());
    run_ = *run;
  }
  request_.clear_graph();
  (*run)->Start(
      request_, std::nullopt, deadline_,
      [self = Ref(this)](v1::GraphStep step) {
        v1::RunGraphResponse response;
        *response.mutable_step() = std::move(step);
        self->Send(std::move(response));
      },
      [self = Ref(this)](absl::StatusOr<v1::GraphResult> result) {
        self->OnRunEnd(std::move(result));
      });
}

void GraphRunStream::Send(v1::RunGraphResponse response) {
  core_.counters.Sent(response.ByteSizeLong());
  absl::MutexLock lock(&mu_);
  // A run that was cancelled counts no steps any more. The run is charged for the response.
  if (!ending()) Write(std::move(response));
}

void GraphRunStream::OnWritten() {
  if (run_ != nullptr) run_->StepSent();
}

void GraphRunStream::OnEnd(const absl::Status& status) {
  if (run_ != nullptr) run_->Cancel(status);
  DropUnread();
  Conclude(status);
}

void GraphRunStream::OnRunEnd(absl::StatusOr<v1::GraphResult> result) {
  std::shared_ptr<GraphRun> run;  // With its charge, until the result is written or dropped.
  {
    absl::MutexLock lock(&mu_);
    run = std::exchange(run_, nullptr);  // The run refers to this object.
  }
  const absl::Status status = result.status();
  if (status.ok()) {
    v1::RunGraphResponse response;
    *response.mutable_result() = *std::move(result);
    Send(std::move(response));
  }
  absl::MutexLock lock(&mu_);
  Conclude(status);
}

}  // namespace resident
