#include "server/device_set.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"
#include "server/workload/placement.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kBytes = 1 << 20;

// A starter on a machine with `gpus` GPUs. No GPU starts; the CPU does.
DeviceStarter GpusFail(size_t gpus, absl::Status why) {
  return {[why = std::move(why)](
              const DeviceOptions& options) -> absl::StatusOr<std::unique_ptr<DeviceControl>> {
            if (options.engine_type->list_devices != nullptr) return why;
            return std::make_unique<FakeDevice>(options.index, kBytes, kBytes);
          },
          [gpus](const EngineType&) -> absl::StatusOr<std::vector<std::string>> {
            if (gpus == 0) return absl::UnavailableError("there is no driver");
            return std::vector<std::string>(gpus, "some GPU");
          }};
}

absl::StatusOr<std::vector<std::unique_ptr<DeviceControl>>> Start(const std::string& flag,
                                                                  const DeviceStarter& starter) {
  const auto choices = ChooseDevices(flag);
  EXPECT_TRUE(choices.ok()) << choices.status();
  return StartDevices(*choices, ServeOptions(), SlotInfo(), starter);
}

TEST(ChooseDevicesTest, NamesAndOrdinalsAreRowsOfTheTableOfEngines) {
  const auto choices = ChooseDevices("2,cpu,cuda:3,0");
  ASSERT_TRUE(choices.ok()) << choices.status();
  std::vector<std::string> labels;
  for (const EngineChoice& choice : choices->devices) labels.push_back(choice.Label());
  EXPECT_THAT(labels, ElementsAre("GPU 2", "CPU", "GPU 3", "GPU 0"));
  EXPECT_EQ(choices->gpu_unavailable_reason, "");
}

TEST(ChooseDevicesTest, WhatIsNotADeviceIsRefused) {
  for (const char* flag : {"", "abacus", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda1", "cpu:0",
                           "-1", "0,,1", "all,cpu", "CPU"}) {
    const auto choices = ChooseDevices(flag);
    EXPECT_EQ(choices.status().code(), absl::StatusCode::kInvalidArgument) << flag;
    EXPECT_THAT(std::string(choices.status().message()),
                AllOf(HasSubstr("is not a device"), HasSubstr("cuda:N, cpu")));
  }
}

TEST(StartDevicesTest, ADeviceThatFailsToStartIsUnhealthyAndTheOthersServe) {
  const auto devices =
      Start("0,cpu", GpusFail(1, absl::ResourceExhaustedError("no memory left. Fix: free some")));
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_EQ(devices->size(), 2u);
  DeviceControl& failed = *(*devices)[0];
  EXPECT_EQ(failed.index(), 0u);
  EXPECT_EQ(failed.snapshot().state, Device::State::kUnhealthy);
  EXPECT_THAT(failed.snapshot().detail, AllOf(HasSubstr("GPU 0"), HasSubstr("no memory left")));
  EXPECT_EQ(failed.session(), nullptr);
  EXPECT_THAT(std::string(failed.Resume().message()), HasSubstr("no memory left"));
  EXPECT_EQ(failed.Park().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(failed.started());
  EXPECT_TRUE((*devices)[1]->started());

  const std::vector<Device*> serving = {(*devices)[0].get(), (*devices)[1].get()};
  EXPECT_EQ(Place(serving, std::nullopt)->device, 1u);
  EXPECT_EQ(PlaceBuffer(serving, std::nullopt, std::nullopt, 16)->device, 1u);
  const auto refused = Place(serving, 0);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  // Sending it again would not help.
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("no memory left"), HasSubstr("Fix: remove the cause and restart"),
                    Not(HasSubstr("send it again"))));
}

TEST(StartDevicesTest, AnEngineThatExitsAtOnceIsADeviceThatFailsToStart) {
  const auto devices =
      Start("cpu,cpu",
            {[](const DeviceOptions& options) -> absl::StatusOr<std::unique_ptr<DeviceControl>> {
               if (options.index == 0) return std::make_unique<FakeDevice>(0, kBytes, kBytes);
               DeviceOptions broken = options;
               broken.engine_program = "/bin/false";
               return DeviceControl::Create(broken);
             },
             [](const EngineType&) { return absl::UnavailableError("not called"); }});
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_EQ((*devices)[1]->snapshot().state, Device::State::kUnhealthy);
  EXPECT_THAT((*devices)[1]->snapshot().detail, HasSubstr("did not start"));
}

TEST(StartDevicesTest, IfNoDeviceStartsTheErrorIsThatOfTheFirst) {
  const auto devices = Start("1,0", GpusFail(2, absl::UnavailableError("it is lost")));
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(devices.status().message(), "GPU 1: it is lost");
}

TEST(StartDevicesTest, MistakesInTheFlagsAreRefused) {
  const auto invalid =
      Start("cpu,0", GpusFail(1, absl::InvalidArgumentError("blocks that do not fit")));
  EXPECT_EQ(invalid.status().message(), "GPU 0: blocks that do not fit");
  const auto absent = Start("cpu,1", GpusFail(1, absl::UnavailableError("there is no GPU 1")));
  EXPECT_EQ(absent.status().message(), "GPU 1: there is no GPU 1");
  const auto none = Start("cpu,0", GpusFail(0, absl::UnavailableError("no driver")));
  EXPECT_EQ(none.status().message(), "GPU 0: no driver");
}

}  // namespace
}  // namespace resident
