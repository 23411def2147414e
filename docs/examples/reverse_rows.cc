// Scratch memory: a row is copied before any of it is overwritten.
//
// signature: x: inout f32[R, C]
// split: x/1 1
// summary: reverses each row in place
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(reverse_rows)(resident::Block& block, const resident::Args& args) {
  using resident::i64;
  auto x = args.tensor<float>(0);
  const i64 columns = x.shape(1);
  if (columns > static_cast<i64>(resident::kScratchBytes / sizeof(float))) {
    block.fail(resident::CompletionStatus::kInvalidArgument, /*detail=*/1);
    return;  // Every thread returns: none waits at a barrier.
  }
  float* const copy = block.scratch<float>(0, columns);
  const resident::Range rows = block.share(x.shape(0));
  for (i64 row = rows.begin; row < rows.end; ++row) {
    block.for_each({0, columns}, [&](i64 c) { copy[c] = x.at(row, c); });
    block.barrier();  // The whole row has been copied.
    block.for_each({0, columns}, [&](i64 c) { x.at(row, c) = copy[columns - 1 - c]; });
    block.barrier();  // The copy has been read and may be overwritten with the next row.
  }
}
