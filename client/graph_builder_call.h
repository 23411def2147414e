// A call of GraphBuilder while its arguments are assigned to the parameters. Only for
// graph_builder.cc and graph_builder_call.cc.
//
// Thread safety: plain values.
#ifndef RESIDENT_CLIENT_GRAPH_BUILDER_CALL_H_
#define RESIDENT_CLIENT_GRAPH_BUILDER_CALL_H_

#include <optional>
#include <string>
#include <vector>

#include "client/graph_builder.h"
#include "runtime/model/signature.h"

namespace resident::client {

struct GraphBuilder::OperatorSignature {
  std::string name;
  Signature signature;
};

struct GraphBuilder::CallState {
  // The node's name.
  std::string node;
  const OperatorSignature* op = nullptr;
  // The value of each parameter. New and v1::DType are replaced by the tensors that they describe.
  std::vector<std::optional<Value>> values;
  std::vector<Tensor> results;

  const std::vector<Parameter>& parameters() const { return op->signature.parameters(); }
};

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_GRAPH_BUILDER_CALL_H_
