// Graph sessions, of a real daemon over real gRPC: a session continues exactly where it ended.
#include <signal.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "resident/v1/admin.grpc.pb.h"
#include "tests/graph/loaded_graphs.h"
#include "tests/support/eventually.h"

namespace resident::testing {
namespace {

using Session = v1::GraphSession;
using grpc::StatusCode;

class GraphSessionsTest : public DaemonTest {
 protected:
  // 0, 1, 3, 6, ...: what SummingLoop sends in steps `first` to `end` - 1.
  static std::vector<double> Sums(uint64_t first, uint64_t end) {
    std::vector<double> sums;
    for (uint64_t k = first; k < end; ++k) sums.push_back(static_cast<double>(k * (k + 1) / 2));
    return sums;
  }
  static bool IsState(const GraphCalls& calls, const std::string& id, Session::State state) {
    return Eventually([&] { return calls.MustDescribeSession(id).state() == state; });
  }

  const GraphCalls calls_{*daemon_, client_};
};

TEST_F(GraphSessionsTest, RunsContinueExactlyWhereTheLastOneEnded) {
  const std::string id = calls_.MustLoad(SummingLoop(1000));
  const Session one = calls_.MustOpen(id);
  const GraphOutcome whole = calls_.RunIn(one.session_id(), 60);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.stream(), Sums(0, 60));
  EXPECT_EQ(whole.result.next_scalars().at("pos"), 60);

  // Sixty runs of one step, and some of several.
  const Session many = calls_.MustOpen(id);
  std::vector<double> sums;
  for (const uint64_t steps : {1, 1, 1, 2, 1, 5, 1, 20, 1, 1, 1, 25}) {
    const GraphOutcome part = calls_.RunIn(many.session_id(), steps);
    ASSERT_TRUE(part.status.ok()) << part.status.error_message();
    EXPECT_EQ(part.result.steps(), steps);
    EXPECT_EQ(part.result.end(), v1::GraphResult::END_STEPS);
    for (const double sum : part.stream()) sums.push_back(sum);
  }
  EXPECT_EQ(sums, whole.stream());
  const Session after = calls_.MustDescribeSession(many.session_id());
  EXPECT_EQ(after.state(), Session::STATE_READY);
  EXPECT_EQ(after.runs(), 12u);
  EXPECT_EQ(after.steps(), 60u);
  EXPECT_EQ(after.scalars().at("pos"), 60);
  // A run without a session begins with zeros, and changes no session.
  EXPECT_EQ(calls_.RunLoaded(id).stream(), Sums(0, 1000));
  EXPECT_EQ(calls_.RunIn(many.session_id(), 2).stream(), Sums(60, 62));
}

TEST_F(GraphSessionsTest, AForkDivergesIndependently) {
  const std::string id = calls_.MustLoad(SummingLoop(1000));
  const Session parent = calls_.MustOpen(id);
  ASSERT_TRUE(calls_.RunIn(parent.session_id(), 10).status.ok());
  Session fork;
  const grpc::Status forked = calls_.Fork(parent.session_id(), &fork);
  ASSERT_TRUE(forked.ok()) << forked.error_message();
  EXPECT_NE(fork.session_id(), parent.session_id());
  EXPECT_EQ(fork.device(), parent.device());
  EXPECT_EQ(fork.scalars().at("pos"), 10);
  // The parent continues with other values than the fork.
  v1::RunGraphRequest jump;
  jump.set_graph_session(parent.session_id());
  jump.set_max_steps(1);
  (*jump.mutable_scalars())["pos"] = 1000;
  EXPECT_EQ(calls_.Run(jump).stream(), std::vector<double>{45 + 1000});
  EXPECT_EQ(calls_.RunIn(fork.session_id(), 5).stream(), Sums(10, 15));
  EXPECT_EQ(calls_.RunIn(parent.session_id(), 1).stream(), std::vector<double>{1045 + 1001});
  // The fork has memory of its own.
  ASSERT_TRUE(calls_.Close(parent.session_id()).ok());
  EXPECT_EQ(calls_.RunIn(fork.session_id(), 5).stream(), Sums(15, 20));
  ASSERT_TRUE(calls_.Close(fork.session_id()).ok());
}

TEST_F(GraphSessionsTest, BoundStatesAndWeightsAreThoseOfTheOpening) {
  GraphMaker maker;
  maker.State("own", {4}).State("kept", {4}).Weight("session.weight", {4}).Input("x", {4});
  maker.Activation("a", {4}).Activation("b", {4}).Output("y", {4}).Output("z", {4});
  maker.Call("add", {"own", "x", "a"})
      .Call("copy", {"a", "own"})
      .Call("mul", {"kept", "session.weight", "b"})
      .Call("copy", {"b", "kept"})
      .Call("copy", {"a", "y"})
      .Call("copy", {"b", "z"});
  const std::string id = calls_.MustLoad(maker);
  const uint64_t kept = MustAllocate(4);
  ASSERT_TRUE(Upload(client_, kept, ToBytes<float>({1, 2, 3, 4})).ok());
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(id);
  Bind(open, "own").set_data(ToBytes<float>({10, 20, 30, 40}));
  Bind(open, "kept").set_buffer_id(kept);
  Bind(open, "session.weight").set_data(ToBytes<float>({2, 2, 2, 2}));
  Session session;
  const grpc::Status opened = calls_.Open(open, &session);
  ASSERT_TRUE(opened.ok()) << opened.error_message();
  EXPECT_EQ(session.state_bytes(), 512u);  // `own` and the weight.

  v1::RunGraphRequest run;
  run.set_graph_session(session.session_id());
  Bind(run, "x").set_data(ToBytes<float>({1, 1, 1, 1}));
  EXPECT_EQ(calls_.Run(run).floats(0), (std::vector<float>{11, 21, 31, 41}));
  Session fork;
  ASSERT_TRUE(calls_.Fork(session.session_id(), &fork).ok());
  const GraphOutcome second = calls_.Run(run);
  EXPECT_EQ(second.floats(0), (std::vector<float>{12, 22, 32, 42}));
  EXPECT_EQ(second.floats(1), (std::vector<float>{4, 8, 12, 16}));
  std::string bytes;
  ASSERT_TRUE(Download(client_, kept, &bytes).ok());
  EXPECT_EQ(FromBytes<float>(bytes), (std::vector<float>{4, 8, 12, 16}));
  // The fork has a copy of the state that is in the client's buffer.
  ASSERT_TRUE(calls_.Close(session.session_id()).ok());
  run.set_graph_session(fork.session_id());
  const GraphOutcome forked = calls_.Run(run);
  EXPECT_EQ(forked.floats(0), (std::vector<float>{12, 22, 32, 42}));
  EXPECT_EQ(forked.floats(1), (std::vector<float>{4, 8, 12, 16}));
  ASSERT_TRUE(Download(client_, kept, &bytes).ok());
  EXPECT_EQ(FromBytes<float>(bytes), (std::vector<float>{4, 8, 12, 16}));

  // A run binds what the session does not have, and nothing else.
  Bind(run, "own").set_data(ToBytes<float>({1, 1, 1, 1}));
  ExpectRefused(calls_.Run(run).status, StatusCode::INVALID_ARGUMENT,
                {"'own'", "belongs to the graph session"});
  run.mutable_bindings()->RemoveLast();
  run.set_device(9);
  ExpectRefused(calls_.Run(run).status, StatusCode::INVALID_ARGUMENT, {"on device 0", "device 9"});
}

TEST_F(GraphSessionsTest, AScalarAtTheEndOfItsRangeMustBeSet) {
  const Session session = calls_.MustOpen(calls_.MustLoad(SummingLoop(8, /*max=*/7)));
  EXPECT_EQ(calls_.RunIn(session.session_id(), 5).result.end(), v1::GraphResult::END_STEPS);
  const GraphOutcome all = calls_.RunIn(session.session_id(), 0);
  EXPECT_EQ(all.result.end(), v1::GraphResult::END_SCALAR_RANGE);
  EXPECT_EQ(all.stream(), Sums(5, 8));
  EXPECT_EQ(all.result.next_scalars().at("pos"), 8);
  ExpectRefused(calls_.RunIn(session.session_id(), 1).status, StatusCode::INVALID_ARGUMENT,
                {"'pos' is 8 and may be 0 to 7"});
  EXPECT_EQ(calls_.MustDescribeSession(session.session_id()).state(), Session::STATE_READY);
  v1::RunGraphRequest again;
  again.set_graph_session(session.session_id());
  (*again.mutable_scalars())["pos"] = 7;
  const GraphOutcome last = calls_.Run(again);
  EXPECT_EQ(last.stream(), std::vector<double>{28 + 7});
  EXPECT_EQ(last.result.end(), v1::GraphResult::END_SCALAR_RANGE);
}

// A refused run leaves states and scalars as they were.
TEST_F(GraphSessionsTest, ARefusedRunChangesNothing) {
  const Session session = calls_.MustOpen(calls_.MustLoad(SummingLoop(100)));
  ASSERT_TRUE(calls_.RunIn(session.session_id(), 3).status.ok());
  v1::RunGraphRequest bad;
  bad.set_graph_session(session.session_id());
  (*bad.mutable_scalars())["pos"] = 50;
  v1::GraphBinding& binding = *bad.add_bindings();
  binding.set_tensor("nothing");
  ExpectRefused(calls_.Run(bad).status, StatusCode::INVALID_ARGUMENT, {"no such tensor"});
  EXPECT_EQ(calls_.MustDescribeSession(session.session_id()).scalars().at("pos"), 3);
  EXPECT_EQ(calls_.RunIn(session.session_id(), 2).stream(), Sums(3, 5));
}

TEST_F(GraphSessionsTest, AFailedStepInterruptsTheSession) {
  // Fails in the step in which `pos` is 3.5: a value that an i32 does not have.
  GraphMaker maker;
  maker.Scalar("pos", 0, 100, v1::DTYPE_F32);
  maker.graph.mutable_scalars(0)->set_initial(0.5);
  maker.Tensor(v1::GraphTensor::KIND_STATE, "whole", {D(1)}, v1::DTYPE_I32);
  maker.Output("y", {1});
  maker.Call("fill", {"y", S("pos")}).Call("fill", {"whole", S("pos", 2, 0)});
  v1::GraphLoop& loop = *maker.graph.mutable_loop();
  loop.set_max_steps(50);
  loop.add_updates()->set_scalar("pos");
  loop.mutable_updates(0)->set_addend(0.5);
  const Session session = calls_.MustOpen(calls_.MustLoad(maker));
  ASSERT_TRUE(calls_.RunIn(session.session_id(), 3).status.ok());
  v1::RunGraphRequest bad;
  bad.set_graph_session(session.session_id());
  (*bad.mutable_scalars())["pos"] = 2.25;
  bad.set_max_steps(1);
  ExpectRefused(calls_.Run(bad).status, StatusCode::INVALID_ARGUMENT, {"fill", "step 0"});
  const Session after = calls_.MustDescribeSession(session.session_id());
  EXPECT_EQ(after.state(), Session::STATE_INTERRUPTED);
  EXPECT_EQ(after.scalars().at("pos"), 2.25);
  EXPECT_EQ(after.steps(), 3u);
  ExpectRefused(calls_.RunIn(session.session_id(), 1).status, StatusCode::FAILED_PRECONDITION,
                {session.session_id(), "interrupted in step 3", "repeat_interrupted"});
  Session fork;
  ExpectRefused(calls_.Fork(session.session_id(), &fork), StatusCode::FAILED_PRECONDITION,
                {"interrupted in step 3"});
  v1::RunGraphRequest repeat;
  repeat.set_graph_session(session.session_id());
  repeat.set_repeat_interrupted(true);
  repeat.set_max_steps(2);
  (*repeat.mutable_scalars())["pos"] = 2;
  const GraphOutcome repeated = calls_.Run(repeat);
  EXPECT_TRUE(repeated.status.ok()) << repeated.status.error_message();
  EXPECT_EQ(repeated.floats(), std::vector<float>{2.5f});
  EXPECT_EQ(calls_.MustDescribeSession(session.session_id()).state(), Session::STATE_READY);
}

// The client does not learn when a run that it cancelled has ended; the next run waits for that.
TEST_F(GraphSessionsTest, ARunAfterACancelledOneContinuesAtACompleteStep) {
  const Session session = calls_.MustOpen(calls_.MustLoad(SummingLoop(1'000'000)));
  v1::RunGraphRequest endless;
  endless.set_graph_session(session.session_id());
  for (int round = 0; round < 5; ++round) {
    int seen = 0;
    const GraphOutcome cancelled =
        calls_.Run(endless, [&](const v1::GraphStep&, grpc::ClientContext& context) {
          if (++seen == 3) context.TryCancel();
        });
    EXPECT_EQ(cancelled.status.error_code(), StatusCode::CANCELLED);
    GraphOutcome next = calls_.RunIn(session.session_id(), 1);
    if (next.status.ok()) {
      // Between two steps: the states are those of the complete steps.
      const Session now = calls_.MustDescribeSession(session.session_id());
      EXPECT_EQ(next.stream(), Sums(now.steps() - 1, now.steps()));
      EXPECT_EQ(now.scalars().at("pos"), static_cast<double>(now.steps()));
      continue;
    }
    ExpectRefused(next.status, StatusCode::FAILED_PRECONDITION, {"was interrupted in step"});
    EXPECT_EQ(calls_.MustDescribeSession(session.session_id()).state(), Session::STATE_INTERRUPTED);
    return;
  }
}

TEST_F(GraphSessionsTest, RunsOfOneSessionAreExecutedOneAfterTheOther) {
  const Session session = calls_.MustOpen(calls_.MustLoad(SummingLoop(1000)));
  std::vector<std::thread> threads;
  std::vector<GraphOutcome> outcomes(8);
  for (GraphOutcome& outcome : outcomes) {
    threads.emplace_back([&] { outcome = calls_.RunIn(session.session_id(), 25); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> sums;
  for (const GraphOutcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    for (const double sum : outcome.stream()) sums.push_back(sum);
  }
  std::sort(sums.begin(), sums.end());
  EXPECT_EQ(sums, Sums(0, 200));
}

// A run that waits for its session can be cancelled and be late, and does not keep the others.
TEST_F(GraphSessionsTest, AWaitingRunEndsAtItsDeadline) {
  const Session session = calls_.MustOpen(calls_.MustLoad(SummingLoop(1'000'000)));
  v1::RunGraphRequest endless;
  endless.set_graph_session(session.session_id());
  GraphOutcome late;
  const GraphOutcome first =
      calls_.Run(endless, [&](const v1::GraphStep&, grpc::ClientContext& context) {
        if (late.status.error_code() == StatusCode::DEADLINE_EXCEEDED) return;
        v1::RunGraphRequest second = endless;
        second.set_timeout_us(100'000);
        late = calls_.Run(second);
        Session fork;
        ExpectRefused(calls_.Fork(session.session_id(), &fork), StatusCode::FAILED_PRECONDITION,
                      {"used by a run or a copy"});
        context.TryCancel();
      });
  EXPECT_EQ(late.status.error_code(), StatusCode::DEADLINE_EXCEEDED) << late.status.error_message();
  EXPECT_EQ(first.status.error_code(), StatusCode::CANCELLED);
  v1::RunGraphRequest next = endless;
  next.set_repeat_interrupted(true);
  next.set_max_steps(1);
  EXPECT_TRUE(calls_.Run(next).status.ok());
}

TEST_F(GraphSessionsTest, SessionsOfAnotherClientCannotBeSeenUsedOrClosed) {
  const std::string id = calls_.MustLoad(SummingLoop(100));
  const Session session = calls_.MustOpen(id);
  const Client other_client(*daemon_, "other");
  const GraphCalls other(*daemon_, other_client);
  const std::vector<std::string> parts = {"no graph session", session.session_id()};
  Session seen;
  ExpectRefused(other.DescribeSession(session.session_id(), &seen), StatusCode::NOT_FOUND, parts);
  ExpectRefused(other.Fork(session.session_id(), &seen), StatusCode::NOT_FOUND, parts);
  ExpectRefused(other.Close(session.session_id()), StatusCode::NOT_FOUND, parts);
  ExpectRefused(other.RunIn(session.session_id(), 1).status, StatusCode::NOT_FOUND, parts);
  EXPECT_TRUE(other.ListSessions().empty());
  ASSERT_EQ(calls_.ListSessions().size(), 1u);
  EXPECT_EQ(calls_.ListSessions()[0].session_id(), session.session_id());
  // The other client may use the graph.
  EXPECT_EQ(other.RunIn(other.MustOpen(id).session_id(), 3).stream(), Sums(0, 3));
  EXPECT_EQ(calls_.RunIn(session.session_id(), 3).stream(), Sums(0, 3));
}

TEST_F(GraphSessionsTest, MemoryIsFreedWithTheSessionAndWithTheClient) {
  GraphMaker maker;
  maker.State("big", {1 << 20}).Output("y", {1}).Call("fill", {"y", F(1)});
  maker.Call("fill", {"big", F(2)});
  const std::string id = calls_.MustLoad(maker);
  const auto used = [&] { return daemon_->Device().memory_used_bytes(); };
  // Sessions of tests before this one end with their clients.
  ASSERT_TRUE(Eventually([&] { return used() == 0; }));
  const Session session = calls_.MustOpen(id);
  EXPECT_EQ(session.state_bytes(), 4u << 20);
  EXPECT_EQ(used(), 4u << 20);
  EXPECT_EQ(calls_.MustDescribe(id).sessions(), 1u);
  ASSERT_TRUE(calls_.Close(session.session_id()).ok());
  EXPECT_EQ(used(), 0u);
  {
    const Client other_client(*daemon_, "other");
    const GraphCalls other(*daemon_, other_client);
    (void)other.MustOpen(id);
    (void)other.MustOpen(id);
    EXPECT_EQ(used(), 8u << 20);
  }
  EXPECT_TRUE(Eventually([&] { return used() == 0; }));
  EXPECT_TRUE(Eventually([&] { return calls_.MustDescribe(id).sessions() == 0; }));
}

TEST_F(GraphSessionsTest, TheDaemonsMemoryOfASessionIsCounted) {
  const auto used = [&] {
    return daemon_->Figure("resident_host_memory_used_bytes{purpose=\"batches\"}");
  };
  const GraphMaker maker = SummingLoop(10);
  const uint64_t bytes = 16 * static_cast<uint64_t>(maker.graph.tensors_size());
  const std::string id = calls_.MustLoad(maker);
  // Sessions of tests before this one end with their clients.
  ASSERT_TRUE(Eventually([&] { return used() == 0; }));
  const Session session = calls_.MustOpen(id);
  EXPECT_TRUE(Eventually([&] { return used() == bytes; }));
  Session fork;
  ASSERT_TRUE(calls_.Fork(session.session_id(), &fork).ok());
  EXPECT_TRUE(Eventually([&] { return used() == 2 * bytes; }));
  ASSERT_TRUE(calls_.Close(session.session_id()).ok());
  EXPECT_TRUE(Eventually([&] { return used() == bytes; }));
  ASSERT_TRUE(calls_.Close(fork.session_id()).ok());
  EXPECT_TRUE(Eventually([&] { return used() == 0; }));
}

TEST_F(GraphSessionsTest, ASessionThatIsClosedDuringARunLetsItFinish) {
  const Session session = calls_.MustOpen(calls_.MustLoad(SummingLoop(300)));
  bool closed = false;
  v1::RunGraphRequest run;
  run.set_graph_session(session.session_id());
  const GraphOutcome outcome = calls_.Run(run, [&](const v1::GraphStep&, grpc::ClientContext&) {
    if (!closed) {
      EXPECT_TRUE(calls_.Close(session.session_id()).ok());
    }
    closed = true;
  });
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.stream(), Sums(0, 300));
  ExpectRefused(calls_.RunIn(session.session_id(), 1).status, StatusCode::NOT_FOUND,
                {"no graph session"});
}

TEST_F(GraphSessionsTest, BadOpeningsAreRefused) {
  GraphMaker maker;
  maker.Scalar("k", 1, 4).State("s", {4}).Input("x", {4}).Weight("none.such", {4});
  maker.Activation("a", {4}).Output("y", {4});
  maker.Call("add", {"x", "none.such", "a"}).Call("copy", {"a", "s"}).Call("copy", {"a", "y"});
  v1::OpenGraphSessionRequest good;
  good.set_graph_id(calls_.MustLoad(maker));
  good.add_bindings()->set_tensor("none.such");
  good.mutable_bindings(0)->set_data(std::string(16, '\0'));
  Session session;
  ASSERT_TRUE(calls_.Open(good, &session).ok());
  EXPECT_FALSE(session.scalars().contains("k"));
  const auto refused = [&](const std::function<void(v1::OpenGraphSessionRequest&)>& change,
                           StatusCode code, const std::vector<std::string>& parts) {
    v1::OpenGraphSessionRequest request = good;
    change(request);
    Session none;
    ExpectRefused(calls_.Open(request, &none), code, parts);
  };
  using R = v1::OpenGraphSessionRequest;
  const auto kInvalid = StatusCode::INVALID_ARGUMENT;
  refused([](R& r) { r.set_graph_id("77"); }, StatusCode::NOT_FOUND, {"'77'"});
  refused([](R& r) { r.clear_bindings(); }, kInvalid, {"'none.such' is a weight"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("x"); }, kInvalid,
          {"'x'", "it is an input", "in each run"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("y"); }, kInvalid, {"it is an output"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("a"); }, kInvalid, {"it is an activation"});
  refused([](R& r) { r.mutable_bindings(0)->set_tensor("q"); }, kInvalid, {"no such tensor"});
  // Each binding is refused in its turn, so that a bad one ends the work for the request.
  refused(
      [](R& r) {
        r.add_bindings()->set_tensor("q");
        r.add_bindings()->set_tensor("x");
      },
      kInvalid, {"'q'", "no such tensor"});
  refused(
      [](R& r) {
        *r.add_bindings() = r.bindings(0);
        r.add_bindings()->set_tensor("y");
      },
      kInvalid, {"'none.such'", "it is bound twice"});
  refused([](R& r) { r.add_bindings()->set_tensor("x"); }, kInvalid,
          {"'x'", "it is an input", "in each run"});
  refused([](R& r) { r.mutable_bindings(0)->set_data("abc"); }, kInvalid, {"3 bytes"});
  refused([](R& r) { r.mutable_bindings(0)->set_buffer_id(999'999); }, StatusCode::NOT_FOUND,
          {"999999"});
  refused([](R& r) { (*r.mutable_scalars())["k"] = 9; }, kInvalid, {"is 9 and may be 1 to 4"});
  refused([](R& r) { (*r.mutable_scalars())["kk"] = 1; }, kInvalid, {"'kk' is not in the graph"});
  refused([](R& r) { r.set_device(77); }, StatusCode::NOT_FOUND, {"77"});
  v1::RunGraphRequest run;
  run.set_graph_session(session.session_id());
  ExpectRefused(calls_.Run(run).status, kInvalid, {"scalar 'k' has no value"});
  grpc::ClientContext without_session;
  v1::OpenGraphSessionResponse response;
  EXPECT_EQ(calls_.stub().OpenSession(&without_session, good, &response).error_code(),
            StatusCode::UNAUTHENTICATED);
}

// What can never fit is refused before anything is allocated, with the sizes.
TEST_F(GraphSessionsTest, StatesThatDoNotFitAreRefused) {
  // Sessions of tests before this one end with their clients.
  ASSERT_TRUE(Eventually([&] { return daemon_->Device().memory_used_bytes() == 0; }));
  const v1::DeviceStatus device = daemon_->Device();
  const auto floats = static_cast<int64_t>(device.memory_total_bytes() / sizeof(float));
  GraphMaker maker;
  maker.State("big", {floats - 64}).Activation("a", {64}).Output("y", {1});
  maker.Call("fill", {"a", F(1)}).Call("copy", {View("a", {1}), "y"});
  maker.Call("fill", {View("big", {4}), F(2)});
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(calls_.MustLoad(maker));
  Session session;
  // The state and the activation of a run fill the device exactly.
  const grpc::Status fits = calls_.Open(open, &session);
  EXPECT_TRUE(fits.ok()) << fits.error_message();
  EXPECT_EQ(session.state_bytes(), device.memory_total_bytes() - 256);
  // Not now, while the first session has its memory.
  Session second;
  ExpectRefused(calls_.Open(open, &second), StatusCode::RESOURCE_EXHAUSTED, {});
  ASSERT_TRUE(calls_.Close(session.session_id()).ok());

  maker.graph.mutable_tensors(0)->mutable_shape(0)->set_size(floats - 63);
  open.set_graph_id(calls_.MustLoad(maker));
  ExpectRefused(
      calls_.Open(open, &session), StatusCode::INVALID_ARGUMENT,
      {"GRAPH_E701", absl::StrCat("needs ", device.memory_total_bytes() + 256, " bytes"),
       "256 bytes for activations", absl::StrCat("has ", device.memory_total_bytes(), " bytes"),
       "--device_memory_mib"});
  EXPECT_TRUE(calls_.ListSessions().empty());
  EXPECT_EQ(daemon_->Device().memory_used_bytes(), device.memory_used_bytes());
  // A buffer that is bound in place of the state counts as it is.
  const uint64_t buffer = MustAllocate(static_cast<uint64_t>(floats) - 63);
  Bind(open, "big").set_buffer_id(buffer);
  ExpectRefused(calls_.Open(open, &session), StatusCode::INVALID_ARGUMENT,
                {"GRAPH_E701", "bytes for bound buffers"});
}

TEST_F(GraphSessionsTest, ACallerHasNotAllSessions) {
  // Sessions of tests before this one, which may have all memory, end with their clients.
  ASSERT_TRUE(Eventually([&] { return daemon_->Device().memory_used_bytes() == 0; }));
  const std::string id = calls_.MustLoad(SummingLoop(3));
  const Client greedy_client(*daemon_, "greedy");
  const GraphCalls greedy(*daemon_, greedy_client);
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(id);
  Session last;
  Session refused;
  grpc::Status status;
  size_t opened = 0;
  for (; opened <= 1024; ++opened, last = refused) {
    status = greedy.Open(open, &refused);
    if (!status.ok()) break;
  }
  // A caller that has some leaves an eighth to others.
  EXPECT_EQ(opened, 1024u - 128u);
  ExpectRefused(status, StatusCode::RESOURCE_EXHAUSTED, {"graph sessions"});
  EXPECT_EQ(greedy.ListSessions().size(), opened);
  EXPECT_EQ(greedy.ListSessions().back().session_id(), last.session_id());
  ExpectRefused(greedy.Fork(last.session_id(), &refused), StatusCode::RESOURCE_EXHAUSTED,
                {"graph sessions"});
  ASSERT_TRUE(greedy.Close(last.session_id()).ok());
  EXPECT_TRUE(greedy.Open(open, &last).ok());
}

TEST_F(GraphSessionsTest, AKilledEngineLosesTheStates) {
  const std::string id = calls_.MustLoad(SummingLoop(1'000'000));
  const Session session = calls_.MustOpen(id);
  v1::RunGraphRequest endless;
  endless.set_graph_session(session.session_id());
  const pid_t engine = daemon_->engine_pid();
  int steps = 0;
  const GraphOutcome outcome = calls_.Run(endless, [&](const v1::GraphStep&, grpc::ClientContext&) {
    if (++steps == 10) kill(engine, SIGKILL);
  });
  EXPECT_FALSE(outcome.status.ok());
  ASSERT_TRUE(daemon_->AwaitAnotherEngine(engine));
  EXPECT_TRUE(IsState(calls_, session.session_id(), Session::STATE_LOST));
  ExpectRefused(calls_.RunIn(session.session_id(), 1).status, StatusCode::FAILED_PRECONDITION,
                {session.session_id(), "were lost with the engine of device 0", "open another"});
  Session fork;
  ExpectRefused(calls_.Fork(session.session_id(), &fork), StatusCode::FAILED_PRECONDITION,
                {"were lost"});
  EXPECT_TRUE(calls_.Close(session.session_id()).ok());
  EXPECT_EQ(calls_.RunIn(calls_.MustOpen(id).session_id(), 4).stream(), Sums(0, 4));
}

TEST(GraphSessionsDrainTest, ADrainEndsRunsThatWaitAndRefusesSessions) {
  const Daemon daemon;
  const Client client(daemon);
  const GraphCalls calls(daemon, client);
  const std::string id = calls.MustLoad(SummingLoop(1'000'000));
  const Session session = calls.MustOpen(id);
  v1::RunGraphRequest endless;
  endless.set_graph_session(session.session_id());
  std::thread drainer;
  std::thread waiter;
  GraphOutcome waited;
  grpc::Status drain_status;
  const GraphOutcome first = calls.Run(endless, [&](const v1::GraphStep&, grpc::ClientContext&) {
    if (drainer.joinable()) return;
    waiter = std::thread([&] { waited = calls.RunIn(session.session_id(), 1); });
    drainer = std::thread([&] {
      const auto admin = v1::Admin::NewStub(daemon.Connect());
      grpc::ClientContext context;
      v1::DrainRequest request;
      request.set_timeout_ms(60'000);
      v1::DrainResponse response;
      drain_status = admin->Drain(&context, request, &response);
    });
  });
  drainer.join();
  waiter.join();
  EXPECT_TRUE(drain_status.ok()) << drain_status.error_message();
  ExpectRefused(first.status, StatusCode::UNAVAILABLE, {"draining"});
  ExpectRefused(waited.status, StatusCode::UNAVAILABLE, {"draining"});
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(id);
  Session none;
  ExpectRefused(calls.Open(open, &none), StatusCode::UNAVAILABLE, {"draining"});
  v1::LoadGraphResponse loaded;
  ExpectRefused(calls.Load(SummingLoop(7).graph, &loaded), StatusCode::UNAVAILABLE, {"draining"});
}

}  // namespace
}  // namespace resident::testing
