#include "server/models/model_workload.h"

#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "server/graphs/graph_binding.h"
#include "server/models/errors.h"
#include "server/models/model_run.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

std::string PortNames(const std::vector<ModelPort>& ports) {
  return absl::StrJoin(ports, ", ", [](std::string* out, const ModelPort& port) {
    absl::StrAppend(out, "'", port.name, "'");
  });
}

// "[8 at most, 64]".
std::string ShapeText(const ModelPort& port) {
  std::vector<std::string> sizes;
  for (size_t d = 0; d < port.shape.size(); ++d) {
    const bool dynamic =
        (d == 0 && port.scalar != graph::kNone) || port.AxisOf(d) != ModelPort::kFixedAxis;
    sizes.push_back(absl::StrCat(port.shape[d], dynamic ? " at most" : ""));
  }
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

void AddError(TaskStatus status, const std::string& message, v1::BatchResult* result) {
  result->add_status(static_cast<v1::TaskStatus>(status));
  v1::TaskError* const error = result->add_errors();
  error->set_status(static_cast<v1::TaskStatus>(status));
  error->set_message(message);
}

const ModelSeat& FindSeat(const Ticket& ticket) {
  return *static_cast<const ModelSeat*>(ticket.loan());
}

}  // namespace

absl::Status ModelWorkload::Check() {
  const ModelParts& parts = model_->plans()->parts();
  const v1::BatchOptions& options = message_.options();
  if (options.has_device() && options.device() != parts.device) {
    return errors::ModelOnOtherDevice(model_->name(), parts.device, options.device());
  }
  RETURN_IF_ERROR(CheckInputs());
  RETURN_IF_ERROR(CheckOutputs());
  RETURN_IF_ERROR(SetScalars());
  plan_ = model_->plans()->Find(plan_sizes_);
  return absl::OkStatus();
}

Needs ModelWorkload::ResourcesNeeded() const {
  Needs needs;
  needs.device = model_->plans()->parts().device;
  needs.tasks = 1;
  needs.host_bytes = sizeof(TaskDescriptor) + kTaskOutcomeBytes + OutputBytes();
  needs.lender = std::make_shared<ModelLender>(model_, plan_, scalars_);
  return needs;
}

absl::Status ModelWorkload::Prepare(const Ticket& ticket) {
  ModelRun& run = *FindSeat(ticket).run;
  if (!run.alone()) return run.Prepare();
  ASSIGN_OR_RETURN(quantum_, run.Plan(scalars_));
  return absl::OkStatus();
}

void ModelWorkload::Fill(const Ticket& ticket, RequestBatch& batch) {
  const ModelSeat& seat = FindSeat(ticket);
  ModelInstance& instance = seat.run->instance();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const std::string& data = inputs_[i]->data();
    const uint64_t before = instance.interface().inputs[i].BytesBefore(seat.first_row);
    std::memcpy(instance.host() + instance.inputs[i] + before, data.data(), data.size());
  }
  inputs_.clear();
  if (seat.run->alone()) {
    instance_ = &instance;
    quantum_->FillAt(*instance.staging.staging(), batch);
  } else {
    batch.device = model_->plans()->parts().device;
    batch.tasks.resize(1);
    batch.shared = seat.run;
  }
  batch.operator_name = model_->name();
  batch.version = version_;
}

void ModelWorkload::BuildResult(const RequestBatch& batch, v1::BatchResult* result) const {
  if (quantum_ == nullptr) {
    result->mutable_status()->Swap(result_.mutable_status());
    result->mutable_device_ns()->Swap(result_.mutable_device_ns());
    result->mutable_errors()->Swap(result_.mutable_errors());
    result->mutable_outputs()->Swap(result_.mutable_outputs());
    result->mutable_output_types()->Swap(result_.mutable_output_types());
    return;
  }
  const QuantumReport report = quantum_->ReadReport();
  if (report.end != GraphEnd::kNone) {
    instance_->quanta->Read(*quantum_, report, batch.device_ns[0]);
  }
  if (batch.failed == 0) model_->CountRun(*plan_, rows(), batch.device_ns[0]);
  ReadResult(batch, report, *instance_, /*first_row=*/0, result);
}

uint64_t ModelWorkload::rows() const {
  const uint32_t scalar = model_->plans()->rows().scalar;
  return scalar == graph::kNone ? 0 : static_cast<uint64_t>(scalars_[scalar]);
}

void ModelWorkload::ReadResult(const RequestBatch& ended, const QuantumReport& report,
                               const ModelInstance& instance, uint64_t first_row,
                               v1::BatchResult* result) const {
  result->add_device_ns(ended.device_ns[0]);
  const bool late = ended.failed == 0 && report.end == GraphEnd::kQuantum;
  model_->CountRequest(ended.failed == 0 && !late, rows());
  if (ended.failed > 0) return AddNodeError(ended, report, instance, result);
  if (late) return AddError(TaskStatus::kAborted, errors::ModelTooSlow(kModelTimeLimit), result);
  for (const size_t i : wanted_) {
    const ModelPort& port = instance.interface().outputs[i];
    const auto* const bytes = reinterpret_cast<const char*>(instance.host() + instance.outputs[i]);
    result->add_outputs(bytes + port.BytesBefore(first_row), port.BytesAt(Rows(port)));
    v1::TensorType* const type = result->add_output_types();
    type->set_name(port.name);
    type->set_dtype(static_cast<v1::DType>(port.dtype));
    for (const int64_t size : port.shape) type->add_shape(static_cast<uint64_t>(size));
    if (port.scalar != graph::kNone) type->set_shape(0, Rows(port));
  }
}

void ModelWorkload::SetError(const RequestBatch& batch, const std::string& message) const {
  model_->CountRequest(/*ok=*/false, rows());
  result_.add_device_ns(0);
  if (!message.empty()) return AddError(batch.status[0], message, &result_);
  result_.add_status(static_cast<v1::TaskStatus>(batch.status[0]));
  AddTaskError(batch, 0, 0, &result_);
}

absl::Status ModelWorkload::CheckInputs() {
  const std::vector<ModelPort>& ports = interface().inputs;
  for (const v1::ModelTensor& tensor : message_.model().inputs()) {
    size_t i = 0;
    while (i < ports.size() && ports[i].name != tensor.name()) ++i;
    if (i == ports.size()) {
      return errors::ModelTensorUnknown(model_->name(), "input", tensor.name(), PortNames(ports));
    }
    if (inputs_[i] != nullptr) return errors::ModelTensorTwice(model_->name(), tensor.name());
    inputs_[i] = &tensor;
    RETURN_IF_ERROR(CheckInput(ports[i], tensor));
  }
  for (size_t i = 0; i < ports.size(); ++i) {
    if (inputs_[i] == nullptr) {
      return errors::ModelInputMissing(model_->name(), ports[i].name);
    }
  }
  return absl::OkStatus();
}

absl::Status ModelWorkload::CheckInput(const ModelPort& port, const v1::ModelTensor& tensor) {
  const auto refuse = [&](const char* what, const std::string& got, const std::string& wanted) {
    return errors::ModelTensorType(model_->name(), port.name, what, got, wanted);
  };
  if (tensor.dtype() != static_cast<v1::DType>(port.dtype)) {
    return refuse("dtype",
                  v1::DType_IsValid(tensor.dtype())
                      ? DTypeName(static_cast<DType>(tensor.dtype()))
                      : absl::StrCat(static_cast<int>(tensor.dtype())),
                  DTypeName(port.dtype));
  }
  const bool dynamic = port.scalar != graph::kNone;
  bool fits = static_cast<size_t>(tensor.shape_size()) == port.shape.size();
  uint64_t bytes = SizeOf(port.dtype);
  for (size_t d = 0; fits && d < port.shape.size(); ++d) {
    const uint64_t size = tensor.shape(static_cast<int>(d));
    const auto max = static_cast<uint64_t>(port.shape[d]);
    const int32_t axis = port.AxisOf(d);
    if (axis >= 0 && size > max) {
      return errors::ModelSizeAboveBound(model_->name(), port.name,
                                         interface().dimensions[axis].name, size, max);
    }
    fits = axis >= 0 || (dynamic && d == 0) ? size >= 1 && size <= max : size == max;
    bytes *= size;
  }
  if (!fits) {
    return refuse("shape", absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"),
                  ShapeText(port));
  }
  if (tensor.data().size() != bytes) {
    return refuse("number of bytes", absl::StrCat(tensor.data().size()), absl::StrCat(bytes));
  }
  const auto differ = [&](uint64_t got, const std::string& size, uint64_t other) {
    return errors::ModelSizesDiffer(model_->name(), port.name, got, size, other);
  };
  for (size_t d = 0; d < port.shape.size(); ++d) {
    if (port.AxisOf(d) < 0) continue;
    const auto size = static_cast<int64_t>(tensor.shape(static_cast<int>(d)));
    int64_t& known = plan_sizes_[port.AxisOf(d)];
    if (known != 0 && known != size) {
      return differ(size, interface().dimensions[port.AxisOf(d)].name, known);
    }
    known = size;
  }
  if (!dynamic) return absl::OkStatus();
  const uint64_t rows = tensor.shape(0);
  const auto [found, is_new] = sizes_.try_emplace(port.scalar, rows);
  if (is_new || found->second == rows) return absl::OkStatus();
  return differ(rows, ScalarName(port.scalar), found->second);
}

absl::Status ModelWorkload::CheckOutputs() {
  const std::vector<ModelPort>& ports = interface().outputs;
  for (const std::string& name : message_.model().outputs()) {
    size_t i = 0;
    while (i < ports.size() && ports[i].name != name) ++i;
    if (i == ports.size()) {
      return errors::ModelTensorUnknown(model_->name(), "output", name, PortNames(ports));
    }
    for (const size_t other : wanted_) {
      if (other == i) return errors::ModelTensorTwice(model_->name(), name);
    }
    wanted_.push_back(i);
  }
  if (!wanted_.empty()) return absl::OkStatus();
  for (size_t i = 0; i < ports.size(); ++i) wanted_.push_back(i);
  return absl::OkStatus();
}

absl::Status ModelWorkload::SetScalars() {
  auto given = message_.model().scalars();
  for (const auto& [scalar, size] : sizes_) {
    const std::string name = ScalarName(scalar);
    if (given.contains(name)) return errors::ModelScalarIsSize(model_->name(), name);
    given[name] = static_cast<double>(size);
  }
  const LoadedGraph::Checked checked = model_->plans()->parts().checked;
  ASSIGN_OR_RETURN(const auto values, BindScalars(checked->graph, given, nullptr));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].has_value()) {
      return errors::ModelScalarMissing(model_->name(), interface().scalar_names[i]);
    }
    scalars_.push_back(*values[i]);
  }
  return absl::OkStatus();
}

uint64_t ModelWorkload::OutputBytes() const {
  uint64_t bytes = 0;
  for (const size_t i : wanted_) {
    const ModelPort& port = interface().outputs[i];
    uint64_t of_port = SizeOf(port.dtype);
    for (size_t d = 0; d < port.shape.size(); ++d) {
      const int32_t axis = port.AxisOf(d);
      of_port *= d == 0 && port.scalar != graph::kNone
                     ? Rows(port)
                     : static_cast<uint64_t>(axis >= 0 ? plan_sizes_[axis] : port.shape[d]);
    }
    bytes += of_port;
  }
  return bytes;
}

void ModelWorkload::AddNodeError(const RequestBatch& batch, const QuantumReport& report,
                                 const ModelInstance& instance, v1::BatchResult* result) {
  result->add_status(static_cast<v1::TaskStatus>(batch.status[0]));
  std::optional<uint32_t> node = report.failed_node;
  if (!node.has_value() && batch.suspect.has_value()) node = GraphTaskNode(*batch.suspect);
  const std::vector<uint32_t>& rows = instance.quanta->rows();
  const graph::CheckedGraph& checked = *instance.checked;
  if (!node.has_value() || *node >= checked.graph.nodes.size()) {
    return AddTaskError(batch, 0, 0, result);
  }
  const OperatorVersion& version = *instance.quanta->operators()[rows[*node]].version;
  RequestBatch of_node;
  of_node.operator_name = version.op->name();
  of_node.version = version.version;
  of_node.status = {batch.status[0]};
  of_node.detail = {batch.detail[0]};
  of_node.cause = batch.cause;
  AddTaskError(of_node, 0, 0, result);
  v1::TaskError& error = *result->mutable_errors(0);
  error.set_message(absl::StrCat("node ", checked.WrittenName(*node), ": ", error.message()));
  if (report.failed_node.has_value()) instance.quanta->CountFailure(*node, batch.status[0]);
}

}  // namespace resident
