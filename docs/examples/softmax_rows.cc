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
  const i64 columns = x.shape(1);
  const resident::Range rows = block.share(x.shape(0));
  for (i64 row = rows.begin; row < rows.end; ++row) {
    // Each thread reads some elements, then reduce_max returns the same value to all threads.
    float largest = -resident::math::infinity();
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < columns; c += block.threads()) {
      largest = resident::math::maximum(largest, x.at(row, c));
    }
    largest = block.reduce_max(largest);
    float sum = 0;
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < columns; c += block.threads()) {
      sum += resident::math::exp(x.at(row, c) - largest);
    }
    sum = block.reduce_sum(sum);
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < columns; c += block.threads()) {
      out.at(row, c) = resident::math::exp(x.at(row, c) - largest) / sum;
    }
  }
}
