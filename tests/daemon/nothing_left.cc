#include "tests/daemon/nothing_left.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "tests/daemon/client.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

// A value must be unchanged for this long to count as that of an idle daemon.
constexpr std::chrono::milliseconds kStableTime(300);

bool IsIdle(const v1::StatusResponse& status) {
  if (status.clients_size() != 0) return false;
  for (const v1::DeviceStatus& device : status.devices()) {
    if (device.queued_tasks() != 0 || device.ring().in_flight() != 0) return false;
  }
  return true;
}

uint64_t Buffers(const v1::StatusResponse& status) {
  uint64_t buffers = 0;
  for (const v1::DeviceStatus& device : status.devices()) buffers += device.buffers();
  return buffers;
}

uint64_t MemoryUsed(const v1::StatusResponse& status) {
  uint64_t bytes = 0;
  for (const v1::DeviceStatus& device : status.devices()) bytes += device.memory_used_bytes();
  return bytes;
}

// Waits until the value has been stable for kStableTime, and returns it.
template <typename Figure>
size_t AwaitStable(const Figure& figure) {
  size_t value = figure();
  auto since = std::chrono::steady_clock::now();
  EXPECT_TRUE(Eventually([&] {
    if (const size_t now = figure(); now != value) {
      value = now;
      since = std::chrono::steady_clock::now();
    }
    return std::chrono::steady_clock::now() - since > kStableTime;
  }));
  return value;
}

// Waits for spare engines: they start shortly after the daemon serves, and add descriptors
// and a thread. REQUIRES: --spare_engine.
void AwaitSpares(const Daemon& daemon) {
  EXPECT_TRUE(Eventually([&] {
    const v1::StatusResponse status = daemon.Status();
    const auto& devices = status.devices();
    return std::all_of(devices.begin(), devices.end(), [](const v1::DeviceStatus& device) {
      return device.spare_engine_pid() != 0;
    });
  })) << "a device has no spare engine";
}

// Checks that no staging memory is in use, independent of the daemon's own figures: a batch
// may use more than half of it only if nothing else uses any.
void ExpectAllStagingMemory(const Daemon& daemon) {
  const Client client(daemon, "staging");
  const v1::Batch batch = Fill(0, (daemon.staging_mib() << 20) / sizeof(float) / 8 * 5);
  RunOutcome outcome;
  EXPECT_TRUE(Eventually([&] {
    outcome = client.Run(batch);
    return outcome.all_ok();
  })) << outcome.message();
}

}  // namespace

Baseline::Baseline(const Daemon& daemon) {
  ExpectServes(daemon);
  ExpectAllStagingMemory(daemon);
  EXPECT_TRUE(Eventually([&] { return IsIdle(daemon.Status()); }));
  AwaitSpares(daemon);
  threads = AwaitStable([&] { return daemon.OwnThreads(); });
  descriptors = AwaitStable([&] { return daemon.Descriptors(); });
  const v1::StatusResponse status = daemon.Status();
  buffers = Buffers(status);
  memory_used_bytes = MemoryUsed(status);
}

void ExpectNothingLeft(const Daemon& daemon, const Baseline& before) {
  ExpectAllStagingMemory(daemon);
  v1::StatusResponse status;
  EXPECT_TRUE(Eventually([&] {
    status = daemon.Status();
    return IsIdle(status);
  })) << status.DebugString();
  EXPECT_TRUE(Eventually([&] { return Buffers(daemon.Status()) <= before.buffers; }));
  EXPECT_TRUE(Eventually([&] { return MemoryUsed(daemon.Status()) <= before.memory_used_bytes; }))
      << MemoryUsed(daemon.Status()) << " bytes, " << before.memory_used_bytes << " before";
  std::string left;
  EXPECT_TRUE(Eventually([&] { return (left = daemon.LeftoverProcesses()).empty(); })) << left;
  EXPECT_TRUE(Eventually([&] { return daemon.OwnThreads() <= before.threads; }))
      << daemon.OwnThreads() << " threads, " << before.threads << " before";
  EXPECT_TRUE(Eventually([&] { return daemon.Descriptors() <= before.descriptors; }))
      << daemon.Descriptors() << " descriptors, " << before.descriptors << " before";
}

void ExpectServes(const Daemon& daemon) {
  constexpr uint32_t kTasks = 500;
  const Client client(daemon);
  const Counters counters(client, kTasks);
  const RunOutcome outcome = client.Run(counters.Batch(0, kTasks));
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  for (uint32_t i = 0; i < kTasks; ++i) EXPECT_EQ(counters.value(i), 1.0f);
}

}  // namespace resident::testing
