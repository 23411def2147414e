#include "runtime/base/log.h"

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

}  // namespace
}  // namespace resident
