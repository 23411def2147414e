// Runs whose steps the engine executes itself, a quantum at a time: how they share the workers with
// other work, and what happens when a node fails or the engine ends.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Outcome {
  grpc::Status status;
  std::vector<v1::GraphStep> steps;
  std::vector<v1::GraphTrace> traces;
  v1::GraphResult result;

  // Of all traces.
  std::vector<v1::GraphTraceEvent> events() const {
    std::vector<v1::GraphTraceEvent> all;
    for (const v1::GraphTrace& trace : traces) {
      all.insert(all.end(), trace.events().begin(), trace.events().end());
    }
    return all;
  }
  std::vector<float> floats(int i) const {
    const std::string& bytes = result.outputs(i).data();
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

v1::RunGraphRequest Request(const GraphMaker& maker) {
  v1::RunGraphRequest request;
  *request.mutable_graph() = maker.graph;
  return request;
}

using OnStep = std::function<void(const v1::GraphStep& step, grpc::ClientContext& context)>;

Outcome RunGraph(const Daemon& daemon, const Client& client, const v1::RunGraphRequest& request,
                 const OnStep& on_step = nullptr) {
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  const auto context = client.Context();
  const auto stream = stub->Run(context.get(), request);
  Outcome outcome;
  v1::RunGraphResponse response;
  while (stream->Read(&response)) {
    if (response.has_result()) outcome.result = response.result();
    if (response.has_trace()) outcome.traces.push_back(response.trace());
    if (!response.has_step()) continue;
    outcome.steps.push_back(response.step());
    if (on_step) on_step(response.step(), *context);
  }
  outcome.status = stream->Finish();
  return outcome;
}

// A loop of nodes that do nothing but take `ns` nanoseconds each, one after the other, and return a
// record in each step.
GraphMaker SpinningLoop(int nodes, int64_t ns, uint64_t steps) {
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STREAM, "done", {D(static_cast<int64_t>(steps)), D(1)});
  maker.Activation("a", {1});
  for (int i = 1; i < nodes; ++i) maker.Call("test.spin", {"a", I(ns)});
  maker.Call("test.spin", {"done", I(ns)});
  maker.graph.mutable_loop()->set_max_steps(steps);
  return maker;
}

std::vector<std::string> Workers(int count) { return {absl::StrCat("--cpu_workers=", count)}; }

// A step that takes many quanta: other work has its turn within the step, and nothing of the step
// is lost or executed twice.
TEST(GraphQuantumTest, AStepThatTakesManyQuanta) {
  for (const int workers : {1, 2}) {
    const Daemon daemon(Workers(workers));
    const Client client(daemon);
    GraphMaker maker;
    maker.Tensor(Kind::KIND_STATE, "count", {D(1)});
    maker.Tensor(Kind::KIND_STREAM, "early", {D(3), D(1)})
        .Tensor(Kind::KIND_STREAM, "late", {D(3), D(1)});
    maker.Tensor(Kind::KIND_STATE, "wide", {D(1 << 18)})
        .Tensor(Kind::KIND_STATE, "b", {D(1 << 18)});
    maker.Activation("a", {1}).Output("last", {1}).Output("wide_out", {1 << 18});
    maker.Call("copy", {"count", "early"});
    for (int i = 0; i < 60; ++i) {
      maker.Call("test.count", {"count"}).Call("test.spin", {"a", I(1'000'000)});
      maker.Call("add", {"wide", "b", "wide_out"});
    }
    maker.Call("copy", {"count", "late"}).Call("copy", {"count", "last"});
    maker.graph.mutable_loop()->set_max_steps(3);
    const uint64_t before = daemon.Device().completed_tasks();
    const Outcome outcome = RunGraph(daemon, client, Request(maker));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    // The tasks of the device are quanta: a step of 60 ms has several.
    const uint64_t tasks = daemon.Device().completed_tasks() - before;
    EXPECT_GE(tasks, 12u);
    EXPECT_LT(tasks, 300u);
    ASSERT_EQ(outcome.steps.size(), 3u);
    for (int step = 0; step < 3; ++step) {
      float early = -1, late = -1;
      std::memcpy(&early, outcome.steps[step].records(0).data().data(), sizeof(float));
      std::memcpy(&late, outcome.steps[step].records(1).data().data(), sizeof(float));
      EXPECT_EQ(early, 60.0f * static_cast<float>(step));
      EXPECT_EQ(late, 60.0f * static_cast<float>(step + 1));
    }
    EXPECT_EQ(outcome.floats(0), std::vector<float>{180});
    uint64_t counted = 0;
    for (const v1::GraphVersion& version : outcome.result.versions()) {
      if (version.operator_() == "test.count") counted += version.tasks();
    }
    EXPECT_EQ(counted, 180u);
  }
}

// The workers alternate: a lone task beside long runs is executed while they continue, and a stream
// of small tasks does not stop a run.
TEST(GraphQuantumTest, LoneTasksAndRunsShareTheWorkers) {
  for (const int workers : {1, 2}) {
    const Daemon daemon(Workers(workers));
    const Client other(daemon, "other");
    constexpr int kRuns = 3;
    constexpr int kLone = 50;
    std::vector<Outcome> outcomes(kRuns);
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::thread> threads;
    std::atomic<int> started{0};
    std::atomic<bool> enough{false};
    for (int i = 0; i < kRuns; ++i) {
      clients.push_back(std::make_unique<Client>(daemon, absl::StrCat("run ", i)));
      threads.emplace_back([&, i] {
        outcomes[i] = RunGraph(daemon, *clients[i], Request(SpinningLoop(20, 100'000, 1'000'000)),
                               [&](const v1::GraphStep& step, grpc::ClientContext& context) {
                                 if (step.step() == 0) ++started;
                                 if (enough) context.TryCancel();
                               });
      });
    }
    EXPECT_TRUE(Eventually([&] { return started == kRuns; }));
    // All runs continue while these are executed one by one.
    for (int i = 0; i < kLone; ++i) EXPECT_TRUE(other.Run(SmallAdd()).all_ok());
    // As many tasks as the queue takes do not stop the runs either.
    uint64_t buffer = 0;
    ASSERT_TRUE(other.Allocate(1, &buffer).ok());
    std::atomic<bool> busy{true};
    std::thread flood([&] {
      while (busy) EXPECT_TRUE(other.Run(FloatTasks("test.spin", buffer, 0, 1, 100'000)).all_ok());
    });
    const Client beside(daemon, "beside the flood");
    const Outcome run = RunGraph(daemon, beside, Request(SpinningLoop(3, 100'000, 20)));
    EXPECT_TRUE(run.status.ok()) << run.status.error_message();
    EXPECT_EQ(run.steps.size(), 20u);
    busy = false;
    flood.join();
    enough = true;
    for (std::thread& thread : threads) thread.join();
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::CANCELLED);
      EXPECT_GT(outcome.steps.size(), 1u);
    }
  }
}

// More runs than workers, each with its own values.
TEST(GraphQuantumTest, ManyRunsAtOnce) {
  const Daemon daemon(Workers(2));
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      const Client client(daemon, "one of sixteen");
      GraphMaker maker;
      maker.Scalar("k", 0, 1e6, v1::DTYPE_F32);
      maker.Tensor(Kind::KIND_STREAM, "r", {D(300), D(4)})
          .Activation("a", {4})
          .Activation("b", {4});
      maker.Call("fill", {"a", S("k", 2)}).Call("fill", {"b", S("k", 3, t)});
      maker.Call("add", {"a", "b", "r"});
      v1::GraphLoop& loop = *maker.graph.mutable_loop();
      loop.set_max_steps(300);
      loop.add_updates()->set_scalar("k");
      loop.mutable_updates(0)->set_addend(1);
      v1::RunGraphRequest request = Request(maker);
      (*request.mutable_scalars())["k"] = t;
      const Outcome outcome = RunGraph(daemon, client, request);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
      ASSERT_EQ(outcome.steps.size(), 300u);
      for (size_t step = 0; step < 300; ++step) {
        const float k = static_cast<float>(t) + static_cast<float>(step);
        const std::vector<float> expected(4, 5 * k + static_cast<float>(t));
        std::vector<float> got(4);
        std::memcpy(got.data(), outcome.steps[step].records(0).data().data(), 16);
        EXPECT_EQ(got, expected) << "run " << t << ", step " << step;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A record's shape may change from step to step.
TEST(GraphQuantumTest, RecordsOfDynamicShape) {
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  GraphMaker maker;
  maker.Scalar("n", 1, 8);
  maker.Tensor(Kind::KIND_STREAM, "r", {D(8), D("n"), D(2)});
  maker.Call("fill", {"r", F(7)});
  v1::GraphLoop& loop = *maker.graph.mutable_loop();
  loop.set_max_steps(8);
  loop.add_updates()->set_scalar("n");
  loop.mutable_updates(0)->set_addend(1);
  v1::RunGraphRequest request = Request(maker);
  (*request.mutable_scalars())["n"] = 1;
  const Outcome outcome = RunGraph(daemon, client, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.steps.size(), 8u);
  for (uint64_t step = 0; step < 8; ++step) {
    const v1::GraphValue& record = outcome.steps[step].records(0);
    ASSERT_EQ(record.shape_size(), 2);
    EXPECT_EQ(record.shape(0), step + 1);
    std::vector<float> got(record.data().size() / sizeof(float));
    std::memcpy(got.data(), record.data().data(), record.data().size());
    EXPECT_EQ(got, std::vector<float>(2 * (step + 1), 7));
  }
}

// A node that refuses a value in a later step: the records of the steps before are sent, and the
// trace until then.
TEST(GraphQuantumTest, ANodeThatFailsInALaterStep) {
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  GraphMaker maker;
  maker.Scalar("k", 0, 1e9, v1::DTYPE_F32);
  maker.Tensor(Kind::KIND_STREAM, "r", {D(50), D(1)}, v1::DTYPE_I32);
  maker.Call("fill", {"r", S("k", 0.5)});
  maker.node(0).set_name("halves");
  v1::GraphLoop& loop = *maker.graph.mutable_loop();
  loop.set_max_steps(50);
  loop.add_updates()->set_scalar("k");
  loop.mutable_updates(0)->set_addend(2);
  loop.mutable_updates(0)->set_factor(1);
  v1::RunGraphRequest request = Request(maker);
  (*request.mutable_scalars())["k"] = 0;
  EXPECT_TRUE(RunGraph(daemon, client, request).status.ok());
  request.mutable_graph()->mutable_loop()->mutable_updates(0)->set_factor(1.25);
  request.set_trace(true);
  // 0, 2, 4.5: half of the last one is no integer.
  const Outcome outcome = RunGraph(daemon, client, request);
  ExpectRefused(outcome.status, grpc::StatusCode::INVALID_ARGUMENT,
                {"node 'halves' (fill)", "step 2", "version 1", "detail"});
  EXPECT_EQ(outcome.steps.size(), 2u);
  EXPECT_EQ(outcome.events().size(), 5u);
}

// An operator that ends the engine: the run names the node, and work of others is treated as for
// any engine that ends.
void ExpectNodeEndsTheEngine(const std::string& op, const std::vector<std::string>& flags) {
  const Daemon daemon(flags);
  const Client client(daemon);
  const Client other(daemon, "other");
  const pid_t engine = daemon.engine_pid();
  const uint64_t memory = daemon.Device().memory_used_bytes();
  std::atomic<bool> started{false};
  Outcome bystander;
  std::thread thread([&] {
    bystander = RunGraph(daemon, other, Request(SpinningLoop(4, 20'000, 1'000'000)),
                         [&](const v1::GraphStep&, grpc::ClientContext&) { started = true; });
  });
  EXPECT_TRUE(Eventually([&] { return started.load(); }));
  GraphMaker maker;
  maker.Output("y", {4}).Activation("a", {4});
  maker.Call("fill", {"a", F(1)}).Call(op, {"a"}).Call("copy", {"a", "y"});
  maker.node(1).set_name("culprit");
  const Outcome outcome = RunGraph(daemon, client, Request(maker));
  ExpectRefused(outcome.status, grpc::StatusCode::ABORTED,
                {absl::StrCat("node 'culprit' (", op, ")"), "step 0", op});
  thread.join();
  // A GPU does not tell which of the operators that ran has faulted, so that all are suspects.
  EXPECT_THAT(bystander.status.error_code(),
              AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::FAILED_PRECONDITION,
                    OnGpu() ? grpc::StatusCode::ABORTED : grpc::StatusCode::UNAVAILABLE))
      << bystander.status.error_message();
  ASSERT_TRUE(daemon.AwaitAnotherEngine(engine));
  maker.graph.mutable_nodes(1)->set_operator_("relu");
  *maker.graph.mutable_nodes(1)->add_arguments() = maker.graph.nodes(2).arguments(1);
  maker.graph.mutable_nodes(2)->mutable_arguments(1)->mutable_tensor()->set_name("a");
  maker.graph.mutable_nodes()->RemoveLast();
  const Outcome next = RunGraph(daemon, client, Request(maker));
  ASSERT_TRUE(next.status.ok()) << next.status.error_message();
  EXPECT_EQ(next.floats(0), std::vector<float>(4, 1));
  EXPECT_TRUE(Eventually([&] { return daemon.Device().memory_used_bytes() == memory; }));
}

TEST(GraphQuantumTest, ANodeThatFaultsIsNamed) {
  ExpectNodeEndsTheEngine("test.bad_store", Workers(2));
}

TEST(GraphQuantumTest, ANodeThatNeverReturnsIsNamed) {
  ExpectNodeEndsTheEngine("test.never_returns", {"--cpu_workers=2", "--task_time_limit=3s"});
}

// A run may last longer than the limit for a task, which applies to a node.
TEST(GraphQuantumTest, ALongRunIsNoHang) {
  const Daemon daemon({"--cpu_workers=1", "--task_time_limit=1s"});
  const Client client(daemon);
  const Outcome outcome = RunGraph(daemon, client, Request(SpinningLoop(6, 300'000'000, 2)));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(daemon.Device().restarts(), 0u);
}

// The device is parked between two quanta, and the run continues after it.
TEST(GraphQuantumTest, AParkWaitsForTheEndOfTheQuantum) {
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  bool parked = false;
  const Outcome outcome = RunGraph(daemon, client, Request(SpinningLoop(3, 200'000, 200)),
                                   [&](const v1::GraphStep& step, grpc::ClientContext&) {
                                     if (step.step() != 5) return;
                                     EXPECT_TRUE(Park(daemon).ok());
                                     parked =
                                         daemon.Device().state() == v1::DeviceStatus::STATE_PARKED;
                                     EXPECT_TRUE(Resume(daemon).ok());
                                   });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_TRUE(parked);
  EXPECT_EQ(outcome.steps.size(), 200u);
}

// Cancelled between the nodes of a long step: the nodes that follow do not run.
TEST(GraphQuantumTest, ACancelledRunEndsBetweenNodes) {
  const Daemon daemon(Workers(1));
  const Client client(daemon);
  uint64_t buffer = 0;
  ASSERT_TRUE(client.Allocate(1, &buffer).ok());
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STATE, "n", {D(1)}).Activation("a", {1}).Activation("b", {1});
  for (int i = 0; i < 1000; ++i) {  // n += 1, each time after 10 ms.
    maker.Call("test.spin", {"a", I(10'000'000)});
    maker.Call("add", {"n", "a", "b"}).Call("copy", {"b", "n"});
  }
  v1::RunGraphRequest request = Request(maker);
  v1::GraphBinding& binding = *request.add_bindings();
  binding.set_tensor("n");
  binding.set_buffer_id(buffer);
  request.set_timeout_us(400'000);
  ASSERT_TRUE(client.Run(FloatTasks("zero", buffer, 0, 1)).all_ok());
  const Outcome outcome = RunGraph(daemon, client, request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED)
      << outcome.status.error_message();
  std::string bytes;
  ASSERT_TRUE(Download(client, buffer, &bytes).ok());
  float executed = 0;
  std::memcpy(&executed, bytes.data(), sizeof(executed));
  EXPECT_LT(executed, 1000);
  ASSERT_TRUE(client.Run(SmallAdd()).all_ok());
}

// Runs that are cancelled at any microsecond: each ends, what it has executed is a whole number of
// nodes in order, and the next run is right. The time until the daemon has ended a cancelled run is
// printed: the run's client can be told nothing, so it is that until the buffer is free again.
TEST(GraphQuantumTest, RunsThatAreCancelledAtAnyTime) {
  const char* const wanted = std::getenv("RESIDENT_TEST_ABORTS");
  const int count = wanted == nullptr ? 150 : std::atoi(wanted);
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  GraphMaker endless;  // Each step counts, and each node takes about 20 us.
  endless.Tensor(Kind::KIND_STATE, "n", {D(1)}).Activation("a", {1});
  for (int i = 0; i < 10; ++i) {
    endless.Call("test.count", {"n"}).Call("test.spin", {"a", I(20'000)});
  }
  endless.graph.mutable_loop()->set_max_steps(1'000'000);
  GraphMaker three;
  three.Tensor(Kind::KIND_STATE, "n", {D(1)}).Output("y", {1});
  three.Call("test.count", {"n"}).Call("copy", {"n", "y"});
  three.graph.mutable_loop()->set_max_steps(3);
  const uint64_t memory = daemon.Device().memory_used_bytes();
  std::minstd_rand random(11);
  std::vector<double> waits_ms;
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    const auto context = client.Context();
    const auto stream = stub->Run(context.get(), Request(endless));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    context->TryCancel();
    const auto begin = std::chrono::steady_clock::now();
    v1::RunGraphResponse response;
    while (stream->Read(&response)) {
    }
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
    ASSERT_TRUE(Eventually([&] { return daemon.Device().memory_used_bytes() == memory; }));
    waits_ms.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count());
    const Outcome next = RunGraph(daemon, client, Request(three));
    ASSERT_TRUE(next.status.ok()) << next.status.error_message();
    EXPECT_EQ(next.floats(0), std::vector<float>{3});
  }
  std::sort(waits_ms.begin(), waits_ms.end());
  std::cout << count << " runs, cancelled after 0 to 4 ms; ended after "
            << waits_ms[waits_ms.size() / 2] << " ms (median), " << waits_ms.back()
            << " ms (longest)\n";
}

// The engine trusts the image of a graph, so no client can find, read or free its buffer.
TEST(GraphQuantumTest, TheImageIsNotABufferOfTheClient) {
  const Daemon daemon(Workers(1));
  const Client client(daemon);
  uint64_t first = 0;
  ASSERT_TRUE(client.Allocate(1, &first).ok());
  uint64_t listed_bytes = 0;
  int others = 0;
  const Outcome outcome = RunGraph(
      daemon, client, Request(SpinningLoop(20, 100'000, 200)),
      [&](const v1::GraphStep& step, grpc::ClientContext&) {
        if (step.step() != 0) return;
        const auto stub = v1::Buffers::NewStub(daemon.Connect());
        v1::ListBuffersResponse list;
        ASSERT_TRUE(stub->List(client.Context().get(), {}, &list).ok());
        std::set<uint64_t> listed;
        for (const v1::BufferInfo& buffer : list.buffers()) {
          listed.insert(buffer.id());
          listed_bytes += buffer.size_bytes();
        }
        for (uint64_t id = first + 1; id < first + 20; ++id) {
          if (listed.count(id) != 0) continue;
          std::string bytes;
          EXPECT_EQ(Download(client, id, &bytes).error_code(), grpc::StatusCode::NOT_FOUND);
          v1::FreeRequest free;
          free.set_buffer_id(id);
          v1::FreeResponse freed;
          EXPECT_EQ(stub->Free(client.Context().get(), free, &freed).error_code(),
                    grpc::StatusCode::NOT_FOUND);
          ++others;
        }
      });
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.steps.size(), 200u);
  EXPECT_GT(others, 0);
  // The image and the state of 20 nodes are larger.
  EXPECT_LT(listed_bytes, 2048u);
}

// --- Traces ---------------------------------------------------------------------------

// A loop whose step has 2 * `pairs` + 2 nodes and a record: a node whose chunks both workers
// execute, pairs of nodes that wait for each other, and a node that writes the record.
GraphMaker TracedLoop(int pairs, uint64_t steps) {
  GraphMaker maker;
  maker.Tensor(Kind::KIND_STREAM, "r", {D(static_cast<int64_t>(steps)), D(1)})
      .Tensor(Kind::KIND_STATE, "x", {D(1 << 16)})
      .Activation("wide", {1 << 16})
      .Activation("a", {1})
      .Activation("b", {1});
  maker.Call("relu", {"x", "wide"}).Call("copy", {View("wide", {D(1)}), "b"});
  for (int i = 0; i < pairs; ++i) maker.Call("relu", {"b", "a"}).Call("silu", {"a", "b"});
  maker.graph.mutable_nodes(maker.graph.nodes_size() - 1)
      ->mutable_arguments(1)
      ->mutable_tensor()
      ->set_name("r");
  maker.graph.mutable_loop()->set_max_steps(steps);
  return maker;
}

v1::RunGraphRequest Traced(const GraphMaker& maker) {
  v1::RunGraphRequest request = Request(maker);
  request.set_trace(true);
  return request;
}

TEST(GraphTraceTest, EachChunkOfEachStepHasAnEvent) {
  for (const uint32_t workers : {1, 2}) {
    const Daemon daemon(Workers(static_cast<int>(workers)));
    const Client client(daemon);
    constexpr int kPairs = 5;
    constexpr uint64_t kSteps = 60;
    const GraphMaker maker = TracedLoop(kPairs, kSteps);
    // What the workers did before is not in the trace.
    EXPECT_TRUE(RunGraph(daemon, client, Request(maker)).status.ok());
    // The clock of the engine is that of this process.
    const auto begun_ns =
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    const Outcome outcome = RunGraph(daemon, client, Traced(maker));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.steps.size(), kSteps);
    EXPECT_EQ(outcome.result.dropped_trace_events(), 0u);
    EXPECT_GT(outcome.traces.size(), 1u);  // The first quantum has one step.

    const auto nodes = static_cast<uint32_t>(maker.graph.nodes_size());
    std::map<std::pair<uint64_t, uint32_t>, std::set<uint32_t>> chunks;  // By step and node.
    std::map<std::pair<uint64_t, uint32_t>, std::pair<uint64_t, uint64_t>> times;
    std::map<uint32_t, std::map<uint64_t, v1::GraphTraceEvent>> by_worker;
    uint64_t work_ns = 0;
    for (const v1::GraphTraceEvent& event : outcome.events()) {
      ASSERT_GE(event.wait_ns(), begun_ns);
      ASSERT_LE(event.wait_ns(), event.begin_ns());
      ASSERT_LE(event.begin_ns(), event.end_ns());
      ASSERT_LE(event.node(), nodes);  // The last one copies the record.
      ASSERT_LT(event.step(), kSteps);
      ASSERT_LT(event.worker(), workers);
      EXPECT_EQ(event.version(), 1u);
      const std::pair<uint64_t, uint32_t> at(event.step(), event.node());
      EXPECT_TRUE(chunks[at].insert(event.chunk()).second);
      auto& [begin, end] = times.try_emplace(at, UINT64_MAX, 0).first->second;
      begin = std::min(begin, event.begin_ns());
      end = std::max(end, event.end_ns());
      EXPECT_TRUE(by_worker[event.worker()].try_emplace(event.end_ns(), event).second);
      if (event.node() < nodes) work_ns += event.end_ns() - event.begin_ns();
    }
    EXPECT_EQ(chunks.size(), kSteps * (nodes + 1));
    for (const auto& [at, of_node] : chunks) EXPECT_EQ(*of_node.rbegin() + 1, of_node.size());
    if (workers > 1) {
      EXPECT_GT((chunks[{0, 0}].size()), 1u);
    }
    // What a worker did does not overlap, and it does not wait while it works.
    for (const auto& [worker, events] : by_worker) {
      uint64_t ended = 0;
      for (const auto& [end, event] : events) {
        EXPECT_GE(event.wait_ns(), ended) << worker;
        ended = end;
      }
    }
    // Each node waits for the one before it, and a step for the one before it.
    uint64_t ended = 0;
    for (const auto& [at, time] : times) {
      EXPECT_GE(time.first, ended) << "step " << at.first << " node " << at.second;
      ended = time.second;
    }
    // The worker time of the result has what is around a call, too.
    EXPECT_LE(work_ns, outcome.result.device_ns());
    EXPECT_GT(work_ns, 0u);
  }
}

TEST(GraphTraceTest, ARunThatIsNotTracedHasNoTrace) {
  const Daemon daemon(Workers(1));
  const Client client(daemon);
  const Outcome outcome = RunGraph(daemon, client, Request(TracedLoop(3, 20)));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_TRUE(outcome.traces.empty());
  EXPECT_EQ(outcome.result.dropped_trace_events(), 0u);
}

// A part of staging memory has room for 1,638 events.
const std::vector<std::string> kSmallStaging = {"--cpu_workers=1", "--staging_mib=1"};
constexpr uint64_t kRoom = (64u << 10) / 40;

TEST(GraphTraceTest, QuantaHaveAsManyStepsAsThereIsRoomFor) {
  const Daemon daemon(kSmallStaging);
  const Client client(daemon);
  GraphMaker maker;
  maker.Activation("a", {1});
  maker.Tensor(Kind::KIND_STATE, "b", {D(1)});
  for (int i = 0; i < 5; ++i) maker.Call("relu", {"b", "a"}).Call("silu", {"a", "b"});
  maker.graph.mutable_loop()->set_max_steps(2000);
  const Outcome outcome = RunGraph(daemon, client, Traced(maker));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.events().size(), 20'000u);
  EXPECT_EQ(outcome.result.dropped_trace_events(), 0u);
  // Without a limit a quantum would have up to 5 ms of these nodes.
  EXPECT_GE(outcome.traces.size(), 20'000 / kRoom);
  for (const v1::GraphTrace& trace : outcome.traces) EXPECT_LE(trace.events_size(), kRoom);
}

TEST(GraphTraceTest, EventsOfAStepWithoutRoomAreCounted) {
  const Daemon daemon(kSmallStaging);
  const Client client(daemon);
  GraphMaker maker;
  maker.Activation("a", {1});
  maker.Tensor(Kind::KIND_STATE, "b", {D(1)});
  constexpr int kPairs = 2000;
  for (int i = 0; i < kPairs; ++i) maker.Call("relu", {"b", "a"}).Call("silu", {"a", "b"});
  const v1::RunGraphRequest request = Traced(maker);
  // On a slow machine the step can be divided into quanta in which there is room.
  uint64_t dropped = 0;
  for (int i = 0; i < 100 && dropped == 0; ++i) {
    const Outcome outcome = RunGraph(daemon, client, request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    dropped = outcome.result.dropped_trace_events();
    EXPECT_EQ(outcome.events().size() + dropped, 2u * kPairs);
    for (const v1::GraphTrace& trace : outcome.traces) EXPECT_LE(trace.events_size(), kRoom);
  }
  EXPECT_GT(dropped, 0u);
}

// Other tasks that a worker executes between two chunks are not time for which it waited.
TEST(GraphTraceTest, WorkOfOthersIsNoWaiting) {
  const Daemon daemon(Workers(1));
  const Client client(daemon);
  const Client other(daemon, "other");
  uint64_t buffer = 0;
  ASSERT_TRUE(other.Allocate(64, &buffer).ok());
  std::atomic<bool> busy{true};
  std::thread flood([&] {  // 500 µs each.
    while (busy) EXPECT_TRUE(other.Run(FloatTasks("test.spin", buffer, 0, 64, 500'000)).all_ok());
  });
  EXPECT_TRUE(Eventually([&] { return daemon.Device().completed_tasks() > 64; }));
  const Outcome outcome = RunGraph(daemon, client, Traced(SpinningLoop(20, 50'000, 60)));
  busy = false;
  flood.join();
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  // Between these chunks the worker did something else, except where a quantum ended.
  std::vector<v1::GraphTraceEvent> events = outcome.events();
  std::sort(events.begin(), events.end(),
            [](const auto& a, const auto& b) { return a.end_ns() < b.end_ns(); });
  std::vector<uint64_t> waits;
  for (size_t i = 1; i < events.size(); ++i) {
    if (events[i].begin_ns() - events[i - 1].end_ns() < 500'000) continue;
    waits.push_back(events[i].begin_ns() - events[i].wait_ns());
  }
  ASSERT_GT(waits.size(), outcome.traces.size() * 2);
  std::sort(waits.begin(), waits.end());
  EXPECT_LT(waits[waits.size() / 2], 250'000u);
}

// The trace of a step that takes several quanta is complete.
TEST(GraphTraceTest, AStepThatTakesManyQuanta) {
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  const Outcome outcome = RunGraph(daemon, client, Traced(SpinningLoop(40, 1'000'000, 2)));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_GT(outcome.traces.size(), 4u);
  std::set<std::pair<uint64_t, uint32_t>> seen;
  for (const v1::GraphTraceEvent& event : outcome.events()) {
    EXPECT_TRUE(seen.emplace(event.step(), event.node()).second);
    if (event.node() == 40) continue;  // The copy of the record.
    EXPECT_GE(event.end_ns() - event.begin_ns(), 1'000'000u);
  }
  EXPECT_EQ(seen.size(), 2u * 41);
}

// A client that does not read makes the daemon hold the trace of one quantum, not of the run.
TEST(GraphTraceTest, ARunWaitsForItsClient) {
  const Daemon daemon(Workers(1));
  const Client client(daemon);
  GraphMaker maker;
  maker.Activation("a", {1});
  maker.Tensor(Kind::KIND_STATE, "b", {D(1)});
  for (int i = 0; i < 5; ++i) maker.Call("relu", {"b", "a"}).Call("silu", {"a", "b"});
  maker.graph.mutable_loop()->set_max_steps(1 << 20);
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  const auto context = client.Context();
  const auto stream = stub->Run(context.get(), Traced(maker));
  v1::RunGraphResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.trace().events_size(), 10);
  EXPECT_TRUE(Eventually([&] {
    const uint64_t tasks = daemon.Device().completed_tasks();
    const uint64_t uptime = daemon.Status().uptime_ms();
    return Eventually([&] { return daemon.Status().uptime_ms() > uptime + 200; }) &&
           daemon.Device().completed_tasks() == tasks;
  }));
  // The run has several hundred quanta.
  EXPECT_LT(daemon.Device().completed_tasks(), 50u);
  // It continues when the client reads.
  uint64_t events = 0;
  while (events < 500'000 && stream->Read(&response)) events += response.trace().events_size();
  EXPECT_GE(events, 500'000u);
  context->TryCancel();
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(GraphTraceTest, ARunThatIsExecutedNodeByNodeIsRefused) {
  const Daemon daemon({"--cpu_workers=1", "--graphs_in_engine=false"});
  const Client client(daemon);
  const Outcome refused = RunGraph(daemon, client, Traced(TracedLoop(3, 20)));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("cannot be traced"));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("Fix: "));
  EXPECT_TRUE(refused.steps.empty());
  // It has left nothing, and the same run without a trace works.
  EXPECT_TRUE(RunGraph(daemon, client, Request(TracedLoop(3, 20))).status.ok());
}

// --- Installed operators --------------------------------------------------------------

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

  const Daemon daemon_{Workers(2)};
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
  v1::RunGraphRequest request = Request(maker);
  v1::GraphBinding& binding = *request.add_bindings();
  binding.set_tensor("x");
  const float one = 1;
  binding.set_data(std::string(reinterpret_cast<const char*>(&one), sizeof(one)));
  std::atomic<bool> started{false};
  std::atomic<bool> stop{false};
  std::map<float, uint64_t> seen;
  Outcome outcome;
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
  const Outcome outcome =
      RunGraph(daemon_, client_, Request(maker), [&](const v1::GraphStep&, grpc::ClientContext&) {
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
  const Outcome before = RunGraph(daemon_, client_, Traced(maker));
  EXPECT_TRUE(before.status.ok()) << before.status.error_message();
  ASSERT_EQ(before.events().size(), 1u);
  EXPECT_TRUE(operators_->Promote("scaled", /*shadow_percent=*/100, /*traffic_percent=*/0).ok());
  ExpectRefused(RunGraph(daemon_, client_, Traced(maker)).status,
                grpc::StatusCode::FAILED_PRECONDITION,
                {"cannot be traced", "node by node", "on trial", "Fix: "});
  EXPECT_TRUE(RunGraph(daemon_, client_, Request(maker)).status.ok());
  EXPECT_TRUE(operators_->Promote("scaled", 0, 0).ok());
  EXPECT_TRUE(RunGraph(daemon_, client_, Traced(maker)).status.ok());
}

// An installed version that faults in a graph is quarantined, and the version before serves again.
TEST_F(GraphQuantumOperatorsTest, TheVersionThatFaultsIsQuarantined) {
  MustInstall(Times("scaled", 2));
  MustInstall(Times("scaled", 3, "if (x[i] == 42.0f) *reinterpret_cast<volatile float*>(8) = 1;"));
  GraphMaker maker;
  maker.Input("x", {1}).Activation("a", {1}).Output("y", {1});
  maker.Call("relu", {"x", "a"}).Call("scaled", {"a", "y"});
  maker.node(1).set_name("scale");
  v1::RunGraphRequest request = Request(maker);
  v1::GraphBinding& binding = *request.add_bindings();
  binding.set_tensor("x");
  const auto set = [&](float x) {
    binding.set_data(std::string(reinterpret_cast<const char*>(&x), sizeof(x)));
  };
  set(1);
  Outcome outcome = RunGraph(daemon_, client_, request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.floats(0), std::vector<float>{3});
  const pid_t engine = daemon_.engine_pid();
  set(42);
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
