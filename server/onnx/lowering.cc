#include "server/onnx/lowering.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "server/onnx/nodes/model_error.h"
#include "server/onnx/nodes/operators.h"
#include "server/onnx/tensor_data.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;

bool ReadTensorType(const TypeProto& type, const std::string& name, TensorSpec* spec) {
  if (!type.has_tensor_type() || !type.tensor_type().has_shape()) return false;
  spec->name = name;
  spec->type = static_cast<ElementType>(type.tensor_type().elem_type());
  spec->shape.clear();
  for (const TensorShapeProto::Dimension& dim : type.tensor_type().shape().dim()) {
    TensorSpec::Dim& to = spec->shape.emplace_back();
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      to.size = dim.dim_value();
    } else {
      to.symbol =
          dim.dim_param().empty() ? StrCat(name, ".", spec->shape.size() - 1) : dim.dim_param();
    }
  }
  return true;
}

void Lowering::Add(Finding finding) {
  ++report_.finding_count;
  if (report_.findings.size() < kMaxFindings) report_.findings.push_back(std::move(finding));
}

void Lowering::AddFinding(const NodeProto& node, int code, const std::string& message,
                          const std::string& input) {
  Add({CodeText(code), NodeName(node), node.op_type(), input, message});
}

Value* Lowering::Find(const std::string& name) {
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].find(name);
    if (found != scopes_[i].end()) return &found->second;
  }
  return nullptr;
}

Value Lowering::Described(const std::string& name) const {
  Value value;
  const auto found = described_.find(name);
  TensorSpec spec;
  if (found == described_.end() || !ReadTensorType(*found->second, name, &spec)) return value;
  value.type = spec.type;
  for (const TensorSpec::Dim& dim : spec.shape) {
    const auto size = sizes_.find(dim.symbol);
    if (!dim.symbol.empty() && size == sizes_.end()) return Value();
    value.shape.push_back(dim.symbol.empty() ? dim.size : size->second);
  }
  value.known = CountElements(value.shape).has_value() && value.shape.size() <= kMaxRank;
  return value;
}

Value Lowering::OutputTensor(const std::string& name, ElementType type, const Sizes64& shape) {
  // Only the outermost graph has outputs of the model.
  const bool output = scopes_.size() == 1 && output_names_.contains(name);
  return writer_.NewTensor(output ? v1::GraphTensor::KIND_OUTPUT : v1::GraphTensor::KIND_ACTIVATION,
                           name, type, shape);
}

void Lowering::AddInputs(ImportedModel* imported) {
  for (const TensorSpec& input : model_.inputs) {
    TensorSpec spec = input;
    Sizes64 shape;
    for (TensorSpec::Dim& dim : spec.shape) {
      if (!dim.symbol.empty()) dim.size = sizes_.at(dim.symbol);
      shape.push_back(dim.size);
    }
    const Value value =
        writer_.NewTensor(v1::GraphTensor::KIND_INPUT, input.name, input.type, shape);
    spec.tensor = writer_.tensor_name(value.tensor);
    scopes_[0][input.name] = value;
    imported->inputs.push_back(std::move(spec));
  }
}

absl::flat_hash_set<std::string> Lowering::FindNeeded() const {
  absl::flat_hash_set<std::string> needed;
  for (const ValueInfoProto& output : model_.graph->output()) needed.insert(output.name());
  const std::function<void(const GraphProto&)> add_graph = [&](const GraphProto& graph) {
    for (const ValueInfoProto& output : graph.output()) needed.insert(output.name());
    for (const NodeProto& node : graph.node()) {
      needed.insert(node.input().begin(), node.input().end());
      for (const AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) add_graph(attribute.g());
      }
    }
  };
  for (int i = model_.graph->node_size(); i-- > 0;) {
    const NodeProto& node = model_.graph->node(i);
    const bool used = std::any_of(node.output().begin(), node.output().end(),
                                  [&](const std::string& name) { return needed.contains(name); });
    if (!used) continue;
    needed.insert(node.input().begin(), node.input().end());
    for (const AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) add_graph(attribute.g());
    }
  }
  needed.erase("");
  return needed;
}

void Lowering::LowerNodes(const GraphProto& graph, const absl::flat_hash_set<std::string>* needed) {
  for (const NodeProto& node : graph.node()) {
    const bool used = needed == nullptr ||
                      std::any_of(node.output().begin(), node.output().end(),
                                  [&](const std::string& name) { return needed->contains(name); });
    if (used) LowerNode(node);
    // A graph that is over its limits is not made to its end.
    if (!writer_.status().ok()) return;
  }
}

void Lowering::SetUnknown(const NodeProto& node) {
  for (const std::string& name : node.output()) {
    if (!name.empty()) scopes_.back()[name] = Described(name);
  }
}

void Lowering::LowerNode(const NodeProto& node) {
  std::vector<const Value*> inputs;
  bool refused = false;
  for (const std::string& name : node.input()) {
    const Value* const value = name.empty() ? nullptr : Find(name);
    refused |= value != nullptr && value->kind == Value::Kind::kRefused;
    inputs.push_back(value);
  }
  const std::string& op = node.op_type();
  const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
  const std::string name = standard ? op : StrCat(node.domain(), ".", op);
  const bool special = name == "Constant" || name == "If";
  const bool shape_only = (op == "Shape" || op == "Size") && inputs.size() == 1 &&
                          inputs[0] != nullptr && inputs[0]->known;
  if (!special && FindMap(name) == nullptr && FindFold(name) == nullptr) {
    const Refusal refusal = FindRefusal(name);
    if (refusal.code == 301) ++report_.unsupported[name];
    AddFinding(node, refusal.code, StrCat(name, " ", Quote(NodeName(node)), ": ", refusal.text),
               "");
    return SetUnknown(node);
  }
  if (refused && !shape_only) return SetUnknown(node);
  writer_.SetNodeName(NodeName(node));
  NodeContext context(node, model_.opset, std::move(inputs), &writer_, &budget_, &choices_,
                      [this](const std::string& output, ElementType type, const Sizes64& shape) {
                        return OutputTensor(output, type, shape);
                      });
  absl::Status status = name == "Constant" ? LowerConstant(&context)
                        : name == "If"     ? LowerIf(&context)
                                           : Convert(&context, name);
  int code = context.code();
  if (status.ok() && context.malformed()) {
    status = context.Refuse(109, "an attribute has another type than the operator's");
    code = 109;
  }
  if (!status.ok()) {
    AddFinding(node, code, std::string(status.message()), context.input_to_fix());
    return SetUnknown(node);
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    const std::optional<Value>& result = context.results()[static_cast<size_t>(i)];
    if (!result.has_value()) {
      AddFinding(node, 302, StrCat(context.Place(), ": output ", i, " is not supported"), "");
      return SetUnknown(node);
    }
    scopes_.back()[node.output(i)] = *result;
  }
}

namespace {

// Operators that take an input without elements: the first one, and others.
bool TakesEmpty(const std::string& op, size_t input) {
  static const auto* const layout = new absl::flat_hash_set<std::string>{
      "Reshape", "Squeeze", "Unsqueeze", "Concat",    "Shape",
      "Size",    "Slice",   "Expand",    "Transpose", "Identity"};
  static const auto* const lists = new absl::flat_hash_set<std::string>{
      "Reshape",   "Expand",   "Squeeze",  "Unsqueeze",    "Slice",           "Resize",
      "Upsample",  "Concat",   "Pad",      "ReduceSum",    "ReduceMean",      "ReduceMax",
      "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"};
  return (input == 0 ? layout : lists)->contains(op);
}

}  // namespace

absl::Status Lowering::Convert(NodeContext* context, const std::string& op) {
  bool constant = true;
  for (size_t i = 0; i < context->inputs(); ++i) {
    if (!context->has(i)) continue;
    constant = constant && context->in(i).is_constant();
    const ElementType type = context->in(i).type;
    if (op != "Shape" && op != "Size" && DTypeOf(type) == DType::kInvalid) {
      return context->RefuseType(type);
    }
  }
  const Fold fold = FindFold(op);
  if (constant && fold != nullptr) {
    ASSIGN_OR_RETURN(Constant folded, fold(*context));
    if (folded.shape.size() > kMaxRank) {
      return context->Refuse(103, StrCat("it needs more than ", kMaxRank, " dimensions"));
    }
    context->SetResult(0, ConstantValue(std::move(folded)));
    return absl::OkStatus();
  }
  const Map map = FindMap(op);
  if (map == nullptr) {
    // Names an input that could be fixed.
    for (size_t i = 0; i < context->inputs(); ++i) {
      if (!context->has(i)) continue;
      const absl::Status status = context->RequireConstant(i, "its values").status();
      if (!status.ok() && (op == "Range" || op == "ConstantOfShape")) return status;
      if (!status.ok()) break;
    }
    ++report_.unsupported[op];
    return context->Refuse(301, "this operator is supported for constants only");
  }
  for (size_t i = 0; i < context->inputs(); ++i) {
    if (context->has(i) && context->in(i).is_constant() && context->in(i).elements() == 0 &&
        !TakesEmpty(op, i)) {
      return context->Refuse(404,
                             StrCat("input ", i, " is empty, and empty tensors are not supported"));
    }
  }
  return map(*context);
}

absl::Status Lowering::LowerConstant(NodeContext* context) {
  const NodeProto& node = context->node();
  if (node.output_size() != 1) return context->Refuse(109, "it must have one output");
  for (const AttributeProto& attribute : node.attribute()) {
    Constant constant;
    if (attribute.name() == "value") {
      TensorProto tensor = attribute.t();
      const auto type = static_cast<ElementType>(tensor.data_type());
      if (DTypeOf(type) == DType::kInvalid) return context->RefuseType(type);
      constant = TakeConstant(&tensor);
      RETURN_IF_ERROR(context->Charge(constant.elements(), constant.type));
    } else if (attribute.name() == "value_float") {
      constant = Constant::Reals({}, {attribute.f()});
    } else if (attribute.name() == "value_floats") {
      constant = Constant::Reals({attribute.floats_size()},
                                 {attribute.floats().begin(), attribute.floats().end()});
    } else if (attribute.name() == "value_int") {
      constant = Constant::Integers({}, {attribute.i()});
    } else if (attribute.name() == "value_ints") {
      constant = Constant::Integers({attribute.ints_size()},
                                    {attribute.ints().begin(), attribute.ints().end()});
    } else if (attribute.name() == "sparse_value") {
      return context->Refuse(202, "sparse tensors are not supported");
    } else {
      return context->RefuseType(ElementType::kString);
    }
    context->SetResult(0, ConstantValue(std::move(constant)));
    return absl::OkStatus();
  }
  return context->Refuse(109, "it has no value");
}

std::vector<std::optional<Value>> Lowering::LowerBranch(const GraphProto& branch) {
  scopes_.emplace_back();
  for (const TensorProto& initializer : branch.initializer()) {
    TensorProto tensor = initializer;
    Constant constant = TakeConstant(&tensor);
    // Kept without its name, which another branch may have, too.
    if (DTypeOf(constant.type) != DType::kInvalid) {
      scopes_.back()[initializer.name()] = ConstantValue(std::move(constant));
    }
  }
  const uint64_t before = report_.finding_count;
  LowerNodes(branch, nullptr);
  std::vector<std::optional<Value>> values;
  for (const ValueInfoProto& output : branch.output()) {
    const Value* const value = Find(output.name());
    values.push_back(value == nullptr ? std::nullopt : std::optional<Value>(*value));
    if (report_.finding_count != before) values.back() = Value();
  }
  scopes_.pop_back();
  return values;
}

absl::Status Lowering::LowerIf(NodeContext* context) {
  RETURN_IF_ERROR(context->CheckInputs(1, 1));
  const auto condition = context->RequireConstant(0, "the values of its condition");
  if (!condition.ok() && context->in(0).type != ElementType::kBool) return condition.status();
  if (context->in(0).elements() != 1) return context->Refuse(302, "its condition is not one value");
  const GraphProto* branches[2];
  int nodes = 0;
  for (const bool taken : {false, true}) {
    const AttributeProto* const branch =
        context->FindAttribute(taken ? "then_branch" : "else_branch");
    if (branch == nullptr || branch->g().output_size() != context->node().output_size()) {
      return context->Refuse(109, "its branches have another number of outputs");
    }
    branches[taken] = &branch->g();
    nodes += branch->g().node_size();
  }
  if (condition.ok()) {
    const auto values = LowerBranch(*branches[condition->Integer(0) != 0]);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].has_value()) context->SetResult(i, *values[i]);
    }
    return absl::OkStatus();
  }
  if (nodes > kMaxSelectedNodes) return condition.status();
  // Both branches, and a selection.
  ASSIGN_OR_RETURN(const Value selector, context->Reshape(context->in(0), {}));
  const auto otherwise = LowerBranch(*branches[false]), taken = LowerBranch(*branches[true]);
  writer_.SetNodeName(NodeName(context->node()));
  for (size_t i = 0; i < context->outputs(); ++i) {
    if (!taken[i].has_value() || !otherwise[i].has_value()) continue;
    const Value &left = *taken[i], &right = *otherwise[i];
    if (left.kind == Value::Kind::kRefused || right.kind == Value::Kind::kRefused) {
      context->SetResult(i, Value());
      continue;
    }
    if (left.type != right.type || left.shape != right.shape || left.elements() == 0) {
      return condition.status();
    }
    RETURN_IF_ERROR(context
                        ->Pointwise(i, {selector, left, right},
                                    [](Expression& e, const std::vector<Term>& v) {
                                      return e.Select(v[0], v[1], v[2]);
                                    })
                        .status());
  }
  return absl::OkStatus();
}

void Lowering::AddOutputs(ImportedModel* imported) {
  for (const ValueInfoProto& output : model_.graph->output()) {
    const Value* const value = Find(output.name());
    if (value == nullptr || value->kind == Value::Kind::kRefused) continue;
    const bool typed = DTypeOf(value->type) != DType::kInvalid;
    if (!typed || value->elements() == 0) {
      Add({CodeText(typed ? 404 : 201), "", "", "",
           typed ? StrCat("output ", Quote(output.name()),
                          " is empty, and empty tensors are not supported")
                 : StrCat("output ", Quote(output.name()), " has ", TypeName(value->type),
                          " values, which the daemon does not have")});
      continue;
    }
    Value tensor = *value;
    const bool own = value->kind == Value::Kind::kView &&
                     writer_.tensor_kind(*value) == v1::GraphTensor::KIND_OUTPUT &&
                     writer_.tensor_name(value->tensor) == GraphName(output.name()) &&
                     value->offset == 0 && IsDense(*value) &&
                     value->shape == writer_.Whole(value->tensor).shape;
    if (!own) {
      writer_.SetNodeName(output.name());
      tensor =
          writer_.NewTensor(v1::GraphTensor::KIND_OUTPUT, output.name(), value->type, value->shape);
      writer_.Call("copy", {writer_.In(*value), writer_.Out(tensor)});
    }
    TensorSpec spec;
    spec.name = output.name();
    spec.tensor = writer_.tensor_name(tensor.tensor);
    spec.type = value->type;
    for (const int64_t size : value->shape) spec.shape.push_back({size, ""});
    imported->outputs.push_back(std::move(spec));
  }
}

void Lowering::Run(ImportedModel* imported) {
  const GraphProto& graph = *model_.graph;
  scopes_.emplace_back();
  for (const ValueInfoProto& value : graph.value_info()) described_[value.name()] = &value.type();
  for (const ValueInfoProto& output : graph.output()) {
    described_[output.name()] = &output.type();
    output_names_.insert(output.name());
    writer_.Reserve(output.name());
  }
  for (const auto& [name, constant] : model_.constants) {
    Value value = ConstantValue(constant);
    if (DTypeOf(constant.type) == DType::kInvalid) {
      // Refused where it is used.
      value.known = true;
    }
    scopes_[0][name] = std::move(value);
  }
  for (const TensorSpec& input : model_.inputs) writer_.Reserve(input.name);
  AddInputs(imported);
  const absl::flat_hash_set<std::string> needed = FindNeeded();
  LowerNodes(graph, &needed);
  AddOutputs(imported);
  imported->graph.set_name(GraphName(model_.name));
  if (!writer_.status().ok()) {
    const std::string message(writer_.status().message());
    const size_t size = CodeText(501).size();  // "MODEL_E501: ...".
    Add({message.substr(0, size), "", "", "", message.substr(size + 2)});
  }
  if (report_.findings.empty()) {
    writer_.Finish(&choices_, &imported->graph, &imported->weights);
  }
  report_.graph_nodes = static_cast<uint64_t>(imported->graph.nodes_size());
}

}  // namespace resident::onnx
