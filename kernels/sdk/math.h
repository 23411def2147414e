// math: the element-wise functions, in float32, the same for GPU and CPU.
//
//   out[i] = resident::math::gelu(x[i]) * resident::math::sigmoid(y[i]);
//
// They behave like PyTorch's functions of the same names: a NaN input gives NaN, also for
// minimum, maximum, clamp and relu; silu(-infinity) is -0; division by zero is infinity or
// NaN. The error is some units in the last place.
//
// Expressions (runtime/compile/expression) call these by their names.
#ifndef RESIDENT_KERNELS_SDK_MATH_H_
#define RESIDENT_KERNELS_SDK_MATH_H_

#include "kernels/layout/platform.h"
#include "kernels/sdk/half.h"

// The functions of C's library, which compilers provide without a header.
#if RESIDENT_GPU
#define RESIDENT_C_FUNCTION(name) ::name
#else
#define RESIDENT_C_FUNCTION(name) __builtin_##name
#endif

namespace resident::math {

RESIDENT_HOST_DEVICE float infinity() { return bit_cast<float>(0x7f800000u); }
RESIDENT_HOST_DEVICE float nan() { return bit_cast<float>(0x7fc00000u); }

// --- Functions of C --------------------------------------------------------------

RESIDENT_DEVICE float abs(float x) { return RESIDENT_C_FUNCTION(fabsf)(x); }
RESIDENT_DEVICE float ceil(float x) { return RESIDENT_C_FUNCTION(ceilf)(x); }
RESIDENT_DEVICE float cos(float x) { return RESIDENT_C_FUNCTION(cosf)(x); }
RESIDENT_DEVICE float erf(float x) { return RESIDENT_C_FUNCTION(erff)(x); }
RESIDENT_DEVICE float exp(float x) { return RESIDENT_C_FUNCTION(expf)(x); }
RESIDENT_DEVICE float expm1(float x) { return RESIDENT_C_FUNCTION(expm1f)(x); }
RESIDENT_DEVICE float floor(float x) { return RESIDENT_C_FUNCTION(floorf)(x); }
RESIDENT_DEVICE float fma(float x, float y, float z) { return RESIDENT_C_FUNCTION(fmaf)(x, y, z); }
RESIDENT_DEVICE float log(float x) { return RESIDENT_C_FUNCTION(logf)(x); }
RESIDENT_DEVICE float log1p(float x) { return RESIDENT_C_FUNCTION(log1pf)(x); }
RESIDENT_DEVICE float pow(float x, float y) { return RESIDENT_C_FUNCTION(powf)(x, y); }
// To the nearest integer, ties to even.
RESIDENT_DEVICE float round(float x) { return RESIDENT_C_FUNCTION(rintf)(x); }
RESIDENT_DEVICE float sin(float x) { return RESIDENT_C_FUNCTION(sinf)(x); }
RESIDENT_DEVICE float sqrt(float x) { return RESIDENT_C_FUNCTION(sqrtf)(x); }
RESIDENT_DEVICE float tanh(float x) { return RESIDENT_C_FUNCTION(tanhf)(x); }
RESIDENT_DEVICE float trunc(float x) { return RESIDENT_C_FUNCTION(truncf)(x); }

// --- Arithmetic ------------------------------------------------------------------

RESIDENT_DEVICE float neg(float x) { return -x; }
RESIDENT_DEVICE float rsqrt(float x) {
#if RESIDENT_GPU
  return ::rsqrtf(x);
#else
  return 1.0f / sqrt(x);
#endif
}
// If an argument is NaN, the result is the first NaN.
RESIDENT_DEVICE float maximum(float x, float y) { return x > y || x != x ? x : y; }
RESIDENT_DEVICE float minimum(float x, float y) { return x < y || x != x ? x : y; }
// Returns hi if lo > hi.
RESIDENT_DEVICE float clamp(float x, float lo, float hi) { return minimum(maximum(x, lo), hi); }
RESIDENT_DEVICE float select(bool condition, float x, float y) { return condition ? x : y; }

// --- Activations -----------------------------------------------------------------

RESIDENT_DEVICE float relu(float x) { return x < 0.0f ? 0.0f : x; }
RESIDENT_DEVICE float leaky_relu(float x, float slope = 0.01f) { return x > 0.0f ? x : slope * x; }
RESIDENT_DEVICE float hardtanh(float x, float lo = -1.0f, float hi = 1.0f) {
  return clamp(x, lo, hi);
}
RESIDENT_DEVICE float hardsigmoid(float x) { return clamp(x / 6.0f + 0.5f, 0.0f, 1.0f); }
RESIDENT_DEVICE float hardswish(float x) { return x * (clamp(x + 3.0f, 0.0f, 6.0f) / 6.0f); }
RESIDENT_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
// exp(-x) overflows to infinity for x below -88, and x / infinity is -0, which is correct for
// every finite x. -infinity / infinity would be NaN.
RESIDENT_DEVICE float silu(float x) { return x == -infinity() ? -0.0f : x / (1.0f + exp(-x)); }
RESIDENT_DEVICE float silu_mul(float gate, float up) { return silu(gate) * up; }
// erfc instead of 1 + erf keeps the precision for large negative x.
RESIDENT_DEVICE float gelu(float x) {
  return 0.5f * x * RESIDENT_C_FUNCTION(erfcf)(-0.70710678118654752f * x);
}
// x * (1 + tanh(u)) / 2 is x * sigmoid(2 u).
RESIDENT_DEVICE float gelu_tanh(float x) {
  const float twice_u = 1.5957691216057308f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp(-twice_u));
}
RESIDENT_DEVICE float elu(float x, float alpha = 1.0f, float scale = 1.0f,
                          float input_scale = 1.0f) {
  return x < 0.0f ? scale * (alpha * expm1(input_scale * x)) : scale * x;
}
// Returns x if beta * x is above the threshold.
RESIDENT_DEVICE float softplus(float x, float beta = 1.0f, float threshold = 20.0f) {
  return x * beta > threshold ? x : log1p(exp(x * beta)) / beta;
}

}  // namespace resident::math

#undef RESIDENT_C_FUNCTION

#endif  // RESIDENT_KERNELS_SDK_MATH_H_
