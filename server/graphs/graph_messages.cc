#include "server/graphs/graph_messages.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/unknown_field_set.h"
#include "runtime/graph/builder.h"
#include "runtime/graph/limits.h"

namespace resident {
namespace {

using graph::ArgumentSpec;
using graph::DimSpec;

// Dependencies in one report.
constexpr uint64_t kMaxListedDependencies = 1u << 20;

template <typename Repeated>
std::vector<DimSpec> ReadShape(const Repeated& shape) {
  std::vector<DimSpec> dims;
  dims.reserve(static_cast<size_t>(shape.size()));
  for (const v1::GraphDim& dim : shape) dims.push_back({dim.size(), dim.scalar()});
  return dims;
}

template <typename Repeated>
absl::Span<const int64_t> ReadNumbers(const Repeated& numbers) {
  return {numbers.data(), static_cast<size_t>(numbers.size())};
}

// Finds fields that this version does not know, in a message and in those that it contains.
class UnknownFields {
 public:
  explicit UnknownFields(graph::Findings& findings) : findings_(findings) {}

  template <typename... Messages>
  void Check(const char* what, uint32_t index, const Messages&... messages) {
    (CheckOne(what, index, messages), ...);
  }

 private:
  void CheckOne(const char* what, uint32_t index, const google::protobuf::Message& message) {
    const google::protobuf::UnknownFieldSet& fields =
        message.GetReflection()->GetUnknownFields(message);
    if (fields.empty()) return;
    if (!findings_.keeps_errors()) return findings_.CountError();
    findings_.Add(graph::Code::kUnknownField, {},
                  absl::StrCat(what, " ", index, " has a field ", fields.field(0).number(),
                               " that this daemon does not know. Fix: update the daemon, or do "
                               "not use the field"));
  }
  graph::Findings& findings_;
};

ArgumentSpec ReadArgument(const v1::GraphArgument& message, std::vector<DimSpec>* shape) {
  ArgumentSpec spec;
  spec.parameter = message.parameter();
  switch (message.value_case()) {
    case v1::GraphArgument::kTensor:
      spec.kind = ArgumentSpec::Kind::kTensor;
      spec.name = message.tensor().name();
      *shape = ReadShape(message.tensor().shape());
      spec.shape = *shape;
      spec.strides = ReadNumbers(message.tensor().strides());
      spec.offset = message.tensor().offset();
      spec.scalar_shape = message.tensor().scalar_shape();
      break;
    case v1::GraphArgument::kI64:
      spec.kind = ArgumentSpec::Kind::kInteger;
      spec.integer = message.i64();
      break;
    case v1::GraphArgument::kF64:
      spec.kind = ArgumentSpec::Kind::kFloat;
      spec.number = message.f64();
      break;
    case v1::GraphArgument::kScalar:
      spec.kind = ArgumentSpec::Kind::kScalar;
      spec.name = message.scalar().name();
      if (message.scalar().has_factor()) spec.factor = message.scalar().factor();
      spec.addend = message.scalar().addend();
      break;
    case v1::GraphArgument::kNone:
      if (message.none()) spec.kind = ArgumentSpec::Kind::kNoTensor;
      break;
    case v1::GraphArgument::VALUE_NOT_SET:
      break;
  }
  return spec;
}

// Bytes of the node's arguments in the form for GraphBuilder, while it is added.
uint64_t MeasureSpecs(const v1::GraphNode& message) {
  uint64_t bytes = static_cast<uint64_t>(message.arguments_size()) * sizeof(ArgumentSpec) +
                   static_cast<uint64_t>(message.waits_size()) * 2 * sizeof(graph::Wait);
  for (const v1::GraphArgument& argument : message.arguments()) {
    bytes += static_cast<uint64_t>(argument.tensor().shape_size()) * sizeof(DimSpec);
  }
  return bytes;
}

void ReadNode(const v1::GraphNode& message, uint32_t index, UnknownFields& unknown,
              graph::CheckBudget& budget, graph::GraphBuilder& builder) {
  graph::HeldBytes held(budget);
  if (!held.Hold(MeasureSpecs(message))) return;
  unknown.Check("node", index, message);
  std::vector<ArgumentSpec> arguments;
  arguments.reserve(static_cast<size_t>(message.arguments_size()));
  // More than the largest number would be refused; their shapes are not needed.
  std::vector<DimSpec> shapes[kMaxArguments + 1];
  for (int i = 0; i < message.arguments_size(); ++i) {
    const v1::GraphArgument& argument = message.arguments(i);
    unknown.Check("an argument of node", index, argument);
    if (argument.has_tensor()) {
      unknown.Check("a view of node", index, argument.tensor());
      for (const v1::GraphDim& dim : argument.tensor().shape()) {
        unknown.Check("a dimension of node", index, dim);
      }
    }
    if (argument.has_scalar()) unknown.Check("a scalar of node", index, argument.scalar());
    arguments.push_back(
        ReadArgument(argument, &shapes[std::min<size_t>(static_cast<size_t>(i), kMaxArguments)]));
  }
  std::vector<graph::Wait> waits;
  for (const v1::GraphWait& wait : message.waits()) {
    unknown.Check("a wait of node", index, wait);
    waits.push_back({wait.counter(), wait.threshold()});
  }
  graph::NodeSpec spec;
  spec.name = message.name();
  spec.op = message.operator_();
  spec.version = message.version();
  spec.arguments = arguments;
  spec.waits = waits;
  if (message.has_signals()) spec.signals = message.signals();
  if (message.has_block()) spec.block = message.block();
  if (message.has_id()) spec.id = message.id();
  builder.AddNode(spec);
}

void ReadLoop(const v1::GraphLoop& message, UnknownFields& unknown, graph::GraphBuilder& builder) {
  unknown.Check("loop", 0, message);
  std::vector<graph::UpdateSpec> updates;
  for (const v1::GraphUpdate& update : message.updates()) {
    unknown.Check("an update of loop", 0, update);
    updates.push_back(
        {update.scalar(), update.has_factor() ? update.factor() : 1, update.addend()});
  }
  graph::LoopSpec spec;
  spec.max_steps = message.max_steps();
  spec.updates = updates;
  if (message.has_stop()) {
    unknown.Check("the stop of loop", 0, message.stop());
    spec.has_stop = true;
    spec.stop_tensor = message.stop().tensor();
    spec.stop_values = ReadNumbers(message.stop().values());
  }
  builder.SetLoop(spec);
}

}  // namespace

graph::Graph ReadGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                       graph::Findings* findings, graph::CheckBudget* budget) {
  graph::CheckBudget own;
  if (budget == nullptr) budget = &own;
  graph::GraphBuilder builder(catalog, findings, budget);
  UnknownFields unknown(*findings);
  unknown.Check("graph", 0, message);
  builder.Begin(message.name(), message.format(), message.blocks());
  uint32_t index = 0;
  for (const v1::GraphScalar& scalar : message.scalars()) {
    unknown.Check("scalar", index++, scalar);
    graph::ScalarSpec spec;
    spec.name = scalar.name();
    spec.dtype = scalar.dtype();
    spec.least = scalar.least();
    spec.most = scalar.most();
    if (scalar.has_initial()) spec.initial = scalar.initial();
    builder.AddScalar(spec);
  }
  index = 0;
  for (const v1::GraphTensor& tensor : message.tensors()) {
    graph::HeldBytes held(*budget);
    if (!held.Hold(static_cast<uint64_t>(tensor.shape_size()) * sizeof(DimSpec))) break;
    unknown.Check("tensor", index, tensor);
    for (const v1::GraphDim& dim : tensor.shape()) {
      unknown.Check("a dimension of tensor", index, dim);
    }
    ++index;
    const std::vector<DimSpec> shape = ReadShape(tensor.shape());
    graph::TensorSpec spec;
    spec.name = tensor.name();
    spec.kind = tensor.kind();
    spec.dtype = tensor.dtype();
    spec.shape = shape;
    spec.strides = ReadNumbers(tensor.strides());
    spec.offset = tensor.offset();
    spec.alias_of = tensor.alias_of();
    if (tensor.has_id()) spec.id = tensor.id();
    builder.AddTensor(spec);
  }
  builder.EndTensors();
  index = 0;
  for (const v1::GraphCounter& counter : message.counters()) {
    unknown.Check("counter", index++, counter);
    builder.AddCounter(counter.name(), counter.initial());
  }
  index = 0;
  for (const v1::GraphNode& node : message.nodes()) {
    if (budget->ended()) break;
    ReadNode(node, index++, unknown, *budget, builder);
  }
  if (message.has_loop()) ReadLoop(message.loop(), unknown, builder);
  return builder.Finish();
}

void FillGraphReport(const graph::Graph& graph, const graph::GraphCheck& check,
                     const graph::Findings& findings, bool dependencies, v1::GraphReport* report) {
  using graph::TensorKind;
  report->set_accepted(check.accepted);
  report->set_errors(findings.errors());
  report->set_warnings(findings.warnings());
  for (const graph::Finding& finding : findings.list()) {
    v1::GraphFinding* const to = report->add_findings();
    to->set_code(graph::CodeName(finding.code));
    to->set_warning(finding.warning);
    to->set_node(finding.node);
    to->set_tensor(finding.tensor);
    to->set_message(finding.message);
  }
  const auto bytes = [&](TensorKind kind) {
    return static_cast<uint64_t>(graph::BytesOf(graph, kind));
  };
  report->set_weight_bytes(bytes(TensorKind::kWeight));
  report->set_state_bytes(bytes(TensorKind::kState));
  report->set_activation_bytes(bytes(TensorKind::kActivation));
  report->set_other_bytes(bytes(TensorKind::kConst) + bytes(TensorKind::kInput) +
                          bytes(TensorKind::kOutput) + bytes(TensorKind::kStream));
  if (!check.order.has_value()) return;
  report->set_dependency_count(check.order->size());
  report->set_longest_chain(check.order->LongestChain());
  if (!dependencies || !check.accepted) return;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    for (const graph::Dependency& dependency : check.order->Of(n)) {
      if (static_cast<uint64_t>(report->dependencies_size()) == kMaxListedDependencies) return;
      v1::GraphDependency* const to = report->add_dependencies();
      to->set_node(n);
      to->set_after(dependency.after);
      to->set_kind(static_cast<v1::GraphDependency::Kind>(dependency.kind));
    }
  }
}

v1::GraphReport ValidateGraph(const v1::Graph& message, const graph::OperatorCatalog& catalog,
                              bool dependencies, const graph::DeviceLimit& limit,
                              graph::CheckBudget* budget) {
  graph::CheckBudget own;
  if (budget == nullptr) budget = &own;
  graph::Findings findings;
  const graph::Graph graph = ReadGraph(message, catalog, &findings, budget);
  const graph::GraphCheck check = CheckGraph(graph, &findings, limit, budget);
  v1::GraphReport report;
  FillGraphReport(graph, check, findings, dependencies, &report);
  return report;
}

}  // namespace resident
