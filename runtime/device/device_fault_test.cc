// A device whose engine is killed, faults, hangs or stops its heartbeat: the results of its tasks
// and of later ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "runtime/device/engine_process.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;
using State = Device::State;

// Submits counting tasks until the engine ends. Each ran exactly once if it is OK, and at most once
// if it is not. A thread that did not run while the spare replaced the engine sees no refusal, only
// the next engine's epoch.
uint64_t CountUntilEngineEnds(DeviceHarness& harness, uint64_t epoch) {
  uint64_t ok = 0;
  while (true) {
    const auto session = harness.device().session();
    if (session == nullptr || session->epoch() != epoch) return ok;
    auto memory = session->AllocateStaging(500 * sizeof(float));
    if (!memory.ok()) return ok;
    const Floats counters{*memory, 500};
    for (uint32_t i = 0; i < counters.count; ++i) counters.host()[i] = 0;
    auto batch = harness.CountTasks(counters);
    batch->epoch = session->epoch();
    auto done = std::make_shared<std::atomic<int>>(0);
    batch->done = [done](Batch&) { ++*done; };
    if (!harness.device().queue().Enqueue(DeviceHarness::kClient, batch).ok()) return ok;
    if (!Eventually([&] { return done->load() > 0; })) {
      ADD_FAILURE() << "a batch does not end";
      return ok;
    }
    EXPECT_EQ(done->load(), 1);
    for (uint32_t i = 0; i < counters.count; ++i) {
      if (batch->status[i] == TaskStatus::kOk) {
        EXPECT_EQ(counters.host()[i], 1.0f) << "task " << i;
        ++ok;
      } else {
        EXPECT_EQ(batch->status[i], TaskStatus::kUnavailable) << "task " << i;
        EXPECT_LE(counters.host()[i], 1.0f) << "task " << i;
        EXPECT_THAT(batch->cause, HasSubstr("engine"));
      }
    }
    if (batch->failed > 0) return ok;
  }
}

void ExpectServes(DeviceHarness& harness) {
  const Floats counters = harness.MakeFloats(100);
  const auto batch = harness.Run(harness.CountTasks(counters));
  EXPECT_EQ(batch->failed, 0u) << batch->cause;
  for (uint32_t i = 0; i < counters.count; ++i) EXPECT_EQ(counters.host()[i], 1.0f);
}

TEST(DeviceFaultTest, KilledEngineUnderLoad) {
  DeviceHarness harness;
  for (uint64_t round = 1; round <= 3; ++round) {
    const pid_t pid = harness.engine_pid();
    const uint64_t epoch = harness.device().queue().epoch();
    std::vector<std::thread> clients;
    std::atomic<uint64_t> ok{0};
    for (int c = 0; c < 3; ++c) {
      clients.emplace_back([&] { ok += CountUntilEngineEnds(harness, epoch); });
    }
    const uint64_t before = harness.device().snapshot().queue.completed_tasks;
    ASSERT_TRUE(Eventually(
        [&] { return harness.device().snapshot().queue.completed_tasks > before + 2000; }));
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    for (std::thread& client : clients) client.join();
    EXPECT_GT(ok, 0u);
    ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
    EXPECT_THAT(harness.device().snapshot().restarts_by_reason,
                Contains(Pair(EngineEndReason::kKilled, round)));
    ExpectServes(harness);
  }
}

TEST(DeviceFaultTest, CauseNamesTheSignal) {
  DeviceHarness harness;
  const pid_t pid = harness.engine_pid();
  const Floats out = harness.MakeFloats(1);
  const Submission running = harness.Submit(harness.SpinTask(out, seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  kill(pid, SIGKILL);
  ASSERT_TRUE(running.Await());
  EXPECT_EQ(running.batch->status[0], TaskStatus::kUnavailable);
  EXPECT_THAT(running.batch->cause, HasSubstr("signal 9"));
  EXPECT_EQ(running.done->load(), 1);
}

TEST(DeviceFaultTest, FaultingOperatorIsNamedAndOthersAreNotBlamed) {
  DeviceOptions options = DeviceHarness::Options();
  options.slot_name = [](uint32_t slot) {
    return slot == OperatorSlot("test.bad_store") ? "test.bad_store" : "another operator";
  };
  DeviceHarness harness(options);
  const pid_t pid = harness.engine_pid();
  const Floats out = harness.MakeFloats(1);
  // Submitted while the device is parked, so that both are in one engine's queue.
  ASSERT_TRUE(harness.device().Park().ok());
  const Submission faults = harness.Submit(
      harness.MakeBatch({DeviceHarness::Task("test.bad_store", 1, {out.address()})}));
  const Floats counters = harness.MakeFloats(4000);
  const Submission others = harness.Submit(harness.CountTasks(counters));
  harness.device().Resume().IgnoreError();  // The engine may end before it responds.

  ASSERT_TRUE(faults.Await());
  ASSERT_TRUE(others.Await());
  EXPECT_EQ(faults.batch->status[0], TaskStatus::kAborted);
  EXPECT_THAT(faults.batch->cause, HasSubstr("fault"));
  if (!TestOnCuda()) {
    EXPECT_THAT(faults.batch->cause, HasSubstr("SIGSEGV"));
  }
  EXPECT_THAT(faults.batch->cause, HasSubstr("test.bad_store"));
  for (uint32_t i = 0; i < counters.count; ++i) {
    const TaskStatus status = others.batch->status[i];
    if (status == TaskStatus::kOk) {
      EXPECT_EQ(counters.host()[i], 1.0f);
    } else if (TestOnCuda()) {  // A GPU does not report which of the running blocks it was.
      EXPECT_THAT(status, AnyOf(TaskStatus::kUnavailable, TaskStatus::kAborted));
    } else {
      EXPECT_EQ(status, TaskStatus::kUnavailable);
    }
  }
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_THAT(harness.device().snapshot().restarts_by_reason,
              Contains(Pair(EngineEndReason::kFault, 1u)));
  ExpectServes(harness);
}

TEST(DeviceFaultTest, OperatorThatNeverReturnsIsTerminated) {
  DeviceOptions options = DeviceHarness::Options();
  options.task_time_limit = seconds(2);
  DeviceHarness harness(options);
  const pid_t pid = harness.engine_pid();
  const Floats out = harness.MakeFloats(1);
  const Submission hangs = harness.Submit(
      harness.MakeBatch({DeviceHarness::Task("test.never_returns", 1, {out.address()})}));
  ASSERT_TRUE(hangs.Await());
  EXPECT_EQ(hangs.batch->status[0], TaskStatus::kAborted);
  EXPECT_THAT(hangs.batch->cause, HasSubstr("--task_time_limit"));
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_THAT(harness.device().snapshot().restarts_by_reason,
              Contains(Pair(EngineEndReason::kHang, 1u)));
  EXPECT_EQ(kill(pid, 0), -1);
  ExpectServes(harness);
}

TEST(DeviceFaultTest, ParkBehindAnOperatorThatNeverReturns) {
  DeviceOptions options = DeviceHarness::Options();
  options.task_time_limit = seconds(2);
  DeviceHarness harness(options);
  const Floats out = harness.MakeFloats(1);
  const Submission hangs = harness.Submit(
      harness.MakeBatch({DeviceHarness::Task("test.never_returns", 1, {out.address()})}));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  // The engine is replaced, and the new one is parked.
  EXPECT_TRUE(harness.device().Park().ok());
  EXPECT_EQ(harness.device().snapshot().state, State::kParked);
  ASSERT_TRUE(hangs.Await());
  EXPECT_EQ(hangs.batch->status[0], TaskStatus::kAborted);
  ASSERT_TRUE(harness.device().Resume().ok());
  ExpectServes(harness);
}

TEST(DeviceFaultTest, TaskWithinTheLimitIsNotTerminated) {
  DeviceOptions options = DeviceHarness::Options();
  options.task_time_limit = milliseconds(2000);
  DeviceHarness harness(options);
  const Floats out = harness.MakeFloats(1);
  EXPECT_EQ(harness.Run(harness.SpinTask(out, milliseconds(400)))->failed, 0u);
  EXPECT_TRUE(harness.device().snapshot().restarts_by_reason.empty());
}

TEST(DeviceFaultTest, EngineWithoutHeartbeatIsReplaced) {
  DeviceOptions options = DeviceHarness::Options();
  options.heartbeat_limit = seconds(3);
  DeviceHarness harness(options);
  const pid_t pid = harness.engine_pid();
  const Floats out = harness.MakeFloats(1);
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_THAT(harness.device().snapshot().restarts_by_reason,
              Contains(Pair(EngineEndReason::kHeartbeat, 1u)));
  EXPECT_EQ(kill(pid, 0), -1);  // Reaped.
  ExpectServes(harness);
}

// A stopped engine does not answer calls; no call may keep the supervisor from noticing that. Here
// the calls unmap many objects.
TEST(DeviceFaultTest, StoppedEngineIsNoticedDespiteReleasedMappings) {
  DeviceOptions options = DeviceHarness::Options();
  options.heartbeat_limit = seconds(3);
  DeviceHarness harness(options);
  const pid_t pid = harness.engine_pid();
  const int object = memfd_create("object", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(object, 4096), 0);
  std::vector<std::shared_ptr<const DeviceMemory>> mappings;
  for (int i = 0; i < 24; ++i) {
    auto mapped = harness.device().session()->MapShared(object, 4096);
    ASSERT_TRUE(mapped.ok()) << mapped.status();
    mappings.push_back(*std::move(mapped));
  }
  const Floats out = harness.MakeFloats(1);
  const Submission running = harness.Submit(harness.SpinTask(out, seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  mappings.clear();
  ASSERT_TRUE(running.Await());
  EXPECT_EQ(running.batch->status[0], TaskStatus::kUnavailable);
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_THAT(harness.device().snapshot().restarts_by_reason,
              Contains(Pair(EngineEndReason::kHeartbeat, 1u)));
  ExpectServes(harness);
  close(object);
}

// The same for a park that waits for the engine's response.
TEST(DeviceFaultTest, StoppedEngineIsNoticedWhileItIsParked) {
  DeviceOptions options = DeviceHarness::Options();
  options.heartbeat_limit = seconds(3);
  DeviceHarness harness(options);
  const pid_t pid = harness.engine_pid();
  const Floats out = harness.MakeFloats(1);
  const Submission running = harness.Submit(harness.SpinTask(out, seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  EXPECT_TRUE(harness.device().Park().ok());  // The next engine is parked.
  ASSERT_TRUE(running.Await());
  EXPECT_THAT(harness.device().snapshot().restarts_by_reason,
              Contains(Pair(EngineEndReason::kHeartbeat, 1u)));
  ASSERT_TRUE(harness.device().Resume().ok());
  ExpectServes(harness);
}

// Any number of waiters may wait for a park; those that have gone are dropped.
TEST(DeviceFaultTest, WaitersOfAParkThatCannotBeginAreAnsweredOrDropped) {
  DeviceOptions options = DeviceHarness::Options();
  options.task_time_limit = milliseconds(2'000);  // The resume may wait for the task.
  DeviceHarness harness(options);
  const Floats out = harness.MakeFloats(1);
  const Submission running = harness.Submit(harness.SpinTask(out, seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  std::atomic<int> parked{0}, resumed{0}, dropped{0}, other{0};
  std::atomic<bool> gone{false};
  const auto count = [&](const absl::Status& status) {
    if (status.ok()) ++parked;
    if (status.code() == absl::StatusCode::kAborted) ++resumed;
    if (status.code() == absl::StatusCode::kCancelled) ++dropped;
    if (status.code() == absl::StatusCode::kUnavailable) ++other;
  };
  for (int i = 0; i < 100; ++i) harness.device().StartPark({count, [&] { return gone.load(); }});
  EXPECT_EQ(parked + resumed + dropped, 0);
  gone = true;
  harness.device().StartPark({count, nullptr});
  // The supervisor, which looks at the waiters too, may be the one that answers them.
  EXPECT_TRUE(Eventually([&] { return dropped == 100; })) << dropped;
  harness.device().Resume().IgnoreError();
  EXPECT_TRUE(Eventually([&] { return resumed == 1; })) << resumed;
  harness.device().StartPark({count, nullptr});
  harness.device().Shutdown();
  EXPECT_EQ(other, 1);
  EXPECT_EQ(dropped, 100);
  EXPECT_EQ(parked, 0);
  ASSERT_TRUE(running.Await());
}

TEST(DeviceFaultTest, FiveFailuresWithinAMinuteAreTooMany) {
  DeviceHarness harness;
  const Floats out = harness.MakeFloats(1);
  std::atomic<int> unhealthy{0};
  harness.device().OnStateChange([&](State state) { unhealthy += state == State::kUnhealthy; });
  for (int i = 0; i < 5; ++i) {
    pid_t pid = 0;
    ASSERT_TRUE(Eventually([&] {
      pid = harness.engine_pid();
      return pid != 0 && harness.device().snapshot().state == State::kResident;
    }));
    kill(pid, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return harness.engine_pid() != pid; }));
  }
  ASSERT_TRUE(harness.AwaitState(State::kUnhealthy));
  const Device::Snapshot snapshot = harness.device().snapshot();
  EXPECT_EQ(snapshot.engine_pid, 0);
  EXPECT_THAT(snapshot.detail, HasSubstr("Fix: "));
  EXPECT_THAT(snapshot.restarts_by_reason, Contains(Pair(EngineEndReason::kKilled, 5u)));
  // The state is set before the callback is called.
  EXPECT_TRUE(Eventually([&] { return unhealthy > 0; }));
  EXPECT_EQ(unhealthy, 1);
  EXPECT_EQ(harness.device().session(), nullptr);
  auto batch = harness.MakeBatch({DeviceHarness::Task("test.count", 1, {out.address()})});
  batch->epoch = harness.device().queue().epoch();
  const absl::Status refused = harness.device().queue().Enqueue(DeviceHarness::kClient, batch);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("signal 9"));
  EXPECT_EQ(harness.device().Park().code(), absl::StatusCode::kUnavailable);

  // An administrator resumes the device after removing the cause.
  ASSERT_TRUE(harness.device().Resume().ok());
  EXPECT_EQ(harness.device().snapshot().state, State::kResident);
  ExpectServes(harness);
}

TEST(DeviceFaultTest, EngineKilledWhileParkedIsReplacedParked) {
  DeviceHarness harness;
  ASSERT_TRUE(harness.device().Park().ok());
  const pid_t pid = harness.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const Device::Snapshot snapshot = harness.device().snapshot();
    return snapshot.engine_pid != 0 && snapshot.engine_pid != pid &&
           snapshot.state == State::kParked;
  }));
  ASSERT_TRUE(harness.device().Resume().ok());
  ExpectServes(harness);
}

TEST(DeviceFaultTest, EngineKilledWhileIdleParkedIsReplacedAndServesTheNextTask) {
  DeviceOptions options = DeviceHarness::Options();
  options.park_after = milliseconds(50);
  DeviceHarness harness(options);
  ASSERT_TRUE(harness.AwaitState(State::kIdleParked));
  const pid_t pid = harness.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    const pid_t now = harness.engine_pid();
    return now != 0 && now != pid && harness.device().session() != nullptr;
  }));
  ExpectServes(harness);
}

TEST(DeviceFaultTest, DurableContentsAreRestoredBeforeClientsAreServed) {
  DeviceHarness harness;
  std::atomic<int> restored{0};
  std::atomic<bool> gate{false};
  std::shared_ptr<const DeviceMemory> durable;  // Set by the restore callback.
  harness.device().queue().AddClient(99);
  harness.device().OnRestart([&](const std::shared_ptr<EngineSession>& session) {
    EXPECT_EQ(harness.device().session(), nullptr);
    EXPECT_EQ(session->epoch(), harness.device().queue().epoch());
    Eventually([&] { return gate.load(); });
    auto memory = session->AllocateMemory(4096);
    ASSERT_TRUE(memory.ok()) << memory.status();
    auto staging = session->AllocateStaging(4096);
    ASSERT_TRUE(staging.ok()) << staging.status();
    *reinterpret_cast<volatile float*>((*staging)->host) = 5;
    auto batch = std::make_shared<Batch>();
    batch->tasks = {DeviceHarness::Task("copy", 1, {(*staging)->address, (*memory)->address})};
    batch->epoch = session->epoch();
    std::atomic<int> done{0};
    batch->done = [&](Batch&) { ++done; };
    ASSERT_TRUE(harness.device().queue().Enqueue(99, batch).ok());
    ASSERT_TRUE(Eventually([&] { return done > 0; }));
    EXPECT_EQ(batch->failed, 0u) << batch->cause;
    durable = *memory;
    ++restored;
  });
  const pid_t pid = harness.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return harness.engine_pid() != 0 && harness.engine_pid() != pid; }));
  EXPECT_EQ(harness.device().session(), nullptr);
  EXPECT_EQ(harness.device().snapshot().state, State::kRestarting);
  gate = true;
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_EQ(restored, 1);
  const Floats out = harness.MakeFloats(1);
  const auto batch = harness.Run(
      harness.MakeBatch({DeviceHarness::Task("copy", 1, {durable->address, out.address()})}));
  EXPECT_EQ(batch->failed, 0u) << batch->cause;
  EXPECT_EQ(out.host()[0], 5.0f);
}

TEST(DeviceFaultTest, EngineThatEndsDuringRestoreIsReplacedAndRestoredAgain) {
  DeviceHarness harness;
  std::atomic<int> restores{0};
  harness.device().queue().AddClient(99);
  harness.device().OnRestart([&](const std::shared_ptr<EngineSession>& session) {
    if (++restores > 1) return;
    // A batch that ends only because its engine ends.
    auto staging = session->AllocateStaging(64);
    ASSERT_TRUE(staging.ok());
    auto batch = std::make_shared<Batch>();
    batch->tasks = {DeviceHarness::Task(
        "test.spin", 1,
        {(*staging)->address,
         static_cast<uint64_t>(std::chrono::nanoseconds(seconds(100)).count())})};
    batch->epoch = session->epoch();
    std::atomic<int> done{0};
    batch->done = [&](Batch&) { ++done; };
    ASSERT_TRUE(harness.device().queue().Enqueue(99, batch).ok());
    kill(harness.engine_pid(), SIGKILL);
    ASSERT_TRUE(Eventually([&] { return done > 0; }));
    EXPECT_EQ(batch->status[0], TaskStatus::kUnavailable);
  });
  const pid_t pid = harness.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return restores == 2; }));
  ASSERT_TRUE(Eventually([&] { return harness.device().session() != nullptr; }));
  ExpectServes(harness);
}

TEST(DeviceFaultTest, SessionOfAnEndedEngineCanStillBeUsed) {
  DeviceHarness harness;
  const auto session = harness.device().session();
  const pid_t pid = harness.engine_pid();
  kill(pid, SIGKILL);
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_NE(harness.device().session()->epoch(), session->epoch());
  auto staging = session->AllocateStaging(4096);
  ASSERT_TRUE(staging.ok());
  (*staging)->host[4095] = 1;
  EXPECT_TRUE(session->AllocateMemory(4096).ok());
  EXPECT_EQ(session->MapShared(STDIN_FILENO, 1).ok(), false);
  // A batch that was made for the ended engine is refused.
  auto batch = harness.MakeBatch({DeviceHarness::Task("test.count", 1, {(*staging)->address})});
  batch->epoch = session->epoch();
  EXPECT_EQ(harness.device().queue().Enqueue(DeviceHarness::kClient, batch).code(),
            absl::StatusCode::kUnavailable);
}

TEST(DeviceFaultTest, DifferentRingLayoutIsRefused) {
  auto engine = EngineProcess::Launch(DeviceHarness::Options());
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->region()->control()->layout_hash ^= 1;
  const auto info = (*engine)->Start(seconds(60));
  EXPECT_EQ(info.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(info.status().message()), HasSubstr("layout"));
  EXPECT_EQ(CheckLayout(LayoutHash() ^ 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(CheckLayout(LayoutHash()).ok());
}

TEST(DeviceFaultTest, ShutdownDuringARestart) {
  for (int i = 0; i < 5; ++i) {
    DeviceHarness harness;
    kill(harness.engine_pid(), SIGKILL);
    // The supervisor may be at any point of the restart.
    std::this_thread::sleep_for(milliseconds(5 * i));
    harness.device().Shutdown();
    EXPECT_EQ(harness.device().session(), nullptr);
  }
}

}  // namespace
}  // namespace resident
