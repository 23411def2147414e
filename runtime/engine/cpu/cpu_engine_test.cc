// Settings of the CPU engine. Its operators are tested with a device (runtime/device).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "runtime/engine/cpu/cpu_registration.h"
#include "runtime/ring/shared_region.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint32_t kSlots = 64;
constexpr uint64_t kStagingBytes = 4096;

// A region and an engine that uses it.
class CpuEngineTest : public ::testing::Test {
 protected:
  CpuEngineTest()
      : region_(*SharedRegion::Create(kSlots, kStagingBytes)), engine_(*CreateCpuEngine(0)) {
    EXPECT_TRUE(engine_->Prepare(*region_).ok());
    options_.memory_bytes = 1 << 20;
  }

  std::unique_ptr<SharedRegion> region_;
  std::unique_ptr<Engine> engine_;  // Destroyed first.
  EngineOptions options_;
};

TEST_F(CpuEngineTest, MoreWorkersThanTheDefaultAreAccepted) {
  options_.cpu_workers = 17;
  const auto info = engine_->Start(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->workers, 17u);
  EXPECT_EQ(region_->control()->worker_count, 17u);
}

TEST_F(CpuEngineTest, AsManyWorkersAsTheRingHasBreadcrumbsAreAccepted) {
  options_.cpu_workers = kMaxWorkers;
  options_.start_parked = true;  // Without their threads.
  const auto info = engine_->Start(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->workers, 2048u);
}

TEST_F(CpuEngineTest, MoreWorkersThanTheRingHasBreadcrumbsAreRefused) {
  options_.cpu_workers = kMaxWorkers + 1;
  const absl::Status refused = engine_->Start(options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--cpu_workers=2049"), HasSubstr("2048"), HasSubstr("Fix: ")));
}

TEST_F(CpuEngineTest, TheDefaultIsAtMostSixteenWorkers) {
  const auto info = engine_->Start(options_);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GE(info->workers, 1u);
  EXPECT_LE(info->workers, 16u);
}

}  // namespace
}  // namespace resident
