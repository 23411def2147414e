// GraphMaker: short forms for graphs in tests.
//
//   GraphMaker g;
//   g.Input("x", {4}).Output("y", {4}).Call("relu", {"x", "y"});
//   const v1::GraphReport report = g.Validate();
#ifndef RESIDENT_TESTS_GRAPH_GRAPH_MAKER_H_
#define RESIDENT_TESTS_GRAPH_GRAPH_MAKER_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "client/graph_messages.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/memory.h"

namespace resident::testing {

// A dimension: a number, or a scalar's name.
using client::graph_messages::Dim;
inline Dim D(int64_t size) { return size; }
inline Dim D(const char* scalar) { return std::string(scalar); }

// An argument of a call.
struct Arg {
  v1::GraphArgument message;

  Arg(const char* tensor) : message(client::graph_messages::Whole(tensor)) {}         // NOLINT
  Arg(const std::string& tensor) : message(client::graph_messages::Whole(tensor)) {}  // NOLINT
  explicit Arg(v1::GraphArgument argument) : message(std::move(argument)) {}
};
inline Arg F(double value) { return Arg(client::graph_messages::Real(value)); }
inline Arg I(int64_t value) { return Arg(client::graph_messages::Integer(value)); }
// factor * scalar + addend.
inline Arg S(const char* scalar, double factor = 1, double addend = 0) {
  return Arg(client::graph_messages::Scalar(scalar, factor, addend));
}
inline Arg None() { return Arg(client::graph_messages::None()); }
inline Arg View(const std::string& tensor, const std::vector<Dim>& shape, int64_t offset = 0,
                const std::vector<int64_t>& strides = {}) {
  return Arg(client::graph_messages::View(tensor, shape, offset, strides));
}
inline Arg Named(const char* parameter, Arg argument) {
  return Arg(client::graph_messages::Named(parameter, std::move(argument.message)));
}

class GraphMaker {
 public:
  GraphMaker() { graph.set_format(1); }

  GraphMaker& Tensor(v1::GraphTensor::Kind kind, const std::string& name, std::vector<Dim> shape,
                     v1::DType dtype = v1::DTYPE_F32);
  GraphMaker& Weight(const std::string& name, std::vector<Dim> shape);
  GraphMaker& Input(const std::string& name, std::vector<Dim> shape);
  GraphMaker& State(const std::string& name, std::vector<Dim> shape);
  GraphMaker& Activation(const std::string& name, std::vector<Dim> shape);
  GraphMaker& Output(const std::string& name, std::vector<Dim> shape);
  GraphMaker& Alias(v1::GraphTensor::Kind kind, const std::string& name, const std::string& of,
                    std::vector<Dim> shape, uint64_t offset_bytes = 0);
  GraphMaker& Scalar(const std::string& name, double min, double max,
                     v1::DType dtype = v1::DTYPE_I64);
  // Adds a node named `op` and its index.
  GraphMaker& Call(const std::string& op, std::vector<Arg> arguments);
  // Of the last node: waits for counters (with the number of their signals so far as threshold is
  // not known, it is given), signals one, runs in a block.
  GraphMaker& Wait(uint32_t counter, uint32_t threshold = 1);
  GraphMaker& Signal(uint32_t counter);
  GraphMaker& Block(uint32_t block);
  GraphMaker& Counters(int count);

  v1::GraphNode& node(int index) { return *graph.mutable_nodes(index); }
  v1::GraphTensor& tensor(int index) { return *graph.mutable_tensors(index); }

  v1::GraphReport Validate(bool dependencies = false, const graph::DeviceLimit& limit = {}) const;

  v1::Graph graph;
};

// "GRAPH_E203 node: message", one on a line, for failures.
std::string FindingsText(const v1::GraphReport& report);
// The codes of the errors without duplicates, as numbers, ascending; of the warnings.
std::vector<int> ErrorCodes(const v1::GraphReport& report);
std::vector<int> WarningCodes(const v1::GraphReport& report);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_GRAPH_MAKER_H_
