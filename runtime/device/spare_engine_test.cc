// The spare engine of a device: when it is used, and when it is replaced.
#include "runtime/device/spare_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"

namespace resident {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A line with the time, as runtime/base/log.h writes it, whose message begins with this.
auto ContainsLogLine(const std::string& message) {
  return ContainsRegex("[0-9]+-[0-9]+-[0-9]+T[0-9:.]+Z residentd: " + message);
}

class SpareEngineTest : public ::testing::Test {
 protected:
  static pid_t SparePid(DeviceHarness& harness) {
    return static_cast<pid_t>(harness.device().snapshot().spare_pid);
  }
  // Waits for a spare other than this one.
  static pid_t AwaitSpare(DeviceHarness& harness, pid_t than = 0) {
    EXPECT_TRUE(Eventually([&] { return SparePid(harness) != 0 && SparePid(harness) != than; }));
    return SparePid(harness);
  }
  static void ExpectServes(DeviceHarness& harness) {
    const Floats counters = harness.MakeFloats(100);
    const auto batch = harness.Run(harness.CountTasks(counters));
    EXPECT_EQ(batch->failed, 0u) << batch->cause;
    for (uint32_t i = 0; i < counters.count; ++i) EXPECT_EQ(counters.host()[i], 1.0f);
  }
};

TEST_F(SpareEngineTest, ReplacesAKilledEngine) {
  DeviceHarness harness;
  const Device::Snapshot before = harness.device().snapshot();
  const pid_t spare = AwaitSpare(harness);
  const pid_t engine = harness.engine_pid();
  EXPECT_NE(spare, engine);
  ::testing::internal::CaptureStderr();
  kill(engine, SIGKILL);
  const bool replaced = harness.AwaitAnotherEngine(engine);
  // The durations of the restart are set shortly after the device serves.
  EXPECT_TRUE(
      Eventually([&] { return harness.device().snapshot().last_restart.total.count() > 0; }));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ContainsLogLine("device 0: engine replaced by the spare"));
  ASSERT_TRUE(replaced);
  EXPECT_EQ(harness.engine_pid(), spare);
  const Device::Snapshot after = harness.device().snapshot();
  EXPECT_TRUE(after.last_restart.spare);
  EXPECT_FALSE(after.last_restart.phases.empty());
  EXPECT_EQ(after.info.memory_bytes, before.info.memory_bytes);
  EXPECT_EQ(after.info.workers, before.info.workers);
  ExpectServes(harness);
  // The next spare is prepared meanwhile, and replaces this engine.
  AwaitSpare(harness, spare);
  kill(spare, SIGKILL);
  ASSERT_TRUE(harness.AwaitAnotherEngine(spare));
  ExpectServes(harness);
}

TEST_F(SpareEngineTest, KilledSpareIsReplacedWithoutEffectOnTasks) {
  DeviceHarness harness;
  const pid_t engine = harness.engine_pid();
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::thread client([&] {
    while (!stop) {
      const Floats counters = harness.MakeFloats(10);
      failed += static_cast<int>(harness.Run(harness.CountTasks(counters))->failed);
    }
  });
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 2; ++i) {
    const pid_t spare = AwaitSpare(harness);
    kill(spare, SIGKILL);
    AwaitSpare(harness, spare);
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ContainsLogLine("warning: the spare engine of device 0 was killed by signal 9"));
  stop = true;
  client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(harness.engine_pid(), engine);
  EXPECT_TRUE(harness.device().snapshot().restarts_by_reason.empty());
}

TEST_F(SpareEngineTest, EngineAndSpareAreKilledTogether) {
  DeviceHarness harness;
  const pid_t spare = AwaitSpare(harness);
  const pid_t engine = harness.engine_pid();
  const Floats out = harness.MakeFloats(1);
  const Submission running = harness.Submit(harness.SpinTask(out, std::chrono::seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  kill(spare, SIGKILL);
  kill(engine, SIGKILL);
  ASSERT_TRUE(running.Await());
  EXPECT_EQ(running.done->load(), 1);
  EXPECT_EQ(running.batch->status[0], TaskStatus::kUnavailable);
  ASSERT_TRUE(harness.AwaitAnotherEngine(engine));
  EXPECT_NE(harness.engine_pid(), spare);
  ExpectServes(harness);
  AwaitSpare(harness, spare);
}

TEST_F(SpareEngineTest, StoppedSpareIsReplacedByANewProcess) {
  DeviceHarness harness;
  const pid_t spare = AwaitSpare(harness);
  const pid_t engine = harness.engine_pid();
  kill(spare, SIGSTOP);
  ::testing::internal::CaptureStderr();
  kill(engine, SIGKILL);
  const bool replaced = harness.AwaitAnotherEngine(engine);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ContainsLogLine("warning: the spare engine of device 0 did not start: "));
  ASSERT_TRUE(replaced);
  EXPECT_NE(harness.engine_pid(), spare);
  EXPECT_FALSE(harness.device().snapshot().last_restart.spare);
  ExpectServes(harness);
  EXPECT_EQ(kill(spare, 0), -1);  // Reaped.
}

// A validation has taken the spare when the engine ends.
TEST_F(SpareEngineTest, EngineEndsWhileTheSpareIsTaken) {
  DeviceHarness harness;
  const pid_t spare = AwaitSpare(harness);
  const pid_t engine = harness.engine_pid();
  const std::unique_ptr<EngineProcess> taken = harness.device().spare()->Take();
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->child().pid(), spare);
  EXPECT_EQ(SparePid(harness), 0);
  kill(engine, SIGKILL);
  ASSERT_TRUE(harness.AwaitAnotherEngine(engine));
  EXPECT_NE(harness.engine_pid(), spare);
  EXPECT_FALSE(harness.device().snapshot().last_restart.spare);
  ExpectServes(harness);
  // The taken spare can still be started.
  EngineOptions options;
  options.memory_bytes = 1 << 20;
  options.start_parked = true;
  const auto started = taken->Start(options, std::chrono::seconds(60));
  EXPECT_TRUE(started.ok()) << started.status();
  AwaitSpare(harness, spare);
}

TEST_F(SpareEngineTest, NoneIsKeptIfItIsDisabled) {
  DeviceOptions options = DeviceHarness::Options();
  options.spare_engine = false;
  DeviceHarness harness(options);
  EXPECT_EQ(harness.device().spare(), nullptr);
  const pid_t engine = harness.engine_pid();
  kill(engine, SIGKILL);
  ASSERT_TRUE(harness.AwaitAnotherEngine(engine));
  EXPECT_EQ(SparePid(harness), 0);
  EXPECT_FALSE(harness.device().snapshot().last_restart.spare);
  ExpectServes(harness);
}

TEST_F(SpareEngineTest, IsConfinedBeforeItIsNeeded) {
  DeviceHarness harness;
  const std::string status = ReadFile("/proc/" + std::to_string(AwaitSpare(harness)) + "/status");
  const std::string engine = ReadFile("/proc/" + std::to_string(harness.engine_pid()) + "/status");
  // Like the engine that serves; an older Linux kernel may confine both less.
  for (const char* line : {"Seccomp:\t2", "NoNewPrivs:\t1"}) {
    if (engine.find(line) != std::string::npos) {
      EXPECT_THAT(status, HasSubstr(line));
    }
  }
}

// The program cannot be prepared as an engine: the device serves without a spare.
TEST_F(SpareEngineTest, SpareThatCannotBePreparedIsNotUsed) {
  DeviceOptions options = DeviceHarness::Options();
  options.engine_program = "/bin/false";
  SpareEngine spare(options);
  spare.Refill();
  EXPECT_EQ(spare.pid(), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(spare.Take(), nullptr);
  spare.Stop();
  EXPECT_EQ(spare.Take(), nullptr);
}

}  // namespace
}  // namespace resident
