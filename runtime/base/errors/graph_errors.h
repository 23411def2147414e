// Errors of calls about task graphs. What is wrong with a graph itself is a finding
// (runtime/graph/finding.h). The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_GRAPH_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_GRAPH_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NoGraph();
absl::Status TooManyGraphChecks(uint32_t limit);
// The operator exists, but only the daemon calls it.
absl::Status OperatorNotForGraphs(const std::string& name, const std::string& reason);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_GRAPH_ERRORS_H_
