#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/operators/trial/bake_watcher.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

constexpr BakeOptions kOptions{.action = BakeAction::kRollBack,
                               .time = seconds(60),
                               .max_error_rate = 0.01,
                               .max_latency_ratio = 2,
                               .max_mismatch_rate = 0.001,
                               .min_tasks = 100};

TEST(Bake, PassesWhenItsTimeIsOver) {
  const auto begin = Clock::now();
  Bake bake(kOptions, /*before_p99_ns=*/1000, begin);
  const BakeCounters good{.tasks = 1000, .failed = 10, .p99_ns = 2000};
  EXPECT_EQ(bake.Evaluate(good, begin), Bake::Verdict::kWait);
  EXPECT_EQ(bake.Evaluate(good, begin + seconds(60)), Bake::Verdict::kPassed);
}

TEST(Bake, TooFewTasksAreNotEvaluated) {
  const auto begin = Clock::now();
  Bake bake(kOptions, 1000, begin);
  EXPECT_EQ(bake.Evaluate({.tasks = 99, .failed = 99, .p99_ns = 9000}, begin),
            Bake::Verdict::kWait);
}

TEST(Bake, ErrorsAboveTheThresholdRegress) {
  const auto begin = Clock::now();
  Bake bake(kOptions, 1000, begin);
  EXPECT_EQ(bake.Evaluate({.tasks = 100, .failed = 2}, begin), Bake::Verdict::kRegressed);
  EXPECT_THAT(bake.reason(), HasSubstr("2 of 100 tasks"));
}

TEST(Bake, SlowerThanBeforeRegresses) {
  const auto begin = Clock::now();
  Bake bake(kOptions, 1000, begin);
  EXPECT_EQ(bake.Evaluate({.tasks = 100, .p99_ns = 2001}, begin), Bake::Verdict::kRegressed);
  EXPECT_THAT(bake.reason(), HasSubstr("2001 ns"));
}

TEST(Bake, WithoutAPreviousLatencyItIsNotCompared) {
  const auto begin = Clock::now();
  Bake bake(kOptions, 0, begin);
  EXPECT_EQ(bake.Evaluate({.tasks = 100, .p99_ns = 1'000'000}, begin), Bake::Verdict::kWait);
}

TEST(Bake, ShadowMismatchesRegressEvenWithoutTraffic) {
  const auto begin = Clock::now();
  Bake bake(kOptions, 1000, begin);
  EXPECT_EQ(bake.Evaluate({.shadow_tasks = 100, .shadow_mismatches = 1}, begin),
            Bake::Verdict::kRegressed);
}

TEST(Bake, DefaultsFillZerosOnly) {
  const BakeOptions options = WithDefaults({.max_error_rate = 0.5}, kOptions);
  EXPECT_EQ(options.action, BakeAction::kRollBack);
  EXPECT_EQ(options.max_error_rate, 0.5);
  EXPECT_EQ(options.min_tasks, 100u);
}

}  // namespace
}  // namespace resident
