// What the operator linear does with the sums of a product: out = activation(sum + bias) +
// residual.
#ifndef RESIDENT_KERNELS_OPS_LINEAR_EPILOGUE_H_
#define RESIDENT_KERNELS_OPS_LINEAR_EPILOGUE_H_

#include "kernels/ops/activation.h"
#include "kernels/ops/numbers.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/math.h"
#include "kernels/sdk/operator.h"

namespace resident {

// The arguments of linear: x, w, bias, residual, out, activation.
inline constexpr u32 kLinearResidual = 3;
inline constexpr u32 kLinearOut = 4;
inline constexpr u32 kLinearActivation = 5;

RESIDENT_DEVICE Activation ReadActivation(const Args& args) {
  return static_cast<Activation>(args.scalar<i64>(kLinearActivation));
}

// The elements from a vector of x to the next one. False: there is no such number, or the elements
// of a vector are not adjacent.
RESIDENT_DEVICE bool FindVectorStep(const TensorArgument& x, i64* step) {
  const u32 last = x.rank - 1u;
  if (x.shape[last] > 1 && x.strides[last] != 1) return false;
  *step = x.shape[last];
  i64 count = 1;
  RESIDENT_UNROLL(1)
  for (u32 d = last; d-- > 0;) {
    if (x.shape[d] == 1) continue;
    if (count == 1) *step = x.strides[d];
    if (x.strides[d] != *step * count) return false;
    count *= x.shape[d];
  }
  return true;
}

struct Epilogue {
  Activation activation = Activation::kNone;
  DType residual_dtype = DType::kF32;
  u64 residual = 0;  // Address, of one element for each result; 0: none.
};

// Those that take many instructions.
RESIDENT_NOINLINE float ActivateByFunction(Activation activation, float x) {
  switch (activation) {
    case Activation::kGelu:
      return math::gelu(x);
    case Activation::kGeluTanh:
      return math::gelu_tanh(x);
    case Activation::kSilu:
      return math::silu(x);
    case Activation::kSigmoid:
      return math::sigmoid(x);
    case Activation::kTanh:
      return math::tanh(x);
    default:
      return x;
  }
}

RESIDENT_DEVICE float Activate(Activation activation, float x) {
  if (activation == Activation::kNone) return x;
  if (activation == Activation::kRelu) return math::relu(x);
  return ActivateByFunction(activation, x);
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_LINEAR_EPILOGUE_H_
