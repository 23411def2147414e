// Softmax and normalizations.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

int64_t Product(const Sizes64& shape, size_t begin, size_t end) {
  int64_t product = 1;
  for (size_t d = begin; d < end; ++d) product *= shape[d];
  return product;
}

Value Repeated(double value, ElementType type, int64_t count) {
  return ConstantValue(
      Constant::Reals({count}, std::vector<double>(static_cast<size_t>(count), value), type));
}

// `count` values that are all 1.
absl::StatusOr<Value> Ones(NodeContext& node, ElementType type, int64_t count) {
  RETURN_IF_ERROR(node.Charge(count, type));
  return Repeated(1, type, count);
}

// [1, ..., C, 1, ...]: values of channels beside an input [N, C, ...].
absl::StatusOr<Value> AsChannels(NodeContext& node, const Value& values, size_t rank) {
  Sizes64 shape(rank - 1, 1);
  shape[0] = values.elements();
  return node.Reshape(values, shape);
}

absl::Status CheckTypes(NodeContext& node) {
  for (size_t i = 0; i < node.inputs(); ++i) {
    if (!node.has(i)) continue;
    RETURN_IF_ERROR(node.CheckFloat(i));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MapSoftmax(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  RETURN_IF_ERROR(node.CheckFloat(0));
  const Value& x = node.in(0);
  const char* const op = node.op() == "Softmax" ? "softmax" : "log_softmax";
  if (x.rank() == 0) return node.Refuse(302, "its input has no dimensions");
  const bool flat = node.opset() < 13;
  if (flat) {
    // All dimensions from the axis on are one.
    const auto rank = static_cast<int64_t>(x.rank());
    int64_t axis = node.Int("axis", 1);
    if (axis < -rank || axis > rank)
      return node.Refuse(302, StrCat("axis ", axis, " does not exist"));
    if (axis < 0) axis += rank;
    const auto at = static_cast<size_t>(axis);
    const Sizes64 shape = {Product(x.shape, 0, at), Product(x.shape, at, x.rank())};
    ASSIGN_OR_RETURN(Value rows, node.Reshape(x, shape));
    ASSIGN_OR_RETURN(rows, node.Dense(rows));
    ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, x.shape));
    node.Call(op, {node.In(rows), node.Out(WithShape(out, shape))});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", -1), x.rank()));
  if (axis + 1 == x.rank()) {
    ASSIGN_OR_RETURN(const Value rows, node.Dense(x));
    ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, x.shape));
    node.Call(op, {node.In(rows), node.Out(out)});
    return absl::OkStatus();
  }
  // The axis is moved to the end and back.
  std::vector<size_t> order;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (d != axis) order.push_back(d);
  }
  order.push_back(axis);
  std::vector<size_t> back(x.rank());
  for (size_t d = 0; d < x.rank(); ++d) back[order[d]] = d;
  ASSIGN_OR_RETURN(Value rows, node.Transpose(x, order));
  ASSIGN_OR_RETURN(rows, node.Dense(rows));
  ASSIGN_OR_RETURN(const Value out, node.NewTemporary(x.type, rows.shape));
  node.Call(op, {node.In(rows), node.Out(out)});
  ASSIGN_OR_RETURN(Value result, node.Transpose(out, back));
  node.SetResult(0, std::move(result));
  return absl::OkStatus();
}

namespace {

// Weights of a normalization, as many as the normalized elements; with `broadcast` dimensions of
// size 1 are repeated.
absl::StatusOr<Value> NormWeights(NodeContext& node, size_t input, const Sizes64& shape) {
  ASSIGN_OR_RETURN(const Sizes64 full, node.BroadcastShape({node.in(input).shape, shape}));
  if (full != shape) return node.Refuse(302, "a weight does not broadcast to the normalized axes");
  ASSIGN_OR_RETURN(Value weights, node.Broadcast(node.in(input), shape));
  ASSIGN_OR_RETURN(weights, node.Reshape(weights, {*CountElements(shape)}));
  return node.Dense(weights);
}

// mean and 1 / sqrt(variance + epsilon) over the last dimension of x.
absl::Status SetStatistics(NodeContext& node, const Value& x, double epsilon,
                           const Sizes64& shape) {
  Sizes64 kept = x.shape;
  kept.back() = 1;
  const GraphWriter::Argument last = node.Integer(int64_t{1} << (x.rank() - 1));
  Value mean;
  if (node.wants(1)) {
    ASSIGN_OR_RETURN(mean, node.NewResult(1, x.type, shape));
  } else {
    ASSIGN_OR_RETURN(mean, node.NewTemporary(x.type, shape));
  }
  node.Call("mean", {node.In(x), node.Out(WithShape(mean, kept)), last});
  if (!node.wants(2)) return absl::OkStatus();
  ASSIGN_OR_RETURN(Value squares, node.Compute("sub", {x, WithShape(mean, kept)}));
  ASSIGN_OR_RETURN(squares, node.Compute("mul", {squares, squares}));
  ASSIGN_OR_RETURN(Value variance, node.NewTemporary(x.type, kept));
  node.Call("mean", {node.In(squares), node.Out(variance), last});
  ASSIGN_OR_RETURN(variance, node.Compute("add", {variance, Repeated(epsilon, x.type, 1)}));
  ASSIGN_OR_RETURN(const Value out, node.NewResult(2, x.type, shape));
  node.Call("rsqrt", {node.In(WithShape(variance, kept)), node.Out(WithShape(out, kept))});
  return absl::OkStatus();
}

}  // namespace

absl::Status MapLayerNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 3));
  RETURN_IF_ERROR(CheckTypes(node));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", -1), x.rank()));
  const double epsilon = node.Float("epsilon", 1e-5);
  if (node.Int("stash_type", 1) != 1) return node.Refuse(302, "its stash_type is not float");
  if (x.type != ElementType::kFloat && (node.wants(1) || node.wants(2))) {
    return node.Refuse(302, "its statistics are supported for float only");
  }
  const Sizes64 normalized(x.shape.begin() + static_cast<int64_t>(axis), x.shape.end());
  Sizes64 rows(x.shape.begin(), x.shape.begin() + static_cast<int64_t>(axis));
  rows.push_back(Product(normalized, 0, normalized.size()));
  ASSIGN_OR_RETURN(Value in, node.Reshape(x, rows));
  ASSIGN_OR_RETURN(in, node.Dense(in));
  ASSIGN_OR_RETURN(const Value weight, NormWeights(node, 1, normalized));
  GraphWriter::Argument bias = node.None();
  if (node.has(2)) {
    ASSIGN_OR_RETURN(const Value values, NormWeights(node, 2, normalized));
    bias = node.In(values);
  }
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, x.shape));
  node.Call("layernorm", {node.In(in), node.In(weight), bias, node.Out(WithShape(out, rows)),
                          node.Real(epsilon)});
  if (!node.wants(1) && !node.wants(2)) return absl::OkStatus();
  Sizes64 shape = x.shape;
  for (size_t d = axis; d < x.rank(); ++d) shape[d] = 1;
  return SetStatistics(node, in, epsilon, shape);
}

absl::Status MapRmsNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(2, 2));
  RETURN_IF_ERROR(CheckTypes(node));
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", -1), x.rank()));
  const Sizes64 normalized(x.shape.begin() + static_cast<int64_t>(axis), x.shape.end());
  Sizes64 rows(x.shape.begin(), x.shape.begin() + static_cast<int64_t>(axis));
  rows.push_back(Product(normalized, 0, normalized.size()));
  ASSIGN_OR_RETURN(Value in, node.Reshape(x, rows));
  ASSIGN_OR_RETURN(in, node.Dense(in));
  ASSIGN_OR_RETURN(const Value weight, NormWeights(node, 1, normalized));
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, x.shape));
  node.Call("rmsnorm", {node.In(in), node.In(weight), node.Out(WithShape(out, rows)),
                        node.Real(node.Float("epsilon", 1e-5))});
  return absl::OkStatus();
}

namespace {

// scale / sqrt(variance + epsilon) and bias - mean * factor of constants.
struct Affine {
  Value factor, addend;
};

absl::StatusOr<Affine> FoldChannels(NodeContext& node, double epsilon) {
  const int64_t count = node.in(1).elements();
  RETURN_IF_ERROR(node.Charge(2 * count, ElementType::kDouble));
  std::vector<double> factors, addends;
  for (int64_t i = 0; i < count; ++i) {
    const double factor =
        node.in(1).constant.Real(i) / std::sqrt(node.in(4).constant.Real(i) + epsilon);
    factors.push_back(factor);
    addends.push_back(node.in(2).constant.Real(i) - node.in(3).constant.Real(i) * factor);
  }
  const ElementType type = node.in(0).type;
  return Affine{ConstantValue(Constant::Reals({count}, factors, type)),
                ConstantValue(Constant::Reals({count}, addends, type))};
}

}  // namespace

absl::Status MapBatchNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(5, 5));
  RETURN_IF_ERROR(CheckTypes(node));
  const Value& x = node.in(0);
  if (node.Int("training_mode", 0) != 0 || (node.opset() < 7 && node.Int("is_test", 0) == 0)) {
    return node.Refuse(302, "it is in training mode. Fix: export for inference");
  }
  if (node.Int("spatial", 1) != 1) return node.Refuse(302, "spatial=0 is not supported");
  for (size_t i = 1; i < node.outputs(); ++i) {
    if (node.wants(i)) return node.Refuse(302, "only its first output is supported");
  }
  if (x.rank() < 2) return node.Refuse(302, "its input has no channels");
  bool constant = true;
  for (size_t i = 1; i < 5; ++i) {
    if (node.in(i).shape != Sizes64{x.size(1)})
      return node.Refuse(302, "a parameter is not one value for each channel");
    constant = constant && node.in(i).is_constant();
  }
  const double epsilon = node.Float("epsilon", 1e-5);
  if (constant) {
    ASSIGN_OR_RETURN(const Affine affine, FoldChannels(node, epsilon));
    ASSIGN_OR_RETURN(const Value factor, AsChannels(node, affine.factor, x.rank()));
    ASSIGN_OR_RETURN(const Value addend, AsChannels(node, affine.addend, x.rank()));
    ASSIGN_OR_RETURN(const Value scaled, node.Compute("mul", {x, factor}));
    return node.ComputeResult(0, "add", {scaled, addend}).status();
  }
  ASSIGN_OR_RETURN(Value factor,
                   node.Compute("add", {node.in(4), Repeated(epsilon, node.in(4).type, 1)}));
  ASSIGN_OR_RETURN(factor, node.Compute("rsqrt", {factor}));
  ASSIGN_OR_RETURN(factor, node.Compute("mul", {factor, node.in(1)}));
  ASSIGN_OR_RETURN(factor, AsChannels(node, factor, x.rank()));
  ASSIGN_OR_RETURN(const Value mean, AsChannels(node, node.in(3), x.rank()));
  ASSIGN_OR_RETURN(const Value bias, AsChannels(node, node.in(2), x.rank()));
  ASSIGN_OR_RETURN(Value value, node.Compute("sub", {x, mean}));
  ASSIGN_OR_RETURN(value, node.Compute("mul", {value, factor}));
  return node.ComputeResult(0, "add", {value, bias}).status();
}

namespace {

// layernorm of x as [rows..., rest], without weights.
absl::StatusOr<Value> NormalizeRows(NodeContext& node, const Value& x, Sizes64 rows,
                                    double epsilon) {
  const int64_t columns = x.elements() / Product(rows, 0, rows.size());
  rows.push_back(columns);
  ASSIGN_OR_RETURN(const Value ones, Ones(node, x.type, columns));
  ASSIGN_OR_RETURN(Value in, node.Reshape(x, rows));
  ASSIGN_OR_RETURN(in, node.Dense(in));
  ASSIGN_OR_RETURN(const Value out, node.NewTemporary(x.type, rows));
  node.Call("layernorm",
            {node.In(in), node.In(ones), node.None(), node.Out(out), node.Real(epsilon)});
  return out;
}

}  // namespace

absl::Status MapInstanceNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 3));
  RETURN_IF_ERROR(CheckTypes(node));
  const Value& x = node.in(0);
  if (x.rank() < 3) return node.Refuse(302, "its input has fewer than three dimensions");
  for (size_t i = 1; i < 3; ++i) {
    if (node.in(i).shape != Sizes64{x.size(1)})
      return node.Refuse(302, "a parameter is not one value for each channel");
  }
  ASSIGN_OR_RETURN(Value value,
                   NormalizeRows(node, x, {x.size(0), x.size(1)}, node.Float("epsilon", 1e-5)));
  ASSIGN_OR_RETURN(value, node.Reshape(value, x.shape));
  ASSIGN_OR_RETURN(const Value scale, AsChannels(node, node.in(1), x.rank()));
  ASSIGN_OR_RETURN(const Value bias, AsChannels(node, node.in(2), x.rank()));
  ASSIGN_OR_RETURN(value, node.Compute("mul", {value, scale}));
  return node.ComputeResult(0, "add", {value, bias}).status();
}

absl::Status MapGroupNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(3, 3));
  RETURN_IF_ERROR(CheckTypes(node));
  const Value& x = node.in(0);
  const int64_t groups = node.Int("num_groups", 0);
  if (x.rank() < 3 || groups < 1 || x.size(1) % groups != 0) {
    return node.Refuse(302, StrCat("the channels of the shape ", ShapeText(x.shape),
                                   " cannot be divided into ", groups, " groups"));
  }
  // Since version 21 there is a scale for each channel, before for each group.
  const int64_t scales = node.opset() >= 21 ? x.size(1) : groups;
  for (size_t i = 1; i < 3; ++i) {
    if (node.in(i).shape != Sizes64{scales})
      return node.Refuse(302, StrCat("a parameter has not ", scales, " values"));
  }
  ASSIGN_OR_RETURN(Value value,
                   NormalizeRows(node, x, {x.size(0), groups}, node.Float("epsilon", 1e-5)));
  const Sizes64 shape = {x.size(0), scales, x.elements() / x.size(0) / scales};
  ASSIGN_OR_RETURN(value, node.Reshape(value, shape));
  ASSIGN_OR_RETURN(const Value scale, AsChannels(node, node.in(1), 3));
  ASSIGN_OR_RETURN(const Value bias, AsChannels(node, node.in(2), 3));
  ASSIGN_OR_RETURN(value, node.Compute("mul", {value, scale}));
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, x.type, x.shape));
  node.Call("add", {node.In(value), node.In(bias), node.Out(WithShape(out, shape))});
  return absl::OkStatus();
}

// Vectors of length 1. A vector of zeros remains one.
absl::Status MapLpNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  if (x.type != ElementType::kFloat) return node.RefuseType(x.type);
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", -1), x.rank()));
  const int64_t p = node.Int("p", 2);
  if (p != 1 && p != 2) return node.Refuse(302, StrCat("p is ", p));
  Sizes64 shape = x.shape;
  shape[axis] = 1;
  Value terms;
  if (p == 1) {
    ASSIGN_OR_RETURN(terms, node.Compute("abs", {x}));
  } else {
    ASSIGN_OR_RETURN(terms, node.Compute("mul", {x, x}));
  }
  ASSIGN_OR_RETURN(Value norm, node.NewTemporary(x.type, shape));
  node.Call("sum", {node.In(terms), node.Out(norm), node.Integer(int64_t{1} << axis)});
  if (p == 2) {
    ASSIGN_OR_RETURN(norm, node.Compute("sqrt", {norm}));
  }
  // 0 divided by the smallest number is 0.
  ASSIGN_OR_RETURN(norm, node.Compute("clamp", {norm},
                                      {node.Real(std::numeric_limits<float>::min()),
                                       node.Real(std::numeric_limits<float>::max())}));
  return node.ComputeResult(0, "div", {x, norm}).status();
}

absl::Status MapMeanVarianceNormalization(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  if (x.type != ElementType::kFloat) return node.RefuseType(x.type);
  int64_t axes = 0;
  Sizes64 shape = x.shape;
  for (const int64_t axis : node.Ints("axes").value_or(std::vector<int64_t>{0, 2, 3})) {
    ASSIGN_OR_RETURN(const size_t d, node.Axis(axis, x.rank()));
    axes |= int64_t{1} << d;
    shape[d] = 1;
  }
  ASSIGN_OR_RETURN(const Value mean, node.NewTemporary(x.type, shape));
  node.Call("mean", {node.In(x), node.Out(mean), node.Integer(axes)});
  ASSIGN_OR_RETURN(const Value centred, node.Compute("sub", {x, mean}));
  ASSIGN_OR_RETURN(const Value squares, node.Compute("mul", {centred, centred}));
  ASSIGN_OR_RETURN(Value deviation, node.NewTemporary(x.type, shape));
  node.Call("mean", {node.In(squares), node.Out(deviation), node.Integer(axes)});
  ASSIGN_OR_RETURN(deviation, node.Compute("sqrt", {deviation}));
  // The reference adds this number to the deviation.
  ASSIGN_OR_RETURN(deviation, node.Compute("add", {deviation, Repeated(1e-9, x.type, 1)}));
  return node.ComputeResult(0, "div", {centred, deviation}).status();
}

}  // namespace resident::onnx
