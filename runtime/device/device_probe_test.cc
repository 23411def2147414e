#include "runtime/device/device_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "runtime/device/device_harness.h"
#include "runtime/engine/engines.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Maps() {
  std::ifstream file("/proc/self/maps");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const EngineType& Cuda() { return **FindEngineType("cuda"); }

TEST(DeviceProbeTest, NamesTheDevicesOrSaysWhyThereAreNone) {
  const auto devices = ProbeDevices(Cuda(), EngineProgramForTest());
  if (TestOnCuda()) {
    ASSERT_TRUE(devices.ok()) << devices.status();
    ASSERT_FALSE(devices->empty());
    EXPECT_FALSE(devices->front().empty());
  } else if (!devices.ok()) {  // A machine with a GPU may run the tests of the CPU.
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(devices.status().message()), HasSubstr("Fix: "));
  }
}

TEST(DeviceProbeTest, DoesNotLoadTheDriverIntoThisProcess) {
  ProbeDevices(Cuda(), EngineProgramForTest()).IgnoreError();
  EXPECT_THAT(Maps(), Not(HasSubstr("libcuda")));
}

TEST(DeviceProbeTest, UnknownEngineHasNoDevices) {
  const auto devices = ProbeDevices({.name = "abacus"}, EngineProgramForTest());
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(devices.status().message()),
              AllOf(HasSubstr("abacus devices"), HasSubstr("exited with status 2")));
}

TEST(DeviceProbeTest, ProgramWithoutOutputIsAnError) {
  const auto devices = ProbeDevices(Cuda(), "/bin/true");
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(devices.status().message()), HasSubstr("exited with status 0"));
}

TEST(DeviceProbeTest, MissingProgramIsAnError) {
  const auto devices = ProbeDevices(Cuda(), "/nonexistent");
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(devices.status().message()), HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace resident
