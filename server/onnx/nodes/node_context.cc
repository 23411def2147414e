#include "server/onnx/nodes/node_context.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "server/onnx/nodes/model_error.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;

std::string NodeName(const NodeProto& node) {
  if (!node.name().empty()) return node.name();
  for (const std::string& output : node.output()) {
    if (!output.empty()) return output;
  }
  return node.op_type();
}

NodeContext::NodeContext(
    const NodeProto& node, int64_t opset, std::vector<const Value*> inputs, GraphWriter* writer,
    FoldBudget* budget, MappingChoices* choices,
    std::function<Value(const std::string&, ElementType, const Sizes64&)> output_tensor)
    : node_(node),
      opset_(opset),
      inputs_(std::move(inputs)),
      writer_(*writer),
      budget_(*budget),
      choices_(*choices),
      output_tensor_(std::move(output_tensor)),
      results_(static_cast<size_t>(node.output_size())) {
  while (!inputs_.empty() && inputs_.back() == nullptr) inputs_.pop_back();
}

std::string NodeContext::Place() const { return StrCat(op(), " ", Quote(NodeName(node_))); }

absl::Status NodeContext::Refuse(int code, absl::string_view text) const {
  code_ = code;
  return absl::InvalidArgumentError(StrCat(Place(), ": ", text));
}

absl::Status NodeContext::CheckInputs(size_t min, size_t max) const {
  bool complete = inputs_.size() >= min && inputs_.size() <= max;
  for (size_t i = 0; complete && i < min; ++i) complete = has(i);
  if (complete && outputs() >= 1) return absl::OkStatus();
  return Refuse(109, StrCat("it has ", inputs_.size(), " inputs and ", outputs(),
                            " outputs, and must have ", min, " to ", max, " inputs and an output"));
}

absl::Status NodeContext::RefuseType(ElementType type) const {
  return Refuse(201, StrCat("it has ", TypeName(type), " values, which the daemon does not compute",
                            type == ElementType::kDouble ? ". Fix: export in float32"
                                                         : " for this operator"));
}

absl::Status NodeContext::CheckFloat(size_t i) const {
  const ElementType type = in(i).type;
  if (IsFloatType(type) && type != ElementType::kDouble) return absl::OkStatus();
  return RefuseType(type);
}

absl::StatusOr<Constant> NodeContext::RequireConstant(size_t i, absl::string_view what) {
  const Value& value = in(i);
  if (DTypeOf(value.type) == DType::kInvalid) return RefuseType(value.type);
  if (value.is_constant()) {
    Constant constant = value.constant;
    constant.shape = value.shape;
    return constant;
  }
  if (writer_.tensor_kind(value) == v1::GraphTensor::KIND_INPUT) {
    input_to_fix_ = writer_.tensor_name(value.tensor);
    return Refuse(402, StrCat(what, " are the input ", Quote(input_to_fix_), ". Fix: --fixed ",
                              input_to_fix_, "=VALUES"));
  }
  return Refuse(402, StrCat(what, " are computed from inputs. Fix: export with constant ones"));
}

absl::StatusOr<std::vector<int64_t>> NodeContext::RequireIntegers(size_t i,
                                                                  absl::string_view what) {
  ASSIGN_OR_RETURN(const Constant constant, RequireConstant(i, what));
  if (IsFloatType(constant.type)) return RefuseType(constant.type);
  RETURN_IF_ERROR(Charge(constant.elements(), constant.type));
  return constant.AllIntegers();
}

const AttributeProto* NodeContext::FindAttribute(std::string_view name) const {
  for (const AttributeProto& attribute : node_.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

int64_t NodeContext::Int(std::string_view name, int64_t otherwise) {
  const AttributeProto* const attribute = FindAttribute(name);
  if (attribute == nullptr) return otherwise;
  malformed_ |= !attribute->has_i();
  return attribute->i();
}

double NodeContext::Float(std::string_view name, double otherwise) {
  const AttributeProto* const attribute = FindAttribute(name);
  if (attribute == nullptr) return otherwise;
  malformed_ |= !attribute->has_f();
  return attribute->f();
}

std::string NodeContext::String(std::string_view name, std::string_view otherwise) {
  const AttributeProto* const attribute = FindAttribute(name);
  if (attribute == nullptr) return std::string(otherwise);
  malformed_ |= !attribute->has_s();
  return attribute->s();
}

std::optional<std::vector<int64_t>> NodeContext::Ints(std::string_view name) {
  const AttributeProto* const attribute = FindAttribute(name);
  if (attribute == nullptr) return std::nullopt;
  malformed_ |= attribute->has_i() || attribute->has_f() || attribute->has_s();
  return std::vector<int64_t>(attribute->ints().begin(), attribute->ints().end());
}

absl::StatusOr<size_t> NodeContext::Axis(int64_t axis, size_t rank) const {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank) {
    return Refuse(302, StrCat("axis ", axis, " does not exist in ", rank, " dimensions"));
  }
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

absl::StatusOr<std::optional<std::vector<int64_t>>> NodeContext::Axes(size_t i) {
  if (has(i)) {
    ASSIGN_OR_RETURN(std::vector<int64_t> axes, RequireIntegers(i, "the axes"));
    return std::optional<std::vector<int64_t>>(std::move(axes));
  }
  return Ints("axes");
}

absl::Status NodeContext::CheckShape(const Sizes64& shape, bool may_be_empty) const {
  if (shape.size() > kMaxRank) {
    return Refuse(103, StrCat("it needs ", shape.size(), " dimensions, and at most ", kMaxRank,
                              " are supported"));
  }
  const std::optional<int64_t> count = CountElements(shape);
  if (!count.has_value() || *count > kMaxActivationBytes) {
    return Refuse(501,
                  StrCat("its result has the shape ", ShapeText(shape), ", which is too large"));
  }
  if (*count == 0 && !may_be_empty) {
    return Refuse(404, StrCat("its result has the shape ", ShapeText(shape),
                              ", and empty tensors are not supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> NodeContext::NewResult(size_t i, ElementType type, const Sizes64& shape) {
  RETURN_IF_ERROR(CheckShape(shape, /*may_be_empty=*/false));
  if (DTypeOf(type) == DType::kInvalid) return RefuseType(type);
  if (!wants(i)) return NewTemporary(type, shape);
  Value value = output_tensor_(node_.output(static_cast<int>(i)), type, shape);
  results_[i] = value;
  return value;
}

absl::StatusOr<Value> NodeContext::NewTemporary(ElementType type, const Sizes64& shape) {
  RETURN_IF_ERROR(CheckShape(shape, /*may_be_empty=*/false));
  if (DTypeOf(type) == DType::kInvalid) return RefuseType(type);
  return writer_.NewActivation(NodeName(node_), type, shape);
}

void NodeContext::SetResult(size_t i, Value value) {
  if (wants(i)) results_[i] = std::move(value);
}

absl::StatusOr<Value> NodeContext::Compute(const char* op, const std::vector<Value>& values,
                                           const std::vector<Argument>& scalars) {
  return ComputeResult(std::nullopt, op, values, scalars);
}

absl::StatusOr<Value> NodeContext::ComputeResult(std::optional<size_t> i, const char* op,
                                                 const std::vector<Value>& values,
                                                 const std::vector<Argument>& scalars) {
  std::vector<Sizes64> shapes;
  shapes.reserve(values.size());
  for (const Value& value : values) shapes.push_back(value.shape);
  ASSIGN_OR_RETURN(const Sizes64 shape, BroadcastShape(shapes));
  Value out;
  if (i.has_value()) {
    ASSIGN_OR_RETURN(out, NewResult(*i, values[0].type, shape));
  } else {
    ASSIGN_OR_RETURN(out, NewTemporary(values[0].type, shape));
  }
  std::vector<Argument> arguments;
  arguments.reserve(values.size() + 1 + scalars.size());
  for (const Value& value : values) arguments.push_back(In(value));
  arguments.push_back(Out(out));
  arguments.insert(arguments.end(), scalars.begin(), scalars.end());
  Call(op, std::move(arguments));
  return out;
}

absl::StatusOr<Value> NodeContext::Pointwise(
    std::optional<size_t> i, const std::vector<Value>& values,
    absl::FunctionRef<Term(Expression& e, const std::vector<Term>& x)> build) {
  Expression expression;
  std::vector<Sizes64> shapes;
  std::vector<Argument> inputs;
  std::vector<Term> terms;
  for (size_t k = 0; k < values.size(); ++k) {
    const Value& value = values[k];
    shapes.push_back(value.shape);
    if (!Expression::Takes(value.type)) return RefuseType(value.type);
    // A program has at least one input.
    const bool has_input = !inputs.empty() || k + 1 < values.size();
    if (value.is_constant() && value.elements() == 1 && has_input) {
      terms.push_back(IsFloatType(value.type)
                          ? expression.Number(value.constant.Real(0), value.type)
                          : expression.Whole(value.constant.Integer(0), value.type));
      continue;
    }
    terms.push_back(expression.Input(value.type));
    inputs.push_back(In(value));
  }
  const Term result = build(expression, terms);
  expression.SetResult(result);
  if (!expression.Assemble().has_value()) {
    return Refuse(302, StrCat("it has ", inputs.size(), " inputs, and at most ", pointwise::kInputs,
                              " are supported"));
  }
  ASSIGN_OR_RETURN(const Sizes64 shape, BroadcastShape(shapes));
  Value out;
  if (i.has_value()) {
    ASSIGN_OR_RETURN(out, NewResult(*i, result.type, shape));
  } else {
    ASSIGN_OR_RETURN(out, NewTemporary(result.type, shape));
  }
  writer_.CallPointwise(std::move(expression), std::move(inputs), Out(out));
  return out;
}

absl::StatusOr<Value> NodeContext::Convert(const Value& value, ElementType type) {
  if (value.type == type) return value;
  if (DTypeOf(type) == DType::kInvalid) return RefuseType(type);
  ASSIGN_OR_RETURN(const Value out, NewTemporary(type, value.shape));
  Call("copy", {In(value), Out(out)});
  return out;
}

Value NodeContext::Strided(const Value& value) {
  Value strided = value;
  if (value.is_constant()) {
    strided.offset = 0;
    strided.strides = DenseStrides(value.shape);
  }
  return strided;
}

namespace {

// The elements of a view of a constant, without gaps.
Constant Collect(const Value& view) {
  const std::string& from = *view.constant.bytes;
  const uint32_t size = SizeOf(DTypeOf(view.constant.type));
  const int64_t count = view.elements();
  std::string bytes(static_cast<size_t>(count) * size, '\0');
  Sizes64 index(view.rank());
  int64_t at = view.offset;
  const int64_t length = view.rank() == 0 ? 1 : view.shape.back();
  const int64_t step = view.rank() == 0 ? 0 : view.strides.back() * size;
  char* to = bytes.data();
  for (int64_t i = 0; i < count; i += length) {
    const char* source = from.data() + at * size;
    if (size == 4) {
      for (int64_t k = 0; k < length; ++k, to += 4, source += step) std::memcpy(to, source, 4);
    } else {
      for (int64_t k = 0; k < length; ++k, to += size, source += step) {
        std::memcpy(to, source, size);
      }
    }
    for (size_t d = view.rank(); d-- > 1;) {
      at += view.strides[d - 1];
      if (++index[d - 1] < view.size(d - 1)) break;
      at -= view.strides[d - 1] * view.size(d - 1);
      index[d - 1] = 0;
    }
  }
  return {view.constant.type, view.shape, std::make_shared<const std::string>(std::move(bytes)),
          ""};
}

}  // namespace

absl::StatusOr<Value> NodeContext::Settle(Value value) {
  RETURN_IF_ERROR(CheckShape(value.shape, /*may_be_empty=*/true));
  if (value.elements() == 0) {
    // There is only one value of this shape.
    return ConstantValue({value.type, value.shape, std::make_shared<const std::string>(), ""});
  }
  if (!value.is_constant()) return value;
  const int64_t count = value.elements();
  Constant& constant = value.constant;
  const uint32_t size = SizeOf(DTypeOf(constant.type));
  if (value.offset == 0 && IsDense(value) &&
      static_cast<uint64_t>(count) * size == constant.bytes->size()) {
    constant.shape = value.shape;
    return value;
  }
  if (count * size > kMaxFoldedBytes) {
    // A view of the weight.
    const Value base = ConstantValue(constant);
    Value view = writer_.Materialize(base);
    view.shape = value.shape;
    view.strides = value.strides;
    view.offset = value.offset;
    return view;
  }
  RETURN_IF_ERROR(Charge(count, constant.type));
  return ConstantValue(Collect(value));
}

absl::StatusOr<Value> NodeContext::TransposeMatrix(const Value& matrix) {
  if (budget_.cache != nullptr && matrix.is_constant()) {
    // A weight that the model transposes for its product.
    Constant constant = matrix.constant;
    constant.shape = matrix.shape;
    auto original = budget_.cache->FindOriginal(constant);
    if (original.has_value()) return ConstantValue(*std::move(original));
  }
  if (budget_.cache == nullptr || matrix.constant.name.empty()) return Transpose(matrix, {1, 0});
  const Value from = Strided(matrix);
  return ConstantValue(
      budget_.cache->Get(StrCat(ShapeText(matrix.shape), matrix.constant.name), [&] {
        Value to = from;
        std::swap(to.shape[0], to.shape[1]);
        std::swap(to.strides[0], to.strides[1]);
        return Collect(to);
      }));
}

absl::StatusOr<Value> NodeContext::Reshape(const Value& value, const Sizes64& shape) {
  RETURN_IF_ERROR(CheckShape(shape, /*may_be_empty=*/true));
  if (*CountElements(shape) != value.elements()) {
    return Refuse(302, StrCat("a tensor of shape ", ShapeText(value.shape),
                              " cannot get the shape ", ShapeText(shape)));
  }
  Value view = Strided(value);
  std::optional<Sizes64> strides = StridesForShape(view, shape);
  bool copies = !strides.has_value();
  if (!value.is_constant()) copies = choices_.Choose(copies) || copies;
  if (copies) {
    ASSIGN_OR_RETURN(view, Dense(value));
    strides = DenseStrides(shape);
  }
  view.shape = shape;
  view.strides = *std::move(strides);
  return Settle(std::move(view));
}

absl::StatusOr<Value> NodeContext::Transpose(const Value& value, const std::vector<size_t>& order) {
  const Value from = Strided(value);
  Value to = from;
  for (size_t d = 0; d < order.size(); ++d) {
    to.shape[d] = from.shape[order[d]];
    to.strides[d] = from.strides[order[d]];
  }
  const bool kept = budget_.cache != nullptr && value.is_constant() &&
                    !value.constant.name.empty() && order == std::vector<size_t>{1, 0} &&
                    value.elements() * SizeOf(DTypeOf(value.type)) <= kMaxFoldedBytes;
  if (kept && value.elements() > 0) {
    RETURN_IF_ERROR(Charge(value.elements(), value.type));
    Constant matrix = value.constant;
    matrix.shape = value.shape;
    return ConstantValue(
        budget_.cache->GetTransposed(StrCat("transposed ", ShapeText(value.shape), matrix.name),
                                     matrix, [&] { return Collect(to); }));
  }
  return Settle(std::move(to));
}

absl::StatusOr<Value> NodeContext::Dense(const Value& value) {
  if (value.is_constant()) return value;
  // For one row in place of several, more views are dense.
  const bool dense = IsDense(value);
  if (!choices_.Choose(!dense) && dense) return value;
  ASSIGN_OR_RETURN(const Value out, NewTemporary(value.type, value.shape));
  Call("copy", {In(value), Out(out)});
  return out;
}

absl::StatusOr<Value> NodeContext::Broadcast(const Value& value, const Sizes64& shape) {
  Value view = Strided(value);
  const size_t added = shape.size() - view.rank();
  view.shape = shape;
  view.strides.insert(view.strides.begin(), added, 0);
  for (size_t d = 0; d < value.rank(); ++d) {
    if (value.size(d) == shape[d + added]) continue;
    view.strides[d + added] = 0;
  }
  return Settle(std::move(view));
}

absl::StatusOr<Sizes64> NodeContext::BroadcastShape(const std::vector<Sizes64>& shapes) const {
  Sizes64 result;
  for (const Sizes64& shape : shapes) {
    if (shape.size() > result.size()) {
      result.insert(result.begin(), shape.size() - result.size(), 1);
    }
  }
  for (const Sizes64& shape : shapes) {
    const size_t added = result.size() - shape.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      int64_t& size = result[d + added];
      if (size == 1) {
        size = shape[d];
      } else if (shape[d] != size && shape[d] != 1) {
        std::string text;
        for (const Sizes64& each : shapes) {
          absl::StrAppend(&text, text.empty() ? "" : " and ", ShapeText(each));
        }
        return Refuse(302, StrCat("the shapes ", text, " do not broadcast"));
      }
    }
  }
  return result;
}

absl::Status NodeContext::Charge(int64_t elements, ElementType type) {
  const uint32_t size = std::max<uint32_t>(SizeOf(DTypeOf(type)), 1);
  if (elements > kMaxFoldedBytes / size) {
    return Refuse(501, StrCat("a constant of ", elements,
                              " elements is computed at import, and at "
                              "most ",
                              kMaxFoldedBytes, " bytes may be"));
  }
  // Small results cost a fixed amount, too.
  budget_.bytes -= elements * size + 64;
  budget_.elements -= elements + 16;
  if (budget_.bytes < 0 || budget_.elements < 0) {
    return Refuse(501, StrCat("more than ", kMaxFoldedElements, " elements or ", kMaxAllFoldedBytes,
                              " bytes of constants are computed at import. Fix: simplify the model "
                              "before it is loaded"));
  }
  return absl::OkStatus();
}

}  // namespace resident::onnx
