#include "server/models/model_graph.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"
#include "server/models/errors.h"

namespace resident {
namespace {

using graph::TensorKind;

// An input up to this size that one node reads is read where the request's bytes are.
constexpr uint64_t kMaxDirectBytes = 16u << 10;
constexpr char kCopyOperator[] = "copy";

// The largest number of bytes of a tensor; a large number if that does not fit.
uint64_t MaxBytes(const v1::Graph& graph, const v1::GraphTensor& tensor) {
  double bytes = static_cast<double>(SizeOf(static_cast<DType>(tensor.dtype())));
  for (const v1::GraphDim& dim : tensor.shape()) {
    double size = static_cast<double>(dim.size());
    for (const v1::GraphScalar& scalar : graph.scalars()) {
      if (!dim.scalar().empty() && scalar.name() == dim.scalar()) size = scalar.most();
    }
    bytes *= size;
  }
  return bytes < 1e18 ? static_cast<uint64_t>(bytes) : uint64_t{1} << 60;
}

class CopyWriter {
 public:
  explicit CopyWriter(v1::Graph graph) : graph_(std::move(graph)) {
    for (const v1::GraphTensor& tensor : graph_.tensors()) names_.insert(tensor.name());
    for (const v1::GraphTensor& tensor : graph_.tensors()) {
      roots_[tensor.name()] = tensor.alias_of().empty() ? tensor.name() : tensor.alias_of();
      if (!tensor.alias_of().empty()) ++uses_[tensor.alias_of()];
    }
    for (const v1::GraphNode& node : graph_.nodes()) {
      for (const v1::GraphArgument& argument : node.arguments()) {
        if (argument.has_tensor()) ++uses_[roots_[argument.tensor().name()]];
      }
    }
  }

  v1::Graph Write() {
    const int tensors = graph_.tensors_size();
    for (int i = 0; i < tensors; ++i) {
      const v1::GraphTensor& tensor = graph_.tensors(i);
      if (!tensor.alias_of().empty()) continue;
      const bool input = tensor.kind() == v1::GraphTensor::KIND_INPUT;
      const bool output = tensor.kind() == v1::GraphTensor::KIND_OUTPUT;
      const bool direct =
          uses_[tensor.name()] <= 1 && (output || MaxBytes(graph_, tensor) <= kMaxDirectBytes);
      if ((input || output) && !direct) AddCopy(i, input);
    }
    MoveUses();
    return std::move(graph_);
  }

 private:
  // A tensor on the device for the one at `index`, and the copy between them.
  void AddCopy(int index, bool input) {
    v1::GraphTensor inner = graph_.tensors(index);
    const std::string outer = inner.name();
    for (int i = 0; names_.contains(inner.name()); ++i) {
      inner.set_name(absl::StrCat(input ? "input" : "output", index, "-", i));
    }
    inner.set_kind(v1::GraphTensor::KIND_ACTIVATION);
    inner.clear_id();
    names_.insert(inner.name());
    inner_[outer] = inner.name();
    v1::GraphNode copy;
    copy.set_operator_(kCopyOperator);
    copy.add_arguments()->mutable_tensor()->set_name(input ? outer : inner.name());
    copy.add_arguments()->mutable_tensor()->set_name(input ? inner.name() : outer);
    copy.set_name(absl::StrCat("copy of ", inner.name()));
    (input ? first_ : last_).push_back(std::move(copy));
    *graph_.add_tensors() = std::move(inner);
  }

  // Lets all nodes and aliases use the tensors on the device, and adds the copies.
  void MoveUses() {
    if (inner_.empty()) return;
    for (v1::GraphTensor& tensor : *graph_.mutable_tensors()) {
      const auto found = inner_.find(tensor.alias_of());
      if (tensor.alias_of().empty() || found == inner_.end()) continue;
      tensor.set_alias_of(found->second);
      tensor.set_kind(v1::GraphTensor::KIND_ACTIVATION);
    }
    google::protobuf::RepeatedPtrField<v1::GraphNode> nodes;
    for (v1::GraphNode& copy : first_) *nodes.Add() = std::move(copy);
    for (int i = 0; i < graph_.nodes_size(); ++i) {
      v1::GraphNode& node = *graph_.mutable_nodes(i);
      if (node.name().empty()) node.set_name(absl::StrCat("#", i));
      node.clear_id();
      for (v1::GraphArgument& argument : *node.mutable_arguments()) {
        if (!argument.has_tensor()) continue;
        const auto found = inner_.find(argument.tensor().name());
        if (found != inner_.end()) argument.mutable_tensor()->set_name(found->second);
      }
      *nodes.Add() = std::move(node);
    }
    for (v1::GraphNode& copy : last_) *nodes.Add() = std::move(copy);
    graph_.mutable_nodes()->Swap(&nodes);
  }

  v1::Graph graph_;
  std::set<std::string> names_;
  std::map<std::string, std::string> roots_;
  // By root: nodes and aliases that use it.
  std::map<std::string, int> uses_;
  // By input or output: the tensor on the device.
  std::map<std::string, std::string> inner_;
  std::vector<v1::GraphNode> first_;
  std::vector<v1::GraphNode> last_;
};

bool IsDense(const graph::Graph& graph, const graph::View& view) {
  auto stride = static_cast<int64_t>(SizeOf(view.dtype));
  const auto axes = graph.AxesOf(view);
  for (size_t d = axes.size(); d-- > 0;) {
    if (axes[d].size != 1 && axes[d].stride != stride) return false;
    stride *= axes[d].size;
  }
  return view.offset == 0;
}

absl::StatusOr<ModelPort> ReadPort(const graph::Graph& graph, uint32_t index) {
  const graph::Tensor& tensor = graph.tensors[index];
  const std::string name(tensor.name);
  if (!IsDense(graph, tensor.view)) {
    return errors::NotAModel(absl::StrCat("tensor '", name, "' is not dense"),
                             "give inputs and outputs neither strides nor an offset");
  }
  ModelPort port{.name = name, .tensor = index, .dtype = tensor.view.dtype, .shape = {}};
  const auto axes = graph.AxesOf(tensor.view);
  for (size_t d = 0; d < axes.size(); ++d) {
    port.shape.push_back(axes[d].size);
    if (axes[d].scalar == graph::kNone) continue;
    if (d > 0) {
      return errors::NotAModel(absl::StrCat("dimension ", d, " of tensor '", name,
                                            "' is dynamic, and not the outermost"),
                               "load a model for each size");
    }
    port.scalar = axes[d].scalar;
  }
  port.bytes = static_cast<uint64_t>(graph.root_bytes[index]);
  return port;
}

// A view with fixed sizes or a fixed offset may lie within its tensor only if a dynamic size is
// large. With a smaller one it would cover what an earlier request left there; for activations the
// check of the graph finds that, but inputs count as written. What a view covers and what the
// tensor has grow linearly with each size: it suffices to look at the ends of its range.
absl::Status CheckViews(const graph::Graph& graph) {
  std::vector<double> values;
  std::set<uint32_t> sizes;
  for (const graph::Scalar& scalar : graph.scalars) values.push_back(scalar.max);
  for (const graph::Axis& axis : graph.axes) {
    if (axis.scalar != graph::kNone) sizes.insert(axis.scalar);
  }
  for (const uint32_t size : sizes) {
    values[size] = std::max(graph.scalars[size].min, 1.0);
    const auto covers = [&](const graph::View& outer, const graph::View& inner) {
      const auto hull_of = [&](const graph::View& view) {
        return graph::FindHull(ExtentsAt(graph, view, values), view.offset, SizeOf(view.dtype));
      };
      const auto all = hull_of(outer), part = hull_of(inner);
      return all.has_value() && part.has_value() && part->low >= all->low &&
             part->high <= all->high;
    };
    const auto refuse = [&](const std::string& what, const graph::Tensor& tensor) {
      return errors::NotAModel(
          absl::StrCat(what, " covers elements of tensor '", std::string(tensor.name),
                       "' that it does not have if ", std::string(graph.scalars[size].name), " is ",
                       values[size]),
          "use a smaller view, or a larger least value of the scalar");
    };
    for (const graph::Tensor& tensor : graph.tensors) {
      const graph::Tensor& root = graph.tensors[tensor.root];
      if (!covers(root.view, tensor.view)) {
        return refuse(absl::StrCat("tensor '", std::string(tensor.name), "'"), root);
      }
    }
    for (uint32_t i = 0; i < graph.nodes.size(); ++i) {
      for (const graph::Argument& argument : graph.ArgumentsOf(graph.nodes[i])) {
        if (argument.kind != graph::Argument::Kind::kTensor) continue;
        const graph::Tensor& tensor = graph.tensors[argument.tensor];
        if (!covers(tensor.view, argument.view)) {
          return refuse(absl::StrCat("node ", graph.NodeName(i)), tensor);
        }
      }
    }
    values[size] = graph.scalars[size].max;
  }
  return absl::OkStatus();
}

}  // namespace

v1::Graph AddDeviceCopies(v1::Graph graph) {
  if (graph.counters_size() > 0 || graph.blocks() > 0) return graph;
  return CopyWriter(std::move(graph)).Write();
}

absl::StatusOr<ModelInterface> ReadInterface(const graph::Graph& graph) {
  if (graph.loop.has_value()) {
    return errors::NotAModel("it has a loop", "run it with Graphs.Run, or remove the loop");
  }
  ModelInterface interface;
  for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
    const graph::Tensor& tensor = graph.tensors[i];
    const std::string name(tensor.name);
    switch (tensor.kind) {
      case TensorKind::kState:
        return errors::NotAModel(
            absl::StrCat("tensor '", name, "' is a state, and requests share nothing"),
            "make it an input and an output");
      case TensorKind::kStream:
        return errors::NotAModel(absl::StrCat("tensor '", name, "' is a stream"),
                                 "make it an output");
      case TensorKind::kInput:
      case TensorKind::kOutput: {
        if (tensor.root != i) break;
        ASSIGN_OR_RETURN(ModelPort port, ReadPort(graph, i));
        const bool input = tensor.kind == TensorKind::kInput;
        (input ? interface.inputs : interface.outputs).push_back(std::move(port));
        break;
      }
      case TensorKind::kWeight:
      case TensorKind::kConst:
        if (tensor.root == i) interface.weights.push_back(i);
        break;
      case TensorKind::kActivation:
        break;
    }
  }
  for (const graph::Scalar& scalar : graph.scalars) {
    interface.scalar_names.emplace_back(scalar.name);
  }
  if (interface.outputs.empty()) {
    return errors::NotAModel("it has no output", "make a tensor an output");
  }
  RETURN_IF_ERROR(CheckViews(graph));
  return interface;
}

absl::Status SetDimensions(const internal::PlanRules& rules, ModelInterface* interface) {
  for (const internal::PlanRules::Dimension& dimension : rules.dimensions()) {
    interface->dimensions.push_back({ToUtf8(dimension.name()), dimension.most()});
  }
  if (interface->dimensions.empty()) return absl::OkStatus();
  const auto wrong = [](const std::string& tensor) {
    return absl::InternalError(
        absl::StrCat("the plans of the model do not fit its tensor ", errors::Quote(tensor)));
  };
  for (auto* const ports : {&interface->inputs, &interface->outputs}) {
    for (ModelPort& port : *ports) {
      for (const internal::PlanRules::Port& rule : rules.ports()) {
        if (rule.tensor() == port.name) port.axes.assign(rule.axes().begin(), rule.axes().end());
      }
      if (port.axes.size() != port.shape.size()) return wrong(port.name);
      for (size_t d = 0; d < port.axes.size(); ++d) {
        const int32_t axis = port.axes[d];
        const bool of_scalar = d == 0 && port.scalar != graph::kNone;
        if (axis < ModelPort::kComputedAxis || axis >= rules.dimensions_size() ||
            (axis != ModelPort::kFixedAxis && of_scalar) ||
            (axis >= 0 && interface->dimensions[axis].max != port.shape[d])) {
          return wrong(port.name);
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SortPorts(const ModelInterface& version, const std::vector<int64_t>& sizes,
                       ModelInterface* plan) {
  if (version.scalar_names != plan->scalar_names) {
    return errors::ModelPlanDiffers("its scalars are not those of the largest sizes");
  }
  const auto sort = [&](const std::vector<ModelPort>& wanted,
                        std::vector<ModelPort>* ports) -> absl::Status {
    std::vector<ModelPort> sorted;
    for (const ModelPort& port : wanted) {
      const auto found = std::ranges::find(*ports, port.name, &ModelPort::name);
      bool fits = found != ports->end() && found->dtype == port.dtype &&
                  found->scalar == port.scalar && found->shape.size() == port.shape.size() &&
                  found->bytes <= port.bytes;
      for (size_t d = 0; fits && d < port.shape.size(); ++d) {
        fits = port.AxisOf(d) < 0 || found->shape[d] == sizes[port.AxisOf(d)];
      }
      if (!fits) {
        return errors::ModelPlanDiffers(
            absl::StrCat("tensor ", errors::Quote(port.name),
                         " has another form than with the largest sizes, or is larger"));
      }
      sorted.push_back(std::move(*found));
    }
    if (sorted.size() != ports->size()) {
      return errors::ModelPlanDiffers("it has other tensors than with the largest sizes");
    }
    *ports = std::move(sorted);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(sort(version.inputs, &plan->inputs));
  return sort(version.outputs, &plan->outputs);
}

}  // namespace resident
