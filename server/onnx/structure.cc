#include "server/onnx/structure.h"

#include <cassert>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "server/onnx/nodes/model_error.h"
#include "server/onnx/nodes/node_context.h"
#include "server/onnx/tensor_data.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;

namespace {

class StructureCheck {
 public:
  explicit StructureCheck(const Files& files) : files_(files) {}

  absl::Status CheckGraph(GraphProto* graph, int depth) {
    if (depth > kMaxSubgraphDepth) {
      return ModelError(103,
                        StrCat("there are more than ", kMaxSubgraphDepth, " levels of subgraphs"));
    }
    nodes_ += graph->node_size();
    if (nodes_ > kMaxNodes) {
      return ModelError(103, StrCat("the model has more than ", kMaxNodes, " nodes"));
    }
    scopes_.emplace_back();
    absl::flat_hash_set<std::string_view> initializers;
    for (TensorProto& initializer : *graph->mutable_initializer()) {
      initializers.insert(initializer.name());
      RETURN_IF_ERROR(Define(initializer.name()));
      RETURN_IF_ERROR(NormalizeTensor(files_, &initializer));
    }
    for (const ValueInfoProto& input : graph->input()) {
      // Files of early versions list initializers among the inputs.
      if (initializers.contains(input.name())) {
        if (!inputs_with_default_.insert(input.name()).second && depth == 0) {
          return ModelError(104, StrCat("two inputs have the name ", Quote(input.name())));
        }
        continue;
      }
      RETURN_IF_ERROR(Define(input.name()));
    }
    for (NodeProto& node : *graph->mutable_node()) RETURN_IF_ERROR(CheckNode(&node, depth));
    absl::flat_hash_set<std::string_view> outputs;
    for (const ValueInfoProto& output : graph->output()) {
      if (!IsDefined(output.name())) {
        return ModelError(105, StrCat("output ", Quote(output.name()), " is never computed"));
      }
      if (!outputs.insert(output.name()).second) {
        return ModelError(104, StrCat("two outputs have the name ", Quote(output.name())));
      }
    }
    for (const ValueInfoProto& value : graph->value_info())
      RETURN_IF_ERROR(CheckName(value.name()));
    scopes_.pop_back();
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckName(const std::string& name) {
    if (name.size() > kMaxNameBytes) {
      return ModelError(103, StrCat("the name ", Quote(name), " has ", name.size(),
                                    " bytes, and at most ", kMaxNameBytes, " are supported"));
    }
    if (ToUtf8(name) != name) {
      return ModelError(109, StrCat("the name ", Quote(name), " is not UTF-8"));
    }
    return absl::OkStatus();
  }

  absl::Status Define(const std::string& name) {
    RETURN_IF_ERROR(CheckName(name));
    if (name.empty()) return ModelError(109, "an input or initializer has no name");
    if (!scopes_.back().insert(name).second) {
      return ModelError(104, StrCat("two values have the name ", Quote(name)));
    }
    return absl::OkStatus();
  }

  bool IsDefined(const std::string& name) const {
    for (const auto& scope : scopes_) {
      if (scope.contains(name)) return true;
    }
    return false;
  }

  absl::Status CheckNode(NodeProto* node, int depth) {
    RETURN_IF_ERROR(CheckName(node->name()));
    RETURN_IF_ERROR(CheckName(node->op_type()));
    RETURN_IF_ERROR(CheckName(node->domain()));
    if (node->op_type().empty()) {
      return ModelError(109, StrCat("node ", Quote(NodeName(*node)), " names no operator"));
    }
    for (const std::string& input : node->input()) {
      if (!input.empty() && !IsDefined(input)) {
        return ModelError(
            105, StrCat(node->op_type(), " ", Quote(NodeName(*node)), " reads ", Quote(input),
                        ", which no node before it computes. Fix: sort "
                        "the nodes"));
      }
    }
    absl::flat_hash_set<std::string_view> names;
    for (AttributeProto& attribute : *node->mutable_attribute()) {
      if (!names.insert(attribute.name()).second) {
        return ModelError(104, StrCat(node->op_type(), " ", Quote(NodeName(*node)),
                                      " has two attributes ", Quote(attribute.name())));
      }
      if (attribute.has_t()) RETURN_IF_ERROR(NormalizeTensor(files_, attribute.mutable_t()));
      for (TensorProto& tensor : *attribute.mutable_tensors()) {
        RETURN_IF_ERROR(NormalizeTensor(files_, &tensor));
      }
      if (attribute.has_g()) RETURN_IF_ERROR(CheckGraph(attribute.mutable_g(), depth + 1));
      for (GraphProto& graph : *attribute.mutable_graphs()) {
        RETURN_IF_ERROR(CheckGraph(&graph, depth + 1));
      }
    }
    for (const std::string& output : node->output()) {
      if (!output.empty()) RETURN_IF_ERROR(Define(output));
    }
    return absl::OkStatus();
  }

  const Files& files_;
  int64_t nodes_ = 0;
  std::vector<absl::flat_hash_set<std::string>> scopes_;
  absl::flat_hash_set<std::string> inputs_with_default_;
};

}  // namespace

absl::Status CheckStructure(const Files& files, ModelProto* model) {
  assert(model->functions().empty());
  StructureCheck check(files);
  return check.CheckGraph(model->mutable_graph(), 0);
}

}  // namespace resident::onnx
