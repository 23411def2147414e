#include "server/models/graph_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"
#include "server/graphs/graph_binding.h"
#include "server/models/errors.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

// An instance on loan, with a slot among the runs of graphs: each has one quantum at a time.
struct Loan {
  ~Loan() {
    if (instance == nullptr) return;
    // Versions of operators that the next request need not use may be removed meanwhile.
    instance->quanta->Pause();
    instances->Return(std::move(instance));
  }
  std::shared_ptr<ModelInstances> instances;
  SharedSlots::Ticket slot;
  std::unique_ptr<ModelInstance> instance;
};

class InstanceLender final : public Lender {
 public:
  explicit InstanceLender(std::shared_ptr<const GraphModel> model) : model_(std::move(model)) {}

  absl::StatusOr<std::shared_ptr<void>> TryBorrow() override {
    const ModelInstances::Parts& parts = model_->instances()->parts();
    Core& core = model_->graphs().core;
    const auto session = core.devices[parts.device]->session();
    if (session == nullptr) return errors::DeviceUnavailable(parts.device, "it has no engine");
    auto slot = model_->graphs().checker.run_slots().Take(
        absl::StrCat("model ", errors::Quote(model_->name())));
    if (!slot.ok()) return nullptr;
    ASSIGN_OR_RETURN(const LoadedGraph::Checked checked, parts.graph->FindChecked(core.registry));
    auto loan = std::make_shared<Loan>();
    loan->instances = model_->instances();
    loan->slot = *std::move(slot);
    ASSIGN_OR_RETURN(loan->instance, loan->instances->TryTake(checked, session->epoch()));
    if (loan->instance == nullptr) return nullptr;
    return std::shared_ptr<void>(std::move(loan));
  }

 private:
  const std::shared_ptr<const GraphModel> model_;
};

std::string PortNames(const std::vector<ModelPort>& ports) {
  return absl::StrJoin(ports, ", ", [](std::string* out, const ModelPort& port) {
    absl::StrAppend(out, "'", port.name, "'");
  });
}

// "[8 at most, 64]".
std::string ShapeText(const ModelPort& port) {
  std::vector<std::string> sizes;
  for (size_t d = 0; d < port.shape.size(); ++d) {
    const bool dynamic = d == 0 && port.scalar != graph::kNone;
    sizes.push_back(absl::StrCat(port.shape[d], dynamic ? " at most" : ""));
  }
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

class ModelWorkload final : public Workload {
 public:
  ModelWorkload(std::shared_ptr<const GraphModel> model, const v1::Batch& message, uint32_t version)
      : model_(std::move(model)),
        message_(message),
        version_(version),
        inputs_(interface().inputs.size()) {}

  absl::Status Check() override {
    const ModelInstances::Parts& parts = model_->instances()->parts();
    const v1::BatchOptions& options = message_.options();
    if (options.has_device() && options.device() != parts.device) {
      return errors::ModelOnOtherDevice(model_->name(), parts.device, options.device());
    }
    RETURN_IF_ERROR(CheckInputs());
    RETURN_IF_ERROR(CheckOutputs());
    return SetScalars();
  }

  Needs ResourcesNeeded() const override {
    Needs needs;
    needs.device = model_->instances()->parts().device;
    needs.tasks = 1;
    needs.host_bytes = sizeof(TaskDescriptor) + kTaskOutcomeBytes + OutputBytes();
    needs.lender = std::make_shared<InstanceLender>(model_);
    return needs;
  }

  absl::Status Prepare(const Ticket& ticket) override {
    ModelInstance& instance = *static_cast<Loan*>(ticket.loan())->instance;
    GraphQuanta::Steps steps;
    steps.budget = kModelTimeLimit;
    steps.skip_shadows = true;
    ASSIGN_OR_RETURN(quantum_, instance.quanta->Plan(steps, scalars_));
    return absl::OkStatus();
  }

  void Fill(const Ticket& ticket, RequestBatch& batch) override {
    instance_ = static_cast<Loan*>(ticket.loan())->instance.get();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const std::string& data = inputs_[i]->data();
      std::memcpy(instance_->host() + instance_->inputs[i], data.data(), data.size());
    }
    inputs_.clear();
    quantum_->FillAt(*instance_->staging.staging(), batch);
    batch.operator_name = model_->name();
    batch.version = version_;
  }

  bool WantsShadow(const RequestBatch&) const override { return false; }

  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override {
    const QuantumReport report = quantum_->ReadReport();
    if (report.end != GraphEnd::kNone) {
      instance_->quanta->Read(*quantum_, report, batch.device_ns[0]);
    }
    result->add_device_ns(batch.device_ns[0]);
    const bool late = batch.failed == 0 && report.end == GraphEnd::kQuantum;
    model_->CountRequest(batch.failed == 0 && !late, batch.device_ns[0]);
    if (batch.failed > 0) return AddNodeError(batch, report, result);
    if (late) return AddLateError(result);
    for (const size_t i : wanted_) {
      const ModelPort& port = interface().outputs[i];
      const auto* const bytes =
          reinterpret_cast<const char*>(instance_->host() + instance_->outputs[i]);
      result->add_outputs(bytes, port.BytesAt(Rows(port)));
      v1::TensorType* const type = result->add_output_types();
      type->set_name(port.name);
      type->set_dtype(static_cast<v1::DType>(port.dtype));
      for (const int64_t size : port.shape) type->add_shape(static_cast<uint64_t>(size));
      if (port.scalar != graph::kNone) type->set_shape(0, Rows(port));
    }
  }

 private:
  const ModelInterface& interface() const { return model_->interface(); }
  // The size of the outermost dimension, if it is dynamic.
  uint64_t Rows(const ModelPort& port) const {
    return port.scalar == graph::kNone ? 0 : static_cast<uint64_t>(scalars_[port.scalar]);
  }

  absl::Status CheckInputs() {
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

  // Also sets the size of the input in `sizes_`.
  absl::Status CheckInput(const ModelPort& port, const v1::ModelTensor& tensor) {
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
    for (size_t d = 0; fits && d < port.shape.size(); ++d) {
      const uint64_t size = tensor.shape(static_cast<int>(d));
      const auto max = static_cast<uint64_t>(port.shape[d]);
      fits = dynamic && d == 0 ? size >= 1 && size <= max : size == max;
    }
    if (!fits) {
      return refuse("shape", absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"),
                    ShapeText(port));
    }
    const uint64_t rows = dynamic ? tensor.shape(0) : 0;
    const uint64_t bytes = port.BytesAt(rows);
    if (tensor.data().size() != bytes) {
      return refuse("number of bytes", absl::StrCat(tensor.data().size()), absl::StrCat(bytes));
    }
    if (!dynamic) return absl::OkStatus();
    const auto [found, is_new] = sizes_.try_emplace(port.scalar, rows);
    if (is_new || found->second == rows) return absl::OkStatus();
    return errors::ModelSizesDiffer(model_->name(), port.name, rows, ScalarName(port.scalar),
                                    found->second);
  }

  std::string ScalarName(uint32_t scalar) const { return model_->interface().scalar_names[scalar]; }

  absl::Status CheckOutputs() {
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

  absl::Status SetScalars() {
    auto given = message_.model().scalars();
    for (const auto& [scalar, size] : sizes_) {
      const std::string name = ScalarName(scalar);
      if (given.contains(name)) return errors::ModelScalarIsSize(model_->name(), name);
      given[name] = static_cast<double>(size);
    }
    const LoadedGraph::Checked checked = model_->instances()->parts().checked;
    ASSIGN_OR_RETURN(const auto values, BindScalars(checked->graph, given, nullptr));
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].has_value()) {
        return errors::ModelScalarMissing(model_->name(), interface().scalar_names[i]);
      }
      scalars_.push_back(*values[i]);
    }
    return absl::OkStatus();
  }

  uint64_t OutputBytes() const {
    uint64_t bytes = 0;
    for (const size_t i : wanted_) {
      const ModelPort& port = interface().outputs[i];
      bytes += port.BytesAt(Rows(port));
    }
    return bytes;
  }

  // The error of the node that failed, or of the request as a whole.
  void AddNodeError(const RequestBatch& batch, const QuantumReport& report,
                    v1::BatchResult* result) const {
    result->add_status(static_cast<v1::TaskStatus>(batch.status[0]));
    std::optional<uint32_t> node = report.failed_node;
    if (!node.has_value() && batch.suspect.has_value()) node = GraphTaskNode(*batch.suspect);
    const std::vector<uint32_t>& rows = instance_->quanta->rows();
    const graph::CheckedGraph& checked = *instance_->checked;
    if (!node.has_value() || *node >= checked.graph.nodes.size()) {
      return AddTaskError(batch, 0, 0, result);
    }
    const OperatorVersion& version = *instance_->quanta->operators()[rows[*node]].version;
    RequestBatch of_node;
    of_node.operator_name = version.op->name();
    of_node.version = version.version;
    of_node.status = {batch.status[0]};
    of_node.detail = {batch.detail[0]};
    of_node.cause = batch.cause;
    AddTaskError(of_node, 0, 0, result);
    v1::TaskError& error = *result->mutable_errors(0);
    error.set_message(absl::StrCat("node ", checked.WrittenName(*node), ": ", error.message()));
    if (report.failed_node.has_value()) instance_->quanta->CountFailure(*node, batch.status[0]);
  }

  static void AddLateError(v1::BatchResult* result) {
    result->add_status(v1::TASK_STATUS_ABORTED);
    v1::TaskError* const error = result->add_errors();
    error->set_status(v1::TASK_STATUS_ABORTED);
    error->set_message(errors::ModelTooSlow(kModelTimeLimit));
  }

  const std::shared_ptr<const GraphModel> model_;
  const v1::Batch& message_;
  const uint32_t version_;
  // By index in ModelInterface::inputs; until Fill.
  std::vector<const v1::ModelTensor*> inputs_;
  std::vector<size_t> wanted_;          // Indices in ModelInterface::outputs.
  std::map<uint32_t, uint64_t> sizes_;  // By scalar.
  std::vector<double> scalars_;
  std::unique_ptr<QuantumWorkload> quantum_;
  ModelInstance* instance_ = nullptr;  // On loan to the batch's ticket.
};

void FillPort(const ModelPort& port, v1::ModelTensorInfo* out) {
  out->set_name(port.name);
  out->set_dtype(static_cast<v1::DType>(port.dtype));
  for (const int64_t size : port.shape) out->add_shape(size);
  if (port.scalar == graph::kNone) return;
  out->set_max(static_cast<uint64_t>(port.shape[0]));
  out->set_shape(0, -1);
}

}  // namespace

std::unique_ptr<Workload> GraphModel::MakeWorkload(const v1::Batch& message,
                                                   uint32_t version) const {
  return std::make_unique<ModelWorkload>(shared_from_this(), message, version);
}

void GraphModel::Describe(v1::ModelVersion* out) const {
  const ModelInstances::Parts& parts = instances_->parts();
  out->set_content_hash(content_hash());
  out->set_device(parts.device);
  out->set_nodes(parts.graph->nodes());
  out->set_weight_bytes(instances_->weight_bytes());
  out->set_instances(instances_->count());
  out->set_max_instances(parts.max_instances);
  for (const ModelPort& port : interface().inputs) FillPort(port, out->add_inputs());
  for (const ModelPort& port : interface().outputs) FillPort(port, out->add_outputs());
  const graph::Graph& graph = parts.checked->graph;
  for (uint32_t i = 0; i < graph.scalars.size(); ++i) {
    const bool is_size = std::any_of(interface().inputs.begin(), interface().inputs.end(),
                                     [&](const ModelPort& port) { return port.scalar == i; });
    if (is_size) continue;
    const graph::Scalar& scalar = graph.scalars[i];
    v1::GraphScalar* const to = out->add_scalars();
    to->set_name(interface().scalar_names[i]);
    to->set_dtype(static_cast<v1::DType>(scalar.dtype));
    to->set_least(scalar.min);
    to->set_most(scalar.max);
    if (scalar.initial.has_value()) to->set_initial(*scalar.initial);
  }
  out->set_requests(requests_.load(std::memory_order_relaxed));
  out->set_device_ns(device_ns_.load(std::memory_order_relaxed));
  out->set_failed(failed_.load(std::memory_order_relaxed));
}

}  // namespace resident
