#include "runtime/base/errors/graph_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoGraph() {
  return absl::InvalidArgumentError("the request has no graph. Fix: set the field `graph`");
}

absl::Status TooManyGraphChecks(uint32_t limit) {
  return absl::ResourceExhaustedError(
      StrCat(limit, " graphs are being checked already. Fix: try again when one has ended"));
}

absl::Status OperatorNotForGraphs(const std::string& name, const std::string& reason) {
  return absl::FailedPreconditionError(StrCat("operator ", Quote(name),
                                              " cannot be called from a graph: ", reason,
                                              ". Fix: call another operator"));
}

}  // namespace resident::errors
