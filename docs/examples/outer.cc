// A wide task, split over many blocks by rows.
//
// signature: x: in f32[R], y: in f32[C], out: out f32[R, C]
// split: out/1 16
// summary: out[r, c] = x[r] * y[c]
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(outer)(resident::Block& block, const resident::Args& args) {
  using resident::i64;
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<const float>(1);
  auto out = args.tensor<float>(2);
  // The rows of this chunk; other chunks process the other rows, possibly at the same time.
  const resident::Range rows = block.share(out.shape(0));
  for (i64 row = rows.begin; row < rows.end; ++row) {
    block.for_each({0, out.shape(1)}, [&](i64 c) { out.at(row, c) = x[row] * y[c]; });
  }
}
