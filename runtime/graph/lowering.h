// Lowering: from a checked graph to the image that an engine executes (kernels/graph/graph_task.h).
//
// Each node becomes a record with templates of its arguments, and patches for what depends on
// scalars. Streams add nodes: after the last write of a step, a node copies the record to where the
// front end reads it, with the operator `copy`. Which operators the rows of the table stand for is
// resolved for each quantum, so that the image does not change when versions do.
//
// Thread safety: immutable after its construction.
//
// For a gang, the image has a schedule too (schedule.h).
//
//   const Lowering lowering(checked, StreamRecords(checked.graph, streams), /*gang=*/{});
//   ... allocate lowering.image_bytes() and lowering.state_bytes() ...
//   const std::string image = lowering.Image(addresses);
#ifndef RESIDENT_RUNTIME_GRAPH_LOWERING_H_
#define RESIDENT_RUNTIME_GRAPH_LOWERING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/graph/graph_task.h"
#include "runtime/graph/check.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/schedule.h"
#include "runtime/model/split_rule.h"

namespace resident::graph {

// The streams whose records are sent. A record is copied after all nodes that write memory of its
// stream, which are found once for each run.
class StreamRecords {
 public:
  // No streams.
  StreamRecords() = default;
  // `streams`: tensors of the graph.
  StreamRecords(const Graph& graph, std::vector<uint32_t> streams);

  const std::vector<uint32_t>& streams() const { return streams_; }
  // The nodes that write memory of streams()[i], in their order.
  const std::vector<uint32_t>& writers(size_t i) const { return writers_[lists_[i]]; }

 private:
  std::vector<uint32_t> streams_;
  // By stream: index in `writers_`, which has a list for each root.
  std::vector<size_t> lists_;
  std::vector<std::vector<uint32_t>> writers_;
};

class Lowering {
 public:
  // The operator that copies records.
  static constexpr char kCopyOperator[] = "copy";

  // Whether the front end's planner accepts the strides of everything that nodes write. It refuses
  // negative ones, and some that interleave (runtime/model/strided_view.h), and so must a run whose
  // nodes are not planned.
  static bool HasTaskStrides(const Graph& graph);

  // The gang that an image is for.
  struct Gang {
    // The most members; 0: no gang.
    uint32_t workers = 0;
    // How kCopyOperator is split. The other operators are taken to be split as when the graph was
    // checked.
    SplitRule copy_split = {};
  };

  // Bytes of the image, about; nullopt: it is over the limits kMaxImageNodes, kMaxImageBytes or
  // kMaxRunDependencies. `gang_workers` as Gang::workers.
  static std::optional<uint64_t> EstimateBytes(const CheckedGraph& checked,
                                               const StreamRecords& records, uint32_t gang_workers);

  // `checked` must outlive this object. REQUIRES: EstimateBytes has a value.
  Lowering(const CheckedGraph& checked, const StreamRecords& records, const Gang& gang);

  // The limits kMaxImageNodes and kMaxImageBytes apply to the first two.
  uint64_t nodes() const { return nodes_.size(); }
  uint64_t image_bytes() const { return header_.bytes; }
  uint64_t state_bytes() const {
    return gang() == 0 ? GraphStateBytes(nodes())
                       : GangStateBytes(operator_rows(), gang(), nodes());
  }
  // Members of the gang that executes it, as few as the graph can use; 0: no gang.
  uint32_t gang() const { return header_.gang; }

  // Rows of the table of operators: first those of Graph::operators, then, if there are streams,
  // kCopyOperator.
  uint32_t operator_rows() const { return header_.operators; }
  // By node: its row. Nodes from Graph::nodes.size() on copy records.
  const std::shared_ptr<const std::vector<uint32_t>>& rows() const { return rows_; }

  // Bytes of the records of a step, and where those of each stream begin.
  uint64_t record_bytes() const { return record_bytes_; }
  const std::vector<uint64_t>& record_offsets() const { return record_offsets_; }

  // `addresses`: by tensor, of the memory of each root. REQUIRES: within the limits.
  std::string Image(absl::Span<const uint64_t> addresses) const;
  // GraphImage::streams of that image.
  u32 CountStreams(absl::Span<const uint64_t> addresses) const {
    return HasAlignedRoots(addresses) ? header_.streams : 0;
  }

 private:
  void AddNode(const Node& node);
  // Appends an argument to the last node. `root`: the tensor to whose address its own is relative.
  resident::Argument& AddArgument(uint32_t root);
  void AddTensor(uint32_t root, const View& view);
  void AddAbsentTensor(DType dtype);
  void AddScalar(const Argument& argument, DType dtype);
  // Appends a patch of the last argument.
  void AddPatch(const GraphPatch& patch);
  void AddRecord(uint32_t stream);
  // Sets predecessors, successors and roots. Returns the predecessors of all nodes, one node after
  // the other.
  std::vector<uint32_t> Link(const StreamRecords& records);
  void AddSchedule(absl::Span<const uint32_t> streams, absl::Span<const uint32_t> predecessors,
                   const Gang& gang);
  // Sets the streams of nodes that all members execute, if the graph has a gang.
  void AddStreams();
  void AddLoop();
  void LayOut();
  // Whether the roots of the tensors of nodes with streams begin at multiples of kStreamAlignment.
  bool HasAlignedRoots(absl::Span<const uint64_t> addresses) const;

  const Graph& graph_;
  const Dependencies& order_;
  GraphImage header_{};
  std::vector<GraphNode> nodes_;
  std::vector<resident::Argument> arguments_;
  // By argument: the tensor to whose address its own is relative; kNone: none.
  std::vector<uint32_t> relative_to_;
  std::vector<GraphPatch> patches_;
  std::vector<uint32_t> successors_;
  std::vector<uint32_t> roots_;
  std::vector<GraphUpdate> updates_;
  std::vector<int64_t> stop_values_;
  // Empty without a gang.
  Schedule schedule_;
  // The addresses of their matrices are those of the arguments from this one of their node on.
  std::vector<GraphStream> streams_;
  std::vector<uint32_t> stream_matrices_;
  std::shared_ptr<const std::vector<uint32_t>> rows_;
  uint64_t record_bytes_ = 0;
  std::vector<uint64_t> record_offsets_;
};

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_LOWERING_H_
