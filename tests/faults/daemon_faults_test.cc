// The daemon itself is killed, stopped, or cannot start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/health.h"
#include "tests/daemon/messages.h"
#include "tests/graph/loaded_graphs.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint32_t kBatch = 500;
constexpr uint32_t kCounters = 1 << 20;

TEST(DaemonFaultsTest, KilledUnderLoadAndStartedOnTheSamePort) {
  auto daemon = std::make_unique<Daemon>();
  const std::string address = daemon->address();
  const pid_t engine = daemon->engine_pid();
  const auto channel = daemon->Connect();

  std::atomic<uint64_t> ok{0};
  std::atomic<int> opened{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&] {
      const Client client(*daemon);
      const Counters counters(client, kCounters);
      ++opened;
      for (uint32_t first = 0; first + kBatch <= kCounters; first += kBatch) {
        const RunOutcome outcome = client.Run(counters.Batch(first, kBatch));
        if (!outcome.call.ok()) {
          EXPECT_EQ(outcome.call.error_code(), grpc::StatusCode::UNAVAILABLE)
              << outcome.call.error_message();
          for (uint32_t i = 0; i < kBatch; ++i) EXPECT_LE(counters.value(first + i), 1.0f);
          return;
        }
        for (uint32_t i = 0; i < kBatch; ++i) EXPECT_EQ(counters.value(first + i), 1.0f);
        ok += kBatch;
      }
    });
  }
  // Wait until all clients run batches: those that are still opening their session are not
  // part of this test.
  EXPECT_TRUE(Eventually([&] { return opened == 3 && ok > 5000; }));
  daemon->Kill(SIGKILL);
  EXPECT_TRUE(daemon->Wait());
  for (std::thread& client : clients) client.join();
  // The engine must end with the daemon.
  EXPECT_TRUE(Eventually([&] { return kill(engine, 0) != 0 && errno == ESRCH; }));

  const Daemon again({}, address);
  EXPECT_EQ(again.address(), address);
  // The old channel reconnects to the new daemon.
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  v1::StatusResponse status;
  const grpc::Status called =
      v1::Admin::NewStub(channel)->Status(&context, v1::StatusRequest(), &status);
  EXPECT_TRUE(called.ok()) << called.error_message();
  EXPECT_EQ(status.pid(), again.pid());
  const Client client(again);
  const Counters counters(client, kBatch);
  EXPECT_TRUE(client.Run(counters.Batch(0, kBatch)).all_ok());
}

// How graphs run: as one task in the engine, or node by node.
class GraphRunFaultsTest : public ::testing::TestWithParam<const char*> {
 protected:
  // SummingLoop with a durable weight, which each step copies to the output `weighted`.
  static GraphMaker EndlessLoop() {
    GraphMaker maker = SummingLoop(1'000'000);
    maker.Weight(kWeight, {4}).Output("weighted", {4}).Call("copy", {kWeight, "weighted"});
    return maker;
  }
  static uint64_t AllocateWeight(const Client& client) {
    v1::AllocateRequest request;
    request.set_dtype(v1::DTYPE_F32);
    request.add_shape(4);
    request.set_durable(true);
    request.set_name(kWeight);
    v1::AllocateResponse response;
    const grpc::Status status =
        client.buffers().Allocate(client.Context().get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.buffer().id();
  }
  // The first records of the stream: 0, 1, 3, 6, ...
  static std::vector<double> Sums(size_t count) {
    std::vector<double> sums;
    for (size_t k = 0; k < count; ++k) sums.push_back(static_cast<double>(k * (k + 1) / 2));
    return sums;
  }

  static constexpr char kWeight[] = "faults.weight";
};

TEST_P(GraphRunFaultsTest, KilledWhileARunStreamsAndStartedWithTheSameState) {
  const TempFolder state("resident-state");
  const std::vector<std::string> flags = {"--state_dir=" + state.path(), GetParam()};
  const std::vector<float> weight = {1.5, -2, 3, 0.25};
  const GraphMaker maker = EndlessLoop();
  std::string id;
  {
    Daemon daemon(flags);
    const pid_t engine = daemon.engine_pid();
    const Client client(daemon);
    const GraphCalls calls(daemon, client);
    ASSERT_TRUE(Upload(client, AllocateWeight(client), ToBytes(weight)).ok());
    id = calls.MustLoad(maker);
    v1::RunGraphRequest endless;
    endless.set_graph_session(calls.MustOpen(id).session_id());
    size_t steps = 0;
    const GraphOutcome killed = calls.Run(endless, [&](const v1::GraphStep&, grpc::ClientContext&) {
      if (++steps == 10) daemon.Kill(SIGKILL);
    });
    // Not the deadline of the call: the client learns of it when the connection ends.
    EXPECT_EQ(killed.status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << killed.status.error_message();
    EXPECT_GE(killed.steps.size(), 10u);
    EXPECT_EQ(killed.stream(), Sums(killed.steps.size()));
    EXPECT_TRUE(daemon.Wait());
    EXPECT_TRUE(Eventually([&] { return kill(engine, 0) != 0 && errno == ESRCH; }));
  }

  const Daemon again(flags);
  const Client client(again);
  const GraphCalls calls(again, client);
  ASSERT_EQ(calls.List().size(), 1u);
  EXPECT_EQ(calls.List()[0].graph_id(), id);
  // Sessions of the former daemon are gone, and new ones begin with zeros.
  EXPECT_EQ(calls.MustDescribe(id).sessions(), 0u);
  const v1::GraphSession session = calls.MustOpen(id);
  const GraphOutcome next = calls.RunIn(session.session_id(), 60);
  ASSERT_TRUE(next.status.ok()) << next.status.error_message();
  EXPECT_EQ(next.stream(), Sums(60));
  EXPECT_EQ(next.floats(0), std::vector<float>{59});
  EXPECT_EQ(next.floats(1), weight);
}

INSTANTIATE_TEST_SUITE_P(Forms, GraphRunFaultsTest,
                         ::testing::Values("--graphs_in_engine=true", "--graphs_in_engine=false"),
                         [](const auto& form) {
                           return std::string(form.index == 0 ? "InTheEngine" : "NodeByNode");
                         });

TEST(DaemonFaultsTest, TheNextStartRemovesTheFolderOfTheCompilers) {
  const TempFolder state("resident-state");
  const std::vector<std::string> flags = {"--state_dir=" + state.path()};
  const auto folders = [&] {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(state.path() + "/cache/work")) {
      paths.push_back(entry.path().string());
    }
    return paths;
  };
  std::vector<std::string> killed;
  {
    Daemon daemon(flags);
    killed = folders();
    ASSERT_EQ(killed.size(), 1u);
    daemon.Kill(SIGKILL);
    EXPECT_TRUE(daemon.Wait());
  }
  EXPECT_EQ(folders(), killed);
  const Daemon again(flags);
  EXPECT_EQ(folders().size(), 1u);
  EXPECT_NE(folders(), killed);
}

TEST(DaemonFaultsTest, TerminationFinishesAcceptedWork) {
  Daemon daemon;
  const pid_t engine = daemon.engine_pid();
  const Client client(daemon);
  const Counters out(client, 16);
  RunOutcome outcome;
  std::thread running(
      [&] { outcome = client.Run(FloatTasks("test.spin", out.buffer(), 0, 1, 3'000'000'000)); });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  daemon.Kill(SIGTERM);
  running.join();
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(out.value(0), 1.0f);
  const auto exit = daemon.Wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->status, 0) << exit->ToString();
  EXPECT_EQ(kill(engine, 0), -1);
}

TEST(DaemonFaultsTest, MetricsAreAnsweredWhileTheDaemonDrains) {
  Daemon daemon;
  const Client client(daemon);
  const Counters counters(client, 1);
  // Parked, so that the drain waits until the page has been read.
  ASSERT_TRUE(Park(daemon).ok());
  RunOutcome outcome;
  std::thread waiting([&] { outcome = client.Run(counters.Batch(0, 1)); });
  EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 1; }));
  daemon.Kill(SIGTERM);
  EXPECT_TRUE(Eventually([&] { return CheckHealth(daemon, "") == kNotServing; }));
  EXPECT_THAT(daemon.Metrics(), HasSubstr("resident_queue_tasks{device=\"0\"} 1\n"));
  (void)Resume(daemon);  // The daemon may exit before it answers.
  waiting.join();
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(counters.value(0), 1.0f);
  const auto exit = daemon.Wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->status, 0) << exit->ToString();
}

TEST(DaemonFaultsTest, TerminationAnswersTheRestAtTheDrainTimeout) {
  Daemon daemon({"--drain_timeout=200ms"});
  const Client client(daemon);
  const Counters out(client, 16);
  RunOutcome outcome;
  std::thread running(
      [&] { outcome = client.Run(FloatTasks("test.spin", out.buffer(), 0, 1, 60'000'000'000)); });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  daemon.Kill(SIGTERM);
  running.join();
  EXPECT_EQ(outcome.status(0), v1::TASK_STATUS_UNAVAILABLE);
  const auto exit = daemon.Wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->status, 0) << exit->ToString();
}

// `systemctl reload` sends SIGHUP with any flags of the daemon.
TEST(DaemonFaultsTest, HangupWithoutCredentialsIsSurvived) {
  Daemon daemon;
  const pid_t engine = daemon.engine_pid();
  const std::string message = "SIGHUP: nothing to reload";
  daemon.Kill(SIGHUP);
  ASSERT_TRUE(Eventually([&] {
    return daemon.Output().find(message) != std::string::npos ||
           daemon.Wait(seconds(0)).has_value();
  }));
  EXPECT_THAT(daemon.Output(), HasSubstr(message));
  const Client client(daemon);
  const Counters counters(client, kBatch);
  EXPECT_TRUE(client.Run(counters.Batch(0, kBatch)).all_ok());
  EXPECT_EQ(daemon.engine_pid(), engine);
  daemon.Kill(SIGTERM);  // It still ends on SIGTERM.
  const auto exit = daemon.Wait();
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->status, 0) << exit->ToString();
}

TEST(DaemonFaultsTest, TwoDaemonsOnOnePort) {
  const Daemon first;
  const Daemon::Failure second = Daemon::StartExpectingFailure({"--address=" + first.address()});
  EXPECT_EQ(second.exit.status, 1) << second.exit.ToString();
  EXPECT_THAT(second.output, HasSubstr(first.address()));
  EXPECT_THAT(second.output, HasSubstr("Fix: "));
  EXPECT_EQ(first.Status().pid(), first.pid());  // The first one is not affected.
}

TEST(DaemonFaultsTest, MetricsPortInUse) {
  const Daemon first;
  const Daemon::Failure second =
      Daemon::StartExpectingFailure({"--metrics_address=" + first.metrics_address()});
  EXPECT_EQ(second.exit.status, 1) << second.exit.ToString();
  EXPECT_THAT(second.output, HasSubstr("metrics_address"));
  EXPECT_THAT(second.output, HasSubstr("Fix: "));
}

TEST(DaemonFaultsTest, RingSizeThatIsNotAPowerOfTwo) {
  const Daemon::Failure failure = Daemon::StartExpectingFailure({"--ring_slots=100"});
  EXPECT_EQ(failure.exit.status, 2) << failure.exit.ToString();
  EXPECT_THAT(failure.output, HasSubstr("--ring_slots"));
}

}  // namespace
}  // namespace resident::testing
