// softmax and log_softmax of rows that the whole block has together, from a RowStream
// (row_stream.h). normalization.cc has other rows.
//
// Each warp computes its largest value, and the exponentials relative to that; what the warps know
// is combined with one barrier.
#ifndef RESIDENT_KERNELS_OPS_SOFTMAX_STREAM_H_
#define RESIDENT_KERNELS_OPS_SOFTMAX_STREAM_H_

#include "kernels/ops/row_stream.h"
#include "kernels/ops/rows.h"

namespace resident {

// What exponentials are relative to: not -infinity, so that those of -infinity are 0.
RESIDENT_DEVICE float BaseOf(float largest) {
  return largest == -math::infinity() ? 0.0f : largest;
}

// Of some of a row's columns: the largest value, and the sum of exp(value - BaseOf(largest)).
struct SoftmaxSum {
  float largest;
  float sum;
};

#if RESIDENT_WARPS

// exp(x) for x <= kFarAbove and NaN. The relative error is at most about 2^-22 + |x| * 2^-24: an
// exponential whose error is larger is small itself. For 16-bit elements, results below the normal
// numbers of float32 are 0.
template <typename T>
RESIDENT_DEVICE float ExpOf(float x) {
#if RESIDENT_GPU
  float power;
  if constexpr (sizeof(T) == 4) {
    asm("ex2.approx.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  } else {
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 1.44269504f));
  }
  return power;
#else
  return math::exp(x);
#endif
}

// (collective) Returns that of the row. `mine`: of the calling thread's warp.
template <typename T>
RESIDENT_DEVICE SoftmaxSum SumOfWarps(const Block& block, WarpResults<SoftmaxSum>& results,
                                      const SoftmaxSum& mine) {
  constexpr u32 kLanes = WarpResults<SoftmaxSum>::kLanes;
  const SoftmaxSum warp = results.Exchange(block, mine, {-math::infinity(), 0.0f});
  SoftmaxSum all;
  all.largest = LargestOfLanes<kLanes>(warp.largest);
  const float share = warp.sum * ExpOf<T>(warp.largest - BaseOf(all.largest));
  all.sum = SumOfLanes<kLanes>(share);
  return all;
}

// Rows of one segment.
template <typename T, bool kLog>
RESIDENT_NOINLINE void SoftmaxOfShortRows(Block block, u64 x, u64 out, i64 rows, u32 columns) {
  const RowPart part(block, rows, columns * static_cast<u32>(sizeof(T)));
  RowStream<1, 1> stream(block, part, {x});
  WarpResults<SoftmaxSum> results(block, part);
  const u32 none = WordOf<T>(-math::infinity());
  u64 row = part.FirstRow(out);
  RESIDENT_UNROLL(1)
  for (u32 step = 0; step < part.steps; ++step, row += part.step_bytes) {
    const u32 first = part.FirstOfStep(step);
    Bytes16 chunks[kThreadChunks];
    float v[kThreadElements<T>];
    stream.Take(chunks, first, none);
    Unpack<T>(chunks, v);
    SoftmaxSum warp;
    warp.largest = LargestOfLanes(LargestOfValues(v));
    const float base = BaseOf(warp.largest);
    for (float& value : v) value = ExpOf<T>(value - base);
    warp.sum = SumOfLanes(SumOfValues(v));
    const SoftmaxSum all = SumOfWarps<T>(block, results, warp);
    if constexpr (kLog) {
      const float log_sum = math::log(all.sum);
      Unpack<T>(chunks, v);
      for (float& value : v) value = value - all.largest - log_sum;
    } else {
      // A row of only -infinity: 0 / 0.
      const float scale = ExpOf<T>(warp.largest - BaseOf(all.largest)) / all.sum;
      for (float& value : v) value *= scale;
    }
    StoreSegment<T>(part, row, first, v);
  }
}

// How far a value may be above what exponentials are relative to.
constexpr float kFarAbove = 8.0f;

// Adds the exponentials of values, which it changes, to a sum. The sum is relative to about the
// largest value, and what it is relative to changes only if a value is far above that: the errors
// of many small changes could add up.
template <typename T>
RESIDENT_DEVICE void AddExponentials(float (&v)[kThreadElements<T>], float& largest, double& sum) {
  const float here = LargestOfValues(v);
  if (!(here <= largest + kFarAbove)) {  // Also if it is NaN.
    const float larger = LargerOf(largest, here);
    sum *= static_cast<double>(ExpOf<T>(largest - BaseOf(larger)));
    largest = larger;
  }
  const float base = BaseOf(largest);
  for (float& value : v) value = ExpOf<T>(value - base);
  sum += static_cast<double>(SumOfValues(v));
}

// Rows of several segments, in two passes.
template <typename T>
RESIDENT_NOINLINE void SoftmaxOfLongRows(Block block, u64 x, u64 out, i64 rows, u32 columns,
                                         bool log) {
  const RowPart part(block, rows, columns * static_cast<u32>(sizeof(T)));
  RowStream<1, 2> stream(block, part, {x});
  WarpResults<SoftmaxSum> results(block, part);
  const u32 none = WordOf<T>(-math::infinity());
  const u32 step = part.SegmentBytes();
  const u32 last = part.own + (part.row_bytes - 1) / step * step;
  Bytes16 chunks[kThreadChunks];
  float v[kThreadElements<T>];
  u64 to = part.FirstRow(out);
  RESIDENT_UNROLL(1)
  for (u32 left = part.steps; left > 0; --left, to += part.step_bytes) {
    // Of the thread's columns.
    float largest = -math::infinity();
    double sum = 0;
    RESIDENT_UNROLL(1)
    for (u32 first = part.own; first <= last; first += step) {
      stream.Take(chunks, first, none);
      Unpack<T>(chunks, v);
      AddExponentials<T>(v, largest, sum);
    }
    SoftmaxSum warp;
    warp.largest = LargestOfLanes(largest);
    const float share = static_cast<float>(sum) * ExpOf<T>(largest - BaseOf(warp.largest));
    warp.sum = SumOfLanes(share);
    const SoftmaxSum all = SumOfWarps<T>(block, results, warp);
    const float log_sum = math::log(all.sum);
    // A row of only -infinity: infinity, for exponentials that are 0.
    const float scale = 1.0f / all.sum;
    const float base = BaseOf(all.largest);
    // First the last segment, which is still in registers.
    u32 first = last;
    u32 next = part.own;
    RESIDENT_UNROLL(1)
    while (true) {
      Unpack<T>(chunks, v);
      if (log) {
        for (float& value : v) value = value - all.largest - log_sum;
      } else {
        for (float& value : v) value = ExpOf<T>(value - base) * scale;
      }
      StoreSegment<T>(part, to, first, v);
      if (next == last) break;
      first = next;
      next += step;
      stream.Take(chunks, first, none);
    }
  }
}

#endif  // RESIDENT_WARPS

// False: the tensors are of another form.
RESIDENT_DEVICE bool SoftmaxInStream([[maybe_unused]] const Block& block,
                                     [[maybe_unused]] const Args& args, [[maybe_unused]] bool log) {
#if RESIDENT_WARPS
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(1);
  if (!CanStreamRows(block, x, out)) return false;
  const u32 columns = static_cast<u32>(x.shape(x.rank() - 1));
  const i64 rows = Quotient(x.size(), columns);
  VisitFloat(x.dtype(), [&](auto element) {
    using T = decltype(element);
    if (columns <= kThreadElements<T> * block.threads()) {
      if (log) {
        SoftmaxOfShortRows<T, true>(block, AddressOf(x), AddressOf(out), rows, columns);
      } else {
        SoftmaxOfShortRows<T, false>(block, AddressOf(x), AddressOf(out), rows, columns);
      }
    } else {
      SoftmaxOfLongRows<T>(block, AddressOf(x), AddressOf(out), rows, columns, log);
    }
  });
  return true;
#else
  return false;
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_SOFTMAX_STREAM_H_
