// GraphBuilder: describes a task graph in a few lines of C++.
//
//   GraphBuilder b("feature", **client);         // Asks the daemon for signatures of operators.
//   auto x = b.Input("x", v1::DTYPE_F32, {2, 64});
//   auto w = b.Weight("w", v1::DTYPE_F32, {64});
//   auto n = b.Call("rmsnorm", {x, w}, {{"eps", 1e-5}});
//   b.Output("y", b.Call("add", {n, b.Call("silu", {n})}));
//   absl::StatusOr<v1::Graph> graph = b.Build(); // For Client::RunGraph and ValidateGraph.
//
// client/graph_example.cc is a whole program. docs/graph_format.md has the meaning of a graph: the
// order of the calls is the order of its nodes.
//
// A call takes the tensors that the operator reads, or reads and writes, in the order of its
// signature. Everything else is given by the parameter's name: scalars, and where a result goes.
// Without that, a result is a new activation, whose shape and dtype are inferred from the inputs
// as for tasks (docs/operators.md). A parameter that is read and written (inout) works in place:
// the tensor that is given is also the result.
//
// Errors: no call fails. What is wrong is collected, and Build() returns all of it, with the node
// and "Fix: ...". Tensors that result from an error can be used further and cause no second error.
// What only the order of the nodes shows (a tensor that is read before it is written) is checked
// by the daemon.
//
// Limits: those of graphs (docs/graph_format.md), which the daemon checks. 100 errors are kept.
//
// Thread safety: none. The builder must outlive the tensors that it returned, and the client must
// outlive the builder.
#ifndef RESIDENT_CLIENT_GRAPH_BUILDER_H_
#define RESIDENT_CLIENT_GRAPH_BUILDER_H_

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/residentd_client.h"
#include "resident/v1/graphs.pb.h"

namespace resident::client {

class GraphBuilder {
 public:
  // The value factor * scalar + addend, which a run computes: 2 * pos + 1.
  class Scalar {
   public:
    Scalar() = default;
    friend Scalar operator*(double factor, Scalar scalar) {
      scalar.factor_ *= factor;
      scalar.addend_ *= factor;
      return scalar;
    }
    friend Scalar operator*(const Scalar& scalar, double factor) { return factor * scalar; }
    friend Scalar operator+(Scalar scalar, double addend) {
      scalar.addend_ += addend;
      return scalar;
    }
    friend Scalar operator+(double addend, const Scalar& scalar) { return scalar + addend; }
    friend Scalar operator-(const Scalar& scalar, double addend) { return scalar + -addend; }

   private:
    friend class GraphBuilder;
    const GraphBuilder* builder_ = nullptr;
    int index_ = -1;
    double factor_ = 1;
    double addend_ = 0;
  };

  // Number of elements of a dimension: a constant, or an integer scalar, whose largest value then
  // determines the memory.
  struct Dim {
    template <std::integral T>
    Dim(T elements) : size(static_cast<int64_t>(elements)) {}  // NOLINT: {2, rows}
    Dim(const Scalar& elements) : scalar(elements) {}          // NOLINT

    int64_t size = 0;
    std::optional<Scalar> scalar;
  };

  // A tensor of the graph, or a part of it. Copies name the same memory.
  class Tensor {
   public:
    Tensor() = default;

    v1::DType dtype() const;
    const std::vector<Dim>& shape() const { return shape_; }

    // Elements first to first + count - 1 of a dimension.
    Tensor Slice(uint32_t dimension, int64_t first, const Dim& count) const;
    // One element of a dimension, without that dimension.
    Tensor Index(uint32_t dimension, int64_t index) const;
    // With two dimensions exchanged. For operators that accept strided tensors.
    Tensor Transpose(uint32_t a, uint32_t b) const;
    // Any part. `strides` and `offset` count elements, the offset from the first element of this
    // tensor; no strides: dense.
    Tensor View(std::vector<Dim> shape, int64_t offset = 0,
                std::vector<int64_t> strides = {}) const;

   private:
    friend class GraphBuilder;
    // Whether it is the result of an error, or was never set.
    bool bad() const { return tensor_ < 0; }

    GraphBuilder* builder_ = nullptr;
    int tensor_ = -1;
    bool whole_ = true;
    std::vector<Dim> shape_;
    std::vector<int64_t> strides_;
    int64_t offset_ = 0;
  };

  // A result that is not inferred: a new activation with this type and shape.
  struct New {
    v1::DType dtype;
    std::vector<Dim> shape;
  };

  // A tensor that a call reads. std::nullopt: an optional one that is left out, such as a bias.
  struct Argument {
    Argument(Tensor value) : tensor(std::move(value)) {}  // NOLINT: {x, w}
    Argument(std::nullopt_t) {}                           // NOLINT
    std::optional<Tensor> tensor;
  };

  // The value of a parameter that is given by its name: a number or a scalar; for a result where
  // it goes: a tensor, New{dtype, shape}, or a dtype with the shape inferred.
  struct Absent {};
  using Value = std::variant<int64_t, double, Scalar, Tensor, New, v1::DType, Absent>;
  struct Setting {
    Setting(std::string name, std::nullopt_t) : parameter(std::move(name)), value(Absent{}) {}
    template <std::integral T>
    Setting(std::string name, T number)
        : parameter(std::move(name)), value(static_cast<int64_t>(number)) {}
    Setting(std::string name, Value any) : parameter(std::move(name)), value(std::move(any)) {}

    std::string parameter;
    Value value;
  };

  // `name`: only for people. Operators are those of the daemon when the first of them is called.
  GraphBuilder(std::string name, Client& client);
  // Without a daemon: each operator is declared.
  explicit GraphBuilder(std::string name);
  GraphBuilder(const GraphBuilder&) = delete;
  GraphBuilder& operator=(const GraphBuilder&) = delete;
  ~GraphBuilder();

  // Declares the signature of an operator (docs/operators.md), in place of the daemon's.
  void Operator(const std::string& name, const std::string& signature);

  // Memory that a run gets from outside, or that it keeps.
  Tensor Input(const std::string& name, v1::DType dtype, std::vector<Dim> shape);
  Tensor Weight(const std::string& name, v1::DType dtype, std::vector<Dim> shape);
  Tensor Constant(const std::string& name, v1::DType dtype, std::vector<Dim> shape);
  Tensor State(const std::string& name, v1::DType dtype, std::vector<Dim> shape);
  // Memory for several nodes, each of which writes a part. Other activations are made by Call.
  Tensor Activation(const std::string& name, v1::DType dtype, std::vector<Dim> shape);
  // An output or a stream to which nodes write, in place of Output() and Stream() below.
  Tensor NewOutput(const std::string& name, v1::DType dtype, std::vector<Dim> shape);
  Tensor NewStream(const std::string& name, v1::DType dtype, std::vector<Dim> record_shape,
                   uint64_t records = 0);

  // Scalars of type i64 and f32, with their range. `initial`: the value of a run that sets none.
  Scalar Integer(const std::string& name, int64_t min, int64_t max,
                 std::optional<int64_t> initial = std::nullopt);
  Scalar Real(const std::string& name, double min, double max,
              std::optional<double> initial = std::nullopt);

  // The next call: its node's name (without it: the operator and the node's index), and the
  // version of the operator (without it: the one that is active when the node starts).
  GraphBuilder& Named(std::string node);
  GraphBuilder& Version(uint32_t version);
  // Adds a node; returns its result. An operator with several results: CallAll.
  Tensor Call(const std::string& operator_name, const std::vector<Argument>& tensors,
              const std::vector<Setting>& settings = {});
  // Adds a node; returns the tensors that it writes, in the order of the signature.
  std::vector<Tensor> CallAll(const std::string& operator_name,
                              const std::vector<Argument>& tensors,
                              const std::vector<Setting>& settings = {});

  // Returns a tensor at the end of a run, or a record of it after each step. The result of a call
  // becomes the output itself; it is what its memory contains when the step ends. Another tensor
  // is copied by one more node, here. `records` 0: one for each step of the loop.
  void Output(const std::string& name, const Tensor& tensor);
  void Stream(const std::string& name, const Tensor& tensor, uint64_t records = 0);

  // Executes the nodes up to `max_steps` times.
  void Loop(uint64_t max_steps);
  // After each step: scalar = value, which is factor * scalar + addend of the same scalar.
  void EachStep(const Scalar& scalar, const Scalar& value);
  // Ends the loop after a step in which the tensor's only element has one of the values.
  void StopWhen(const Tensor& tensor, std::vector<int64_t> values);

  // The graph as it is now; may be called again after further calls. INVALID_ARGUMENT: what is
  // wrong, one error on each line. Other codes: the daemon could not be asked for its operators.
  absl::StatusOr<v1::Graph> Build();

 private:
  struct CallState;
  struct OperatorSignature;
  // What is known of a tensor before Build().
  struct Memory {
    v1::GraphTensor message;
    std::vector<Dim> shape;
    // Whether a call made it, so that Output and Stream may make it their own.
    bool result = false;
    // The records of a stream.
    uint64_t records = 0;
  };

  void AddError(absl::Status error);
  Tensor AddTensor(v1::GraphTensor::Kind kind, std::string name, v1::DType dtype,
                   std::vector<Dim> shape);
  Scalar AddScalar(v1::GraphScalar scalar);
  // Whether the tensor is of this builder and no error.
  bool IsUsable(const Tensor& tensor, const std::string& place);
  // Elements, with a scalar the largest number.
  int64_t Bound(const Dim& dim) const;
  std::vector<int64_t> DenseStrides(const std::vector<Dim>& shape) const;
  bool CheckDims(const std::vector<Dim>& shape, const std::string& tensor);
  void SetDim(const Dim& dim, v1::GraphDim* message) const;
  void SetView(const Tensor& tensor, v1::GraphView* view) const;
  Tensor Part(const Tensor& tensor, std::vector<Dim> shape, int64_t offset,
              std::vector<int64_t> strides);
  void Return(v1::GraphTensor::Kind kind, const std::string& name, const Tensor& tensor,
              uint64_t records);

  const OperatorSignature* FindOperator(const std::string& name);
  // Steps of CallAll. False: an error was added.
  bool AssignTensors(CallState& call, const std::vector<Argument>& tensors);
  bool AssignSettings(CallState& call, const std::vector<Setting>& settings);
  bool AssignResults(CallState& call);
  std::string ResultName(const CallState& call, size_t parameter) const;
  bool InferResult(CallState& call, size_t parameter, std::optional<v1::DType> dtype);
  bool CheckValues(CallState& call);
  void EmitNode(const CallState& call);
  // Steps of Build.
  void CheckNames();
  v1::Graph MakeMessage();

  v1::Graph graph_;
  Client* client_ = nullptr;
  bool operators_loaded_ = false;
  std::map<std::string, std::unique_ptr<OperatorSignature>> operators_;
  std::vector<Memory> tensors_;
  // The tensors of arguments: they may get other names until Build().
  struct NamedView {
    int node;
    int argument;
    int tensor;
  };
  std::vector<NamedView> views_;
  int stop_tensor_ = -1;
  // The name and the version of the next call's node.
  std::string node_name_;
  uint32_t version_ = 0;
  // Why the daemon could not be asked.
  absl::Status lookup_;
  std::vector<absl::Status> errors_;
  uint64_t omitted_errors_ = 0;
};

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_GRAPH_BUILDER_H_
