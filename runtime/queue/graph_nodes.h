// GraphNodes: what the queue must know of a batch that is a quantum of a graph
// (kernels/graph/graph_task.h): one slot of the ring, whose workers run tasks of several operators.
//
// Thread safety: immutable.
//
//   batch.graph = std::make_unique<const GraphNodes>(GraphNodes{rows, slots, worker_ns, workers});
#ifndef RESIDENT_RUNTIME_QUEUE_GRAPH_NODES_H_
#define RESIDENT_RUNTIME_QUEUE_GRAPH_NODES_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/graph/graph_task.h"

namespace resident {

struct GraphNodes {
  // By node of the image: its row of the table of operators. Not empty.
  std::shared_ptr<const std::vector<uint32_t>> rows;
  // By row: the operator slot.
  std::vector<uint32_t> slots;
  // Worker time that the quantum takes, about, in nanoseconds, and the workers that it occupies.
  uint64_t worker_ns = 0;
  uint32_t workers = 1;

  // The operator slot of a worker's task. `task`: Breadcrumb::task; any value is valid, because a
  // breadcrumb may be read while it is written.
  uint32_t operator_slot(uint32_t task) const {
    const size_t node = std::min<size_t>(GraphTaskNode(task), rows->size() - 1);
    return slots[(*rows)[node]];
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_GRAPH_NODES_H_
