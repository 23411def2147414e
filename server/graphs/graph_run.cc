#include "server/graphs/graph_run.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/task_status_code.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"
#include "server/graphs/errors.h"
#include "server/workload/copy_workload.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

using absl::StrCat;

absl::StatusCode ToCode(TaskStatus status) {
  return ToStatusCode(static_cast<v1::TaskStatus>(status));
}

}  // namespace

// --- Phases --------------------------------------------------------------------

size_t GraphRun::CountItems(Phase phase) const {
  switch (phase) {
    case Phase::kSetup: {
      const uint64_t pieces =
          quanta_ == nullptr ? 0 : (quanta_->image_bytes() - 1) / image_piece_ + 1;
      return writes_.size() + clears_.size() + pieces;
    }
    case Phase::kQuantum:
      return 1;
    case Phase::kNodes:
      return graph_.nodes.size();
    case Phase::kRecords:
      return streams_.size() +
             (graph_.loop.has_value() && graph_.loop->stop_tensor != graph::kNone ? 1 : 0);
    case Phase::kOutputs:
      return outputs_.size();
    case Phase::kEnded:
      return 0;
  }
  return 0;
}

std::unique_ptr<Workload> GraphRun::MakeCopy(uint32_t item) {
  const PlanSources& sources = core_.planner.sources();
  const auto memory = [&](uint32_t tensor) {
    const GraphPlace& place = tasks_->place(tensor);
    return CopyWorkload::Part(client_->id(), place.buffer, place.offset);
  };
  if (item < writes_.size()) {
    auto& [tensor, data] = writes_[item];
    return CopyWorkload::WriteData(sources, memory(tensor), std::move(data));
  }
  item -= static_cast<uint32_t>(writes_.size());
  if (item < clears_.size()) {
    const uint32_t tensor = clears_[item];
    return CopyWorkload::Clear(sources, memory(tensor),
                               static_cast<uint64_t>(graph_.root_bytes[tensor]));
  }
  const uint64_t at = (item - clears_.size()) * image_piece_;
  return CopyWorkload::WriteData(sources, {BufferTable::InternalAccess(client_->id()), image_, at},
                                 quanta_->TakeImage(at, image_piece_));
}

v1::Batch GraphRun::MakeBatch(Phase phase, uint32_t item) {
  switch (phase) {
    case Phase::kNodes:
      return tasks_->Node(item, values_);
    case Phase::kRecords:
      return tasks_->Read(item < streams_.size() ? streams_[item] : graph_.loop->stop_tensor,
                          values_);
    default:
      return tasks_->Read(outputs_[item], values_);
  }
}

void GraphRun::Begin(Phase phase) {
  phase_ = phase;
  unfinished_ = CountItems(phase);
  ready_.clear();
  if (phase == Phase::kNodes) {
    step_versions_.clear();
    blockers_.resize(graph_.nodes.size());
    for (uint32_t node = 0; node < graph_.nodes.size(); ++node) {
      blockers_[node] = static_cast<uint32_t>(order_.Of(node).size());
      if (blockers_[node] == 0) ready_.push_back(node);
    }
    return;
  }
  for (uint32_t item = 0; item < unfinished_; ++item) ready_.push_back(item);
  if (phase == Phase::kRecords) {
    step_.Clear();
    step_.set_step(result_.steps());
    for (const uint32_t tensor : streams_) *step_.add_records() = tasks_->Describe(tensor, values_);
  } else if (phase == Phase::kOutputs) {
    for (const uint32_t tensor : outputs_) {
      *result_.add_outputs() = tasks_->Describe(tensor, values_);
    }
  }
}

void GraphRun::BeginNext() {
  while (unfinished_ == 0 && phase_ != Phase::kEnded) {
    const Phase next = NextPhase();
    if ((next == Phase::kNodes || next == Phase::kQuantum) && MustWaitForClient()) {
      paused_ = true;
      if (quanta_ != nullptr) quanta_->Pause();
      return;
    }
    Begin(next);
  }
}

GraphRun::Phase GraphRun::NextPhase() {
  switch (phase_) {
    case Phase::kSetup:
      if (quanta_ != nullptr) quanta_->ReleaseImage();
      return StepPhase();
    case Phase::kNodes:
      return Phase::kRecords;
    case Phase::kRecords:
      // Once for each step: if the run is paused, EventSent begins the next one.
      if (!streams_.empty()) ReportVersions(std::move(step_versions_));
      EndStep();
      [[fallthrough]];
    case Phase::kQuantum:
      return result_.end() == v1::GraphResult::END_UNSPECIFIED ? StepPhase() : Phase::kOutputs;
    default:
      return Phase::kEnded;
  }
}

void GraphRun::EndStep() {
  if (!streams_.empty()) {
    step_.mutable_versions()->Swap(&new_versions_);
    *events_.emplace_back().mutable_step() = std::move(step_);
    ++unsent_;
  }
  result_.set_steps(result_.steps() + 1);
  result_.set_end(AdvanceStep());
}

void GraphRun::ReportVersions(VersionCounts versions) {
  if (versions == reported_versions_) return;
  new_versions_.Clear();
  AddVersions(versions, &new_versions_);
  reported_versions_ = std::move(versions);
}

GraphRun::VersionCounts GraphRun::CountQuantumVersions() const {
  VersionCounts versions;
  for (size_t row = 0; row < graph_.operators.size(); ++row) {
    if (nodes_of_operators_[row] == 0) continue;
    const OperatorVersion& version = *quanta_->operators()[row].version;
    versions[{version.op->name(), version.version}] += nodes_of_operators_[row];
  }
  return versions;
}

void GraphRun::AddVersions(const VersionCounts& versions, VersionMessages* messages) {
  for (const auto& [version, tasks] : versions) {
    v1::GraphVersion* const out = messages->Add();
    out->set_operator_(version.first);
    out->set_version(version.second);
    out->set_tasks(tasks);
  }
}

v1::GraphResult::End GraphRun::AdvanceStep() {
  bool in_range = true;
  if (graph_.loop.has_value()) {
    next_values_ = graph::NextValues(graph_, values_);
    for (const graph::Loop::Update& update : graph_.loop->updates) {
      const graph::Scalar& scalar = graph_.scalars[update.scalar];
      const double value = next_values_[update.scalar];
      in_range &= value >= scalar.min && value <= scalar.max;
    }
  }
  // The step is complete, whatever ends the run from now on.
  in_step_ = false;
  complete_ = result_.steps();
  if (stop_) return v1::GraphResult::END_STOP;
  if (result_.steps() >= max_steps_) return v1::GraphResult::END_STEPS;
  if (!in_range) return v1::GraphResult::END_SCALAR_RANGE;
  values_ = next_values_;
  return v1::GraphResult::END_UNSPECIFIED;
}

void GraphRun::TakeResult(const Call& call, const RequestBatch& batch, v1::BatchResult& result) {
  switch (call.phase) {
    case Phase::kNodes:
      ++versions_[{batch.operator_name, batch.version}];
      ++step_versions_[{batch.operator_name, batch.version}];
      if (result.device_ns_size() > 0) {
        result_.set_device_ns(result_.device_ns() + result.device_ns(0));
      }
      for (uint64_t i = waiting_ends_[call.item]; i < waiting_ends_[call.item + 1]; ++i) {
        assert(blockers_[waiting_[i]] > 0);
        if (--blockers_[waiting_[i]] == 0) ready_.push_back(waiting_[i]);
      }
      break;
    case Phase::kRecords:
      if (call.item >= streams_.size()) return TakeStopValue(result.outputs(0));
      *step_.mutable_records(static_cast<int>(call.item))->mutable_data() =
          std::move(*result.mutable_outputs(0));
      break;
    case Phase::kOutputs:
      *result_.mutable_outputs(static_cast<int>(call.item))->mutable_data() =
          std::move(*result.mutable_outputs(0));
      break;
    default:
      break;
  }
}

void GraphRun::TakeQuantum(const QuantumWorkload& work, const QuantumReport& report,
                           const RequestBatch& batch) {
  quanta_->Read(work, report, batch.device_ns[0]);
  for (size_t row = 0; row < graph_.operators.size(); ++row) {
    const QuantumReport::Row& op = report.operators[row];
    if (op.tasks == 0) continue;
    const OperatorVersion& version = *quanta_->operators()[row].version;
    versions_[{version.op->name(), version.version}] += op.tasks;
    result_.set_device_ns(result_.device_ns() + op.ns);
  }
  if (report.steps > 0 && !streams_.empty()) ReportVersions(CountQuantumVersions());
  // The scalars change with each step as in the engine.
  for (uint32_t step = 0; step < report.steps; ++step) {
    if (!streams_.empty()) step_ = ReadRecords(work, step);
    stop_ = step + 1 == report.steps && report.end == GraphEnd::kStop;
    EndStep();
  }
  in_step_ = report.in_step;
  if (trace_) TakeTrace(work, report);
}

void GraphRun::TakeTrace(const QuantumWorkload& work, const QuantumReport& report) {
  v1::GraphTrace& trace = *events_.emplace_back().mutable_trace();
  ++unsent_;
  trace.mutable_events()->Reserve(static_cast<int>(report.trace.size()));
  for (const GraphTraceEvent& event : report.trace) {
    v1::GraphTraceEvent& out = *trace.add_events();
    out.set_node(checked_->WrittenIndex(event.node));
    out.set_step(work.planned().first_step + event.step);
    out.set_chunk(event.chunk);
    out.set_worker(event.worker);
    out.set_version(quanta_->version(event.node));
    out.set_wait_ns(event.wait_ns);
    out.set_begin_ns(event.begin_ns);
    out.set_end_ns(event.end_ns);
  }
  result_.set_dropped_trace_events(result_.dropped_trace_events() + report.dropped_events);
  graphs_.traces.Add(graph_, report.trace, &kept_trace_);
}

v1::GraphStep GraphRun::ReadRecords(const QuantumWorkload& work, uint32_t step) const {
  v1::GraphStep records;
  records.set_step(result_.steps());
  for (size_t i = 0; i < streams_.size(); ++i) {
    v1::GraphValue& value = *records.add_records();
    value = tasks_->Describe(streams_[i], values_);
    uint64_t bytes = SizeOf(graph_.tensors[streams_[i]].view.dtype);
    for (const uint64_t size : value.shape()) bytes *= size;
    value.set_data(work.records(step) + quanta_->record_offsets()[i], bytes);
  }
  return records;
}

void GraphRun::TakeStopValue(const std::string& bytes) {
  int64_t value = 0;
  if (bytes.size() == sizeof(int32_t)) {
    int32_t narrow = 0;
    std::memcpy(&narrow, bytes.data(), sizeof(narrow));
    value = narrow;
  } else {
    std::memcpy(&value, bytes.data(), std::min(sizeof(value), bytes.size()));
  }
  const std::vector<int64_t>& stops = graph_.loop->stop_values;
  stop_ = std::find(stops.begin(), stops.end(), value) != stops.end();
}

// --- Tasks ---------------------------------------------------------------------

void GraphRun::Cancel(const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    Fail(why);
  }
  ContinueLater();
}

void GraphRun::EventSent() {
  {
    absl::MutexLock lock(&mu_);
    assert(unsent_ > 0);
    --unsent_;
    if (!paused_ || !failed_.ok() || MustWaitForClient()) return;
    paused_ = false;
    Begin(StepPhase());
    BeginNext();
  }
  ContinueLater();
}

void GraphRun::ContinueLater() {
  core_.runner.Post([self = shared_from_this()] { self->Continue(); });
}

void GraphRun::Fail(const absl::Status& why) {
  if (phase_ == Phase::kEnded || !failed_.ok()) return;
  failed_ = why;
  ready_.clear();
  for (auto each = submitted_.begin(); each != submitted_.end();) {
    const auto call = each++;
    if (call->second->batch != nullptr) {
      core_.runner.Cancel(*call->second->batch);
      if (call->second->launched) Abort(*call->second);
    } else if (call->second->wait.Cancel()) {
      NoteNotRun(*call->second);
      submitted_.erase(call);
    }
  }
}

GraphRun::Calls GraphRun::TakeReady() {
  Calls calls;
  while (!ready_.empty() && submitted_.size() < kMaxSubmitted) {
    auto call = std::make_shared<Call>(core_.admission);
    call->phase = phase_;
    call->item = ready_.front();
    ready_.pop_front();
    in_step_ |= phase_ == Phase::kNodes || phase_ == Phase::kQuantum;
    if (phase_ == Phase::kSetup) {
      call->work = MakeCopy(call->item);
    } else if (phase_ != Phase::kQuantum) {
      call->message = MakeBatch(call->phase, call->item);
    }
    submitted_[call.get()] = call;
    calls.push_back(std::move(call));
  }
  return calls;
}

void GraphRun::Continue() {
  Calls calls;
  {
    absl::MutexLock lock(&mu_);
    calls = TakeReady();
  }
  for (const auto& call : calls) Submit(call);
  Report();
}

void GraphRun::Report() {
  for (bool reports = false;; reports = true) {
    v1::RunGraphResponse event;
    absl::StatusOr<v1::GraphResult> result = v1::GraphResult();
    bool ended = false;
    {
      absl::MutexLock lock(&mu_);
      if (reporting_ && !reports) return;
      reporting_ = true;
      if (!events_.empty()) {
        event = std::move(events_.front());
        events_.pop_front();
      } else if (HasEnded()) {
        // `reporting_` stays set: nothing is reported from now on.
        ended = true;
        result = TakeEnd();
      } else {
        reporting_ = false;
        return;
      }
    }
    if (!ended) {
      on_event_(std::move(event));
      continue;
    }
    FreeMemory(&memory_, client_->id());
    FreeMemory(&image_, BufferTable::InternalAccess(client_->id()));
    on_end_(std::move(result));
    return;
  }
}

GraphRunLeft GraphRun::left() const {
  absl::MutexLock lock(&mu_);
  assert(phase_ == Phase::kEnded);
  return {complete_, next_values_, in_step_};
}

Budget::Charge GraphRun::TakeHostCharge() {
  absl::MutexLock lock(&mu_);
  assert(phase_ == Phase::kEnded);
  return std::move(host_charge_);
}

absl::StatusOr<v1::GraphResult> GraphRun::TakeEnd() {
  phase_ = Phase::kEnded;
  quanta_ = nullptr;  // It refers to the run's memory, and to buffers.
  if (!failed_.ok()) return failed_;
  AddVersions(versions_, result_.mutable_versions());
  return std::move(result_);
}

void GraphRun::Submit(const std::shared_ptr<Call>& call) {
  const absl::StatusOr<bool> made = MakeWork(*call);
  if (!made.ok()) return Refuse(call, made.status());
  if (!*made) {
    {
      absl::MutexLock lock(&mu_);
      submitted_.erase(call.get());
      NoteNotRun(*call);
      if (failed_.ok()) Begin(Phase::kNodes);
    }
    return ContinueLater();
  }
  core_.admission.Acquire(call->wait, client_->accounts(), call->work->ResourcesNeeded(), deadline_,
                          [self = shared_from_this(), call](absl::StatusOr<Ticket> ticket) {
                            self->Admit(call, std::move(ticket));
                          });
}

absl::StatusOr<bool> GraphRun::MakeWork(Call& call) {
  if (call.phase == Phase::kSetup) {
    RETURN_IF_ERROR(call.work->Check());
    return true;
  }
  if (call.phase != Phase::kQuantum) {
    ASSIGN_OR_RETURN(call.work, core_.planner.Plan(call.message, client_->id()));
    return true;
  }
  GraphQuanta::Steps steps;
  std::vector<double> values;
  {
    absl::MutexLock lock(&mu_);
    steps = {.first_step = result_.steps(),
             .last_step = max_steps_,
             .max_steps = streams_.empty() ? kMaxQuantumSteps : max_unsent_ - unsent_,
             .trace = trace_};
    values = values_;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<QuantumWorkload> work, quanta_->Plan(steps, values));
  if (work == nullptr && trace_) {
    return errors::NoGraphTrace("the step is executed node by node",
                                "wait until no version of its operators is on trial");
  }
  if (work == nullptr) return false;
  call.quantum = work.get();
  call.work = std::move(work);
  return true;
}

void GraphRun::Admit(const std::shared_ptr<Call>& call, absl::StatusOr<Ticket> ticket) {
  if (!ticket.ok()) return Refuse(call, ticket.status());
  std::shared_ptr<RequestBatch> batch = core_.runner.Fill(
      client_, deadline_, std::move(call->work), *std::move(ticket),
      [self = shared_from_this(), call](RequestBatch& ended) { self->Answer(call, ended); });
  {
    absl::MutexLock lock(&mu_);
    if (failed_.ok()) call->batch = batch;
  }
  if (call->batch == nullptr) return Refuse(call, errors::Cancelled());
  const absl::Status taken =
      core_.runner.Launch(batch, *client_, /*inline_time=*/std::chrono::nanoseconds(0));
  if (!taken.ok()) return Refuse(call, taken);
  absl::MutexLock lock(&mu_);
  call->launched = true;
  // Fail could not abort it. Without a batch it has been answered.
  if (!failed_.ok() && call->batch != nullptr) Abort(*call);
}

void GraphRun::Abort(const Call& call) const {
  if (call.quantum != nullptr) call.quantum->Abort();
}

void GraphRun::FreeMemory(uint64_t* buffer, ClientId access) {
  // NOT_FOUND: the client's session has ended, or the client has freed it.
  if (*buffer != 0) core_.buffers.Free(access, *buffer).IgnoreError();
  *buffer = 0;
}

void GraphRun::Answer(const std::shared_ptr<Call>& call, RequestBatch& batch) {
  v1::BatchResult result;
  BuildResult(batch, &result);
  // Before the end is reported, so that the run's memory is free by then.
  batch.keep_alive.clear();
  {
    absl::MutexLock lock(&mu_);
    call->batch = nullptr;
    submitted_.erase(call.get());
    if (call->quantum != nullptr) {
      // A quantum that was withdrawn, or ended with its engine, reports nothing.
      const TaskStatus status = batch.status[0];
      const QuantumReport report = call->quantum->ReadReport();
      const bool ran = report.end != GraphEnd::kNone;
      if (ran) TakeQuantum(*call->quantum, report, batch);
      if (!ran && (status == TaskStatus::kCancelled || status == TaskStatus::kDeadlineExceeded)) {
        in_step_ = quanta_->in_step();
      }
      if (batch.failed > 0) {
        Fail(DescribeQuantumError(report, batch));
      } else if (failed_.ok()) {
        --unfinished_;
        BeginNext();
      }
    } else if (batch.failed > 0) {
      const TaskStatus status = batch.status[0];
      Fail(DescribeError(*call, ToCode(status), batch.version,
                         result.errors_size() > 0 ? result.errors(0).message() : batch.cause));
    } else if (failed_.ok()) {
      TakeResult(*call, batch, result);
      --unfinished_;
      BeginNext();
    }
  }
  Continue();
}

void GraphRun::Refuse(const std::shared_ptr<Call>& call, const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    call->batch = nullptr;
    submitted_.erase(call.get());
    NoteNotRun(*call);
    Fail(DescribeError(*call, why.code(), /*version=*/0, std::string(why.message())));
  }
  Report();
}

absl::Status GraphRun::DescribeQuantumError(const QuantumReport& report, RequestBatch& batch) {
  const auto& work = static_cast<const QuantumWorkload&>(*batch.work);
  const TaskStatus status = batch.status[0];
  std::optional<uint32_t> node = report.failed_node;
  uint64_t step = node.has_value() ? report.failed_step : result_.steps();
  if (!node.has_value() && batch.suspect.has_value()) {
    node = std::min<uint32_t>(GraphTaskNode(*batch.suspect),
                              static_cast<uint32_t>(quanta_->rows().size()) - 1);
    step = work.planned().first_step + GraphTaskStep(*batch.suspect);
  }
  const absl::StatusCode code = ToCode(status);
  if (!node.has_value() && status == TaskStatus::kInternal) {
    return errors::StepFailed(code, step, "the engine refused the graph. Fix: report it");
  }
  if (node.has_value()) {
    // The message is that of a task of the node.
    const OperatorVersion& version = *quanta_->operators()[quanta_->rows()[*node]].version;
    batch.operator_name = version.op->name();
    batch.version = version.version;
    quanta_->CountFailure(*node, status);
  }
  v1::BatchResult result;
  AddTaskError(batch, 0, 0, &result);
  const std::string& what = result.errors(0).message();
  if (!node.has_value()) return errors::StepFailed(code, step, what);
  if (*node >= graph_.nodes.size()) return absl::Status(code, StrCat("reading tensors: ", what));
  return DescribeNodeError(*node, code, batch.version, step, what);
}

absl::Status GraphRun::DescribeNodeError(uint32_t node, absl::StatusCode code, uint32_t version,
                                         uint64_t step, const std::string& what) const {
  const graph::OperatorInfo& op = graph_.operators[graph_.nodes[node].op];
  return errors::NodeFailed(code,
                            {.node = checked_->WrittenName(node),
                             .fused_with = checked_->OtherNames(node),
                             .operator_name = std::string(op.name),
                             .wanted_version = op.wanted_version,
                             .version = version,
                             .step = step},
                            what);
}

absl::Status GraphRun::DescribeError(const Call& call, absl::StatusCode code, uint32_t version,
                                     const std::string& what) const {
  if (call.phase == Phase::kSetup) return absl::Status(code, StrCat("setting tensors: ", what));
  uint32_t node = call.item;
  if (call.phase == Phase::kQuantum) {
    if (quanta_ == nullptr) return errors::StepFailed(code, result_.steps(), what);
    node = quanta_->failed_node().value_or(graph::kNone);
    if (node >= graph_.nodes.size()) return errors::StepFailed(code, result_.steps(), what);
  } else if (call.phase != Phase::kNodes) {
    return absl::Status(code, StrCat("reading tensors: ", what));
  }
  return DescribeNodeError(node, code, version, result_.steps(), what);
}

}  // namespace resident
