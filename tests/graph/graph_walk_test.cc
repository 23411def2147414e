// GraphWalk with many threads: random graphs, random delays, quanta that end anywhere. Each chunk
// is executed once in each step, after all predecessors of its node.
#include "kernels/graph/graph_walk.h"

#include <algorithm>
#include <atomic>
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

}  // namespace
}  // namespace resident
