// A reduction of each row.
//
// signature: x: in f32[R, C], out: out f32[R, C]
// split: x/1 1
// summary: out[r, :] = softmax(x[r, :])
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(softmax_rows)(resident::Block& block, const resident::Args& args) {
  using resident::i64;
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  const resident::Range columns = {0, x.shape(1)};
  const resident::Range rows = block.share(x.shape(0));
  for (i64 row = rows.begin; row < rows.end; ++row) {
    // Each thread looks at some elements, then all threads agree on one value.
    float largest = -resident::math::infinity();
    block.for_each(columns,
                   [&](i64 c) { largest = resident::math::maximum(largest, x.at(row, c)); });
    largest = block.reduce_max(largest);
    float sum = 0;
    block.for_each(columns, [&](i64 c) { sum += resident::math::exp(x.at(row, c) - largest); });
    sum = block.reduce_sum(sum);
    block.for_each(columns, [&](i64 c) {
      out.at(row, c) = resident::math::exp(x.at(row, c) - largest) / sum;
    });
  }
}
