// The engine ends, faults or hangs under load: what clients of the daemon observe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/client.h"
#include "tests/daemon/counting_client.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"
#include "tests/daemon/nothing_left.h"

namespace resident::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr uint32_t kBatch = 500;
constexpr uint32_t kCounters = 1 << 20;
constexpr int kClients = 3;

// Runs counting batches until one does not end OK; arrives at `ready` once it has its
// session and memory. Each task that is OK has run exactly once, each other one at most
// once.
uint64_t CountUntilLost(const Daemon& daemon, std::latch& ready) {
  const Client client(daemon, "counter");
  const Counters counters(client, kCounters);
  ready.arrive_and_wait();
  uint64_t ok = 0;
  for (uint32_t first = 0; first + kBatch <= kCounters; first += kBatch) {
    const RunOutcome outcome = client.Run(counters.Batch(first, kBatch));
    for (uint32_t i = 0; i < kBatch; ++i) {
      const v1::TaskStatus status = outcome.status(static_cast<int>(i));
      if (status == v1::TASK_STATUS_OK) {
        EXPECT_EQ(counters.value(first + i), 1.0f) << "task " << i;
        ++ok;
      } else {
        EXPECT_EQ(status, v1::TASK_STATUS_UNAVAILABLE) << "task " << i;
        EXPECT_LE(counters.value(first + i), 1.0f) << "task " << i;
      }
    }
    if (!outcome.all_ok()) {
      EXPECT_THAT(outcome.message(), HasSubstr("Fix: "));
      return ok;
    }
  }
  ADD_FAILURE() << "the engine was not lost";
  return ok;
}

// Runs a task that ends the engine: the task is aborted, its client's buffer is lost, and
// others continue with the next engine. Returns the client's error message.
std::string ExpectOperatorEndsTheEngine(const Daemon& daemon, const std::string& operator_name) {
  const Baseline before(daemon);
  std::string message;
  {
    CountingClient others(daemon);
    const pid_t pid = daemon.engine_pid();
    const Client client(daemon);
    uint64_t buffer = 0;
    EXPECT_TRUE(client.Allocate(16, &buffer).ok());
    const RunOutcome outcome = client.Run(FloatTasks(operator_name, buffer, 0, 1));
    EXPECT_TRUE(outcome.call.ok()) << outcome.call.error_message();
    EXPECT_EQ(outcome.status(0), v1::TASK_STATUS_ABORTED);
    message = outcome.message();
    EXPECT_THAT(message, HasSubstr(operator_name));
    EXPECT_TRUE(daemon.AwaitAnotherEngine(pid));
    // The buffer was lost with the engine, and the error reports this.
    const RunOutcome lost = client.Run(FloatTasks("test.count", buffer, 0, 1));
    EXPECT_EQ(lost.call.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(lost.message(), HasSubstr("Fix: "));
    EXPECT_TRUE(others.KeepsRunning());
  }
  EXPECT_EQ(daemon.Device().restarts(), 1u);
  ExpectNothingLeft(daemon, before);
  ExpectServes(daemon);
  return message;
}

// Allocates a durable buffer of four floats.
uint64_t AllocateDurable(const Client& client) {
  v1::AllocateRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(4);
  request.set_durable(true);
  v1::AllocateResponse response;
  const grpc::Status status = client.buffers().Allocate(client.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.buffer().id();
}

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

TEST(EngineFaultsTest, KilledUnderLoad) {
  Daemon daemon;
  const Baseline before(daemon);
  {
    CountingClient others(daemon);
    // A client that stays connected: its stream continues after the engine has ended.
    const Client steady(daemon, "steady");
    const auto context = steady.Context();
    const auto stream = steady.executor().Submit(context.get());
    for (int round = 0; round < 3; ++round) {
      const pid_t pid = daemon.engine_pid();
      std::atomic<uint64_t> ok{0};
      std::vector<std::thread> clients;
      std::latch ready(kClients + 1);
      for (int c = 0; c < kClients; ++c) {
        clients.emplace_back([&] { ok += CountUntilLost(daemon, ready); });
      }
      // Wait until all clients are ready: a later one would not find the engine.
      ready.arrive_and_wait();
      const uint64_t completed = daemon.Device().completed_tasks();
      EXPECT_TRUE(Eventually([&] { return daemon.Device().completed_tasks() > completed + 5000; }));
      kill(pid, SIGKILL);
      for (std::thread& client : clients) client.join();
      EXPECT_GT(ok, 0u);
      ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
      EXPECT_EQ(daemon.Device().restarts(), static_cast<uint64_t>(round + 1));
      EXPECT_TRUE(others.KeepsRunning());

      const Counters counters(steady, 100);
      v1::SubmitRequest request;
      *request.mutable_batch() = counters.Batch(0, 100);
      request.mutable_batch()->set_id(static_cast<uint64_t>(round));
      ASSERT_TRUE(stream->Write(request));
      v1::SubmitResponse response;
      ASSERT_TRUE(stream->Read(&response));
      EXPECT_EQ(response.result().id(), static_cast<uint64_t>(round));
      EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
      EXPECT_EQ(response.result().status_size(), 0);
      for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(counters.value(i), 1.0f);
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  EXPECT_TRUE(Eventually(
      [&] { return daemon.Engines() == static_cast<size_t>(daemon.Status().devices_size()); }));
  ExpectNothingLeft(daemon, before);
  ExpectServes(daemon);
}

TEST(EngineFaultsTest, OperatorThatStoresToABadAddress) {
  ExpectOperatorEndsTheEngine(Daemon(), "test.bad_store");
}

// The tasks of one range share a slot of the ring; none of them is lost.
TEST(EngineFaultsTest, OperatorThatStoresToABadAddressInARegularBatch) {
  constexpr uint32_t kTasks = 5000;
  const Daemon daemon;
  const pid_t pid = daemon.engine_pid();
  const Client client(daemon);
  uint64_t buffer = 0;
  ASSERT_TRUE(client.Allocate(kTasks, &buffer).ok());
  const RunOutcome outcome = client.Run(FloatTasks("test.bad_store", buffer, 0, kTasks));
  ASSERT_TRUE(outcome.call.ok()) << outcome.call.error_message();
  EXPECT_EQ(outcome.result.status_size(), static_cast<int>(kTasks));
  EXPECT_EQ(outcome.status(0), v1::TASK_STATUS_ABORTED);
  EXPECT_THAT(outcome.message(), HasSubstr("test.bad_store"));
  for (const int status : outcome.result.status()) {
    EXPECT_THAT(status, AnyOf(v1::TASK_STATUS_ABORTED, v1::TASK_STATUS_UNAVAILABLE));
  }
  EXPECT_TRUE(daemon.AwaitAnotherEngine(pid));
  ExpectServes(daemon);
}

TEST(EngineFaultsTest, OperatorThatNeverReturns) {
  // Long enough that only an operator that never returns exceeds it, even on a loaded
  // machine.
  const Daemon daemon({"--task_time_limit=2s"});
  EXPECT_THAT(ExpectOperatorEndsTheEngine(daemon, "test.never_returns"),
              HasSubstr("--task_time_limit"));
}

// For example suspended, or the host of a virtual machine was busy: time without progress
// must not count.
TEST(EngineFaultsTest, ASuspendedMachineEndsNoTask) {
  const Daemon daemon({"--task_time_limit=3s"});
  const Client client(daemon);
  uint64_t out = 0;
  ASSERT_TRUE(client.Allocate(1, &out).ok());
  const auto passes = [&](uint64_t ms) {
    const uint64_t uptime_ms = daemon.Status().uptime_ms();
    return Eventually([&] { return daemon.Status().uptime_ms() >= uptime_ms + ms; });
  };
  RunOutcome outcome;
  // Again if the task has ended before it was seen.
  std::atomic<bool> seen{false};
  std::thread task([&] {
    do {
      outcome = client.Run(FloatTasks("test.spin", out, 0, 1, 1'500'000'000));
    } while (outcome.all_ok() && !seen);
  });
  EXPECT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  seen = true;
  // The supervisor sees the task: it checks at least every half a second.
  EXPECT_TRUE(passes(700));
  const pid_t engine = daemon.engine_pid();
  for (const pid_t pid : {engine, daemon.pid()}) kill(pid, SIGSTOP);
  // Longer than --task_time_limit: this time must not count.
  std::this_thread::sleep_for(std::chrono::seconds(4));
  // The daemon detects the delay before the engine can answer.
  kill(daemon.pid(), SIGCONT);
  EXPECT_TRUE(passes(200));
  kill(engine, SIGCONT);
  task.join();
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(daemon.Device().restarts(), 0u);
}

// Programs are limited by the instructions that they may execute: no accepted batch exceeds
// the time limit, even if other batches use the other workers.
TEST(EngineFaultsTest, FluxProgramsThatNeverHaltEndAtTheirCycleLimit) {
  const Daemon daemon(
      {OnGpu() ? "--task_time_limit=2s" : "--task_time_limit=3s", "--flux_max_cycles=1000000000"});
  // CPU: one run takes a sixth of a second, so that a busy machine does not matter; all
  // runs of a batch on one worker would take twice the limit. GPU: the maximum that is
  // accepted.
  const uint32_t runs = OnGpu() ? 24 : 36;
  const uint32_t cycles_of_same = OnGpu() ? 5'000'000 : 51'000'000;
  const uint32_t cycles_of_different = OnGpu() ? 624'000 : 51'000'000;
  const std::string forever("\x43\x00\x00\x00", 4);  // JMP self
  v1::Batch same = Programs({forever});
  same.mutable_programs()->set_count(runs);
  v1::Batch different = Programs(std::vector<std::string>(runs, forever));
  std::vector<std::thread> clients;
  for (v1::Batch* batch : {&same, &different}) {
    const uint32_t cycles = batch == &same ? cycles_of_same : cycles_of_different;
    batch->mutable_programs()->set_max_cycles(cycles);
    clients.emplace_back([&daemon, batch, runs, cycles] {
      const Client client(daemon);
      const RunOutcome outcome = client.Run(*batch);
      EXPECT_TRUE(outcome.all_ok()) << outcome.message();
      EXPECT_EQ(outcome.result.flux().errors(), std::string(runs, '\x05'));
      EXPECT_EQ(Integers(outcome.result.flux().cycles()), std::vector<int32_t>(runs, cycles));
    });
  }
  for (std::thread& client : clients) client.join();
  // A run that might not end in time is refused.
  same.mutable_programs()->set_max_cycles(500'000'000);
  const RunOutcome refused = Client(daemon).Run(same);
  EXPECT_EQ(refused.call.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.call.error_message(),
              AllOf(HasSubstr("--task_time_limit"), HasSubstr("Fix:")));
  EXPECT_EQ(daemon.Device().restarts(), 0u);
}

// Each run has a status, and those that ended have their results. A task has several runs, so that
// it takes many of them until some tasks have ended and others have not.
TEST(EngineFaultsTest, EachRunOfAFluxBatchHasAStatus) {
  constexpr int kRuns = 256;
  const Daemon daemon({"--cpu_workers=2"});
  const pid_t pid = daemon.engine_pid();
  const Client client(daemon);
  std::vector<std::string> programs(kRuns / 2, std::string("\x22\x00\x00\x00\x00", 5));  // R0 * R0
  programs.resize(kRuns, std::string("\x43\x00\x00\x00", 4));                            // JMP self
  v1::Batch batch = Programs(programs);
  batch.mutable_programs()->set_max_cycles(OnGpu() ? 3'000'000 : 100'000'000);
  batch.mutable_programs()->set_initial(std::string("\x03\x00\x00\x00", 4));
  batch.mutable_programs()->set_initial_width(1);
  const uint64_t before = daemon.Device().ring().next_sequence();
  RunOutcome outcome;
  std::thread runs([&] { outcome = client.Run(batch); });
  EXPECT_TRUE(Eventually([&] {
    const v1::RingStatus ring = daemon.Device().ring();
    const uint64_t ended = ring.next_sequence() - ring.in_flight();
    return ring.in_flight() > 0 && (OnGpu() || ended > before);
  }));
  kill(pid, SIGKILL);
  runs.join();
  ASSERT_TRUE(outcome.call.ok()) << outcome.call.error_message();
  ASSERT_EQ(outcome.result.status_size(), kRuns);
  const std::vector<int32_t> registers = Integers(outcome.result.flux().registers());
  ASSERT_EQ(registers.size(), size_t{kRuns});
  int ok = 0;
  for (int i = 0; i < kRuns; ++i) {
    const v1::TaskStatus status = outcome.status(i);
    ok += status == v1::TASK_STATUS_OK ? 1 : 0;
    EXPECT_THAT(status, AnyOf(v1::TASK_STATUS_OK, v1::TASK_STATUS_UNAVAILABLE)) << i;
    EXPECT_EQ(registers[static_cast<size_t>(i)], status == v1::TASK_STATUS_OK ? 9 : 0) << i;
  }
  EXPECT_LT(ok, kRuns);
  if (!OnGpu()) {
    EXPECT_GT(ok, 0);
  }
  ASSERT_EQ(outcome.result.errors_size(), 16);
  for (const v1::TaskError& error : outcome.result.errors()) {
    EXPECT_EQ(error.status(), outcome.status(static_cast<int>(error.index())));
  }
  EXPECT_TRUE(daemon.AwaitAnotherEngine(pid));
  ExpectServes(daemon);
}

TEST(EngineFaultsTest, DurableBufferIsRestoredAsPersisted) {
  const Daemon daemon;
  const Client client(daemon);
  const uint64_t id = AllocateDurable(client);
  ASSERT_TRUE(Upload(client, id, Bytes({0, 10, 20, 30})).ok());
  ASSERT_TRUE(client.Run(FloatTasks("test.count", id, 0, 4)).all_ok());
  v1::PersistRequest persist;
  persist.set_buffer_id(id);
  v1::PersistResponse persisted;
  ASSERT_TRUE(client.buffers().Persist(client.Context().get(), persist, &persisted).ok());
  ASSERT_TRUE(client.Run(FloatTasks("test.count", id, 0, 2)).all_ok());  // Not persisted.

  const pid_t pid = daemon.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
  std::string got;
  ASSERT_TRUE(Download(client, id, &got).ok());
  EXPECT_EQ(got, Bytes({1, 11, 21, 31}));
}

// All of the data is on the device, but the upload is not finished when the client or the
// engine ends.
TEST(EngineFaultsTest, AnUnfinishedUploadDoesNotChangeWhatIsRestored) {
  const Daemon daemon;
  const Client client(daemon);
  const uint64_t id = AllocateDurable(client);
  const std::string old = Bytes({1, 2, 3, 4});
  ASSERT_TRUE(Upload(client, id, old).ok());
  for (const bool client_ends : {true, false}) {
    SCOPED_TRACE(client_ends);
    const auto context = client.Context();
    v1::UploadResponse response;
    const auto writer = client.buffers().Upload(context.get(), &response);
    v1::UploadRequest request;
    request.set_buffer_id(id);
    request.set_data(Bytes({5, 6, 7}));
    ASSERT_TRUE(writer->Write(request));
    std::string got;
    ASSERT_TRUE(Eventually([&] {
      return Download(client, id, &got).ok() && got == Bytes({5, 6, 7, 4});
    }));
    if (client_ends) {
      context->TryCancel();
      EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
    }
    const pid_t pid = daemon.engine_pid();
    kill(pid, SIGKILL);
    ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
    if (!client_ends) {
      writer->WritesDone();
      const grpc::Status refused = writer->Finish();
      EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
      EXPECT_THAT(refused.error_message(), HasSubstr("Fix: "));
    }
    ASSERT_TRUE(Download(client, id, &got).ok());
    EXPECT_EQ(got, old);
  }
}

TEST(EngineFaultsTest, DurableBufferOutlivesTheEngine) {
  Daemon daemon;
  const Client client(daemon);
  const uint64_t id = AllocateDurable(client);
  const std::string bytes = Bytes({1, 2, 3, 4});
  const grpc::Status uploaded = Upload(client, id, bytes);
  ASSERT_TRUE(uploaded.ok()) << uploaded.error_message();
  for (int round = 0; round < 2; ++round) {
    const pid_t pid = daemon.engine_pid();
    kill(pid, SIGKILL);
    ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
    std::string got;
    const grpc::Status downloaded = Download(client, id, &got);
    ASSERT_TRUE(downloaded.ok()) << downloaded.error_message();
    EXPECT_EQ(got, bytes);
  }
  v1::FreeRequest free_request;
  free_request.set_buffer_id(id);
  v1::FreeResponse freed;
  EXPECT_TRUE(client.buffers().Free(client.Context().get(), free_request, &freed).ok());
}

TEST(EngineFaultsTest, SharedMemoryOutlivesTheEngine) {
  Daemon daemon;
  const Baseline before(daemon);
  {
    const Client client(daemon);
    const Counters counters(client, 2);
    ASSERT_TRUE(client.Run(counters.Batch(0, 2)).all_ok());
    const pid_t pid = daemon.engine_pid();
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
    // The client's memory is mapped into the new engine before that serves.
    const RunOutcome outcome = client.Run(counters.Batch(0, 2));
    ASSERT_TRUE(outcome.all_ok()) << outcome.call.error_message() << outcome.message();
    EXPECT_EQ(counters.value(0), 2);
    EXPECT_EQ(counters.value(1), 2);
  }
  ExpectNothingLeft(daemon, before);
}

TEST(EngineFaultsTest, SpareEngineTakesOverAndIsShown) {
  const Daemon daemon;
  const auto spare = [&] { return static_cast<pid_t>(daemon.Device().spare_engine_pid()); };
  ASSERT_TRUE(Eventually([&] { return spare() != 0; }));
  EXPECT_THAT(daemon.Metrics(), HasSubstr("resident_spare_engine{device=\"0\"} 1"));
  const pid_t next = spare(), pid = daemon.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
  EXPECT_EQ(daemon.engine_pid(), next);
  EXPECT_TRUE(Eventually([&] { return spare() != 0 && spare() != next; }));
  EXPECT_THAT(daemon.Metrics(), HasSubstr("resident_engine_last_restart_seconds{device=\"0\"} "));
  EXPECT_THAT(daemon.Output(), HasSubstr("the spare"));
  ExpectServes(daemon);
}

TEST(EngineFaultsTest, NoSpareEngineIsStartedWithoutTheFlag) {
  const Daemon daemon({"--spare_engine=false"});
  const pid_t pid = daemon.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(daemon.AwaitAnotherEngine(pid));
  // First, because a spare is counted only until it is ready.
  EXPECT_TRUE(Eventually(
      [&] { return daemon.Engines() == static_cast<size_t>(daemon.Status().devices_size()); }));
  EXPECT_EQ(daemon.Device().spare_engine_pid(), 0);
  EXPECT_THAT(daemon.Metrics(), HasSubstr("resident_spare_engine{device=\"0\"} 0"));
  ExpectServes(daemon);
}

TEST(EngineFaultsTest, UnhealthyAfterFiveFailuresInAMinute) {
  Daemon daemon;
  KillUntilUnhealthy(daemon);
  EXPECT_THAT(daemon.Device().detail(), HasSubstr("signal 9"));
  EXPECT_TRUE(Eventually(
      [&] { return daemon.Engines() == static_cast<size_t>(daemon.Status().devices_size() - 1); }));
  const Client client(daemon);  // The daemon itself still works.
  uint64_t buffer = 0;
  const grpc::Status refused = client.Allocate(16, &buffer);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr("Fix: "));
}

}  // namespace
}  // namespace resident::testing
