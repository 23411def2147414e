#include "server/onnx/nodes/graph_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/sha256.h"
#include "runtime/base/utf8.h"
#include "runtime/model/dtype.h"
#include "server/onnx/nodes/model_error.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

constexpr size_t kMaxGraphName = 128;
constexpr size_t kHashDigits = 16;

// Names of weights begin with it if they are no initializers; no other tensor's name does.
constexpr char kComputed[] = "computed.";

std::string ComputedWeightName(const Constant& constant) {
  Sha256 hash;
  hash.Field(TypeName(constant.type)).Field(ShapeText(constant.shape)).Field(HashContent(constant));
  return StrCat(kComputed, hash.Hex().substr(0, kHashDigits));
}

}  // namespace

std::string GraphName(const std::string& name) {
  if (name.size() <= kMaxGraphName) return name;
  return StrCat(CutUtf8(name, kMaxGraphName - kHashDigits - 1), ".",
                Sha256Hex(name).substr(0, kHashDigits));
}

GraphWriter::GraphWriter(const absl::flat_hash_map<std::string, Constant>& constants)
    : constants_(constants) {
  for (const auto& [name, constant] : constants) reserved_names_.insert(GraphName(name));
}

std::string GraphWriter::UniqueName(const std::string& name) {
  const std::string base =
      absl::StartsWith(name, kComputed) ? GraphName(StrCat("_", name)) : GraphName(name);
  std::string unique = base;
  while (reserved_names_.contains(unique) || !names_.insert(unique).second) {
    unique = StrCat(CutUtf8(base, kMaxGraphName - 12), "~", ++repeats_[base]);
  }
  return unique;
}

Value GraphWriter::NewTensor(v1::GraphTensor::Kind kind, const std::string& name, ElementType type,
                             const Sizes64& shape) {
  // An input or output has the name that was kept for it.
  const bool named = kind == v1::GraphTensor::KIND_INPUT || kind == v1::GraphTensor::KIND_OUTPUT;
  if (named && names_.insert(GraphName(name)).second) {
    return AddTensor(kind, GraphName(name), type, shape);
  }
  return AddTensor(kind, UniqueName(name), type, shape);
}

int GraphWriter::NewWeight(const std::string& name, const Constant& constant) {
  const std::string graph_name = GraphName(name);
  if (!names_.insert(graph_name).second) {
    status_ = ModelError(104, StrCat("two weights have the name ", errors::Quote(graph_name)));
  }
  const int tensor =
      AddTensor(v1::GraphTensor::KIND_WEIGHT, graph_name, constant.type, constant.shape).tensor;
  named_weights_[name] = tensor;
  weights_[tensor] = {graph_name, DTypeOf(constant.type), constant.shape, constant.bytes};
  return tensor;
}

Value GraphWriter::AddTensor(v1::GraphTensor::Kind kind, std::string name, ElementType type,
                             const Sizes64& shape) {
  v1::GraphTensor& tensor = tensors_.emplace_back();
  types_.push_back(type);
  tensor.set_name(std::move(name));
  tensor.set_kind(kind);
  tensor.set_dtype(static_cast<v1::DType>(DTypeOf(type)));
  for (const int64_t size : shape) tensor.add_shape()->set_size(size);
  const int64_t elements = CountElements(shape).value_or(kMaxActivationBytes);
  if (kind == v1::GraphTensor::KIND_ACTIVATION || kind == v1::GraphTensor::KIND_OUTPUT) {
    activation_bytes_ += std::min(elements, kMaxActivationBytes) * SizeOf(DTypeOf(type));
  }
  if (activation_bytes_ > kMaxActivationBytes) {
    status_ = ModelError(501, StrCat("the values of the graph need more than ", kMaxActivationBytes,
                                     " bytes. Fix: reduce the maximum sizes"));
    activation_bytes_ = kMaxActivationBytes;
  }
  return Whole(static_cast<int>(tensors_.size()) - 1);
}

Value GraphWriter::Whole(int tensor) const {
  Value value;
  value.kind = Value::Kind::kView;
  value.known = true;
  value.type = types_[static_cast<size_t>(tensor)];
  for (const v1::GraphDim& dim : tensors_[static_cast<size_t>(tensor)].shape()) {
    value.shape.push_back(dim.size());
  }
  value.tensor = tensor;
  value.strides = DenseStrides(value.shape);
  return value;
}

Value GraphWriter::Materialize(const Value& value) {
  if (!value.is_constant()) return value;
  Constant constant = value.constant;
  constant.shape = value.shape;
  int tensor = -1;
  const auto initializer = constants_.find(constant.name);
  if (!constant.name.empty() && !io_names_.contains(GraphName(constant.name)) &&
      initializer != constants_.end() && initializer->second.bytes == constant.bytes &&
      initializer->second.type == constant.type) {
    constant.shape = initializer->second.shape;
    const auto found = named_weights_.find(constant.name);
    tensor = found != named_weights_.end() ? found->second : NewWeight(constant.name, constant);
  } else {
    const auto key = std::make_tuple(constant.bytes.get(), constant.type, constant.shape);
    const auto found = computed_weights_.find(key);
    if (found != computed_weights_.end()) {
      tensor = found->second;
    } else {
      // Equal contents that were computed twice are one weight.
      const std::string name = ComputedWeightName(constant);
      const auto same = named_weights_.find(name);
      tensor = same != named_weights_.end() ? same->second : NewWeight(name, constant);
      computed_weights_[key] = tensor;
      kept_.push_back(constant.bytes);
    }
  }
  Value view = Whole(tensor);
  view.shape = value.shape;
  view.strides = DenseStrides(view.shape);
  return view;
}

v1::GraphArgument GraphWriter::View(const Value& value) {
  v1::GraphArgument argument;
  v1::GraphView& view = *argument.mutable_tensor();
  view.set_name(tensor_name(value.tensor));
  const Value whole = Whole(value.tensor);
  if (value.offset == 0 && value.shape == whole.shape && IsDense(value)) return argument;
  view.set_offset(value.offset);
  view.set_scalar_shape(value.shape.empty());
  const Sizes64 dense = DenseStrides(value.shape);
  for (size_t d = 0; d < value.rank(); ++d) {
    view.add_shape()->set_size(value.size(d));
    view.add_strides(value.size(d) == 1 ? dense[d] : value.strides[d]);
  }
  return argument;
}

GraphWriter::Argument GraphWriter::In(const Value& value) {
  const Value view = Materialize(value);
  return {View(view), view.tensor, false};
}

GraphWriter::Argument GraphWriter::Out(const Value& view) {
  return {View(view), view.tensor, true};
}

GraphWriter::Argument GraphWriter::Real(double value) {
  Argument argument;
  argument.message.set_f64(value);
  return argument;
}

GraphWriter::Argument GraphWriter::Integer(int64_t value) {
  Argument argument;
  argument.message.set_i64(value);
  return argument;
}

GraphWriter::Argument GraphWriter::None() {
  Argument argument;
  argument.message.set_none(true);
  return argument;
}

void GraphWriter::Call(const char* op, std::vector<Argument> arguments) {
  if (static_cast<int64_t>(calls_.size()) >= kMaxGraphNodes) {
    status_ = ModelError(501, StrCat("the graph needs more than ", kMaxGraphNodes, " nodes"));
    return;
  }
  calls_.push_back({op, node_name_, std::move(arguments)});
}

void GraphWriter::CallPointwise(Expression expression, std::vector<Argument> inputs, Argument out) {
  inputs.push_back(std::move(out));
  const size_t before = calls_.size();
  Call("pointwise", std::move(inputs));
  if (calls_.size() > before) calls_.back().expression = std::move(expression);
}

std::vector<bool> GraphWriter::FindNeededCalls(std::vector<bool>* needed_tensors) const {
  std::vector<bool> calls(calls_.size());
  needed_tensors->assign(tensors_.size(), false);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const v1::GraphTensor::Kind kind = tensors_[i].kind();
    (*needed_tensors)[i] =
        kind == v1::GraphTensor::KIND_INPUT || kind == v1::GraphTensor::KIND_OUTPUT;
  }
  for (size_t i = calls_.size(); i-- > 0;) {
    const std::vector<Argument>& arguments = calls_[i].arguments;
    calls[i] = std::any_of(arguments.begin(), arguments.end(), [&](const Argument& argument) {
      return argument.written && (*needed_tensors)[static_cast<size_t>(argument.tensor)];
    });
    if (!calls[i]) continue;
    for (const Argument& argument : arguments) {
      if (argument.tensor >= 0) (*needed_tensors)[static_cast<size_t>(argument.tensor)] = true;
    }
  }
  return calls;
}

void GraphWriter::Finish(MappingChoices* choices, v1::Graph* graph, std::vector<Weight>* weights) {
  JoinChains(choices);
  for (Record& call : calls_) {
    if (!call.expression.has_value()) continue;
    // The program and absent inputs.
    std::string bytes = *call.expression->Assemble();
    Constant program = {ElementType::kInt64,
                        {static_cast<int64_t>(bytes.size()) / 16, 2},
                        std::make_shared<const std::string>(std::move(bytes)),
                        ""};
    call.arguments.insert(call.arguments.begin(), In(ConstantValue(std::move(program))));
    const size_t inputs = call.expression->inputs();
    call.arguments.insert(call.arguments.begin() + static_cast<int64_t>(inputs) + 1,
                          pointwise::kInputs - inputs, None());
  }
  std::vector<bool> needed;
  const std::vector<bool> calls = FindNeededCalls(&needed);
  graph->set_format(1);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!needed[i]) continue;
    *graph->add_tensors() = tensors_[i];
    const auto weight = weights_.find(static_cast<int>(i));
    if (weight != weights_.end()) weights->push_back(weight->second);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i]) continue;
    v1::GraphNode& node = *graph->add_nodes();
    // Several calls of one node of the model are told apart by a number.
    const std::string name = GraphName(calls_[i].name);
    const int repeats = node_names_[name]++;
    node.set_name(repeats == 0 ? name : StrCat(CutUtf8(name, kMaxGraphName - 12), "#", repeats));
    if (repeats != 0 && node_names_.contains(node.name())) node.clear_name();
    if (!node.name().empty() && repeats != 0) node_names_[node.name()] = 1;
    node.set_operator_(calls_[i].op);
    for (Argument& argument : calls_[i].arguments) {
      *node.add_arguments() = std::move(argument.message);
    }
  }
}

}  // namespace resident::onnx
