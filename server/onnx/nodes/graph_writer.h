// GraphWriter: writes the v1::Graph of a model: its tensors, and calls of operators.
//
// Names. An input or output of the model keeps its name if a graph may have it. A weight has the
// name of its initializer, or one that is made from its content, so that in all graphs of one model
// one name means one content. Other names are made from those of the model's values.
//
// Thread safety: none.
//
//   Value y = writer.NewActivation("y", ElementType::kFloat, {2, 3});
//   writer.Call("relu", {writer.In(x), writer.Out(y)});
//   ASSIGN_OR_RETURN(v1::Graph graph, writer.Finish());
#ifndef RESIDENT_SERVER_ONNX_NODES_GRAPH_WRITER_H_
#define RESIDENT_SERVER_ONNX_NODES_GRAPH_WRITER_H_

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/v1/graphs.pb.h"
#include "server/onnx/nodes/limits.h"
#include "server/onnx/nodes/mapping_choices.h"
#include "server/onnx/values/expression.h"
#include "server/onnx/values/value.h"

namespace resident::onnx {

// A name that a graph may have: `name`, or its beginning and a hash if it is longer.
std::string GraphName(const std::string& name);

class GraphWriter {
 public:
  // An argument of a call.
  struct Argument {
    v1::GraphArgument message;
    int tensor = -1;  // Its index; -1: it is no tensor.
    bool written = false;
  };

  // `constants`: the model's initializers, whose names weights keep.
  explicit GraphWriter(const absl::flat_hash_map<std::string, Constant>& constants);

  // Keeps a name for an input or output that is added later.
  void Reserve(const std::string& name) {
    reserved_names_.insert(GraphName(name));
    io_names_.insert(GraphName(name));
  }

  // A dense tensor.
  Value NewTensor(v1::GraphTensor::Kind kind, const std::string& name, ElementType type,
                  const Sizes64& shape);
  Value NewActivation(const std::string& name, ElementType type, const Sizes64& shape) {
    return NewTensor(v1::GraphTensor::KIND_ACTIVATION, name, type, shape);
  }

  // The view of a weight with the constant's content; another value as it is.
  Value Materialize(const Value& value);

  Argument In(const Value& value);
  Argument Out(const Value& view);
  static Argument Real(double value);
  static Argument Integer(int64_t value);
  static Argument None();
  // The node's name is that of the model's node.
  void Call(const char* op, std::vector<Argument> arguments);
  // A call of pointwise: one argument for each input of the expression.
  void CallPointwise(Expression expression, std::vector<Argument> inputs, Argument out);
  void SetNodeName(const std::string& name) { node_name_ = name; }

  v1::GraphTensor::Kind tensor_kind(const Value& view) const {
    return tensors_[static_cast<size_t>(view.tensor)].kind();
  }
  // The name of a tensor in the graph.
  const std::string& tensor_name(int tensor) const {
    return tensors_[static_cast<size_t>(tensor)].name();
  }
  size_t calls() const { return calls_.size(); }
  // A view of all elements of a tensor.
  Value Whole(int tensor) const;

  // E501: a limit of the graph is exceeded.
  absl::Status status() const { return status_; }

  // The graph, without the calls and tensors that its outputs do not need, and its weights. Inputs
  // remain. Element-wise calls in a row whose values between them no other call reads become one
  // call of pointwise (graph_chains.cc).
  void Finish(MappingChoices* choices, v1::Graph* graph, std::vector<Weight>* weights);

 private:
  struct Record {
    const char* op;
    std::string name;
    std::vector<Argument> arguments;
    // Of pointwise, whose arguments are the inputs and the output.
    std::optional<Expression> expression = {};
  };
  // A call as an expression.
  struct Elementwise {
    Expression expression;
    std::vector<Argument> inputs;
    Argument out;
  };
  // How tensors are used by the calls that are needed.
  struct Uses {
    std::vector<std::vector<size_t>> readers, writers;  // Calls, by tensor.
  };

  // A name that a graph may have and that no tensor has. `name`: as in the model.
  std::string UniqueName(const std::string& name);
  v1::GraphArgument View(const Value& view);
  int NewWeight(const std::string& name, const Constant& constant);
  Value AddTensor(v1::GraphTensor::Kind kind, std::string name, ElementType type,
                  const Sizes64& shape);
  // Sets which tensors the graph has, and returns the calls.
  std::vector<bool> FindNeededCalls(std::vector<bool>* needed_tensors) const;

  // graph_chains.cc
  void JoinChains(MappingChoices* choices);
  std::optional<Elementwise> AsElementwise(const Record& call) const;
  // The number that a weight of one element has.
  std::optional<Term> ReadNumber(const Argument& argument, Expression* expression) const;
  // Adds the call that writes input `i` to those that `root` executes. False: it cannot be.
  bool Absorb(const Uses& uses, const std::vector<std::optional<Elementwise>>& calls, size_t root,
              size_t i, MappingChoices* choices, std::vector<bool>* absorbed, Elementwise* whole,
              std::vector<size_t>* members) const;
  Sizes64 ShapeOf(const Argument& argument) const;
  ElementType element_type(const Argument& argument) const {
    return types_[static_cast<size_t>(argument.tensor)];
  }

  const absl::flat_hash_map<std::string, Constant>& constants_;
  absl::Status status_;
  std::vector<v1::GraphTensor> tensors_;
  std::vector<ElementType> types_;
  std::map<int, Weight> weights_;  // By the index of the tensor.
  std::vector<Record> calls_;
  absl::flat_hash_set<std::string> names_;
  // Those of initializers, inputs and outputs; of inputs and outputs.
  absl::flat_hash_set<std::string> reserved_names_, io_names_;
  absl::flat_hash_map<std::string, int> repeats_;
  // Weights so far, by name, and of those without a name by bytes, type and shape.
  absl::flat_hash_map<std::string, int> named_weights_;
  std::map<std::tuple<const std::string*, ElementType, Sizes64>, int> computed_weights_;
  // Keeps the bytes that are keys.
  std::vector<std::shared_ptr<const std::string>> kept_;
  std::string node_name_;
  absl::flat_hash_map<std::string, int> node_names_;
  int64_t activation_bytes_ = 0;
};

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_NODES_GRAPH_WRITER_H_
