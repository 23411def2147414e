// Changes of generation of a device with a real engine: no task is lost or run twice, and
// each result is from the version that was in its slot when the task was submitted.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "runtime/device/engine_end.h"
#include "runtime/engine/control/engine_main.h"
#include "runtime/ring/shared_region.h"
#include "runtime/ring/switch_signals.h"
#include "tests/units/versions.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using testing::kFirstFreeSlot;
using testing::kVersions;
using testing::VersionAnswer;
using testing::VersionsGeneration;
using State = Device::State;

constexpr uint16_t kSlot = kFirstFreeSlot;
constexpr milliseconds kParkDeadline{10'000};

uint64_t Observations(const DurationHistogram& histogram) {
  uint64_t count = 0;
  for (int bucket = 0; bucket < DurationHistogram::kBuckets; ++bucket) {
    count += histogram.count(bucket);
  }
  return count;
}

class DeviceGenerationTest : public ::testing::Test {
 protected:
  static std::string FindCompileTarget(Device& device) {
    return device.snapshot().info.traits.compile_target;
  }
  static std::shared_ptr<const Generation> Next(Device& device,
                                                const std::map<uint32_t, uint32_t>& versions) {
    const EngineInfo info = device.snapshot().info;
    return VersionsGeneration(info.generation + 1, info.traits.compile_target, versions);
  }
  static absl::Status Load(DeviceControl& device, const std::map<uint32_t, uint32_t>& versions,
                           milliseconds park_deadline = kParkDeadline) {
    return device.LoadGeneration(Next(device, versions), park_deadline);
  }
  // Returns the result of the operator in `slot`; -1: the task failed.
  static float Ask(DeviceHarness& harness, uint16_t slot) {
    const Floats out = harness.MakeFloats(1);
    TaskDescriptor task{};
    task.operator_slot = slot;
    task.flags = kTaskCompact;
    task.words[0] = 1;
    task.words[1] = out.address();
    const auto batch = harness.Run(harness.MakeBatch({task}));
    return batch->status[0] == TaskStatus::kOk ? out.host()[0] : -1.0f;
  }
};

TEST_F(DeviceGenerationTest, OperatorsAreAddedReplacedAndRemoved) {
  DeviceHarness harness;
  EXPECT_EQ(Ask(harness, kSlot), -1.0f);  // An empty slot.
  ASSERT_TRUE(Load(harness.device(), {{kSlot, 1}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));
  EXPECT_EQ(Ask(harness, kSlot + 1), -1.0f);
  ASSERT_TRUE(Load(harness.device(), {{kSlot, 1}, {kSlot + 1, 2}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));
  EXPECT_EQ(Ask(harness, kSlot + 1), VersionAnswer(2));
  ASSERT_TRUE(Load(harness.device(), {{kSlot + 1, 3}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), -1.0f);
  EXPECT_EQ(Ask(harness, kSlot + 1), VersionAnswer(3));

  const Device::Snapshot snapshot = harness.device().snapshot();
  EXPECT_EQ(snapshot.info.generation, 4u);
  EXPECT_EQ(snapshot.generation_changes, 3u);
  EXPECT_EQ(snapshot.failed_generation_changes, 0u);
  EXPECT_EQ(Observations(harness.device().generation_pause()), 3u);
  EXPECT_EQ(snapshot.state, State::kResident);
  EXPECT_EQ(snapshot.parks, 0u);  // It counts idle and requested parks only.
}

// Tasks of many clients while the versions in slots change. Each task runs on the version that was
// in its slot when it was submitted, because a generation is changed only when nothing is in
// flight.
TEST_F(DeviceGenerationTest, UnderLoadNoTaskIsLostRunTwiceOrRunOnAnotherVersion) {
  DeviceHarness harness;
  DeviceControl& device = harness.device();
  ASSERT_TRUE(Load(device, {{kSlot, 0}, {kSlot + 1, 1}}).ok());
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> batches{0};
  constexpr uint32_t kTasks = 64;
  std::vector<std::thread> clients;
  for (ClientId client = 10; client < 13; ++client) {
    device.queue().AddClient(client);
    clients.emplace_back([&, client] {
      const Floats counters = harness.MakeFloats(1);
      const Floats out = harness.MakeFloats(2 * kTasks);
      uint64_t rounds = 0;
      while (!stop) {
        ++rounds;
        auto batch = harness.MakeBatch({});
        for (uint32_t i = 0; i < 2 * kTasks; ++i) {
          out.host()[i] = 0;
          TaskDescriptor task{};
          task.operator_slot = static_cast<uint16_t>(kSlot + i % 2);
          task.flags = kTaskCompact;
          task.words[0] = 1;
          task.words[1] = out.address(i);
          batch->tasks.push_back(task);
        }
        batch->tasks.push_back(DeviceHarness::Task("test.count", 1, {counters.address()}));
        std::atomic<int> done{0};
        batch->done = [&done](Batch&) { ++done; };
        ASSERT_TRUE(device.queue().Enqueue(client, batch).ok());
        ASSERT_TRUE(Eventually([&] { return done.load() != 0; }));
        ASSERT_EQ(done.load(), 1);
        ASSERT_EQ(batch->failed, 0u) << batch->cause;
        for (uint32_t i = 0; i < 2 * kTasks; ++i) {
          // Slot kSlot always contains an even version, the next slot an odd one.
          const float answer = out.host()[i];
          const uint32_t k = static_cast<uint32_t>(answer) % 10;
          ASSERT_TRUE(answer != 0 && k % 2 == i % 2) << i << ": " << answer;
        }
        ASSERT_EQ(counters.host()[0], static_cast<float>(rounds));
        ++batches;
      }
    });
  }
  for (uint32_t change = 1; change <= 40; ++change) {
    const uint32_t even = 2 * change % kVersions, odd = (2 * change + 7) % kVersions;
    const uint64_t seen = batches.load();
    ASSERT_TRUE(Load(device, {{kSlot, even}, {kSlot + 1, odd}}).ok()) << change;
    EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(even));
    EXPECT_EQ(Ask(harness, kSlot + 1), VersionAnswer(odd));
    ASSERT_TRUE(Eventually([&] { return batches.load() > seen; }));  // The load continues.
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(device.snapshot().restarts_by_reason.size(), 0u);
}

TEST_F(DeviceGenerationTest, AfterAFailedLoadThePreviousGenerationServes) {
  DeviceHarness harness;
  DeviceControl& device = harness.device();
  ASSERT_TRUE(Load(device, {{kSlot, 1}}).ok());
  const pid_t pid = harness.engine_pid();

  auto bad = std::make_shared<Generation>(*Next(device, {{kSlot, 2}}));
  const auto garbage = std::make_shared<const std::string>(1000, 'x');
  bad->operators[0].object = garbage;
  const absl::Status refused = device.LoadGeneration(bad, kParkDeadline);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));

  bad = std::make_shared<Generation>(*Next(device, {{kSlot, 2}}));
  bad->operators[0].symbol = "resident_op_missing";
  const absl::Status missing = device.LoadGeneration(bad, kParkDeadline);
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("resident_op_missing"));
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));

  bad = std::make_shared<Generation>(*Next(device, {{kSlot, 2}}));
  bad->operators[0].slot = 0;
  EXPECT_EQ(device.LoadGeneration(bad, kParkDeadline).code(), absl::StatusCode::kInvalidArgument);

  bad = std::make_shared<Generation>(*Next(device, {{kSlot, 2}}));
  bad->number = device.snapshot().info.generation;
  EXPECT_EQ(device.LoadGeneration(bad, kParkDeadline).code(),
            absl::StatusCode::kFailedPrecondition);

  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));
  EXPECT_EQ(harness.engine_pid(), pid);
  EXPECT_EQ(device.snapshot().info.generation, 2u);
  EXPECT_EQ(device.snapshot().failed_generation_changes, 3u);
}

// A GPU's modules are loaded in the pause; after an error there, the previous generation is
// launched again.
TEST_F(DeviceGenerationTest, AfterAModuleOfAnotherArchitectureThePreviousGenerationServes) {
  if (!TestOnCuda()) GTEST_SKIP() << "the CPU engine loads while it preloads";
  DeviceHarness harness;
  DeviceControl& device = harness.device();
  ASSERT_TRUE(Load(device, {{kSlot, 1}}).ok());
  const pid_t pid = harness.engine_pid();
  const std::string other = FindCompileTarget(device) == "sm_80" ? "sm_90" : "sm_80";
  const absl::Status refused =
      device.LoadGeneration(VersionsGeneration(3, other, {{kSlot, 2}}), kParkDeadline);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));
  EXPECT_EQ(harness.engine_pid(), pid);
  EXPECT_EQ(device.snapshot().info.generation, 2u);
  ASSERT_TRUE(Load(device, {{kSlot, 3}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(3));
}

// The change fails at its deadline; it has not stopped the tasks that run beside the long one.
TEST_F(DeviceGenerationTest, LongTaskMakesTheChangeFailAndDoesNotStopOtherTasks) {
  DeviceHarness harness;
  DeviceControl& device = harness.device();
  const Floats out = harness.MakeFloats(1);
  const Submission spinning = harness.Submit(harness.SpinTask(out, seconds(3)));
  ASSERT_TRUE(Eventually([&] { return device.queue().counters().in_flight == 1; }));
  const absl::Status late = Load(device, {{kSlot, 1}}, milliseconds(300));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("--park_deadline"));
  const Floats counters = harness.MakeFloats(100);
  const auto batch = harness.Run(harness.CountTasks(counters));
  EXPECT_EQ(batch->failed, 0u);
  EXPECT_EQ(spinning.done->load(), 0) << "the machine is too slow for this test";

  // A change that may wait longer succeeds when the task is done.
  EXPECT_TRUE(Load(device, {{kSlot, 1}}).ok());
  ASSERT_TRUE(spinning.Await());
  EXPECT_EQ(spinning.done->load(), 1);
  EXPECT_EQ(spinning.batch->failed, 0u);
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(1));
}

TEST_F(DeviceGenerationTest, ParkedDeviceLoadsItAndStaysParked) {
  DeviceHarness harness;
  DeviceControl& device = harness.device();
  ASSERT_TRUE(device.Park().ok());
  ASSERT_TRUE(Load(device, {{kSlot, 5}}).ok());
  EXPECT_EQ(device.snapshot().state, State::kParked);
  ASSERT_TRUE(device.Resume().ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(5));
}

TEST_F(DeviceGenerationTest, IdleParkedDeviceLoadsItAndIsResumedByWork) {
  DeviceOptions options = DeviceHarness::Options();
  options.park_after = milliseconds(1);
  DeviceHarness harness(options);
  ASSERT_TRUE(harness.AwaitState(State::kIdleParked));
  ASSERT_TRUE(Load(harness.device(), {{kSlot, 6}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(6));
  ASSERT_TRUE(harness.AwaitState(State::kIdleParked));
  ASSERT_TRUE(Load(harness.device(), {{kSlot, 7}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(7));
}

TEST_F(DeviceGenerationTest, ReplacementOfAnEngineStartsWithTheCurrentGeneration) {
  DeviceHarness harness;
  ASSERT_TRUE(Load(harness.device(), {{kSlot, 3}}).ok());
  const pid_t first = harness.engine_pid();
  kill(first, SIGKILL);
  ASSERT_TRUE(harness.AwaitAnotherEngine(first));
  EXPECT_EQ(harness.device().snapshot().info.generation, 2u);
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(3));
  EXPECT_TRUE(Load(harness.device(), {{kSlot, 4}}).ok());
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(4));
}

TEST_F(DeviceGenerationTest, DeviceStartsWithTheGenerationItIsGiven) {
  DeviceOptions options = DeviceHarness::Options();
  std::string target = "x86-64";
  if (TestOnCuda()) {
    DeviceHarness probe;
    target = FindCompileTarget(probe.device());
  }
  options.engine.generation = VersionsGeneration(17, target, {{kSlot, 8}});
  DeviceHarness harness(options);
  EXPECT_EQ(harness.device().snapshot().info.generation, 17u);
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(8));
}

// Watches the progress of a change in the engine's shared region, which keeps its contents when the
// engine is killed.
class ChangeWatcher {
 public:
  explicit ChangeWatcher(pid_t engine) {
    const std::string path =
        "/proc/" + std::to_string(engine) + "/fd/" + std::to_string(kEngineRegionFd);
    auto region = SharedRegion::Attach(open(path.c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_TRUE(region.ok()) << region.status();
    region_ = *std::move(region);
    resume_sequence_ = resume_sequence();
  }
  bool Ready() const { return signals().armed(kChange); }
  // Submission is held: the marker is in the ring, or will be published next.
  bool Parking() const { return signals().held(kChange); }
  // The kernel has returned; loading and launching follow.
  bool Parked() const { return resume_sequence() != resume_sequence_; }
  bool Ended() const { return signals().ended(kChange); }

 private:
  static constexpr uint64_t kChange = 2;  // The engine's first change loaded version 0.

  SwitchSignals signals() const { return SwitchSignals(region_->control()); }
  uint64_t resume_sequence() const {
    return std::atomic_ref<u64>(region_->control()->resume_sequence)
        .load(std::memory_order_acquire);
  }

  std::unique_ptr<SharedRegion> region_;
  uint64_t resume_sequence_ = 0;
};

struct Moment {
  const char* name;
  bool (ChangeWatcher::*reached)() const;
};

class KilledInAChangeTest : public DeviceGenerationTest,
                            public ::testing::WithParamInterface<Moment> {};

// The call returns whether the change was made, and the device serves the generation accordingly.
// If a kill comes after the change has ended, the test repeats it, so that each moment is tested.
// Some moments last microseconds: on a busy machine most kills come too late.
TEST_P(KilledInAChangeTest, LeavesOneGenerationOrTheOther) {
  bool in_time = false;
  for (int attempt = 0; attempt < 1000 && !in_time; ++attempt) {
    // A new one, because a device is unhealthy after five failures in a minute.
    DeviceHarness harness;
    DeviceControl& device = harness.device();
    ASSERT_TRUE(Load(device, {{kSlot, 0}}).ok());
    const pid_t pid = harness.engine_pid();
    const ChangeWatcher change(pid);
    std::atomic<bool> answered{false};
    bool reached = false;
    std::thread killer([&] {
      while (!(reached = (change.*GetParam().reached)()) && !answered) std::this_thread::yield();
      kill(pid, SIGKILL);
    });
    const absl::Status loaded = Load(device, {{kSlot, 1}});
    answered = true;
    killer.join();
    ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
    EXPECT_EQ(loaded.ok(), change.Ended()) << loaded;
    if (!loaded.ok()) {
      EXPECT_EQ(loaded.code(), absl::StatusCode::kUnavailable) << loaded;
    }
    EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(change.Ended() ? 1 : 0));
    in_time = reached && !change.Ended();
  }
  EXPECT_TRUE(in_time) << "no kill came in time";
}

INSTANTIATE_TEST_SUITE_P(Moments, KilledInAChangeTest,
                         ::testing::Values(Moment{"Ready", &ChangeWatcher::Ready},
                                           Moment{"Parking", &ChangeWatcher::Parking},
                                           Moment{"Parked", &ChangeWatcher::Parked}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_F(DeviceGenerationTest, FaultNamesItsTaskAndTheCallbackChoosesTheNextGeneration) {
  std::vector<DeviceFault> faults;  // Outlives the device, which calls back until its end.
  DeviceHarness harness;
  DeviceControl& device = harness.device();
  ASSERT_TRUE(Load(device, {{kSlot, 1}}).ok());
  const std::string target = FindCompileTarget(device);
  device.OnFault([&](const DeviceFault& fault) {
    faults.push_back(fault);
    return VersionsGeneration(9, target, {{kSlot, 2}});
  });
  const Floats out = harness.MakeFloats(1);
  const pid_t first = harness.engine_pid();
  const auto batch =
      harness.Run(harness.MakeBatch({DeviceHarness::Task("test.bad_store", 1, {out.address()})}));
  // The callback was called before any task got its result.
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(batch->status[0], TaskStatus::kAborted);
  EXPECT_EQ(faults[0].reason, EngineEndReason::kFault);
  EXPECT_THAT(faults[0].suspects, ::testing::ElementsAre(OperatorSlot("test.bad_store")));
  ASSERT_EQ(faults[0].running.size(), 1u);
  EXPECT_EQ(faults[0].running[0].client, DeviceHarness::kClient);
  EXPECT_EQ(faults[0].running[0].task.words[1], out.address());
  EXPECT_THAT(ArgumentsText(faults[0].running[0]), HasSubstr("n=1, 0x"));
  ASSERT_TRUE(harness.AwaitAnotherEngine(first));
  EXPECT_EQ(device.snapshot().info.generation, 9u);
  EXPECT_EQ(Ask(harness, kSlot), VersionAnswer(2));
}

// A change that exceeds its deadline is withdrawn, but a stopped engine does not notice that.
TEST_F(DeviceGenerationTest, StoppedEngineIsNoticedAtTheEndOfAChange) {
  DeviceOptions options = DeviceHarness::Options();
  options.heartbeat_limit = seconds(3);  // Above the change's deadline.
  DeviceHarness harness(options);
  ASSERT_TRUE(Load(harness.device(), {{kSlot, 0}}).ok());
  const Floats out = harness.MakeFloats(1);
  const pid_t pid = harness.engine_pid();
  const Submission running = harness.Submit(harness.SpinTask(out, std::chrono::seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  const ChangeWatcher change(pid);
  std::thread stopper([&] {
    EXPECT_TRUE(Eventually([&] { return change.Ready(); }));
    kill(pid, SIGSTOP);
  });
  const auto start = Clock::now();
  const absl::Status loaded = harness.device().LoadGeneration(
      VersionsGeneration(3, FindCompileTarget(harness.device()), {{kSlot, 1}}), seconds(1));
  stopper.join();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kUnavailable) << loaded;
  ASSERT_TRUE(running.Await());
  // Waiting for the engine's response would take three times as long.
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(8));
  ASSERT_TRUE(harness.AwaitAnotherEngine(pid));
  EXPECT_EQ(harness.device().snapshot().restarts_by_reason.count(EngineEndReason::kHeartbeat), 1u);
}

TEST_F(DeviceGenerationTest, OperatorsHaveTimeLimitsOfTheirOwn) {
  DeviceOptions options = DeviceHarness::Options();
  options.task_time_limit = milliseconds(60'000);
  options.slot_time_limit = [](uint32_t slot) {
    return milliseconds(slot == OperatorSlot("test.never_returns") ? 200 : 0);
  };
  std::vector<DeviceFault> faults;  // Outlives the device, which calls back until its end.
  DeviceHarness harness(options);
  harness.device().OnFault([&](const DeviceFault& fault) {
    faults.push_back(fault);
    return nullptr;
  });
  const Floats out = harness.MakeFloats(1);
  const auto batch = harness.Run(
      harness.MakeBatch({DeviceHarness::Task("test.never_returns", 1, {out.address()})}));
  EXPECT_EQ(batch->status[0], TaskStatus::kAborted);
  EXPECT_THAT(batch->cause, HasSubstr("200 ms"));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].reason, EngineEndReason::kHang);
  ASSERT_EQ(faults[0].running.size(), 1u);
}

}  // namespace
}  // namespace resident
