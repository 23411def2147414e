// Where the time of a traced step of a graph goes.
//
// The *last predecessor* of a node is the one that ends last. The critical time of a node is the
// time from the end of its last predecessor, or from the begin of the step, to its own end. The
// *path* is the chain of last predecessors of the node that ends last: its critical times add up to
// the time of the step.
//
// Thread safety: pure functions.
//
//   const GraphBreakdown breakdown = BreakDown(operators, predecessors, events, /*step=*/2);
#ifndef RESIDENT_TESTS_GPU_GRAPH_BREAKDOWN_H_
#define RESIDENT_TESTS_GPU_GRAPH_BREAKDOWN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/graph/graph_task.h"
#include "nlohmann/json.hpp"

namespace resident::testing {

struct GraphBreakdown {
  struct Row {
    std::string op;
    uint32_t nodes = 0;
    // Of all members: executing its nodes, and waiting for their predecessors.
    double work_us = 0;
    double wait_us = 0;
    // Of the member that worked longest.
    double longest_us = 0;
    // Critical times: of all its nodes, and of those on the path.
    double critical_us = 0;
    double path_us = 0;
    uint32_t path_nodes = 0;
  };

  // From the last end in the step before to the last end.
  double step_us = 0;
  double work_us = 0;
  double wait_us = 0;
  uint32_t members = 0;
  // By operator; the longest time on the path first.
  std::vector<Row> rows;

  void Print() const;
  nlohmann::ordered_json ToJson() const;
};

// By node: its operator, and the nodes that it waits for. `step`: of the quantum, at least 1. Fails
// if the events lack a node.
GraphBreakdown BreakDown(const std::vector<std::string>& operators,
                         const std::vector<std::vector<uint32_t>>& predecessors,
                         absl::Span<const GraphTraceEvent> events, uint32_t step);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_GRAPH_BREAKDOWN_H_
