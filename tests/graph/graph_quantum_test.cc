// Runs whose steps the engine executes itself, a quantum at a time: how they share the workers with
// other work, and what happens when a node fails or the engine ends.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;
using ::testing::AnyOf;

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
    const GraphOutcome outcome = RunGraph(daemon, client, RunOf(maker));
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
    std::vector<GraphOutcome> outcomes(kRuns);
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::thread> threads;
    std::atomic<int> started{0};
    std::atomic<bool> enough{false};
    for (int i = 0; i < kRuns; ++i) {
      clients.push_back(std::make_unique<Client>(daemon, absl::StrCat("run ", i)));
      threads.emplace_back([&, i] {
        outcomes[i] = RunGraph(daemon, *clients[i], RunOf(SpinningLoop(20, 100'000, 1'000'000)),
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
    const GraphOutcome run = RunGraph(daemon, beside, RunOf(SpinningLoop(3, 100'000, 20)));
    EXPECT_TRUE(run.status.ok()) << run.status.error_message();
    EXPECT_EQ(run.steps.size(), 20u);
    busy = false;
    flood.join();
    enough = true;
    for (std::thread& thread : threads) thread.join();
    for (const GraphOutcome& outcome : outcomes) {
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
      v1::RunGraphRequest request = RunOf(maker);
      (*request.mutable_scalars())["k"] = t;
      const GraphOutcome outcome = RunGraph(daemon, client, request);
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

// Graphs whose weights a GPU copies ahead of the nodes, and others, which another form of its graph
// kernel executes: one after the other, both at once, and again after a time without the first
// ones.
TEST(GraphQuantumTest, RunsOfGraphsWithAndWithoutStreams) {
  constexpr int kRows = 640, kColumns = 2048;
  constexpr uint64_t kSteps = 40;
  const Daemon daemon(Workers(2));
  // Sums of small whole numbers, which are exact in any order.
  std::mt19937 random(kRows);
  std::vector<uint16_t> weights(kRows * kColumns);
  std::vector<float> x(kColumns), expected(kRows);
  for (float& value : x) value = static_cast<float>(random() % 5) - 2;
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      const float weight = static_cast<float>(random() % 9) - 4;
      uint32_t bits;
      std::memcpy(&bits, &weight, sizeof(bits));
      weights[row * kColumns + column] = static_cast<uint16_t>(bits >> 16);
      expected[row] += weight * x[column];
    }
  }
  GraphMaker streams;
  streams.Input("x", {kColumns});
  streams.Tensor(Kind::KIND_INPUT, "w", {D(kRows), D(kColumns)}, v1::DTYPE_BF16);
  streams.Output("y", {kRows}).Call("gemv", {"x", "w", None(), "y"});
  streams.graph.mutable_loop()->set_max_steps(kSteps);
  v1::RunGraphRequest with_streams = RunOf(streams);
  Bind(with_streams, "x").set_data(ToBytes(x));
  Bind(with_streams, "w").set_data(ToBytes(weights));

  GraphMaker plain;
  plain.Tensor(Kind::KIND_STATE, "count", {D(1)}).Output("last", {1});
  for (int i = 0; i < 20; ++i) plain.Call("test.count", {"count"});
  plain.Call("copy", {"count", "last"});
  plain.graph.mutable_loop()->set_max_steps(kSteps);

  const Client client(daemon), other(daemon, "other");
  const auto run_streams = [&](const Client& by) {
    const GraphOutcome outcome = RunGraph(daemon, by, with_streams);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.floats(), expected);
  };
  const auto run_plain = [&](const Client& by) {
    const GraphOutcome outcome = RunGraph(daemon, by, RunOf(plain));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.floats(), std::vector<float>{20.0f * kSteps});
  };
  for (int round = 0; round < 2; ++round) {
    run_streams(client);
    run_plain(client);
    std::thread beside([&] {
      for (int i = 0; i < 5; ++i) run_plain(other);
    });
    for (int i = 0; i < 5; ++i) {
      run_streams(client);
      EXPECT_TRUE(client.Run(SmallAdd()).all_ok());
    }
    beside.join();
    // An engine then changes to the kernel for graphs without streams.
    std::this_thread::sleep_for(std::chrono::milliseconds(110));
    run_plain(client);
    EXPECT_TRUE(client.Run(SmallAdd()).all_ok());
    run_plain(client);
  }
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
  v1::RunGraphRequest request = RunOf(maker);
  (*request.mutable_scalars())["n"] = 1;
  const GraphOutcome outcome = RunGraph(daemon, client, request);
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

// A step whose records do not fit into a part of staging memory is executed node by node.
TEST(GraphQuantumTest, RecordsThatDoNotFitIntoStagingMemory) {
  const Daemon daemon({"--cpu_workers=2", "--staging_mib=1"});
  const Client client(daemon);
  for (const auto& [floats, fits] : {std::pair{16'384, true}, {16'385, false}}) {
    GraphMaker maker;
    maker.Scalar("k", 0, 1e6, v1::DTYPE_F32);
    maker.Tensor(Kind::KIND_STREAM, "r", {D(5), D(floats)}).Output("last", {1});
    maker.Call("fill", {"r", S("k", 10, 1)}).Call("fill", {"last", S("k")});
    v1::GraphLoop& loop = *maker.graph.mutable_loop();
    loop.set_max_steps(5);
    loop.add_updates()->set_scalar("k");
    loop.mutable_updates(0)->set_addend(1);
    v1::RunGraphRequest request = RunOf(maker);
    (*request.mutable_scalars())["k"] = 0;
    const GraphOutcome outcome = RunGraph(daemon, client, request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    ASSERT_EQ(outcome.steps.size(), 5u);
    for (size_t step = 0; step < 5; ++step) {
      EXPECT_EQ(FromBytes<float>(outcome.steps[step].records(0).data()),
                std::vector<float>(floats, 10 * static_cast<float>(step) + 1));
    }
    EXPECT_EQ(outcome.floats(), std::vector<float>{4});
    // Only what the engine executes itself has a trace.
    request.set_trace(true);
    const grpc::Status traced = RunGraph(daemon, client, request).status;
    if (fits) {
      EXPECT_TRUE(traced.ok()) << traced.error_message();
    } else {
      ExpectRefused(traced, grpc::StatusCode::FAILED_PRECONDITION, {"node by node"});
    }
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
  v1::RunGraphRequest request = RunOf(maker);
  (*request.mutable_scalars())["k"] = 0;
  EXPECT_TRUE(RunGraph(daemon, client, request).status.ok());
  request.mutable_graph()->mutable_loop()->mutable_updates(0)->set_factor(1.25);
  request.set_trace(true);
  // 0, 2, 4.5: half of the last one is no integer.
  const GraphOutcome outcome = RunGraph(daemon, client, request);
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
  GraphOutcome bystander;
  std::thread thread([&] {
    bystander = RunGraph(daemon, other, RunOf(SpinningLoop(4, 20'000, 1'000'000)),
                         [&](const v1::GraphStep&, grpc::ClientContext&) { started = true; });
  });
  EXPECT_TRUE(Eventually([&] { return started.load(); }));
  GraphMaker maker;
  maker.Output("y", {4}).Activation("a", {4});
  maker.Call("fill", {"a", F(1)}).Call(op, {"a"}).Call("copy", {"a", "y"});
  maker.node(1).set_name("culprit");
  const GraphOutcome outcome = RunGraph(daemon, client, RunOf(maker));
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
  const GraphOutcome next = RunGraph(daemon, client, RunOf(maker));
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

// A run, and a step, may last longer than the limit for a task, which applies to a node.
TEST(GraphQuantumTest, ALongRunIsNoHang) {
  const Daemon daemon({"--cpu_workers=1", "--task_time_limit=3s"});
  const Client client(daemon);
  const GraphOutcome outcome = RunGraph(daemon, client, RunOf(SpinningLoop(40, 100'000'000, 1)));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(daemon.Device().restarts(), 0u);
}

// The device is parked between two quanta, and the run continues after it.
TEST(GraphQuantumTest, AParkWaitsForTheEndOfTheQuantum) {
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  bool parked = false;
  const GraphOutcome outcome =
      RunGraph(daemon, client, RunOf(SpinningLoop(3, 200'000, 200)),
               [&](const v1::GraphStep& step, grpc::ClientContext&) {
                 if (step.step() != 5) return;
                 EXPECT_TRUE(Park(daemon).ok());
                 parked = daemon.Device().state() == v1::DeviceStatus::STATE_PARKED;
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
  v1::RunGraphRequest request = RunOf(maker);
  Bind(request, "n").set_buffer_id(buffer);
  request.set_timeout_us(400'000);
  ASSERT_TRUE(client.Run(FloatTasks("zero", buffer, 0, 1)).all_ok());
  const GraphOutcome outcome = RunGraph(daemon, client, request);
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
    const auto stream = stub->Run(context.get(), RunOf(endless));
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
    const GraphOutcome next = RunGraph(daemon, client, RunOf(three));
    ASSERT_TRUE(next.status.ok()) << next.status.error_message();
    EXPECT_EQ(next.floats(0), std::vector<float>{3});
  }
  std::sort(waits_ms.begin(), waits_ms.end());
  std::cout << count << " runs, cancelled after 0 to 4 ms; ended after "
            << waits_ms[waits_ms.size() / 2] << " ms (median), "
            << waits_ms[waits_ms.size() * 99 / 100] << " ms (99 %), "
            << waits_ms[waits_ms.size() * 999 / 1000] << " ms (99.9 %), " << waits_ms.back()
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
  const GraphOutcome outcome = RunGraph(
      daemon, client, RunOf(SpinningLoop(20, 100'000, 200)),
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

}  // namespace
}  // namespace resident::testing
