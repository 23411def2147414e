// An optional tensor: it is sent without elements if it is absent.
//
// signature: x: in f32[R, C], w: in f32[C], b: in f32[B], out: out f32[R, C],
//   eps: scalar f32 = 1e-5
// split: x/1 1
// summary: out[r, :] = (x[r, :] - mean) / sqrt(variance + eps) * w + b
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(normalize_rows)(resident::Block& block, const resident::Args& args) {
  using resident::i64;
  auto x = args.tensor<const float>(0);
  auto w = args.tensor<const float>(1);
  auto b = args.tensor<const float>(2);
  auto out = args.tensor<float>(3);
  const float eps = args.scalar<float>(4);
  const i64 columns = x.shape(1);
  if (b.size() != 0 && b.size() != columns) {
    block.fail(resident::CompletionStatus::kInvalidArgument, /*detail=*/2);
    return;
  }
  const resident::Range rows = block.share(x.shape(0));
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const i64 first = row * columns;
    float sum = 0;
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < columns; c += block.threads()) sum += x[first + c];
    const float mean = block.reduce_sum(sum) / static_cast<float>(columns);
    float squares = 0;
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < columns; c += block.threads()) {
      const float d = x[first + c] - mean;
      squares += d * d;
    }
    const float variance = block.reduce_sum(squares) / static_cast<float>(columns);
    const float scale = resident::math::rsqrt(variance + eps);
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < columns; c += block.threads()) {
      const float y = (x[first + c] - mean) * scale * w[c];
      out[first + c] = b.size() != 0 ? y + b[c] : y;
    }
  }
}
