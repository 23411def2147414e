// What an engine with workers for gangs is given, and one without. Engines are fakes: runs on a
// real daemon are tested in graph_quantum_test.cc.
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/graph/graph_arguments.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/fake_device.h"
#include "runtime/graph/limits.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/core.h"
#include "server/graphs/graph_messages.h"
#include "server/graphs/graph_quanta.h"
#include "server/graphs/graphs.h"
#include "tests/graph/checked_graph.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

constexpr uint64_t kMemory = 64u << 20;
constexpr ClientId kClient = 1;

class GangQuantumTest : public ::testing::Test {
 protected:
  GangQuantumTest() { core_.buffers.AddOwner(kClient); }

  // A new engine with so many workers for gangs.
  std::shared_ptr<FakeSession> StartEngine(uint64_t epoch, uint32_t graph_workers) {
    auto session = std::make_shared<FakeSession>(epoch, kMemory, kMemory);
    session->traits().executes_graphs = true;
    session->traits().graph_workers = graph_workers;
    device_.set_session(session);
    return session;
  }
  std::shared_ptr<const Buffer> Allocate(uint64_t bytes, EngineSession& session) {
    BufferSpec spec;
    spec.dtype = DType::kU8;
    spec.shape = {static_cast<int64_t>(bytes)};
    auto buffer = core_.buffers.Allocate(spec, kClient, session);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  FakeDevice device_{0, kMemory, kMemory};
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.staging_bytes = kMemory}, {&device_}, *registry_, manager_, access_};
};

TEST_F(GangQuantumTest, TheGangHasAsManyMembersAsTheGraphCanUse) {
  GraphMaker maker;
  maker.Input("x", {64}).Output("y", {5, 64});
  for (int i = 0; i < 5; ++i) maker.Call("relu", {"x", View("y", {D(64)}, 64 * i)});
  const graph::CheckedGraph checked = CheckBuiltinGraph(maker.graph).value();
  uint64_t epoch = 1;
  for (const auto& [workers, gang] : {std::pair{0u, 0u}, {3u, 3u}, {132u, 5u}}) {
    const auto session = StartEngine(++epoch, workers);
    ASSERT_TRUE(GraphQuanta::EstimateMemory(MakeQuantumSources(core_), checked, {}).has_value());
    const auto quanta = GraphQuanta::Create(MakeQuantumSources(core_), checked, {}, {0, session});
    ASSERT_NE(quanta, nullptr);
    const auto memory = Allocate(quanta->device_bytes(), *session);
    std::vector<GraphPlace> places;
    for (int i = 0; i < 2; ++i) places.push_back({Allocate(5 * 64 * 4, *session)->id, 0});
    const absl::Status placed = quanta->Place(kClient, places, memory);
    ASSERT_TRUE(placed.ok()) << placed;

    const std::string bytes = quanta->TakeImage(0, quanta->image_bytes());
    const auto& image = *reinterpret_cast<const GraphImage*>(bytes.data());
    EXPECT_EQ(image.gang, gang);
    const uint64_t state_bytes = gang == 0
                                     ? GraphStateBytes(image.nodes)
                                     : GangStateBytes(image.operators, image.gang, image.nodes);
    EXPECT_GE(quanta->device_bytes(), bytes.size() + state_bytes);

    const auto work = quanta->Plan({}, {});
    ASSERT_TRUE(work.ok()) << work.status();
    const auto client = core_.clients.ForCall("", "peer", access_.anonymous()->account());
    ASSERT_TRUE(client.ok()) << client.status();
    auto ticket = core_.admission.TryAcquire((*client)->accounts(), (*work)->ResourcesNeeded());
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    RequestBatch batch;
    (*work)->Fill(*ticket, batch);
    const auto descriptor = std::bit_cast<GraphDescriptor>(batch.tasks.at(0));
    EXPECT_EQ(descriptor.gang, gang);
    EXPECT_EQ(descriptor.streams, image.streams);
    EXPECT_EQ(descriptor.image, memory->memory->address);
    EXPECT_GE(descriptor.state, descriptor.image + bytes.size());
    EXPECT_LE(descriptor.state + state_bytes, descriptor.image + quanta->device_bytes());
  }
}

// The schedule is for the engine that ran when the graph was lowered.
TEST_F(GangQuantumTest, AnotherEngineDoesNotGetTheImage) {
  GraphMaker maker;
  maker.Output("y", {64}).Call("fill", {"y", F(1)});
  const graph::CheckedGraph checked = CheckBuiltinGraph(maker.graph).value();
  const auto first = StartEngine(1, 132);
  const auto quanta = GraphQuanta::Create(MakeQuantumSources(core_), checked, {}, {0, first});
  ASSERT_NE(quanta, nullptr);
  const auto second = StartEngine(2, 2);
  const auto memory = Allocate(quanta->device_bytes(), *second);
  const std::vector<GraphPlace> places = {{Allocate(64 * 4, *second)->id, 0}};
  EXPECT_EQ(quanta->Place(kClient, places, memory).code(), absl::StatusCode::kUnavailable);
}

// An installed operator with as many tensors as there can be.
class WideCatalog final : public graph::OperatorCatalog {
 public:
  absl::StatusOr<graph::OperatorInfo> Find(const std::string& name, uint32_t) const override {
    std::string signature = "y: out strided f32[*S]";
    for (u32 i = 1; i < kMaxArguments; ++i)
      absl::StrAppend(&signature, ", x", i, ": in strided f32[*S]");
    graph::OperatorInfo info;
    info.name = name;
    ASSIGN_OR_RETURN(info.signature, Signature::Parse(signature));
    return info;
  }
};

// The largest graph that can run, with as many arguments and as many dimensions that depend on
// scalars as there can be: its image is larger than an engine accepts, and than it was estimated.
TEST_F(GangQuantumTest, AnImageThatIsTooLarge) {
  GraphMaker maker;
  maker.Scalar("n", 1, 2);
  const std::vector<Dim> shape(kMaxRank, D("n"));
  maker.Input("x", shape).Output("y", shape).Call("wide", {"y"});
  while (maker.node(0).arguments_size() < static_cast<int>(kMaxArguments)) {
    *maker.node(0).add_arguments() = Arg("x").message;
  }
  graph::Findings findings;
  graph::CheckedGraph checked;
  checked.graph = ReadGraph(maker.graph, WideCatalog(), &findings);
  ASSERT_TRUE(graph::CheckGraph(checked.graph, &findings).accepted) << findings.list()[0].message;
  // All nodes have the same arguments.
  const graph::Node node = checked.graph.nodes[0];
  const auto session = StartEngine(1, 0);
  for (const auto& [nodes, fits] : {std::pair{1u, true}, {graph::kMaxRunNodes, false}}) {
    checked.graph.nodes.assign(nodes, node);
    checked.order = graph::Dependencies();
    for (uint32_t i = 0; i < nodes; ++i) checked.order.Add({});
    ASSERT_TRUE(GraphQuanta::EstimateMemory(MakeQuantumSources(core_), checked, {}).has_value());
    EXPECT_EQ(GraphQuanta::Create(MakeQuantumSources(core_), checked, {}, {0, session}) != nullptr,
              fits)
        << nodes;
  }
}

TEST_F(GangQuantumTest, AnEngineThatDoesNotExecuteGraphs) {
  GraphMaker maker;
  maker.Output("y", {64}).Call("fill", {"y", F(1)});
  const graph::CheckedGraph checked = CheckBuiltinGraph(maker.graph).value();
  const auto session = StartEngine(1, 0);
  session->traits().executes_graphs = false;
  EXPECT_FALSE(GraphQuanta::EstimateMemory(MakeQuantumSources(core_), checked, {}).has_value());
  EXPECT_EQ(GraphQuanta::Create(MakeQuantumSources(core_), checked, {}, {0, session}), nullptr);
}

}  // namespace
}  // namespace resident::testing
