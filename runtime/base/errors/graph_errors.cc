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

absl::Status GraphRefused(const std::string& finding, uint64_t others) {
  return absl::InvalidArgumentError(
      StrCat("the graph is refused: ", finding,
             others == 0 ? "" : StrCat(" (Graphs.Validate lists ", others, " more)")));
}

absl::Status TooManyNodesToRun(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the graph has ", count, " nodes, and one of at most ",
                                           limit, " can run. Fix: divide it"));
}

absl::Status BadBinding(const std::string& tensor, const std::string& what,
                        const std::string& fix) {
  return absl::InvalidArgumentError(
      StrCat("binding of tensor ", Quote(tensor), ": ", what, ". Fix: ", fix));
}

absl::Status GraphSessionOnOtherDevice(uint32_t device, uint32_t wanted) {
  return absl::InvalidArgumentError(StrCat("the graph session is on device ", device,
                                           ", and the request is for device ", wanted,
                                           ". Fix: omit `device`"));
}

absl::Status NotBound(const std::string& kind, const std::string& tensor, const std::string& fix) {
  return absl::InvalidArgumentError(
      StrCat("tensor ", Quote(tensor), " is ", kind, " and has no memory. Fix: ", fix));
}

absl::Status BadRunScalar(const std::string& scalar, const std::string& what,
                          const std::string& fix) {
  return absl::InvalidArgumentError(StrCat("scalar ", Quote(scalar), " ", what, ". Fix: ", fix));
}

absl::Status AmbiguousBufferName(const std::string& tensor, uint64_t first, uint64_t second) {
  return absl::InvalidArgumentError(StrCat("buffers ", first, " and ", second,
                                           " both have the name ", Quote(tensor),
                                           " of a tensor. Fix: bind one of them"));
}

absl::Status GraphAnswerTooLarge(const std::string& what, uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the ", what, " ", bytes, " bytes, and at most ", limit,
                                           " are returned. Fix: bind outputs to buffers, or return "
                                           "less in each step"));
}

absl::Status TooManyDependenciesToRun(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the graph has ", count,
                                           " dependencies, and one of at most ", limit,
                                           " can run. Fix: divide it"));
}

absl::Status StepFailed(absl::StatusCode code, uint64_t step, const std::string& what) {
  return absl::Status(code, StrCat("step ", step, ": ", what));
}

absl::Status NodeFailed(absl::StatusCode code, const std::string& node, const std::string& op,
                        uint64_t step, const std::string& what) {
  return absl::Status(
      code, StrCat("node ", Quote(node), " (", op, ") failed in step ", step, ": ", what));
}

}  // namespace resident::errors
