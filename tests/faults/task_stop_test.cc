// Tasks that run are stopped by a deadline, a cancellation or their time limit: what clients of the
// daemon observe. The engine is the same at the end, and other clients see nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/client.h"
#include "tests/daemon/counting_client.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"
#include "tests/daemon/nothing_left.h"
#include "tests/graph/loaded_graphs.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;

constexpr char kHangs[] = "test.until_stopped";

class TaskStopTest : public ::testing::Test {
 protected:
  explicit TaskStopTest(const std::string& flag = "--task_time_limit=1h")
      : daemon_({flag}), before_(daemon_), pid_(daemon_.engine_pid()), others_(daemon_) {}

  ~TaskStopTest() override {
    EXPECT_EQ(daemon_.engine_pid(), pid_);
    EXPECT_EQ(daemon_.Device().restarts(), 0u);
    EXPECT_TRUE(others_.KeepsRunning());
  }

  uint64_t Buffer(const Client& client) const {
    uint64_t buffer = 0;
    EXPECT_TRUE(client.Allocate(16, &buffer).ok());
    return buffer;
  }
  // The tasks of the other client are in the ring only for moments: that of a test is there
  // whenever one looks, while the other client goes on.
  bool AwaitHang() const {
    uint64_t batches = others_.batches();
    int looks = 0;
    return Eventually([&] {
      if (daemon_.Device().ring().in_flight() == 0) looks = 0;
      if (others_.batches() > batches && daemon_.Device().ring().in_flight() > 0) ++looks;
      batches = others_.batches();
      return looks >= 20;
    });
  }
  bool AwaitStopped(const std::vector<std::string>& reasons) const {
    return Eventually([&] {
      const std::string page = daemon_.Metrics();
      return std::any_of(reasons.begin(), reasons.end(), [&](const std::string& reason) {
        const std::string series =
            "resident_tasks_stopped_total{device=\"0\",reason=\"" + reason + "\"} ";
        const size_t at = page.find(series);
        return at != std::string::npos && page[at + series.size()] != '0';
      });
    });
  }

  Daemon daemon_;
  const Baseline before_;
  const pid_t pid_;
  CountingClient others_;
};

TEST_F(TaskStopTest, TheTimeoutOfABatchStopsItsTaskThatRuns) {
  const Client client(daemon_);
  v1::Batch batch = FloatTasks(kHangs, Buffer(client), 0, 1);
  batch.mutable_options()->set_timeout_us(1'000'000);
  const RunOutcome outcome = client.Run(batch);
  EXPECT_TRUE(outcome.call.ok()) << outcome.call.error_message();
  EXPECT_EQ(outcome.status(0), v1::TASK_STATUS_DEADLINE_EXCEEDED);
  EXPECT_THAT(outcome.message(), HasSubstr("while the task was in the ring, and it was stopped"));
  EXPECT_TRUE(AwaitStopped({"deadline"}));
  EXPECT_THAT(daemon_.Metrics(), HasSubstr("resident_stop_seconds_count{device=\"0\"} 1\n"));
}

TEST_F(TaskStopTest, TheDeadlineOfACallStopsItsTaskThatRuns) {
  const Client client(daemon_);
  const auto context = client.Context();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::RunRequest request;
  *request.mutable_batch() = FloatTasks(kHangs, Buffer(client), 0, 1);
  v1::RunResponse response;
  const grpc::Status status = client.executor().Run(context.get(), request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  // gRPC cancels the call at its deadline, too.
  EXPECT_TRUE(AwaitStopped({"deadline", "cancelled"}));
}

TEST_F(TaskStopTest, ACancelledCallStopsItsTaskThatRuns) {
  const Client client(daemon_);
  const auto context = client.Context();
  v1::RunRequest request;
  *request.mutable_batch() = FloatTasks(kHangs, Buffer(client), 0, 1);
  std::thread canceller([&] {
    EXPECT_TRUE(AwaitHang());
    context->TryCancel();
  });
  v1::RunResponse response;
  const grpc::Status status = client.executor().Run(context.get(), request, &response);
  canceller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  EXPECT_TRUE(AwaitStopped({"cancelled"}));
}

TEST_F(TaskStopTest, ASubmitStreamThatEndsStopsItsTasks) {
  {
    const Client client(daemon_);
    const auto context = client.Context();
    const auto stream = client.executor().Submit(context.get());
    v1::SubmitRequest request;
    *request.mutable_batch() = FloatTasks(kHangs, Buffer(client), 0, 1);
    ASSERT_TRUE(stream->Write(request));
    EXPECT_TRUE(AwaitHang());
    context->TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(AwaitStopped({"cancelled"}));
}

TEST_F(TaskStopTest, ARunOfAGraphIsStoppedWithinItsNode) {
  const Client client(daemon_);
  const GraphCalls calls(daemon_, client);
  GraphMaker maker;
  maker.Output("out", {D(1)}).Call(kHangs, {"out"});
  v1::RunGraphRequest late = RunOf(maker);
  late.set_timeout_us(200'000);
  const GraphOutcome ended = calls.Run(late);
  EXPECT_EQ(ended.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED)
      << ended.status.error_message();
  GraphMaker next;
  next.Output("out", {D(1)}).Call("fill", {"out", F(3)});
  const GraphOutcome after = calls.Run(RunOf(next));
  ASSERT_TRUE(after.status.ok()) << after.status.error_message();
  EXPECT_EQ(after.floats(0), std::vector<float>{3});
}

// On a GPU the kernel leaves for the graph, and reads no slots until the task has ended.
TEST_F(TaskStopTest, ACancellationStopsATaskForWhichAGraphWaits) {
  const Client client(daemon_);
  const auto context = client.Context();
  v1::RunRequest request;
  *request.mutable_batch() = FloatTasks(kHangs, Buffer(client), 0, 1);
  v1::RunResponse response;
  std::thread hang([&] {
    const grpc::Status status = client.executor().Run(context.get(), request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  });
  EXPECT_TRUE(AwaitHang());
  std::thread graph([&] {
    const Client other(daemon_);
    GraphMaker maker;
    maker.Output("out", {D(1)}).Call("fill", {"out", F(3)});
    const GraphOutcome ended = GraphCalls(daemon_, other).Run(RunOf(maker));
    EXPECT_TRUE(ended.status.ok()) << ended.status.error_message();
  });
  // Both are in the ring, or the graph has ended beside the task.
  EXPECT_TRUE(Eventually([&] {
    return daemon_.Device().ring().in_flight() > 1 ||
           daemon_.Figure("resident_graph_runs_total{outcome=\"ok\"}") > 0;
  }));
  context->TryCancel();
  hang.join();
  graph.join();
  EXPECT_TRUE(AwaitStopped({"cancelled"}));
}

class TaskLimitTest : public TaskStopTest {
 protected:
  TaskLimitTest() : TaskStopTest("--task_time_limit=200ms") {}
};

TEST_F(TaskLimitTest, ATaskThatExceedsItsLimitEndsAlone) {
  const Client client(daemon_);
  const uint64_t buffer = Buffer(client);
  const RunOutcome outcome = client.Run(FloatTasks(kHangs, buffer, 0, 1));
  EXPECT_TRUE(outcome.call.ok()) << outcome.call.error_message();
  EXPECT_EQ(outcome.status(0), v1::TASK_STATUS_ABORTED);
  EXPECT_THAT(outcome.message(), HasSubstr("it ran longer than operator test.until_stopped"));
  EXPECT_THAT(outcome.message(), HasSubstr("Fix: "));
  EXPECT_TRUE(AwaitStopped({"time_limit"}));
  // The client's memory is still there.
  EXPECT_TRUE(client.Run(FloatTasks("test.count", buffer, 1, 1)).all_ok());
}

TEST_F(TaskLimitTest, ANodeThatExceedsItsLimitFailsItsRun) {
  const Client client(daemon_);
  const GraphCalls calls(daemon_, client);
  GraphMaker maker;
  maker.Output("out", {D(1)}).Call(kHangs, {"out"});
  const GraphOutcome ended = calls.Run(RunOf(maker));
  EXPECT_EQ(ended.status.error_code(), grpc::StatusCode::ABORTED) << ended.status.error_message();
  EXPECT_THAT(ended.status.error_message(), HasSubstr(kHangs));
  EXPECT_THAT(ended.status.error_message(), HasSubstr("ran longer"));
}

}  // namespace
}  // namespace resident::testing
