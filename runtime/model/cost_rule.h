// CostRule: how many arithmetic operations a task takes, "2 M N K + 3 S": a sum of products of a
// number and of variables of the signature's shapes. A variable of several dimensions stands for
// their product. Additions, multiplications, comparisons and values of functions count as one each.
// "L:kv_len" is the smaller of L and the value of the scalar kv_len, unless that is negative.
//
// It is an estimate: the scheduler of graphs uses it beside the bytes of a node's tensors
// (runtime/graph/schedule.h), and a task that can certainly not end in time is refused
// (server/workload/work_bound.h). "" is a task that only copies, or whose shapes do not tell.
//
// Thread safety: a plain value.
//
//   ASSIGN_OR_RETURN(CostRule rule, ParseCost("2 M N K", signature));
//   rule.Operations(shapes);  // A shape for each parameter of the signature.
#ifndef RESIDENT_RUNTIME_MODEL_COST_RULE_H_
#define RESIDENT_RUNTIME_MODEL_COST_RULE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/model/signature.h"

namespace resident {

struct CostRule {
  // The product of dimensions first to end - 1 of a parameter's shape. A negative number, and an
  // end of 0, count from the number of dimensions.
  struct Factor {
    size_t parameter = 0;
    int first = 0;
    int end = 0;
    // The scalar that limits it; nullopt: none.
    std::optional<size_t> limit;
  };
  struct Term {
    double factor = 1;
    std::vector<Factor> factors;
  };
  std::vector<Term> terms;

  // Whether scalars limit the operations.
  bool limited() const;
  // `shapes`: of the arguments, those of scalars empty. `scalars`: by argument, values of those
  // that limit the operations; empty: they do not limit them. REQUIRES: they match the signature.
  double Operations(absl::Span<const Shape> shapes, absl::Span<const double> scalars = {}) const;
};

// INVALID_ARGUMENT: the text is malformed, or names a variable that no shape of the signature
// binds, or a scalar that the signature does not have.
absl::StatusOr<CostRule> ParseCost(const std::string& text, const Signature& signature);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_COST_RULE_H_
