#include "runtime/model/dtype.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace resident {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The value after it was rounded to the type.
double Rounded(DType dtype, double value) {
  const uint64_t bits = ScalarBits(dtype, value);
  return ReadElement(dtype, &bits).AsDouble();
}

TEST(DTypeTest, TheTableHasOneRowForEachType) {
  std::set<std::string_view> names;
  for (const DTypeInfo& info : kDTypeTable) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name << " has two rows";
    EXPECT_EQ(FindDType(info.name), &info);
    EXPECT_EQ(FindDType(info.dtype), &info);
    EXPECT_EQ(DTypeName(info.dtype), info.name);
    // The name contains the size in bits.
    const std::string name = info.name;
    EXPECT_EQ(name.substr(name.find_first_of("0123456789")), std::to_string(8 * info.size_bytes()));
  }
  // Exactly the types that kernels know have a row.
  for (int value = 0; value < 256; ++value) {
    EXPECT_EQ(FindDType(value) != nullptr, SizeOf(static_cast<DType>(value)) != 0) << value;
  }
}

TEST(DTypeTest, WhatIsNotATypeHasNoRow) {
  for (const int value : {-1, 0, 10, 255, 256, 257}) EXPECT_EQ(FindDType(value), nullptr) << value;
  for (const char* name : {"", "f", "F32", "f32 ", "none"}) EXPECT_EQ(FindDType(name), nullptr);
  EXPECT_EQ(DTypeName(DType::kInvalid), "none");
  EXPECT_EQ(DTypeName(static_cast<DType>(200)), "none");
  EXPECT_FALSE(IsFloat(DType::kInvalid));
  EXPECT_EQ(DTypeNames(), "f32, f16, bf16, f64, i32, i64, u8, i8, u32");
}

TEST(DTypeTest, SmallNumbersAreReadAsTheyWereWritten) {
  for (const DTypeInfo& info : kDTypeTable) {
    const int64_t min = info.kind == DTypeInfo::Kind::kUnsigned ? 0 : -100;
    for (int64_t i = min; i <= 100; ++i) {
      const bool real = IsFloat(info.dtype);
      const uint64_t bits =
          real ? ScalarBits(info.dtype, static_cast<double>(i)) : ScalarBits(info.dtype, i);
      const Element element = ReadElement(info.dtype, &bits);
      EXPECT_EQ(element.floating, real);
      EXPECT_EQ(element.AsDouble(), static_cast<double>(i)) << info.name;
      const uint64_t beyond = info.size_bytes() < 8 ? bits >> (8 * info.size_bytes()) : 0;
      EXPECT_EQ(beyond, 0u) << info.name;
    }
  }
}

TEST(DTypeTest, TheLargestFloatThatFitsIsTheLargestThatStaysFinite) {
  for (const DTypeInfo& info : kDTypeTable) {
    if (!IsFloat(info.dtype)) {
      for (const double value : {1.0, double{NAN}, kInfinity}) {
        EXPECT_FALSE(ScalarFits(info.dtype, value)) << info.name << " " << value;
      }
      continue;
    }
    EXPECT_TRUE(ScalarFits(info.dtype, info.largest));
    EXPECT_TRUE(std::isfinite(Rounded(info.dtype, info.largest))) << info.name;
    EXPECT_TRUE(ScalarFits(info.dtype, kInfinity));
    EXPECT_EQ(Rounded(info.dtype, -kInfinity), -kInfinity);
    EXPECT_TRUE(std::isnan(Rounded(info.dtype, NAN))) << info.name;
    EXPECT_FALSE(ScalarFits(info.dtype, int64_t{1}));
    EXPECT_TRUE(ScalarFits(info.dtype, double{NAN})) << info.name;
    if (info.size_bytes() == 8) continue;
    const double beyond = std::nextafter(info.largest, kInfinity);
    EXPECT_FALSE(ScalarFits(info.dtype, -beyond)) << info.name;
    EXPECT_TRUE(std::isinf(Rounded(info.dtype, beyond))) << info.name;
  }
  EXPECT_EQ(Rounded(DType::kF16, 65519.0), 65504.0);
  EXPECT_EQ(Rounded(DType::kF16, 65520.0), kInfinity);
}

TEST(DTypeTest, IntegersFitFromTheLeastToTheLargest) {
  const auto check = [](DType dtype, int64_t min, int64_t max) {
    for (const int64_t fits : {min, int64_t{0}, max}) {
      EXPECT_TRUE(ScalarFits(dtype, fits)) << DTypeName(dtype);
      const uint64_t bits = ScalarBits(dtype, fits);
      EXPECT_EQ(ReadElement(dtype, &bits).integer, fits) << DTypeName(dtype);
    }
    if (SizeOf(dtype) == 8) return;
    EXPECT_FALSE(ScalarFits(dtype, min - 1)) << DTypeName(dtype);
    EXPECT_FALSE(ScalarFits(dtype, max + 1)) << DTypeName(dtype);
  };
  check(DType::kI8, -128, 127);
  check(DType::kU8, 0, 255);
  check(DType::kI32, INT32_MIN, INT32_MAX);
  check(DType::kU32, 0, UINT32_MAX);
  check(DType::kI64, INT64_MIN, INT64_MAX);
}

TEST(DTypeTest, EveryHalfAndEveryBFloatReadsBack) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (uint32_t i = 0; i < 65536; ++i) {
      const uint16_t bits = static_cast<uint16_t>(i);
      const double value = ReadElement(dtype, &bits).AsDouble();
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(Rounded(dtype, value)));
      } else {
        ASSERT_EQ(ScalarBits(dtype, value), bits) << DTypeName(dtype) << " " << value;
      }
    }
  }
}

TEST(DTypeTest, HalvesAndBFloatsRoundToNearestEven) {
  EXPECT_EQ(ScalarBits(DType::kF16, 1 + 0x1p-11), 0x3c00u);      // Half way, to even.
  EXPECT_EQ(ScalarBits(DType::kF16, 1 + 3 * 0x1p-11), 0x3c02u);  // Half way, to even.
  // A little more than half way. A float would round it to half way first.
  EXPECT_EQ(ScalarBits(DType::kF16, 1 + 0x1p-11 + 0x1p-40), 0x3c01u);
  EXPECT_EQ(ScalarBits(DType::kF16, 0x1p-25), 0x0000u);  // Half the smallest, to even.
  EXPECT_EQ(ScalarBits(DType::kF16, -0.0), 0x8000u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 1 + 0x1p-8), 0x3f80u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 1 + 3 * 0x1p-8), 0x3f82u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 1 + 0x1p-8 + 0x1p-40), 0x3f81u);
  EXPECT_EQ(ScalarBits(DType::kBF16, -1 - 3 * 0x1p-8 + 0x1p-40), 0xbf81u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 0x1p-134), 0x0000u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 0x1p-134 + 0x1p-180), 0x0001u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 2 - 0x1p-9), 0x4000u);  // Carries into the exponent.
}

TEST(DTypeTest, ElementsNeedNotBeAligned) {
  std::string bytes(1, 'x');
  const uint64_t bits = ScalarBits(DType::kF64, 0.1);
  bytes.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
  EXPECT_EQ(ReadElement(DType::kF64, bytes.data() + 1).real, 0.1);
}

TEST(DTypeTest, AdjacentElementsAsFloats) {
  const float values[] = {1.5f, -0x1p-14f, 0.0f, 65504.0f};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::string bytes(1, 'x');
    for (const float value : values) {
      const uint64_t bits = ScalarBits(dtype, value);
      bytes.append(reinterpret_cast<const char*>(&bits), SizeOf(dtype));
    }
    float read[4] = {};
    ReadFloats(dtype, bytes.data() + 1, read);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(read[i], ReadElement(dtype, bytes.data() + 1 + i * SizeOf(dtype)).real);
    }
    EXPECT_EQ(read[1], values[1]);
  }
}

}  // namespace
}  // namespace resident
