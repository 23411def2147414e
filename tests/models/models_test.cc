// Models on a real daemon: loads, requests over every interface, requests that run together, and
// what happens to requests when something ends. model_versions_test.cc has their versions.
#include "client/models.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "inference/open_inference.grpc.pb.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_maker.h"
#include "tests/graph/graph_runs.h"
#include "tests/graph/runnable_graph.h"
#include "tests/models/models_fixture.h"
#include "tests/models/traffic.h"
#include "tests/support/eventually.h"

namespace resident::testing {
namespace {

TEST_F(ModelsTest, ALoadedGraphServesRequestsOfEachSize) {
  const Mlp mlp(random_());
  EXPECT_EQ(MustLoad("rank", mlp), 1u);
  for (int round = 0; round < 100; ++round) {
    const int64_t rows = 1 + round % kRows;
    const Values x = RandomValues(random_, rows * kIn);
    const auto result = models_->Run(CallOf("rank", x));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->version(), 1u);
    ASSERT_EQ(result->outputs_size(), 2);
    EXPECT_TRUE(IsClose(result->outputs(0), mlp.Reference(x)));
    EXPECT_TRUE(IsClose(result->outputs(1), mlp.Reference(x), 2));
    EXPECT_EQ(result->output_types(0).shape(0), static_cast<uint64_t>(rows));
    EXPECT_EQ(result->output_types(0).shape(1), static_cast<uint64_t>(kOut));
  }
  // Chosen outputs, in the request's order, with a value of the scalar.
  const Values x = RandomValues(random_, kIn);
  v1::ModelCall call = CallOf("rank", x);
  call.add_outputs("s");
  call.add_outputs("y");
  (*call.mutable_scalars())["scale"] = -3;
  const auto result = models_->Run(call);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(IsClose(result->outputs(0), mlp.Reference(x), -3));
  EXPECT_TRUE(IsClose(result->outputs(1), mlp.Reference(x)));
  const v1::ModelVersion version = Describe("rank", 1);
  EXPECT_EQ(version.state(), v1::ModelVersion::STATE_ACTIVE);
  EXPECT_EQ(version.requests(), 101u);
  EXPECT_EQ(version.failed(), 0u);
  EXPECT_EQ(version.inputs(0).shape(0), -1);
  EXPECT_EQ(version.inputs(0).max(), static_cast<uint64_t>(kRows));
  ASSERT_EQ(version.scalars_size(), 1);
  EXPECT_EQ(version.scalars(0).name(), "scale");
}

TEST_F(ModelsTest, RequestsThatDoNotFitAreRefusedAndChangeNothing) {
  MustLoad("rank", Mlp(1));
  const Values x = RandomValues(random_, 2 * kIn);
  const v1::ModelCall good = CallOf("rank", x);
  struct Case {
    const char* part;
    absl::StatusCode code;
    std::function<void(v1::ModelCall&)> change;
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto input = [](v1::ModelCall& call) -> v1::ModelTensor& {
    return *call.mutable_inputs(0);
  };
  const Case cases[] = {
      {"there is no model 'rang'", absl::StatusCode::kNotFound,
       [](v1::ModelCall& call) { call.set_model("rang"); }},
      {"has no version 9", absl::StatusCode::kNotFound,
       [](v1::ModelCall& call) { call.set_version(9); }},
      {"needs the input 'x'", kInvalid, [](v1::ModelCall& call) { call.clear_inputs(); }},
      {"has no input 'z'", kInvalid, [&](v1::ModelCall& call) { input(call).set_name("z"); }},
      {"named twice", kInvalid, [&](v1::ModelCall& call) { *call.add_inputs() = input(call); }},
      {"dtype f64", kInvalid, [&](v1::ModelCall& call) { input(call).set_dtype(v1::DTYPE_F64); }},
      {"dtype 77", kInvalid,
       [&](v1::ModelCall& call) { input(call).set_dtype(static_cast<v1::DType>(77)); }},
      {"shape [2]", kInvalid,
       [&](v1::ModelCall& call) { input(call).mutable_shape()->Truncate(1); }},
      {"shape [2, 4]", kInvalid, [&](v1::ModelCall& call) { input(call).set_shape(1, 4); }},
      {"shape [0, 5]", kInvalid, [&](v1::ModelCall& call) { input(call).set_shape(0, 0); }},
      {"shape [7, 5]", kInvalid, [&](v1::ModelCall& call) { input(call).set_shape(0, 7); }},
      {"shape [18446744073709551615, 5]", kInvalid,
       [&](v1::ModelCall& call) { input(call).set_shape(0, UINT64_MAX); }},
      {"number of bytes 39", kInvalid,
       [&](v1::ModelCall& call) { input(call).mutable_data()->pop_back(); }},
      {"has no output 'h'", kInvalid, [](v1::ModelCall& call) { call.add_outputs("h"); }},
      {"named twice", kInvalid,
       [](v1::ModelCall& call) {
         call.add_outputs("y");
         call.add_outputs("y");
       }},
      {"'n' of model rank is the size", kInvalid,
       [](v1::ModelCall& call) { (*call.mutable_scalars())["n"] = 2; }},
      {"scale", kInvalid, [](v1::ModelCall& call) { (*call.mutable_scalars())["scale"] = 9; }},
      {"scala", kInvalid, [](v1::ModelCall& call) { (*call.mutable_scalars())["scala"] = 1; }},
  };
  for (const Case& each : cases) {
    v1::ModelCall call = good;
    each.change(call);
    ExpectError(models_->Run(call).status(), each.code, each.part);
  }
  EXPECT_TRUE(models_->Run(good).ok());
  EXPECT_EQ(Describe("rank", 1).requests(), 1u);
}

TEST_F(ModelsTest, LoadsThatCannotServeAreRefusedAndChangeNothing) {
  const Mlp mlp(2);
  const std::string w1 = ToBytes(mlp.w1), b1 = ToBytes(mlp.b1), w2 = ToBytes(mlp.w2);
  const Weights all = {{"w1", w1}, {"b1", b1}, {"w2", w2}};
  const v1::LoadModelHeader good = Header("rank", Mlp::Graph().graph);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto refuse = [&](const v1::LoadModelHeader& header, const Weights& weights,
                          absl::StatusCode code, const std::string& part) {
    ExpectError(models_->Load(header, weights).status(), code, part);
  };
  v1::LoadModelHeader header = good;
  for (const char* name : {"", "7up", "a/b"}) {
    header.set_name(name);
    refuse(header, all, kInvalid, "name of a model");
  }
  header.set_name("relu");
  refuse(header, all, absl::StatusCode::kAlreadyExists, "there is an operator 'relu'");
  header = good;
  header.clear_graph();
  refuse(header, {}, kInvalid, "neither a graph nor");
  header = good;
  header.set_instances(17);
  refuse(header, all, kInvalid, "17 instances");
  header = good;
  header.set_device(9);
  refuse(header, all, absl::StatusCode::kNotFound, "9");
  refuse(good, {{"w1", w1}, {"b1", b1}}, kInvalid, "weight 'w2' has 84 bytes, and 0 were sent");
  refuse(good, {{"w1", w1}, {"b1", b1}, {"w2", w2}, {"x", w2}}, kInvalid,
         "contents were sent for 'x'");
  const std::string longer = w2 + "1234";
  refuse(good, {{"w1", w1}, {"b1", b1}, {"w2", longer}}, kInvalid, "88 were sent");
  header = good;
  header.mutable_graph()->mutable_loop()->set_max_steps(2);
  refuse(header, all, kInvalid, "it has a loop");
  // A graph with errors is not an error of the call.
  header = good;
  header.mutable_graph()->mutable_nodes(0)->set_operator_("gemw");
  const auto report = models_->Load(header, all);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->version(), 0u);
  EXPECT_FALSE(report->report().accepted());
  EXPECT_GE(report->report().errors(), 1u);
  EXPECT_TRUE(models_->List()->empty());
}

TEST_F(ModelsTest, OperatorsAndModelsShareTheirNames) {
  MustLoad("rank", Mlp(3));
  client::Operators operators(*client_);
  const auto installed = operators.Install(client::Installation::Expression("rank", "x * 2"));
  ExpectError(installed.status(), absl::StatusCode::kAlreadyExists, "there is a model 'rank'");
  ASSERT_TRUE(models_->Remove("rank").ok());
  EXPECT_TRUE(operators.Install(client::Installation::Expression("rank", "x * 2")).ok());
  ExpectError(Load("rank", Mlp(3)).status(), absl::StatusCode::kAlreadyExists,
              "there is an operator 'rank'");
}

TEST_F(ModelsTest, RequestsWaitForAnInstanceAndAllAreServed) {
  MustLoadSlow("slow", /*ms=*/5, /*instances=*/2);
  std::vector<std::thread> threads;
  std::atomic<int> served{0};
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 4; ++i) {
        const auto result = models_->Run(SlowCall("slow"));
        ASSERT_TRUE(result.ok()) << result.status();
        ++served;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 64);
  EXPECT_LE(Describe("slow", 1).instances(), 2u);
  EXPECT_EQ(Describe("slow", 1).requests(), 64u);
}

// Sends requests from many threads until some have shared an execution: `send` gets a generator of
// its thread, and checks one answer.
class CrowdedModelsTest : public ModelsTest {
 protected:
  void SendUntilCombined(const std::string& model,
                         const std::function<void(std::mt19937& random)>& send) {
    Traffic traffic(/*threads=*/16, [&](std::mt19937& random) {
      send(random);
      return 0u;
    });
    EXPECT_TRUE(Eventually([&] {
      const v1::ModelVersion version = Describe(model, 1);
      return version.requests() > 1000 &&
             version.executions() + version.failed() + 100 < version.requests();
    })) << Describe(model, 1).ShortDebugString();
  }
};

TEST_F(CrowdedModelsTest, CombinedRequestsGetTheRowsThatTheyGetAlone) {
  const Mlp mlp(21);
  MustLoad("rank", mlp, /*instances=*/1);
  v1::LoadModelHeader header = Header("alone", Mlp::Graph().graph);
  header.set_max_combined_rows(1);
  const std::string w1 = ToBytes(mlp.w1), b1 = ToBytes(mlp.b1), w2 = ToBytes(mlp.w2);
  ASSERT_TRUE(models_->Load(header, {{"w1", w1}, {"b1", b1}, {"w2", w2}}).ok());
  EXPECT_EQ(Describe("rank", 1).max_batch(), static_cast<uint64_t>(kRows));
  EXPECT_EQ(Describe("alone", 1).max_batch(), 0u);
  // A GPU may take another path for more rows.
  const bool exact = daemon_.Device().engine() != "cuda";
  struct Case {
    Values x;
    v1::BatchResult alone;
    std::vector<double> expected;
  };
  std::vector<Case> cases;
  for (int i = 0; i < 60; ++i) {
    const Values x = RandomValues(random_, kIn * (1 + i % 3));
    const auto alone = models_->Run(CallOf("alone", x));
    ASSERT_TRUE(alone.ok()) << alone.status();
    const Values y = FromBytes<float>(alone->outputs(0));
    cases.push_back({x, *alone, {y.begin(), y.end()}});
  }
  std::atomic<uint64_t> rows{0};
  SendUntilCombined("rank", [&](std::mt19937& random) {
    const Case& each = cases[random() % cases.size()];
    v1::ModelCall call = CallOf("rank", each.x);
    // Requests with another scalar are not combined with those.
    const bool other = random() % 4 == 0;
    if (other) (*call.mutable_scalars())["scale"] = -3;
    const auto result = models_->Run(call);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(!exact || result->outputs(0) == each.alone.outputs(0));
    EXPECT_TRUE(IsClose(result->outputs(0), each.expected, 1, 1e-5));
    EXPECT_TRUE(IsClose(result->outputs(1), mlp.Reference(each.x), other ? -3 : 2));
    EXPECT_EQ(result->output_types(0).shape(0), each.x.size() / kIn);
    rows += each.x.size() / kIn;
  });
  const v1::ModelVersion version = Describe("rank", 1);
  EXPECT_EQ(version.failed(), 0u);
  EXPECT_EQ(version.rows(), rows);
  EXPECT_EQ(Describe("alone", 1).executions(), Describe("alone", 1).requests());
  // The statistics of the Open Inference Protocol count rows and executions.
  const auto stub = inference::GRPCInferenceService::NewStub(daemon_.Connect());
  grpc::ClientContext context;
  inference::ModelStatisticsRequest request;
  request.set_name("rank");
  inference::ModelStatisticsResponse response;
  ASSERT_TRUE(stub->ModelStatistics(&context, request, &response).ok());
  ASSERT_EQ(response.model_stats_size(), 1);
  EXPECT_EQ(response.model_stats(0).inference_count(), version.rows());
  EXPECT_EQ(response.model_stats(0).execution_count(), version.executions());
}

TEST_F(CrowdedModelsTest, OfCombinedRequestsOnlyTheGuiltyOneFails) {
  GraphMaker g;
  g.Scalar("n", 1, 16).Weight("table", {D(int64_t{4}), D(int64_t{2})});
  g.Tensor(v1::GraphTensor::KIND_INPUT, "ids", {D("n")}, v1::DTYPE_I64);
  g.Output("y", {D("n"), D(int64_t{2})}).Call("embedding", {"ids", "table", "y"});
  g.node(0).set_name("lookup");
  v1::LoadModelHeader header = Header("lookup", g.graph);
  header.set_instances(1);
  const std::string table = ToBytes<float>({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(models_->Load(header, {{"table", table}}).ok());
  std::atomic<uint64_t> guilty{0};
  SendUntilCombined("lookup", [&](std::mt19937& random) {
    v1::ModelCall call;
    call.set_model("lookup");
    v1::ModelTensor& ids = *call.add_inputs();
    ids.set_name("ids");
    ids.set_dtype(v1::DTYPE_I64);
    const uint64_t rows = 1 + random() % 3;
    ids.add_shape(rows);
    std::vector<int64_t> values;
    Values expected;
    for (uint64_t i = 0; i < rows; ++i) {
      values.push_back(static_cast<int64_t>(random() % 4));
      expected.push_back(static_cast<float>(2 * values[i]));
      expected.push_back(static_cast<float>(2 * values[i] + 1));
    }
    const bool wrong = random() % 20 == 0;
    if (wrong) values[random() % rows] = 4;
    ids.set_data(ToBytes(values));
    const auto result = models_->Run(call);
    if (wrong) {
      ++guilty;
      ExpectError(result.status(), absl::StatusCode::kInvalidArgument,
                  "node lookup: operator embedding version 1 refused its arguments");
      return;
    }
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(FromBytes<float>(result->outputs(0)), expected);
  });
  EXPECT_EQ(Describe("lookup", 1).failed(), guilty);
}

TEST_F(CrowdedModelsTest, RequestsThatEndDoNotDisturbThoseTheyAreCombinedWith) {
  const Mlp mlp(22);
  MustLoad("rank", mlp, /*instances=*/1);
  const auto executor = v1::Executor::NewStub(daemon_.Connect());
  SendUntilCombined("rank", [&](std::mt19937& random) {
    const Values x = RandomValues(random, kIn * (1 + random() % 2));
    const uint32_t kind = random() % 6;
    if (kind == 0) {
      // Its deadline passes while it waits, or while it runs, or not at all.
      const auto late = models_->Run(CallOf("rank", x), absl::Microseconds(random() % 3000));
      if (late.ok()) return;
      EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded) << late.status();
    } else if (kind == 1) {
      grpc::ClientContext context;
      v1::RunRequest request;
      *request.mutable_batch()->mutable_model() = CallOf("rank", x);
      v1::RunResponse response;
      std::thread cancel([&] { context.TryCancel(); });
      const grpc::Status status = executor->Run(&context, request, &response);
      cancel.join();
      EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED);
    } else {
      const auto result = models_->Run(CallOf("rank", x));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(IsClose(result->outputs(0), mlp.Reference(x)));
    }
  });
}

TEST_F(CrowdedModelsTest, AnOperatorThatIsInstalledIsNotCombined) {
  client::Operators operators(*client_);
  auto installation = client::Installation::Expression("twice", "x * 2");
  installation.WaitFor(v1::VERSION_STATE_ACTIVE);
  ASSERT_TRUE(operators.Install(installation).ok());
  GraphMaker g;
  g.Scalar("n", 1, 8).Input("x", {D("n"), D(kIn)}).Output("y", {D("n"), D(kIn)});
  g.Call("twice", {"x", "y"});
  g.node(0).set_name("double");
  ASSERT_TRUE(models_->Load(Header("m", g.graph), Weights()).ok());
  EXPECT_EQ(Describe("m", 1).max_batch(), 0u);
  EXPECT_EQ(Describe("m", 1).not_batched(),
            "node double (twice) is not known to compute each row by itself");
}

TEST_F(ModelsTest, ARequestThatWaitsEndsAtItsDeadlineOrWhenItIsCancelled) {
  MustLoadSlow("slow", /*ms=*/400, /*instances=*/1);
  std::thread busy([&] { EXPECT_TRUE(models_->Run(SlowCall("slow")).ok()); });
  ASSERT_TRUE(Eventually([&] { return daemon_.Device().ring().in_flight() > 0; }));
  ExpectError(models_->Run(SlowCall("slow"), absl::Milliseconds(20)).status(),
              absl::StatusCode::kDeadlineExceeded, "");
  const auto channel = daemon_.Connect();
  const auto executor = v1::Executor::NewStub(channel);
  grpc::ClientContext context;
  v1::RunRequest request;
  *request.mutable_batch()->mutable_model() = SlowCall("slow");
  std::thread cancel([&] { context.TryCancel(); });
  v1::RunResponse response;
  EXPECT_EQ(executor->Run(&context, request, &response).error_code(), grpc::StatusCode::CANCELLED);
  cancel.join();
  busy.join();
  EXPECT_TRUE(models_->Run(SlowCall("slow")).ok());
}

TEST_F(ModelsTest, AModelThatTakesTooLongIsEndedWithAnAnswer) {
  GraphMaker g;
  g.Output("y", {D(int64_t{1})}).Activation("a", {D(int64_t{1})});
  for (int i = 0; i < 8; ++i) g.Call("test.spin", {i < 7 ? "a" : "y", I(300'000'000)});
  ASSERT_TRUE(models_->Load(Header("slow", g.graph), Weights()).ok());
  ExpectError(models_->Run(SlowCall("slow")).status(), absl::StatusCode::kAborted,
              "did not end within 1000 ms");
  EXPECT_EQ(Describe("slow", 1).failed(), 1u);
  // The next request does not continue where that one ended.
  ExpectError(models_->Run(SlowCall("slow")).status(), absl::StatusCode::kAborted,
              "did not end within 1000 ms");
}

// Its operator is stopped within its code, by its time limit or by the request's deadline.
TEST_F(ModelsTest, AModelWhoseOperatorHangsFailsOnlyItsRequest) {
  const Mlp mlp(random_());
  MustLoad("rank", mlp);
  client::Operators operators(*client_);
  auto hangs = client::Installation::Source(
      "hangs", "hangs.cc",
      {{"hangs.cc",
        "RESIDENT_OPERATOR(hangs)(resident::Block& block, const resident::Args& args) {\n"
        "  auto x = args.tensor<const float>(0);\n"
        "  auto out = args.tensor<float>(1);\n"
        "  volatile float* const memory = out.data();\n"
        "  while (x.size() > 0 && x[0] == 42.0f) *memory = 1;\n"
        "  block.for_each(block.share(x.size()), [&](resident::i64 i) { out[i] = x[i]; });\n"
        "}\n"}});
  hangs.Signature("x: in f32[*S], out: out f32[*S]").TaskTimeLimit(absl::Milliseconds(100));
  hangs.WaitFor(v1::VERSION_STATE_ACTIVE);
  const auto installed = operators.Install(hangs);
  ASSERT_TRUE(installed.ok()) << installed.status();
  GraphMaker g;
  g.Input("x", {D(int64_t{4})}).Output("y", {D(int64_t{4})}).Call("hangs", {"x", "y"});
  ASSERT_TRUE(models_->Load(Header("m", g.graph), Weights()).ok());
  const auto call = [](const Values& values) {
    v1::ModelCall message;
    message.set_model("m");
    v1::ModelTensor& x = *message.add_inputs();
    x.set_name("x");
    x.set_dtype(v1::DTYPE_F32);
    x.add_shape(values.size());
    x.set_data(ToBytes(values));
    return message;
  };
  const pid_t engine = daemon_.engine_pid();
  std::atomic<bool> stop{false};
  std::atomic<int> served{0};
  std::thread others([&] {
    std::mt19937 random(1);
    while (!stop) {
      const Values x = RandomValues(random, kIn);
      const auto result = models_->Run(CallOf("rank", x));
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) return;
      EXPECT_TRUE(IsClose(result->outputs(0), mlp.Reference(x)));
      ++served;
    }
  });
  for (int round = 0; round < 5; ++round) {
    ExpectError(models_->Run(call({42, 1, 2, 3})).status(), absl::StatusCode::kAborted, "hangs");
    ExpectError(models_->Run(call({42, 1, 2, 3}), absl::Milliseconds(50)).status(),
                absl::StatusCode::kDeadlineExceeded, "");
    const auto good = models_->Run(call({4, 5, 6, 7}));
    ASSERT_TRUE(good.ok()) << good.status();
    EXPECT_EQ(FromBytes<float>(good->outputs(0)), (Values{4, 5, 6, 7}));
  }
  EXPECT_TRUE(Eventually([&, before = served.load()] { return served > before; }));
  stop = true;
  others.join();
  EXPECT_EQ(daemon_.engine_pid(), engine);
  EXPECT_EQ(daemon_.Device().restarts(), 0u);
  EXPECT_EQ(Describe("m", 1).failed(), 10u);
}

TEST_F(ModelsTest, ANodeThatRefusesItsArgumentsFailsOnlyItsRequest) {
  GraphMaker g;
  g.Weight("table", {D(int64_t{4}), D(int64_t{2})});
  g.Tensor(v1::GraphTensor::KIND_INPUT, "ids", {D(int64_t{2})}, v1::DTYPE_I64);
  g.Output("y", {D(int64_t{2}), D(int64_t{2})});
  g.Call("embedding", {"ids", "table", "y"});
  g.node(0).set_name("lookup");
  const std::string table = ToBytes<float>({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(models_->Load(Header("lookup", g.graph), {{"table", table}}).ok());
  const auto call = [](int64_t a, int64_t b) {
    v1::ModelCall message;
    message.set_model("lookup");
    v1::ModelTensor& ids = *message.add_inputs();
    ids.set_name("ids");
    ids.set_dtype(v1::DTYPE_I64);
    ids.add_shape(2);
    ids.set_data(ToBytes<int64_t>({a, b}));
    return message;
  };
  for (int i = 0; i < 20; ++i) {
    const auto good = models_->Run(call(3, 1));
    ASSERT_TRUE(good.ok()) << good.status();
    EXPECT_EQ(FromBytes<float>(good->outputs(0)), (Values{6, 7, 2, 3}));
    ExpectError(models_->Run(call(0, 4)).status(), absl::StatusCode::kInvalidArgument,
                "node lookup: operator embedding version 1 refused its arguments");
  }
  EXPECT_EQ(Describe("lookup", 1).failed(), 20u);
}

TEST_F(ModelsTest, AModelServesAgainAfterItsEngineEnded) {
  const Mlp mlp(6);
  MustLoad("rank", mlp);
  const Values x = RandomValues(random_, 3 * kIn);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(models_->Run(CallOf("rank", x)).ok());
    const pid_t engine = daemon_.engine_pid();
    ASSERT_EQ(kill(engine, SIGKILL), 0);
    ASSERT_TRUE(daemon_.AwaitAnotherEngine(engine));
    ASSERT_TRUE(Eventually([&] {
      const auto result = models_->Run(CallOf("rank", x));
      if (!result.ok()) {
        EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
        return false;
      }
      EXPECT_TRUE(IsClose(result->outputs(0), mlp.Reference(x)));
      return true;
    }));
  }
}

TEST_F(ModelsTest, AModelUsesTheOperatorsThatServeNow) {
  client::Operators operators(*client_);
  const auto install = [&](const char* formula) {
    auto installation = client::Installation::Expression("twice", formula);
    installation.WaitFor(v1::VERSION_STATE_ACTIVE);
    const auto installed = operators.Install(installation);
    ASSERT_TRUE(installed.ok()) << installed.status();
  };
  install("x * 2");
  GraphMaker g;
  g.Input("x", {D(int64_t{4})}).Output("y", {D(int64_t{4})}).Call("twice", {"x", "y"});
  ASSERT_TRUE(models_->Load(Header("m", g.graph), Weights()).ok());
  v1::ModelCall call;
  call.set_model("m");
  v1::ModelTensor& x = *call.add_inputs();
  x.set_name("x");
  x.set_dtype(v1::DTYPE_F32);
  x.add_shape(4);
  x.set_data(ToBytes<float>({1, 2, 3, 4}));
  const auto values = [&]() -> Values {
    const auto result = models_->Run(call);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? FromBytes<float>(result->outputs(0)) : Values();
  };
  EXPECT_EQ(values(), (Values{2, 4, 6, 8}));
  install("x * 3");
  EXPECT_EQ(values(), (Values{3, 6, 9, 12}));
  ASSERT_TRUE(operators.Rollback("twice").ok());
  EXPECT_EQ(values(), (Values{2, 4, 6, 8}));
  // The standby version on trial beside the active one does not disturb the model.
  ASSERT_TRUE(operators.Promote("twice", /*shadow_percent=*/100, /*traffic_percent=*/0).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(values(), (Values{2, 4, 6, 8}));
  ASSERT_TRUE(operators.Promote("twice", 0, 0).ok());
  ASSERT_TRUE(operators.Remove("twice").ok());
  const absl::Status gone = models_->Run(call).status();
  EXPECT_FALSE(gone.ok());
  EXPECT_NE(gone.message().find("twice"), std::string::npos) << gone;
}

TEST_F(ModelsTest, TheOpenInferenceProtocolServesModels) {
  const Mlp mlp(7);
  MustLoad("rank", mlp);
  const auto stub = inference::GRPCInferenceService::NewStub(daemon_.Connect());
  {
    grpc::ClientContext context;
    inference::ModelMetadataRequest request;
    request.set_name("rank");
    inference::ModelMetadataResponse metadata;
    ASSERT_TRUE(stub->ModelMetadata(&context, request, &metadata).ok());
    ASSERT_EQ(metadata.inputs_size(), 1);
    EXPECT_EQ(metadata.inputs(0).name(), "x");
    EXPECT_EQ(metadata.inputs(0).datatype(), "FP32");
    EXPECT_EQ(metadata.inputs(0).shape(0), -1);
    EXPECT_EQ(metadata.outputs_size(), 2);
    EXPECT_EQ(metadata.versions(0), "1");
  }
  {
    // The config leaves the batch out of the dimensions.
    grpc::ClientContext context;
    inference::ModelConfigRequest request;
    request.set_name("rank");
    inference::ModelConfigResponse response;
    ASSERT_TRUE(stub->ModelConfig(&context, request, &response).ok());
    EXPECT_EQ(response.config().max_batch_size(), kRows);
    ASSERT_EQ(response.config().input(0).dims_size(), 1);
    EXPECT_EQ(response.config().input(0).dims(0), kIn);
    EXPECT_EQ(response.config().output(0).dims_size(), 1);
  }
  const Values x = RandomValues(random_, 2 * kIn);
  inference::ModelInferRequest request;
  request.set_model_name("rank");
  request.set_id("seven");
  auto& input = *request.add_inputs();
  input.set_name("x");
  input.set_datatype("FP32");
  input.add_shape(2);
  input.add_shape(kIn);
  request.add_raw_input_contents(ToBytes(x));
  (*request.mutable_parameters())["scale"].set_double_param(4);
  request.add_outputs()->set_name("s");
  {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    const grpc::Status status = stub->ModelInfer(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.model_name(), "rank");
    EXPECT_EQ(response.model_version(), "1");
    EXPECT_EQ(response.id(), "seven");
    ASSERT_EQ(response.outputs_size(), 1);
    EXPECT_EQ(response.outputs(0).name(), "s");
    EXPECT_EQ(response.outputs(0).datatype(), "FP32");
    EXPECT_EQ(response.outputs(0).shape(0), 2);
    EXPECT_TRUE(IsClose(response.raw_output_contents(0), mlp.Reference(x), 4));
  }
  {
    grpc::ClientContext context;
    const auto stream = stub->ModelStreamInfer(&context);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(stream->Write(request));
    stream->WritesDone();
    inference::ModelStreamInferResponse response;
    int answers = 0;
    while (stream->Read(&response)) {
      EXPECT_EQ(response.error_message(), "");
      EXPECT_TRUE(IsClose(response.infer_response().raw_output_contents(0), mlp.Reference(x), 4));
      ++answers;
    }
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_EQ(answers, 20);
  }
  request.set_model_name("rank:batch");
  grpc::ClientContext context;
  inference::ModelInferResponse response;
  EXPECT_EQ(stub->ModelInfer(&context, request, &response).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

// A model of the graph of a run without a loop: each state becomes an input, which a node copies to
// an activation in the state's place. The call has what the run binds.
struct RunAsModel {
  explicit RunAsModel(const v1::RunGraphRequest& request) : graph(request.graph()) {
    std::map<std::string, std::string> bound;
    for (const v1::GraphBinding& each : request.bindings()) bound[each.tensor()] = each.data();
    call.mutable_scalars()->insert(request.scalars().begin(), request.scalars().end());
    google::protobuf::RepeatedPtrField<v1::GraphNode> nodes;
    const int tensors = graph.tensors_size();
    for (int i = 0; i < tensors; ++i) {
      v1::GraphTensor& tensor = *graph.mutable_tensors(i);
      const std::string name = tensor.name();
      if (tensor.kind() == v1::GraphTensor::KIND_STATE) {
        tensor.set_kind(v1::GraphTensor::KIND_ACTIVATION);
        if (!tensor.alias_of().empty()) continue;
        v1::GraphTensor input = tensor;
        input.set_name(absl::StrCat("first.", name));
        input.set_kind(v1::GraphTensor::KIND_INPUT);
        v1::GraphNode& copy = *nodes.Add();
        copy.set_operator_("copy");
        copy.add_arguments()->mutable_tensor()->set_name(input.name());
        copy.add_arguments()->mutable_tensor()->set_name(name);
        AddInput(input, bound[name]);
        *graph.add_tensors() = std::move(input);
      } else if (tensor.kind() == v1::GraphTensor::KIND_INPUT && tensor.alias_of().empty()) {
        AddInput(tensor, bound[name]);
      } else if (bound.contains(name)) {
        weights[name] = bound[name];
      }
    }
    for (v1::GraphNode& node : *graph.mutable_nodes()) *nodes.Add() = std::move(node);
    graph.mutable_nodes()->Swap(&nodes);
  }

  void AddInput(const v1::GraphTensor& tensor, const std::string& data) {
    v1::ModelTensor& input = *call.add_inputs();
    input.set_name(tensor.name());
    input.set_dtype(tensor.dtype());
    uint64_t bytes = client::SizeOf(tensor.dtype());
    for (const v1::GraphDim& dim : tensor.shape()) {
      input.add_shape(static_cast<uint64_t>(dim.size()));
      bytes *= static_cast<uint64_t>(dim.size());
    }
    input.set_data(data.empty() ? std::string(bytes, '\0') : data);
  }

  v1::Graph graph;
  v1::ModelCall call;
  std::map<std::string, std::string> weights;
};

TEST_F(ModelsTest, RandomGraphsGiveWhatGraphsRunGives) {
  std::mt19937_64 random(random_());
  const Client session(daemon_);
  int compared = 0;
  for (int i = 0; i < 600 && compared < 60; ++i) {
    v1::RunGraphRequest request = MakeRunnableGraph(random, /*nodes=*/30);
    if (request.graph().has_loop()) continue;
    request.mutable_graph()->set_fuse(false);
    const GraphOutcome expected = RunGraph(daemon_, session, request);
    ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
    RunAsModel model(request);
    model.call.set_model(absl::StrCat("r", i));
    const Weights weights(model.weights.begin(), model.weights.end());
    const auto loaded = models_->Load(Header(model.call.model(), model.graph), weights);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_TRUE(loaded->version() != 0) << FindingsText(loaded->report());
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto result = models_->Run(model.call);
      ASSERT_TRUE(result.ok()) << result.status();
      ASSERT_EQ(result->outputs_size(), expected.result.outputs_size());
      for (int k = 0; k < result->outputs_size(); ++k) {
        EXPECT_EQ(result->outputs(k), expected.result.outputs(k).data()) << "output " << k;
      }
    }
    ASSERT_TRUE(models_->Remove(model.call.model()).ok());
    ++compared;
  }
  EXPECT_GE(compared, 20);
}

class LimitedModelsTest : public ModelsTest {
 protected:
  LimitedModelsTest() : ModelsTest({"--max_host_mib=64", "--max_client_host_mib=64"}) {}
};

TEST_F(LimitedModelsTest, WeightsAreLimitedByTheDaemonsMemory) {
  GraphMaker g;
  g.Weight("w", {D(int64_t{5}), D(int64_t{1} << 20)}).Output("y", {D(int64_t{1} << 20)});
  g.Call("mean", {"w", "y", Named("axes", I(1))});
  const std::string bytes(uint64_t{20} << 20, '\0');
  int loaded = 0;
  absl::Status status;
  for (; loaded < 10 && status.ok(); ++loaded) {
    status = models_->Load(Header(absl::StrCat("m", loaded), g.graph), {{"w", bytes}}).status();
  }
  ExpectError(status, absl::StatusCode::kResourceExhausted, "daemon's memory");
  EXPECT_GT(loaded, 1);
  ASSERT_TRUE(models_->Remove("m0").ok());
  EXPECT_TRUE(Eventually([&] {
    return models_->Load(Header("m0", g.graph), {{"w", bytes}}).ok();
  }));
}

}  // namespace
}  // namespace resident::testing
