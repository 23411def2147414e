#include "runtime/operator_set/example_file.h"

#include <cmath>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Signature Swish() {
  return *Signature::Parse(
      "x: in f32|f16[*S], n: scalar i32, out: out f32[*S], alpha: scalar f32 = 2");
}

template <typename T>
std::vector<T> As(const v1::ExampleValue& value) {
  std::vector<T> elements(value.data().size() / sizeof(T));
  std::memcpy(elements.data(), value.data().data(), value.data().size());
  return elements;
}

std::vector<uint64_t> ReadShape(const v1::ExampleValue& value) {
  return {value.shape().begin(), value.shape().end()};
}

TEST(ExampleFileTest, ValuesAreInTheOrderOfTheSignature) {
  const auto examples = ParseExamples(R"({
      "inputs": {"n": 7, "x": [[1, 2.5], [-3, "NaN"]]},
      "outputs": {"out": [["Infinity", "-Infinity"], [0, 1e-3]]},
      "relative_tolerance": 1e-4, "absolute_tolerance": 1e-6})",
                                      Swish());
  ASSERT_TRUE(examples.ok()) << examples.status();
  ASSERT_EQ(examples->size(), 1u);
  const v1::InstallExample& example = (*examples)[0];
  EXPECT_EQ(example.relative_tolerance(), 1e-4);
  EXPECT_EQ(example.absolute_tolerance(), 1e-6);
  ASSERT_EQ(example.values_size(), 4);
  EXPECT_EQ(example.values(0).dtype(), v1::DTYPE_F32);
  EXPECT_THAT(ReadShape(example.values(0)), ElementsAre(2, 2));
  EXPECT_EQ(As<float>(example.values(0))[1], 2.5f);
  EXPECT_TRUE(std::isnan(As<float>(example.values(0))[3]));
  EXPECT_EQ(example.values(1).dtype(), v1::DTYPE_I32);
  EXPECT_THAT(ReadShape(example.values(1)), ElementsAre());
  EXPECT_THAT(As<int32_t>(example.values(1)), ElementsAre(7));
  EXPECT_THAT(As<float>(example.values(2)), ElementsAre(INFINITY, -INFINITY, 0, 1e-3f));
  EXPECT_THAT(As<float>(example.values(3)), ElementsAre(2)) << "the default";
}

TEST(ExampleFileTest, FlatDataWithShapeAndType) {
  const auto examples = ParseExamples(
      R"([{"inputs": {"n": 1, "x": {"dtype": "f16", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}},
           "outputs": {"out": {"shape": [2, 3]}}},
          {"inputs": {"n": 1, "x": [], "alpha": -1}}])",
      Swish());
  ASSERT_TRUE(examples.ok()) << examples.status();
  ASSERT_EQ(examples->size(), 2u);
  const v1::InstallExample& first = (*examples)[0];
  EXPECT_EQ(first.values(0).dtype(), v1::DTYPE_F16);
  EXPECT_EQ(first.values(0).data().size(), 12u);
  EXPECT_THAT(ReadShape(first.values(2)), ElementsAre(2, 3));
  EXPECT_EQ(first.values(2).data(), "");
  const v1::InstallExample& second = (*examples)[1];
  EXPECT_THAT(ReadShape(second.values(0)), ElementsAre(0));
  EXPECT_THAT(ReadShape(second.values(2)), ElementsAre(0)) << "the first input's shape";
  EXPECT_THAT(As<float>(second.values(3)), ElementsAre(-1));
}

TEST(ExampleFileTest, AnOutputWithFewerDimensionsGetsTheFirstOnes) {
  const auto signature = Signature::Parse("x: in f32[R, C], out: out f32[R]");
  const auto examples = ParseExamples(R"({"inputs": {"x": [[1, 2, 3], [4, 5, 6]]}})", *signature);
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_THAT(ReadShape((*examples)[0].values(1)), ElementsAre(2));
}

TEST(ExampleFileTest, AnInoutHasInitialAndExpectedData) {
  const auto signature = Signature::Parse("x: inout f32|i32[N], sum: out f32[]");
  const auto both = ParseExamples(R"({"inputs": {"x": {"dtype": "i32", "data": [1, 2]}},
                                      "outputs": {"x": [2, 4], "sum": 6}})",
                                  *signature);
  ASSERT_TRUE(both.ok()) << both.status();
  const v1::ExampleValue& value = (*both)[0].values(0);
  EXPECT_EQ(value.dtype(), v1::DTYPE_I32);
  EXPECT_THAT(ReadShape(value), ElementsAre(2));
  EXPECT_THAT(As<int32_t>(value), ElementsAre(1, 2, 2, 4));

  const auto initial_only = ParseExamples(R"({"inputs": {"x": [1, 2]}})", *signature);
  ASSERT_TRUE(initial_only.ok()) << initial_only.status();
  EXPECT_THAT(As<float>((*initial_only)[0].values(0)), ElementsAre(1, 2));

  const auto shorter =
      ParseExamples(R"({"inputs": {"x": [1, 2]}, "outputs": {"x": [2], "sum": 6}})", *signature);
  EXPECT_EQ(shorter.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(shorter.status().message()),
              HasSubstr("'x': its output does not have the type and shape of its input. Fix: "));
  EXPECT_THAT(
      std::string(
          ParseExamples(R"({"outputs": {"x": [2], "sum": 6}})", *signature).status().message()),
      HasSubstr("'x': the example has no value for it"));
}

TEST(ExampleFileTest, ErrorsNameTheProblemAndItsPosition) {
  const struct {
    std::string json;
    const char* part;
  } kCases[] = {
      {"{", "not valid JSON"},
      {R"({"inputs": {"x": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}}",
       "nested more than 64 levels deep"},
      {"[1]", "example 1: it is not an object"},
      {R"({"input": {}})", "unknown key 'input'"},
      {R"({"inputs": []})", "'inputs' is not an object"},
      {R"({"inputs": {"y": 1}})", "'y' is not one of the inputs"},
      {R"({"outputs": {"x": 1}})", "'x' is not one of the outputs"},
      {R"({"inputs": {"x": [1]}})", "example 1, 'n': the example has no value"},
      {R"({"inputs": {"x": [1, [2]], "n": 1}})", "'x': its lists differ in length"},
      {R"({"inputs": {"x": [[1], [2, 3]], "n": 1}})", "differ in length"},
      {R"({"inputs": {"x": ["one"], "n": 1}})", "not a number"},
      {R"({"inputs": {"x": [1], "n": 1.5}})", "'1.5' is not a valid i32"},
      {R"({"inputs": {"x": [1], "n": [1]}})", "it is a scalar and got a list"},
      {R"({"inputs": {"x": {"dtype": "f3", "data": [1]}, "n": 1}})", "unknown element type"},
      {R"({"inputs": {"x": {"shape": [2], "data": [1]}, "n": 1}})", "2 elements, and data 1"},
      {R"({"inputs": {"x": {"shape": [-2], "data": [1]}, "n": 1}})", "not a list of sizes"},
      {R"({"inputs": {"x": {"shape": [2]}, "n": 1}})", "'x': it has no data"},
      {R"({"inputs": {"x": [1], "n": 1}, "relative_tolerance": "1"})", "is not a number"},
  };
  for (const auto& test : kCases) {
    SCOPED_TRACE(test.json);
    const auto examples = ParseExamples(test.json, Swish());
    EXPECT_EQ(examples.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(examples.status().message()), HasSubstr(test.part));
    EXPECT_THAT(std::string(examples.status().message()), HasSubstr("Fix: "));
  }
}

}  // namespace
}  // namespace resident
