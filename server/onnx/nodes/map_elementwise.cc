// Element-by-element operators as calls of the built-in ones of the same meaning, or of pointwise,
// which computes all the others, and those of integers.
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

using pointwise::Op;
using Terms = std::vector<Term>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The types of the other operators of floating-point numbers.
bool IsFloat16To32(ElementType type) { return IsFloatType(type) && type != ElementType::kDouble; }

// The types of add, sub, mul, maximum, minimum and clamp.
bool IsArithmetic(ElementType type) { return IsFloatType(type) || type == ElementType::kInt32; }

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

bool IsInteger(ElementType type) {
  return Expression::Takes(type) && !IsFloatType(type) && type != ElementType::kBool;
}

// All inputs, from `first` on.
std::vector<Value> Inputs(const NodeContext& node, size_t first = 0) {
  std::vector<Value> values;
  for (size_t i = first; i < node.inputs(); ++i) values.push_back(node.in(i));
  return values;
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
  const std::string& op = node.op();
  if (IsInteger(x.type) && (op == "Neg" || op == "Abs" || op == "Relu")) {
    return node
        .Pointwise(0, {x},
                   [&](Expression& e, const Terms& v) {
                     return op == "Neg"   ? e.Neg(v[0])
                            : op == "Abs" ? e.Abs(v[0])
                                          : e.Max(v[0], e.Number(0, x.type));
                   })
        .status();
  }
  RETURN_IF_ERROR(node.CheckFloat(0));
  return node.ComputeResult(0, operators->at(op), {x}).status();
}

absl::Status MapFunction(NodeContext& node) {
  static const auto* const functions = new absl::flat_hash_map<std::string_view, Op>{
      {"Acos", Op::kAcos},
      {"Acosh", Op::kAcosh},
      {"Asin", Op::kAsin},
      {"Asinh", Op::kAsinh},
      {"Atan", Op::kAtan},
      {"Atanh", Op::kAtanh},
      {"Ceil", Op::kCeil},
      {"Cosh", Op::kCosh},
      {"Erf", Op::kErf},
      {"Floor", Op::kFloor},
      {"Reciprocal", Op::kReciprocal},
      {"Round", Op::kRound},
      {"Sign", Op::kSign},
      {"Sinh", Op::kSinh},
      {"Tan", Op::kTan},
  };
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  if (node.op() == "Sign" && IsInteger(x.type)) {
    return node
        .Pointwise(0, {x},
                   [&](Expression& e, const Terms& v) {
                     return e.Min(e.Max(v[0], e.Number(-1, x.type)), e.Number(1, x.type));
                   })
        .status();
  }
  RETURN_IF_ERROR(node.CheckFloat(0));
  const Op function = functions->at(node.op());
  return node
      .Pointwise(0, {x}, [&](Expression& e, const Terms& v) { return e.Function(function, v[0]); })
      .status();
}

absl::Status MapBinary(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckOneType(node));
  RETURN_IF_ERROR(CheckBroadcast(node));
  const std::string& op = node.op();
  const ElementType type = node.in(0).type;
  if (IsFloat16To32(type) || (type == ElementType::kDouble && op != "Div")) {
    const char* const name = op == "Add"   ? "add"
                             : op == "Sub" ? "sub"
                             : op == "Mul" ? "mul"
                                           : "div";
    return node.ComputeResult(0, name, Inputs(node)).status();
  }
  if (!IsInteger(type)) return node.RefuseType(type);
  return node
      .Pointwise(0, Inputs(node),
                 [&](Expression& e, const Terms& v) {
                   return op == "Add"   ? e.Add(v[0], v[1])
                          : op == "Sub" ? e.Sub(v[0], v[1])
                          : op == "Mul" ? e.Mul(v[0], v[1])
                                        : e.Div(v[0], v[1]);
                 })
      .status();
}

// The sign of a remainder of integers is that of the divisor; with fmod=1 that of the dividend.
absl::Status MapMod(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckOneType(node));
  const bool c_remainder = node.Int("fmod", 0) != 0;
  const ElementType type = node.in(0).type;
  for (size_t i = 0; type == ElementType::kDouble && i < 2; ++i) {
    // Constants are computed at the import.
    RETURN_IF_ERROR(node.RequireConstant(i, "its double values").status());
  }
  if (!IsInteger(type) && !IsFloat16To32(type)) return node.RefuseType(type);
  if (IsFloatType(type) && !c_remainder) {
    return node.Refuse(302, "a remainder of floating-point numbers needs fmod=1");
  }
  return node
      .Pointwise(0, Inputs(node),
                 [&](Expression& e, const Terms& v) {
                   if (IsFloatType(type)) {
                     return e.Remainder(v[0], v[1]);
                   }
                   return e.Integer(c_remainder ? Op::kRemainder : Op::kModulo, v[0], v[1]);
                 })
      .status();
}

absl::Status MapVariadic(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, std::numeric_limits<size_t>::max()));
  RETURN_IF_ERROR(CheckOneType(node));
  const bool mean = node.op() == "Mean";
  const bool max = node.op() == "Max", min = node.op() == "Min";
  const char* const op = max ? "maximum" : min ? "minimum" : "add";
  const ElementType type = node.in(0).type;
  const bool arithmetic = mean ? IsFloat16To32(type) : IsArithmetic(type);
  if (!arithmetic && (mean || !IsInteger(type))) return node.RefuseType(type);
  if (node.inputs() == 1) {
    node.SetResult(0, node.in(0));
    return absl::OkStatus();
  }
  Value sum = node.in(0);
  for (size_t i = 1; i < node.inputs(); ++i) {
    const std::optional<size_t> result =
        i + 1 == node.inputs() && !mean ? std::optional<size_t>(0) : std::nullopt;
    if (arithmetic) {
      ASSIGN_OR_RETURN(sum, node.ComputeResult(result, op, {sum, node.in(i)}));
    } else {
      ASSIGN_OR_RETURN(
          sum, node.Pointwise(result, {sum, node.in(i)}, [&](Expression& e, const Terms& v) {
            return max ? e.Max(v[0], v[1]) : min ? e.Min(v[0], v[1]) : e.Add(v[0], v[1]);
          }));
    }
  }
  if (!mean) return absl::OkStatus();
  const double factor = 1 / static_cast<double>(node.inputs());
  return node.ComputeResult(0, "scale", {sum}, {node.Real(factor)}).status();
}

// The exponents may have another type than the bases, which is that of the result.
absl::Status MapPow(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckBroadcast(node));
  const ElementType type = node.in(0).type;
  if (IsFloat16To32(type) && node.in(1).type == type) {
    return node.ComputeResult(0, "pow", Inputs(node)).status();
  }
  if (!IsFloat16To32(type) && !IsInteger(type)) return node.RefuseType(type);
  if (IsInteger(type) && IsFloatType(node.in(1).type)) {
    return node.Refuse(302, "exponents of integers must be integers");
  }
  return node
      .Pointwise(0, Inputs(node),
                 [&](Expression& e, const Terms& v) {
                   if (!IsFloatType(type)) return e.Pow(v[0], {v[1].id, type});
                   const Term base = e.Cast(v[0], ElementType::kFloat);
                   const Term power = e.Pow(base, e.Cast(v[1], ElementType::kFloat));
                   return e.Cast(power, type);
                 })
      .status();
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
    return node.Pointwise(0, {x}, [&](Expression& e, const Terms& v) { return e.Cast(v[0], to); })
        .status();
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, to, x.shape));
  node.Call("copy", {node.In(x), node.Out(out)});
  return absl::OkStatus();
}

absl::Status MapClip(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 3));
  const Value& x = node.in(0);
  if (!IsArithmetic(x.type) && !IsInteger(x.type)) return node.RefuseType(x.type);
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
      if (std::fabs(bound) < std::numeric_limits<float>::max())
        bounds[i] = NumberValue(bound, x.type);
    }
  }
  if (!bounds[0].has_value() && !bounds[1].has_value()) {
    node.SetResult(0, x);
    return absl::OkStatus();
  }
  // One call of clamp if both bounds are numbers of the graph, which must be finite.
  double numbers[2] = {kInfinity, kInfinity};
  for (size_t i = 0; i < 2; ++i) {
    if (bounds[i].has_value() && bounds[i]->is_constant()) numbers[i] = bounds[i]->constant.Real(0);
  }
  if (IsArithmetic(x.type) && std::isfinite(numbers[0]) && std::isfinite(numbers[1])) {
    return node.ComputeResult(0, "clamp", {x}, {node.Real(numbers[0]), node.Real(numbers[1])})
        .status();
  }
  if (x.type == ElementType::kDouble) return node.RefuseType(x.type);
  std::vector<Value> values = {x};
  for (const std::optional<Value>& bound : bounds) {
    if (bound.has_value()) values.push_back(*bound);
  }
  return node
      .Pointwise(0, values,
                 [&](Expression& e, const Terms& v) {
                   Term value = v[0];
                   if (bounds[0].has_value()) value = e.Max(value, v[1]);
                   return bounds[1].has_value() ? e.Min(value, v.back()) : value;
                 })
      .status();
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
  const std::string approximate = node.String("approximate", "none");
  if (approximate != "none" && approximate != "tanh") {
    return node.Refuse(302, "approximate is neither none nor tanh");
  }
  return node.ComputeResult(0, "gelu", x, {node.Integer(approximate == "tanh")}).status();
}

// Operators of one float with attributes, and PRelu.
absl::Status MapComposed(NodeContext& node) {
  const std::string& op = node.op();
  const size_t inputs = op == "PRelu" ? 2 : 1;
  RETURN_IF_ERROR(node.CheckInputs(inputs, inputs));
  const Value& x = node.in(0);
  if (op != "PRelu" || !IsInteger(x.type)) RETURN_IF_ERROR(node.CheckFloat(0));
  if (op == "PRelu") {
    RETURN_IF_ERROR(CheckOneType(node));
    if (node.opset() < 7 && node.in(1).elements() != 1) {
      return node.Refuse(302, "a slope for each channel of version 6 is not supported");
    }
    ASSIGN_OR_RETURN(const Sizes64 shape, node.BroadcastShape({x.shape, node.in(1).shape}));
    if (shape != x.shape) return node.Refuse(302, "the slopes do not broadcast to the input");
  }
  const double alpha = node.Float("alpha", op == "HardSigmoid" ? 0.2 : 1);
  const double beta = node.Float("beta", 0.5);
  const double lambda = node.Float("lambd", 0.5), bias = node.Float("bias", 0);
  const bool positive = node.Int("detect_positive", 1) != 0;
  const bool negative = node.Int("detect_negative", 1) != 0;
  if (op == "Swish" && alpha == 1) return node.ComputeResult(0, "silu", {x}).status();
  return node
      .Pointwise(
          0, Inputs(node),
          [&](Expression& e, const Terms& v) {
            const auto number = [&](double value) { return e.Number(value, x.type); };
            const auto equals = [&](double value) { return e.Equal(v[0], number(value)); };
            if (op == "PRelu") {
              return e.Select(e.Less(v[0], number(0)), e.Mul(v[0], v[1]), v[0]);
            }
            if (op == "Softsign") return e.Div(v[0], e.Add(number(1), e.Abs(v[0])));
            if (op == "Mish") {
              const Term soft = e.Function(Op::kLog1p, e.Function(Op::kExp, v[0]));
              return e.Mul(v[0], e.Function(Op::kTanh, soft));
            }
            if (op == "Swish") {
              return e.Mul(v[0], e.Function(Op::kSigmoid, e.Mul(v[0], number(alpha))));
            }
            if (op == "HardSigmoid") {
              const Term line = e.Add(e.Mul(v[0], number(alpha)), number(beta));
              return e.Min(e.Max(line, number(0)), number(1));
            }
            if (op == "ThresholdedRelu") {
              return e.Select(e.Less(number(alpha), v[0]), v[0], number(0));
            }
            if (op == "Shrink") {
              const Term rest =
                  e.Select(e.Less(number(lambda), v[0]), e.Sub(v[0], number(bias)), number(0));
              return e.Select(e.Less(v[0], number(-lambda)), e.Add(v[0], number(bias)), rest);
            }
            if (op == "IsNaN") return e.Not(e.Equal(v[0], v[0]));
            // IsInf.
            const Term above = positive ? equals(kInfinity) : e.Whole(0, ElementType::kBool);
            return negative ? e.Integer(Op::kOr, above, equals(-kInfinity)) : above;
          })
      .status();
}

absl::Status MapComparison(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckOneType(node));
  RETURN_IF_ERROR(CheckBroadcast(node));
  const std::string& op = node.op();
  return node
      .Pointwise(0, Inputs(node),
                 [&](Expression& e, const Terms& v) {
                   return op == "Equal"         ? e.Equal(v[0], v[1])
                          : op == "Less"        ? e.Less(v[0], v[1])
                          : op == "LessOrEqual" ? e.LessOrEqual(v[0], v[1])
                          : op == "Greater"     ? e.Less(v[1], v[0])
                                                : e.LessOrEqual(v[1], v[0]);
                 })
      .status();
}

absl::Status MapWhere(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 3));
  if (node.in(0).type != ElementType::kBool) return node.RefuseType(node.in(0).type);
  if (node.in(1).type != node.in(2).type) return node.Refuse(302, "its values have two types");
  return node
      .Pointwise(0, Inputs(node),
                 [&](Expression& e, const Terms& v) { return e.Select(v[0], v[1], v[2]); })
      .status();
}

// Of bools, which are 0 or 1, and of the bits of integers.
absl::Status MapLogical(NodeContext& node) {
  const std::string& op = node.op();
  const bool bitwise = absl::StartsWith(op, "Bit");
  const size_t inputs = absl::EndsWith(op, "Not") ? 1 : 2;
  RETURN_IF_ERROR(node.CheckInputs(inputs, inputs));
  RETURN_IF_ERROR(CheckOneType(node));
  RETURN_IF_ERROR(CheckBroadcast(node));
  const ElementType type = node.in(0).type;
  if (bitwise ? !IsInteger(type) : type != ElementType::kBool) return node.RefuseType(type);
  const bool left = node.String("direction", "LEFT") == "LEFT";
  if (op == "BitShift" && type != ElementType::kUint8 && type != ElementType::kUint32) {
    return node.RefuseType(type);
  }
  return node
      .Pointwise(0, Inputs(node),
                 [&](Expression& e, const Terms& v) {
                   if (op == "Not") return e.Not(v[0]);
                   // All bits: x * -1 - 1.
                   if (op == "BitwiseNot") {
                     return e.Sub(e.Neg(v[0]), e.Number(1, type));
                   }
                   if (op == "BitShift") {
                     return e.Integer(left ? Op::kShiftLeft : Op::kShiftRight, v[0], v[1]);
                   }
                   return e.Integer(absl::EndsWith(op, "And")   ? Op::kAnd
                                    : absl::EndsWith(op, "Xor") ? Op::kXor
                                                                : Op::kOr,
                                    v[0], v[1]);
                 })
      .status();
}

// One more dimension of `depth`: the second value where the index is that of the element.
absl::Status MapOneHot(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 3));
  const Value &indices = node.in(0), &values = node.in(2);
  if (!Expression::Takes(indices.type)) return node.RefuseType(indices.type);
  if (values.elements() != 2) return node.Refuse(302, "it needs two values");
  ASSIGN_OR_RETURN(const std::vector<int64_t> depth, node.RequireIntegers(1, "the depth"));
  if (depth.size() != 1 || depth[0] < 1) return node.Refuse(302, "its depth is not one number");
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", -1), indices.rank() + 1));
  Sizes64 shape = indices.shape, range_shape(indices.rank() + 1 - axis, 1);
  shape.insert(shape.begin() + static_cast<int64_t>(axis), 1);
  range_shape[0] = depth[0];
  RETURN_IF_ERROR(node.Charge(depth[0], ElementType::kInt64));
  std::vector<int64_t> range(static_cast<size_t>(depth[0]));
  std::iota(range.begin(), range.end(), 0);
  ASSIGN_OR_RETURN(const Value at, node.Reshape(indices, shape));
  ASSIGN_OR_RETURN(const Value pair, node.Reshape(values, {2}));
  Value choices[2];
  for (int64_t i = 0; i < 2; ++i) {
    Value choice = NodeContext::Strided(pair);
    choice.offset += i * choice.strides[0];
    choice.shape = {};
    choice.strides = {};
    ASSIGN_OR_RETURN(choices[i], node.Settle(std::move(choice)));
  }
  return node
      .Pointwise(
          0, {at, ConstantValue(Constant::Integers(range_shape, range)), choices[1], choices[0]},
          [&](Expression& e, const Terms& v) {
            Term index = e.Cast(v[0], ElementType::kInt64);
            const Term negative = e.Less(index, e.Number(0, index.type));
            index = e.Select(negative, e.Add(index, e.Whole(depth[0], index.type)), index);
            return e.Select(e.Equal(index, v[1]), v[2], v[3]);
          })
      .status();
}

absl::StatusOr<Triangle> ReadTriangle(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  if (node.in(0).rank() < 2) return node.Refuse(302, "it needs two dimensions");
  Triangle triangle;
  if (node.has(1)) {
    ASSIGN_OR_RETURN(const std::vector<int64_t> given, node.RequireIntegers(1, "its diagonals"));
    if (given.size() != 1) return node.Refuse(302, "k must be one number");
    triangle.k = given[0];
  }
  triangle.upper = node.Int("upper", 1) != 0;
  return triangle;
}

// The triangle of the last two dimensions; 0 elsewhere.
absl::Status MapTrilu(NodeContext& node) {
  ASSIGN_OR_RETURN(const Triangle triangle, ReadTriangle(node));
  const Value& x = node.in(0);
  const int64_t rows = x.size(x.rank() - 2), columns = x.size(x.rank() - 1);
  RETURN_IF_ERROR(node.Charge(rows * columns, ElementType::kBool));
  std::vector<int64_t> mask;
  for (int64_t i = 0; i < rows * columns; ++i) {
    mask.push_back(triangle.Keeps(i / columns, i % columns) ? 1 : 0);
  }
  return node
      .Pointwise(
          0, {ConstantValue(Constant::Integers({rows, columns}, mask, ElementType::kBool)), x},
          [&](Expression& e, const Terms& v) { return e.Select(v[0], v[1], e.Number(0, x.type)); })
      .status();
}

}  // namespace resident::onnx
