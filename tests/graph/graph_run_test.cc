// Runs of graphs, by a real daemon over real gRPC. Expected values are computed here, node by node
// in the graph's order, without any schedule.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/admin.grpc.pb.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {
namespace {

using ::testing::Pointwise;

using Kind = v1::GraphTensor;

// Products of random numbers can overflow, and infinity times 0 is NaN.
MATCHER(EqualsOrBothAreNan, "") {
  const auto& [got, expected] = arg;
  return got == expected || (std::isnan(got) && std::isnan(expected));
}

class GraphRunTest : public DaemonTest {
 protected:
  GraphOutcome Run(const v1::RunGraphRequest& request, const OnGraphStep& on_step = nullptr) {
    return RunGraph(*daemon_, client_, request, on_step);
  }
  GraphOutcome RunOk(const v1::RunGraphRequest& request) {
    GraphOutcome outcome = Run(request);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    return outcome;
  }

  std::vector<float> Random(size_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(count);
    for (float& value : values) value = uniform(random_);
    return values;
  }
  int Below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }

  // A loop that returns its step's number in a stream: 0, 1, 2...
  static GraphMaker CountingLoop(uint64_t steps) {
    GraphMaker maker;
    maker.Scalar("pos", 0, 1e9);
    maker.graph.mutable_scalars(0)->set_initial(0);
    maker.Tensor(Kind::KIND_STREAM, "count", {D(static_cast<int64_t>(steps)), D(1)}, v1::DTYPE_F64);
    maker.Tensor(Kind::KIND_OUTPUT, "last", {D(1)}, v1::DTYPE_F64);
    maker.Call("fill", {"last", F(1)}).Call("fill", {"count", F(1)});
    maker.graph.mutable_loop()->set_max_steps(steps);
    return maker;
  }

  std::mt19937 random_{std::random_device{}()};
};

TEST_F(GraphRunTest, APipelineEqualsItsOperatorsOneByOne) {
  GraphMaker maker;
  maker.Input("x", {3, 64}).Input("w", {64}).Output("y", {3, 64});
  for (const char* name : {"n", "a", "b", "p"}) maker.Activation(name, {3, 64});
  maker.Call("rmsnorm", {"x", "w", "n", F(1e-5)})
      .Call("silu", {"n", "a"})
      .Call("relu", {"n", "b"})
      .Call("mul", {"a", "b", "p"})
      .Call("softmax", {"p", "y"});
  maker.graph.set_fuse(false);  // Otherwise silu and mul are one operator.
  const std::vector<float> x = Random(192), w = Random(64);
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_data(ToBytes(x));
  Bind(request, "w").set_data(ToBytes(w));
  const GraphOutcome outcome = RunOk(request);

  const auto one = [&](const char* op, const std::vector<std::vector<float>>& inputs, bool eps) {
    v1::Batch batch = Tasks(op, 1);
    for (const auto& input : inputs) {
      if (input.size() == 64) {
        Inline(batch, {64}, input);
      } else {
        Inline(batch, {3, 64}, input);
      }
    }
    Returned(batch, {3, 64});
    if (eps) batch.mutable_tasks()->add_arguments()->mutable_scalar()->add_f64(1e-5);
    const RunOutcome task = client_.Run(batch);
    EXPECT_TRUE(task.all_ok()) << op << ": " << task.message();
    return Floats(task.result);
  };
  const auto n = one("rmsnorm", {x, w}, true);
  const auto p = one("mul", {one("silu", {n}, false), one("relu", {n}, false)}, false);
  EXPECT_EQ(outcome.output(0).tensor(), "y");
  EXPECT_EQ(outcome.floats(), one("softmax", {p}, false));
  EXPECT_EQ(outcome.result.steps(), 1u);
  EXPECT_EQ(outcome.result.end(), v1::GraphResult::END_STEPS);
  EXPECT_EQ(outcome.result.versions_size(), 5);
  EXPECT_EQ(outcome.result.versions(0).version(), 1u);
}

// Memory is used again and again, so that most nodes wait for readers and writers of earlier
// values.
TEST_F(GraphRunTest, RandomGraphsEqualTheirNodesInOrder) {
  constexpr int kTensors = 12, kElements = 40;
  for (int round = 0; round < 10; ++round) {
    GraphMaker maker;
    std::vector<std::vector<float>> values(kTensors);
    v1::RunGraphRequest request;
    for (int i = 0; i < kTensors; ++i) {
      const std::string name = "t" + std::to_string(i);
      values[i] = Random(kElements);
      maker.State(name, {kElements});
      Bind(request, name).set_data(ToBytes(values[i]));
      maker.Output("o" + std::to_string(i), {kElements});
    }
    const int nodes = 50 + Below(250);
    for (int node = 0; node < nodes; ++node) {
      const int x = Below(kTensors), y = Below(kTensors);
      int out = Below(kTensors);
      while (out == x || out == y) out = Below(kTensors);
      const auto name = [](int i) { return "t" + std::to_string(i); };
      // Parts of tensors, too.
      const int first = Below(kElements / 2), count = 1 + Below(kElements / 2);
      const auto part = [&](int i) { return View(name(i), {D(count)}, first); };
      const int op = Below(3);
      if (op == 0) maker.Call("add", {part(x), part(y), part(out)});
      if (op == 1) maker.Call("mul", {part(x), part(y), part(out)});
      if (op == 2) maker.Call("relu", {part(x), part(out)});
      for (int i = first; i < first + count; ++i) {
        values[out][i] = op == 0   ? values[x][i] + values[y][i]
                         : op == 1 ? values[x][i] * values[y][i]
                                   : std::max(values[x][i], 0.0f);
      }
    }
    for (int i = 0; i < kTensors; ++i) {
      maker.Call("copy", {"t" + std::to_string(i), "o" + std::to_string(i)});
    }
    *request.mutable_graph() = maker.graph;
    const GraphOutcome outcome = RunOk(request);
    for (int i = 0; i < kTensors; ++i) {
      EXPECT_THAT(outcome.floats(i), Pointwise(EqualsOrBothAreNan(), values[i])) << "tensor " << i;
    }
  }
}

TEST_F(GraphRunTest, LoopUpdatesScalarsAndSendsARecordForEachStep) {
  GraphMaker maker = CountingLoop(300);
  maker.graph.clear_nodes();
  maker.Call("fill", {"count", S("pos", 2, 1)}).Call("fill", {"last", S("pos")});
  maker.graph.mutable_scalars(0)->set_dtype(v1::DTYPE_F32);
  v1::GraphUpdate& update = *maker.graph.mutable_loop()->add_updates();
  update.set_scalar("pos");
  update.set_addend(3);
  v1::RunGraphRequest request = RunOf(maker);
  (*request.mutable_scalars())["pos"] = 5;
  request.set_max_steps(200);
  const GraphOutcome outcome = RunOk(request);
  ASSERT_EQ(outcome.steps.size(), 200u);
  for (size_t i = 0; i < outcome.steps.size(); ++i) {
    EXPECT_EQ(outcome.steps[i].step(), i);
    ASSERT_EQ(outcome.steps[i].records_size(), 1);
    EXPECT_EQ(FromBytes<double>(outcome.steps[i].records(0).data()),
              std::vector<double>{2.0 * (5 + 3.0 * static_cast<double>(i)) + 1});
  }
  EXPECT_EQ(FromBytes<double>(outcome.output(0).data()), std::vector<double>{5 + 3.0 * 199});
}

TEST_F(GraphRunTest, LoopEndsAtAStopValueAndAtTheEndOfAScalarsRange) {
  GraphMaker maker;
  maker.Scalar("pos", 0, 6);
  maker.Tensor(Kind::KIND_STATE, "n", {D(1)}, v1::DTYPE_I32);
  maker.Tensor(Kind::KIND_INPUT, "one", {D(1)}, v1::DTYPE_I32);
  maker.Tensor(Kind::KIND_OUTPUT, "next", {D(1)}, v1::DTYPE_I32);
  maker.Call("add", {"n", "one", "next"}).Call("copy", {"next", "n"});
  v1::GraphLoop& loop = *maker.graph.mutable_loop();
  loop.set_max_steps(7);
  loop.add_updates()->set_scalar("pos");
  loop.mutable_updates(0)->set_addend(1);
  loop.mutable_stop()->set_tensor("next");
  loop.mutable_stop()->add_values(4);
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "one").set_data(ToBytes<int32_t>({1}));
  (*request.mutable_scalars())["pos"] = 0;
  GraphOutcome outcome = RunOk(request);
  EXPECT_EQ(outcome.result.end(), v1::GraphResult::END_STOP);
  EXPECT_EQ(outcome.result.steps(), 4u);
  EXPECT_EQ(FromBytes<int32_t>(outcome.output(0).data()), std::vector<int32_t>{4});

  request.mutable_graph()->mutable_loop()->mutable_stop()->set_values(0, 100);
  (*request.mutable_scalars())["pos"] = 3;
  outcome = RunOk(request);
  EXPECT_EQ(outcome.result.end(), v1::GraphResult::END_SCALAR_RANGE);
  EXPECT_EQ(outcome.result.steps(), 4u);  // 3 to 6.

  request.set_max_steps(3);
  outcome = RunOk(request);
  EXPECT_EQ(outcome.result.end(), v1::GraphResult::END_STEPS);
  EXPECT_EQ(outcome.result.steps(), 3u);
}

TEST_F(GraphRunTest, StateInABufferIsKeptBetweenRuns) {
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STATE, "sum", {D(4)}).Input("x", {4}).Activation("new", {4});
  maker.Output("out", {4});
  maker.Call("add", {"sum", "x", "new"}).Call("copy", {"new", "sum"}).Call("copy", {"new", "out"});
  uint64_t buffer = 0;
  ASSERT_TRUE(client_.Allocate(4, &buffer).ok());
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_data(ToBytes<float>({1, 2, 3, 4}));
  const GraphOutcome fresh = RunOk(request);
  EXPECT_EQ(fresh.floats(), (std::vector<float>{1, 2, 3, 4}));

  Bind(request, "sum").set_data(ToBytes<float>({10, 10, 10, 10}));
  EXPECT_EQ(RunOk(request).floats(), (std::vector<float>{11, 12, 13, 14}));

  v1::Batch zero = Tasks("zero", 1);
  v1::BufferColumn& column = *zero.mutable_tasks()->add_arguments()->mutable_buffer();
  column.add_buffer_ids(buffer);
  ASSERT_TRUE(client_.Run(zero).all_ok());
  request.mutable_bindings(1)->set_buffer_id(buffer);
  for (int run = 1; run <= 3; ++run) {
    const auto k = static_cast<float>(run);
    EXPECT_EQ(RunOk(request).floats(), (std::vector<float>{k, 2 * k, 3 * k, 4 * k}));
  }
}

// Dimensions that depend on scalars, a tensor that is left out, and one without dimensions.
TEST_F(GraphRunTest, DynamicShapesAbsentAndScalarTensors) {
  GraphMaker maker;
  maker.Scalar("rows", 1, 8);
  maker.Input("x", {D(8), D(4)}).Input("w", {2, 4});
  maker.Tensor(Kind::KIND_OUTPUT, "y", {D("rows"), D(2)});
  maker.Call("gemv", {View("x", {D("rows"), D(4)}), "w", None(), "y"});
  v1::RunGraphRequest request = RunOf(maker);
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  Bind(request, "x").set_data(ToBytes(x));
  Bind(request, "w").set_data(ToBytes<float>({1, 0, 0, 0, 0, 1, 1, 0}));
  (*request.mutable_scalars())["rows"] = 3;
  const GraphOutcome outcome = RunOk(request);
  EXPECT_EQ(outcome.floats(), (std::vector<float>{0, 3, 4, 11, 8, 19}));
  ASSERT_EQ(outcome.output(0).shape_size(), 2);
  EXPECT_EQ(outcome.output(0).shape(0), 3u);

  GraphMaker norm;
  norm.Tensor(Kind::KIND_INPUT, "partial", {D(2)}, v1::DTYPE_F64).Output("norm", {});
  norm.Call("grad_norm", {"partial", "norm"});
  v1::RunGraphRequest scalar = RunOf(norm);
  Bind(scalar, "partial").set_data(ToBytes<double>({9, 16}));
  EXPECT_EQ(RunOk(scalar).floats(), std::vector<float>{5});
}

TEST_F(GraphRunTest, AFailingNodeIsNamed) {
  GraphMaker maker;
  maker.Tensor(Kind::KIND_OUTPUT, "out", {D(2)}, v1::DTYPE_I32);
  maker.Output("other", {2});
  maker.Call("fill", {"other", F(1)}).Call("fill", {"out", F(0.5)});
  maker.node(1).set_name("half");
  const GraphOutcome outcome = Run(RunOf(maker));
  ExpectRefused(outcome.status, grpc::StatusCode::INVALID_ARGUMENT,
                {"node 'half' (fill)", "step 0", "version 1", "detail", "Fix: "});
  ExpectServes();
}

TEST_F(GraphRunTest, BadRequestsAreRefused) {
  GraphMaker maker;
  maker.Scalar("k", 1, 4);
  maker.Input("x", {4}).Weight("w", {4}).Output("y", {4}).Activation("a", {4});
  maker.Call("add", {"x", "w", "a"}).Call("relu", {"a", "y"});
  const std::string four = ToBytes<float>({1, 2, 3, 4});
  v1::RunGraphRequest good = RunOf(maker);
  (*good.mutable_scalars())["k"] = 2;
  Bind(good, "x").set_data(four);
  Bind(good, "w").set_data(four);
  EXPECT_EQ(RunOk(good).floats(), (std::vector<float>{2, 4, 6, 8}));

  const auto refused = [&](const std::function<void(v1::RunGraphRequest&)>& change,
                           grpc::StatusCode code, const std::vector<std::string>& parts) {
    v1::RunGraphRequest request = good;
    change(request);
    ExpectRefused(Run(request).status, code, parts);
  };
  const auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  using R = v1::RunGraphRequest;
  refused([](R& r) { r.clear_graph(); }, kInvalid, {"no graph"});
  refused([](R& r) { r.mutable_graph()->mutable_nodes(0)->set_operator_("adt"); }, kInvalid,
          {"GRAPH_E104", "adt", "Fix: "});
  refused([](R& r) { r.mutable_scalars()->clear(); }, kInvalid, {"scalar 'k' has no value"});
  refused([](R& r) { (*r.mutable_scalars())["k"] = 9; }, kInvalid, {"is 9 and may be 1 to 4"});
  refused([](R& r) { (*r.mutable_scalars())["k"] = 1.5; }, kInvalid, {"whole number"});
  refused([](R& r) { (*r.mutable_scalars())["kk"] = 1; }, kInvalid, {"'kk' is not in the graph"});
  refused([](R& r) { r.mutable_bindings()->DeleteSubrange(0, 1); }, kInvalid,
          {"tensor 'x' is an input and has no memory"});
  refused([](R& r) { r.mutable_bindings()->DeleteSubrange(1, 1); }, kInvalid,
          {"tensor 'w' is a weight and has no memory"});
  refused([](R& r) { r.mutable_bindings(0)->set_data("abc"); }, kInvalid, {"3 bytes", "has 16"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("a"); }, kInvalid, {"it is an activation"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("y"); }, kInvalid, {"output and has data"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("z"); }, kInvalid, {"no such tensor"});
  refused([](R& r) { r.mutable_bindings(0)->clear_memory(); }, kInvalid, {"neither data nor"});
  refused([](R& r) { *r.add_bindings() = r.bindings(0); }, kInvalid, {"bound twice"});
  refused([](R& r) { r.mutable_bindings(0)->set_buffer_id(999'999); }, grpc::StatusCode::NOT_FOUND,
          {"999999"});
  refused([](R& r) { r.set_device(77); }, grpc::StatusCode::NOT_FOUND, {"77"});
  uint64_t small = 0;
  ASSERT_TRUE(client_.Allocate(2, &small).ok());
  refused([&](R& r) { r.mutable_bindings(0)->set_buffer_id(small); }, kInvalid,
          {"has 8 bytes, and it needs 16"});

  // Only a run in a graph session needs a session.
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  const auto without_session = [&](const v1::RunGraphRequest& request) {
    grpc::ClientContext context;
    const auto stream = stub->Run(&context, request);
    for (v1::RunGraphResponse response; stream->Read(&response);) continue;
    return stream->Finish().error_code();
  };
  EXPECT_EQ(without_session(good), grpc::StatusCode::OK);
  v1::RunGraphRequest in_session;
  in_session.set_graph_session("1");
  EXPECT_EQ(without_session(in_session), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(RunOk(good).floats(), (std::vector<float>{2, 4, 6, 8}));
}

TEST_F(GraphRunTest, TooManyNodesAreRefusedBeforeTheyAreChecked) {
  v1::RunGraphRequest request;
  for (int i = 0; i <= 65536; ++i) request.mutable_graph()->add_nodes();
  ExpectRefused(Run(request).status, grpc::StatusCode::INVALID_ARGUMENT,
                {"65537 nodes, and one of at most 65536 can run"});
}

TEST_F(GraphRunTest, AScalarShapeAndAShapeContradict) {
  uint64_t buffer = 0;
  ASSERT_TRUE(client_.Allocate(4, &buffer).ok());
  v1::Batch batch = Tasks("zero", 1);
  v1::BufferColumn& column = *Buffers(batch, {buffer});
  column.set_scalar_shape(true);
  EXPECT_TRUE(client_.Run(batch).all_ok());
  column.add_shape(1);
  ExpectRefused(client_.Run(batch).call, grpc::StatusCode::INVALID_ARGUMENT,
                {"has a shape and also scalar_shape", "Fix: "});
}

// The run's memory is free again, whatever ended it.
TEST_F(GraphRunTest, CancelledAndLateRunsLeaveNothing) {
  // Clients of tests before this one have ended.
  const auto nothing_used = [&] { return daemon_->Device().memory_used_bytes() == 0; };
  ASSERT_TRUE(Eventually(nothing_used));
  const v1::RunGraphRequest endless = RunOf(CountingLoop(1'000'000));
  int steps = 0;
  const GraphOutcome cancelled =
      Run(endless, [&](const v1::GraphStep&, grpc::ClientContext& context) {
        if (++steps == 3) context.TryCancel();
      });
  EXPECT_EQ(cancelled.status.error_code(), grpc::StatusCode::CANCELLED);
  v1::RunGraphRequest late = endless;
  late.set_timeout_us(50'000);
  const GraphOutcome ended = Run(late);
  EXPECT_EQ(ended.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED)
      << ended.status.error_message();
  EXPECT_TRUE(Eventually(nothing_used));
  ExpectServes();
}

// A client that does not read its records does not make the daemon hold more and more of them, and
// does not delay other clients.
TEST_F(GraphRunTest, ARunWaitsForItsClient) {
  const Client other(*daemon_, "other");
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STREAM, "big", {D(100'000), D(16'384)});
  maker.Call("fill", {"big", F(1)});
  maker.graph.mutable_loop()->set_max_steps(100'000);
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  const auto context = client_.Context();
  const auto stream = stub->Run(context.get(), RunOf(maker));
  v1::RunGraphResponse response;
  ASSERT_TRUE(stream->Read(&response));
  // Paused: the number of tasks that the daemon has executed stays the same.
  const auto executed = [&] { return daemon_->Device().completed_tasks(); };
  uint64_t last = 0;
  EXPECT_TRUE(Eventually([&] {
    const uint64_t now = executed();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    last = executed();
    return now == last;
  }));
  EXPECT_LT(last, 100'000u);
  EXPECT_TRUE(other.Run(SmallAdd()).all_ok());
  uint64_t read = 1;
  while (read < 1000 && stream->Read(&response)) read += response.has_step();
  EXPECT_EQ(read, 1000u);
  context->TryCancel();
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GraphRunTest, ARunThatWaitsForItsClientEndsAtItsDeadline) {
  // Clients of tests before this one have ended.
  ASSERT_TRUE(Eventually([&] { return daemon_->Device().memory_used_bytes() == 0; }));
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STREAM, "big", {D(100'000), D(1 << 19)});
  maker.Call("fill", {"big", F(1)});
  maker.graph.mutable_loop()->set_max_steps(100'000);
  v1::RunGraphRequest request = RunOf(maker);
  request.set_timeout_us(5'000'000);
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  const auto context = client_.Context();
  const auto stream = stub->Run(context.get(), request);
  v1::RunGraphResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const uint64_t during = daemon_->Device().memory_used_bytes();
  // Nothing is read until the run has ended.
  EXPECT_TRUE(Eventually([&] { return daemon_->Device().memory_used_bytes() < during; }));
  while (stream->Read(&response)) {
  }
  const grpc::StatusCode code = stream->Finish().error_code();
  EXPECT_TRUE(code == grpc::StatusCode::DEADLINE_EXCEEDED || code == grpc::StatusCode::CANCELLED)
      << code;
  ExpectServes();
}

TEST_F(GraphRunTest, MoreThanCanBeReturnedIsRefused) {
  GraphMaker maker;
  v1::RunGraphRequest request;
  for (int i = 0; i < 5; ++i) {
    const std::string name = "o" + std::to_string(i);
    maker.Output(name, {16 << 20}).Call("fill", {name, F(1)});
  }
  ExpectRefused(Run(RunOf(maker)).status, grpc::StatusCode::INVALID_ARGUMENT,
                {"outputs have 335544320 bytes", "Fix: bind outputs"});
}

// Whatever is bound: it is refused before anything is allocated.
TEST_F(GraphRunTest, MoreThanTheDeviceHasIsRefused) {
  // Clients of tests before this one have ended.
  ASSERT_TRUE(Eventually([&] { return daemon_->Device().memory_used_bytes() == 0; }));
  const v1::DeviceStatus device = daemon_->Device();
  const auto floats = static_cast<int64_t>(device.memory_total_bytes() / sizeof(float));
  const std::string has = "has " + std::to_string(device.memory_total_bytes()) + " bytes";
  GraphMaker maker;
  maker.Input("x", {64}).State("s", {floats / 2}).Activation("a", {floats / 2}).Output("y", {64});
  maker.Call("relu", {"x", View("a", {64})}).Call("copy", {View("a", {64}), View("s", {64})});
  maker.Call("copy", {View("s", {64}), "y"});
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_data(ToBytes(std::vector<float>(64, 3)));
  ExpectRefused(Run(request).status, grpc::StatusCode::INVALID_ARGUMENT,
                {"GRAPH_E701", "bytes for activations", "bytes for states", "256 bytes for inputs",
                 "256 bytes for outputs", has});
  // The client's own memory is not the device's.
  const Counters state(client_, static_cast<uint32_t>(floats / 2));
  Bind(request, "s").set_buffer_id(state.buffer());
  EXPECT_EQ(RunOk(request).floats(), std::vector<float>(64, 3));
  EXPECT_EQ(state.value(63), 3);
  EXPECT_EQ(daemon_->Device().memory_used_bytes(), device.memory_used_bytes());
  // Activations alone are more than there is: no binding helps.
  request.mutable_graph()->mutable_tensors(2)->mutable_shape(0)->set_size(floats + 1);
  ExpectRefused(Run(request).status, grpc::StatusCode::INVALID_ARGUMENT, {"GRAPH_E701", has});
  ExpectServes();
}

// Tensors in one buffer would have memory in common that the derived order does not know.
TEST_F(GraphRunTest, OneBufferForTwoTensorsOfWhichOneIsWritten) {
  uint64_t buffer = 0;
  ASSERT_TRUE(client_.Allocate(4, &buffer).ok());
  GraphMaker maker;
  maker.Input("x", {4}).Input("w", {4}).Output("y", {4}).Call("add", {"x", "w", "y"});
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "x").set_buffer_id(buffer);
  Bind(request, "w").set_buffer_id(buffer);
  EXPECT_TRUE(RunOk(request).status.ok());
  Bind(request, "y").set_buffer_id(buffer);
  ExpectRefused(Run(request).status, grpc::StatusCode::INVALID_ARGUMENT,
                {"'y'", "is also the memory of tensor 'x'"});
}

// Whether the engine or the daemon computes them, and wherever the engine runs.
TEST_F(GraphRunTest, ScalarsOfALoopAreRoundedOnce) {
  constexpr double kFactor = 1 + 0x1p-30, kAddend = -1, kFirst = 1 + 0x1p-30;
  constexpr int kSteps = 4;
  GraphMaker maker;
  maker.Scalar("a", -10, 10, v1::DTYPE_F32);
  maker.graph.mutable_scalars(0)->set_initial(kFirst);
  maker.Tensor(Kind::KIND_STREAM, "argument", {D(kSteps), D(1)}, v1::DTYPE_F64);
  maker.Call("fill", {"argument", S("a", kFactor, kAddend)});
  maker.graph.mutable_loop()->set_max_steps(kSteps);
  v1::GraphUpdate& update = *maker.graph.mutable_loop()->add_updates();
  update.set_scalar("a");
  update.set_factor(kFactor);
  update.set_addend(kAddend);
  std::vector<double> expected;
  for (double a = kFirst; expected.size() < kSteps; a = std::fma(kFactor, a, kAddend)) {
    expected.push_back(std::fma(kFactor, a, kAddend));
  }
  // A product that is rounded by itself gives another value.
  const volatile double product = kFactor * kFirst;
  ASSERT_NE(expected[0], product + kAddend);
  EXPECT_EQ(RunOk(RunOf(maker)).stream(), expected);
}

// An alias may be larger than the record of the stream whose memory it uses.
TEST_F(GraphRunTest, AliasOfAStream) {
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STREAM, "s", {D(64), D(4)});
  maker.Alias(Kind::KIND_STREAM, "t", "s", {D(1), D(256)});
  maker.Output("after", {64});
  maker.Call("fill", {"after", F(3)}).Call("fill", {"s", F(1)}).Call("fill", {"t", F(2)});
  const GraphOutcome outcome = RunOk(RunOf(maker));
  EXPECT_EQ(outcome.floats(), std::vector<float>(64, 3));
  ASSERT_EQ(outcome.steps.size(), 1u);
  EXPECT_EQ(FromBytes<float>(outcome.steps[0].records(1).data()), std::vector<float>(256, 2));
}

TEST_F(GraphRunTest, WeightsAreFoundByTheNamesOfBuffers) {
  const auto named = [&](const Client& client, float value) {
    const auto context = client.Context();
    v1::AllocateRequest request;
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(4);
    request.set_name("layer.weight");
    v1::AllocateResponse response;
    EXPECT_TRUE(client.buffers().Allocate(context.get(), request, &response).ok());
    EXPECT_TRUE(Upload(client, response.buffer().id(), ToBytes(std::vector<float>(4, value))).ok());
    return response.buffer().id();
  };
  GraphMaker maker;
  maker.Weight("layer.weight", {4}).Output("y", {4}).Call("copy", {"layer.weight", "y"});
  const uint64_t first = named(client_, 5);
  EXPECT_EQ(RunOk(RunOf(maker)).floats(), std::vector<float>(4, 5));
  const uint64_t second = named(client_, 6);
  ExpectRefused(Run(RunOf(maker)).status, grpc::StatusCode::INVALID_ARGUMENT,
                {std::to_string(first), std::to_string(second), "layer.weight"});
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "layer.weight").set_buffer_id(second);
  EXPECT_EQ(RunOk(request).floats(), std::vector<float>(4, 6));
}

TEST_F(GraphRunTest, RunsOfSeveralClientsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([this] {
      const Client client(*daemon_, "one of twelve");
      for (int round = 0; round < 5; ++round) {
        v1::RunGraphRequest request = RunOf(CountingLoop(50));
        const GraphOutcome outcome = RunGraph(*daemon_, client, request);
        EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
        EXPECT_EQ(outcome.steps.size(), 50u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GraphRunTest, AKilledEngineEndsTheRunAndTheNextOneIsRight) {
  const v1::RunGraphRequest endless = RunOf(CountingLoop(1'000'000));
  const pid_t engine = daemon_->engine_pid();
  int steps = 0;
  const GraphOutcome outcome = Run(endless, [&](const v1::GraphStep&, grpc::ClientContext&) {
    if (++steps == 10) kill(engine, SIGKILL);
  });
  EXPECT_TRUE(outcome.status.error_code() == grpc::StatusCode::UNAVAILABLE ||
              outcome.status.error_code() == grpc::StatusCode::ABORTED ||
              outcome.status.error_code() == grpc::StatusCode::FAILED_PRECONDITION)
      << outcome.status.error_code() << outcome.status.error_message();
  ASSERT_TRUE(daemon_->AwaitAnotherEngine(engine));
  v1::RunGraphRequest next = endless;
  next.set_max_steps(20);
  EXPECT_EQ(RunOk(next).steps.size(), 20u);
}

TEST(GraphRunDrainTest, ADrainEndsARun) {
  Daemon daemon;
  const Client client(daemon);
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STREAM, "count", {D(1'000'000), D(1)});
  maker.Call("fill", {"count", F(1)});
  maker.graph.mutable_loop()->set_max_steps(1'000'000);
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  const auto context = client.Context();
  const auto stream = stub->Run(context.get(), RunOf(maker));
  v1::RunGraphResponse response;
  ASSERT_TRUE(stream->Read(&response));
  const auto admin = v1::Admin::NewStub(daemon.Connect());
  grpc::ClientContext drain_context;
  v1::DrainRequest drain;
  drain.set_timeout_ms(60'000);
  v1::DrainResponse drained;
  grpc::Status drain_status;
  std::thread drainer([&] { drain_status = admin->Drain(&drain_context, drain, &drained); });
  while (stream->Read(&response)) EXPECT_FALSE(response.has_result());
  const grpc::Status ended = stream->Finish();
  drainer.join();
  ExpectRefused(ended, grpc::StatusCode::UNAVAILABLE, {"draining"});
  EXPECT_TRUE(drain_status.ok()) << drain_status.error_message();
  EXPECT_EQ(drained.remaining_tasks(), 0u);
}

}  // namespace
}  // namespace resident::testing
