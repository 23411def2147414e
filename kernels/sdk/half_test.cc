#include "kernels/sdk/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace resident {
namespace {

// The value of a binary16 with these bits, computed from its definition.
double HalfValue(u16 bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(HalfTest, EveryHalfWidensExactlyAndNarrowsToTheSameBits) {
  for (u32 bits = 0; bits < 65536; ++bits) {
    const float value = Half::Widen(static_cast<u16>(bits));
    const double wanted = HalfValue(static_cast<u16>(bits));
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(Half::Widen(Half::Narrow(value)))) << bits;
      continue;
    }
    ASSERT_EQ(value, wanted) << bits;
    ASSERT_EQ(std::signbit(value), std::signbit(wanted)) << bits;
    ASSERT_EQ(Half::Narrow(value), bits);
  }
}

// For each pair of adjacent halves: the middle rounds to the even one, values next to the middle
// to the nearer one. Also between the largest half and infinity.
TEST(HalfTest, NarrowingRoundsToNearestEven) {
  for (u16 low = 0; low < 0x7c00; ++low) {
    const double a = HalfValue(low);
    const double b = low == 0x7bff ? 65536.0 : HalfValue(low + 1);
    const float middle = static_cast<float>((a + b) / 2);
    const u16 even = low % 2 == 0 ? low : low + 1;
    ASSERT_EQ(Half::Narrow(middle), even) << low;
    ASSERT_EQ(Half::Narrow(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(Half::Narrow(std::nextafter(middle, 1e30f)), low + 1) << low;
    ASSERT_EQ(Half::Narrow(-middle), even | 0x8000) << low;
  }
}

TEST(HalfTest, OverflowGivesInfinityAndUnderflowGivesZero) {
  EXPECT_EQ(Half::Narrow(65520.0f), 0x7c00);
  EXPECT_EQ(Half::Narrow(1e30f), 0x7c00);
  EXPECT_EQ(Half::Narrow(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(Half::Narrow(std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(Half::Narrow(-1e-40f), 0x8000);
}

TEST(BFloat16Test, EveryValueNarrowsToTheSameBitsAndRoundingIsToNearestEven) {
  for (u32 bits = 0; bits < 65536; ++bits) {
    const float value = BFloat16::Widen(static_cast<u16>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(BFloat16::Widen(BFloat16::Narrow(value)))) << bits;
      continue;
    }
    ASSERT_EQ(BFloat16::Narrow(value), bits);
    if (std::isinf(value)) continue;
    const u16 even = bits % 2 == 0 ? bits : bits + 1;
    const auto between = [&](u32 below) { return bit_cast<float>(bits << 16 | below); };
    ASSERT_EQ(BFloat16::Narrow(between(0x7fff)), bits);
    ASSERT_EQ(BFloat16::Narrow(between(0x8000)), even);
    ASSERT_EQ(BFloat16::Narrow(between(0x8001)), bits + 1);
  }
}

// The upper bits of these NaNs are those of an infinity.
TEST(BFloat16Test, ANanRemainsANan) {
  EXPECT_TRUE(std::isnan(float(BFloat16(bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(float(BFloat16(bit_cast<float>(0xffffffffu)))));
}

}  // namespace
}  // namespace resident
