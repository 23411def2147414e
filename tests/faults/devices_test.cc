// A daemon with several devices: each serves, and a fault of one engine does not affect the
// others. Uses all GPUs of a machine, or two CPU engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/health.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kBatch = 500;
constexpr uint64_t kMebifloats = 1 << 18;  // Floats in a MiB.

std::vector<std::string> AllDevices() { return {OnGpu() ? "--devices=all" : "--devices=cpu,cpu"}; }

// Runs a batch on this device and checks that every task ran once.
void ExpectServes(const Client& client, uint32_t device) {
  const Counters counters(client, kBatch, device);
  const RunOutcome outcome = client.Run(counters.Batch(0, kBatch));
  ASSERT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(outcome.result.device(), device);
  for (uint32_t i = 0; i < kBatch; ++i) EXPECT_EQ(counters.value(i), 1.0f) << "task " << i;
}

// The device that the daemon chooses for an allocation; -1: refused.
int64_t ChosenDeviceForBuffer(const Client& client, uint64_t floats) {
  v1::AllocateRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(floats);
  v1::AllocateResponse response;
  const grpc::Status status = client.buffers().Allocate(client.Context().get(), request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return status.ok() ? response.buffer().device() : -1;
}

// The device that the daemon chooses for a batch.
int64_t ChosenDeviceForBatch(const Client& client) {
  const RunOutcome outcome = client.Run(SmallAdd());
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  return outcome.all_ok() ? outcome.result.device() : -1;
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
  EXPECT_TRUE(Eventually([&] { return daemon.Engines() == engines.size(); }));
}

TEST(SeveralDevicesTest, KilledEngineLeavesTheOthersAlone) {
  const Daemon daemon(AllDevices());
  const v1::StatusResponse before = daemon.Status();
  ASSERT_GE(before.devices_size(), 2);

  // Every device except the first works continuously, without errors.
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

TEST(SeveralDevicesTest, UnknownDeviceIsRefusedBesideAKnownOne) {
  const Daemon::Failure failure = Daemon::StartExpectingFailure({"--devices=cpu,99"});
  EXPECT_EQ(failure.exit.status, 1) << failure.exit.ToString();
  EXPECT_THAT(failure.output, HasSubstr("GPU 99"));
  EXPECT_THAT(failure.output, HasSubstr("Fix: "));
}

TEST(SeveralDevicesTest, BatchGoesToADeviceThatIsNotBusy) {
  const Daemon daemon(AllDevices());
  const Client busy(daemon, "busy");
  const Client client(daemon);
  // The tasks run one after the other, for a minute unless they are cancelled.
  constexpr uint32_t kTasks = 60'000;
  const Counters out(busy, kTasks, /*device=*/0);
  v1::RunRequest request;
  *request.mutable_batch() = FloatTasks("test.spin", out.buffer(), 0, kTasks, 1'000'000);
  request.mutable_batch()->mutable_options()->set_ordering(v1::BatchOptions::ORDERING_IN_ORDER);
  const auto context = busy.Context();
  grpc::Status status;
  std::thread running([&] {
    v1::RunResponse response;
    status = busy.executor().Run(context.get(), request, &response);
  });
  EXPECT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  EXPECT_GT(ChosenDeviceForBatch(client), 0);
  context->TryCancel();
  running.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  EXPECT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 0; }));
  EXPECT_EQ(ChosenDeviceForBatch(client), 0);
}

TEST(SeveralDevicesTest, ParkedDeviceIsNotChosen) {
  const Daemon daemon(AllDevices());
  const Client client(daemon);
  const uint32_t devices = static_cast<uint32_t>(daemon.Status().devices_size());
  EXPECT_TRUE(Park(daemon, 0).ok());
  for (int i = 0; i < 10; ++i) EXPECT_GT(ChosenDeviceForBatch(client), 0);
  EXPECT_GT(ChosenDeviceForBuffer(client, 16), 0);
  // If all devices are parked, work waits on one until it is resumed.
  for (uint32_t d = 1; d < devices; ++d) EXPECT_TRUE(Park(daemon, d).ok());
  int64_t device = -1;
  std::thread waiting([&] { device = ChosenDeviceForBatch(client); });
  EXPECT_TRUE(Eventually([&] { return daemon.Status().devices(0).queued_tasks() == 1; }));
  for (uint32_t d = 0; d < devices; ++d) EXPECT_TRUE(Resume(daemon, d).ok());
  waiting.join();
  EXPECT_EQ(device, 0);
}

TEST(SeveralDevicesTest, BuffersGoWhereThereIsRoom) {
  const Daemon daemon(AllDevices());  // 64 MiB each.
  const Client first(daemon);
  uint64_t id = 0;
  ASSERT_TRUE(first.Allocate(48 * kMebifloats, &id, /*device=*/0).ok());
  // A session's buffers stay on one device while they fit.
  EXPECT_EQ(ChosenDeviceForBuffer(first, kMebifloats), 0);
  const int64_t other = ChosenDeviceForBuffer(first, 32 * kMebifloats);
  EXPECT_GT(other, 0);
  EXPECT_EQ(ChosenDeviceForBuffer(first, kMebifloats), other);
  // Another session starts on the device with the most free memory.
  const Client second(daemon);
  EXPECT_GT(ChosenDeviceForBuffer(second, 16), 0);
}

TEST(SeveralDevicesTest, UnhealthyDeviceIsReportedAndTheOthersServe) {
  const Daemon daemon(AllDevices());
  const Client client(daemon);
  HealthWatch lost(daemon, "resident.device/0");
  EXPECT_EQ(lost.Next(), kServing);
  KillUntilUnhealthy(daemon);
  EXPECT_EQ(lost.Next(), kNotServing);
  EXPECT_EQ(CheckHealth(daemon, "resident.device/0"), kNotServing);
  const v1::StatusResponse status = daemon.Status();
  EXPECT_EQ(status.devices(0).state(), v1::DeviceStatus::STATE_UNHEALTHY);
  EXPECT_THAT(daemon.Metrics(),
              HasSubstr("resident_device_state{device=\"0\",state=\"unhealthy\"} 1"));

  EXPECT_EQ(CheckHealth(daemon, ""), kServing);
  EXPECT_EQ(CheckHealth(daemon, "resident.v1.Executor"), kServing);
  for (int d = 1; d < status.devices_size(); ++d) {
    EXPECT_EQ(CheckHealth(daemon, "resident.device/" + std::to_string(d)), kServing);
    ExpectServes(client, static_cast<uint32_t>(d));
  }
  EXPECT_GT(ChosenDeviceForBatch(client), 0);
  EXPECT_GT(ChosenDeviceForBuffer(client, 16), 0);

  EXPECT_TRUE(Resume(daemon, 0).ok());
  EXPECT_EQ(lost.Next(), kServing);
  ExpectServes(client, 0);
}

}  // namespace
}  // namespace resident::testing
