// Lowered graphs, executed by gangs of threads with the operators of the CPU engine: the memory and
// the records equal those of GraphWalk bit for bit, and what an interpreter in float64 expects.
//
//   RESIDENT_GRAPHS=10000 bazel-bin/tests/graph/lowered_gang_test     Default: 400.
//   RESIDENT_GRAPH_SEED=7                                             Default: 1.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/graph/gang_walk.h"
#include "kernels/graph/graph_walk.h"
#include "kernels/ops/builtin.h"
#include "kernels/ops/jump_table.h"
#include "kernels/sdk/operator.h"
#include "runtime/graph/lowering.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/checked_graph.h"
#include "tests/graph/host_gang.h"
#include "tests/graph/interpreter.h"
#include "tests/graph/runnable_graph.h"

namespace resident::testing {
namespace {

// Of the engine: the number of chunks depends on it.
constexpr u32 kWorkers = 8;
constexpr u64 kNoLimit = u64{1} << 60;

uint64_t ReadEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Executes a chunk as the CPU engine does. Returns its CompletionStatus | detail << 16.
u32 ExecuteChunk(u32 operator_slot, u32 argument_count, const ArgumentBlock& arguments, u64 chunk,
                 u64 chunks) {
  // What each thread of the engine has.
  thread_local const auto state = std::make_unique<BlockState>();
  thread_local const std::unique_ptr<unsigned char[]> scratch(new unsigned char[kScratchBytes]);
  state->scratch = scratch.get();
  state->descriptor = {};
  state->descriptor.operator_slot = static_cast<u16>(operator_slot);
  state->descriptor.set_argument_count(argument_count);
  state->arguments = arguments;
  state->chunk = chunk;
  state->chunk_count = chunks;
  state->status_and_detail = 0;
  FindBuiltinFunction(operator_slot, /*test_operators=*/false)(state.get());
  return state->status_and_detail;
}

struct alignas(128) Line {
  unsigned char bytes[128];
};
using Lines = std::vector<Line>;
Lines MakeLines(uint64_t bytes, unsigned char value) {
  Lines lines(bytes / sizeof(Line) + 1);
  std::memset(static_cast<void*>(lines.data()), value, lines.size() * sizeof(Line));
  return lines;
}
u64 AddressOf(const Lines& lines) { return reinterpret_cast<u64>(lines.data()); }

// A run of a graph: its memory, and what the engine gets.
class LoweredRun {
 public:
  // `gang`: the most members of a gang; 0: for GraphWalk. All arguments must outlive the run.
  LoweredRun(const graph::CheckedGraph& checked, const std::vector<uint32_t>& streams,
             const v1::RunGraphRequest& request, u32 gang, const SplitRule& copy_split)
      : graph_(checked.graph),
        lowering_(checked, graph::StreamRecords(checked.graph, streams),
                  {.workers = gang, .copy_split = copy_split}) {
    std::vector<uint64_t> addresses;
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      // Elements that were never written are not numbers. A state is initially 0.
      const bool is_state = graph_.tensors[i].kind == graph::TensorKind::kState;
      memory_.push_back(
          MakeLines(static_cast<uint64_t>(graph_.root_bytes[i]), is_state ? 0 : 0xff));
      addresses.push_back(AddressOf(memory_.back()));
    }
    for (const v1::GraphBinding& binding : request.bindings()) {
      std::memcpy(At(FindTensor(binding.tensor())), binding.data().data(), binding.data().size());
    }
    const std::string image = lowering_.Image(addresses);
    image_ = MakeLines(image.size(), 0);
    std::memcpy(image_.data(), image.data(), image.size());
    // The state is not initialized.
    state_ = MakeLines(lowering_.state_bytes(), 0xa5);
    last_step_ = graph_.loop.has_value() ? graph_.loop->max_steps : 1;
    if (request.max_steps() > 0) last_step_ = std::min<u64>(last_step_, request.max_steps());
    records_ = MakeLines(last_step_ * lowering_.record_bytes(), 0xff);
    for (const graph::OperatorInfo& op : graph_.operators) AddOperator(op.name, op.split);
    if (!streams.empty()) AddOperator(graph::Lowering::kCopyOperator, copy_split);
    for (const graph::Scalar& scalar : graph_.scalars) {
      const auto given = request.scalars().find(std::string(scalar.name));
      scalars_.push_back(given == request.scalars().end() ? *scalar.initial : given->second);
    }
    descriptor_.image = AddressOf(image_);
    descriptor_.state = AddressOf(state_);
    descriptor_.quantum = reinterpret_cast<u64>(&quantum_);
    descriptor_.gang = lowering_.gang();
  }

  // Executes all steps, in quanta of a random length.
  void Run(std::mt19937_64& random) {
    ASSERT_LE(lowering_.gang(), kWorkers);
    do {
      Prepare(random() % 3 == 0 ? kNoLimit : random() % 200 * kTickNs);
      if (lowering_.gang() == 0) {
        ExecuteWalk();
      } else {
        EXPECT_EQ(ExecuteGang(), 0u);
      }
      steps_ += quantum_.steps;
      in_step_ = quantum_.in_step != 0;
      ends_within_steps_ += quantum_.in_step;
      for (const GraphOperator& row : operators_) tasks_ += row.tasks;
      // The front end computes the scalars as the engine does.
      for (u32 step = 0; step < quantum_.steps; ++step) UpdateScalars();
    } while (quantum_.end == static_cast<u32>(GraphEnd::kQuantum));
    EXPECT_EQ(in_step_, false);
  }

  u32 gang() const { return lowering_.gang(); }
  u64 steps() const { return steps_; }
  // Tasks that ended, according to the gang.
  u64 tasks() const { return tasks_; }
  u64 nodes() const { return lowering_.nodes(); }
  // Quanta that ended within a step.
  u64 ends_within_steps() const { return ends_within_steps_; }
  GraphEnd end() const { return static_cast<GraphEnd>(quantum_.end); }

  // Compares the memory of all tensors, and the records.
  void ExpectSameBits(const LoweredRun& other) const {
    for (size_t i = 0; i < memory_.size(); ++i) ExpectSame(memory_[i], other.memory_[i], i);
    ExpectSame(records_, other.records_, memory_.size());
  }

  // Compares an output, or the record of stream `index` in a step.
  void ExpectOutput(const ExpectedValue& expected) const {
    ExpectValue(expected, At(FindTensor(expected.tensor)));
  }
  void ExpectRecord(const ExpectedValue& expected, u64 step, size_t index) const {
    ExpectValue(expected, Bytes(records_) + step * lowering_.record_bytes() +
                              lowering_.record_offsets()[index]);
  }

 private:
  static unsigned char* Bytes(const Lines& lines) {
    return reinterpret_cast<unsigned char*>(AddressOf(lines));
  }
  uint32_t FindTensor(const std::string& name) const {
    for (uint32_t i = 0; i < graph_.tensors.size(); ++i) {
      if (graph_.tensors[i].name == name) return i;
    }
    ADD_FAILURE() << name;
    return 0;
  }
  unsigned char* At(uint32_t tensor) const {
    const graph::Tensor& record = graph_.tensors[tensor];
    return Bytes(memory_[record.root]) + record.view.offset;
  }

  void AddOperator(const std::string& name, const SplitRule& split) {
    operators_.push_back({.slot = *FindBuiltinSlot(name),
                          .split_parameter = split.parameter,
                          .by_first_dim = split.by_first_dim,
                          .starts_early = 0,
                          .grain = split.grain,
                          .limit = split.limit,
                          .other_parameter = split.other_parameter,
                          .other_grain = split.other_grain,
                          .tasks = 0,
                          .ns = 0});
  }

  void Prepare(u64 budget_ns) {
    quantum_ = GraphQuantum{};
    quantum_.fresh = in_step_ ? 0 : 1;
    quantum_.first_step = steps_;
    quantum_.last_step = last_step_;
    quantum_.max_steps = 2;
    quantum_.budget_ns = budget_ns;
    for (GraphOperator& row : operators_) row.tasks = row.ns = 0;
    quantum_.operators = reinterpret_cast<u64>(operators_.data());
    quantum_.records = AddressOf(records_) + steps_ * lowering_.record_bytes();
    quantum_.record_bytes = lowering_.record_bytes();
    std::copy(scalars_.begin(), scalars_.end(), quantum_.scalars);
  }

  void UpdateScalars() {
    if (!graph_.loop.has_value()) return;
    const std::vector<double> before = scalars_;
    for (const graph::Loop::Update& update : graph_.loop->updates) {
      scalars_[update.scalar] = std::fma(update.factor, before[update.scalar], update.addend);
    }
  }

  u32 ExecuteGang() {
    const auto start = [](u32) {};
    return RunGang(descriptor_, kWorkers, start, [](const GangCall& call) {
      u32 status = 0;
      for (u32 chunk = call.first_chunk; chunk < call.chunks && status == 0; chunk += call.stride) {
        status = ExecuteChunk(call.operator_slot, call.argument_count, call.arguments, chunk,
                              call.chunks);
      }
      return status;
    });
  }

  void ExecuteWalk() {
    GraphWalk walk(descriptor_, kWorkers);
    walk.Begin();
    ArgumentBlock arguments{};
    for (GraphChunk chunk; !walk.leaving() && walk.Take(&chunk);) {
      while (chunk.chunks != 0) {
        walk.FillArguments(chunk, &arguments);
        const u32 status = ExecuteChunk(walk.op(chunk).slot, walk.node(chunk).arguments, arguments,
                                        chunk.chunk, chunk.chunks);
        EXPECT_EQ(status, 0u);
        GraphChunk next;
        bool more_ready = false;
        walk.Finish(chunk, status, &next, &more_ready);
        chunk = next;
      }
    }
    walk.Conclude();
  }

  void ExpectSame(const Lines& a, const Lines& b, size_t tensor) const {
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(Line)), 0)
        << (tensor < memory_.size() ? graph_.TensorName(static_cast<uint32_t>(tensor)) : "records");
  }

  // Of a tensor whose elements are adjacent.
  static void ExpectValue(const ExpectedValue& expected, const unsigned char* data) {
    v1::GraphValue value;
    value.set_tensor(expected.tensor);
    value.set_dtype(expected.dtype);
    for (const uint64_t size : expected.shape) value.add_shape(size);
    const size_t bytes =
        expected.values.size() * static_cast<size_t>(SizeOf(static_cast<DType>(expected.dtype)));
    value.set_data(std::string(reinterpret_cast<const char*>(data), bytes));
    EXPECT_EQ(FindDifference(value, expected), "");
  }

  const graph::Graph& graph_;
  const graph::Lowering lowering_;
  // By tensor; that of a root is used.
  std::vector<Lines> memory_;
  Lines image_;
  Lines state_;
  Lines records_;
  std::vector<GraphOperator> operators_;
  std::vector<double> scalars_;
  GraphDescriptor descriptor_{};
  GraphQuantum quantum_{};
  u64 last_step_ = 0;
  u64 steps_ = 0;
  u64 tasks_ = 0;
  bool in_step_ = false;
  u64 ends_within_steps_ = 0;
};

void ExpectInterpretation(const LoweredRun& run, const v1::RunGraphRequest& request) {
  const Interpretation expected = Interpret(request);
  ASSERT_EQ(run.steps(), expected.steps);
  EXPECT_EQ(run.end() == GraphEnd::kSteps, expected.end == v1::GraphResult::END_STEPS);
  EXPECT_EQ(run.end() == GraphEnd::kStop, expected.end == v1::GraphResult::END_STOP);
  for (const ExpectedValue& output : expected.outputs) run.ExpectOutput(output);
  for (u64 step = 0; step < expected.records.size(); ++step) {
    for (size_t i = 0; i < expected.records[step].size(); ++i) {
      run.ExpectRecord(expected.records[step][i], step, i);
    }
  }
}

TEST(LoweredGangTest, EqualsTheWalkAndTheInterpreter) {
  const BuiltinCatalog catalog;
  const uint64_t count = ReadEnvironment("RESIDENT_GRAPHS", 400);
  const uint64_t first = ReadEnvironment("RESIDENT_GRAPH_SEED", 1);
  uint64_t runs = 0;
  uint64_t members = 0;
  uint64_t nodes = 0;
  uint64_t ends_within_steps = 0;
  for (uint64_t seed = first; seed < first + count && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const v1::RunGraphRequest request =
        MakeRunnableGraph(random, 5 + static_cast<int>(random() % 150));
    std::optional<graph::CheckedGraph> checked = CheckBuiltinGraph(request.graph());
    ASSERT_TRUE(checked.has_value());
    graph::Graph& graph = checked->graph;
    if (!graph::Lowering::HasTaskStrides(graph)) continue;
    SplitRule copy_split = catalog.Find(graph::Lowering::kCopyOperator, 0)->split;
    // The tensors are small: in half of the graphs each operator has a chunk for each element or
    // row, so that several members execute a node.
    if (seed % 2 == 0) {
      copy_split.grain = 1;
      for (graph::OperatorInfo& op : graph.operators) {
        if (op.split.parameter >= 0) op.split.grain = 1;
      }
    }
    std::vector<uint32_t> streams;
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].kind == graph::TensorKind::kStream) streams.push_back(i);
    }
    LoweredRun walk(*checked, streams, request, /*gang=*/0, copy_split);
    walk.Run(random);
    ExpectInterpretation(walk, request);
    for (const u32 max_gang : {1u, 3u, 8u}) {
      SCOPED_TRACE(absl::StrCat("gang of ", max_gang));
      LoweredRun gang(*checked, streams, request, max_gang, copy_split);
      gang.Run(random);
      EXPECT_GE(gang.gang(), 1u);
      EXPECT_LE(gang.gang(), max_gang);
      EXPECT_EQ(gang.end(), walk.end());
      EXPECT_EQ(gang.steps(), walk.steps());
      EXPECT_EQ(gang.tasks(), gang.steps() * gang.nodes());
      gang.ExpectSameBits(walk);
      ++runs;
      members += gang.gang();
      nodes += gang.nodes() * gang.steps();
      ends_within_steps += gang.ends_within_steps();
    }
  }
  std::cout << runs << " runs of " << members << " members in all, " << nodes
            << " nodes in all steps; " << ends_within_steps << " quanta ended within steps\n";
  // Most graphs can use more than one member.
  EXPECT_GT(members, 2 * runs);
  EXPECT_GT(runs, count);
  EXPECT_GT(ends_within_steps, count);
}

}  // namespace
}  // namespace resident::testing
