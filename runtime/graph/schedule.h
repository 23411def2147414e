// Schedules: which members of a gang execute each node of a graph, and in which order
// (kernels/graph/graph_task.h).
//
// This is list scheduling: the nodes are placed one after the other, in the order of the graph. A
// node of one chunk is placed where it can end first, on estimated durations: on the member of the
// predecessor that ends last, unless that member is busy for longer than a signal to another member
// takes. The chunks of a wide node are placed on consecutive members, beginning after those of the
// wide node before it. Short wide nodes that wait for the same latest node, such as the projections
// of queries, keys and values, divide the gang among themselves. The estimates affect only how long
// the steps take.
//
// Thread safety: a pure function. For 131,072 nodes and 132 workers it takes about 10 ms if the
// nodes are a chain, 20 ms if they are independent, and 170 ms if all are wide
// (tests/graph/schedule_test.cc prints it).
//
//   const Schedule schedule = ComputeSchedule(estimates, predecessors, /*workers=*/132);
//   ... copy schedule.nodes, ... into the image ...
#ifndef RESIDENT_RUNTIME_GRAPH_SCHEDULE_H_
#define RESIDENT_RUNTIME_GRAPH_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/graph/graph_task.h"

namespace resident::graph {

inline constexpr uint32_t kMaxGang = 2048;

struct NodeEstimate {
  // The bytes of the tensors that it reads and writes.
  double bytes = 0;
  // Arithmetic operations.
  double operations = 0;
  // At least 1.
  uint64_t chunks = 1;
  // Nodes that it waits for.
  uint32_t predecessors = 0;
};

// The parts of an image.
struct Schedule {
  // Members: at most those that are busy at one time if each node begins as soon as it can; 1 for a
  // chain of nodes of one chunk.
  uint32_t gang = 1;
  std::vector<GangNode> nodes;
  std::vector<GangWait> waits;
  std::vector<u32> list_begins;
  std::vector<u32> lists;
};

// `predecessors`: of all nodes, one node after the other; each is before its node. `workers`: the
// most members that there can be; of more than kMaxGang, kMaxGang are used. REQUIRES: workers >= 1.
Schedule ComputeSchedule(absl::Span<const NodeEstimate> nodes,
                         absl::Span<const uint32_t> predecessors, uint32_t workers);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_SCHEDULE_H_
