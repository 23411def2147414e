// Atomics: several chunks may add to the same row concurrently.
//
// signature: dst: inout f32[V, D], index: in i64[N], src: in f32[N, D]
// split: index 64
// summary: dst[index[n], :] += src[n, :]; repeated indices add up
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(add_rows)(resident::Block& block, const resident::Args& args) {
  using resident::i64;
  auto dst = args.tensor<float>(0);
  auto index = args.tensor<const i64>(1);
  auto src = args.tensor<const float>(2);
  const i64 columns = dst.shape(1);
  const resident::Range rows = block.share(index.size());
  for (i64 n = rows.begin; n < rows.end; ++n) {
    const i64 row = index[n];
    if (row < 0 || row >= dst.shape(0)) {
      block.fail(resident::CompletionStatus::kInvalidArgument, /*detail=*/1);
      return;  // Every thread has the same row: all of them return.
    }
    for (i64 c = block.thread(); c < columns; c += block.threads()) {
      resident::atomic_add(&dst[row * columns + c], src[n * columns + c]);
    }
  }
}
