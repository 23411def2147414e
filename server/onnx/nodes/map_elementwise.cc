// Element-by-element operators as calls of the built-in ones of the same meaning, or of a few.
#include <cmath>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool IsFloat16To32(ElementType type) { return IsFloatType(type) && type != ElementType::kDouble; }

// The types of add, sub, mul, maximum, minimum and clamp.
bool IsArithmetic(ElementType type) { return IsFloatType(type) || type == ElementType::kInt32; }

Value Number(double value, ElementType type) {
  return ConstantValue(Constant::Reals({}, {value}, type));
}

Value Zero(ElementType type) {
  return ConstantValue(IsFloatType(type) ? Constant::Reals({}, {0}, type)
                                         : Constant::Integers({}, {0}, type));
}

// The type of all inputs. E302: they have several.
absl::Status CheckOneType(const NodeContext& node) {
  for (size_t i = 0; i < node.inputs(); ++i) {
    if (!node.has(i)) return node.Refuse(109, StrCat("input ", i, " is missing"));
    if (node.in(i).type != node.in(0).type) {
      return node.Refuse(302, StrCat("its inputs are ", TypeName(node.in(0).type), " and ",
                                     TypeName(node.in(i).type), ", and must have one type"));
    }
  }
  return absl::OkStatus();
}

// Before version 7, an operand had the attribute `broadcast`, with its own rules.
absl::Status CheckBroadcast(NodeContext& node) {
  if (node.opset() >= 7) return absl::OkStatus();
  if (node.Int("broadcast", 0) != 0 && node.FindAttribute("axis") != nullptr) {
    return node.Refuse(302,
                       "the attribute axis of version 6 is not supported. Fix: export with "
                       "version 7 or later");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MapUnary(NodeContext& node) {
  static const auto* const operators =
      new absl::flat_hash_map<std::string_view, const char*>{{"Neg", "neg"},
                                                             {"Abs", "abs"},
                                                             {"Exp", "exp"},
                                                             {"Log", "log"},
                                                             {"Sqrt", "sqrt"},
                                                             {"Sin", "sin"},
                                                             {"Cos", "cos"},
                                                             {"Tanh", "tanh"},
                                                             {"Sigmoid", "sigmoid"},
                                                             {"Relu", "relu"},
                                                             {"HardSwish", "hardswish"}};
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  // max(x, 0) of i32.
  if (node.op() == "Relu" && IsArithmetic(x.type) && !IsFloat16To32(x.type)) {
    return node.ComputeResult(0, "maximum", {x, Zero(x.type)}).status();
  }
  RETURN_IF_ERROR(node.CheckFloat(0));
  return node.ComputeResult(0, operators->at(node.op()), {x}).status();
}

absl::Status MapBinary(NodeContext& node) {
  struct Row {
    const char* op;
    bool arithmetic;  // Also for i32 and f64.
  };
  static const auto* const operators = new absl::flat_hash_map<std::string_view, Row>{
      {"Add", {"add", true}},
      {"Sub", {"sub", true}},
      {"Mul", {"mul", true}},
      {"Div", {"div", false}},
  };
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckOneType(node));
  RETURN_IF_ERROR(CheckBroadcast(node));
  const Row row = operators->at(node.op());
  const ElementType type = node.in(0).type;
  if (row.arithmetic ? !IsArithmetic(type) : !IsFloat16To32(type)) return node.RefuseType(type);
  return node.ComputeResult(0, row.op, {node.in(0), node.in(1)}).status();
}

absl::Status MapVariadic(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, std::numeric_limits<size_t>::max()));
  RETURN_IF_ERROR(CheckOneType(node));
  const bool mean = node.op() == "Mean";
  const char* const op = node.op() == "Max" ? "maximum" : node.op() == "Min" ? "minimum" : "add";
  const ElementType type = node.in(0).type;
  if (mean ? !IsFloat16To32(type) : !IsArithmetic(type)) return node.RefuseType(type);
  if (node.inputs() == 1) {
    node.SetResult(0, node.in(0));
    return absl::OkStatus();
  }
  Value sum = node.in(0);
  for (size_t i = 1; i < node.inputs(); ++i) {
    const bool last = i + 1 == node.inputs() && !mean;
    ASSIGN_OR_RETURN(sum, node.ComputeResult(last ? std::optional<size_t>(0) : std::nullopt, op,
                                             {sum, node.in(i)}));
  }
  if (!mean) return absl::OkStatus();
  const double factor = 1 / static_cast<double>(node.inputs());
  return node.ComputeResult(0, "scale", {sum}, {node.Real(factor)}).status();
}

// The exponents may have another type.
absl::Status MapPow(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(node.CheckFloat(0));
  RETURN_IF_ERROR(CheckBroadcast(node));
  Value exponent = node.in(1);
  if (exponent.type != node.in(0).type) {
    // Integers of more than 24 bits would be rounded.
    if (exponent.type != ElementType::kInt8 && exponent.type != ElementType::kUint8 &&
        !exponent.is_constant() && !IsFloat16To32(exponent.type)) {
      return node.Refuse(302, StrCat("its exponents are ", TypeName(exponent.type)));
    }
    for (int64_t i = 0; exponent.is_constant() && i < exponent.elements(); ++i) {
      if (std::fabs(exponent.constant.Real(i)) > 1024) {
        return node.Refuse(302, "an exponent is above 1024");
      }
    }
    ASSIGN_OR_RETURN(exponent, node.Convert(exponent, ElementType::kFloat));
  }
  return node.ComputeResult(0, "pow", {node.in(0), exponent}).status();
}

absl::Status MapCast(NodeContext& node) {
  const bool like = node.op() == "CastLike";
  RETURN_IF_ERROR(node.CheckInputs(like ? 2 : 1, like ? 2 : 1));
  const Value& x = node.in(0);
  const ElementType to = like ? node.in(1).type : static_cast<ElementType>(node.Int("to", 0));
  if (to == x.type) {
    node.SetResult(0, x);
    return absl::OkStatus();
  }
  if (DTypeOf(to) == DType::kInvalid) return node.RefuseType(to);
  if (DTypeOf(x.type) == DType::kInvalid) return node.RefuseType(x.type);
  if (to == ElementType::kBool) {
    return node.Refuse(302, StrCat(TypeName(x.type), " to bool is not supported"));
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, to, x.shape));
  node.Call("copy", {node.In(x), node.Out(out)});
  return absl::OkStatus();
}

absl::Status MapClip(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 3));
  const Value& x = node.in(0);
  if (!IsArithmetic(x.type)) return node.RefuseType(x.type);
  for (size_t i = 1; i < node.inputs(); ++i) {
    if (!node.has(i)) continue;
    if (node.in(i).type != x.type || node.in(i).elements() != 1) {
      return node.Refuse(302, "a bound is not one number of the input's type");
    }
  }
  std::optional<Value> bounds[2];
  for (size_t i = 0; i < 2; ++i) {
    if (node.opset() >= 11) {
      if (!node.has(i + 1)) continue;
      ASSIGN_OR_RETURN(bounds[i], node.Reshape(node.in(i + 1), {}));
    } else {
      const double bound = node.Float(i == 0 ? "min" : "max", i == 0 ? -kInfinity : kInfinity);
      if (std::fabs(bound) < std::numeric_limits<float>::max()) bounds[i] = Number(bound, x.type);
    }
  }
  // One call if both bounds are numbers of the graph, which must be finite.
  double numbers[2] = {kInfinity, kInfinity};
  for (size_t i = 0; i < 2; ++i) {
    if (bounds[i].has_value() && bounds[i]->is_constant()) numbers[i] = bounds[i]->constant.Real(0);
  }
  if (std::isfinite(numbers[0]) && std::isfinite(numbers[1])) {
    return node.ComputeResult(0, "clamp", {x}, {node.Real(numbers[0]), node.Real(numbers[1])})
        .status();
  }
  if (!bounds[0].has_value() && !bounds[1].has_value()) {
    node.SetResult(0, x);
    return absl::OkStatus();
  }
  Value value = x;
  for (size_t i = 0; i < 2; ++i) {
    if (!bounds[i].has_value()) continue;
    const bool last = i == 1 || !bounds[1].has_value();
    ASSIGN_OR_RETURN(value,
                     node.ComputeResult(last ? std::optional<size_t>(0) : std::nullopt,
                                        i == 0 ? "maximum" : "minimum", {value, *bounds[i]}));
  }
  return absl::OkStatus();
}

// Operators with attributes that one built-in operator computes.
absl::Status MapActivation(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const std::string& op = node.op();
  const std::vector<Value> x = {node.in(0)};
  const auto real = [&](const char* name, double otherwise) {
    return node.Real(node.Float(name, otherwise));
  };
  if (op == "Elu") return node.ComputeResult(0, "elu", x, {real("alpha", 1)}).status();
  if (op == "Celu") {
    const double alpha = node.Float("alpha", 1);
    if (alpha == 0) return node.Refuse(302, "alpha is 0");
    return node.ComputeResult(0, "elu", x, {node.Real(alpha), node.Real(1), node.Real(1 / alpha)})
        .status();
  }
  if (op == "Selu") {
    return node
        .ComputeResult(
            0, "elu", x,
            {real("alpha", 1.67326319217681884765625), real("gamma", 1.05070102214813232421875)})
        .status();
  }
  if (op == "LeakyRelu")
    return node.ComputeResult(0, "leaky_relu", x, {real("alpha", 0.01)}).status();
  if (op == "Softplus") return node.ComputeResult(0, "softplus", x).status();
  if (op == "Gelu") {
    const std::string approximate = node.String("approximate", "none");
    if (approximate != "none" && approximate != "tanh") {
      return node.Refuse(302, "approximate is neither none nor tanh");
    }
    return node.ComputeResult(0, "gelu", x, {node.Integer(approximate == "tanh")}).status();
  }
  // HardSigmoid: max(0, min(1, alpha * x + beta)).
  const double alpha = node.Float("alpha", 0.2), beta = node.Float("beta", 0.5);
  ASSIGN_OR_RETURN(const Value line, node.NewTemporary(x[0].type, x[0].shape));
  node.Call("add", {node.In(Number(beta, ElementType::kFloat)), node.In(x[0]), node.Out(line),
                    node.Real(alpha)});
  return node.ComputeResult(0, "clamp", {line}, {node.Real(0), node.Real(1)}).status();
}

// Operators of one input that a few built-in ones compute.
absl::Status MapComposed(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const std::string& op = node.op();
  const Value& x = node.in(0);
  const Value one = Number(1, x.type);
  if (op == "Reciprocal") return node.ComputeResult(0, "div", {one, x}).status();
  if (op == "Softsign") {
    ASSIGN_OR_RETURN(Value size, node.Compute("abs", {x}));
    ASSIGN_OR_RETURN(size, node.Compute("add", {size, one}));
    return node.ComputeResult(0, "div", {x, size}).status();
  }
  if (op == "Mish") {
    ASSIGN_OR_RETURN(Value factor, node.Compute("softplus", {x}));
    ASSIGN_OR_RETURN(factor, node.Compute("tanh", {factor}));
    return node.ComputeResult(0, "mul", {x, factor}).status();
  }
  if (op == "Swish") {
    const double alpha = node.Float("alpha", 1);
    if (alpha == 1) return node.ComputeResult(0, "silu", {x}).status();
    ASSIGN_OR_RETURN(Value gate, node.Compute("scale", {x}, {node.Real(alpha)}));
    ASSIGN_OR_RETURN(gate, node.Compute("sigmoid", {gate}));
    return node.ComputeResult(0, "mul", {x, gate}).status();
  }
  if (op == "Tan") {
    ASSIGN_OR_RETURN(const Value sine, node.Compute("sin", {x}));
    ASSIGN_OR_RETURN(const Value cosine, node.Compute("cos", {x}));
    return node.ComputeResult(0, "div", {sine, cosine}).status();
  }
  // PRelu: max(x, 0) + slope * min(x, 0), for finite slopes.
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  const Value& slope = node.in(1);
  RETURN_IF_ERROR(CheckOneType(node));
  if (node.opset() < 7 && slope.elements() != 1) {
    return node.Refuse(302, "a slope for each channel of version 6 is not supported");
  }
  if (!slope.is_constant()) {
    RETURN_IF_ERROR(node.RequireConstant(1, "the slopes").status());
  }
  for (int64_t i = 0; i < slope.elements(); ++i) {
    if (!std::isfinite(slope.constant.Real(i))) return node.Refuse(302, "a slope is not finite");
  }
  ASSIGN_OR_RETURN(const Value positive, node.Compute("relu", {x}));
  ASSIGN_OR_RETURN(Value negative, node.Compute("minimum", {x, Zero(x.type)}));
  ASSIGN_OR_RETURN(negative, node.Compute("mul", {negative, slope}));
  if (negative.shape != x.shape)
    return node.Refuse(302, "the slopes do not broadcast to the input");
  return node.ComputeResult(0, "add", {positive, negative}).status();
}

// Bools are 0 or 1, so that i32 arithmetic computes And, Or, Xor and Not exactly.
absl::Status MapLogical(NodeContext& node) {
  const std::string& op = node.op();
  const size_t inputs = op == "Not" ? 1 : 2;
  RETURN_IF_ERROR(node.CheckInputs(inputs, inputs));
  RETURN_IF_ERROR(CheckBroadcast(node));
  std::vector<Value> x;
  for (size_t i = 0; i < inputs; ++i) {
    if (node.in(i).type != ElementType::kBool) return node.RefuseType(node.in(i).type);
    ASSIGN_OR_RETURN(x.emplace_back(), node.Convert(node.in(i), ElementType::kInt32));
  }
  Value result;
  if (op == "Not") {
    const Value one = ConstantValue(Constant::Integers({}, {1}, ElementType::kInt32));
    ASSIGN_OR_RETURN(result, node.Compute("sub", {one, x[0]}));
  } else if (op == "Xor") {
    ASSIGN_OR_RETURN(const Value difference, node.Compute("sub", {x[0], x[1]}));
    ASSIGN_OR_RETURN(result, node.Compute("mul", {difference, difference}));
  } else {
    ASSIGN_OR_RETURN(result, node.Compute(op == "And" ? "minimum" : "maximum", x));
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, ElementType::kBool, result.shape));
  node.Call("copy", {node.In(result), node.Out(out)});
  return absl::OkStatus();
}

}  // namespace resident::onnx
