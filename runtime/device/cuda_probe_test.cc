#include "runtime/device/cuda_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "runtime/device/device_harness.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Maps() {
  std::ifstream file("/proc/self/maps");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(CudaProbeTest, ReturnsTheDevicesOrTheReasonWhyThereAreNone) {
  const auto devices = ProbeCudaDevices(EngineProgramForTest());
  if (TestOnCuda()) {
    ASSERT_TRUE(devices.ok()) << devices.status();
    ASSERT_FALSE(devices->empty());
    EXPECT_FALSE(devices->front().empty());
  } else if (!devices.ok()) {  // A machine with a GPU may run the tests of the CPU.
    EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(devices.status().message()), HasSubstr("Fix: "));
  }
}

TEST(CudaProbeTest, DoesNotLoadTheDriverIntoThisProcess) {
  ProbeCudaDevices(EngineProgramForTest()).IgnoreError();
  EXPECT_THAT(Maps(), Not(HasSubstr("libcuda")));
}

TEST(CudaProbeTest, ProgramWithoutOutputIsAnError) {
  const auto devices = ProbeCudaDevices("/bin/true");
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(devices.status().message()), HasSubstr("exited with status 0"));
}

TEST(CudaProbeTest, MissingProgramIsAnError) {
  const auto devices = ProbeCudaDevices("/nonexistent");
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(devices.status().message()), HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace resident
