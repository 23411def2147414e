// Graph: a task graph whose names are resolved to indices. GraphBuilder makes it, and CheckGraph
// checks what it means.
//
// Arguments, axes and waits of all nodes are stored in a few common vectors, so that a graph of a
// million nodes takes about a hundred bytes for each of them.
//
// Invariants of a graph that GraphBuilder returned without errors:
//   1. Every index (tensor, scalar, counter, operator, axis) exists; kNone stands for none.
//   2. A tensor's root is itself or a tensor of the same kind that is its own root.
//   3. Sizes of axes are at least 1, with a scalar its largest value; the bytes of all roots
//      together fit kMaxGraphBytes.
//   4. Arguments of a node are in the order of the operator's signature, without gaps; only
//      trailing scalars with a default are missing.
//   5. Every view lies within the memory of its tensor, and every alias within its root.
//
// Thread safety: a plain value.
#ifndef RESIDENT_RUNTIME_GRAPH_GRAPH_H_
#define RESIDENT_RUNTIME_GRAPH_GRAPH_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "kernels/layout/task.h"
#include "runtime/graph/operator_catalog.h"

namespace resident::graph {

inline constexpr uint32_t kNone = ~uint32_t{0};

// The values are those of resident.v1.GraphTensor.Kind.
enum class TensorKind : uint8_t {
  kWeight = 1,
  kConst = 2,
  kState = 3,
  kActivation = 4,
  kInput = 5,
  kOutput = 6,
  kStream = 7
};

// "a weight", "an activation".
const char* KindText(TensorKind kind);
// Whether nodes may not write it.
constexpr bool IsReadOnly(TensorKind kind) {
  return kind == TensorKind::kWeight || kind == TensorKind::kConst || kind == TensorKind::kInput;
}
// Whether its elements have a value when a step begins.
constexpr bool IsDefined(TensorKind kind) { return IsReadOnly(kind) || kind == TensorKind::kState; }

// A dimension of a view.
struct Axis {
  // Elements; with a scalar the largest number.
  int64_t size = 1;
  // Bytes.
  int64_t stride = 0;
  // The scalar whose value is the number of elements; kNone: `size` is.
  uint32_t scalar = kNone;
};

// A strided part of a tensor's memory.
struct View {
  // Byte of the first element, in the root's memory.
  int64_t offset = 0;
  uint32_t first_axis = 0;
  uint8_t rank = 0;
  DType dtype = DType::kInvalid;
};

struct Tensor {
  std::string_view name;
  // The tensor that owns the memory.
  uint32_t root = kNone;
  TensorKind kind = TensorKind::kActivation;
  // A stream's view is one record.
  View view;
};

struct Scalar {
  std::string_view name;
  DType dtype = DType::kInvalid;
  double min = 0;
  double max = 0;
  std::optional<double> initial;
};

// The value factor * scalar + addend; without a scalar, addend.
struct ScalarExpression {
  uint32_t scalar = kNone;
  double factor = 1;
  double addend = 0;
};

struct Argument {
  enum class Kind : uint8_t { kTensor, kNoTensor, kInteger, kFloat, kExpression };
  Kind kind = Kind::kTensor;
  uint32_t tensor = kNone;  // kTensor.
  View view;                // kTensor.
  int64_t integer = 0;      // kInteger.
  double number = 0;        // kFloat.
  uint32_t expression = 0;  // kExpression: index in Graph::expressions.
};

struct Wait {
  uint32_t counter = 0;
  uint32_t threshold = 0;
};

struct Node {
  std::string_view name;
  uint32_t op = kNone;
  uint32_t first_argument = 0;
  uint32_t first_wait = 0;
  uint32_t signals = kNone;
  uint32_t block = kNone;
  uint16_t argument_count = 0;
  uint16_t wait_count = 0;
};

struct Counter {
  std::string_view name;
  uint32_t initial = 0;
};

struct Loop {
  struct Update {
    uint32_t scalar = kNone;
    double factor = 1;
    double addend = 0;
  };
  uint64_t max_steps = 1;
  std::vector<Update> updates;
  uint32_t stop_tensor = kNone;
  std::vector<int64_t> stop_values;
};

// Keeps the bytes of names.
class NameStore {
 public:
  std::string_view Add(std::string_view name);

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t used_ = 0;
  size_t capacity_ = 0;
};

struct Graph {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<Scalar> scalars;
  std::vector<Node> nodes;
  std::vector<Counter> counters;
  std::optional<Loop> loop;
  // 0: nodes are not assigned to blocks.
  uint32_t blocks = 0;
  // Whether runs may execute one operator in place of several nodes (fuse.h).
  bool fuse = true;

  std::vector<OperatorInfo> operators;
  std::vector<Axis> axes;
  std::vector<Argument> arguments;
  std::vector<ScalarExpression> expressions;
  std::vector<Wait> waits;
  // By tensor: bytes of the memory of a root; 0 for an alias.
  std::vector<int64_t> root_bytes;
  NameStore names;

  absl::Span<const Axis> AxesOf(const View& view) const {
    return absl::MakeConstSpan(axes).subspan(view.first_axis, view.rank);
  }
  absl::Span<const Argument> ArgumentsOf(const Node& node) const {
    return absl::MakeConstSpan(arguments).subspan(node.first_argument, node.argument_count);
  }
  absl::Span<const Wait> WaitsOf(const Node& node) const {
    return absl::MakeConstSpan(waits).subspan(node.first_wait, node.wait_count);
  }
  // Whether counters or blocks order the nodes.
  bool explicit_order() const { return !counters.empty() || blocks > 0; }
  // The node's name, or "#7".
  std::string NodeName(uint32_t node) const;
  std::string TensorName(uint32_t tensor) const { return std::string(tensors[tensor].name); }
};

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_GRAPH_H_
