#include "runtime/operators/validation/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace resident {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

template <typename T>
Comparison CompareAll(DType dtype, const std::vector<T>& got, const std::vector<T>& expected,
                      Tolerance tolerance) {
  return Compare(dtype, got.data(), expected.data(), got.size(), tolerance);
}

TEST(CompareTest, WithinTheToleranceIsEqual) {
  const Comparison c =
      CompareAll<float>(DType::kF32, {1.0f, 100.0f}, {1.05f, 105.0f}, {.relative = 0.06});
  EXPECT_EQ(c.differing, 0u);
  EXPECT_EQ(c.max_error, 5.0);
}

TEST(CompareTest, ReportsFirstCountAndLargestError) {
  const Comparison c = CompareAll<float>(DType::kF32, {1, 2, 3, 4}, {1, 2.5f, 3, 8}, {});
  EXPECT_EQ(c.differing, 2u);
  EXPECT_EQ(c.first, 1u);
  EXPECT_EQ(c.got, "2");
  EXPECT_EQ(c.expected, "2.5");
  EXPECT_EQ(c.max_error, 4.0);
}

TEST(CompareTest, NanAndInfinityEqualOnlyThemselves) {
  EXPECT_EQ(CompareAll<float>(DType::kF32, {kNan, kInf, -kInf}, {-kNan, kInf, -kInf}, {}).differing,
            0u);
  const Comparison c = CompareAll<float>(DType::kF32, {kNan, kInf, 1, kInf, 1},
                                         {1, -kInf, kInf, kNan, kNan}, {1e9, 1e9});
  EXPECT_EQ(c.differing, 5u);
  EXPECT_EQ(c.max_error, kInf);
}

TEST(CompareTest, ZerosOfBothSignsAreEqual) {
  EXPECT_EQ(CompareAll<float>(DType::kF32, {0.0f}, {-0.0f}, {}).differing, 0u);
}

TEST(CompareTest, HalvesAndBfloats) {
  // 1, 2, the smallest subnormal, infinity, NaN.
  const std::vector<uint16_t> halves = {0x3c00, 0x4000, 0x0001, 0x7c00, 0x7e00};
  EXPECT_EQ(ElementText(DType::kF16, &halves[0]), "1");
  EXPECT_EQ(ElementText(DType::kF16, &halves[2]), "5.96046448e-08");
  EXPECT_EQ(ElementText(DType::kF16, &halves[3]), "inf");
  EXPECT_EQ(ElementText(DType::kF16, &halves[4]), "nan");
  const uint16_t negative = 0xfe00;
  EXPECT_EQ(ElementText(DType::kF16, &negative), "nan");
  const Tolerance tolerance = DefaultTolerance(DType::kF16);
  EXPECT_EQ(CompareAll<uint16_t>(DType::kF16, {0x3c00}, {0x3c01}, tolerance).differing, 0u);
  EXPECT_EQ(CompareAll<uint16_t>(DType::kF16, {0x3c00}, {0x3c10}, tolerance).differing, 1u);
  const uint16_t bfloat = 0xbf80;
  EXPECT_EQ(ElementText(DType::kBF16, &bfloat), "-1");
}

TEST(CompareTest, LongIntegersAreComparedWithoutLoss) {
  const int64_t big = int64_t{1} << 60;
  EXPECT_EQ(CompareAll<int64_t>(DType::kI64, {big}, {big + 1}, {}).differing, 1u);
  const Comparison c =
      CompareAll<int64_t>(DType::kI64, {std::numeric_limits<int64_t>::min()},
                          {std::numeric_limits<int64_t>::max()}, DefaultTolerance(DType::kI64));
  EXPECT_EQ(c.differing, 1u);
  EXPECT_EQ(c.max_error, std::ldexp(1.0, 64));
}

TEST(CompareTest, UnsignedElementsAreUnsigned) {
  const uint32_t max = UINT32_MAX;
  EXPECT_EQ(ElementText(DType::kU32, &max), "4294967295");
  const uint8_t byte = 255;
  EXPECT_EQ(ElementText(DType::kU8, &byte), "255");
  EXPECT_EQ(ElementText(DType::kI8, &byte), "-1");
}

TEST(CompareTest, AcceptsUnalignedElements) {
  std::vector<uint8_t> bytes(1 + 2 * sizeof(double));
  const double values[] = {1.5, 2.5};
  std::copy_n(reinterpret_cast<const uint8_t*>(values), sizeof(values), bytes.begin() + 1);
  EXPECT_EQ(Compare(DType::kF64, bytes.data() + 1, values, 2, {}).differing, 0u);
}

}  // namespace
}  // namespace resident
