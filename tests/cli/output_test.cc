// Exit codes of commands.
#include "client/cli/output.h"

#include "client/cli/common_options.h"
#include "gtest/gtest.h"
#include "runtime/base/limits.h"

namespace resident::cli {
namespace {

TEST(CheckedExitTest, WrongResultsHavePriorityOverAFileThatWasNotWritten) {
  const absl::Status not_written = absl::InvalidArgumentError("cannot write /dev/full");
  EXPECT_EQ(CheckedExit(0, absl::OkStatus()), kExitOk);
  EXPECT_EQ(CheckedExit(0, not_written), kExitNotWritten);
  EXPECT_EQ(CheckedExit(1, absl::OkStatus()), kExitFailed);
  EXPECT_EQ(CheckedExit(1, not_written), kExitFailed);
}

TEST(CommonOptionsTest, AnInstallWaitsForTheAnswerAboutAVersionThatNeverReturns) {
  CommonOptions options;
  EXPECT_EQ(options.call_timeout(), absl::Minutes(1));
  EXPECT_GE(options.install_timeout(), 2 * absl::Milliseconds(kValidationTaskLimitMs));
  options.timeout = absl::Seconds(5);
  EXPECT_EQ(options.call_timeout(), absl::Seconds(5));
  EXPECT_EQ(options.install_timeout(), absl::Seconds(5));
}

}  // namespace
}  // namespace resident::cli
