// Installed operators that are replaced, put on trial and fail while the engine executes runs that
// call them.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
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

// Elements of a record of ScaledTwice: so many that the daemon is only some hundred steps ahead of
// its client.
constexpr int64_t kWidth = 4096;

// A loop whose records are scaled(scaled(1)): 4, 6 or 9, for versions 1 and 2 that multiply by 2
// and 3. So a record shows how many of the two nodes each version executed.
v1::Graph ScaledTwice(uint64_t steps, int64_t width = kWidth) {
  GraphMaker maker;
  maker.Input("x", {width}).Activation("a", {width});
  maker.Tensor(Kind::KIND_STREAM, "y", {D(static_cast<int64_t>(steps)), D(width)});
  maker.Call("scaled", {"x", "a"}).Call("scaled", {"a", "y"});
  maker.graph.mutable_loop()->set_max_steps(steps);
  return maker.graph;
}

void BindOnes(v1::RunGraphRequest& request, int64_t width = kWidth) {
  Bind(request, "x").set_data(ToBytes(std::vector<float>(static_cast<size_t>(width), 1)));
}

float ReadRecord(const v1::GraphStep& step) {
  float y = 0;
  std::memcpy(&y, step.records(0).data().data(), sizeof(y));
  return y;
}

// The record of ScaledTwice that these versions compute.
template <typename Versions>
float RecordOf(const Versions& versions) {
  float y = 1;
  for (const v1::GraphVersion& each : versions) {
    EXPECT_EQ(each.operator_(), "scaled");
    for (uint64_t i = 0; i < each.tasks(); ++i) y *= static_cast<float>(each.version() + 1);
  }
  return y;
}

// Follows the versions of a run of ScaledTwice, as a client of the stream has to.
class SentVersions {
 public:
  // Checks that the versions of the step are those that computed its record, and that they were
  // sent only if they changed.
  void Take(const v1::GraphStep& step) {
    const float y = ReadRecord(step);
    const bool sent = step.versions_size() > 0;
    EXPECT_EQ(sent, seen_.empty() || y != last_) << "step " << step.step();
    if (sent) versions_ = step.versions();
    EXPECT_EQ(RecordOf(versions_), y) << "step " << step.step();
    for (const v1::GraphVersion& each : versions_) tasks_[each.version()] += each.tasks();
    last_ = y;
    ++seen_[y];
  }
  // The steps with each record.
  const std::map<float, uint64_t>& seen() const { return seen_; }
  uint64_t steps(float y) const { return seen_.count(y) == 0 ? 0 : seen_.at(y); }
  // That the result of the run, which has ended, is the sum of its steps.
  void ExpectSum(const v1::GraphResult& result) const {
    std::map<uint32_t, uint64_t> tasks;
    for (const v1::GraphVersion& each : result.versions()) tasks[each.version()] += each.tasks();
    EXPECT_EQ(tasks, tasks_);
  }

 private:
  google::protobuf::RepeatedPtrField<v1::GraphVersion> versions_;
  float last_ = 0;
  std::map<float, uint64_t> seen_;
  std::map<uint32_t, uint64_t> tasks_;
};

class GraphQuantumOperatorsTest : public ::testing::Test {
 protected:
  GraphQuantumOperatorsTest() : GraphQuantumOperatorsTest({"--cpu_workers=2"}) {}
  explicit GraphQuantumOperatorsTest(const std::vector<std::string>& flags)
      : daemon_(flags), client_(daemon_) {
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
  // Versions 1 and 2 of "scaled", which multiply by 2 and 3. Version 2 serves.
  void InstallTwoVersions() {
    MustInstall(Times("scaled", 2));
    MustInstall(Times("scaled", 3));
  }
  // Version 1 multiplies by 2 and serves; version 2 is loaded.
  void InstallAndLoad(client::Installation second) {
    MustInstall(Times("scaled", 2));
    second.WaitFor(v1::VERSION_STATE_LOADED);
    MustInstall(std::move(second));
  }
  // Begins a trial of version 2 that ends only by a further call.
  void PromoteWithoutBake(double shadow_percent, double traffic) {
    client::ChangeOptions never;
    never.bake.set_action(v1::BakeOptions::ACTION_OFF);
    const auto promoted = operators_->Promote("scaled", shadow_percent, traffic, never);
    EXPECT_TRUE(promoted.ok()) << promoted.status();
  }

  // Runs ScaledTwice once.
  GraphOutcome RunScaledTwice(uint64_t steps, const OnGraphStep& on_step, int64_t width = kWidth) {
    v1::RunGraphRequest request;
    *request.mutable_graph() = ScaledTwice(steps, width);
    BindOnes(request, width);
    return RunGraph(daemon_, client_, request, on_step);
  }

  const Daemon daemon_;
  const Client client_;
  std::unique_ptr<client::Client> connection_;
  std::unique_ptr<client::Operators> operators_;
};

class NodeByNodeOperatorsTest : public GraphQuantumOperatorsTest {
 protected:
  NodeByNodeOperatorsTest()
      : GraphQuantumOperatorsTest({"--cpu_workers=2", "--graphs_in_engine=false"}) {}
};

// Versions change under a run. Both nodes of a step use one version, since a step ends on the
// versions with which it began, and its record names this version.
TEST_F(GraphQuantumOperatorsTest, AStepUsesOneVersion) {
  InstallTwoVersions();
  std::atomic<float> last{0};
  std::atomic<bool> stop{false};
  SentVersions versions;
  GraphOutcome outcome;
  std::thread run([&] {
    const auto take = [&](const v1::GraphStep& step, grpc::ClientContext& context) {
      versions.Take(step);
      last = ReadRecord(step);
      if (stop) context.TryCancel();
    };
    outcome = RunScaledTwice(1'000'000, take, /*width=*/1);
  });
  EXPECT_TRUE(Eventually([&] { return last == 9; }));
  for (int i = 0; i < 10 && !HasFailure(); ++i) {
    const uint32_t version = i % 2 == 0 ? 1 : 2;
    EXPECT_TRUE(operators_->Activate("scaled", {.version = version}).ok());
    EXPECT_TRUE(Eventually([&] { return last == (version == 1 ? 4 : 9); }));
  }
  stop = true;
  run.join();
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_GT(versions.steps(4), 0u);
  EXPECT_GT(versions.steps(9), 0u);
  EXPECT_EQ(versions.seen().size(), 2u);
}

// The client's library gives each step its versions, also those that were not sent again, when a
// version is activated within a run and between two runs of a session.
TEST_F(GraphQuantumOperatorsTest, EachStepOfASessionHasItsVersions) {
  InstallTwoVersions();
  constexpr uint64_t kSteps = 1 << 14;
  const auto loaded = connection_->LoadGraph(ScaledTwice(kSteps));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(loaded->graph_id());
  auto session = connection_->OpenGraphSession(open);
  ASSERT_TRUE(session.ok()) << session.status();
  uint32_t active = 2;
  const auto activate = [&](uint32_t version) {
    EXPECT_TRUE(operators_->Activate("scaled", {.version = version}).ok());
    active = version;
  };
  const auto run = [&](uint64_t steps, const std::function<void(float)>& on_record) {
    v1::RunGraphRequest request;
    BindOnes(request);
    request.set_max_steps(steps);
    uint64_t count = 0;
    const auto result = session->Run(request, [&](const v1::GraphStep& step) {
      const float y = ReadRecord(step);
      EXPECT_EQ(RecordOf(step.versions()), y) << "step " << step.step();
      ++count;
      on_record(y);
    });
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(count, steps);
  };
  const auto expect_active = [&](float y) { EXPECT_EQ(y, active == 1 ? 4 : 9); };
  run(4, expect_active);
  activate(1);
  run(4, expect_active);
  int changes = 0;
  run(kSteps, [&](float y) {
    if (changes == 4 || y != (active == 1 ? 4 : 9)) return;
    activate(3 - active);
    ++changes;
  });
  EXPECT_EQ(changes, 4);
  run(4, expect_active);
}

// Node by node, each node chooses its version: with a quarter of the requests on version 2, some
// steps use two versions.
TEST_F(NodeByNodeOperatorsTest, AStepNamesEachVersionThatExecutedANode) {
  InstallAndLoad(Times("scaled", 3));
  PromoteWithoutBake(/*shadow_percent=*/0, /*traffic=*/25);
  SentVersions versions;
  const GraphOutcome outcome = RunScaledTwice(
      40, [&](const v1::GraphStep& step, grpc::ClientContext&) { versions.Take(step); });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.steps.size(), 40u);
  EXPECT_GT(versions.steps(4), 0u);
  EXPECT_GT(versions.steps(6), 0u);
  versions.ExpectSum(outcome.result);
}

// A version is activated while steps are executed node by node, and with it within some of them.
TEST_F(NodeByNodeOperatorsTest, VersionsChangeWithinSteps) {
  InstallTwoVersions();
  SentVersions versions;
  uint32_t active = 2;
  int changes = 0;
  const GraphOutcome outcome =
      RunScaledTwice(1'000'000, [&](const v1::GraphStep& step, grpc::ClientContext& context) {
        versions.Take(step);
        if (ReadRecord(step) != (active == 1 ? 4 : 9)) return;
        active = 3 - active;
        EXPECT_TRUE(operators_->Activate("scaled", {.version = active}).ok());
        if (++changes == 4) context.TryCancel();
      });
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(changes, 4);
  EXPECT_GT(versions.steps(4), 0u);
  EXPECT_GT(versions.steps(9), 0u);
}

// A trial with a shadow lets a run change between quanta and steps that are executed node by node,
// and its share of the requests lets both use either version.
TEST_F(GraphQuantumOperatorsTest, VersionsOfStepsInQuantaAndNodeByNode) {
  InstallAndLoad(Times("scaled", 3));
  PromoteWithoutBake(/*shadow_percent=*/25, /*traffic=*/25);
  std::map<float, uint64_t> seen;
  for (int i = 0; i < 40; ++i) {
    SentVersions versions;
    const GraphOutcome outcome = RunScaledTwice(
        8, [&](const v1::GraphStep& step, grpc::ClientContext&) { versions.Take(step); });
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    versions.ExpectSum(outcome.result);
    for (const auto& [y, steps] : versions.seen()) seen[y] += steps;
  }
  EXPECT_GT(seen[4], 0u);
  EXPECT_GT(seen[9], 0u);
  EXPECT_GT(connection_->DescribeOperator("scaled")->trial().shadow_tasks(), 0u);
}

// A run does not call an operator that was removed and installed again with other parameters.
TEST_F(GraphQuantumOperatorsTest, AnOperatorThatIsReplacedByAnother) {
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STATE, "x", {D(1)});
  maker.Tensor(Kind::KIND_STREAM, "y", {D(1'000'000), D(1)});
  maker.Call("scaled", {"x", "y"});
  maker.graph.mutable_loop()->set_max_steps(1'000'000);
  const pid_t engine = daemon_.engine_pid();
  const auto remove = [&] {
    const auto removed = operators_->Remove("scaled");
    EXPECT_TRUE(removed.ok()) << removed.status();
  };
  GraphOutcome outcome;
  // A run that has not paused may find no operator between the two.
  for (int i = 0; i < 20 && !HasFailure(); ++i) {
    if (i > 0) remove();
    MustInstall(Times("scaled", 2));
    bool replaced = false;
    outcome =
        RunGraph(daemon_, client_, RunOf(maker), [&](const v1::GraphStep&, grpc::ClientContext&) {
          if (std::exchange(replaced, true)) return;
          // The run pauses, because its records are not read.
          EXPECT_TRUE(Eventually([&] {
            const uint64_t tasks = daemon_.Device().completed_tasks();
            const uint64_t uptime = daemon_.Status().uptime_ms();
            return Eventually([&] { return daemon_.Status().uptime_ms() > uptime + 50; }) &&
                   daemon_.Device().completed_tasks() == tasks;
          }));
          remove();
          client::Installation other = Times("scaled", 5);
          other.Signature("x: in f32[*S], out: out f32[*S], ratio: scalar f32 = 1");
          MustInstall(other);
        });
    if (outcome.status.error_code() != grpc::StatusCode::NOT_FOUND) break;
  }
  ExpectRefused(outcome.status, grpc::StatusCode::FAILED_PRECONDITION,
                {"node 'scaled0' (scaled)", "operator 'scaled' was replaced during the run"});
  EXPECT_EQ(daemon_.engine_pid(), engine);
}

// A version on trial beside the active one has to be executed node by node.
TEST_F(GraphQuantumOperatorsTest, ATracedRunHasNoShadow) {
  InstallAndLoad(Times("scaled", 3));
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

// A version runs as a shadow of the active one: steps are executed node by node meanwhile, each
// call is compared, and the results are those of the active version.
TEST_F(GraphQuantumOperatorsTest, AShadowIsComparedInEachStep) {
  InstallAndLoad(Times("scaled", 2, "if (x[i] >= 64.0f) { out[i] = 0; return; }"));
  constexpr int kSteps = 20;  // The values of the state are 1, 4, 16, ... to 4^19.
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STATE, "x", {D(1)}).Activation("a", {1}).Activation("b", {1});
  maker.Tensor(Kind::KIND_STREAM, "y", {D(kSteps), D(1)});
  maker.Call("scaled", {"x", "a"}).Call("scaled", {"a", "b"});
  maker.Call("copy", {"b", "y"}).Call("copy", {"b", "x"});
  maker.graph.mutable_loop()->set_max_steps(kSteps);
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_data(ToBytes<float>({1}));
  std::vector<float> expected;
  for (float y = 4; expected.size() < kSteps; y *= 4) expected.push_back(y);

  const auto run = [&] {
    const uint64_t before = daemon_.Device().completed_tasks();
    const GraphOutcome outcome = RunGraph(daemon_, client_, request);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.stream<float>(), expected);
    for (const v1::GraphVersion& version : outcome.result.versions()) {
      EXPECT_EQ(version.version(), 1u);
      EXPECT_EQ(version.tasks(), 2u * kSteps);
    }
    return daemon_.Device().completed_tasks() - before;
  };
  EXPECT_LT(run(), 2u * kSteps);  // Quanta.
  PromoteWithoutBake(/*shadow_percent=*/100, /*traffic=*/0);
  EXPECT_GT(run(), 4u * kSteps);  // Nodes.
  v1::Trial trial = connection_->DescribeOperator("scaled")->trial();
  EXPECT_EQ(trial.shadow_tasks(), 2u * kSteps);
  // Of the arguments 1, 2, 4, ... to 2^39 all but the first six.
  EXPECT_EQ(trial.shadow_mismatches(), 2u * kSteps - 6);
  ASSERT_TRUE(operators_->Promote("scaled", 0, 0).ok());
  EXPECT_LT(run(), 2u * kSteps);
}

// The shadow of a share of the requests has its share of a run too.
TEST_F(GraphQuantumOperatorsTest, AShadowOfAShareIsComparedInItsShareOfTheQuanta) {
  InstallAndLoad(Times("scaled", 3));
  PromoteWithoutBake(/*shadow_percent=*/25, /*traffic=*/0);
  GraphMaker maker;
  maker.Input("x", {1}).Output("y", {1}).Call("scaled", {"x", "y"});
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_data(ToBytes<float>({5}));
  constexpr int kRuns = 40;  // Of one quantum each.
  for (int i = 0; i < kRuns; ++i) {
    EXPECT_EQ(RunGraph(daemon_, client_, request).floats(), std::vector<float>{10});
  }
  const v1::Trial trial = connection_->DescribeOperator("scaled")->trial();
  EXPECT_EQ(trial.shadow_tasks(), kRuns / 4u);
  EXPECT_EQ(trial.shadow_mismatches(), kRuns / 4u);
}

// The form of the largest graph, with as many arguments and dimensions that depend on scalars as
// there can be, has more than 256 MiB: its nodes are executed one by one.
TEST_F(GraphQuantumOperatorsTest, AGraphWhoseFormIsTooLarge) {
  constexpr int kNodes = 1 << 16;
  constexpr int kInputs = 13;
  std::string signature;
  for (int i = 0; i < kInputs; ++i) {
    absl::StrAppend(&signature, "x", i, ": in strided f32[*S], ");
  }
  // `at`: an element by its position in row-major order.
  client::Installation wide = client::Installation::Source(
      "wide", "wide.cc",
      {{"wide.cc", absl::StrCat(R"(RESIDENT_OPERATOR(wide)(resident::Block& block,
    const resident::Args& args) {
  constexpr resident::u32 kInputs = )",
                                kInputs, R"(;
  auto out = args.tensor<float>(kInputs);
  const auto at = [](const auto& tensor, resident::i64 i) -> auto& {
    resident::i64 offset = 0;
    for (resident::u32 d = tensor.rank(); d-- > 0; i /= tensor.shape(d)) {
      offset += i % tensor.shape(d) * tensor.stride(d);
    }
    return tensor.data()[offset];
  };
  block.for_each(block.share(out.size()), [&](resident::i64 i) {
    float sum = 0;
    for (resident::u32 k = 0; k < kInputs; ++k) sum += at(args.tensor<const float>(k), i);
    at(out, i) = sum;
  });
}
)")}});
  wide.Signature(signature + "out: out strided f32[*S]");
  wide.header().set_allow_spills(true);  // On a GPU.
  wide.WaitFor(v1::VERSION_STATE_ACTIVE);
  MustInstall(wide);
  GraphMaker maker;
  maker.Scalar("n", 1, 2);
  const std::vector<Dim> shape(8, D("n"));
  maker.Input("x", shape);
  maker.Tensor(Kind::KIND_STATE, "a", shape).Tensor(Kind::KIND_STATE, "b", shape);
  maker.Output("y", {1});
  for (int node = 0; node < kNodes - 1; ++node) {
    std::vector<Arg> arguments(kInputs - 1, "x");
    arguments.emplace_back(node % 2 == 0 ? "a" : "b");
    arguments.emplace_back(node % 2 == 0 ? "b" : "a");
    maker.Call("wide", std::move(arguments));
  }
  maker.Call("copy", {View("b", {1}), "y"});
  v1::RunGraphRequest request = RunOf(maker);
  (*request.mutable_scalars())["n"] = 1;
  Bind(request, "x").set_data(ToBytes(std::vector<float>(256, 0.25f)));
  const uint64_t before = daemon_.Device().completed_tasks();
  // So many tasks, one after the other, may take longer than a minute.
  const auto context = client_.Context();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(4));
  const GraphOutcome outcome = RunGraph(*v1::Graphs::NewStub(daemon_.Connect()), *context, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.floats(), std::vector<float>{0.25f * (kInputs - 1) * (kNodes - 1)});
  EXPECT_GE(daemon_.Device().completed_tasks() - before, uint64_t{kNodes});
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
