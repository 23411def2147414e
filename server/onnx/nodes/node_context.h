// NodeContext: a node of the model while it is mapped: its inputs, attributes and results.
//
// A mapping function (operators.h) reads the inputs, adds calls to the graph, and sets the results.
// If it cannot, it returns Refuse(), and the node becomes a finding.
//
// Thread safety: none.
//
//   absl::Status MapRelu(NodeContext& node) {
//     RETURN_IF_ERROR(node.CheckFloat(0));
//     ASSIGN_OR_RETURN(const Value out, node.NewResult(0, node.in(0).type, node.in(0).shape));
//     node.Call("relu", {node.In(node.in(0)), node.Out(out)});
//     return absl::OkStatus();
//   }
#ifndef RESIDENT_SERVER_ONNX_NODES_NODE_CONTEXT_H_
#define RESIDENT_SERVER_ONNX_NODES_NODE_CONTEXT_H_

#include <cassert>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/onnx/nodes/graph_writer.h"
#include "server/onnx/nodes/mapping_choices.h"
#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/constant_cache.h"
#include "server/onnx/values/expression.h"
#include "server/onnx/values/value.h"

namespace resident::onnx {

// What all computations at import may use.
struct FoldBudget {
  int64_t bytes = kMaxAllFoldedBytes;
  int64_t elements = kMaxFoldedElements;
  // Of the model; null: none.
  ConstantCache* cache = nullptr;
};

class NodeContext {
 public:
  using Argument = GraphWriter::Argument;

  // `inputs`: null for an input that is left out. `output_tensor`: makes the tensor of a result
  // with this name, which is one of the graph's outputs or an activation.
  NodeContext(const NodeProto& node, int64_t opset, std::vector<const Value*> inputs,
              GraphWriter* writer, FoldBudget* budget, MappingChoices* choices,
              std::function<Value(const std::string&, ElementType, const Sizes64&)> output_tensor);

  const NodeProto& node() const { return node_; }
  const std::string& op() const { return node_.op_type(); }
  MappingChoices& choices() { return choices_; }
  // The version of the operator set.
  int64_t opset() const { return opset_; }

  // Inputs.
  size_t inputs() const { return inputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && inputs_[i] != nullptr; }
  // REQUIRES: has(i).
  const Value& in(size_t i) const {
    assert(has(i));
    return *inputs_[i];
  }
  // E109: the node has fewer than `min` inputs (those that are left out do not count at the end)
  // or more than `max`.
  absl::Status CheckInputs(size_t min, size_t max) const;
  // E201: the input is not float, float16 or bfloat16.
  absl::Status CheckFloat(size_t i) const;
  // E201: the daemon's operator does not take this type.
  absl::Status RefuseType(ElementType type) const;
  // The elements of a constant input. E402: it is computed. `what`: "the axes".
  absl::StatusOr<Constant> RequireConstant(size_t i, absl::string_view what);
  absl::StatusOr<std::vector<int64_t>> RequireIntegers(size_t i, absl::string_view what);
  // The input of the model that a failed RequireConstant named.
  const std::string& input_to_fix() const { return input_to_fix_; }

  // Attributes. One of another type makes the node malformed (E109).
  const AttributeProto* FindAttribute(std::string_view name) const;
  int64_t Int(std::string_view name, int64_t otherwise);
  double Float(std::string_view name, double otherwise);
  std::string String(std::string_view name, std::string_view otherwise);
  std::optional<std::vector<int64_t>> Ints(std::string_view name);
  bool malformed() const { return malformed_; }
  // An axis that may count from the end. E302: out of range.
  absl::StatusOr<size_t> Axis(int64_t axis, size_t rank) const;
  // Axes from the attribute "axes" or the input `i`; nullopt: the node has neither.
  absl::StatusOr<std::optional<std::vector<int64_t>>> Axes(size_t i);

  // Results.
  size_t outputs() const { return static_cast<size_t>(node_.output_size()); }
  bool wants(size_t i) const { return i < outputs() && !node_.output(static_cast<int>(i)).empty(); }
  // A dense tensor that is result `i`. E404: it is empty; E103: more than kMaxRank dimensions.
  absl::StatusOr<Value> NewResult(size_t i, ElementType type, const Sizes64& shape);
  // A dense tensor for the use of this node.
  absl::StatusOr<Value> NewTemporary(ElementType type, const Sizes64& shape);
  // Another value as the result.
  void SetResult(size_t i, Value value);
  const std::vector<std::optional<Value>>& results() const { return results_; }

  // Calls.
  Argument In(const Value& value) { return writer_.In(value); }
  Argument Out(const Value& value) { return writer_.Out(value); }
  // Members, so that they read as In() and Out().
  Argument Real(double value) const { return GraphWriter::Real(value); }
  Argument Integer(int64_t value) const { return GraphWriter::Integer(value); }
  Argument None() const { return GraphWriter::None(); }
  void Call(const char* op, std::vector<Argument> arguments) {
    writer_.Call(op, std::move(arguments));
  }
  // out = op(values...) with a new tensor of the broadcast shape and the type of the first value.
  absl::StatusOr<Value> Compute(const char* op, const std::vector<Value>& values,
                                const std::vector<Argument>& scalars = {});
  // The same as result `i`, if it is given.
  absl::StatusOr<Value> ComputeResult(std::optional<size_t> i, const char* op,
                                      const std::vector<Value>& values,
                                      const std::vector<Argument>& scalars = {});
  // The same with what `build` computes of one term for each value. A constant of one element is a
  // number of the program. E201: a type that pointwise does not take; E302: more than six inputs.
  absl::StatusOr<Value> Pointwise(
      std::optional<size_t> i, const std::vector<Value>& values,
      absl::FunctionRef<Term(Expression& e, const std::vector<Term>& x)> build);
  // The value in another type. E201: the daemon cannot convert it.
  absl::StatusOr<Value> Convert(const Value& value, ElementType type);

  // Views. Strided() has strides also for a constant, so that a layout operator changes shape,
  // offset and strides of either in the same way; Settle() then makes a constant dense again.
  static Value Strided(const Value& value);
  absl::StatusOr<Value> Settle(Value value);
  // A constant as a view of its weight, whose views are not folded; another value as it is.
  Value Stored(const Value& value) { return writer_.Materialize(value); }
  // The same elements in another shape; copies them if the strides do not permit a view.
  absl::StatusOr<Value> Reshape(const Value& value, const Sizes64& shape);
  absl::StatusOr<Value> Transpose(const Value& value, const std::vector<size_t>& order);
  // The matrix whose columns are the rows of a constant one. A weight is transposed once for all
  // graphs of the model, whatever its size is.
  absl::StatusOr<Value> TransposeMatrix(const Value& matrix);
  // A value without gaps, for operators that take no strides.
  absl::StatusOr<Value> Dense(const Value& value);
  // Dimensions of size 1 are repeated.
  absl::StatusOr<Value> Broadcast(const Value& value, const Sizes64& shape);
  // The shape of several values together. E302: they do not broadcast.
  absl::StatusOr<Sizes64> BroadcastShape(const std::vector<Sizes64>& shapes) const;

  // Checks the limits of what is computed at import.
  absl::Status Charge(int64_t elements, ElementType type);

  // The error of a node.
  absl::Status Refuse(int code, absl::string_view text) const;
  // Of the last error of Refuse().
  int code() const { return code_; }
  // "Softmax 'n3'".
  std::string Place() const;

 private:
  absl::Status CheckShape(const Sizes64& shape, bool may_be_empty) const;

  const NodeProto& node_;
  const int64_t opset_;
  std::vector<const Value*> inputs_;
  GraphWriter& writer_;
  FoldBudget& budget_;
  MappingChoices& choices_;
  std::function<Value(const std::string&, ElementType, const Sizes64&)> output_tensor_;
  std::vector<std::optional<Value>> results_;
  std::string input_to_fix_;
  bool malformed_ = false;
  mutable int code_ = 0;
};

// The name by which a node is called in messages.
std::string NodeName(const NodeProto& node);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_NODES_NODE_CONTEXT_H_
