// GraphWalk with many threads: random graphs, random delays, quanta that end anywhere. Each chunk
// is executed once in each step, after all predecessors of its node.
#include "kernels/graph/graph_walk.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace resident {
namespace {

constexpr u32 kWorkers = 4;

// A random graph in the form of an image, and what was executed.
class Walked {
 public:
  explicit Walked(std::mt19937& random) {
    nodes_ = 1 + random() % 60;
    predecessors_.resize(nodes_);
    std::vector<std::vector<u32>> successors(nodes_);
    for (u32 node = 1; node < nodes_; ++node) {
      for (u32 i = random() % 4; i > 0; --i) {
        const u32 before = random() % node;
        std::vector<u32>& of_node = predecessors_[node];
        if (std::find(of_node.begin(), of_node.end(), before) != of_node.end()) continue;
        of_node.push_back(before);
        successors[before].push_back(node);
      }
    }
    u64 at = sizeof(GraphImage);
    const auto place = [&](u64 bytes) {
      const u64 begin = (at + 63) / 64 * 64;
      at = begin + bytes;
      return begin;
    };
    GraphImage header{};
    header.magic = kGraphMagic;
    header.layout_hash = GraphLayoutHash();
    header.nodes = nodes_;
    header.scalars = 1;
    header.updates = 1;
    header.nodes_at = place(nodes_ * sizeof(GraphNode));
    header.arguments_at = place(nodes_ * sizeof(Argument));
    header.successors_at = place(4 * nodes_ * sizeof(u32));
    header.roots_at = place(nodes_ * sizeof(u32));
    header.updates_at = place(sizeof(GraphUpdate));
    image_.resize(at / sizeof(Line) + 1);
    u32 total = 0;
    for (u32 node = 0; node < nodes_; ++node) {
      GraphNode& record = Part<GraphNode>(header.nodes_at)[node];
      record.op = random() % 2;
      record.first_argument = node;
      record.arguments = 1;
      record.first_successor = total;
      record.successors = static_cast<u32>(successors[node].size());
      record.predecessors = static_cast<u32>(predecessors_[node].size());
      TensorArgument& tensor = Part<Argument>(header.arguments_at)[node].tensor;
      tensor.rank = 1;
      tensor.shape[0] = 1 + random() % 5;
      chunks_.push_back(record.op == 0 ? 1 : static_cast<u32>(tensor.shape[0]));
      for (const u32 after : successors[node]) Part<u32>(header.successors_at)[total++] = after;
      if (record.predecessors == 0) Part<u32>(header.roots_at)[header.roots++] = node;
    }
    Part<GraphUpdate>(header.updates_at)[0] = {0, 0, 1, 2, 0, 1e9};
    std::memcpy(image_.data(), &header, sizeof(header));
    state_.resize(GraphStateBytes(nodes_) / sizeof(Line) + 1);
    operators_[1].split_parameter = 0;
    ended_ = std::vector<std::atomic<u64>>(nodes_);
    executed_.resize(nodes_);
    for (u32 node = 0; node < nodes_; ++node) {
      executed_[node] = std::vector<std::atomic<u64>>(chunks_[node]);
    }
  }

  // Executes a quantum; returns it. `pauses`: whether it ends at a random time.
  GraphQuantum Run(u64 first_step, u64 last_step, u32 max_steps, bool fresh, bool pauses,
                   std::mt19937& random) {
    quantum_ = GraphQuantum{};
    quantum_.fresh = fresh;
    quantum_.first_step = first_step;
    quantum_.last_step = last_step;
    quantum_.max_steps = max_steps;
    quantum_.operators = reinterpret_cast<u64>(operators_.data());
    quantum_.scalars[0] = 2 * static_cast<double>(first_step);
    GraphDescriptor descriptor{};
    descriptor.image = reinterpret_cast<u64>(image_.data());
    descriptor.state = reinterpret_cast<u64>(state_.data());
    descriptor.quantum = reinterpret_cast<u64>(&quantum_);
    EXPECT_TRUE(GraphWalk::IsValid(descriptor));
    GraphWalk(descriptor, kWorkers).Begin();
    std::vector<std::thread> threads;
    for (u32 w = 0; w < kWorkers; ++w) {
      threads.emplace_back([&, seed = random()] { Work(descriptor, pauses, seed); });
    }
    for (std::thread& thread : threads) thread.join();
    GraphWalk(descriptor, kWorkers).Conclude();
    return quantum_;
  }

  void ExpectExecuted(u64 steps) const {
    for (u32 node = 0; node < nodes_; ++node) {
      EXPECT_EQ(ended_[node], steps) << "node " << node;
      for (const auto& chunk : executed_[node]) EXPECT_EQ(chunk, steps) << "node " << node;
    }
  }

 private:
  struct alignas(64) Line {
    unsigned char bytes[64];
  };

  template <typename T>
  T* Part(u64 at) {
    return reinterpret_cast<T*>(reinterpret_cast<unsigned char*>(image_.data()) + at);
  }

  void Work(const GraphDescriptor& descriptor, bool pauses, u32 seed) {
    std::minstd_rand random(seed);
    GraphWalk walk(descriptor, kWorkers);
    while (!walk.leaving()) {
      GraphChunk chunk;
      if (!walk.Take(&chunk)) {
        std::this_thread::yield();
        continue;
      }
      while (chunk.chunks != 0) {
        GraphChunk next;
        bool more_ready = false;
        Execute(walk, chunk, random);
        walk.Finish(chunk, 0, &next, &more_ready);
        if (pauses && random() % 50 == 0) walk.Leave();
        if (next.chunks != 0 && (walk.leaving() || random() % 4 == 0)) {
          walk.GiveBack(next);
          next = GraphChunk();
        }
        chunk = next;
      }
    }
  }

  void Execute(const GraphWalk& walk, const GraphChunk& chunk, std::minstd_rand& random) {
    const u64 step = quantum_.first_step + walk.step();
    EXPECT_EQ(chunk.chunks, chunks_[chunk.node]);
    EXPECT_LT(chunk.chunk, chunk.chunks);
    for (const u32 before : predecessors_[chunk.node]) {
      EXPECT_EQ(ended_[before], step + 1) << "node " << chunk.node << " after " << before;
    }
    if (random() % 8 == 0) std::this_thread::yield();
    EXPECT_EQ(executed_[chunk.node][chunk.chunk]++, step) << "node " << chunk.node;
    // Before Finish, because the successors may start within it.
    u64 sum = 0;
    for (const auto& each : executed_[chunk.node]) sum += each;
    if (sum == chunk.chunks * (step + 1)) ended_[chunk.node] = step + 1;
  }

  u32 nodes_ = 0;
  std::vector<std::vector<u32>> predecessors_;
  std::vector<u32> chunks_;
  std::vector<Line> image_;
  std::vector<Line> state_;
  std::vector<GraphOperator> operators_{2, {0, -1, 0, 0, 1, kMaxTaskChunks, 0, 0}};
  GraphQuantum quantum_{};
  std::vector<std::atomic<u64>> ended_;
  std::vector<std::vector<std::atomic<u64>>> executed_;
};

TEST(GraphWalkTest, EachChunkIsExecutedOnceInEachStepInOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    Walked graph(random);
    const GraphQuantum quantum = graph.Run(0, 20, kMaxQuantumSteps, true, false, random);
    EXPECT_EQ(quantum.end, static_cast<u32>(GraphEnd::kSteps));
    EXPECT_EQ(quantum.steps, 20u);
    EXPECT_EQ(quantum.in_step, 0u);
    graph.ExpectExecuted(20);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(GraphWalkTest, QuantaMayEndAnywhere) {
  std::mt19937 random(8);
  uint64_t within_steps = 0;
  for (int round = 0; round < 60; ++round) {
    Walked graph(random);
    u64 steps = 0;
    bool fresh = true;
    while (true) {
      const GraphQuantum quantum = graph.Run(steps, 15, 4, fresh, true, random);
      steps += quantum.steps;
      fresh = quantum.in_step == 0;
      within_steps += !fresh;
      if (quantum.end == static_cast<u32>(GraphEnd::kSteps)) break;
      ASSERT_EQ(quantum.end, static_cast<u32>(GraphEnd::kQuantum));
      ASSERT_LE(quantum.steps, 4u);
    }
    EXPECT_EQ(steps, 15u);
    graph.ExpectExecuted(15);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(within_steps, 10u);
}

// One node of two chunks in a loop, whose state tests change by hand.
class TwoChunks {
 public:
  explicit TwoChunks(u32 abort = 0) {
    memory_.image.magic = kGraphMagic;
    memory_.image.layout_hash = GraphLayoutHash();
    memory_.image.nodes = memory_.image.roots = 1;
    memory_.image.nodes_at = offsetof(Memory, node);
    memory_.image.arguments_at = offsetof(Memory, argument);
    memory_.image.successors_at = memory_.image.roots_at = offsetof(Memory, root);
    memory_.argument.tensor.rank = 1;
    memory_.argument.tensor.shape[0] = 2;
    memory_.op = {0, 0, 0, 0, 1, kMaxTaskChunks, 0, 0};
    memory_.quantum.abort = abort;
    memory_.quantum.fresh = 1;
    memory_.quantum.max_steps = 10;
    memory_.quantum.last_step = 10;
    memory_.quantum.operators = reinterpret_cast<u64>(&memory_.op);
    descriptor_.image = reinterpret_cast<u64>(&memory_.image);
    descriptor_.state = reinterpret_cast<u64>(&memory_.state);
    descriptor_.quantum = reinterpret_cast<u64>(&memory_.quantum);
    walk().Begin();
  }

  GraphWalk walk() const { return GraphWalk(descriptor_, 2); }
  GraphQuantum& quantum() { return memory_.quantum; }
  GraphNodeState& node() { return memory_.node_state; }
  GraphChunk Take() {
    GraphChunk chunk;
    EXPECT_TRUE(walk().Take(&chunk));
    return chunk;
  }
  void Finish(const GraphChunk& chunk) {
    GraphChunk next;
    bool more_ready = false;
    walk().Finish(chunk, 0, &next, &more_ready);
    EXPECT_EQ(next.chunks, 0u);
  }

 private:
  struct Memory {
    GraphImage image;
    GraphNode node;
    Argument argument;
    u32 root;
    GraphOperator op;
    GraphState state;
    GraphNodeState node_state;
    u64 ready[1];
    GraphQuantum quantum;
  };
  Memory memory_{};
  GraphDescriptor descriptor_{};
};

// A worker that has read the head, and takes the last chunk only after others have moved the head,
// does not move it again. The entry at the head is replaced by the node's next one.
TEST(GraphWalkTest, AWorkerThatWasDelayedWhileItTookAChunk) {
  TwoChunks graph;
  for (int step = 0; step < 5; ++step) {
    const GraphChunk first = graph.Take();
    EXPECT_EQ(first.chunk, 0u);
    // The delayed worker takes the other chunk without a change of the head.
    ASSERT_EQ(graph.node().unclaimed, 1u);
    graph.node().unclaimed = 0;
    graph.Finish(first);
    graph.Finish({0, 1, 2});
    ASSERT_EQ(graph.quantum().steps, static_cast<u32>(step + 1));
  }
}

// A run that is aborted between two steps is not within a step.
TEST(GraphWalkTest, AnAbortBetweenTwoSteps) {
  TwoChunks graph;
  const GraphChunk first = graph.Take();
  const GraphChunk second = graph.Take();
  graph.quantum().abort = 1;
  graph.Finish(first);
  graph.Finish(second);
  EXPECT_TRUE(graph.walk().leaving());
  graph.walk().Conclude();
  EXPECT_EQ(graph.quantum().end, static_cast<u32>(GraphEnd::kAborted));
  EXPECT_EQ(graph.quantum().steps, 1u);
  EXPECT_EQ(graph.quantum().in_step, 0u);

  TwoChunks aborted_before(/*abort=*/1);
  EXPECT_TRUE(aborted_before.walk().leaving());
  aborted_before.walk().Conclude();
  EXPECT_EQ(aborted_before.quantum().end, static_cast<u32>(GraphEnd::kAborted));
  EXPECT_EQ(aborted_before.quantum().in_step, 0u);
}

}  // namespace
}  // namespace resident
