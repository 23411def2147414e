// Tests of the supervisor's rules that need no engine.
#include "runtime/device/supervision.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

TEST(RestartPolicyTest, FirstRestartIsImmediateThenWaitsDouble) {
  RestartPolicy policy;
  const Clock::time_point now{};
  EXPECT_EQ(policy.OnFailure(now), milliseconds(0));
  EXPECT_EQ(policy.OnFailure(now), milliseconds(100));
  EXPECT_EQ(policy.OnFailure(now), milliseconds(200));
  EXPECT_EQ(policy.OnFailure(now), milliseconds(400));
}

TEST(RestartPolicyTest, AllowsNoRestartAfterTheFifthFailureWithinAMinute) {
  RestartPolicy policy;
  Clock::time_point now{};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(policy.OnFailure(now), std::nullopt);
    now += seconds(14);
  }
  EXPECT_EQ(policy.OnFailure(now), std::nullopt);
}

TEST(RestartPolicyTest, OldFailuresAreForgotten) {
  RestartPolicy policy;
  Clock::time_point now{};
  for (int i = 0; i < 100; ++i) {
    EXPECT_NE(policy.OnFailure(now), std::nullopt) << i;
    now += seconds(16);  // Never five in a minute.
  }
  now += seconds(61);
  EXPECT_EQ(policy.OnFailure(now), milliseconds(0));
}

TEST(RestartPolicyTest, ForgetStartsOver) {
  RestartPolicy policy;
  const Clock::time_point now{};
  for (int i = 0; i < 4; ++i) policy.OnFailure(now);
  policy.Forget();
  EXPECT_EQ(policy.OnFailure(now), milliseconds(0));
}

TEST(HeartbeatMonitorTest, LateWhenItHasNotChangedForTheLimit) {
  Clock::time_point now{};
  HeartbeatMonitor monitor(milliseconds(200), milliseconds(50), now);
  uint64_t beats = 1;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(monitor.IsLate(++beats, now += milliseconds(50)));
  EXPECT_FALSE(monitor.IsLate(beats, now += milliseconds(50)));
  EXPECT_FALSE(monitor.IsLate(beats, now += milliseconds(50)));
  EXPECT_FALSE(monitor.IsLate(beats, now += milliseconds(50)));
  EXPECT_TRUE(monitor.IsLate(beats, now += milliseconds(50)));
}

TEST(HeartbeatMonitorTest, AnEngineThatNeverBeatsIsLate) {
  Clock::time_point now{};
  HeartbeatMonitor monitor(milliseconds(100), milliseconds(50), now);
  EXPECT_FALSE(monitor.IsLate(0, now += milliseconds(50)));
  EXPECT_TRUE(monitor.IsLate(0, now += milliseconds(50)));
}

TEST(HeartbeatMonitorTest, ALongPauseOfTheObserverDoesNotMakeTheEngineLate) {
  Clock::time_point now{};
  HeartbeatMonitor monitor(seconds(5), milliseconds(50), now);
  EXPECT_FALSE(monitor.IsLate(1, now += milliseconds(50)));
  EXPECT_FALSE(monitor.IsLate(1, now += seconds(3600)));
  // 100 ms of that hour count: 4.85 s more are just within the limit, and 4.9 s are not.
  for (int i = 0; i < 97; ++i) EXPECT_FALSE(monitor.IsLate(1, now += milliseconds(50)));
  EXPECT_FALSE(monitor.IsLate(1, now += milliseconds(49)));
  EXPECT_TRUE(monitor.IsLate(1, now += milliseconds(1)));
}

}  // namespace
}  // namespace resident
