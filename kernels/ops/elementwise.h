// Map: out[i] = f(in[0][i], in[1][i] ...) over dense float32 tensors of one size;
// this chunk's share of it.
//
//   const float* in[] = {x.data(), y.data()};
//   Map<2>(block, out, in, [](const float (&v)[2]) { return v[0] + v[1]; });
#ifndef RESIDENT_KERNELS_OPS_ELEMENTWISE_H_
#define RESIDENT_KERNELS_OPS_ELEMENTWISE_H_

#include "kernels/sdk/operator.h"

namespace resident {

// Elements that a share starts at a multiple of: one 16-byte access of each thread.
inline constexpr i64 kMapStep = i64{Block::kThreads} * 4;

#if RESIDENT_GPU

// A tile of kQuads 16-byte accesses of each thread: all loads before the first use.
template <int kQuads, int kInputs, typename F>
RESIDENT_DEVICE void MapTile(float* out, const float* const (&in)[kInputs], i64 at, F& f) {
  float4 loaded[kInputs][kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
#pragma unroll
    for (int p = 0; p < kInputs; ++p) {
      loaded[p][q] = reinterpret_cast<const float4*>(in[p] + at)[q * (kMapStep / 4)];
    }
  }
  __syncwarp();  // Nothing is used before all loads are on their way.
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    float v[4][kInputs];
#pragma unroll
    for (int p = 0; p < kInputs; ++p) {
      v[0][p] = loaded[p][q].x;
      v[1][p] = loaded[p][q].y;
      v[2][p] = loaded[p][q].z;
      v[3][p] = loaded[p][q].w;
    }
    *reinterpret_cast<float4*>(out + at + q * kMapStep) =
        make_float4(f(v[0]), f(v[1]), f(v[2]), f(v[3]));
  }
}

// Maps whole tiles of the range where every address is 16-byte aligned; returns where
// they end.
template <int kInputs, typename F>
RESIDENT_DEVICE i64 MapTiles(const Block& block, Range range, float* out,
                             const float* const (&in)[kInputs], F& f) {
  // A wide add needs this many loads in flight to keep the memory busy
  // (docs/benchmarks, "wide add").
  constexpr int kInFlight = 4;
  u64 addresses = reinterpret_cast<u64>(out);
#pragma unroll
  for (int p = 0; p < kInputs; ++p) addresses |= reinterpret_cast<u64>(in[p]);
  i64 done = range.begin;
  if ((addresses & 15) != 0) return done;
  const i64 mine = i64{4} * block.thread();
  for (; done + kInFlight * kMapStep <= range.end; done += kInFlight * kMapStep) {
    MapTile<kInFlight>(out, in, done + mine, f);
  }
  for (; done + kMapStep <= range.end; done += kMapStep) MapTile<1>(out, in, done + mine, f);
  return done;
}

#endif

template <int kInputs, typename F>
RESIDENT_DEVICE void Map(const Block& block, const Tensor<float>& out,
                         const float* const (&in)[kInputs], F f) {
  Range range = block.share(out.size(), kMapStep);
#if RESIDENT_GPU
  range.begin = MapTiles(block, range, out.data(), in, f);
#endif
  block.for_each(range, [&](i64 i) {
    float v[kInputs];
    for (int p = 0; p < kInputs; ++p) v[p] = in[p][i];
    out[i] = f(v);
  });
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_ELEMENTWISE_H_
