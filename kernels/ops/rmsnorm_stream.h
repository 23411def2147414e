// rmsnorm and rmsnorm_residual of rows that the whole block has together, from a RowStream
// (row_stream.h). normalization.cc has other rows.
#ifndef RESIDENT_KERNELS_OPS_RMSNORM_STREAM_H_
#define RESIDENT_KERNELS_OPS_RMSNORM_STREAM_H_

#include "kernels/ops/row_stream.h"
#include "kernels/ops/rows.h"

namespace resident {

#if RESIDENT_WARPS

// The addresses of the tensors of rmsnorm, or, with kSources == 2, rmsnorm_residual.
template <u32 kSources>
struct RmsAddresses {
  u64 sources[kSources];
  u64 w;
  u64 out;
  u64 h;
};

// The sum of the sources' next segments.
template <typename T, u32 kSources, u32 kPasses>
RESIDENT_DEVICE void TakeSum(RowStream<kSources, kPasses>& stream, u32 first,
                             float (&v)[kThreadElements<T>]) {
  Bytes16 chunks[kThreadChunks];
  stream.Take(chunks, first, 0);
  Unpack<T>(chunks, v);
  if constexpr (kSources == 2) {
    float other[kThreadElements<T>];
    stream.Take(chunks, first, 0);
    Unpack<T>(chunks, other);
    for (u32 i = 0; i < kThreadElements<T>; ++i) v[i] += other[i];
  }
}

RESIDENT_DEVICE void LoadWeights(const RowPart& part, u64 w, u32 first,
                                 Bytes16 (&weights)[kThreadChunks]) {
  for (Bytes16& chunk : weights) chunk = {};
  part.ForEachChunk(first, [&](u32 c, u32 offset) {
    weights[c] = *reinterpret_cast<const Bytes16*>(w + offset);
  });
}

template <u32 kCount>
RESIDENT_DEVICE float SumOfSquares(const float (&v)[kCount]) {
  float squares[kCount];
  for (u32 i = 0; i < kCount; ++i) squares[i] = v[i] * v[i];
  return SumOfValues(squares);
}

// (collective) The factor of a row. `share`: the sum of the calling thread's squares, divided by
// the number of columns, because the sum of all of them may be out of range.
RESIDENT_DEVICE float RmsScaleOfWarps(const Block& block, WarpResults<float>& results, float share,
                                      float eps) {
  const float warp = results.Exchange(block, SumOfLanes(share), 0.0f);
  const float mean = SumOfLanes<WarpResults<float>::kLanes>(warp);
  return math::rsqrt(mean + eps);
}

template <typename T>
RESIDENT_DEVICE void StoreScaledSegment(const RowPart& part, u64 row, u32 first,
                                        float (&v)[kThreadElements<T>], float scale,
                                        const Bytes16 (&weights)[kThreadChunks]) {
  float w[kThreadElements<T>];
  Unpack<T>(weights, w);
  for (u32 i = 0; i < kThreadElements<T>; ++i) v[i] = v[i] * scale * w[i];
  StoreSegment<T>(part, row, first, v);
}

// Rows of one segment, whose weights stay in registers.
template <typename T, u32 kSources>
RESIDENT_NOINLINE void RmsNormOfShortRows(Block block, const RmsAddresses<kSources>& addresses,
                                          i64 rows, u32 columns, float eps) {
  const float per_column = 1.0f / static_cast<float>(columns);
  const RowPart part(block, rows, columns * static_cast<u32>(sizeof(T)));
  // Before the copies, which take longer.
  Bytes16 weights[kThreadChunks];
  LoadWeights(part, addresses.w, part.own, weights);
  RowStream<kSources, 1> stream(block, part, addresses.sources);
  WarpResults<float> results(block, part);
  const u64 h_to_out = addresses.out - addresses.h;
  u64 h = part.FirstRow(addresses.h);
  RESIDENT_UNROLL(1)
  for (u32 step = 0; step < part.steps; ++step, h += part.step_bytes) {
    const u32 first = part.FirstOfStep(step);
    float v[kThreadElements<T>];
    TakeSum<T>(stream, first, v);
    if constexpr (kSources == 2) StoreSegment<T>(part, h, first, v);
    const float scale = RmsScaleOfWarps(block, results, SumOfSquares(v) * per_column, eps);
    StoreScaledSegment<T>(part, h + h_to_out, first, v, scale, weights);
  }
}

// Rows of several segments, in two passes.
template <typename T, u32 kSources>
RESIDENT_NOINLINE void RmsNormOfLongRows(Block block, const RmsAddresses<kSources>& addresses,
                                         i64 rows, u32 columns, float eps) {
  const double per_column = 1 / static_cast<double>(columns);
  const RowPart part(block, rows, columns * static_cast<u32>(sizeof(T)));
  RowStream<kSources, 2> stream(block, part, addresses.sources);
  WarpResults<float> results(block, part);
  const u64 h_to_out = addresses.out - addresses.h;
  const u64 w = addresses.w;
  const u32 step = part.SegmentBytes();
  const u32 last = part.own + (part.row_bytes - 1) / step * step;
  float v[kThreadElements<T>];
  Bytes16 weights[kThreadChunks];
  u64 h = part.FirstRow(addresses.h);
  RESIDENT_UNROLL(1)
  for (u32 left = part.steps; left > 0; --left, h += part.step_bytes) {
    double squares = 0;
    RESIDENT_UNROLL(1)
    for (u32 first = part.own; first <= last; first += step) {
      TakeSum<T>(stream, first, v);
      if constexpr (kSources == 2) StoreSegment<T>(part, h, first, v);
      squares += static_cast<double>(SumOfSquares(v));
    }
    LoadWeights(part, w, last, weights);
    const float scale =
        RmsScaleOfWarps(block, results, static_cast<float>(squares * per_column), eps);
    // First the last segment, which is still in registers.
    u32 first = last;
    u32 next = part.own;
    RESIDENT_UNROLL(1)
    while (true) {
      StoreScaledSegment<T>(part, h + h_to_out, first, v, scale, weights);
      if (next == last) break;
      first = next;
      next += step;
      LoadWeights(part, w, first, weights);
      TakeSum<T>(stream, first, v);
    }
  }
}

template <u32 kSources>
RESIDENT_DEVICE void RmsNormOfRows(const Block& block, const Tensor<const Any>& x,
                                   const RmsAddresses<kSources>& addresses, float eps) {
  const u32 columns = static_cast<u32>(x.shape(x.rank() - 1));
  const i64 rows = Quotient(x.size(), columns);
  VisitFloat(x.dtype(), [&](auto element) {
    using T = decltype(element);
    if (columns <= kThreadElements<T> * block.threads()) {
      RmsNormOfShortRows<T>(block, addresses, rows, columns, eps);
    } else {
      RmsNormOfLongRows<T>(block, addresses, rows, columns, eps);
    }
  });
}

#endif  // RESIDENT_WARPS

// False: the tensors are of another form.
RESIDENT_DEVICE bool RmsNormInStream([[maybe_unused]] const Block& block,
                                     [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> w = args.tensor<const Any>(1);
  const Tensor<const Any> out = args.tensor<const Any>(2);
  if (!CanStreamRows(block, x, w, out)) return false;
  const u64 to = AddressOf(out);
  RmsNormOfRows<1>(block, x, {{AddressOf(x)}, AddressOf(w), to, to}, args.scalar<float>(3));
  return true;
#else
  return false;
#endif
}

RESIDENT_DEVICE bool RmsNormResidualInStream([[maybe_unused]] const Block& block,
                                             [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> r = args.tensor<const Any>(1);
  const Tensor<const Any> w = args.tensor<const Any>(2);
  const Tensor<const Any> out = args.tensor<const Any>(3);
  const Tensor<const Any> h = args.tensor<const Any>(4);
  if (!CanStreamRows(block, x, r, w, out, h)) return false;
  const RmsAddresses<2> addresses = {
      {AddressOf(x), AddressOf(r)}, AddressOf(w), AddressOf(out), AddressOf(h)};
  RmsNormOfRows<2>(block, x, addresses, args.scalar<float>(5));
  return true;
#else
  return false;
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_RMSNORM_STREAM_H_
