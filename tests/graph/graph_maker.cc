#include "tests/graph/graph_maker.h"

#include <cstdlib>
#include <set>
#include <utility>

#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"

namespace resident::testing {

using client::graph_messages::SetShape;

namespace {

std::vector<int> Codes(const v1::GraphReport& report, bool warnings) {
  std::set<int> codes;
  for (const v1::GraphFinding& finding : report.findings()) {
    if (finding.warning() != warnings) continue;
    codes.insert(std::atoi(finding.code().c_str() + std::string("GRAPH_E").size()));
  }
  return {codes.begin(), codes.end()};
}

}  // namespace

GraphMaker& GraphMaker::Tensor(v1::GraphTensor::Kind kind, const std::string& name,
                               std::vector<Dim> shape, v1::DType dtype) {
  v1::GraphTensor& tensor = *graph.add_tensors();
  tensor.set_name(name);
  tensor.set_kind(kind);
  tensor.set_dtype(dtype);
  SetShape(shape, &tensor);
  return *this;
}

GraphMaker& GraphMaker::Weight(const std::string& name, std::vector<Dim> shape) {
  return Tensor(v1::GraphTensor::KIND_WEIGHT, name, std::move(shape));
}
GraphMaker& GraphMaker::Input(const std::string& name, std::vector<Dim> shape) {
  return Tensor(v1::GraphTensor::KIND_INPUT, name, std::move(shape));
}
GraphMaker& GraphMaker::State(const std::string& name, std::vector<Dim> shape) {
  return Tensor(v1::GraphTensor::KIND_STATE, name, std::move(shape));
}
GraphMaker& GraphMaker::Activation(const std::string& name, std::vector<Dim> shape) {
  return Tensor(v1::GraphTensor::KIND_ACTIVATION, name, std::move(shape));
}
GraphMaker& GraphMaker::Output(const std::string& name, std::vector<Dim> shape) {
  return Tensor(v1::GraphTensor::KIND_OUTPUT, name, std::move(shape));
}

GraphMaker& GraphMaker::Alias(v1::GraphTensor::Kind kind, const std::string& name,
                              const std::string& of, std::vector<Dim> shape,
                              uint64_t offset_bytes) {
  Tensor(kind, name, std::move(shape));
  v1::GraphTensor& alias = *graph.mutable_tensors(graph.tensors_size() - 1);
  alias.set_alias_of(of);
  alias.set_offset(offset_bytes);
  return *this;
}

GraphMaker& GraphMaker::Scalar(const std::string& name, double min, double max, v1::DType dtype) {
  v1::GraphScalar& scalar = *graph.add_scalars();
  scalar.set_name(name);
  scalar.set_dtype(dtype);
  scalar.set_least(min);
  scalar.set_most(max);
  return *this;
}

GraphMaker& GraphMaker::Call(const std::string& op, std::vector<Arg> arguments) {
  v1::GraphNode& node = *graph.add_nodes();
  node.set_name(op + std::to_string(graph.nodes_size() - 1));
  node.set_operator_(op);
  for (Arg& argument : arguments) *node.add_arguments() = std::move(argument.message);
  return *this;
}

GraphMaker& GraphMaker::Wait(uint32_t counter, uint32_t threshold) {
  v1::GraphWait& wait = *graph.mutable_nodes(graph.nodes_size() - 1)->add_waits();
  wait.set_counter(counter);
  wait.set_threshold(threshold);
  return *this;
}

GraphMaker& GraphMaker::Signal(uint32_t counter) {
  graph.mutable_nodes(graph.nodes_size() - 1)->set_signals(counter);
  return *this;
}

GraphMaker& GraphMaker::Block(uint32_t block) {
  graph.mutable_nodes(graph.nodes_size() - 1)->set_block(block);
  return *this;
}

GraphMaker& GraphMaker::Counters(int count) {
  for (int i = 0; i < count; ++i) graph.add_counters();
  return *this;
}

v1::GraphReport GraphMaker::Validate(bool dependencies, const graph::DeviceLimit& limit) const {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  return ValidateGraph(graph, *catalog, dependencies, limit);
}

std::string FindingsText(const v1::GraphReport& report) {
  std::string text;
  for (const v1::GraphFinding& finding : report.findings()) {
    text += finding.code() + " " + finding.node() + " " + finding.tensor() + ": " +
            finding.message() + "\n";
  }
  return text;
}

std::vector<int> ErrorCodes(const v1::GraphReport& report) { return Codes(report, false); }
std::vector<int> WarningCodes(const v1::GraphReport& report) { return Codes(report, true); }

}  // namespace resident::testing
