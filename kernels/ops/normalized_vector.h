// The normalization of vectors in front of a product, in the general form of rmsnorm_gemv and its
// relatives: to the first half of the block's scratch memory.
#ifndef RESIDENT_KERNELS_OPS_NORMALIZED_VECTOR_H_
#define RESIDENT_KERNELS_OPS_NORMALIZED_VECTOR_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

namespace resident {

inline constexpr u64 kNormalizedBytes = kScratchBytes / 2;
inline constexpr i64 kMaxNormalized = static_cast<i64>(kNormalizedBytes / sizeof(float));

// Normalizes a vector of argument 0 with the weights of argument 1. Returns the address of the
// result, of float32, which all threads may read. `place`: how many such results are in front of
// it. REQUIRES: together they have at most kMaxNormalized elements.
RESIDENT_NOINLINE u64 NormalizeVector(Block block, Args args, i64 vector, float eps,
                                      i64 place = 0) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> norm = args.tensor<const Any>(1);
  const i64 depth = norm.shape(0);
  const float per_column = 1.0f / static_cast<float>(depth);
  float* const to = block.scratch<float>(static_cast<u64>(place * depth) * sizeof(float),
                                         static_cast<u64>(depth));
  // Few additions one after the other, also where the block has one thread.
  constexpr i32 kPartials = 16;
  float partial[kPartials] = {};
  VisitFloat(x.dtype(), [&](auto element) {
    const auto* const from = ElementAt<const decltype(element)>(AddressOf(x), vector * depth);
    const i64 threads = block.threads();
    const auto add = [&](i64 k, float& sum) {
      const float value = from[k];
      sum += value * value * per_column;
    };
    i64 k = block.thread();
    RESIDENT_UNROLL(1)
    for (; k + (kPartials - 1) * threads < depth; k += kPartials * threads) {
      for (i32 p = 0; p < kPartials; ++p) add(k + p * threads, partial[p]);
    }
    RESIDENT_UNROLL(1)
    for (; k < depth; k += threads) add(k, partial[0]);
  });
  for (i32 width = kPartials / 2; width > 0; width /= 2) {
    for (i32 p = 0; p < width; ++p) partial[p] += partial[p + width];
  }
  const float scale = 1.0f / math::sqrt(block.reduce_sum(partial[0]) + eps);
  VisitFloat(x.dtype(), [&](auto element) {
    const auto* const from = ElementAt<const decltype(element)>(AddressOf(x), vector * depth);
    block.for_each({0, depth}, [&](i64 k) { to[k] = from[k] * scale; });
  });
  // A thread has the same elements as before.
  VisitFloat(norm.dtype(), [&](auto element) {
    const auto* const weights = ElementAt<const decltype(element)>(AddressOf(norm), 0);
    block.for_each({0, depth}, [&](i64 k) { to[k] *= weights[k]; });
  });
  block.barrier();
  return reinterpret_cast<u64>(to);
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_NORMALIZED_VECTOR_H_
