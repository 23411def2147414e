#include "runtime/base/log.h"

#include <cstdio>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace resident {
namespace {

TEST(LogTest, LinesNameTheLevel) {
  EXPECT_EQ(FormatLogLine(LogLevel::kInfo, "ready"), "residentd: ready");
  EXPECT_EQ(FormatLogLine(LogLevel::kWarning, "slow"), "residentd: warning: slow");
  EXPECT_EQ(FormatLogLine(LogLevel::kError, "broken"), "residentd: error: broken");
}

TEST(LogTest, AMessageIsOneLine) {
  EXPECT_EQ(FormatLogLine(LogLevel::kInfo, "a\nresidentd: forged\x1b[2J\x7f"),
            "residentd: a?residentd: forged?[2J?");
}

TEST(LogTest, LinesBeginWithTheTimeInUtc) {
  testing::internal::CaptureStderr();
  LogWarning("device ", 3, " failed to start");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
                                    "\\.[0-9]{3}Z residentd: warning: device 3 failed to start\n"));
}

TEST(LogTest, LinesThatAreHeldFollowInTheirOrder) {
  testing::internal::CaptureStderr();
  {
    LogHold hold;
    LogInfo("first");
    LogInfo("second");
    std::fputs("banner\n", stderr);
    hold.Release();
    LogInfo("third");
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::MatchesRegex("banner\n.*first\n.*second\n.*third\n"));
}

TEST(LogTest, TooManyLinesAreNotHeld) {
  testing::internal::CaptureStderr();
  LogHold hold;
  for (size_t i = 0; i <= kMaxHeldLines; ++i) LogInfo("line ", i);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("line 100"));
}

}  // namespace
}  // namespace resident
