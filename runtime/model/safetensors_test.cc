#include "runtime/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(const std::string& header, uint64_t data_bytes) {
  const auto tensors = ParseSafetensorsHeader(header, data_bytes);
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument) << header;
  return std::string(tensors.status().message());
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat("{\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets,
                      "}");
}

TEST(SafetensorsTest, ReadsNamesDTypesShapesAndRanges) {
  const std::string header =
      absl::StrCat("{\"__metadata__\":{\"format\":\"pt\"},\"b\":", Entry("BF16", "[2,3]", "[4,16]"),
                   ",\"a\":", Entry("F32", "[]", "[0,4]"),
                   ",\"none\":", Entry("I64", "[0,7]", "[16,16]"), "}   ");
  const auto tensors = ParseSafetensorsHeader(header, 16);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_TRUE((*tensors)[0].shape.empty());
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].dtype, DType::kBF16);
  EXPECT_THAT((*tensors)[1].shape, ElementsAre(2, 3));
  EXPECT_EQ((*tensors)[1].begin, 4u);
  EXPECT_EQ((*tensors)[1].size_bytes(), 12u);
  EXPECT_EQ((*tensors)[2].size_bytes(), 0u);
}

TEST(SafetensorsTest, HeadersThatAreWrittenReadBack) {
  for (const std::vector<SafetensorsTensor>& tensors :
       {std::vector<SafetensorsTensor>{},
        {{"b\"\n", DType::kBF16, {2, 3}, 0, 12}, {"a", DType::kI8, {}, 12, 13}}}) {
    const std::string written = WriteSafetensorsHeader(tensors);
    EXPECT_EQ(written.size() % 8, 0u);
    uint64_t length = 0;
    ASSERT_GE(written.size(), sizeof(length));
    std::memcpy(&length, written.data(), sizeof(length));
    ASSERT_EQ(written.size(), sizeof(length) + length);
    const uint64_t bytes = tensors.empty() ? 0 : tensors.back().end;
    const auto read = ParseSafetensorsHeader(written.substr(sizeof(length)), bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ((*read)[i].name, tensors[i].name);
      EXPECT_EQ((*read)[i].dtype, tensors[i].dtype);
      EXPECT_EQ((*read)[i].shape, tensors[i].shape);
      EXPECT_EQ((*read)[i].begin, tensors[i].begin);
      EXPECT_EQ((*read)[i].end, tensors[i].end);
    }
  }
}

TEST(SafetensorsTest, AnEmptyFileHasNoTensors) {
  const auto tensors = ParseSafetensorsHeader("{}", 0);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_TRUE(tensors->empty());
}

TEST(SafetensorsTest, RangesOutsideOfTheFileAreRefused) {
  const auto one = [](const std::string& entry) { return absl::StrCat("{\"a\":", entry, "}"); };
  EXPECT_THAT(Refusal(one(Entry("F32", "[2]", "[0,8]")), 7), HasSubstr("range 0 to 8"));
  EXPECT_THAT(Refusal(one(Entry("F32", "[2]", "[8,0]")), 8), HasSubstr("range 8 to 0"));
  EXPECT_THAT(Refusal(one(Entry("F32", "[2]", "[18446744073709551612,4]")), 8), HasSubstr("range"));
  EXPECT_THAT(Refusal(one(Entry("F32", "[2]", "[0,4]")), 4), HasSubstr("need 8"));
}

TEST(SafetensorsTest, SizesThatOverflowAreRefused) {
  const auto one = [](const std::string& shape) {
    return absl::StrCat("{\"a\":", Entry("F32", shape, "[0,0]"), "}");
  };
  EXPECT_THAT(Refusal(one("[9223372036854775808]"), 0), HasSubstr("overflows"));
  EXPECT_THAT(Refusal(one("[4294967296,1073741824]"), 0), HasSubstr("overflows"));
  EXPECT_THAT(Refusal(one("[0,9223372036854775808]"), 0), HasSubstr("overflows"));
  EXPECT_THAT(Refusal(one("[18446744073709551616]"), 0), HasSubstr("whole number"));
  EXPECT_THAT(Refusal(one("[-1]"), 0), HasSubstr("negative"));
  EXPECT_THAT(Refusal(one("[1,1,1,1,1,1,1,1,1]"), 4), HasSubstr("dimensions"));
}

TEST(SafetensorsTest, OverlapsAndGapsAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return absl::StrCat("{\"a\":", Entry("U8", "[4]", a), ",\"b\":", Entry("U8", "[4]", b), "}");
  };
  EXPECT_THAT(Refusal(two("[0,4]", "[3,7]"), 7), HasSubstr("'a' and 'b' overlap"));
  EXPECT_THAT(Refusal(two("[0,4]", "[0,4]"), 4), HasSubstr("overlap"));
  EXPECT_THAT(Refusal(two("[0,4]", "[5,9]"), 9), HasSubstr("4 to 5 belong to no tensor"));
  EXPECT_THAT(Refusal(two("[0,4]", "[4,8]"), 9), HasSubstr("8 to 9 belong to no tensor"));
}

TEST(SafetensorsTest, OtherDTypesOfTheFormatAreReadWithTheirSizes) {
  const struct {
    const char* dtype;
    uint64_t elements;
    uint64_t bytes;
  } kCases[] = {{"BOOL", 3, 3}, {"F8_E4M3", 4, 4}, {"I16", 2, 4}, {"C64", 2, 16}, {"F4", 3, 2}};
  for (const auto& test : kCases) {
    const std::string shape = absl::StrCat("[", test.elements, "]");
    const std::string header = absl::StrCat(
        "{\"a\":", Entry(test.dtype, shape, absl::StrCat("[0,", test.bytes, "]")), "}");
    const auto tensors = ParseSafetensorsHeader(header, test.bytes);
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ((*tensors)[0].dtype, DType::kInvalid);
    EXPECT_EQ((*tensors)[0].format_dtype, test.dtype);
    const std::string wrong = absl::StrCat(
        "{\"a\":", Entry(test.dtype, shape, absl::StrCat("[0,", test.bytes + 1, "]")), "}");
    EXPECT_THAT(Refusal(wrong, test.bytes + 1), HasSubstr("its shape and dtype need"));
  }
  // The size of an element of a newer version's type is not known.
  EXPECT_TRUE(ParseSafetensorsHeader("{\"a\":" + Entry("NEW", "[4]", "[0,5]") + "}", 5).ok());
}

TEST(SafetensorsTest, UnknownKeysAndRepetitionsAreRefused) {
  EXPECT_THAT(Refusal("{\"a\":" + Entry("", "[4]", "[0,4]") + "}", 4), HasSubstr("dtype"));
  EXPECT_THAT(Refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4), HasSubstr("needs"));
  EXPECT_THAT(Refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0]}}", 4),
              HasSubstr("needs"));
  EXPECT_THAT(Refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4,4]}}", 4),
              HasSubstr("two offsets"));
  EXPECT_THAT(Refusal("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 4), HasSubstr("repeated"));
  // Also if the first value was empty.
  EXPECT_THAT(Refusal("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[],"
                      "\"data_offsets\":[0,4]}}",
                      4),
              HasSubstr("repeated"));
  EXPECT_THAT(Refusal("{\"a\":{\"more\":1}}", 4), HasSubstr("unknown"));
  const std::string entry = Entry("U8", "[4]", "[0,4]");
  EXPECT_THAT(Refusal("{\"a\":" + entry + ",\"a\":" + entry + "}", 4), HasSubstr("twice"));
  EXPECT_THAT(Refusal("{\"\":" + entry + "}", 4), HasSubstr("empty name"));
  EXPECT_THAT(Refusal("{\"" + std::string(1025, 'a') + "\":" + entry + "}", 4),
              HasSubstr("1025 bytes"));
}

TEST(SafetensorsTest, MessagesQuoteTheFilesText) {
  const std::string message = Refusal("{\"a\\u001b[2J\":{\"" + std::string(500, 'k') + "\":1}}", 0);
  EXPECT_THAT(message, HasSubstr("a\\033[2J"));
  EXPECT_LT(message.size(), 400u);
}

TEST(SafetensorsTest, TextThatIsNoHeaderIsRefused) {
  for (const char* const header :
       {"", "{", "[]", "1", "null", "{\"a\":1}", "{\"a\":[]}", "{\"a\":{\"shape\":[[1]]}}",
        "{\"a\":{\"dtype\":1}}", "{}{}", "{\"__metadata__\":{\"a\":{}}}", "{\"__metadata__\":1}",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[null]}}", "\xff\xfe"}) {
    Refusal(header, 0);
  }
}

class SafetensorsFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& contents) {
    const std::string path = folder_.path() + "/model.safetensors";
    std::ofstream(path, std::ios::binary) << contents;
    return path;
  }
  static std::string WithLength(uint64_t length, const std::string& rest) {
    std::string contents(8, '\0');
    std::memcpy(contents.data(), &length, 8);
    return contents + rest;
  }

  testing::TempFolder folder_{"safetensors"};
};

TEST_F(SafetensorsFileTest, ReadsTheElements) {
  const std::string header = "{\"a\":" + Entry("U8", "[4]", "[0,4]") + "}";
  const auto file = SafetensorsFile::Open(Write(WithLength(header.size(), header + "abcd")));
  ASSERT_TRUE(file.ok()) << file.status();
  char elements[2];
  ASSERT_TRUE(file->Read(file->tensors()[0], 1, 2, elements).ok());
  EXPECT_EQ(std::string(elements, 2), "bc");
}

TEST_F(SafetensorsFileTest, HeadersLongerThanTheFileAreRefused) {
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 40, UINT64_MAX}) {
    const auto file = SafetensorsFile::Open(Write(WithLength(length, "{}")));
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("longer than the file"));
  }
  EXPECT_THAT(std::string(SafetensorsFile::Open(Write("short")).status().message()),
              HasSubstr("8 bytes"));
}

TEST_F(SafetensorsFileTest, AFileThatBecomesShorterIsAnError) {
  const std::string header = "{\"a\":" + Entry("U8", "[4]", "[0,4]") + "}";
  const std::string path = Write(WithLength(header.size(), header + "abcd"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  Write(WithLength(header.size(), header + "ab"));
  char elements[4];
  EXPECT_EQ(file->Read(file->tensors()[0], 0, 4, elements).code(), absl::StatusCode::kDataLoss);
}

TEST_F(SafetensorsFileTest, OnlyRegularFilesAreOpened) {
  EXPECT_EQ(SafetensorsFile::Open(folder_.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SafetensorsFile::Open(folder_.path() + "/none").status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace resident
