#include "runtime/base/utf8.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <iterator>
#include <string>

namespace resident {
namespace {

constexpr char kReplaced[] = "\xef\xbf\xbd";

TEST(Utf8Test, WellFormedTextIsNotChanged) {
  const std::string text =
      "a\n\xc3\xa9 \xe2\x80\xa6 \xed\x9f\xbf \xee\x80\x80 \xf0\x90\x80\x80 \xf4\x8f\xbf\xbf";
  EXPECT_EQ(ToUtf8(text), text);
  EXPECT_EQ(ToUtf8(""), "");
}

TEST(Utf8Test, EachByteThatIsNotPartOfACharacterIsReplaced) {
  for (const char* bytes : {"\xff", "\xc3", "\xa9", "\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
                            "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xe2\x80"}) {
    std::string expected;
    for (const char* byte = bytes; *byte != '\0'; ++byte) expected += kReplaced;
    EXPECT_EQ(ToUtf8(bytes), expected);
    EXPECT_EQ(ToUtf8(std::string("x") + bytes + "y"), "x" + expected + "y");
  }
  EXPECT_EQ(ToUtf8(std::string("\0\xff", 2)), std::string("\0", 1) + kReplaced);
}

TEST(Utf8Test, TextIsCutBetweenCharacters) {
  const std::string text = "a\xc3\xa9\xe2\x80\xa6\xf0\x90\x80\x80z";
  const std::string whole[] = {"",
                               "a",
                               "a",
                               "a\xc3\xa9",
                               "a\xc3\xa9",
                               "a\xc3\xa9",
                               "a\xc3\xa9\xe2\x80\xa6",
                               "a\xc3\xa9\xe2\x80\xa6",
                               "a\xc3\xa9\xe2\x80\xa6",
                               "a\xc3\xa9\xe2\x80\xa6",
                               "a\xc3\xa9\xe2\x80\xa6\xf0\x90\x80\x80",
                               text,
                               text};
  for (size_t max_bytes = 0; max_bytes < std::size(whole); ++max_bytes) {
    EXPECT_EQ(CutUtf8(text, max_bytes), whole[max_bytes]) << max_bytes;
  }
  // ToUtf8 makes malformed text longer, so callers cut its result.
  EXPECT_EQ(CutUtf8(ToUtf8(std::string(10, '\xff')), 10), ToUtf8("\xff\xff\xff"));
}

TEST(Utf8Test, APrintableLineHasNoTerminalControlSequences) {
  EXPECT_EQ(ToPrintableLine("a\tb\x1b[2J\r\n\x7f\xc2\x9b"
                            "1m\xc2\xa0\xff"),
            std::string("a\tb?[2J????1m\xc2\xa0") + kReplaced);
}

}  // namespace
}  // namespace resident
