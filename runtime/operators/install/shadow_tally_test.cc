#include <memory>

#include "gtest/gtest.h"
#include "runtime/operators/install/live_operator_manager.h"

namespace resident {
namespace {

std::unique_ptr<OperatorVersion> Version(const std::string& name, uint32_t number) {
  auto version = std::make_unique<OperatorVersion>();
  version->op = std::make_shared<Operator>(name, "", Signature(), /*bytecode=*/true);
  version->version = number;
  return version;
}

TEST(ShadowTallyTest, CountsEachVersionUntilItIsForgotten) {
  ShadowTally tally;
  const auto first = Version("times", 1), second = Version("times", 2);
  tally.Add(*first, 3, 1);
  tally.Add(*first, 4, 2);
  tally.Add(*second, 5, 0);
  EXPECT_EQ(tally.Get("times", 1).tasks, 7u);
  EXPECT_EQ(tally.Get("times", 1).mismatches, 3u);
  EXPECT_EQ(tally.Get("times", 2).tasks, 5u);
  tally.Forget("times", 1);
  EXPECT_EQ(tally.Get("times", 1).tasks, 0u);
  EXPECT_EQ(tally.Get("times", 2).tasks, 5u);
}

TEST(ShadowTallyTest, DoesNotGrowWithDestroyedVersions) {
  ShadowTally tally;
  const auto stays = Version("stays", 1);
  tally.Add(*stays, 1, 0);
  for (uint32_t number = 1; number <= 100; ++number) {
    tally.Add(*Version("times", number), 1, 1);
    EXPECT_LE(tally.size(), 2u);
  }
  EXPECT_EQ(tally.Get("stays", 1).tasks, 1u);
}

}  // namespace
}  // namespace resident
