#include "runtime/base/nearest.h"

#include <string>
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
  // Its length alone is too different, so that its bytes are not compared.
  EXPECT_EQ(Nearest(std::string(256 << 20, 'r'), kWords), "");
}

TEST(NearestTest, ALongerWordMayHaveMoreMistakes) {
  constexpr std::string_view words[] = {"abcdefghijkl"};
  EXPECT_EQ(Nearest("abcdefgh....", words), "abcdefghijkl");
  EXPECT_EQ(Nearest("abcdefg.....", words), "");
}

TEST(NearestTest, TheFirstOfEquallyNearWordsIsReturned) {
  EXPECT_EQ(Nearest("rn", kWords), "run");
  EXPECT_EQ(Nearest("rin", kWords), "run");
}

TEST(NearestTest, BeginningsAreNearOnlyIfRequested) {
  EXPECT_EQ(Nearest("hard", kWords), "");
  EXPECT_EQ(Nearest("hard", kWords, Beginnings::kNear), "hardsigmoid");
  // Two characters are too short for a beginning.
  EXPECT_EQ(Nearest("ha", kWords, Beginnings::kNear), Nearest("ha", kWords));
}

TEST(NearestTest, AnotherFunctionIsNoMisspelling) {
  const std::string_view functions[] = {"log", "log1p", "sin", "sqrt", "silu", "maximum"};
  for (const std::string_view word :
       {"log10", "log2", "sum", "sign", "asin", "sqr", "selu", "max"}) {
    EXPECT_EQ(Nearest(word, functions, Beginnings::kNear), "") << word;
  }
  EXPECT_EQ(Nearest("lgo", functions), "log");
}

}  // namespace
}  // namespace resident
