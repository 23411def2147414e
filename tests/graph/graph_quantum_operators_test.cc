// Installed operators that are replaced, put on trial and fail while the engine executes runs that
// call them.
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "gtest/gtest.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;

client::Installation Times(const std::string& name, int factor, const std::string& twist = "") {
  client::Installation installation = client::Installation::Source(
      name, "times.cc",
      {{"times.cc",
        absl::StrCat("RESIDENT_OPERATOR(", name,
                     ")(resident::Block& block, const resident::Args& args) {\n"
                     "  auto x = args.tensor<const float>(0);\n"
                     "  auto out = args.tensor<float>(1);\n"
                     "  block.for_each(block.share(x.size()), [&](resident::i64 i) {\n    ",
                     twist, "\n    out[i] = ", factor, ".0f * x[i];\n  });\n}\n")}});
  installation.Signature("x: in f32[*S], out: out f32[*S]");
  installation.WaitFor(v1::VERSION_STATE_ACTIVE);
  return installation;
}

class GraphQuantumOperatorsTest : public ::testing::Test {
 protected:
  GraphQuantumOperatorsTest() : client_(daemon_) {
    auto connected = client::Client::Connect(daemon_.address());
    EXPECT_TRUE(connected.ok()) << connected.status();
    connection_ = *std::move(connected);
    operators_ = std::make_unique<client::Operators>(*connection_);
  }
  void MustInstall(client::Installation installation) {
    std::string log;
    const auto installed = operators_->Install(installation, [&](const v1::InstallResponse& each) {
      log += each.log() + each.message();
      return true;
    });
    EXPECT_TRUE(installed.ok()) << installed.status() << "\n" << log;
  }

  const Daemon daemon_{{"--cpu_workers=2"}};
  const Client client_;
  std::unique_ptr<client::Client> connection_;
  std::unique_ptr<client::Operators> operators_;
};

// Versions change under a run. Both nodes of a step use one version, since a step ends on the
// versions with which it began.
TEST_F(GraphQuantumOperatorsTest, AStepUsesOneVersion) {
  MustInstall(Times("scaled", 2));
  MustInstall(Times("scaled", 3));  // Version 2.
  GraphMaker maker;
  maker.Input("x", {1}).Activation("a", {1});
  maker.Tensor(Kind::KIND_STREAM, "y", {D(1'000'000), D(1)});
  maker.Call("scaled", {"x", "a"}).Call("scaled", {"a", "y"});
  maker.graph.mutable_loop()->set_max_steps(1'000'000);
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_data(ToBytes<float>({1}));
  std::atomic<bool> started{false};
  std::atomic<bool> stop{false};
  std::map<float, uint64_t> seen;
  GraphOutcome outcome;
  std::thread run([&] {
    outcome = RunGraph(daemon_, client_, request,
                       [&](const v1::GraphStep& step, grpc::ClientContext& context) {
                         float y = 0;
                         std::memcpy(&y, step.records(0).data().data(), sizeof(y));
                         ++seen[y];
                         started = true;
                         if (stop) context.TryCancel();
                       });
  });
  EXPECT_TRUE(Eventually([&] { return started.load(); }));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(operators_->Activate("scaled", {.version = i % 2 == 0 ? 1u : 2u}).ok());
    const uint64_t uptime = daemon_.Status().uptime_ms();
    EXPECT_TRUE(Eventually([&] { return daemon_.Status().uptime_ms() > uptime + 30; }));
  }
  stop = true;
  run.join();
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_GT(seen[4], 0u);
  EXPECT_GT(seen[9], 0u);
  EXPECT_EQ(seen.size(), 2u);
}

// A run does not call an operator that was removed and installed again with other parameters.
TEST_F(GraphQuantumOperatorsTest, AnOperatorThatIsReplacedByAnother) {
  MustInstall(Times("scaled", 2));
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STATE, "x", {D(1)});
  maker.Tensor(Kind::KIND_STREAM, "y", {D(1'000'000), D(1)});
  maker.Call("scaled", {"x", "y"});
  maker.graph.mutable_loop()->set_max_steps(1'000'000);
  bool replaced = false;
  const pid_t engine = daemon_.engine_pid();
  const GraphOutcome outcome =
      RunGraph(daemon_, client_, RunOf(maker), [&](const v1::GraphStep&, grpc::ClientContext&) {
        if (std::exchange(replaced, true)) return;
        // The run pauses, because its records are not read.
        EXPECT_TRUE(Eventually([&] {
          const uint64_t tasks = daemon_.Device().completed_tasks();
          const uint64_t uptime = daemon_.Status().uptime_ms();
          return Eventually([&] { return daemon_.Status().uptime_ms() > uptime + 50; }) &&
                 daemon_.Device().completed_tasks() == tasks;
        }));
        const auto removed = operators_->Remove("scaled");
        EXPECT_TRUE(removed.ok()) << removed.status();
        client::Installation other = Times("scaled", 5);
        other.Signature("x: in f32[*S], out: out f32[*S], ratio: scalar f32 = 1");
        MustInstall(other);
      });
  ExpectRefused(outcome.status, grpc::StatusCode::FAILED_PRECONDITION,
                {"node 'scaled0' (scaled)", "operator 'scaled' was replaced during the run"});
  EXPECT_EQ(daemon_.engine_pid(), engine);
}

// A version on trial beside the active one has to be executed node by node.
TEST_F(GraphQuantumOperatorsTest, ATracedRunHasNoShadow) {
  MustInstall(Times("scaled", 2));
  client::Installation second = Times("scaled", 3);
  second.WaitFor(v1::VERSION_STATE_LOADED);
  MustInstall(second);
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STATE, "x", {D(1)}).Output("y", {1});
  maker.Call("scaled", {"x", "y"});
  v1::RunGraphRequest traced = RunOf(maker);
  traced.set_trace(true);
  const GraphOutcome before = RunGraph(daemon_, client_, traced);
  EXPECT_TRUE(before.status.ok()) << before.status.error_message();
  ASSERT_EQ(before.events().size(), 1u);
  EXPECT_TRUE(operators_->Promote("scaled", /*shadow_percent=*/100, /*traffic_percent=*/0).ok());
  ExpectRefused(RunGraph(daemon_, client_, traced).status, grpc::StatusCode::FAILED_PRECONDITION,
                {"cannot be traced", "node by node", "on trial", "Fix: "});
  EXPECT_TRUE(RunGraph(daemon_, client_, RunOf(maker)).status.ok());
  EXPECT_TRUE(operators_->Promote("scaled", 0, 0).ok());
  EXPECT_TRUE(RunGraph(daemon_, client_, traced).status.ok());
}

// An installed version that faults in a graph is quarantined, and the version before serves again.
TEST_F(GraphQuantumOperatorsTest, TheVersionThatFaultsIsQuarantined) {
  MustInstall(Times("scaled", 2));
  MustInstall(Times("scaled", 3, "if (x[i] == 42.0f) *reinterpret_cast<volatile float*>(8) = 1;"));
  GraphMaker maker;
  maker.Input("x", {1}).Activation("a", {1}).Output("y", {1});
  maker.Call("relu", {"x", "a"}).Call("scaled", {"a", "y"});
  maker.node(1).set_name("scale");
  v1::RunGraphRequest request = RunOf(maker);
  v1::GraphBinding& x = Bind(request, "x");
  x.set_data(ToBytes<float>({1}));
  GraphOutcome outcome = RunGraph(daemon_, client_, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.floats(0), std::vector<float>{3});
  const pid_t engine = daemon_.engine_pid();
  x.set_data(ToBytes<float>({42}));
  ExpectRefused(RunGraph(daemon_, client_, request).status, grpc::StatusCode::ABORTED,
                {"node 'scale' (scaled)", "step 0", "scaled version 2"});
  ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
  outcome = RunGraph(daemon_, client_, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.floats(0), std::vector<float>{84});
  ASSERT_EQ(outcome.result.versions_size(), 2);
  EXPECT_EQ(outcome.result.versions(1).version(), 1u);
}

}  // namespace
}  // namespace resident::testing
