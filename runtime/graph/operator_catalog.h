// OperatorCatalog: the operators that a graph may call.
//
// Thread safety: that of the implementation.
#ifndef RESIDENT_RUNTIME_GRAPH_OPERATOR_CATALOG_H_
#define RESIDENT_RUNTIME_GRAPH_OPERATOR_CATALOG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/model/cost_rule.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"

namespace resident::graph {

struct OperatorInfo {
  std::string name;
  uint32_t version = 0;
  // The version that the graph names; 0: the active one.
  uint32_t wanted_version = 0;
  Signature signature;
  SplitRule split;
  // The cost of one of the daemon's own operators.
  CostRule cost;
  // Whether it is one of the daemon's own operators, so that its name tells what it does.
  bool builtin = false;
  // Whether this version is built in and serves all requests that name no version: it is active,
  // and none is on trial beside it.
  bool builtin_serves = false;
  // If it may be started before its inputs are ready, bit i: it may read the elements of argument i
  // then (kernels/ops/early_operators.h).
  std::optional<uint32_t> early_reads;
  // The family of one of the daemon's own operators, such as "elementwise"; only for pictures.
  std::string family;
};

class OperatorCatalog {
 public:
  virtual ~OperatorCatalog() = default;

  // Finds a version; 0: the active one. NOT_FOUND: there is no such operator or version. Another
  // error: it cannot be called from a graph. Messages end with "Fix: ...".
  virtual absl::StatusOr<OperatorInfo> Find(const std::string& name, uint32_t version) const = 0;
};

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_OPERATOR_CATALOG_H_
