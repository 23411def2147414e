// A daemon with several devices: each serves, and what befalls one's engine leaves the
// others alone. All the GPUs of a machine, or two CPU engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/daemon.h"

namespace resident::testing {
namespace {

constexpr uint32_t kBatch = 500;

std::vector<std::string> AllDevices() { return {OnGpu() ? "--devices=all" : "--devices=cpu,cpu"}; }

// Every task of a batch on this device runs once.
void ExpectServes(const Client& client, uint32_t device) {
  const Counters counters(client, kBatch, device);
  const RunOutcome outcome = client.Run(counters.Batch(0, kBatch));
  ASSERT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(outcome.result.device(), device);
  for (uint32_t i = 0; i < kBatch; ++i) EXPECT_EQ(counters.value(i), 1.0f) << "task " << i;
}

TEST(SeveralDevicesTest, EachServesFromAnEngineOfItsOwn) {
  const Daemon daemon(AllDevices());
  const Client client(daemon);
  const v1::StatusResponse status = daemon.Status();
  ASSERT_GE(status.devices_size(), 2);
  std::set<uint32_t> engines;
  for (const v1::DeviceStatus& device : status.devices()) {
    EXPECT_EQ(device.engine(), OnGpu() ? "cuda" : "cpu");
    EXPECT_TRUE(engines.insert(device.engine_pid()).second) << device.engine_pid();
    ExpectServes(client, device.device());
  }
  EXPECT_EQ(daemon.Engines(), engines.size());
}

TEST(SeveralDevicesTest, KilledEngineLeavesTheOthersAlone) {
  const Daemon daemon(AllDevices());
  const v1::StatusResponse before = daemon.Status();
  ASSERT_GE(before.devices_size(), 2);

  // Every device but the first works all the time, and answers everything.
  std::atomic<bool> stop{false};
  std::vector<std::atomic<uint64_t>> batches(before.devices_size());
  std::vector<std::thread> workers;
  for (int d = 1; d < before.devices_size(); ++d) {
    workers.emplace_back([&, d] {
      const Client client(daemon, "undisturbed");
      while (!stop && !::testing::Test::HasFatalFailure()) {
        ExpectServes(client, static_cast<uint32_t>(d));
        ++batches[d];
      }
    });
  }
  const auto all_go_on = [&] {
    std::vector<uint64_t> seen(batches.begin(), batches.end());
    return Eventually([&] {
      for (int d = 1; d < before.devices_size(); ++d) {
        if (batches[d] <= seen[d]) return false;
      }
      return true;
    });
  };
  EXPECT_TRUE(all_go_on());
  const pid_t victim = daemon.engine_pid();
  kill(victim, SIGKILL);
  EXPECT_TRUE(all_go_on());
  EXPECT_TRUE(daemon.AwaitAnotherEngine(victim));
  EXPECT_TRUE(all_go_on());
  stop = true;
  for (std::thread& worker : workers) worker.join();

  const v1::StatusResponse after = daemon.Status();
  EXPECT_EQ(after.devices(0).restarts(), 1u);
  for (int d = 1; d < after.devices_size(); ++d) {
    EXPECT_EQ(after.devices(d).engine_pid(), before.devices(d).engine_pid());
    EXPECT_EQ(after.devices(d).restarts(), 0u);
  }
  const Client client(daemon);
  ExpectServes(client, 0);
}

}  // namespace
}  // namespace resident::testing
