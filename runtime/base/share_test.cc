#include "runtime/base/share.h"

#include <gtest/gtest.h>

namespace resident {
namespace {

TEST(ShareTest, APercentageAndAFractionAreTheSame) {
  const struct {
    const char* text;
    double value;
  } cases[] = {{"1%", 0.01}, {"0.01", 0.01}, {"0.1%", 0.001}, {"1e-3", 0.001},
               {"0", 0},     {"0%", 0},      {"100%", 1},     {"1", 1}};
  for (const auto& [text, value] : cases) {
    Share share;
    std::string error;
    ASSERT_TRUE(AbslParseFlag(text, &share, &error)) << text << ": " << error;
    EXPECT_DOUBLE_EQ(share.value, value) << text;
    Share again;
    ASSERT_TRUE(AbslParseFlag(AbslUnparseFlag(share), &again, &error)) << AbslUnparseFlag(share);
    EXPECT_DOUBLE_EQ(again.value, share.value) << text;
  }
}

TEST(ShareTest, OtherTextsAreRefused) {
  for (const char* text : {"", "%", "5", "1.01", "101%", "-1%", "-0.1", "nan", "inf", "x", "1%%"}) {
    Share share{0.5};
    std::string error;
    EXPECT_FALSE(AbslParseFlag(text, &share, &error)) << text;
    EXPECT_EQ(error, "a share is 0% to 100%, or 0 to 1");
    EXPECT_EQ(share.value, 0.5);
  }
}

}  // namespace
}  // namespace resident
