// An elementwise operator.
//
// signature: x: in f32[*S], y: in f32[*S], out: out f32[*S],
//   margin: scalar f32 = 1
// split: out 32768
// summary: out = max(0, margin - x * y)
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(hinge)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<const float>(1);
  auto out = args.tensor<float>(2);
  const float margin = args.scalar<float>(3);
  block.for_each(block.share(out.size()),
                 [&](resident::i64 i) { out[i] = resident::math::relu(margin - x[i] * y[i]); });
}
