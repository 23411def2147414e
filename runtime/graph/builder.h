// GraphBuilder: from a description with names to a Graph with indices.
//
// Checks everything that one element of the graph shows by itself: names, limits, shapes, views,
// scalars, and that arguments belong to parameters (codes 1xx, most of 2xx, 301, 302, 304). What
// the calls and their order mean is checked by CheckGraph. The builder goes on after an error, so
// that one check finds all of them. An element with an error keeps its place: indices are those of
// the description.
//
// Order of the calls: Scalar*, Tensor*, EndTensors, Counter*, Node*, SetLoop, Finish.
//
// Each element is taken from the budget of the check before it is read. Once the check has ended,
// nothing is added any more.
//
// Thread safety: none.
//
//   GraphBuilder builder(catalog, &findings, &budget);
//   builder.AddTensor({.name = "x", .kind = 5, .dtype = 1, .shape = shape});
//   builder.EndTensors();
//   builder.AddNode({.op = "relu", .arguments = arguments});
//   const Graph graph = builder.Finish();   // Complete only if findings.errors() == 0.
#ifndef RESIDENT_RUNTIME_GRAPH_BUILDER_H_
#define RESIDENT_RUNTIME_GRAPH_BUILDER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/operator_catalog.h"

namespace resident::graph {

// The forms below are those of resident/v1/graphs.proto, which describes their fields.
struct DimSpec {
  int64_t size = 0;
  std::string_view scalar = {};
};

struct TensorSpec {
  std::string_view name;
  int kind = 0;
  int dtype = 0;
  absl::Span<const DimSpec> shape = {};
  absl::Span<const int64_t> strides = {};
  uint64_t offset = 0;
  std::string_view alias_of = {};
  std::optional<uint32_t> id = {};
};

struct ScalarSpec {
  std::string_view name;
  int dtype = 0;
  double least = 0;
  double most = 0;
  std::optional<double> initial = {};
};

struct ArgumentSpec {
  enum class Kind : uint8_t { kMissing, kTensor, kInteger, kFloat, kScalar, kNoTensor };
  std::string_view parameter = {};
  Kind kind = Kind::kMissing;
  // The tensor's or scalar's name.
  std::string_view name = {};
  // kTensor.
  absl::Span<const DimSpec> shape = {};
  absl::Span<const int64_t> strides = {};
  int64_t offset = 0;
  bool scalar_shape = false;
  int64_t integer = 0;
  double number = 0;
  // kScalar.
  double factor = 1;
  double addend = 0;
};

struct NodeSpec {
  std::string_view name = {};
  std::string_view op;
  uint32_t version = 0;
  absl::Span<const ArgumentSpec> arguments = {};
  absl::Span<const Wait> waits = {};
  std::optional<uint32_t> signals = {};
  std::optional<uint32_t> block = {};
  std::optional<uint32_t> id = {};
};

struct UpdateSpec {
  std::string_view scalar;
  double factor = 1;
  double addend = 0;
};

struct LoopSpec {
  uint64_t max_steps = 0;
  absl::Span<const UpdateSpec> updates = {};
  bool has_stop = false;
  std::string_view stop_tensor = {};
  absl::Span<const int64_t> stop_values = {};
};

class GraphBuilder {
 public:
  // All must outlive the builder. `budget`: null for graphs of the program itself.
  GraphBuilder(const OperatorCatalog& catalog, Findings* findings, CheckBudget* budget = nullptr)
      : catalog_(catalog),
        findings_(*findings),
        budget_(budget == nullptr ? own_budget_ : *budget) {}

  // `name` of the graph; `blocks`: Graph.blocks.
  void Begin(std::string_view name, uint32_t format, uint32_t blocks);
  void AddScalar(const ScalarSpec& spec);
  void AddTensor(const TensorSpec& spec);
  void EndTensors();
  void AddCounter(std::string_view name, uint32_t initial);
  void AddNode(const NodeSpec& spec);
  void SetLoop(const LoopSpec& spec);
  Graph Finish();

 private:
  using Index = absl::flat_hash_map<std::string_view, uint32_t>;

  // Whether the name is of at most kMaxNameBytes and new in `index`, to which it is added. `what`:
  // "tensor". An empty name is refused unless `optional`.
  std::string_view AddName(std::string_view name, Index& index, uint32_t position, const char* what,
                           bool optional, const Findings::Place& place);
  // kNone and a finding if there is none.
  uint32_t FindName(std::string_view name, const Index& index, const char* what,
                    const Findings::Place& place);
  void CheckId(std::optional<uint32_t> id, uint32_t position, const Findings::Place& place);
  // False, once a finding, if there are too many of a kind.
  bool CheckCount(size_t count, size_t limit, const char* what);

  // Appends the axes. Strides are in elements; without them dense. False: a finding was added.
  bool AddAxes(absl::Span<const DimSpec> shape, absl::Span<const int64_t> strides,
               uint32_t element_bytes, const Findings::Place& place);
  // The number of elements of a dimension, at most; its scalar. False: a finding was added.
  bool ResolveDim(const DimSpec& dim, size_t index, const Findings::Place& place, Axis* axis);

  uint32_t FindOperator(std::string_view name, uint32_t version, const Findings::Place& place);
  bool ResolveArgument(const ArgumentSpec& spec, const Parameter& parameter,
                       const Findings::Place& place, Argument* argument);
  bool ResolveView(const ArgumentSpec& spec, Findings::Place place, Argument* argument);

  const OperatorCatalog& catalog_;
  Findings& findings_;
  CheckBudget own_budget_;
  CheckBudget& budget_;
  Graph graph_;
  Index tensors_;
  Index scalars_;
  Index counters_;
  Index nodes_;
  // By tensor: whether it has an error, so that its uses are not checked.
  std::vector<bool> bad_tensors_;
  std::vector<bool> bad_scalars_;
  struct Alias {
    uint32_t tensor;
    std::string_view of;
  };
  std::vector<Alias> aliases_;
  // By name and version; kNone: it cannot be used.
  absl::flat_hash_map<std::pair<std::string, uint32_t>, uint32_t> operators_;
  __int128 total_bytes_ = 0;
  bool too_many_[4] = {};
};

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_BUILDER_H_
