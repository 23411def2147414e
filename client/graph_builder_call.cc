
#include "client/graph_builder_call.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/errors.h"
#include "client/graph_builder.h"
#include "runtime/base/nearest.h"
#include "runtime/model/call_arguments.h"
#include "runtime/model/dtype.h"

namespace resident::client {
namespace {

using ModelShape = resident::Shape;

// Whether a call gives it with the tensors, in their order.
bool IsPositional(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kInput || parameter.kind == ParameterKind::kInOut;
}

bool IsResult(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kOutput || parameter.kind == ParameterKind::kInOut;
}

std::string DescribeKind(const Parameter& parameter) {
  if (!parameter.scalar()) {
    return parameter.kind == ParameterKind::kInOut ? "a tensor, a dtype or New{dtype, shape}"
                                                   : "a tensor";
  }
  return IsFloat(parameter.dtypes[0]) ? "a number or a scalar" : "an integer or a scalar";
}

std::string JoinNames(const std::vector<Parameter>& parameters) {
  return absl::StrJoin(parameters, ", ", [](std::string* out, const Parameter& parameter) {
    out->append(parameter.name);
  });
}

}  // namespace

void GraphBuilder::Operator(const std::string& name, const std::string& signature) {
  absl::StatusOr<Signature> parsed = Signature::Parse(signature);
  if (!parsed.ok()) return AddError(parsed.status());
  operators_[name] =
      std::make_unique<OperatorSignature>(OperatorSignature{name, *std::move(parsed)});
}

const GraphBuilder::OperatorSignature* GraphBuilder::FindOperator(const std::string& name) {
  const auto declared = operators_.find(name);
  if (declared != operators_.end()) return declared->second.get();
  if (client_ == nullptr || operators_loaded_ || !lookup_.ok()) return nullptr;
  const absl::StatusOr<std::vector<v1::Operator>> served = client_->ListOperators();
  if (!served.ok()) {
    lookup_ = served.status();
    return nullptr;
  }
  operators_loaded_ = true;
  for (const v1::Operator& op : *served) {
    absl::StatusOr<Signature> parsed = Signature::Parse(op.signature());
    // A FLUX program has no signature.
    if (!parsed.ok()) continue;
    operators_.try_emplace(op.name(), std::make_unique<OperatorSignature>(
                                          OperatorSignature{op.name(), *std::move(parsed)}));
  }
  const auto found = operators_.find(name);
  return found == operators_.end() ? nullptr : found->second.get();
}

GraphBuilder& GraphBuilder::Named(std::string node) {
  node_name_ = std::move(node);
  return *this;
}

GraphBuilder& GraphBuilder::Version(uint32_t version) {
  version_ = version;
  return *this;
}

GraphBuilder::Tensor GraphBuilder::Call(const std::string& operator_name,
                                        const std::vector<Argument>& tensors,
                                        const std::vector<Setting>& settings) {
  const std::string node =
      node_name_.empty() ? absl::StrCat(operator_name, graph_.nodes_size()) : node_name_;
  std::vector<Tensor> results = CallAll(operator_name, tensors, settings);
  if (results.size() == 1) return std::move(results[0]);
  if (!results.empty()) {
    AddError(errors::CallResultCount({node, operator_name}, results.size()));
  }
  return {};
}

std::vector<GraphBuilder::Tensor> GraphBuilder::CallAll(const std::string& operator_name,
                                                        const std::vector<Argument>& tensors,
                                                        const std::vector<Setting>& settings) {
  CallState call;
  call.node = node_name_.empty() ? absl::StrCat(operator_name, graph_.nodes_size()) : node_name_;
  node_name_.clear();
  const uint32_t version = std::exchange(version_, 0);
  call.op = FindOperator(operator_name);
  if (call.op == nullptr) {
    if (lookup_.ok()) {
      std::vector<std::string_view> names;
      for (const auto& [name, op] : operators_) names.push_back(name);
      AddError(
          errors::CallOfUnknownOperator({call.node, operator_name}, Nearest(operator_name, names)));
    }
    return {};
  }
  call.values.resize(call.parameters().size());
  const size_t results =
      static_cast<size_t>(std::count_if(call.parameters().begin(), call.parameters().end(),
                                        [](const Parameter& p) { return IsResult(p); }));
  // Both, so that one Build() shows the errors of both.
  const bool set = AssignSettings(call, settings);
  if (!AssignTensors(call, tensors) || !set || !AssignResults(call) || !CheckValues(call)) {
    return std::vector<Tensor>(results);
  }
  EmitNode(call);
  if (version > 0) graph_.mutable_nodes(graph_.nodes_size() - 1)->set_version(version);
  return std::move(call.results);
}

bool GraphBuilder::AssignSettings(CallState& call, const std::vector<Setting>& settings) {
  const errors::CallRef place{call.node, call.op->name};
  bool good = true;
  for (const Setting& setting : settings) {
    const auto found =
        std::find_if(call.parameters().begin(), call.parameters().end(),
                     [&](const Parameter& p) { return p.name == setting.parameter; });
    if (found == call.parameters().end()) {
      AddError(
          errors::CallUnknownParameter(place, setting.parameter, JoinNames(call.parameters())));
      good = false;
      continue;
    }
    std::optional<Value>& value =
        call.values[static_cast<size_t>(found - call.parameters().begin())];
    if (value.has_value()) {
      AddError(errors::CallParameterTwice(place, setting.parameter));
      good = false;
    }
    value = setting.value;
  }
  return good;
}

bool GraphBuilder::AssignTensors(CallState& call, const std::vector<Argument>& tensors) {
  std::vector<size_t> open;
  std::vector<std::string> names;
  for (size_t p = 0; p < call.parameters().size(); ++p) {
    if (!IsPositional(call.parameters()[p]) || call.values[p].has_value()) continue;
    open.push_back(p);
    names.push_back(call.parameters()[p].name);
  }
  if (open.size() != tensors.size()) {
    AddError(errors::CallInputCount({call.node, call.op->name}, tensors.size(),
                                    absl::StrJoin(names, ", "), open.size()));
    return false;
  }
  for (size_t i = 0; i < open.size(); ++i) {
    if (tensors[i].tensor.has_value()) {
      call.values[open[i]] = *tensors[i].tensor;
    } else {
      call.values[open[i]] = Absent{};
    }
  }
  return true;
}

// Makes the results that are not given, in the order of the signature.
bool GraphBuilder::AssignResults(CallState& call) {
  for (size_t p = 0; p < call.values.size(); ++p) {
    const std::optional<Value>& value = call.values[p];
    if (!value.has_value() || !std::holds_alternative<Tensor>(*value)) continue;
    if (!IsUsable(std::get<Tensor>(*value), absl::StrCat("node '", call.node, "', parameter '",
                                                         call.parameters()[p].name, "'"))) {
      return false;
    }
  }
  for (size_t p = 0; p < call.values.size(); ++p) {
    const Parameter& parameter = call.parameters()[p];
    if (!IsResult(parameter)) continue;
    std::optional<Value>& value = call.values[p];
    if (!value.has_value()) {
      if (!InferResult(call, p, std::nullopt)) return false;
    } else if (const auto* const dtype = std::get_if<v1::DType>(&*value)) {
      if (!InferResult(call, p, *dtype)) return false;
    } else if (New* const made = std::get_if<New>(&*value)) {
      Tensor tensor = AddTensor(v1::GraphTensor::KIND_ACTIVATION, ResultName(call, p), made->dtype,
                                std::move(made->shape));
      if (tensor.bad()) return false;
      tensors_.back().result = true;
      value = std::move(tensor);
    }
    if (const Tensor* const tensor = std::get_if<Tensor>(&*value)) {
      call.results.push_back(*tensor);
    }
  }
  return true;
}

std::string GraphBuilder::ResultName(const CallState& call, size_t parameter) const {
  int results = 0;
  for (const Parameter& each : call.parameters()) results += IsResult(each);
  return results == 1 ? call.node : absl::StrCat(call.node, ".", call.parameters()[parameter].name);
}

// Dimensions that are scalars stand for themselves in the inference, as numbers below 0.
bool GraphBuilder::InferResult(CallState& call, size_t parameter, std::optional<v1::DType> dtype) {
  std::vector<std::optional<ArgumentType>> sent(call.values.size());
  std::vector<ModelShape> shapes(call.values.size());
  std::vector<std::string> texts;
  for (size_t p = 0; p < call.values.size(); ++p) {
    if (p == parameter || !call.values[p].has_value()) continue;
    const Tensor* const tensor = std::get_if<Tensor>(&*call.values[p]);
    if (tensor == nullptr) continue;
    for (const Dim& dim : tensor->shape_) {
      shapes[p].push_back(dim.scalar.has_value() ? -1 - dim.scalar->index_ : dim.size);
    }
    sent[p] = ArgumentType::Tensor(static_cast<DType>(tensor->dtype()), shapes[p]);
    texts.push_back(absl::StrCat(
        "[",
        absl::StrJoin(tensor->shape_, ", ",
                      [&](std::string* out, const Dim& dim) {
                        absl::StrAppend(out, dim.scalar.has_value()
                                                 ? graph_.scalars(dim.scalar->index_).name()
                                                 : absl::StrCat(dim.size));
                      }),
        "]"));
  }
  const absl::StatusOr<OutputType> inferred =
      InferOutput(call.op->signature, call.op->name, sent, parameter);
  if (!inferred.ok()) {
    AddError(errors::CallShapeUnknown({call.node, call.op->name}, call.parameters()[parameter].name,
                                      absl::StrJoin(texts, ", ")));
    return false;
  }
  std::vector<Dim> shape;
  for (const int64_t size : inferred->shape) {
    if (size >= 0) {
      shape.emplace_back(size);
      continue;
    }
    Scalar scalar;
    scalar.builder_ = this;
    scalar.index_ = static_cast<int>(-1 - size);
    shape.emplace_back(scalar);
  }
  Tensor tensor =
      AddTensor(v1::GraphTensor::KIND_ACTIVATION, ResultName(call, parameter),
                dtype.value_or(static_cast<v1::DType>(inferred->dtype)), std::move(shape));
  if (tensor.bad()) return false;
  tensors_.back().result = true;
  call.values[parameter] = std::move(tensor);
  return true;
}

// Whether each parameter has a value of its kind. Whole numbers become those of the parameter.
bool GraphBuilder::CheckValues(CallState& call) {
  const errors::CallRef place{call.node, call.op->name};
  bool good = true;
  for (size_t p = 0; p < call.values.size(); ++p) {
    const Parameter& parameter = call.parameters()[p];
    std::optional<Value>& value = call.values[p];
    if (!value.has_value()) {
      if (parameter.default_bits.has_value()) continue;
      AddError(errors::CallParameterMissing(place, parameter.name, DescribeKind(parameter)));
      good = false;
      continue;
    }
    const char* wrong = nullptr;
    const bool real = parameter.scalar() && IsFloat(parameter.dtypes[0]);
    if (std::holds_alternative<Tensor>(*value)) {
      if (parameter.scalar()) wrong = "a tensor";
    } else if (std::holds_alternative<Absent>(*value)) {
      if (parameter.kind != ParameterKind::kInput) wrong = "nothing";
    } else if (const int64_t* const integer = std::get_if<int64_t>(&*value)) {
      if (!parameter.scalar()) wrong = "a number";
      if (real) value = static_cast<double>(*integer);
    } else if (std::holds_alternative<double>(*value)) {
      if (!parameter.scalar()) wrong = "a number";
      if (parameter.scalar() && !real) wrong = "a number that is not of an integer type";
    } else if (const Scalar* const scalar = std::get_if<Scalar>(&*value)) {
      if (!parameter.scalar()) wrong = "a scalar";
      if (scalar->builder_ != this) {
        AddError(errors::NotOfThisBuilder(
            absl::StrCat("node '", call.node, "', parameter '", parameter.name, "'"), "scalar"));
        good = false;
      }
    } else {
      wrong = "a type without a value";
    }
    if (wrong == nullptr) continue;
    AddError(errors::CallWrongValue(place, parameter.name, wrong, DescribeKind(parameter)));
    good = false;
  }
  return good;
}

void GraphBuilder::SetView(const Tensor& tensor, v1::GraphView* view) const {
  if (tensor.whole_) return;
  view->set_scalar_shape(tensor.shape_.empty());
  for (const Dim& dim : tensor.shape_) SetDim(dim, view->add_shape());
  view->mutable_strides()->Assign(tensor.strides_.begin(), tensor.strides_.end());
  view->set_offset(tensor.offset_);
}

void GraphBuilder::EmitNode(const CallState& call) {
  const int index = graph_.nodes_size();
  v1::GraphNode& node = *graph_.add_nodes();
  node.set_name(call.node);
  node.set_operator_(call.op->name);
  bool named = false;
  for (size_t p = 0; p < call.values.size(); ++p) {
    if (!call.values[p].has_value()) {
      named = true;
      continue;
    }
    const Value& value = *call.values[p];
    v1::GraphArgument& argument = *node.add_arguments();
    if (named) argument.set_parameter(call.parameters()[p].name);
    if (const Tensor* const tensor = std::get_if<Tensor>(&value)) {
      SetView(*tensor, argument.mutable_tensor());
      views_.push_back({index, node.arguments_size() - 1, tensor->tensor_});
    } else if (const int64_t* const integer = std::get_if<int64_t>(&value)) {
      argument.set_i64(*integer);
    } else if (const double* const number = std::get_if<double>(&value)) {
      argument.set_f64(*number);
    } else if (const Scalar* const scalar = std::get_if<Scalar>(&value)) {
      v1::GraphScalarUse& use = *argument.mutable_scalar();
      use.set_name(graph_.scalars(scalar->index_).name());
      if (scalar->factor_ != 1) use.set_factor(scalar->factor_);
      use.set_addend(scalar->addend_);
    } else {
      argument.set_none(true);
    }
  }
}

}  // namespace resident::client
