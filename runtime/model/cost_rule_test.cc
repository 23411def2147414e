#include "runtime/model/cost_rule.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/builtin.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

double Operations(const std::string& signature_text, const std::string& cost,
                  const std::vector<Shape>& shapes) {
  const absl::StatusOr<Signature> signature = Signature::Parse(signature_text);
  EXPECT_TRUE(signature.ok()) << signature.status();
  const absl::StatusOr<CostRule> rule = ParseCost(cost, *signature);
  EXPECT_TRUE(rule.ok()) << rule.status();
  return rule->Operations(shapes);
}

TEST(CostRuleTest, IsASumOfProducts) {
  const std::string gemm = "a: in f32[M, K], b: in f32[K, N], c: inout f32[M, N]";
  const std::vector<Shape> shapes = {{3, 5}, {5, 7}, {3, 7}};
  EXPECT_EQ(Operations(gemm, "2 M N K", shapes), 2 * 3 * 7 * 5);
  EXPECT_EQ(Operations(gemm, "2 M N K + 3 M N", shapes), 2 * 3 * 7 * 5 + 3 * 3 * 7);
  EXPECT_EQ(Operations(gemm, "M + 4", shapes), 7);
  EXPECT_EQ(Operations(gemm, "", shapes), 0);
}

// A variable of several dimensions is their product, also if there are none of them.
TEST(CostRuleTest, CountsVariableDimensions) {
  const std::string softmax = "x: in f32[*S, C], out: out f32[*S, C]";
  EXPECT_EQ(Operations(softmax, "5 S C", {{2, 3, 4}, {2, 3, 4}}), 5 * 24);
  EXPECT_EQ(Operations(softmax, "5 S C", {{4}, {4}}), 5 * 4);
  EXPECT_EQ(Operations(softmax, "S", {{0, 4}, {0, 4}}), 0);
  const std::string middle = "x: in f32[A, *S, 3, C]";
  EXPECT_EQ(Operations(middle, "A", {{2, 5, 7, 3, 11}}), 2);
  EXPECT_EQ(Operations(middle, "S", {{2, 5, 7, 3, 11}}), 35);
  EXPECT_EQ(Operations(middle, "C", {{2, 5, 7, 3, 11}}), 11);
}

// A variable that one parameter only broadcasts to is that of the parameter which binds it.
TEST(CostRuleTest, ReadsTheParameterThatBinds) {
  const std::string add = "x: in f32[*S~], y: in f32[*S~], out: out f32[*S], alpha: scalar f32 = 1";
  EXPECT_EQ(Operations(add, "2 S", {{1}, {4}, {3, 4}, {}}), 2 * 12);
}

// A decode step over a large cache does no more than its position says.
TEST(CostRuleTest, ScalarsLimitDimensions) {
  const Signature signature =
      *Signature::Parse("k: in f32[L, D], d: scalar f32 = 1, kv_len: scalar i64 = -1");
  const CostRule rule = *ParseCost("2 L:kv_len D + D", signature);
  EXPECT_TRUE(rule.limited());
  EXPECT_FALSE(ParseCost("2 L D", signature)->limited());
  const std::vector<Shape> shapes = {{100, 8}, {}, {}};
  EXPECT_EQ(rule.Operations(shapes), 2 * 100 * 8 + 8);
  EXPECT_EQ(rule.Operations(shapes, {0, 0, 10}), 2 * 10 * 8 + 8);
  EXPECT_EQ(rule.Operations(shapes, {0, 0, 0}), 8);
  EXPECT_EQ(rule.Operations(shapes, {0, 0, -1}), 2 * 100 * 8 + 8);
  EXPECT_EQ(rule.Operations(shapes, {0, 0, 1e9}), 2 * 100 * 8 + 8);
}

TEST(CostRuleTest, RefusesWhatItCannotRead) {
  const Signature signature = *Signature::Parse("x: in f32[N], s: scalar f32");
  for (const char* bad : {"2 M", "N 2", "0 N", "-1 N", "2  N", "N +", "+ N", "N+N", "S", "s", " ",
                          "N:", ":s", "N:x", "N:s:s", "2:s"}) {
    const absl::StatusOr<CostRule> rule = ParseCost(bad, signature);
    ASSERT_FALSE(rule.ok()) << bad;
    EXPECT_THAT(rule.status().message(), HasSubstr("Fix: ")) << bad;
  }
}

TEST(CostRuleTest, TheBuiltInOperatorsHaveValidOnes) {
  std::vector<std::string> without;
  for (const BuiltinOperator& op : kBuiltinOperators) {
    const absl::StatusOr<Signature> signature = Signature::Parse(op.signature);
    ASSERT_TRUE(signature.ok()) << op.name << ": " << signature.status();
    const absl::StatusOr<CostRule> rule = ParseCost(op.cost, *signature);
    ASSERT_TRUE(rule.ok()) << op.name << ": " << rule.status();
    if (rule->terms.empty()) without.emplace_back(op.name);
  }
  // Those that only copy, and programs.
  EXPECT_THAT(without, UnorderedElementsAre("copy", "fill", "zero", "embedding", "take_token",
                                            "kv_append", "gather", "copy_bytes", "flux.run"));
}

}  // namespace
}  // namespace resident
