// Reductions over axes.
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

constexpr double kLargestFloat = std::numeric_limits<float>::max();

struct Reduction {
  int64_t axes = 0;  // Bit d: axis d.
  Sizes64 shape;     // Of the result.
  Sizes64 kept;      // With size 1 for what is reduced.
};

absl::StatusOr<Reduction> ReadReduction(NodeContext& node) {
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(auto axes, node.Axes(1));
  Reduction reduction;
  if (axes.has_value() && !axes->empty()) {
    for (const int64_t axis : *axes) {
      ASSIGN_OR_RETURN(const size_t d, node.Axis(axis, x.rank()));
      reduction.axes |= int64_t{1} << d;
    }
  } else if (node.Int("noop_with_empty_axes", 0) == 0) {
    reduction.axes = (int64_t{1} << x.rank()) - 1;
  }
  const bool keep = node.Int("keepdims", 1) != 0;
  for (size_t d = 0; d < x.rank(); ++d) {
    const bool reduced = (reduction.axes >> d & 1) != 0;
    reduction.kept.push_back(reduced ? 1 : x.size(d));
    if (!reduced || keep) reduction.shape.push_back(reduction.kept.back());
  }
  return reduction;
}

// With size 1 for the axes that are reduced, for an operation with what was reduced.
Value Kept(Value value, const Reduction& reduction) {
  value.shape = reduction.kept;
  value.strides = DenseStrides(value.shape);
  return value;
}

// op over the axes, as the node's result or as a temporary tensor.
absl::StatusOr<Value> Reduce(NodeContext& node, const char* op, const Value& x,
                             const Reduction& reduction, bool result) {
  Value out;
  if (result) {
    ASSIGN_OR_RETURN(out, node.NewResult(0, x.type, reduction.shape));
  } else {
    ASSIGN_OR_RETURN(out, node.NewTemporary(x.type, reduction.shape));
  }
  node.Call(op, {node.In(x), node.Out(out), node.Integer(reduction.axes)});
  return out;
}

// log(sum(exp(x))), computed from x - m, where m is the largest x. A bound keeps infinities out of
// m.
absl::Status ReduceLogSumExp(NodeContext& node, const Reduction& reduction) {
  const Value& x = node.in(0);
  ASSIGN_OR_RETURN(Value largest, Reduce(node, "max", x, reduction, /*result=*/false));
  ASSIGN_OR_RETURN(largest, node.Compute("clamp", {largest},
                                         {node.Real(-kLargestFloat), node.Real(kLargestFloat)}));
  ASSIGN_OR_RETURN(Value terms, node.Compute("sub", {x, Kept(largest, reduction)}));
  ASSIGN_OR_RETURN(terms, node.Compute("exp", {terms}));
  ASSIGN_OR_RETURN(Value sum, Reduce(node, "sum", terms, reduction, /*result=*/false));
  ASSIGN_OR_RETURN(sum, node.Compute("log", {sum}));
  return node.ComputeResult(0, "add", {sum, largest}).status();
}

}  // namespace

absl::Status MapReduce(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 2));
  const std::string& op = node.op();
  Value x = node.in(0);
  RETURN_IF_ERROR(node.CheckFloat(0));
  ASSIGN_OR_RETURN(const Reduction reduction, ReadReduction(node));
  static const auto* const operators = new absl::flat_hash_map<std::string_view, const char*>{
      {"ReduceSum", "sum"}, {"ReduceMean", "mean"}, {"ReduceMax", "max"}, {"ReduceMin", "min"}};
  const auto direct = operators->find(op);
  if (reduction.axes == 0) {
    // Each element is reduced by itself.
    if (op == "ReduceL1" || op == "ReduceL2") return node.ComputeResult(0, "abs", {x}).status();
    if (op == "ReduceSumSquare") return node.ComputeResult(0, "mul", {x, x}).status();
    if (op == "ReduceLogSum") return node.ComputeResult(0, "log", {x}).status();
    node.SetResult(0, std::move(x));
    return absl::OkStatus();
  }
  if (x.type != ElementType::kFloat && direct == operators->end()) {
    // The terms would be rounded before they are added.
    return node.RefuseType(x.type);
  }
  if (direct != operators->end()) return Reduce(node, direct->second, x, reduction, true).status();
  if (op == "ReduceLogSumExp") return ReduceLogSumExp(node, reduction);
  if (op == "ReduceL1") {
    ASSIGN_OR_RETURN(x, node.Compute("abs", {x}));
    return Reduce(node, "sum", x, reduction, true).status();
  }
  if (op == "ReduceLogSum") {
    ASSIGN_OR_RETURN(const Value sum, Reduce(node, "sum", x, reduction, /*result=*/false));
    return node.ComputeResult(0, "log", {sum}).status();
  }
  ASSIGN_OR_RETURN(x, node.Compute("mul", {x, x}));
  if (op == "ReduceSumSquare") return Reduce(node, "sum", x, reduction, true).status();
  ASSIGN_OR_RETURN(const Value sum, Reduce(node, "sum", x, reduction, /*result=*/false));
  return node.ComputeResult(0, "sqrt", {sum}).status();
}

absl::Status MapArg(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  RETURN_IF_ERROR(node.CheckFloat(0));
  Value x = node.in(0);
  ASSIGN_OR_RETURN(const size_t axis, node.Axis(node.Int("axis", 0), x.rank()));
  const bool keep = node.Int("keepdims", 1) != 0;
  const bool last = node.Int("select_last_index", 0) != 0;
  Sizes64 shape;
  for (size_t d = 0; d < x.rank(); ++d) {
    if (d != axis || keep) shape.push_back(d == axis ? 1 : x.size(d));
  }
  if (node.op() == "ArgMin") {
    ASSIGN_OR_RETURN(x, node.Compute("neg", {x}));
  }
  const GraphWriter::Argument axes = node.Integer(int64_t{1} << axis);
  if (!last) {
    ASSIGN_OR_RETURN(const Value out, node.NewResult(0, ElementType::kInt64, shape));
    node.Call("argmax", {node.In(x), node.Out(out), axes});
    return absl::OkStatus();
  }
  // The first index of the reversed axis, counted from the end.
  if (x.size(axis) > std::numeric_limits<int32_t>::max())
    return node.Refuse(302, "its axis is too long");
  Value reversed = NodeContext::Strided(x);
  reversed.offset += (x.size(axis) - 1) * reversed.strides[axis];
  if (x.size(axis) > 1) reversed.strides[axis] = -reversed.strides[axis];
  ASSIGN_OR_RETURN(reversed, node.Settle(std::move(reversed)));
  ASSIGN_OR_RETURN(const Value first, node.NewTemporary(ElementType::kInt64, shape));
  node.Call("argmax", {node.In(reversed), node.Out(first), axes});
  ASSIGN_OR_RETURN(Value index, node.Convert(first, ElementType::kInt32));
  const Value end = ConstantValue(Constant::Integers({}, {x.size(axis) - 1}, ElementType::kInt32));
  ASSIGN_OR_RETURN(index, node.Compute("sub", {end, index}));
  ASSIGN_OR_RETURN(const Value out, node.NewResult(0, ElementType::kInt64, shape));
  node.Call("copy", {node.In(index), node.Out(out)});
  return absl::OkStatus();
}

}  // namespace resident::onnx
