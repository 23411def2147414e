// GraphTasks: the batches, of one task each, that execute a graph: its nodes, and the copies that
// write and read its tensors.
//
// Thread safety: all members are const.
//
//   GraphTasks tasks(graph, places);
//   const v1::Batch batch = tasks.Node(node, scalar_values);
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_TASKS_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_TASKS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/graph.h"

namespace resident {

// Where the memory of a tensor is.
struct GraphPlace {
  uint64_t buffer = 0;
  // Byte in the buffer.
  uint64_t offset = 0;
};

class GraphTasks {
 public:
  // `places`: by tensor; those of aliases are not used. `graph` must outlive this object.
  GraphTasks(const graph::Graph& graph, std::vector<GraphPlace> places)
      : graph_(graph), places_(std::move(places)) {}

  // Executes a node. `values`: of all scalars, by index.
  v1::Batch Node(uint32_t node, absl::Span<const double> values) const;
  // Returns the dense elements of a tensor.
  v1::Batch Read(uint32_t tensor, absl::Span<const double> values) const;
  // Sets the first bytes of a tensor's memory.
  v1::Batch Write(uint32_t tensor, std::string data) const;
  // Sets bytes of a buffer.
  static v1::Batch WriteBytes(const GraphPlace& place, std::string data);
  // Sets the memory of a tensor to 0.
  v1::Batch Clear(uint32_t tensor) const;
  // Copies the memory of a tensor from another place.
  v1::Batch Copy(uint32_t tensor, const GraphPlace& from) const;

  // The value of Read's result, without its elements.
  v1::GraphValue Describe(uint32_t tensor, absl::Span<const double> values) const;

 private:
  void FillColumn(uint32_t tensor, const graph::View& view, absl::Span<const double> values,
                  v1::BufferColumn* column) const;
  // `bytes` bytes of a buffer.
  static void FillBytes(const GraphPlace& place, uint64_t bytes, v1::BufferColumn* column);

  const graph::Graph& graph_;
  const std::vector<GraphPlace> places_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_TASKS_H_
