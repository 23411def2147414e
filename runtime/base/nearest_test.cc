#include "runtime/base/nearest.h"

#include <string_view>

#include "gtest/gtest.h"

namespace resident {
namespace {

constexpr std::string_view kWords[] = {"run", "status", "buffers", "hardsigmoid", "ran"};

TEST(NearestTest, AMistypedWordIsRecognized) {
  EXPECT_EQ(Nearest("stauts", kWords), "status");
  EXPECT_EQ(Nearest("bufers", kWords), "buffers");
  EXPECT_EQ(Nearest("hardsigmoids", kWords), "hardsigmoid");
}

TEST(NearestTest, NothingIsNearANonsenseWord) {
  EXPECT_EQ(Nearest("qqqqqqqqqq", kWords), "");
  EXPECT_EQ(Nearest("run", {}), "");
}

TEST(NearestTest, MoreMistakesAreForgivenInALongerWord) {
  constexpr std::string_view words[] = {"abcdefghijkl"};
  EXPECT_EQ(Nearest("abcdefgh....", words), "abcdefghijkl");
  EXPECT_EQ(Nearest("abcdefg.....", words), "");
}

TEST(NearestTest, OfEquallyNearWordsTheFirstIsNamed) {
  EXPECT_EQ(Nearest("rn", kWords), "run");
  EXPECT_EQ(Nearest("rin", kWords), "run");
}

TEST(NearestTest, BeginningsAreNearOnlyWhereTheyCount) {
  EXPECT_EQ(Nearest("hard", kWords), "");
  EXPECT_EQ(Nearest("hard", kWords, Beginnings::kNear), "hardsigmoid");
  // Two characters begin too much.
  EXPECT_EQ(Nearest("ha", kWords, Beginnings::kNear), Nearest("ha", kWords));
}

}  // namespace
}  // namespace resident
