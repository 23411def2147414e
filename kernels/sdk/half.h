// Half and BFloat16: 16-bit floating-point types. Computations use float.
//
//   Tensor<const Half> x = args.tensor<const Half>(0);
//   const float v = x[i];   // Exact.
//   out[i] = Half(2 * v);   // Rounds to nearest, ties to even; overflow gives infinity.
//
// They are storage types: arithmetic converts to float. A NaN remains a NaN.
#ifndef RESIDENT_KERNELS_SDK_HALF_H_
#define RESIDENT_KERNELS_SDK_HALF_H_

#include "kernels/layout/platform.h"

namespace resident {

// Converts the bits of a value to another type of the same size.
template <typename To, typename From>
RESIDENT_HOST_DEVICE To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}

// 1 sign, 5 exponent and 10 mantissa bits (IEEE binary16).
struct Half {
  u16 bits;

  Half() = default;
  RESIDENT_HOST_DEVICE explicit Half(float value) : bits(Narrow(value)) {}
  RESIDENT_HOST_DEVICE operator float() const { return Widen(bits); }

  RESIDENT_HOST_DEVICE static float Widen(u16 half) {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    // The exponent's bias is 112 less than a float's. Infinity and NaN have the largest
    // exponent in both.
    const u32 magnitude = half & 0x7fffu;
    const u32 scaled = bit_cast<u32>(bit_cast<float>(magnitude << 13) * 0x1p112f);
    const u32 special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    return bit_cast<float>(scaled | special | (half & 0x8000u) << 16);
#endif
  }

  RESIDENT_HOST_DEVICE static u16 Narrow(float value) {
#if defined(__CUDA_ARCH__)
    u16 half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return half;
#else
    const u32 wide = bit_cast<u32>(value);
    const u32 sign = wide >> 16 & 0x8000u;
    const u32 magnitude = wide & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<u16>(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) return static_cast<u16>(sign | 0x7c00u);  // 65536 and more.
    if (magnitude < 0x38800000u) {
      // Below 2^-14 the unit is 2^-24. Adding 1/2 moves the units into the lowest bits of the
      // sum, and the addition rounds to nearest even.
      const u32 units = bit_cast<u32>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
      return static_cast<u16>(sign | units);
    }
    // Drops 13 bits and rounds to nearest even. A carry increments the exponent, up to infinity.
    const u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return static_cast<u16>(sign | (rounded - 0x38000000u) >> 13);
#endif
  }
};
static_assert(sizeof(Half) == 2, "");

// 1 sign, 8 exponent and 7 mantissa bits: the upper half of a float.
struct BFloat16 {
  u16 bits;

  BFloat16() = default;
  RESIDENT_HOST_DEVICE explicit BFloat16(float value) : bits(Narrow(value)) {}
  RESIDENT_HOST_DEVICE operator float() const { return Widen(bits); }

  RESIDENT_HOST_DEVICE static float Widen(u16 bfloat) {
    return bit_cast<float>(static_cast<u32>(bfloat) << 16);
  }

  RESIDENT_HOST_DEVICE static u16 Narrow(float value) {
    const u32 wide = bit_cast<u32>(value);
    if ((wide & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>(wide >> 16 | 0x40u);
    return static_cast<u16>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
  }
};
static_assert(sizeof(BFloat16) == 2, "");

}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_HALF_H_
