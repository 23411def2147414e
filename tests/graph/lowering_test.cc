// The image of a graph: each node's arguments and chunks equal those of the task that the planner
// makes for the same node and values of the scalars.
//
//   RESIDENT_GRAPHS=100000 bazel-bin/tests/graph/lowering_test     Default: 2,000.
//   RESIDENT_GRAPH_SEED=7                                          Default: 1.
#include "runtime/graph/lowering.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/graph/graph_arguments.h"
#include "runtime/device/fake_device.h"
#include "runtime/graph/check.h"
#include "server/admission/admission.h"
#include "server/graphs/graph_tasks.h"
#include "server/workload/planner.h"
#include "tests/graph/checked_graph.h"
#include "tests/graph/graph_maker.h"
#include "tests/graph/random_graph.h"

namespace resident::testing {
namespace {

constexpr ClientId kClient = 1;
constexpr uint64_t kMemory = 64 << 20;

uint64_t ReadEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class LoweringTest : public ::testing::Test {
 protected:
  LoweringTest() : device_(0, kMemory, kMemory), registry_(*Registry::Create({})) {
    buffers_.AddOwner(kClient);
    admission_.AddDevice(kMemory);
  }

  static graph::CheckedGraph Check(const v1::Graph& message, bool* accepted) {
    std::optional<graph::CheckedGraph> checked = CheckBuiltinGraph(message);
    *accepted = checked.has_value();
    return *accepted ? *std::move(checked) : graph::CheckedGraph();
  }

  // A buffer for each root.
  void Allocate(const graph::Graph& graph) {
    places_.assign(graph.tensors.size(), GraphPlace());
    addresses_.assign(graph.tensors.size(), 0);
    for (size_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].root != i) continue;
      BufferSpec spec;
      spec.dtype = DType::kU8;
      spec.shape = {graph.root_bytes[i]};
      const auto buffer = buffers_.Allocate(spec, kClient, *device_.session());
      ASSERT_TRUE(buffer.ok()) << buffer.status();
      places_[i] = {(*buffer)->id, 0};
      addresses_[i] = (*buffer)->memory->address;
    }
  }
  void Free() {
    for (const GraphPlace& place : places_) {
      if (place.buffer == 0) continue;
      EXPECT_TRUE(buffers_.Free(kClient, place.buffer).ok());
    }
  }

  std::shared_ptr<RequestBatch> PlanTask(const v1::Batch& message) {
    const Planner planner({&limits_, registry_.get(), &buffers_, {&device_}});
    auto work = planner.Plan(message, kClient);
    if (!work.ok()) ADD_FAILURE() << work.status();
    if (!work.ok()) return nullptr;
    auto ticket = admission_.TryAcquire(account_, (*work)->ResourcesNeeded());
    if (!ticket.ok()) ADD_FAILURE() << ticket.status();
    if (!ticket.ok()) return nullptr;
    return Planner::Fill(message, Clock::time_point::max(), *std::move(work), *std::move(ticket));
  }

  // The arguments of the planner's task in the form of an argument block. A task in compact form
  // has none; its tensors are dense vectors.
  static std::vector<Argument> ArgumentsOf(const Batch& batch, const GraphNode& node,
                                           const Signature& signature, const ArgumentBlock& block) {
    if (batch.arguments_per_task != 0) return batch.arguments;
    std::vector<Argument> arguments;
    const TaskDescriptor& task = batch.tasks[0];
    for (u32 i = 0; i < node.arguments; ++i) {
      Argument argument = block.arguments[i];
      argument.scalar_bits = task.compact_argument(i);
      arguments.push_back(argument);
      if (signature.parameters()[i].scalar()) continue;
      // What the compact form leaves out.
      const TensorArgument& tensor = block.arguments[i].tensor;
      EXPECT_EQ(tensor.dtype, DType::kF32);
      i64 elements = 1;
      for (u32 d = tensor.rank; d-- > 0;) {
        EXPECT_EQ(tensor.strides[d], elements);
        elements *= tensor.shape[d];
      }
      EXPECT_EQ(static_cast<u64>(elements), task.elements());
    }
    return arguments;
  }

  // Compares all nodes; `values`: of the scalars.
  void Compare(const graph::CheckedGraph& checked, const std::vector<double>& values) {
    const graph::Graph& graph = checked.graph;
    const graph::Lowering lowering(checked, {}, {});
    const std::string bytes = lowering.Image(addresses_);
    const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
    ASSERT_EQ(image.nodes, graph.nodes.size());
    const GraphNode* const nodes = ImagePart<GraphNode>(image, image.nodes_at);
    const GraphTasks tasks(graph, places_);
    for (uint32_t i = 0; i < image.nodes; ++i) {
      const auto batch = PlanTask(tasks.Node(i, values));
      ASSERT_NE(batch, nullptr);
      const graph::OperatorInfo& op = graph.operators[graph.nodes[i].op];
      auto block = std::make_unique<ArgumentBlock>();
      FillNodeArguments(image, nodes[i], values.data(), 0, block.get());
      const auto expected = ArgumentsOf(*batch, nodes[i], op.signature, *block);
      ASSERT_EQ(nodes[i].arguments, expected.size()) << op.name;
      for (u32 a = 0; a < nodes[i].arguments; ++a) {
        Argument actual = block->arguments[a];
        // A tensor that is left out has no elements; its address means nothing.
        const bool absent =
            a < graph.nodes[i].argument_count &&
            graph.ArgumentsOf(graph.nodes[i])[a].kind == graph::Argument::Kind::kNoTensor;
        if (absent) actual.scalar_bits = expected[a].scalar_bits;
        EXPECT_EQ(std::memcmp(&actual, &expected[a], sizeof(Argument)), 0)
            << graph.NodeName(i) << " (" << op.name << "), argument " << a;
      }
      const GraphOperator row{.slot = 0,
                              .split_parameter = op.split.parameter,
                              .by_first_dim = op.split.by_first_dim,
                              .starts_early = 0,
                              .grain = op.split.grain,
                              .limit = op.split.limit,
                              .other_parameter = op.split.other_parameter,
                              .other_grain = op.split.other_grain,
                              .tasks = 0,
                              .ns = 0};
      const u64 chunks =
          CountNodeChunks(image, nodes[i], row, values.data(), device_.session()->info().workers);
      const TaskDescriptor& task = batch->tasks[0];
      const u64 of_task = task.flags & kTaskCompact ? 1 : std::max<u64>(task.chunks(), 1);
      EXPECT_EQ(chunks, of_task) << graph.NodeName(i) << " (" << op.name << ")";
      ++compared_;
    }
  }

  const Limits limits_;
  FakeDevice device_;
  const std::unique_ptr<Registry> registry_;
  BufferTable buffers_{limits_};
  DrainGate gate_;
  Admission admission_{limits_, &gate_, TimeSource::Steady()};
  const std::shared_ptr<ClientAccounts> account_ =
      std::make_shared<ClientAccounts>(std::make_shared<Account>("anonymous", Rights{}), 1);
  std::vector<GraphPlace> places_;
  std::vector<uint64_t> addresses_;
  uint64_t compared_ = 0;
};

TEST_F(LoweringTest, NodesOfRandomGraphsHaveTheArgumentsOfTheirTasks) {
  std::mt19937_64 random(ReadEnvironment("RESIDENT_GRAPH_SEED", 1));
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < ReadEnvironment("RESIDENT_GRAPHS", 2000); ++i) {
    bool ok = false;
    const graph::CheckedGraph checked = Check(MakeRandomGraph(random), &ok);
    if (!ok || !graph::Lowering::HasTaskStrides(checked.graph)) continue;
    ++accepted;
    Allocate(checked.graph);
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<double> values;
      for (const graph::Scalar& scalar : checked.graph.scalars) {
        const uint64_t width = static_cast<uint64_t>(scalar.max - scalar.min) + 1;
        values.push_back(trial == 0   ? scalar.min
                         : trial == 1 ? scalar.max
                                      : scalar.min + static_cast<double>(random() % width));
      }
      Compare(checked, values);
      if (HasFailure() || values.empty()) break;
    }
    Free();
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, 50u);
  EXPECT_GT(compared_, 500u);
}

// Several chunks, defaults, types of 16 bits, absent tensors, and scalars as arguments.
TEST_F(LoweringTest, WideNodesDefaultsAndScalars) {
  GraphMaker g;
  g.Scalar("rows", 1, 700).Scalar("x", -3, 3, v1::DTYPE_F32);
  g.Input("in", {700, 512})
      .Activation("a", {700, 512})
      .Input("w", {32, 512})
      .Output("y", {700, 32});
  g.Tensor(v1::GraphTensor::KIND_OUTPUT, "half", {D("rows"), D(512)}, v1::DTYPE_F16);
  g.Call("add", {"in", "in", "a", S("x", 0.1, 1)});
  g.Call("add", {View("in", {D("rows"), D(512)}), View("a", {D("rows"), D(512)}), "half"});
  g.Call("gemv", {"a", "w", None(), "y"});
  g.Call("fill", {View("y", {D("rows"), D(32)}), S("x", 2, 0.5)});
  bool ok = false;
  const graph::CheckedGraph checked = Check(g.graph, &ok);
  ASSERT_TRUE(ok) << FindingsText(g.Validate());
  Allocate(checked.graph);
  for (const double rows : {1.0, 13.0, 64.0, 65.0, 700.0}) Compare(checked, {rows, rows / 300});
  Free();
}

// The schedule in an image: who executes each node, and that the waits are those of the successors.
void ExpectSchedule(const graph::Lowering& lowering, const std::string& bytes) {
  const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
  ASSERT_GT(image.gang, 0u);
  EXPECT_EQ(lowering.gang(), image.gang);
  EXPECT_EQ(lowering.state_bytes(), GangStateBytes(image.operators, image.gang, image.nodes));
  const GraphNode* const nodes = ImagePart<GraphNode>(image, image.nodes_at);
  const u32* const successors = ImagePart<u32>(image, image.successors_at);
  const GangNode* const gang_nodes = ImagePart<GangNode>(image, image.gang_nodes_at);
  const GangWait* const waits = ImagePart<GangWait>(image, image.waits_at);
  const u32* const begins = ImagePart<u32>(image, image.list_begins_at);
  const u32* const lists = ImagePart<u32>(image, image.lists_at);
  std::vector<std::vector<u32>> expected_waits(image.nodes), expected_lists(image.gang);
  for (u32 i = 0; i < image.nodes; ++i) {
    for (u32 s = 0; s < nodes[i].successors; ++s) {
      expected_waits[successors[nodes[i].first_successor + s]].push_back(i);
    }
    for (u32 r = 0; r < gang_nodes[i].ranks; ++r) {
      expected_lists[(gang_nodes[i].first + r) % image.gang].push_back(i);
    }
  }
  for (u32 i = 0; i < image.nodes; ++i) {
    const GangWait* const first = waits + gang_nodes[i].first_wait;
    std::vector<u32> actual;
    for (u32 w = 0; w < nodes[i].predecessors; ++w) {
      EXPECT_LT(first[w].node, i);
      EXPECT_EQ(first[w].first, gang_nodes[first[w].node].first);
      EXPECT_EQ(first[w].ranks, gang_nodes[first[w].node].ranks);
      actual.push_back(first[w].node);
    }
    EXPECT_EQ(actual, expected_waits[i]);
  }
  EXPECT_EQ(begins[0], 0u);
  for (u32 rank = 0; rank < image.gang; ++rank) {
    EXPECT_EQ(std::vector<u32>(lists + begins[rank], lists + begins[rank + 1]),
              expected_lists[rank]);
  }
  EXPECT_LE(image.lists_at + begins[image.gang] * sizeof(u32), bytes.size());
}

TEST_F(LoweringTest, RandomGraphsForGangs) {
  std::mt19937_64 random(ReadEnvironment("RESIDENT_GRAPH_SEED", 1));
  uint64_t accepted = 0;
  for (uint64_t i = 0; i < ReadEnvironment("RESIDENT_GRAPHS", 2000); ++i) {
    bool ok = false;
    const graph::CheckedGraph checked = Check(MakeRandomGraph(random), &ok);
    if (!ok) continue;
    ++accepted;
    const std::vector<uint64_t> addresses(checked.graph.tensors.size(), 4096);
    const auto workers = static_cast<uint32_t>(1 + random() % 10);
    const graph::Lowering lowering(checked, {}, {.workers = workers});
    EXPECT_LE(lowering.gang(), workers);
    const std::string image = lowering.Image(addresses);
    ExpectSchedule(lowering, image);
    const auto estimate = graph::Lowering::EstimateBytes(checked, {}, workers);
    EXPECT_GE(2 * estimate.value_or(0), image.size());
    // The schedule follows what an image without a gang has.
    const std::string plain = graph::Lowering(checked, {}, {}).Image(addresses);
    const size_t begin = sizeof(GraphImage);
    EXPECT_EQ(image.substr(begin, plain.size() - begin), plain.substr(begin));
    if (HasFailure()) return;
  }
  EXPECT_GT(accepted, 50u);
}

// Wide nodes and records have as many members as they have chunks at the declared sizes.
TEST_F(LoweringTest, MembersOfWideNodesAndRecords) {
  GraphMaker g;
  g.Scalar("rows", 1, 1024);
  g.Input("in", {1024, 512}).Activation("a", {1024, 512}).Output("small", {8});
  g.Tensor(v1::GraphTensor::KIND_STREAM, "s", {D(1), D(1 << 19)});
  g.Call("add", {View("in", {D("rows"), D(512)}), View("in", {D("rows"), D(512)}),
                 View("a", {D("rows"), D(512)})});
  g.Call("fill", {"small", F(1)});
  g.Call("fill", {"s", F(2)});
  bool ok = false;
  const graph::CheckedGraph checked = Check(g.graph, &ok);
  ASSERT_TRUE(ok) << FindingsText(g.Validate());
  const SplitRule copy{.parameter = 0, .by_first_dim = false, .grain = 1 << 17};
  const graph::StreamRecords records(checked.graph, {3});
  const graph::OperatorInfo& add = checked.graph.operators[checked.graph.nodes[0].op];
  for (const uint32_t workers : {1u, 3u, 200u}) {
    const graph::Lowering lowering(checked, records, {.workers = workers, .copy_split = copy});
    const std::string bytes = lowering.Image({4096, 4096, 4096, 4096});
    ExpectSchedule(lowering, bytes);
    EXPECT_GE(2 * *graph::Lowering::EstimateBytes(checked, records, workers), bytes.size());
    const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
    const GangNode* const nodes = ImagePart<GangNode>(image, image.gang_nodes_at);
    ASSERT_EQ(image.nodes, 4u);
    const uint64_t chunks = add.split.Chunks({1024, 512}, workers);
    EXPECT_GT(chunks, 1u);
    EXPECT_EQ(nodes[0].ranks, std::min<uint64_t>(image.gang, chunks));
    EXPECT_EQ(nodes[1].ranks, 1u);
    EXPECT_EQ(nodes[3].ranks, std::min(image.gang, 4u));
    // No node waits for the first ones.
    EXPECT_EQ(nodes[0].signals, 0u);
    EXPECT_EQ(nodes[1].signals, 0u);
    EXPECT_EQ(nodes[2].signals, image.gang == 1 ? 0u : 1u);
  }
}

// An operator that reads its weights before its inputs are ready is started then if no node writes
// these weights, of whatever kind their tensor is.
TEST_F(LoweringTest, NodesThatStartEarly) {
  GraphMaker g;
  g.Input("x", {4}).Input("w", {4, 4}).Tensor(v1::GraphTensor::KIND_STATE, "kept", {D(4), D(4)});
  g.Tensor(v1::GraphTensor::KIND_STATE, "changed", {D(4), D(4)});
  g.Activation("a", {4}).Activation("b", {4}).Activation("c", {4}).Output("y", {4});
  g.Call("gemv", {"x", "w", None(), "a"});
  g.Call("gemv", {"a", "kept", None(), "b"});
  g.Call("gemv", {"b", "changed", None(), "c"});
  g.Call("relu", {"c", "y"});
  g.Call("copy", {"w", "changed"});
  bool ok = false;
  const graph::CheckedGraph checked = Check(g.graph, &ok);
  ASSERT_TRUE(ok) << FindingsText(g.Validate());
  const graph::Lowering lowering(checked, {}, {.workers = 3});
  const std::string bytes = lowering.Image(std::vector<uint64_t>(checked.graph.tensors.size(), 64));
  const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
  const GangNode* const nodes = ImagePart<GangNode>(image, image.gang_nodes_at);
  ASSERT_EQ(image.nodes, 5u);
  EXPECT_EQ(nodes[0].starts_early, 1u);
  EXPECT_EQ(nodes[1].starts_early, 1u);
  EXPECT_EQ(nodes[2].starts_early, 0u);
  EXPECT_EQ(nodes[3].starts_early, 0u);
  EXPECT_EQ(nodes[4].starts_early, 0u);
}

// Nodes whose matrices all members of a gang take in pages.
TEST_F(LoweringTest, NodesWithStreams) {
  GraphMaker g;
  g.Input("x", {D(2048)});
  const auto add_weights = [&](const char* name, std::vector<Dim> shape) {
    g.Tensor(v1::GraphTensor::KIND_INPUT, name, std::move(shape), v1::DTYPE_BF16);
  };
  add_weights("norm", {D(2048)});
  add_weights("q", {D(512), D(2048)});
  add_weights("kv", {D(256), D(2048)});
  add_weights("gate", {D(8192), D(2048)});
  add_weights("up", {D(8192), D(2048)});
  add_weights("down", {D(2048), D(8192)});
  add_weights("odd", {D(2049), D(2048)});
  g.Activation("a", {512}).Activation("b", {256}).Activation("c", {256}).Activation("h", {8192});
  g.Output("y", {2048}).Output("z", {2049});
  g.Call("rmsnorm_gemv_qkv", {"x", "norm", "q", "kv", "kv", None(), None(), None(), "a", "b", "c"});
  g.Call("rmsnorm_gemv_silu_mul", {"x", "norm", "gate", "up", "h"});
  g.Call("gemv", {"h", "down", "x", "y"});
  g.Call("gemv", {"y", "odd", None(), "z"});
  bool ok = false;
  const graph::CheckedGraph checked = Check(g.graph, &ok);
  ASSERT_TRUE(ok) << FindingsText(g.Validate());
  const graph::Lowering lowering(checked, {}, {.workers = 3});
  std::vector<uint64_t> addresses(checked.graph.tensors.size());
  for (size_t i = 0; i < addresses.size(); ++i) addresses[i] = (i + 1) << 28;
  const auto address_of = [&](const char* name) {
    size_t i = 0;
    while (checked.graph.tensors[i].name != name) ++i;
    return addresses[i];
  };
  const std::string bytes = lowering.Image(addresses);
  const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
  ASSERT_EQ(image.gang, 3u);
  ASSERT_EQ(image.streams, 3u);
  EXPECT_EQ(lowering.CountStreams(addresses), 3u);
  const GraphNode* const nodes = ImagePart<GraphNode>(image, image.nodes_at);
  const GraphStream* const streams = ImagePart<GraphStream>(image, image.streams_at);
  for (u32 i = 0; i < 4; ++i) EXPECT_EQ(nodes[i].stream, i < 3 ? i + 1 : 0);

  EXPECT_EQ(streams[0].form, StreamForm::kStacked);
  EXPECT_EQ(streams[0].normalized, 1u);
  EXPECT_EQ(streams[0].columns, 2048u);
  EXPECT_EQ(streams[0].matrices[0], address_of("q"));
  EXPECT_EQ(streams[0].matrices[1], address_of("kv"));
  EXPECT_EQ(streams[0].matrices[2], address_of("kv"));
  EXPECT_EQ(streams[0].ends[0], 128u);
  EXPECT_EQ(streams[0].ends[1], 192u);
  EXPECT_EQ(streams[0].base * 3 + streams[0].extra, 256u);

  EXPECT_EQ(streams[1].form, StreamForm::kGated);
  EXPECT_EQ(streams[1].matrices[1], address_of("up"));
  EXPECT_EQ(streams[1].base * 3 + streams[1].extra, 4096u);
  // The member with one page more is not the same one.
  EXPECT_EQ(streams[0].rotation, 0u);
  EXPECT_EQ(streams[1].rotation, 2u);

  EXPECT_EQ(streams[2].form, StreamForm::kPlain);
  EXPECT_EQ(streams[2].normalized, 0u);
  EXPECT_EQ(streams[2].columns, 8192u);
  EXPECT_EQ(streams[2].base * 3 + streams[2].extra, 2048u);

  // Copies need aligned addresses.
  for (uint64_t& address : addresses) address += 8;
  const std::string unaligned = lowering.Image(addresses);
  const auto& other = *reinterpret_cast<const GraphImage*>(unaligned.data());
  EXPECT_EQ(other.streams, 0u);
  EXPECT_EQ(lowering.CountStreams(addresses), 0u);
  EXPECT_EQ(ImagePart<GraphNode>(other, other.nodes_at)[0].stream, 0u);
}

// A loader costs the other nodes more than it gains if they are many.
TEST_F(LoweringTest, AGraphOfMostlyOtherNodesHasNoStreams) {
  for (const int others : {2, 3}) {
    GraphMaker g;
    g.Input("x", {D(2048)}).Output("y", {2048}).Output("z", {2048});
    g.Tensor(v1::GraphTensor::KIND_INPUT, "w", {D(2048), D(2048)}, v1::DTYPE_BF16);
    g.Call("gemv", {"x", "w", None(), "y"});
    for (int i = 0; i < others; ++i) g.Call("relu", {"y", "z"});
    bool ok = false;
    const graph::CheckedGraph checked = Check(g.graph, &ok);
    ASSERT_TRUE(ok) << FindingsText(g.Validate());
    const graph::Lowering lowering(checked, {}, {.workers = 3});
    const std::vector<uint64_t> addresses(checked.graph.tensors.size(), 1 << 20);
    EXPECT_EQ(lowering.CountStreams(addresses), others == 2 ? 1u : 0u);
    const std::string bytes = lowering.Image(addresses);
    const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
    EXPECT_EQ(image.streams, others == 2 ? 1u : 0u);
    EXPECT_EQ(ImagePart<GraphNode>(image, image.nodes_at)[0].stream, others == 2 ? 1u : 0u);
  }
}

// attention_decode reads its cache early, which it also writes: if no other node writes the same.
TEST_F(LoweringTest, NodesThatReadEarlyWhatTheyWrite) {
  for (const int64_t shared : {0, 1}) {
    GraphMaker g;
    g.Scalar("pos", 0, 7);
    g.Input("q", {4, 8}).Input("kv", {2, 8}).Input("angles", {4});
    g.Tensor(v1::GraphTensor::KIND_STATE, "cache", {D(4), D(2), D(8), D(8)});
    g.Tensor(v1::GraphTensor::KIND_STATE, "arrived", {D(2)}, v1::DTYPE_I32);
    g.Activation("acc", {4, 1, 8}).Activation("largest", {4, 1}).Activation("sum", {4, 1});
    g.Output("y", {4, 8}).Output("z", {4, 8});
    const auto part = [](int64_t i) { return View("cache", {D(2), D(8), D(8)}, i * 128); };
    for (const int64_t layer : {0, 1}) {
      g.Call("attention_decode",
             {"q", "kv", "kv", "angles", part(2 * layer), part(2 * layer + 1), "acc", "largest",
              "sum", "arrived", layer == 0 ? "y" : "z", S("pos"), F(1)});
    }
    // The last row of the first layer's values, or nothing of both.
    g.Call("fill", {View(shared == 1 ? "cache" : "arrived", {D(1)}, shared == 1 ? 255 : 0), F(0)});
    bool ok = false;
    const graph::CheckedGraph checked = Check(g.graph, &ok);
    ASSERT_TRUE(ok) << FindingsText(g.Validate());
    const graph::Lowering lowering(checked, {}, {.workers = 3});
    const std::string bytes =
        lowering.Image(std::vector<uint64_t>(checked.graph.tensors.size(), 64));
    const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
    const GangNode* const nodes = ImagePart<GangNode>(image, image.gang_nodes_at);
    ASSERT_EQ(image.nodes, 3u);
    EXPECT_EQ(nodes[0].starts_early, shared == 1 ? 0u : 1u);
    EXPECT_EQ(nodes[1].starts_early, 1u);
  }
}

// A node that copies the record waits for all writers of the stream, aliases included.
TEST_F(LoweringTest, RecordsWaitForTheirWriters) {
  GraphMaker g;
  g.Tensor(v1::GraphTensor::KIND_STREAM, "s", {D(8), D(4)});
  g.Alias(v1::GraphTensor::KIND_STREAM, "t", "s", {D(1), D(16)});
  g.Output("o", {4});
  g.Call("fill", {"s", F(1)}).Call("fill", {"o", F(2)}).Call("fill", {"t", F(3)});
  bool ok = false;
  const graph::CheckedGraph checked = Check(g.graph, &ok);
  ASSERT_TRUE(ok) << FindingsText(g.Validate());
  const graph::Lowering lowering(checked, graph::StreamRecords(checked.graph, {0, 1}), {});
  ASSERT_EQ(lowering.nodes(), 5u);
  EXPECT_EQ(lowering.record_offsets(), (std::vector<uint64_t>{0, 64}));
  EXPECT_EQ(lowering.record_bytes(), 128u);
  const std::string bytes = lowering.Image({4096, 4096, 8192});
  const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
  const GraphNode* const nodes = ImagePart<GraphNode>(image, image.nodes_at);
  const u32* const successors = ImagePart<u32>(image, image.successors_at);
  for (const uint32_t copy : {3u, 4u}) {
    EXPECT_EQ(nodes[copy].predecessors, 2u);
    for (const uint32_t writer : {0u, 2u}) {
      const u32* const first = successors + nodes[writer].first_successor;
      EXPECT_NE(std::find(first, first + nodes[writer].successors, copy),
                first + nodes[writer].successors);
    }
    ArgumentBlock block{};
    FillNodeArguments(image, nodes[copy], nullptr, 1 << 20, &block);
    EXPECT_EQ(block.arguments[0].tensor.address, 4096u);
    EXPECT_EQ(block.arguments[1].tensor.address, (1u << 20) + lowering.record_offsets()[copy - 3]);
  }
  EXPECT_EQ(nodes[1].successors, 0u);
}

// A record waits for each node that writes memory of its stream: many records of one memory, with
// many writers, would need more memory than the graph.
TEST_F(LoweringTest, TooManyWritersOfManyStreams) {
  for (const int count : {10, 2'200}) {
    GraphMaker g;
    g.Tensor(v1::GraphTensor::KIND_STREAM, "s", {D(1), D(1)});
    for (int i = 1; i < count; ++i) {
      g.Alias(v1::GraphTensor::KIND_STREAM, absl::StrCat("s", i), "s", {D(1), D(1)});
    }
    for (int i = 0; i < count; ++i) g.Call("fill", {"s", F(i)});
    bool ok = false;
    const graph::CheckedGraph checked = Check(g.graph, &ok);
    ASSERT_TRUE(ok) << FindingsText(g.Validate());
    std::vector<uint32_t> streams(count);
    std::iota(streams.begin(), streams.end(), 0);
    const graph::StreamRecords records(checked.graph, std::move(streams));
    const auto bytes = graph::Lowering::EstimateBytes(checked, records, 0);
    EXPECT_EQ(bytes.has_value(), count == 10) << count;
    if (bytes.has_value()) {
      EXPECT_GE(2 * *bytes, graph::Lowering(checked, records, {}).image_bytes());
    }
  }
}

}  // namespace
}  // namespace resident::testing
