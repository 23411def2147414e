// Traces of runs: what the workers of an engine did in each quantum.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor;
using ::testing::HasSubstr;

std::vector<std::string> Workers(int count) { return {absl::StrCat("--cpu_workers=", count)}; }

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
  v1::RunGraphRequest request = RunOf(maker);
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
    EXPECT_TRUE(RunGraph(daemon, client, RunOf(maker)).status.ok());
    // The clock of the engine is that of this process.
    const auto begun_ns =
        static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    const GraphOutcome outcome = RunGraph(daemon, client, Traced(maker));
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
      ASSERT_LT(event.worker(), OnGpu() ? daemon.Device().blocks() : workers);
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
    if (workers > 1 || OnGpu()) {
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
  const GraphOutcome outcome = RunGraph(daemon, client, RunOf(TracedLoop(3, 20)));
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
  const GraphOutcome outcome = RunGraph(daemon, client, Traced(maker));
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
  maker.Tensor(Kind::KIND_STATE, "b", {D(1)});
  // Independent of each other, so that all members of a gang execute some of them.
  constexpr int kNodes = 4000;
  for (int i = 0; i < kNodes; ++i) {
    maker.Activation(absl::StrCat("a", i), {1});
    maker.Call("relu", {"b", absl::StrCat("a", i)});
  }
  const v1::RunGraphRequest request = Traced(maker);
  // On a slow machine the step can be divided into quanta in which there is room.
  uint64_t dropped = 0;
  for (int i = 0; i < 100 && dropped == 0; ++i) {
    const GraphOutcome outcome = RunGraph(daemon, client, request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    dropped = outcome.result.dropped_trace_events();
    EXPECT_EQ(outcome.events().size() + dropped, uint64_t{kNodes});
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
  // Between most chunks of a quantum the worker executes a task of the other client. If it were
  // counted as waiting, a chunk would have waited since the end of the chunk before it. How many
  // chunks a quantum has depends on how much of a processor the worker gets.
  int behind_others = 0, not_waited = 0;
  for (int i = 0; i < 100 && not_waited < 20; ++i) {
    const GraphOutcome outcome = RunGraph(daemon, client, Traced(SpinningLoop(20, 50'000, 60)));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    for (const v1::GraphTrace& quantum : outcome.traces) {
      std::vector<v1::GraphTraceEvent> events(quantum.events().begin(), quantum.events().end());
      std::sort(events.begin(), events.end(),
                [](const auto& a, const auto& b) { return a.end_ns() < b.end_ns(); });
      for (size_t j = 1; j < events.size(); ++j) {
        const uint64_t between = events[j].begin_ns() - events[j - 1].end_ns();
        const uint64_t waited = events[j].begin_ns() - events[j].wait_ns();
        if (between < 500'000) continue;
        ++behind_others;
        if (waited < 250'000) ++not_waited;
      }
    }
  }
  busy = false;
  flood.join();
  EXPECT_GE(not_waited, 20);
  EXPECT_GT(not_waited, behind_others / 2);
}

// The trace of a step that takes several quanta is complete.
TEST(GraphTraceTest, AStepThatTakesManyQuanta) {
  const Daemon daemon(Workers(2));
  const Client client(daemon);
  const GraphOutcome outcome = RunGraph(daemon, client, Traced(SpinningLoop(40, 1'000'000, 2)));
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
  constexpr uint64_t kNodes = 10;
  constexpr uint64_t kSteps = 1 << 20;
  for (uint64_t i = 0; i < kNodes / 2; ++i) {
    maker.Call("relu", {"b", "a"}).Call("silu", {"a", "b"});
  }
  maker.graph.mutable_loop()->set_max_steps(kSteps);
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  const auto context = client.Context();
  const auto stream = stub->Run(context.get(), Traced(maker));
  v1::RunGraphResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.trace().events_size(), kNodes);
  EXPECT_TRUE(Eventually([&] {
    const uint64_t tasks = daemon.Device().completed_tasks();
    const uint64_t uptime = daemon.Status().uptime_ms();
    return Eventually([&] { return daemon.Status().uptime_ms() > uptime + 200; }) &&
           daemon.Device().completed_tasks() == tasks;
  }));
  const uint64_t before = daemon.Device().completed_tasks();
  // It continues when the client reads.
  constexpr uint64_t kEvents = 500'000;
  uint64_t events = 0;
  while (events < kEvents && stream->Read(&response)) events += response.trace().events_size();
  EXPECT_GE(events, kEvents);
  // Nearly all of its quanta are executed only then: how many there are depends on the machine.
  const uint64_t all = (daemon.Device().completed_tasks() - before) * kSteps * kNodes / kEvents;
  std::printf("%lu of about %lu quanta before the client reads\n", before, all);
  EXPECT_LT(before, all / 4);
  context->TryCancel();
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(GraphTraceTest, ARunThatIsExecutedNodeByNodeIsRefused) {
  const Daemon daemon({"--cpu_workers=1", "--graphs_in_engine=false"});
  const Client client(daemon);
  const GraphOutcome refused = RunGraph(daemon, client, Traced(TracedLoop(3, 20)));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("cannot be traced"));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("Fix: "));
  EXPECT_TRUE(refused.steps.empty());
  // It has left nothing, and the same run without a trace works.
  EXPECT_TRUE(RunGraph(daemon, client, RunOf(TracedLoop(3, 20))).status.ok());
}

}  // namespace
}  // namespace resident::testing
