#include "tests/graph/builtin_catalog.h"

#include <utility>

#include "kernels/ops/builtin.h"
#include "kernels/ops/early_operators.h"
#include "runtime/operators/errors.h"
#include "server/core/errors.h"

namespace resident::testing {

BuiltinCatalog::BuiltinCatalog() {
  for (const BuiltinOperator& op : kBuiltinOperators) {
    graph::OperatorInfo info;
    info.name = op.name;
    info.version = 1;
    info.signature = Signature::Parse(op.signature).value();
    info.split = ParseSplit(op.split, info.signature).value();
    info.cost = ParseCost(op.cost, info.signature).value();
    info.builtin = true;
    info.early_reads = FindEarlyReads(op.name);
    info.family = op.family;
    operators_.emplace(op.name, std::move(info));
  }
}

absl::StatusOr<graph::OperatorInfo> BuiltinCatalog::Find(const std::string& name,
                                                         uint32_t version) const {
  if (name == "compare" || name == "flux.run") {
    return errors::OperatorNotForGraphs(name, "only the daemon itself calls it");
  }
  const auto found = operators_.find(name);
  if (found == operators_.end()) return errors::UnknownOperator(name, "");
  if (version > 1) return errors::UnknownVersion(name, version, 1);
  return found->second;
}

}  // namespace resident::testing
