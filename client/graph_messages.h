// Makes parts of a task graph as messages (resident/v1/graphs.proto): the arguments of its calls.
// The importers and tests write graphs with these functions; client/graph_builder.h also infers
// shapes and checks calls.
//
//   *node.add_arguments() = graph_messages::View("cache", {8, 64}, /*offset=*/512);
//   *node.add_arguments() = graph_messages::Named("alpha", graph_messages::Real(0.5));
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_GRAPH_MESSAGES_H_
#define RESIDENT_CLIENT_GRAPH_MESSAGES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "resident/v1/graphs.pb.h"

namespace resident::client::graph_messages {

// A dimension: a number, or the name of a scalar.
using Dim = std::variant<int64_t, std::string>;

// `message`: one with dimensions, a v1::GraphTensor or a v1::GraphView.
template <typename Message>
void SetShape(const std::vector<Dim>& shape, Message* message) {
  for (const Dim& dim : shape) {
    v1::GraphDim* const to = message->add_shape();
    if (const int64_t* const size = std::get_if<int64_t>(&dim)) {
      to->set_size(*size);
    } else {
      to->set_scalar(std::get<std::string>(dim));
    }
  }
}

// A whole tensor.
inline v1::GraphArgument Whole(const std::string& tensor) {
  v1::GraphArgument argument;
  argument.mutable_tensor()->set_name(tensor);
  return argument;
}

// A part of a tensor, dense unless there are strides. Offset and strides count elements. No
// dimensions: one element.
inline v1::GraphArgument View(const std::string& tensor, const std::vector<Dim>& shape,
                              int64_t offset = 0, const std::vector<int64_t>& strides = {}) {
  v1::GraphArgument argument = Whole(tensor);
  v1::GraphView& view = *argument.mutable_tensor();
  view.set_offset(offset);
  view.set_scalar_shape(shape.empty());
  SetShape(shape, &view);
  view.mutable_strides()->Add(strides.begin(), strides.end());
  return argument;
}

inline v1::GraphArgument Real(double value) {
  v1::GraphArgument argument;
  argument.set_f64(value);
  return argument;
}

inline v1::GraphArgument Integer(int64_t value) {
  v1::GraphArgument argument;
  argument.set_i64(value);
  return argument;
}

// factor * scalar + addend.
inline v1::GraphArgument Scalar(const std::string& name, double factor = 1, double addend = 0) {
  v1::GraphArgument argument;
  v1::GraphScalarUse& use = *argument.mutable_scalar();
  use.set_name(name);
  if (factor != 1) use.set_factor(factor);
  use.set_addend(addend);
  return argument;
}

// No tensor, for an optional one.
inline v1::GraphArgument None() {
  v1::GraphArgument argument;
  argument.set_none(true);
  return argument;
}

inline v1::GraphArgument Named(const std::string& parameter, v1::GraphArgument argument) {
  argument.set_parameter(parameter);
  return argument;
}

}  // namespace resident::client::graph_messages

#endif  // RESIDENT_CLIENT_GRAPH_MESSAGES_H_
