// Errors of pictures of graphs. What is wrong with a graph itself is a finding (finding.h).
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_GRAPH_ERRORS_H_
#define RESIDENT_RUNTIME_GRAPH_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// `what`: "nodes"; `format`: "SVG".
absl::Status TooLargeToDraw(const std::string& what, uint64_t count, uint64_t limit,
                            const std::string& format);
// Dependencies go past too many nodes. `limit`: nodes and bends of a picture.
absl::Status TooLongToDraw(uint64_t dependencies, uint64_t limit);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_GRAPH_ERRORS_H_
