// Memory that the chunks of a task share: the last chunk to arrive adds what all of them have
// computed, always in the same order.
//
// signature: x: in f32[N], y: in f32[N], out: out f32[1]
// split: x 65536 256
// summary: out[0] = sum of x[i] * y[i]
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(dot)(resident::Block& block, const resident::Args& args) {
  using resident::i64;
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<const float>(1);
  auto out = args.tensor<float>(2);
  const resident::u32 chunks = static_cast<resident::u32>(block.chunk_count());
  // At most 256: the split rule's limit. Null: the first chunk does all the work.
  double* const sums = block.task_memory<double>(0, chunks);
  if (sums == nullptr && block.chunk() != 0) return;
  const resident::Range own =
      sums != nullptr ? block.share(x.size()) : resident::Range{0, x.size()};
  double sum = 0;
  RESIDENT_UNROLL(1)
  for (i64 i = own.begin + block.thread(); i < own.end; i += block.threads()) {
    sum += double{x[i]} * y[i];
  }
  sum = block.reduce_sum(sum);
  if (sums != nullptr) {
    if (block.thread() == 0) sums[block.chunk()] = sum;
    if (!block.arrive()) return;  // All threads of a block get the same answer.
    sum = 0;
    for (resident::u32 c = 0; c < chunks; ++c) sum += sums[c];
  }
  if (block.thread() == 0) out[0] = static_cast<float>(sum);
}
