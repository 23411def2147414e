// BuiltinCatalog: the built-in operators as a catalog, without a daemon.
//
// Thread safety: immutable.
#ifndef RESIDENT_TESTS_GRAPH_BUILTIN_CATALOG_H_
#define RESIDENT_TESTS_GRAPH_BUILTIN_CATALOG_H_

#include <map>
#include <string>

#include "runtime/graph/operator_catalog.h"

namespace resident::testing {

class BuiltinCatalog final : public graph::OperatorCatalog {
 public:
  BuiltinCatalog();
  // FAILED_PRECONDITION for `compare` and `flux.run`, as in the daemon.
  absl::StatusOr<graph::OperatorInfo> Find(const std::string& name,
                                           uint32_t version) const override;

 private:
  std::map<std::string, graph::OperatorInfo> operators_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_BUILTIN_CATALOG_H_
