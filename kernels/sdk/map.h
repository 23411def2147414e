// Map: out[i] = f(in[0][i], in[1][i] ...) for this chunk's share of dense float32 tensors
// of one size.
//
//   const float* in[] = {x.data(), y.data()};
//   Map<2>(block, out, in, [](const float* v) { return v[0] + v[1]; });
//
// For tensors of other types, strides and shapes, see elementwise.h.
#ifndef RESIDENT_KERNELS_SDK_MAP_H_
#define RESIDENT_KERNELS_SDK_MAP_H_

#include "kernels/sdk/block.h"

namespace resident {
RESIDENT_SDK_BEGIN

// Shares start at multiples of this number of elements: one 16-byte access of each thread of the
// largest block.
inline constexpr i64 kMapStep = i64{Block::kMaxThreads} * 4;

#if RESIDENT_GPU

// Elements of one 16-byte access of each thread of a warp.
inline constexpr i64 kWarpQuads = 32 * 4;

// A block's tile has kQuads such accesses of each of its warps. The accesses of a warp are
// adjacent, so their distance does not depend on the block's size.
template <i32 kQuads>
RESIDENT_DEVICE i64 TileSize(const Block& block) {
  return i64{4} * kQuads * block.threads();
}
// The calling thread's position in a tile.
template <i32 kQuads>
RESIDENT_DEVICE i64 PositionInTile(const Block& block) {
  return block.thread() / 32 * (kQuads * kWarpQuads) + block.thread() % 32 * 4;
}

// Maps the calling thread's part of a tile, starting at its position `at`. All loads are issued
// before the first use.
template <i32 kQuads, i32 kInputs, typename F>
RESIDENT_DEVICE void MapTile(float* out, const float* const* in, i64 at, F& f) {
  float4 loaded[kInputs + 1][kQuads];
#pragma unroll
  for (i32 q = 0; q < kQuads; ++q) {
#pragma unroll
    for (i32 p = 0; p < kInputs; ++p) {
      loaded[p][q] = reinterpret_cast<const float4*>(in[p] + at)[q * (kWarpQuads / 4)];
    }
  }
  __syncwarp();  // Issues all loads before the first use.
#pragma unroll
  for (i32 q = 0; q < kQuads; ++q) {
    float v[4][kInputs + 1];
#pragma unroll
    for (i32 p = 0; p < kInputs; ++p) {
      v[0][p] = loaded[p][q].x;
      v[1][p] = loaded[p][q].y;
      v[2][p] = loaded[p][q].z;
      v[3][p] = loaded[p][q].w;
    }
    *reinterpret_cast<float4*>(out + at + q * kWarpQuads) =
        make_float4(f(v[0]), f(v[1]), f(v[2]), f(v[3]));
  }
}

// Maps whole tiles of the range; returns where they end. REQUIRES: `out` and all of `in`
// are 16-byte aligned.
template <i32 kQuads, i32 kInputs, typename F>
RESIDENT_DEVICE i64 MapTiles(const Block& block, Range range, float* out, const float* const* in,
                             F& f) {
  const i64 mine = PositionInTile<kQuads>(block);
  const i64 tile = TileSize<kQuads>(block);
  for (; range.begin + tile <= range.end; range.begin += tile) {
    MapTile<kQuads, kInputs>(out, in, range.begin + mine, f);
  }
  return range.begin;
}

#endif

// The same for elements of a range. `kInFlight`: as for elementwise (elementwise.h).
template <i32 kInputs, i32 kInFlight, typename F>
RESIDENT_DEVICE void MapRange(const Block& block, Range range, float* out, const float* const* in,
                              F f) {
#if RESIDENT_GPU
  u64 addresses = reinterpret_cast<u64>(out);
#pragma unroll
  for (i32 p = 0; p < kInputs; ++p) addresses |= reinterpret_cast<u64>(in[p]);
  if (addresses % 16 == 0) {
    // A wide add needs four loads in flight to keep the memory busy (docs/benchmarks, "wide add").
    if constexpr (kInFlight > 1) {
      range.begin = MapTiles<kInFlight, kInputs>(block, range, out, in, f);
    }
    range.begin = MapTiles<1, kInputs>(block, range, out, in, f);
  }
#endif
  block.for_each(range, [&](i64 i) {
    float v[kInputs + 1];
    for (i32 p = 0; p < kInputs; ++p) v[p] = in[p][i];
    out[i] = f(v);
  });
}

template <i32 kInputs, i32 kInFlight = 4, typename F>
RESIDENT_DEVICE void Map(const Block& block, const Tensor<float>& out, const float* const* in,
                         F f) {
  MapRange<kInputs, kInFlight>(block, block.share(out.size(), kMapStep), out.data(), in, f);
}

RESIDENT_SDK_END
}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_MAP_H_
