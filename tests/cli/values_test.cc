// Tensors as text, and the arguments of `residentctl run`.
#include "client/cli/values.h"

#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/dtype.h"

namespace resident::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string RoundTrip(v1::DType dtype, std::string_view text) {
  absl::StatusOr<std::string> bytes = EncodeValues(dtype, text);
  return bytes.ok() ? FormatValues(dtype, *bytes, 100) : std::string(bytes.status().message());
}

TEST(ValuesTest, EveryElementTypeReadsBack) {
  EXPECT_EQ(RoundTrip(v1::DTYPE_F32, "1,2.5,-0.1"), "1 2.5 -0.1");
  EXPECT_EQ(RoundTrip(v1::DTYPE_F64, "0.1 1e300"), "0.1 1e+300");
  EXPECT_EQ(RoundTrip(v1::DTYPE_F16, "1,0.5,65504"), "1 0.5 65504");
  EXPECT_EQ(RoundTrip(v1::DTYPE_BF16, "1,-2,0.5"), "1 -2 0.5");
  EXPECT_EQ(RoundTrip(v1::DTYPE_I32, "-2147483648,2147483647"), "-2147483648 2147483647");
  EXPECT_EQ(RoundTrip(v1::DTYPE_I64, "-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(RoundTrip(v1::DTYPE_U8, "0,255"), "0 255");
  EXPECT_EQ(RoundTrip(v1::DTYPE_I8, "-128,127"), "-128 127");
  EXPECT_EQ(RoundTrip(v1::DTYPE_U32, "4294967295"), "4294967295");
}

TEST(ValuesTest, NanAndInfinityAreValues) {
  EXPECT_EQ(RoundTrip(v1::DTYPE_F32, "nan,inf,-inf"), "nan inf -inf");
  absl::StatusOr<std::string> bytes = EncodeValues(v1::DTYPE_F32, "nan,inf,-inf");
  EXPECT_EQ(ValuesToJson(v1::DTYPE_F32, *bytes).dump(), R"(["NaN","Infinity","-Infinity"])");
}

TEST(ValuesTest, ARepetitionIsExpanded) {
  EXPECT_EQ(RoundTrip(v1::DTYPE_F32, "0.5*3,1"), "0.5 0.5 0.5 1");
  EXPECT_EQ(RoundTrip(v1::DTYPE_F32, "7*0,1"), "1");
  EXPECT_THAT(RoundTrip(v1::DTYPE_F32, "1*99999999999"), HasSubstr("has more than"));
}

TEST(ValuesTest, InvalidElementsAreNamed) {
  EXPECT_THAT(RoundTrip(v1::DTYPE_F32, "1,two"), HasSubstr("'two' is not a valid f32"));
  EXPECT_THAT(RoundTrip(v1::DTYPE_U8, "256"), HasSubstr("'256' is not a valid u8"));
  EXPECT_THAT(RoundTrip(v1::DTYPE_I32, "1.5"), HasSubstr("'1.5' is not a valid i32"));
}

TEST(ValuesTest, JsonHasTheShortestDecimals) {
  absl::StatusOr<std::string> bytes = EncodeValues(v1::DTYPE_F32, "0.1");
  EXPECT_EQ(ValuesToJson(v1::DTYPE_F32, *bytes).dump(), "[0.1]");
}

TEST(ValuesTest, LongTensorsAreCut) {
  absl::StatusOr<std::string> bytes = EncodeValues(v1::DTYPE_I32, "1*20");
  EXPECT_EQ(FormatValues(v1::DTYPE_I32, *bytes, 2), "1 1 ... 18 more");
}

TEST(ValuesTest, TheTableOfTypesHasThoseOfTheApi) {
  EXPECT_EQ(static_cast<int>(kDTypeTable.size()) + 1, v1::DType_ARRAYSIZE);
  for (const DTypeInfo& info : kDTypeTable) {
    const auto dtype = static_cast<v1::DType>(info.dtype);
    EXPECT_EQ(EnumName(dtype), info.name);
    EXPECT_EQ(ParseDType(info.name), dtype);
    EXPECT_EQ(client::SizeOf(dtype), info.size_bytes());
  }
  EXPECT_EQ(ParseDType("unspecified"), std::nullopt);
  EXPECT_EQ(client::SizeOf(v1::DTYPE_UNSPECIFIED), 0u);
}

TEST(ShapeTest, DimensionsAreSeparatedByX) {
  EXPECT_THAT(*ParseShape("2x3x4"), ElementsAre(2, 3, 4));
  EXPECT_TRUE(ParseShape("scalar")->empty());
  for (const char* bad : {"", "2x", "x", "-1", "99999999999999999999"}) {
    EXPECT_FALSE(ParseShape(bad).ok()) << bad;
  }
}

TEST(RunArgumentTest, EveryForm) {
  absl::StatusOr<RunArgument> values = ParseRunArgument("x:f16:2x3=1,2,3,4,5,6");
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(values->name, "x");
  EXPECT_EQ(values->dtype, v1::DTYPE_F16);
  EXPECT_THAT(*values->shape, ElementsAre(2, 3));
  EXPECT_EQ(values->kind, RunArgument::kValues);
  EXPECT_EQ(values->text, "1,2,3,4,5,6");

  EXPECT_EQ(ParseRunArgument("out=")->kind, RunArgument::kNothing);
  EXPECT_EQ(ParseRunArgument("y=@a=b.f32")->text, "a=b.f32");
  EXPECT_EQ(ParseRunArgument("y=@f")->kind, RunArgument::kFile);
  EXPECT_EQ(ParseRunArgument("x=buffer:7")->kind, RunArgument::kBuffer);
  EXPECT_EQ(ParseRunArgument("x=buffer:7")->buffer_word, "7");
  EXPECT_EQ(ParseRunArgument("x=buffer:norm.weight")->buffer_word, "norm.weight");
}

TEST(RunArgumentTest, MalformedArgumentsAreRefused) {
  for (const char* bad : {"x", "=1", "x:2y=1", "x=@", "x=buffer:"}) {
    EXPECT_FALSE(ParseRunArgument(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace resident::cli
