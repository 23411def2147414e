// An elementwise operator for every type and layout: f32, f16 and bf16 mixed, strided, inputs
// broadcast to the output.
//
// signature: x: in strided f32|f16|bf16[*S~], y: in strided f32|f16|bf16[*S~],
//   out: out strided f32|f16|bf16[*S], a: scalar f32
// split: out 8192
// summary: out = a * gelu(x) + y
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(scaled_gelu)(resident::Block& block, const resident::Args& args) {
  const float a = args.scalar<float>(3);
  resident::elementwise<2, 1>(
      block, args, [=](const float* v) { return a * resident::math::gelu(v[0]) + v[1]; });
}
