// The graph of a model: what its requests send and get, and the form of it that instances execute.
//
// The inputs and outputs of an instance are in memory of the host that the device reads and writes.
// A large input, and one that several nodes read, would be read through the bus several times; so
// would an output that a node reads. Such a tensor gets memory of the device, and a node `copy`
// before the first node, or after the last one.
//
// Thread safety: pure functions.
//
//   const v1::Graph plan = AddDeviceCopies(message);
//   ... read and check `plan` ...
//   ASSIGN_OR_RETURN(const ModelInterface interface, ReadInterface(checked.graph));
#ifndef RESIDENT_SERVER_MODELS_MODEL_GRAPH_H_
#define RESIDENT_SERVER_MODELS_MODEL_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/internal/model_import.pb.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/graph.h"

namespace resident {

// An input or output of a model: a dense tensor with memory of its own.
struct ModelPort {
  std::string name;
  uint32_t tensor = 0;  // Index in the graph.
  DType dtype = DType::kInvalid;
  // With the largest size of a dynamic dimension.
  std::vector<int64_t> shape;
  // The scalar that is the size of the outermost dimension; graph::kNone: none is.
  uint32_t scalar = graph::kNone;
  // With the largest size.
  uint64_t bytes = 0;
  // For each dimension the index in ModelInterface::dimensions, or one of the numbers below; empty:
  // all are equal in all plans.
  std::vector<int32_t> axes = {};

  static constexpr int32_t kFixedAxis = -1;
  static constexpr int32_t kComputedAxis = -2;  // From several sizes.
  int32_t AxisOf(size_t d) const { return axes.empty() ? kFixedAxis : axes[d]; }
  // Bytes if the outermost dimension has `rows` elements.
  uint64_t BytesAt(uint64_t rows) const {
    return scalar == graph::kNone ? bytes : bytes / static_cast<uint64_t>(shape[0]) * rows;
  }
  // Bytes before a row of the outermost dimension.
  uint64_t BytesBefore(uint64_t row) const { return row == 0 ? 0 : BytesAt(row); }
};

// A dimension that has a size of its own in each plan (model_plan.h).
struct ModelDimension {
  std::string name;
  int64_t max = 0;
};

// Of the graph of one plan; of a version: of the graph of the largest sizes.
struct ModelInterface {
  std::vector<ModelPort> inputs;
  std::vector<ModelPort> outputs;
  // Tensors whose contents are loaded with the model: weights and constants, without aliases.
  std::vector<uint32_t> weights;
  // By index in the graph.
  std::vector<std::string> scalar_names;
  // Of a version with plans.
  std::vector<ModelDimension> dimensions = {};
};

// The graph with the copies that the file's comment describes. An explicit order leaves no room for
// further nodes: such a graph is returned as it is. Nodes without a name get the one that messages
// use, "#7", so that it stays that of the graph as it was sent.
v1::Graph AddDeviceCopies(v1::Graph graph);

// INVALID_ARGUMENT: the graph cannot be a model: it has a loop, a stream, a state or no output, or
// an input or output that is not dense, or is dynamic in another dimension than the outermost one,
// or a view that lies within its tensor only if a dynamic size is not the least one.
absl::StatusOr<ModelInterface> ReadInterface(const graph::Graph& graph);

// Sets the dimensions that have a size of their own in each plan. INTERNAL: the rules are not those
// of this graph.
absl::Status SetDimensions(const internal::PlanRules& rules, ModelInterface* interface);

// Sorts the inputs and outputs of the plan for these sizes, by index in `dimensions`, as those of
// its version. INVALID_ARGUMENT: an output has other sizes, or is larger than with the largest
// ones, or the plan has other tensors.
absl::Status SortPorts(const ModelInterface& version, const std::vector<int64_t>& sizes,
                       ModelInterface* plan);

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_GRAPH_H_
