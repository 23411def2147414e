// The family "reduction".
#include "kernels/sdk/operator.h"

using resident::Args;
using resident::Block;
using resident::i64;

RESIDENT_OPERATOR(sum_rows)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  const i64 columns = x.shape(1);
  const resident::Range rows = block.share(out.size());
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const float* from = x.data() + row * columns;
    // Several partial sums make the additions independent. The error grows with the
    // logarithm of a row's length instead of its length.
    constexpr int kPartials = 8;
    float partial[kPartials] = {};
    const i64 step = i64{block.threads()} * kPartials;
    i64 base = 0;
    for (; base + step <= columns; base += step) {
      for (int p = 0; p < kPartials; ++p) {
        partial[p] += from[base + p * block.threads() + block.thread()];
      }
    }
    for (i64 i = base + block.thread(); i < columns; i += block.threads()) partial[0] += from[i];
    for (int width = kPartials / 2; width > 0; width /= 2) {
      for (int p = 0; p < width; ++p) partial[p] += partial[p + width];
    }
    const float sum = block.reduce_sum(partial[0]);
    if (block.thread() == 0) out[row] = sum;
  }
}
