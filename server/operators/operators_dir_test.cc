// The states that a folder's record decides, without an install; //tests/fleet:operators_dir_test
// has the rest, with real daemons.
#include "server/operators/operators_dir.h"

#include <fstream>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/auth/access.h"
#include "server/core/core.h"
#include "server/operators/set_folder.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

class OperatorsDirTest : public ::testing::Test {
 protected:
  OperatorsDirTest() {
    std::ofstream(folder_.path() + "/operators.yaml")
        << "version: 1\nset: ranking\noperators:\n- {name: half, expr: x * 0.5}\n";
  }

  // What the daemon shows when a roll-out superseded the folder this long ago, before a restart.
  v1::OperatorsDirStatus Superseded(absl::Duration ago) {
    PlanTable plans;
    plans.folder = {.digest = SetFolder(folder_.path()).Read().digest,
                    .plan = std::string(64, 'a'),
                    .set = "ranking",
                    .applied = true,
                    .superseded_by = std::string(64, 'b'),
                    .superseded_ms = absl::ToUnixMillis(absl::Now() - ago)};
    manager_.set_plans(plans);
    bool ready = false;
    OperatorsDir operators(folder_.path(), core_, [&] { ready = true; });
    EXPECT_TRUE(operators.Start().ok());
    EXPECT_TRUE(ready);
    return operators.view();
  }

  const testing::TempFolder folder_{"operators_dir"};
  FakeOperatorManager manager_;
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  Access access_;
  Core core_{{}, {}, *registry_, manager_, access_};
};

TEST_F(OperatorsDirTest, AFolderThatWasSupersededForAnHourIsDrift) {
  for (const auto& [ago, drift] :
       {std::pair(absl::Minutes(59), false), {absl::Minutes(61), true}}) {
    const v1::OperatorsDirStatus status = Superseded(ago);
    EXPECT_EQ(status.state(), v1::OperatorsDirStatus::STATE_APPLIED) << status.error();
    EXPECT_EQ(status.drift(), drift);
    EXPECT_EQ(status.superseded_by(), std::string(64, 'b'));
    EXPECT_GE(status.superseded_for_ms(), absl::ToInt64Milliseconds(ago));
    // It is not that somebody has changed an operator.
    EXPECT_EQ(status.differing_size(), 0);
  }
}

}  // namespace
}  // namespace resident
