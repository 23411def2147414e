#include "server/connections/grpc_log.h"

#include <gmock/gmock.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class GrpcLogTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines_;
  GrpcLog log_{[this](const std::string& line) { lines_.push_back(line); }};
  GrpcLog::Clock::time_point now_ = GrpcLog::Clock::now();
};

TEST_F(GrpcLogTest, ALocationWritesFewLinesAMinute) {
  for (int i = 0; i < 1000; ++i) log_.Log("src/core/ssl.cc", 7, 'E', "Handshake failed", now_);
  ASSERT_THAT(lines_, SizeIs(GrpcLog::kMaxLinesPerPlace));
  EXPECT_THAT(lines_[0],
              AllOf(HasSubstr("ssl.cc:7: Handshake failed"), Not(HasSubstr("suppressed"))));
  EXPECT_THAT(lines_.back(), HasSubstr("suppressed and counted"));
  EXPECT_EQ(log_.suppressed(), 1000 - GrpcLog::kMaxLinesPerPlace);
  // Other locations are not affected.
  log_.Log("src/core/ssl.cc", 8, 'E', "Other", now_);
  EXPECT_THAT(lines_.back(), HasSubstr("Other"));
  // A minute later the number of suppressed lines is reported, and the location writes
  // again.
  log_.Log("src/core/ssl.cc", 7, 'E', "Again", now_ + GrpcLog::kPeriod);
  ASSERT_THAT(lines_, SizeIs(GrpcLog::kMaxLinesPerPlace + 3));
  EXPECT_THAT(lines_[lines_.size() - 2], HasSubstr("995 lines were suppressed"));
  EXPECT_THAT(lines_.back(), HasSubstr("Again"));
}

TEST_F(GrpcLogTest, AllLocationsTogetherHaveALimit) {
  for (int i = 0; i < 5000; ++i) log_.Log("a.cc", i, 'I', "x", now_);
  EXPECT_THAT(lines_, SizeIs(GrpcLog::kMaxLines));
  EXPECT_EQ(log_.suppressed(), 5000 - GrpcLog::kMaxLines);
}

TEST_F(GrpcLogTest, APeersBytesStayInOneLine) {
  log_.Log("a.cc", 1, 'I',
           std::string("a\nresidentd: forged\x1b[2J\0", 24) + std::string(1 << 20, 'x'), now_);
  ASSERT_THAT(lines_, SizeIs(1));
  EXPECT_THAT(lines_[0], AllOf(HasSubstr("a\\nresidentd: forged\\033[2J"), Not(HasSubstr("\n")),
                               Not(HasSubstr("\x1b"))));
  EXPECT_LT(lines_[0].size(), 2 * GrpcLog::kMaxLineBytes);
}

TEST_F(GrpcLogTest, InstallReplacesGrpcsLog) {
  gpr_log_verbosity_init();
  GrpcLog& log = GrpcLog::Install();
  for (int i = 0; i < 100; ++i) gpr_log(GPR_ERROR, "number %d", i);
  EXPECT_EQ(log.suppressed(), 100 - GrpcLog::kMaxLinesPerPlace);
}

}  // namespace
}  // namespace resident
