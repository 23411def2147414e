#include "server/onnx/inline_functions.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/import.h"
#include "server/onnx/nodes/model_error.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;

namespace {

// Of all copies of a function's nodes.
constexpr size_t kMaxCopiedBytes = size_t{256} << 20;

std::string FunctionKey(const std::string& domain, const std::string& name,
                        const std::string& overload) {
  return StrCat(domain == "ai.onnx" ? "" : domain, "\n", name, "\n", overload);
}

int64_t FindOpset(const google::protobuf::RepeatedPtrField<OperatorSetIdProto>& imports) {
  for (const OperatorSetIdProto& import : imports) {
    if (import.domain().empty() || import.domain() == "ai.onnx") return import.version();
  }
  return 0;
}

class Inliner {
 public:
  explicit Inliner(ModelProto* model) : model_(*model) {
    for (const FunctionProto& function : model_.functions()) {
      functions_[FunctionKey(function.domain(), function.name(), function.overload())] = &function;
    }
  }

  absl::Status Run() { return Expand(model_.mutable_graph()->mutable_node(), 0, 0); }

 private:
  using Nodes = google::protobuf::RepeatedPtrField<NodeProto>;
  // The names of a function's values in the model.
  struct Call {
    std::string prefix;
    absl::flat_hash_map<std::string, std::string> names;
    const NodeProto* node;
    const FunctionProto* function;
  };

  // Replaces the calls among nodes of a graph, and those in its subgraphs.
  absl::Status Expand(Nodes* nodes, int calls, int subgraphs) {
    if (subgraphs > kMaxSubgraphDepth) {
      return ModelError(103,
                        StrCat("there are more than ", kMaxSubgraphDepth, " levels of subgraphs"));
    }
    Nodes expanded;
    for (NodeProto& node : *nodes) {
      if (++nodes_ > kMaxNodes) {
        return ModelError(103, StrCat("the model has more than ", kMaxNodes,
                                      " nodes with those of its functions"));
      }
      for (AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g()) {
          RETURN_IF_ERROR(Expand(attribute.mutable_g()->mutable_node(), calls, subgraphs + 1));
        }
        for (GraphProto& graph : *attribute.mutable_graphs()) {
          RETURN_IF_ERROR(Expand(graph.mutable_node(), calls, subgraphs + 1));
        }
      }
      const auto function =
          functions_.find(FunctionKey(node.domain(), node.op_type(), node.overload()));
      if (function == functions_.end()) {
        *expanded.Add() = std::move(node);
        continue;
      }
      ASSIGN_OR_RETURN(Nodes body, CopyBody(node, *function->second, calls));
      RETURN_IF_ERROR(Expand(&body, calls + 1, subgraphs));
      for (NodeProto& inner : body) *expanded.Add() = std::move(inner);
    }
    nodes->Swap(&expanded);
    return absl::OkStatus();
  }

  absl::StatusOr<Nodes> CopyBody(const NodeProto& node, const FunctionProto& function, int calls) {
    const std::string place = StrCat("function ", Quote(function.name()));
    if (calls >= kMaxFunctionDepth) {
      return ModelError(103, StrCat(place, " is called within ", kMaxFunctionDepth,
                                    " other calls, or calls itself"));
    }
    const int64_t opset = FindOpset(function.opset_import());
    if (opset != 0 && opset != FindOpset(model_.opset_import())) {
      return ModelError(
          109, StrCat(place, " is for version ", opset,
                      " of the operators, and the "
                      "model for version ",
                      FindOpset(model_.opset_import()), ". Fix: export both for one version"));
    }
    if (node.input_size() > function.input_size() || node.output_size() > function.output_size()) {
      return ModelError(109, StrCat("a call of ", place, " has ", node.input_size(), " inputs and ",
                                    node.output_size(), " outputs, and it has ",
                                    function.input_size(), " and ", function.output_size()));
    }
    Call call{StrCat("f", calls_++, "/"), {}, &node, &function};
    for (int i = 0; i < function.input_size(); ++i) {
      call.names[function.input(i)] = i < node.input_size() ? node.input(i) : "";
    }
    for (int i = 0; i < function.output_size(); ++i) {
      // An output that the call does not name keeps a name of the function.
      if (i < node.output_size() && !node.output(i).empty()) {
        if (call.names.contains(function.output(i))) {
          return ModelError(109, StrCat(place, " returns its input ", Quote(function.output(i)),
                                        ". Fix: return an Identity of it"));
        }
        call.names[function.output(i)] = node.output(i);
      }
    }
    Nodes body;
    for (const NodeProto& from : function.node()) {
      copied_bytes_ += from.ByteSizeLong();
      if (copied_bytes_ > kMaxCopiedBytes) {
        return ModelError(
            103, StrCat("the calls of functions have more than ", kMaxCopiedBytes, " bytes"));
      }
      NodeProto* const to = body.Add();
      *to = from;
      Rename(call, to);
    }
    if (copied_bytes_ > kMaxCopiedBytes) {
      return ModelError(
          103, StrCat("the calls of functions have more than ", kMaxCopiedBytes, " bytes"));
    }
    return body;
  }

  static std::string NameIn(const Call& call, const std::string& name) {
    if (name.empty()) return name;
    const auto found = call.names.find(name);
    return found == call.names.end() ? call.prefix + name : found->second;
  }

  // Replaces the names of values and the references to attributes of the call.
  void Rename(const Call& call, NodeProto* node) {
    if (node->has_name()) node->set_name(call.prefix + node->name());
    for (std::string& name : *node->mutable_input()) name = NameIn(call, name);
    for (std::string& name : *node->mutable_output()) name = NameIn(call, name);
    google::protobuf::RepeatedPtrField<AttributeProto> attributes;
    for (AttributeProto& attribute : *node->mutable_attribute()) {
      if (!attribute.ref_attr_name().empty()) {
        const AttributeProto* const value = FindAttribute(call, attribute.ref_attr_name());
        if (value == nullptr) continue;  // An optional attribute that the call does not have.
        copied_bytes_ += value->ByteSizeLong();
        if (copied_bytes_ > kMaxCopiedBytes) return;  // CopyBody refuses it.
        const std::string name = attribute.name();
        attribute = *value;
        attribute.set_name(name);
      }
      if (attribute.has_g()) RenameGraph(call, attribute.mutable_g());
      for (GraphProto& graph : *attribute.mutable_graphs()) RenameGraph(call, &graph);
      *attributes.Add() = std::move(attribute);
    }
    node->mutable_attribute()->Swap(&attributes);
  }

  void RenameGraph(const Call& call, GraphProto* graph) {
    for (ValueInfoProto& value : *graph->mutable_input())
      value.set_name(NameIn(call, value.name()));
    for (ValueInfoProto& value : *graph->mutable_output()) {
      value.set_name(NameIn(call, value.name()));
    }
    graph->clear_value_info();
    for (TensorProto& tensor : *graph->mutable_initializer()) {
      tensor.set_name(NameIn(call, tensor.name()));
    }
    for (NodeProto& node : *graph->mutable_node()) Rename(call, &node);
  }

  static const AttributeProto* FindAttribute(const Call& call, const std::string& name) {
    for (const AttributeProto& attribute : call.node->attribute()) {
      if (attribute.name() == name) return &attribute;
    }
    for (const AttributeProto& attribute : call.function->attribute_proto()) {
      if (attribute.name() == name) return &attribute;
    }
    return nullptr;
  }

  ModelProto& model_;
  absl::flat_hash_map<std::string, const FunctionProto*> functions_;
  int64_t nodes_ = 0;
  int64_t calls_ = 0;
  size_t copied_bytes_ = 0;
};

}  // namespace

absl::Status InlineFunctions(ModelProto* model) {
  Inliner inliner(model);
  RETURN_IF_ERROR(inliner.Run());
  model->clear_functions();
  return absl::OkStatus();
}

}  // namespace resident::onnx
