// Operators of the domain ai.onnx.ml for rows of numbers, as the converter of scikit-learn writes
// them: scalers, imputed values, normalizations and linear models. The results are float32.
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {

using absl::StrCat;

namespace {

// The input, a matrix with a row of features for each request, as float32.
absl::StatusOr<Value> ReadRows(NodeContext& node) {
  RETURN_IF_ERROR(node.CheckInputs(1, 1));
  const Value& x = node.in(0);
  if (x.rank() != 2) {
    return node.Refuse(302, StrCat("its input has ", x.rank(), " dimensions, and must have 2"));
  }
  if (x.type == ElementType::kDouble) return node.RefuseType(x.type);
  return node.Convert(x, ElementType::kFloat);
}

// The numbers of an attribute, in this shape; for a row of columns also one for all.
absl::StatusOr<Value> ReadFloats(NodeContext& node, const char* name, Sizes64 shape) {
  const AttributeProto* const attribute = node.FindAttribute(name);
  const int64_t given = attribute == nullptr ? 0 : attribute->floats_size();
  if (given == 1 && shape.size() == 1) shape = {1};
  const std::optional<int64_t> wanted = CountElements(shape);
  if (given != wanted) {
    return node.Refuse(
        109, StrCat(name, " has ", given, " numbers, and the shape is ", ShapeText(shape)));
  }
  RETURN_IF_ERROR(node.Charge(given, ElementType::kFloat));
  return ConstantValue(
      Constant::Reals(shape, {attribute->floats().begin(), attribute->floats().end()}));
}

// The largest element of each row, or the sum.
absl::StatusOr<Value> ReduceRows(NodeContext& node, const char* op, const Value& x) {
  ASSIGN_OR_RETURN(const Value out, node.NewTemporary(x.type, {x.size(0), 1}));
  node.Call(op, {node.In(x), node.Out(out), node.Integer(int64_t{1} << 1)});
  return out;
}

// The class with the largest score of each row, as result 0.
absl::Status SetClasses(NodeContext& node, const Value& scores) {
  const AttributeProto* const names = node.FindAttribute("classlabels_strings");
  if (names != nullptr && names->strings_size() > 0) {
    return node.Refuse(201, "its classes are strings. Fix: train with integers as classes");
  }
  const std::vector<int64_t> classes =
      node.Ints("classlabels_ints").value_or(std::vector<int64_t>());
  const int64_t count = scores.size(1), rows = scores.size(0);
  if (static_cast<int64_t>(classes.size()) != count || count < 2) {
    return node.Refuse(302, StrCat("it has ", count, " scores for ", classes.size(), " classes"));
  }
  ASSIGN_OR_RETURN(const Value largest, node.NewTemporary(ElementType::kInt64, {rows, 1}));
  node.Call("argmax", {node.In(scores), node.Out(largest), node.Integer(int64_t{1} << 1)});
  RETURN_IF_ERROR(node.Charge(count, ElementType::kInt64));
  const Value table = ConstantValue(Constant::Integers({count}, classes));
  ASSIGN_OR_RETURN(const Value from, node.Broadcast(node.Stored(table), {rows, count}));
  ASSIGN_OR_RETURN(Value out, node.NewResult(0, ElementType::kInt64, {rows}));
  out.shape = {rows, 1};
  out.strides = {1, 1};
  node.Call("gather", {node.In(from), node.In(largest), node.Out(out), node.Integer(1)});
  return absl::OkStatus();
}

}  // namespace

absl::Status MapScaler(NodeContext& node) {
  ASSIGN_OR_RETURN(const Value x, ReadRows(node));
  ASSIGN_OR_RETURN(const Value offset, ReadFloats(node, "offset", {x.size(1)}));
  ASSIGN_OR_RETURN(const Value scale, ReadFloats(node, "scale", {x.size(1)}));
  return node
      .Pointwise(0, {x, offset, scale},
                 [](Expression& e, const auto& v) { return e.Mul(e.Sub(v[0], v[1]), v[2]); })
      .status();
}

absl::Status MapImputer(NodeContext& node) {
  ASSIGN_OR_RETURN(const Value x, ReadRows(node));
  ASSIGN_OR_RETURN(const Value values, ReadFloats(node, "imputed_value_floats", {x.size(1)}));
  const double replaced = node.Float("replaced_value_float", 0);
  return node
      .Pointwise(0, {x, values},
                 [&](Expression& e, const auto& v) {
                   const Term present =
                       std::isnan(replaced)
                           ? e.Equal(v[0], v[0])
                           : e.Not(e.Equal(v[0], e.Number(replaced, ElementType::kFloat)));
                   return e.Select(present, v[0], v[1]);
                 })
      .status();
}

absl::Status MapBinarizer(NodeContext& node) {
  ASSIGN_OR_RETURN(const Value x, ReadRows(node));
  const double threshold = node.Float("threshold", 0);
  return node
      .Pointwise(0, {x},
                 [&](Expression& e, const auto& v) {
                   const Term limit = e.Number(threshold, ElementType::kFloat);
                   return e.Cast(e.Less(limit, v[0]), ElementType::kFloat);
                 })
      .status();
}

// A row whose norm is 0 remains as it is.
absl::Status MapNormalizer(NodeContext& node) {
  ASSIGN_OR_RETURN(const Value x, ReadRows(node));
  const std::string norm = node.String("norm", "MAX");
  Value terms = x;
  if (norm == "L1") {
    ASSIGN_OR_RETURN(terms, node.Compute("abs", {x}));
  } else if (norm == "L2") {
    ASSIGN_OR_RETURN(terms, node.Compute("mul", {x, x}));
  } else if (norm != "MAX") {
    return node.Refuse(302, StrCat("norm is ", norm));
  }
  ASSIGN_OR_RETURN(Value sum, ReduceRows(node, norm == "MAX" ? "max" : "sum", terms));
  if (norm == "L2") {
    ASSIGN_OR_RETURN(sum, node.Compute("sqrt", {sum}));
  }
  return node
      .Pointwise(0, {x, sum},
                 [](Expression& e, const auto& v) {
                   const Term none = e.Equal(v[1], e.Number(0, ElementType::kFloat));
                   return e.Select(none, v[0], e.Div(v[0], v[1]));
                 })
      .status();
}

// LinearRegressor: the scores. LinearClassifier: the class with the largest score, and the scores.
absl::Status MapLinearModel(NodeContext& node) {
  ASSIGN_OR_RETURN(const Value x, ReadRows(node));
  const bool classifies = node.op() == "LinearClassifier";
  const size_t result = classifies ? 1 : 0;
  const AttributeProto* const given = node.FindAttribute("intercepts");
  const bool adds = given != nullptr && given->floats_size() > 0;
  int64_t scores = adds ? given->floats_size() : node.Int("targets", 1);
  if (classifies && !adds) {
    scores = static_cast<int64_t>(node.Ints("classlabels_ints").value_or(Sizes64()).size());
  }
  if (scores < 1) return node.Refuse(109, "it has no scores");
  ASSIGN_OR_RETURN(const Value weights, ReadFloats(node, "coefficients", {scores, x.size(1)}));
  GraphWriter::Argument bias = node.None();
  if (adds) {
    ASSIGN_OR_RETURN(const Value intercepts, ReadFloats(node, "intercepts", {scores}));
    bias = node.In(intercepts);
  }
  const std::string transform = node.String("post_transform", "NONE");
  const char* const op = transform == "LOGISTIC"  ? "sigmoid"
                         : transform == "SOFTMAX" ? "softmax"
                                                  : nullptr;
  if (op == nullptr && transform != "NONE") {
    return node.Refuse(302, StrCat("post_transform is ", transform));
  }
  const Sizes64 shape = {x.size(0), scores};
  Value out;
  if (op == nullptr) {
    ASSIGN_OR_RETURN(out, node.NewResult(result, ElementType::kFloat, shape));
  } else {
    ASSIGN_OR_RETURN(out, node.NewTemporary(ElementType::kFloat, shape));
  }
  RETURN_IF_ERROR(MultiplyVectors(node, x, weights, bias, out));
  if (classifies && node.wants(0)) RETURN_IF_ERROR(SetClasses(node, out));
  return op == nullptr ? absl::OkStatus() : node.ComputeResult(result, op, {out}).status();
}

}  // namespace resident::onnx
