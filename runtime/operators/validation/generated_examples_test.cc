#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "runtime/operators/validation/example.h"

namespace resident {
namespace {

std::vector<Example> Generate(const std::string& text, const SplitRule& split = {}) {
  const Signature signature = *Signature::Parse(text);
  std::vector<Example> examples = GenerateExamples(signature, split);
  EXPECT_EQ(CheckExamples("op", signature, examples), absl::OkStatus()) << text;
  return examples;
}

// Shapes of a parameter in the examples.
std::set<std::string> Shapes(const std::vector<Example>& examples, size_t parameter) {
  std::set<std::string> shapes;
  for (const Example& example : examples) shapes.insert(ShapeText(example.values[parameter].shape));
  return shapes;
}

TEST(GeneratedExamplesTest, SizesCoverEveryHazard) {
  EXPECT_EQ(Shapes(Generate("x: in f32[N], out: out f32[N]"), 0),
            (std::set<std::string>{"[0]", "[1]", "[7]", "[1000]"}));
  EXPECT_EQ(Shapes(Generate("x: in f32[R, C], out: out f32[R]"), 0),
            (std::set<std::string>{"[1, 1]", "[7, 5]", "[1000, 5]", "[0, 5]", "[7, 0]"}));
  EXPECT_EQ(Shapes(Generate("x: in f32[*S], out: out f32[*S]"), 0),
            (std::set<std::string>{"[1]", "[7, 5]", "[1000]", "[0]"}));
}

TEST(GeneratedExamplesTest, FixedDimensionsAreKept) {
  EXPECT_EQ(Shapes(Generate("x: in f32[4, 3], out: out f32[4]"), 0),
            (std::set<std::string>{"[4, 3]"}));
}

TEST(GeneratedExamplesTest, BroadcastInputsAreBroadcast) {
  EXPECT_THAT(Shapes(Generate("x: in f32[*S~], y: in f32[*S~], out: out f32[*S]"), 0),
              ::testing::IsSupersetOf({"[1]", "[1000]"}));
  EXPECT_THAT(Shapes(Generate("x: in f32[*S~], y: in f32[*S~], out: out f32[*S]"), 1),
              ::testing::IsSupersetOf({"[1]", "[7, 5]"}));
}

TEST(GeneratedExamplesTest, OneHasSeveralChunks) {
  const Signature signature = *Signature::Parse("x: in f32[R, C], out: out f32[R]");
  SplitRule split;
  split.parameter = 0;
  split.grain = 65536;
  bool several = false;
  for (const Example& example : GenerateExamples(signature, split)) {
    several |= split.Chunks(example.values[0].shape) >= 3;
  }
  EXPECT_TRUE(several);
}

TEST(GeneratedExamplesTest, EveryTypeCanBeGenerated) {
  const auto examples = Generate(
      "a: in f32|f16[N], b: in bf16[N], c: in f64[N], d: in i32[N], e: in i64[N], f: in u8[N], "
      "g: in i8[N], h: in u32[N], i: out f32[N], j: scalar f64, k: scalar i64 = 5");
  EXPECT_EQ(examples[0].values[0].dtype, DType::kF32);
  EXPECT_EQ(examples[1].values[0].dtype, DType::kF16);
  EXPECT_EQ(examples[0].values[10].data, std::string("\5\0\0\0\0\0\0\0", 8));
}

TEST(GeneratedExamplesTest, AreTheSameEveryTime) {
  const auto a = Generate("x: in f32[N], out: out f32[N]"),
             b = Generate("x: in f32[N], out: out f32[N]");
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].values[0].data, b[i].values[0].data);
}

TEST(GeneratedExamplesTest, HugeTensorsAreOmitted) {
  EXPECT_THAT(Generate("x: in f32[A, B, C, 2000000], out: out f32[A]"),
              ::testing::SizeIs(::testing::Le(2)));
}

}  // namespace
}  // namespace resident
