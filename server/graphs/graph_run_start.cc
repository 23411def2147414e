// The parts of GraphRun::Start: rights, values of the scalars, and memory.
#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/memory.h"
#include "runtime/model/dtype.h"
#include "server/buffers/buffers.h"
#include "server/graphs/errors.h"
#include "server/graphs/graph_memory.h"
#include "server/graphs/graph_run.h"

namespace resident {
namespace {

using absl::StrCat;
using graph::TensorKind;

// Bytes of the graph's image that one task writes.
constexpr uint64_t kImagePiece = 1u << 20;
// A trace of one quantum, and the message with it.
constexpr uint64_t kTraceHostBytes = 8u << 20;

}  // namespace

void GraphRun::Start(v1::RunGraphRequest& request, std::optional<GraphSessionState> session,
                     Clock::time_point deadline, OnEvent on_event, OnEnd on_end) {
  session_ = std::move(session);
  deadline_ = deadline;
  on_event_ = std::move(on_event);
  on_end_ = std::move(on_end);
  const absl::Status prepared = Prepare(request);
  {
    absl::MutexLock lock(&mu_);
    assert(!started_);
    started_ = true;
    if (!prepared.ok()) {
      Fail(prepared);
    } else if (failed_.ok()) {
      result_.set_device(device_);
      Begin(Phase::kSetup);
      BeginNext();
    }
  }
  Continue();
}

absl::Status GraphRun::Prepare(v1::RunGraphRequest& request) {
  RETURN_IF_ERROR(CheckRights());
  RETURN_IF_ERROR(SetScalars(request));
  const uint64_t max = graph_.loop.has_value() ? graph_.loop->max_steps : 1;
  max_steps_ = request.max_steps() == 0 ? max : std::min(max, request.max_steps());
  trace_ = request.trace();
  nodes_of_operators_.assign(graph_.operators.size(), 0);
  for (const graph::Node& node : graph_.nodes) ++nodes_of_operators_[node.op];
  // The nodes that wait for each node.
  waiting_ends_.assign(graph_.nodes.size() + 1, 0);
  for (uint32_t node = 0; node < graph_.nodes.size(); ++node) {
    for (const graph::Dependency& each : order_.Of(node)) ++waiting_ends_[each.after + 1];
  }
  for (size_t i = 1; i < waiting_ends_.size(); ++i) waiting_ends_[i] += waiting_ends_[i - 1];
  waiting_.resize(order_.size());
  std::vector<uint64_t> next(waiting_ends_.begin(), waiting_ends_.end() - 1);
  for (uint32_t node = 0; node < graph_.nodes.size(); ++node) {
    for (const graph::Dependency& each : order_.Of(node)) waiting_[next[each.after]++] = node;
  }
  return BindMemory(request);
}

absl::Status GraphRun::CheckRights() const {
  for (const graph::OperatorInfo& op : checked_->written_operators()) {
    RETURN_IF_ERROR(client_->account().MaySubmit(op.name));
  }
  return absl::OkStatus();
}

absl::Status GraphRun::SetScalars(const v1::RunGraphRequest& request) {
  ASSIGN_OR_RETURN(
      const auto values,
      BindScalars(graph_, request.scalars(), session_.has_value() ? &session_->scalars : nullptr));
  absl::MutexLock lock(&mu_);
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].has_value()) {
      return errors::BadRunScalar(std::string(graph_.scalars[i].name), "has no value",
                                  "set it in `scalars`");
    }
    values_.push_back(*values[i]);
  }
  next_values_ = values_;
  return absl::OkStatus();
}

absl::Status GraphRun::BindMemory(v1::RunGraphRequest& request) {
  std::optional<uint32_t> device;
  if (request.has_device()) device = request.device();
  GraphBinder binder(core_, *client_, graph_, device);
  if (session_.has_value()) RETURN_IF_ERROR(binder.UseSession(*session_));
  RETURN_IF_ERROR(binder.BindAll(*request.mutable_bindings()));
  RETURN_IF_ERROR(binder.BindByName(/*inputs=*/true));
  GraphMemory memory = binder.Take();
  writes_ = std::move(memory.writes);
  for (uint32_t i = 0; i < graph_.tensors.size(); ++i) {
    const graph::Tensor& tensor = graph_.tensors[i];
    const bool root = tensor.root == i;
    if (tensor.kind == TensorKind::kStream) streams_.push_back(i);
    if (tensor.kind == TensorKind::kOutput && !memory.bound[tensor.root]) outputs_.push_back(i);
    if (root && tensor.kind == TensorKind::kState && !memory.bound[i]) clears_.push_back(i);
  }
  std::optional<GraphQuanta::Estimate> estimate;
  if (graphs_.in_engine) {
    estimate = GraphQuanta::EstimateMemory(MakeQuantumSources(core_), *checked_, streams_);
  }
  RETURN_IF_ERROR(TakeHostMemory(estimate.has_value() ? estimate->host_bytes : 0));
  graph::MemorySum needs;
  RETURN_IF_ERROR(AllocateRest(memory, needs));
  if (estimate.has_value()) RETURN_IF_ERROR(MakeQuanta(estimate->records, memory, needs));
  if (trace_ && quanta_ == nullptr) {
    return errors::NoGraphTrace(StrCat("it is executed node by node on device ", device_),
                                "run it where the engine executes the graph; docs/graphs.md, "
                                "\"What happens in a run\", says when it does");
  }
  tasks_ = std::make_unique<GraphTasks>(graph_, std::move(memory.places));
  return absl::OkStatus();
}

absl::Status GraphRun::AllocateRest(GraphMemory& memory, graph::MemorySum& needs) {
  const std::vector<uint64_t> bytes = graph::RunBytes(graph_);
  std::vector<uint32_t> own;
  for (uint32_t i = 0; i < graph_.tensors.size(); ++i) {
    if (graph_.tensors[i].root != i || memory.places[i].buffer != 0) continue;
    needs.Add(graph_.tensors[i].kind, bytes[i]);
    own.push_back(i);
  }
  AddBoundBuffers(core_, *client_, memory.places, &needs);
  RETURN_IF_ERROR(CheckDeviceMemory(graphs_.buffers, memory.device, needs));
  if (!own.empty()) {
    ASSIGN_OR_RETURN(const auto buffer,
                     AllocateTensors(core_, *client_, memory.device, own, bytes, &memory.places));
    memory_ = buffer->id;
    memory.device = buffer->device;
  }
  device_ = memory.device.value_or(0);
  return absl::OkStatus();
}

absl::Status GraphRun::MakeQuanta(const graph::StreamRecords& records, const GraphMemory& memory,
                                  graph::MemorySum& needs) {
  ASSIGN_OR_RETURN(const Placement place, ChooseBufferDevice(core_, *client_, memory.device, 0));
  device_ = place.device;
  quanta_ = GraphQuanta::Create(MakeQuantumSources(core_), *checked_, records, place);
  if (quanta_ == nullptr) return absl::OkStatus();
  needs.Add("the graph itself", quanta_->device_bytes());
  RETURN_IF_ERROR(CheckDeviceMemory(graphs_.buffers, device_, needs));
  BufferSpec spec;
  spec.dtype = DType::kU8;
  spec.shape = {static_cast<int64_t>(quanta_->device_bytes())};
  // The engine executes what is in it.
  spec.internal = true;
  ASSIGN_OR_RETURN(const auto buffer, AllocateBuffer(core_, *client_, device_, spec));
  image_ = buffer->id;
  RETURN_IF_ERROR(quanta_->Place(client_->id(), memory.places, buffer));
  image_piece_ = core_.admission.PieceBytes(device_, kImagePiece);
  return absl::OkStatus();
}

absl::Status GraphRun::TakeHostMemory(uint64_t quanta_bytes) {
  if (order_.size() > graph::kMaxRunDependencies) {
    return errors::TooManyDependenciesToRun(order_.size(), graph::kMaxRunDependencies);
  }
  const auto dense_bytes = [&](const std::vector<uint32_t>& tensors) {
    uint64_t total = 0;
    for (const uint32_t i : tensors) {
      const graph::View& view = graph_.tensors[i].view;
      uint64_t bytes = SizeOf(view.dtype);
      for (const graph::Axis& axis : graph_.AxesOf(view)) bytes *= static_cast<uint64_t>(axis.size);
      total += bytes;
    }
    return total;
  };
  const uint64_t outputs = dense_bytes(outputs_);
  const uint64_t records = dense_bytes(streams_);
  if (outputs > graph::kMaxReturnedBytes) {
    return errors::GraphAnswerTooLarge("outputs have", outputs, graph::kMaxReturnedBytes);
  }
  if (records > graph::kMaxReturnedBytes) {
    return errors::GraphAnswerTooLarge("records of a step have", records, graph::kMaxReturnedBytes);
  }
  uint64_t step_bytes = records;
  if (!streams_.empty()) {
    // A step names its versions if they are others than those of the step before it.
    for (const graph::OperatorInfo& op : graph_.operators) {
      step_bytes += sizeof(v1::GraphVersion) + op.name.size();
    }
  }
  const uint64_t fitting = kMaxUnsentBytes / std::max<uint64_t>(step_bytes, 1);
  max_unsent_ = static_cast<uint32_t>(std::clamp<uint64_t>(fitting, 1, kMaxUnsentSteps));
  uint64_t bytes = outputs + step_bytes * (max_unsent_ + 1);
  for (const auto& [tensor, data] : writes_) bytes += data.size();
  if (trace_) bytes += kTraceHostBytes;
  bytes += quanta_bytes + order_.size() * 2 * sizeof(uint32_t) +
           graph_.nodes.size() * sizeof(graph::Node) +
           graph_.arguments.size() * sizeof(graph::Argument) +
           graph_.axes.size() * sizeof(graph::Axis) + graph_.tensors.size() * sizeof(graph::Tensor);
  ASSIGN_OR_RETURN(host_charge_, core_.admission.AcquireForGraph(*client_->accounts(), bytes,
                                                                 Budget::Purpose::kAnswers));
  return absl::OkStatus();
}

}  // namespace resident
