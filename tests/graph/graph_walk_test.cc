// GraphWalk with many threads: random graphs, random delays, quanta that end anywhere. Each chunk
// is executed once in each step, after all predecessors of its node.
#include "kernels/graph/graph_walk.h"

#include <cstddef>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/graph/walk_image.h"

namespace resident {
namespace {

using testing::ExecutionRecord;
using testing::WalkImage;

constexpr u32 kWorkers = WalkImage::kWorkers;

// A random graph, and what was executed.
class Walked {
 public:
  explicit Walked(std::mt19937& random) : image_(random, {}), operators_(image_.operators()) {
    state_.resize(GraphStateBytes(image_.nodes()) / sizeof(GraphState) + 1);
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
    quantum_.records = 1 << 20;
    quantum_.record_bytes = WalkImage::kRecordBytes;
    WalkImage::SetScalars(first_step, quantum_.scalars);
    GraphDescriptor descriptor{};
    descriptor.image = image_.address();
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

  void ExpectExecuted(u64 steps) const { record_.ExpectSteps(steps); }

 private:
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
    ArgumentBlock block{};
    walk.FillArguments(chunk, &block);
    image_.ExpectArguments(chunk.node, step, quantum_.records + walk.step() * quantum_.record_bytes,
                           block);
    if (random() % 8 == 0) std::this_thread::yield();
    record_.Execute(chunk.node, chunk.chunk, chunk.chunks, step);
  }

  const WalkImage image_;
  ExecutionRecord record_{image_};
  // Begins with the GraphState, of whose size and alignment the elements are.
  std::vector<GraphState> state_;
  std::vector<GraphOperator> operators_;
  GraphQuantum quantum_{};
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
    memory_.op = {0, 0, 0, 0, 1, kMaxTaskChunks, -1, 0, 0, 0};
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
