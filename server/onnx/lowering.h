// Lowering: makes the graph of a checked model for one set of sizes, node by node.
//
// Each node is computed at import, becomes a view, or becomes calls of operators (operators.h). One
// that cannot becomes a finding, and its results are unknown, so that the nodes behind it are only
// checked for operators that do not exist.
//
// Thread safety: none. An object makes one graph.
//
//   Lowering lowering(model, {{"batch", 4}});
//   ImportedModel imported;
//   lowering.Run(&imported);
//   if (lowering.report().findings.empty()) Use(imported);
#ifndef RESIDENT_SERVER_ONNX_LOWERING_H_
#define RESIDENT_SERVER_ONNX_LOWERING_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "server/onnx/import.h"
#include "server/onnx/nodes/graph_writer.h"
#include "server/onnx/nodes/node_context.h"
#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/value.h"

namespace resident::onnx {

class Lowering {
 public:
  // `model`: its name, inputs, opset, graph and constants. `sizes`: of all dynamic dimensions. Both
  // must outlive the object.
  // `choices`: null: a graph by itself.
  Lowering(const CheckedModel& model, const std::map<std::string, int64_t>& sizes,
           MappingChoices* choices = nullptr)
      : model_(model),
        sizes_(sizes),
        writer_(model.constants),
        choices_(choices == nullptr ? own_choices_ : *choices) {
    budget_.cache = model.cache.get();
    choices_.any_rows = model.shares_weights;
  }

  // `imported` is complete only if there are no findings. Constants whose names are in no graph are
  // not among its weights.
  void Run(ImportedModel* imported);

  const Report& report() const { return report_; }

 private:
  using Scope = absl::flat_hash_map<std::string, Value>;

  void AddInputs(ImportedModel* imported);
  void AddOutputs(ImportedModel* imported);
  // Names of the values that the graph's outputs need.
  absl::flat_hash_set<std::string> FindNeeded() const;
  void LowerNodes(const GraphProto& graph, const absl::flat_hash_set<std::string>* needed);
  void LowerNode(const NodeProto& node);
  absl::Status LowerConstant(NodeContext* context);
  // One branch is lowered in place of the node; if the condition is computed, both, and a
  // selection. E402: it is computed, and the results differ in type or shape, or the branches are
  // large.
  absl::Status LowerIf(NodeContext* context);
  // The results; kRefused: a node of the branch has a finding.
  std::vector<std::optional<Value>> LowerBranch(const GraphProto& branch);
  // Computes the node at import or maps it.
  // `op`: its name in the tables (operators.h).
  absl::Status Convert(NodeContext* context, const std::string& op);
  // Sets results that are not known, except for what the file says of them.
  void SetUnknown(const NodeProto& node);
  void Add(Finding finding);
  void AddFinding(const NodeProto& node, int code, const std::string& message,
                  const std::string& input);
  Value* Find(const std::string& name);
  // The value that value_info describes.
  Value Described(const std::string& name) const;
  Value OutputTensor(const std::string& name, ElementType type, const Sizes64& shape);

  const CheckedModel& model_;
  const std::map<std::string, int64_t>& sizes_;
  GraphWriter writer_;
  FoldBudget budget_;
  MappingChoices own_choices_;
  MappingChoices& choices_;
  Report report_;
  std::vector<Scope> scopes_;
  absl::flat_hash_map<std::string, const TypeProto*> described_;
  absl::flat_hash_set<std::string> output_names_;
};

// "the daemon's types" of a TypeProto: sets the type and the dimensions of a tensor. False: it is
// no tensor or has no shape.
bool ReadTensorType(const TypeProto& type, const std::string& name, TensorSpec* spec);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_LOWERING_H_
