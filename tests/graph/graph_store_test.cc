// Graphs that are loaded once, of a real daemon over real gRPC: who holds them, runs by id, changes
// of operators, and restarts.
#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "tests/auth/auth_support.h"
#include "tests/graph/loaded_graphs.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using client::Installation;
using grpc::StatusCode;
using Loaded = v1::LoadedGraph;

// y = relu(x).
GraphMaker Relu(const std::string& name = "relu", int64_t elements = 4) {
  GraphMaker maker;
  maker.Input("x", {elements}).Output("y", {elements}).Call("relu", {"x", "y"});
  maker.graph.set_name(name);
  return maker;
}

v1::RunGraphRequest RunRelu(const std::string& id) {
  v1::RunGraphRequest request;
  request.set_graph_id(id);
  Bind(request, "x").set_data(ToBytes<float>({-1, 2, -3, 4}));
  return request;
}
const std::vector<float> kReluOfX = {0, 2, 0, 4};

class GraphStoreTest : public DaemonTest {
 protected:
  const GraphCalls calls_{*daemon_, client_};
};

// No binding could help. States and outputs may be bound to memory that is not the device's.
TEST_F(GraphStoreTest, AGraphThatNoDeviceCanRunIsRefused) {
  const uint64_t memory = daemon_->Device().memory_total_bytes();
  const auto floats = static_cast<int64_t>(memory / sizeof(float));
  const size_t others = calls_.List().size();
  GraphMaker maker;
  maker.State("s", {2 * floats}).Activation("a", {floats}).Output("y", {4});
  maker.Call("fill", {View("a", {4}), F(1)}).Call("copy", {View("a", {4}), "y"});
  maker.Call("fill", {View("s", {4}), F(1)});
  EXPECT_EQ(calls_.MustLoad(maker).size(), 64u);
  maker.Activation("b", {4}).Call("copy", {View("a", {4}), "b"}).Call("copy", {"b", "y"});
  v1::LoadGraphResponse refused;
  ASSERT_TRUE(calls_.Load(maker.graph, &refused).ok());
  EXPECT_TRUE(refused.graph_id().empty());
  EXPECT_EQ(ErrorCodes(refused.report()), std::vector<int>{701}) << FindingsText(refused.report());
  EXPECT_NE(refused.report().findings(0).message().find(absl::StrCat("has ", memory, " bytes")),
            std::string::npos);
  EXPECT_EQ(calls_.List().size(), others + 1);
}

TEST_F(GraphStoreTest, ALoadedGraphIsListedRunAndUnloaded) {
  const size_t others = calls_.List().size();
  const GraphMaker maker = Relu();
  v1::LoadGraphResponse loaded;
  ASSERT_TRUE(calls_.Load(maker.graph, &loaded).ok());
  EXPECT_TRUE(loaded.report().accepted());
  EXPECT_FALSE(loaded.already_loaded());
  const std::string id = loaded.graph_id();
  EXPECT_EQ(calls_.Run(RunRelu(id)).floats(), kReluOfX);
  EXPECT_EQ(calls_.Run(RunRelu(id)).floats(), kReluOfX);

  v1::DescribeGraphResponse described;
  ASSERT_TRUE(calls_.Describe(id, &described).ok());
  EXPECT_EQ(described.graph().SerializeAsString(), maker.graph.SerializeAsString());
  const Loaded& graph = described.loaded();
  EXPECT_EQ(graph.graph_id(), id);
  EXPECT_EQ(graph.name(), "relu");
  EXPECT_EQ(graph.state(), Loaded::STATE_READY);
  EXPECT_EQ(graph.nodes(), 1u);
  EXPECT_EQ(graph.runs(), 2u);
  EXPECT_EQ(graph.steps(), 2u);
  EXPECT_EQ(graph.size_bytes(), maker.graph.ByteSizeLong());
  EXPECT_GT(graph.memory_bytes(), graph.size_bytes());
  EXPECT_GT(graph.loaded_ms(), 1'600'000'000'000);
  ASSERT_EQ(graph.holders_size(), 1);
  EXPECT_EQ(graph.holders(0), "anonymous");
  ASSERT_EQ(calls_.List().size(), others + 1);

  bool removed = false;
  ASSERT_TRUE(calls_.Unload(id, &removed).ok());
  EXPECT_TRUE(removed);
  EXPECT_EQ(calls_.List().size(), others);
  const std::vector<std::string> parts = {"no graph with the id", id};
  ExpectRefused(calls_.Run(RunRelu(id)).status, StatusCode::NOT_FOUND, parts);
  ExpectRefused(calls_.Describe(id, &described), StatusCode::NOT_FOUND, parts);
  ExpectRefused(calls_.Unload(id), StatusCode::NOT_FOUND, parts);
}

TEST_F(GraphStoreTest, TheIdIsThatOfTheContent) {
  const std::string id = calls_.MustLoad(Relu());
  v1::LoadGraphResponse again;
  ASSERT_TRUE(calls_.Load(Relu().graph, &again).ok());
  EXPECT_EQ(again.graph_id(), id);
  EXPECT_TRUE(again.already_loaded());
  EXPECT_TRUE(again.report().accepted());
  EXPECT_NE(calls_.MustLoad(Relu("another name")), id);
  EXPECT_NE(calls_.MustLoad(Relu("relu", 5)), id);
  bool removed = false;
  // One hold, however often it was loaded.
  ASSERT_TRUE(calls_.Unload(id, &removed).ok());
  EXPECT_TRUE(removed);
  EXPECT_EQ(calls_.MustLoad(Relu()), id);
}

TEST_F(GraphStoreTest, ARefusedGraphIsNotLoaded) {
  const size_t before = calls_.List().size();
  GraphMaker maker = Relu();
  maker.node(0).set_operator_("rellu");
  v1::LoadGraphResponse response;
  ASSERT_TRUE(calls_.Load(maker.graph, &response).ok());
  EXPECT_FALSE(response.report().accepted());
  EXPECT_EQ(ErrorCodes(response.report()), std::vector<int>{104});
  EXPECT_EQ(response.graph_id(), "");
  EXPECT_EQ(calls_.List().size(), before);
  v1::LoadGraphResponse none;
  grpc::ClientContext context;
  ExpectRefused(calls_.stub().Load(&context, v1::LoadGraphRequest(), &none),
                StatusCode::INVALID_ARGUMENT, {"no graph"});
  v1::Graph large;
  for (int i = 0; i <= 65536; ++i) large.add_nodes();
  ExpectRefused(calls_.Load(large, &none), StatusCode::INVALID_ARGUMENT, {"65537 nodes", "65536"});
}

TEST_F(GraphStoreTest, AGraphThatIsUnloadedDuringARunLetsItFinish) {
  const std::string id = calls_.MustLoad(SummingLoop(300));
  const v1::GraphSession session = calls_.MustOpen(id);
  v1::RunGraphRequest run;
  run.set_graph_id(id);
  bool removed = false;
  const GraphOutcome outcome = calls_.Run(run, [&](const v1::GraphStep&, grpc::ClientContext&) {
    if (!removed) {
      EXPECT_TRUE(calls_.Unload(id, &removed).ok());
    }
  });
  EXPECT_TRUE(removed);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.steps.size(), 300u);
  ExpectRefused(calls_.RunLoaded(id).status, StatusCode::NOT_FOUND, {"no graph with the id"});
  // A graph session keeps it.
  EXPECT_EQ(calls_.RunIn(session.session_id(), 3).stream(), (std::vector<double>{0, 1, 3}));
}

TEST_F(GraphStoreTest, TheMemoryOfAGraphIsCountedUntilItsLastSessionEnds) {
  const auto is_used = [&](uint64_t bytes) {
    return Eventually([&] { return daemon_->Figure("resident_graph_bytes") == bytes; });
  };
  // Graphs that only sessions of tests before this one keep end with their clients.
  ASSERT_TRUE(Eventually([&] {
    uint64_t listed = 0;
    for (const Loaded& graph : calls_.List()) listed += graph.memory_bytes();
    return daemon_->Figure("resident_graph_bytes") == listed;
  }));
  const uint64_t before = daemon_->Figure("resident_graph_bytes");
  const std::string id = calls_.MustLoad(SummingLoop(300));
  const uint64_t bytes = calls_.MustDescribe(id).memory_bytes();
  EXPECT_TRUE(is_used(before + bytes));
  const std::string first = calls_.MustOpen(id).session_id();
  // A graph that is loaded again needs no more memory.
  EXPECT_EQ(calls_.MustLoad(SummingLoop(300)), id);
  const std::string second = calls_.MustOpen(id).session_id();
  EXPECT_TRUE(is_used(before + bytes));
  ASSERT_TRUE(calls_.Unload(id).ok());
  EXPECT_TRUE(is_used(before + bytes));
  // Nothing of the unloaded graph is used again.
  EXPECT_EQ(calls_.MustLoad(SummingLoop(300)), id);
  EXPECT_TRUE(is_used(before + 2 * bytes));
  ASSERT_TRUE(calls_.Close(first).ok());
  EXPECT_TRUE(is_used(before + 2 * bytes));
  ASSERT_TRUE(calls_.Close(second).ok());
  EXPECT_TRUE(is_used(before + bytes));
  ASSERT_TRUE(calls_.Unload(id).ok());
  EXPECT_TRUE(is_used(before));
}

TEST_F(GraphStoreTest, ACallerHasNotAllGraphs) {
  const size_t before = calls_.List().size();
  std::vector<std::string> ids;
  grpc::Status status;
  while (ids.size() <= 1024) {
    v1::LoadGraphResponse response;
    status = calls_.Load(Relu(absl::StrCat("many ", ids.size())).graph, &response);
    if (!status.ok()) break;
    ids.push_back(response.graph_id());
  }
  // A caller that has some leaves an eighth to others.
  EXPECT_EQ(before + ids.size(), 1024u - 128u);
  ExpectRefused(status, StatusCode::RESOURCE_EXHAUSTED, {"loaded graphs"});
  EXPECT_EQ(calls_.List().size(), before + ids.size());
  for (const std::string& id : ids) ASSERT_TRUE(calls_.Unload(id).ok());
  EXPECT_EQ(calls_.List().size(), before);
  v1::LoadGraphResponse response;
  EXPECT_TRUE(calls_.Load(Relu("one more").graph, &response).ok());
}

TEST_F(GraphStoreTest, ACallerHasNotAllMemoryOfGraphs) {
  GraphMaker large;
  large.Input("x", {4}).Output("y", {4}).Activation("a", {4}).Activation("b", {4});
  constexpr int kNodes = 60'000;
  for (int i = 0; i < kNodes; ++i) {
    const char* const from = i == 0 ? "x" : i % 2 == 0 ? "a" : "b";
    large.Call("relu", {from, i + 1 == kNodes ? "y" : i % 2 == 0 ? "b" : "a"});
    // So that few graphs are needed.
    large.node(i).mutable_name()->append(110, 'n');
  }
  std::vector<std::string> ids;
  uint64_t bytes = 0;
  grpc::Status status;
  while (ids.size() < 200) {
    large.graph.set_name(absl::StrCat("large ", ids.size()));
    v1::LoadGraphResponse response;
    status = calls_.Load(large.graph, &response);
    if (!status.ok()) break;
    ids.push_back(response.graph_id());
  }
  for (const Loaded& graph : calls_.List()) bytes += graph.memory_bytes();
  ExpectRefused(status, StatusCode::RESOURCE_EXHAUSTED,
                {"bytes of the daemon's memory", "of 1073741824 bytes", "unload graphs"});
  // Half of it stays free for others.
  EXPECT_GT(bytes, 400u << 20);
  EXPECT_LE(bytes, 512u << 20);
  ASSERT_TRUE(calls_.Unload(ids.back()).ok());
  v1::LoadGraphResponse response;
  ASSERT_TRUE(calls_.Load(large.graph, &response).ok());
  ids.back() = response.graph_id();
  for (const std::string& id : ids) EXPECT_TRUE(calls_.Unload(id).ok());
}

// The C++ client.
TEST_F(GraphStoreTest, TheClientLoadsGraphsAndOwnsSessions) {
  auto connected = client::Client::Connect(daemon_->address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  client::Client& client = **connected;
  GraphMaker maker = SummingLoop(100);
  maker.graph.set_name("of the client");
  const auto loaded = client.LoadGraph(maker.graph);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const std::string id = loaded->graph_id();
  ASSERT_TRUE(client.ListGraphs().ok());
  EXPECT_EQ(client.DescribeGraph(id)->loaded().name(), "of the client");

  v1::OpenGraphSessionRequest open;
  open.set_graph_id(id);
  v1::RunGraphRequest three;
  three.set_max_steps(3);
  {
    auto session = client.OpenGraphSession(open);
    ASSERT_TRUE(session.ok()) << session.status();
    size_t steps = 0;
    const auto run = session->Run(three, [&](const v1::GraphStep&) { ++steps; });
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(steps, 3u);
    EXPECT_EQ(run->next_scalars().at("pos"), 3);
    auto fork = session->Fork();
    ASSERT_TRUE(fork.ok()) << fork.status();
    EXPECT_NE(fork->id(), session->id());
    EXPECT_EQ(fork->Run(three)->next_scalars().at("pos"), 6);
    EXPECT_EQ(session->Describe()->scalars().at("pos"), 3);
    client::GraphSession moved = *std::move(session);
    EXPECT_EQ(client.DescribeGraph(id)->loaded().sessions(), 2u);
    EXPECT_TRUE(moved.Close().ok());
    EXPECT_TRUE(moved.Close().ok());
    EXPECT_FALSE(moved.Run(three).ok());
    EXPECT_EQ(client.DescribeGraph(id)->loaded().sessions(), 1u);
  }
  // The destructor has closed the fork.
  EXPECT_EQ(client.DescribeGraph(id)->loaded().sessions(), 0u);
  EXPECT_EQ(client.UnloadGraph(id).value_or(false), true);
  EXPECT_EQ(client.UnloadGraph(id).status().code(), absl::StatusCode::kNotFound);
}

// Operators that change after a graph was loaded.
class StaleGraphTest : public GraphStoreTest {
 protected:
  StaleGraphTest() {
    auto connected = client::Client::Connect(daemon_->address());
    EXPECT_TRUE(connected.ok()) << connected.status();
    connected_ = *std::move(connected);
    operators_.emplace(*connected_);
  }
  void Install(const std::string& expression) {
    const auto installed = operators_->Install(
        Installation::Expression("stale.op", expression).WaitFor(v1::VERSION_STATE_ACTIVE));
    ASSERT_TRUE(installed.ok()) << installed.status();
  }
  void Remove() {
    const auto removed = operators_->Remove("stale.op");
    ASSERT_TRUE(removed.ok()) << removed.status();
  }
  Loaded::State State(const std::string& id) { return calls_.MustDescribe(id).state(); }

  std::unique_ptr<client::Client> connected_;
  std::optional<client::Operators> operators_;
};

TEST_F(StaleGraphTest, AGraphThatNoLongerFitsIsRefusedAndFitsAgain) {
  Install("2 * x");
  GraphMaker maker;
  maker.Input("x", {4}).State("s", {4}).Output("y", {4});
  maker.Call("stale.op", {"x", "s"}).Call("copy", {"s", "y"});
  const std::string id = calls_.MustLoad(maker);
  const v1::GraphSession session = calls_.MustOpen(id);
  const auto run = [&] { return calls_.Run(RunRelu(id)); };
  v1::RunGraphRequest in_session = RunRelu(id);
  in_session.set_graph_session(session.session_id());
  EXPECT_EQ(run().floats(), (std::vector<float>{-2, 4, -6, 8}));

  // Another version with the same signature: nothing is checked, and the new one is executed.
  Install("3 * x");
  EXPECT_EQ(State(id), Loaded::STATE_READY);
  EXPECT_EQ(run().floats(), (std::vector<float>{-3, 6, -9, 12}));

  Remove();
  EXPECT_EQ(State(id), Loaded::STATE_STALE);
  const std::vector<std::string> gone = {"GRAPH_E704", id, "GRAPH_E104", "stale.op"};
  ExpectRefused(run().status, StatusCode::FAILED_PRECONDITION, gone);
  ExpectRefused(run().status, StatusCode::FAILED_PRECONDITION, gone);
  ExpectRefused(calls_.Run(in_session).status, StatusCode::FAILED_PRECONDITION, gone);
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(id);
  v1::GraphSession none;
  ExpectRefused(calls_.Open(open, &none), StatusCode::FAILED_PRECONDITION, gone);
  EXPECT_EQ(State(id), Loaded::STATE_STALE);

  // Another signature.
  Install("x * y");
  EXPECT_EQ(State(id), Loaded::STATE_STALE);
  ExpectRefused(run().status, StatusCode::FAILED_PRECONDITION,
                {"GRAPH_E704", id, "GRAPH_E301", "stale.op"});
  Remove();

  // The former signature.
  Install("5 * x");
  EXPECT_EQ(run().floats(), (std::vector<float>{-5, 10, -15, 20}));
  EXPECT_EQ(State(id), Loaded::STATE_READY);
  EXPECT_EQ(calls_.Run(in_session).floats(), (std::vector<float>{-5, 10, -15, 20}));
  Remove();
}

// With identities: who may unload what, and who sees whom.
TEST(GraphHoldersTest, AGraphHasAHolderForEachIdentityThatLoadedIt) {
  const Folder folder;
  const std::string policy = folder.Write("policy.json", R"({"identities": {
    "alice": {"roles": ["submit"]}, "bob": {"roles": ["submit"]},
    "admin": {"roles": ["admin"]}}})");
  const std::string tokens =
      folder.Write("tokens", TokenLine("alice", "a-token") + TokenLine("bob", "b-token") +
                                 TokenLine("admin", "c-token"));
  const Daemon daemon({"--policy=" + policy, "--token_file=" + tokens});
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  const auto call = [&](const char* token, const auto& method) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", Bearer(token));
    return method(context);
  };
  const auto load = [&](const char* token) {
    v1::LoadGraphResponse response;
    const grpc::Status status = call(token, [&](grpc::ClientContext& context) {
      v1::LoadGraphRequest request;
      *request.mutable_graph() = Relu().graph;
      return stub->Load(&context, request, &response);
    });
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_FALSE(response.already_loaded());
    return response.graph_id();
  };
  const auto holders = [&](const char* token) {
    v1::ListGraphsResponse response;
    const grpc::Status status = call(token, [&](grpc::ClientContext& context) {
      return stub->List(&context, v1::ListGraphsRequest(), &response);
    });
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> names;
    for (const Loaded& graph : response.graphs()) {
      names.insert(names.end(), graph.holders().begin(), graph.holders().end());
    }
    return names;
  };
  bool removed = false;
  const auto unload = [&](const char* token, const std::string& id, bool for_all) {
    v1::UnloadGraphResponse response;
    const grpc::Status status = call(token, [&](grpc::ClientContext& context) {
      v1::UnloadGraphRequest request;
      request.set_graph_id(id);
      request.set_for_all(for_all);
      return stub->Unload(&context, request, &response);
    });
    removed = response.removed();
    return status;
  };
  using Names = std::vector<std::string>;
  const std::string id = load("a-token");
  ExpectRefused(unload("b-token", id, false), StatusCode::PERMISSION_DENIED, {id, "'bob'"});
  ExpectRefused(unload("b-token", id, true), StatusCode::PERMISSION_DENIED, {"'admin'", "'bob'"});
  EXPECT_EQ(load("b-token"), id);
  EXPECT_EQ(holders("a-token"), Names{"alice"});
  EXPECT_EQ(holders("b-token"), Names{"bob"});
  EXPECT_EQ(holders("c-token"), (Names{"alice", "bob"}));
  ASSERT_TRUE(unload("a-token", id, false).ok());
  EXPECT_FALSE(removed);
  EXPECT_EQ(holders("c-token"), Names{"bob"});
  EXPECT_EQ(load("a-token"), id);
  ExpectRefused(unload("c-token", id, false), StatusCode::PERMISSION_DENIED, {id, "'admin'"});
  ASSERT_TRUE(unload("c-token", id, true).ok());
  EXPECT_TRUE(removed);
  EXPECT_TRUE(holders("c-token").empty());
}

TEST(GraphRestartTest, LoadedGraphsSurviveAKilledDaemon) {
  const TempFolder folder("resident-graphs");
  const std::string state = "--state_dir=" + folder.path() + "/state";
  std::string kept, dropped, operated;
  {
    Daemon daemon({state});
    const Client client(daemon);
    const GraphCalls calls(daemon, client);
    kept = calls.MustLoad(Relu());
    dropped = calls.MustLoad(Relu("dropped"));
    ASSERT_TRUE(calls.Unload(dropped).ok());
    // Of an operator that is restored, too.
    auto connected = client::Client::Connect(daemon.address());
    ASSERT_TRUE(connected.ok());
    client::Operators operators(**connected);
    ASSERT_TRUE(
        operators
            .Install(
                Installation::Expression("restored.op", "7 * x").WaitFor(v1::VERSION_STATE_ACTIVE))
            .ok());
    GraphMaker maker;
    maker.Input("x", {4}).Output("y", {4}).Call("restored.op", {"x", "y"});
    operated = calls.MustLoad(maker);
    daemon.Kill(SIGKILL);
    daemon.Wait();
  }
  {
    const Daemon daemon({state});
    const Client client(daemon);
    const GraphCalls calls(daemon, client);
    ASSERT_EQ(calls.List().size(), 2u);
    const Loaded restored = calls.MustDescribe(kept);
    EXPECT_EQ(restored.state(), Loaded::STATE_UNCHECKED);
    EXPECT_EQ(restored.name(), "relu");
    ASSERT_EQ(restored.holders_size(), 1);
    EXPECT_EQ(restored.holders(0), "anonymous");
    EXPECT_EQ(calls.Run(RunRelu(kept)).floats(), kReluOfX);
    EXPECT_EQ(calls.MustDescribe(kept).state(), Loaded::STATE_READY);
    // With what the check has made.
    uint64_t bytes = 0;
    for (const Loaded& graph : calls.List()) bytes += graph.memory_bytes();
    EXPECT_GT(calls.MustDescribe(kept).memory_bytes(), restored.memory_bytes());
    EXPECT_EQ(daemon.Figure("resident_graph_bytes"), bytes);
    EXPECT_EQ(calls.Run(RunRelu(operated)).floats(), (std::vector<float>{-7, 14, -21, 28}));
    ExpectRefused(calls.Run(RunRelu(dropped)).status, StatusCode::NOT_FOUND, {dropped});
    v1::LoadGraphResponse again;
    ASSERT_TRUE(calls.Load(Relu().graph, &again).ok());
    EXPECT_TRUE(again.already_loaded());
    ASSERT_TRUE(calls.Unload(kept).ok());
  }
  const Daemon daemon({state});
  const Client client(daemon);
  const GraphCalls calls(daemon, client);
  ASSERT_EQ(calls.List().size(), 1u);
  EXPECT_EQ(calls.List()[0].graph_id(), operated);
}

}  // namespace
}  // namespace resident::testing
