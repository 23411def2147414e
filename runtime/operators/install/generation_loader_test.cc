#include "runtime/operators/install/generation_loader.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"

namespace resident {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

absl::Status EngineEnded(const Generation&) { return absl::UnavailableError("it ended"); }

class GenerationLoaderTest : public ::testing::Test {
 protected:
  explicit GenerationLoaderTest(const std::vector<uint32_t>& indices = {0})
      : registry_(*Registry::Create({.devices = indices.back() + 1})) {
    std::vector<DeviceControl*> all;
    for (uint32_t index : indices) {
      all.push_back(devices_.emplace_back(std::make_unique<FakeDevice>(index)).get());
    }
    loader_ = std::make_unique<GenerationLoader>(
        GenerationLoader::Options(), registry_.get(), all,
        [](const Device&, uint64_t number, const GenerationLoader::Versions& versions) {
          auto generation = std::make_shared<Generation>();
          generation->number = number;
          for (const auto& version : versions) {
            generation->operators.push_back({version->slot, "symbol", nullptr});
          }
          return absl::StatusOr<std::shared_ptr<const Generation>>(std::move(generation));
        },
        [](uint64_t, const GenerationLoader::Versions&, const GenerationLoader::Versions&) {});
  }

  FakeDevice& device(size_t i = 0) { return *devices_[i]; }

  std::shared_ptr<OperatorVersion> Reserve(const std::string& name) {
    VersionSpec spec;
    spec.kind = OperatorKind::kSource;
    spec.signature = "x: in f32[*S], out: out f32[*S]";
    auto reserved = registry_->Reserve(name, spec, std::nullopt, absl::InfiniteFuture());
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    return *std::move(reserved);
  }
  // Installs a version of the operator and activates it; returns its slot.
  uint32_t Install(const std::string& name) {
    auto version = Reserve(name);
    const uint32_t slot = version->slot;
    EXPECT_TRUE(loader_->Load(version).ok());
    EXPECT_TRUE(registry_->Load(std::move(version), std::nullopt, commit_).ok());
    EXPECT_TRUE(registry_->Activate(name, 0, std::nullopt, false, commit_).ok());
    return slot;
  }
  // Simulates a fault of the device, caused by this operator's first version.
  std::shared_ptr<const Generation> Fault(const std::string& name, size_t at = 0) {
    EXPECT_TRUE(registry_->Quarantine(name, 1, "it stored to a bad address", commit_).ok());
    auto replacement = loader_->Replacement(device(at));
    device(at).Restart(replacement);
    return replacement;
  }

  uint64_t revision_ = 0;
  const Registry::Commit commit_ = [this](const RegistryChange&) { return ++revision_; };
  std::unique_ptr<Registry> registry_;
  std::vector<std::unique_ptr<FakeDevice>> devices_;
  std::unique_ptr<GenerationLoader> loader_;
};

class TwoDevicesTest : public GenerationLoaderTest {
 protected:
  TwoDevicesTest() : GenerationLoaderTest({0, 1}) {}
};

// Device 0 did not start.
class SecondDeviceAloneTest : public GenerationLoaderTest {
 protected:
  SecondDeviceAloneTest() : GenerationLoaderTest({1}) {}
};

TEST_F(GenerationLoaderTest, AReplacementLeavesOutQuarantinedVersions) {
  const uint32_t good = Install("good"), bad = Install("bad");
  EXPECT_THAT(device().slots(), ElementsAre(good, bad));
  Fault("bad");
  EXPECT_THAT(device().slots(), ElementsAre(good));
  const uint32_t later = Install("later");
  EXPECT_THAT(device().slots(), ElementsAre(good, later));
}

TEST_F(GenerationLoaderTest, AKeptVersionStaysUntilItServes) {
  const uint32_t slot = Install("bad");
  Fault("bad");
  const auto version = registry_->FindBySlot(slot);
  EXPECT_FALSE(loader_->Contains(*version));
  {
    const GenerationLoader::Kept kept = loader_->Keep(version);
    ASSERT_TRUE(loader_->Load(version).ok());
    // Before it is activated, there is another round and another fault.
    const uint32_t other = Install("other");
    EXPECT_THAT(device().slots(), ElementsAre(slot, other));
    Fault("other");
    EXPECT_THAT(device().slots(), ElementsAre(slot));
    EXPECT_TRUE(loader_->Contains(*version));
  }
  EXPECT_THAT(FakeDevice::ListSlots(loader_->Replacement(device())), IsEmpty());
}

TEST_F(GenerationLoaderTest, AnEngineThatEndsRightAfterTheLoadIsReplacedWithTheVersion) {
  auto version = Reserve("times");
  // The supervisor sees the engine's end before the round sees that the load has succeeded.
  device().SetNextLoad([&](const Generation&) {
    auto replacement = loader_->Replacement(device());
    EXPECT_THAT(FakeDevice::ListSlots(replacement), IsEmpty());
    device().Restart(replacement);
    return absl::OkStatus();
  });
  ASSERT_TRUE(loader_->Load(version).ok());
  EXPECT_THAT(device().slots(), ElementsAre(version->slot));
  EXPECT_THAT(FakeDevice::ListSlots(loader_->Replacement(device())), ElementsAre(version->slot));
}

TEST_F(TwoDevicesTest, AReplacementHasALoadedVersionBeforeTheRoundEnds) {
  auto version = Reserve("times");
  device(1).SetNextLoad([&](const Generation&) {
    while (device(0).slots().empty()) absl::SleepFor(absl::Milliseconds(1));
    // The round may not have recorded it yet; once it has, the result does not change
    // again.
    while (FakeDevice::ListSlots(loader_->Replacement(device(0))).empty()) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    return absl::OkStatus();
  });
  ASSERT_TRUE(loader_->Load(version).ok());
  EXPECT_THAT(device(0).slots(), ElementsAre(version->slot));
  EXPECT_THAT(device(1).slots(), ElementsAre(version->slot));
}

TEST_F(GenerationLoaderTest, AnEngineThatEndsDuringTheLoadIsReplacedWithoutTheVersion) {
  auto version = Reserve("times");
  device().SetNextLoad(EngineEnded);
  device().SetNextLoad([&](const Generation&) {
    EXPECT_THAT(device().slots(), IsEmpty())
        << "an engine would start with a generation that no engine has loaded";
    return absl::OkStatus();
  });
  ASSERT_TRUE(loader_->Load(version).ok());
  EXPECT_THAT(device().slots(), ElementsAre(version->slot));
}

TEST_F(GenerationLoaderTest, AVersionThatEndsEveryEngineFailsBeforeTheDeviceIsUnhealthy) {
  const uint32_t good = Install("good");
  const size_t before = device().loads();
  for (int i = 0; i < 10; ++i) device().SetNextLoad(EngineEnded);
  EXPECT_EQ(loader_->Load(Reserve("times")).code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(device().loads() - before, 5u);
  EXPECT_THAT(device().slots(), ElementsAre(good));
}

TEST_F(GenerationLoaderTest, ADeviceThatBecomesUnhealthyDuringTheLoadFailsTheRound) {
  const uint32_t good = Install("good");
  device().SetNextLoad([&](const Generation&) {
    device().set_state(Device::State::kUnhealthy);
    return absl::UnavailableError("unhealthy");
  });
  EXPECT_EQ(loader_->Load(Reserve("times")).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(device().slots(), ElementsAre(good)) << "a Resume would start with it";
}

TEST_F(TwoDevicesTest, ADeviceThatBecomesUnhealthyAfterItsLoadFailsTheRound) {
  const uint32_t good = Install("good");
  device(1).SetNextLoad([&](const Generation&) {
    while (device(0).slots().size() < 2) absl::SleepFor(absl::Milliseconds(1));
    device(0).set_state(Device::State::kUnhealthy);
    device(0).SetNextLoad([](const Generation&) { return absl::UnavailableError("unhealthy"); });
    return absl::OkStatus();
  });
  EXPECT_EQ(loader_->Load(Reserve("times")).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(device(0).slots(), ElementsAre(good));
  EXPECT_THAT(device(1).slots(), ElementsAre(good));
}

TEST_F(TwoDevicesTest, AnUnhealthyDeviceStartsWithTheVersionWhenResumed) {
  device(1).set_state(Device::State::kUnhealthy);
  device(1).SetNextLoad([](const Generation&) { return absl::UnavailableError("unhealthy"); });
  auto version = Reserve("times");
  ASSERT_TRUE(loader_->Load(version).ok());
  EXPECT_THAT(device(1).slots(), ElementsAre(version->slot));
  EXPECT_TRUE(loader_->Contains(*version));
}

TEST_F(TwoDevicesTest, AnUnhealthyDeviceIsRestoredWithTheOthers) {
  const uint32_t good = Install("good");
  device(1).set_state(Device::State::kUnhealthy);
  for (int i = 0; i < 2; ++i) {
    device(1).SetNextLoad([](const Generation&) { return absl::UnavailableError("unhealthy"); });
  }
  device(0).SetNextLoad(
      [](const Generation&) { return absl::InvalidArgumentError("it is damaged"); });
  EXPECT_EQ(loader_->Load(Reserve("times")).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(device(0).slots(), ElementsAre(good));
  EXPECT_THAT(device(1).slots(), ElementsAre(good));
}

TEST_F(TwoDevicesTest, ADeviceKeepsTheCodeOfAVersionThatFaultedOnAnother) {
  const uint32_t bad = Install("bad");
  Fault("bad", /*at=*/0);
  const uint32_t later =
      Install("later");  // Tasks of the quarantined version may be queued on device 1.
  EXPECT_THAT(device(0).slots(), ElementsAre(later));
  EXPECT_THAT(device(1).slots(), ElementsAre(bad, later));
  EXPECT_FALSE(loader_->Contains(*registry_->FindBySlot(bad)));
}

TEST_F(SecondDeviceAloneTest, ADeviceThatDidNotStartIsIgnored) {
  const uint32_t slot = Install("times");
  EXPECT_TRUE(loader_->Contains(*registry_->FindBySlot(slot)));
  Fault("times");
  EXPECT_FALSE(loader_->Contains(*registry_->FindBySlot(slot)));
}

TEST_F(TwoDevicesTest, CodeIsRemovedWhenItsVersionIsNoLongerPinned) {
  const uint32_t bad = Install("bad");
  auto task = registry_->FindBySlot(bad);
  ASSERT_TRUE(registry_->Remove("bad", std::nullopt, commit_, nullptr).ok());
  Install("later");
  EXPECT_THAT(device(1).slots(), Contains(bad));
  task = nullptr;
  Install("last");
  EXPECT_THAT(device(1).slots(), SizeIs(2));
}

}  // namespace
}  // namespace resident
