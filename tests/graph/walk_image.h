// Random graphs in the form of an image (kernels/graph/graph_task.h), and a record of what was
// executed, for the tests of GraphWalk and GangWalk.
//
// In step s scalar 0 is 2 * s, and scalar 1 is 1 or 5. The arguments of each node are a tensor,
// whose size may be scalar 1, a value that depends on scalar 0, and a record. The number of chunks
// of many nodes depends on the size.
//
// Thread safety: an image does not change while it is executed. ExecutionRecord is thread-safe. It
// adds no order between threads: if the walk does not order the chunks of a node before those of
// its successors, ThreadSanitizer reports a data race.
//
//   const WalkImage image(random, {.gang = 3});
//   ExecutionRecord record(image);
//   record.Execute(node, chunk, chunks, step);       for each chunk, in any thread
//   record.ExpectSteps(20);
#ifndef RESIDENT_TESTS_GRAPH_WALK_IMAGE_H_
#define RESIDENT_TESTS_GRAPH_WALK_IMAGE_H_

#include <atomic>
#include <random>
#include <vector>

#include "kernels/graph/graph_task.h"
#include "kernels/layout/task.h"

namespace resident::testing {

struct WalkImageOptions {
  // Members of the gang; 0: an image for GraphWalk.
  u32 gang = 0;
  // Whether all nodes signal their end, not only those for which a member waits.
  bool all_signal = false;
  // Whether some nodes that all members execute have streams.
  bool streams = false;
  u32 max_nodes = 60;
};

class WalkImage {
 public:
  // The workers of the engine, on which the number of chunks depends.
  static constexpr u32 kWorkers = 4;
  static constexpr u32 kMaxChunks = 5;
  static constexpr u64 kRecordBytes = 4096;

  WalkImage(std::mt19937& random, const WalkImageOptions& options);

  u64 address() const { return reinterpret_cast<u64>(lines_.data()); }
  // Tests may change the header, except for the offsets, and the update of scalar 0.
  GraphImage& header() { return *reinterpret_cast<GraphImage*>(lines_.data()); }
  const GraphImage& header() const { return *reinterpret_cast<const GraphImage*>(lines_.data()); }
  GraphUpdate& update() { return Part<GraphUpdate>(header().updates_at)[0]; }
  // The value that stops the loop; the caller sets where the element is.
  void SetStopValue(i64 value) {
    header().stop_values = 1;
    Part<i64>(header().stop_values_at)[0] = value;
  }
  // The table of operators, in which `tasks` and `ns` are 0.
  const std::vector<GraphOperator>& operators() const { return operators_; }
  // Sets the scalars at the beginning of a step.
  static void SetScalars(u64 step, double* scalars);

  u32 nodes() const { return header().nodes; }
  const GraphNode& node(u32 node) const { return Part<GraphNode>(header().nodes_at)[node]; }
  const std::vector<u32>& predecessors(u32 node) const { return predecessors_[node]; }
  u32 CountChunks(u32 node, u64 step) const;
  bool HasStream(u32 node) const { return this->node(node).stream != 0; }
  // Checks that these are the arguments of the node in a step. `record`: address of the records of
  // this step.
  void ExpectArguments(u32 node, u64 step, u64 record, const ArgumentBlock& block) const;

  // Of an image for a gang.
  const GangNode& gang_node(u32 node) const { return Part<GangNode>(header().gang_nodes_at)[node]; }
  std::vector<u32> FindMembers(u32 node) const;
  const GraphStream& stream(u32 index) const {
    return Part<GraphStream>(header().streams_at)[index];
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };

  template <typename T>
  const T* Part(u64 at) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(lines_.data()) + at);
  }
  template <typename T>
  T* Part(u64 at) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(lines_.data()) + at);
  }

  void AddNodes(std::mt19937& random);
  void AddGang(std::mt19937& random, bool all_signal);
  void AddStreams(std::mt19937& random);

  std::vector<std::vector<u32>> predecessors_;
  std::vector<GraphOperator> operators_;
  // By node: whether the size of its tensor is scalar 1.
  std::vector<bool> resized_;
  std::vector<Line> lines_;
};

class ExecutionRecord {
 public:
  // `image` must outlive the record.
  explicit ExecutionRecord(const WalkImage& image);

  // Executes a chunk in a step: it must be the first time, after all predecessors of the node.
  // `chunks`: those of the node, according to the walk.
  void Execute(u32 node, u32 chunk, u32 chunks, u64 step);
  // Whether all chunks of a node were executed in this step.
  bool HasEnded(u32 node, u64 step) const {
    return ended_[node].load(std::memory_order_relaxed) == step + 1;
  }
  // Checks that exactly the steps before this one were executed.
  void ExpectSteps(u64 steps) const;

 private:
  // Of a chunk: the step in which it was executed last, plus 1, with which the walk orders nothing,
  // and the same without an atomic access.
  struct Chunk {
    std::atomic<u64> step{0};
    u64 result = 0;
  };

  const WalkImage& image_;
  // By node: chunks executed in the present step, and the last step in which all were, plus 1.
  std::vector<std::atomic<u32>> executed_;
  std::vector<std::atomic<u64>> ended_;
  std::vector<std::vector<Chunk>> chunks_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_WALK_IMAGE_H_
