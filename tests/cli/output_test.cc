// Exit codes of commands.
#include "client/cli/output.h"

#include "client/cli/exit_codes.h"
#include "gtest/gtest.h"

namespace resident::cli {
namespace {

TEST(CheckedExitTest, WrongResultsHavePriorityOverAFileThatWasNotWritten) {
  const absl::Status not_written = absl::InvalidArgumentError("cannot write /dev/full");
  EXPECT_EQ(CheckedExit(0, absl::OkStatus()), kExitOk);
  EXPECT_EQ(CheckedExit(0, not_written), kExitNotWritten);
  EXPECT_EQ(CheckedExit(1, absl::OkStatus()), kExitFailed);
  EXPECT_EQ(CheckedExit(1, not_written), kExitFailed);
}

}  // namespace
}  // namespace resident::cli
