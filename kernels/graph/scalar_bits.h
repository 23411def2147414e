// The value of a scalar, and the bits of a scalar argument: the value converted to the parameter's
// type, for host and device.
//
// Thread safety: pure functions.
//
//   const u64 bits = ScalarBits(DType::kF32, 0.5);
#ifndef RESIDENT_KERNELS_GRAPH_SCALAR_BITS_H_
#define RESIDENT_KERNELS_GRAPH_SCALAR_BITS_H_

#include <cmath>

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

namespace resident {

// factor * value + addend, rounded once: a compiler may fuse the product and the sum on one machine
// and not on another one.
RESIDENT_HOST_DEVICE double ScaleScalar(double factor, double value, double addend) {
  return std::fma(factor, value, addend);
}

// The bits of a 16-bit type. Rounds once. (By way of a float it would be rounded twice.)
template <int kMantissaBits, int kBias>
RESIDENT_HOST_DEVICE u16 NarrowBits(double value, double largest) {
  constexpr u16 kInfinite = (2 * kBias + 1) << kMantissaBits;
  const u16 sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | kInfinite | 1 << (kMantissaBits - 1);
  const double magnitude = std::fabs(value);
  if (magnitude > largest) return sign | kInfinite;
  if (magnitude < std::ldexp(1.0, 1 - kBias)) {
    // Subnormal: in units of the smallest value.
    const double units = std::ldexp(magnitude, kBias - 1 + kMantissaBits);
    return sign | static_cast<u16>(std::nearbyint(units));
  }
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // 0.5 to 1.
  // With the highest bit, which is not stored. A carry increments the exponent.
  const auto mantissa = static_cast<u32>(std::nearbyint(std::ldexp(fraction, kMantissaBits + 1)));
  return sign | static_cast<u16>(((exponent + kBias - 2) << kMantissaBits) + mantissa);
}

// The largest doubles that do not become infinite (DTypeInfo::largest in runtime/model/dtype.h).
inline constexpr double kLargestHalf = 0x1.ffdffffffffffp15;
inline constexpr double kLargestBFloat16 = 0x1.fefffffffffffp127;

// Of a floating-point type.
RESIDENT_HOST_DEVICE u64 FloatBits(DType dtype, double value) {
  switch (dtype) {
    case DType::kF64:
      return __builtin_bit_cast(u64, value);
    case DType::kF16:
      return NarrowBits<10, 15>(value, kLargestHalf);
    case DType::kBF16:
      return NarrowBits<7, 127>(value, kLargestBFloat16);
    default:
      return __builtin_bit_cast(u32, static_cast<float>(value));
  }
}

// Of an integer type.
RESIDENT_HOST_DEVICE constexpr u64 IntegerBits(DType dtype, i64 value) {
  const u32 size = SizeOf(dtype);
  const u64 bits = static_cast<u64>(value);
  return size >= 8 ? bits : bits & ((u64{1} << (8 * size)) - 1);
}

RESIDENT_HOST_DEVICE constexpr bool IsFloatType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
         dtype == DType::kF64;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_SCALAR_BITS_H_
