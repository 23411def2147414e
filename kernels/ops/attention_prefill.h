// This header computes attention of many rows of 16-bit elements, on tensor cores.
//
// A block computes 64 rows, 32 keys at a time. Half of its warps have 16 rows each: their queries
// are in registers, and the warp computes the scores of the keys, which become the weights. Another
// half of the warps have 32 rows and half of the columns each, and add the weighted values. Each
// fragment of keys or values that is loaded is thus used for several products. The weights go from
// the former to the latter by way of the block's memory, one tile of keys later:
//
//   scores     weights of tile i      |  store them        |  weights of tile i + 1  | ...
//   values     values of tile i - 1   |                    |  values of tile i       | ...
//   all                               |  start copies      |
//                                  barrier              barrier
//
// The copies that are started are those of the keys of tile i + 2 and of the values of tile i + 1,
// in place of those of the tiles i and i - 1.
//
// The weights are rounded to 16 bits, so that this is only for results of 16 bits. Results that are
// not finite must be computed again in another way: a hidden key has weight 0, and 0 times a value
// that is infinite or NaN is NaN.
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_PREFILL_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_PREFILL_H_

#include "kernels/ops/attention_task.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"

#if RESIDENT_WARPS

#if !RESIDENT_GPU
#include <atomic>

namespace resident::emulated {

// Tiles that PrefillTile has computed, for tests.
struct PrefillTiles {
  static inline std::atomic<u64> count = 0;
};

}  // namespace resident::emulated
#endif

namespace resident::attention {

inline constexpr i32 kPrefillKeys = 32;
inline constexpr i32 kPrefillDim = 128;  // Elements of queries and values, at most.
inline constexpr i32 kPrefillRows = 64;
inline constexpr u32 kPrefillThreads = 256;
inline constexpr i32 kScoreWarps = kPrefillRows / 16;

struct PrefillRows {
  i64 query[kPrefillRows];     // Offset in q, in bytes.
  i64 out[kPrefillRows];       // Offset in out, in elements.
  i32 limit[kPrefillRows];     // Keys from this one on are hidden.
  float growth[kPrefillRows];  // The factor of the totals before the values of a tile are added.
  float sum[kPrefillRows];     // Of the weights, at the end.
};

inline constexpr u32 kPrefillRowBytes = 2 * kPrefillDim;
inline constexpr u32 kPrefillTileBytes = kPrefillKeys * kPrefillRowBytes;
inline constexpr u32 kWeightRowBytes = 2 * kPrefillKeys;
// The block's memory: two tiles of keys, two of values, and the weights. At first the queries are
// in place of the keys.
inline constexpr u32 kPrefillRowsOffset = kTileRowsEnd;
inline constexpr u32 kPrefillTilesOffset = kPrefillRowsOffset + 1792;
inline constexpr u32 kPrefillWeightsOffset = kPrefillTilesOffset + 4 * kPrefillTileBytes;
inline constexpr u32 kPrefillEnd = kPrefillWeightsOffset + kPrefillRows * kWeightRowBytes;
static_assert(sizeof(PrefillRows) <= 1792 && kPrefillTilesOffset % 128 == 0, "");
static_assert(kPrefillRows * kPrefillRowBytes <= 2 * kPrefillTileBytes, "");
static_assert(kPrefillEnd <= kBlockMemoryBytes, "");

RESIDENT_DEVICE bool CanPrefill(const AttentionTask& task, u32 threads) {
  // Tensors of 16 bits, without a mask, of more rows than the tiles of attention_stream.h.
  if (threads != kPrefillThreads || !task.stream || task.q.dtype != task.k.dtype ||
      task.parts != 0 || task.mask.address != 0 || task.rows <= kMaxTileRows) {
    return false;
  }
  // The weighted values of all keys are added by tensor cores, which do not round to nearest.
  if (task.keys > (1 << 17)) return false;
  // The weights have the precision of k.
  if (task.out.dtype != DType::kBF16 &&
      (task.out.dtype != DType::kF16 || task.k.dtype != DType::kF16)) {
    return false;
  }
  u64 unaligned = task.q.address;
  RESIDENT_UNROLL(1)
  for (i32 d = 0; d < 3; ++d) unaligned |= static_cast<u64>(2 * task.q.strides[d]);
  return unaligned % kChunkBytes == 0 && task.q.strides[3] == 1 && task.depth % 16 == 0 &&
         task.columns % 16 == 0 && task.depth <= kPrefillDim && task.columns <= kPrefillDim;
}

// --- Copies -------------------------------------------------------------------------------------

// The address of the chunks of elements 16 i and on, if `at` is that of the first ones.
RESIDENT_DEVICE MemoryAddress StepAt(MemoryAddress at, u32 i) {
  return (at ^ (32 * (i % 4))) + 128 * (i / 4);
}

RESIDENT_DEVICE void StartPrefillRows(const Block& block, const AttentionTask& task,
                                      PrefillRows& rows, const TileOfPart& tile) {
  const i32 r = static_cast<i32>(block.thread());
  if (r >= kPrefillRows) return;
  const Query query = FindQuery(task, tile.kv_head, tile.first_row + r);
  const i64 visible = VisibleKeys(task, query);
  rows.limit[r] = r < tile.row_count && visible > 0 ? static_cast<i32>(visible) : 0;
  rows.query[r] = 2 * task.q.Offset(tile.batch, query.head, query.position);
  rows.out[r] = task.out.Offset(tile.batch, query.head, query.position);
}

// The copies of a thread: one chunk of every 16th row.
struct PrefillCopies {
  static constexpr i32 kRowStep = kPrefillThreads / 16;

  MemoryAddress tiles;
  u32 place;  // Of the thread's first chunk in a tile. The swizzle of its other rows is the same.
  i32 row;    // The thread's first one, counted from the key that the next copy begins with.
  i32 end;    // Of the keys.
  bool of_keys;  // Whether there are elements of keys, and of values, in the thread's chunk.
  bool of_values;
  u64 keys;  // The thread's chunk of the first row of the next copy.
  u64 values;
  i64 key_distance;  // Bytes from one of the thread's rows to its next one.
  i64 value_distance;

  RESIDENT_DEVICE PrefillCopies(const Block& block, const AttentionTask& task,
                                const TileOfPart& tile, MemoryAddress memory, i32 last)
      : tiles(memory), end(last) {
    const u32 chunk = block.thread() % 16;
    const u32 first = block.thread() / 16;
    place = first * kPrefillRowBytes + 16 * Swizzle<16>(first, chunk);
    row = static_cast<i32>(first);
    of_keys = static_cast<i32>(8 * chunk) < task.depth;
    of_values = static_cast<i32>(8 * chunk) < task.columns;
    keys = task.k.address +
           static_cast<u64>(2 * (task.k.Offset(tile.batch, tile.kv_head, first) + 8 * chunk));
    values = task.v.address +
             static_cast<u64>(2 * (task.v.Offset(tile.batch, tile.kv_head, first) + 8 * chunk));
    key_distance = 2 * kRowStep * task.k.strides[2];
    value_distance = 2 * kRowStep * task.v.strides[2];
  }

  RESIDENT_DEVICE void Queries(const Block& block, const AttentionTask& task,
                               const PrefillRows& rows, i64 row_count) const {
    if (of_keys) {
      const u32 chunk = block.thread() % 16;
      RESIDENT_UNROLL(1)
      for (i32 i = 0; i < kPrefillRows; i += kRowStep) {
        const bool there = row + i < row_count;
        CopyAsync(
            tiles + place + static_cast<u32>(i) * kPrefillRowBytes,
            task.q.address + (there ? static_cast<u64>(rows.query[row + i]) + u64{16 * chunk} : 0),
            there ? kChunkBytes : 0);
      }
    }
    CommitCopies();
  }

  // Tile `stage` of four: two of keys, then two of values.
  RESIDENT_DEVICE void CopyTile(u32 stage, bool exists, i32 first, u64& from, i64 distance) const {
    static_assert(kPrefillKeys == 2 * kRowStep, "");
    const MemoryAddress to = tiles + stage * kPrefillTileBytes + place;
    const i32 left = end - first - row;
    if (exists && end > first) {
      CopyAsync(to, from, left > 0 ? kChunkBytes : 0);
      CopyAsync(to + kRowStep * kPrefillRowBytes, from + static_cast<u64>(distance),
                left > kRowStep ? kChunkBytes : 0);
    }
    from += static_cast<u64>(2 * distance);
  }
  // The next tile of keys, which begins with key `first`.
  RESIDENT_DEVICE void Keys(i32 first) {
    CopyTile(static_cast<u32>(first / kPrefillKeys) % 2, of_keys, first, keys, key_distance);
  }
  RESIDENT_DEVICE void Values(i32 first) {
    CopyTile(2 + static_cast<u32>(first / kPrefillKeys) % 2, of_values, first, values,
             value_distance);
  }

  // Starts the first copies, when all warps have the queries in registers, and waits for the first
  // keys.
  RESIDENT_DEVICE void Start(const Block& block) {
    block.barrier();
    Keys(0);
    CommitCopies();
    Keys(kPrefillKeys);
    Values(0);
    CommitCopies();
    WaitForCopies<1>();
    block.barrier();
  }
  // Waits for the copies of the previous call, and starts the next ones (see above) for the tile
  // that begins with key `first`.
  RESIDENT_DEVICE void Advance(i32 first) {
    WaitForCopies<0>();
    Keys(first + 2 * kPrefillKeys);
    Values(first + kPrefillKeys);
    CommitCopies();
  }
};

// --- Scores -------------------------------------------------------------------------------------

inline constexpr i32 kScoreFragments = kPrefillKeys / 8;

// Rows g and g + 8 of a warp.
struct PrefillSums {
  float largest[2];
  float sum[2];
  float growth[2];  // In this tile.
};

// The products of the warp's rows with the keys of a tile.
template <typename T>
RESIDENT_DEVICE void MultiplyKeys(i32 depth, const LeftFragment (&queries)[kPrefillDim / 16],
                                  MemoryAddress key_at, Accumulator (&scores)[kScoreFragments]) {
  RESIDENT_UNROLL(8)
  for (u32 d = 0; d < kPrefillDim / 16; ++d) {
    if (16 * d >= static_cast<u32>(depth)) break;
    RESIDENT_UNROLL(2)
    for (u32 n = 0; n < kScoreFragments; n += 2) {
      RightFragment key[2];
      LoadRight(key[0], key[1], StepAt(key_at, d) + 8 * n * kPrefillRowBytes);
      MultiplyAdd<T>(scores[n], queries[d], key[0]);
      MultiplyAdd<T>(scores[n + 1], queries[d], key[1]);
    }
  }
}

// Hides keys from `limits` of the two rows on. `first_key`: of the lane.
RESIDENT_DEVICE void HideKeys(i32 first_key, const i32 (&limits)[2],
                              Accumulator (&scores)[kScoreFragments]) {
  RESIDENT_UNROLL(4)
  for (i32 n = 0; n < kScoreFragments; ++n) {
    RESIDENT_UNROLL(4)
    for (i32 i = 0; i < 4; ++i) {
      if (first_key + 8 * n + i % 2 >= limits[i / 2]) scores[n].v[i] = -math::infinity();
    }
  }
}

// Replaces scores by weights, whose sums it adds.
template <typename T>
RESIDENT_DEVICE void WeighScores(Accumulator (&scores)[kScoreFragments], PrefillSums& rows) {
  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    float top = LargerNumber(scores[0].v[2 * j], scores[0].v[2 * j + 1]);
    RESIDENT_UNROLL(4)
    for (i32 n = 1; n < kScoreFragments; ++n) {
      top = LargerNumber(top, LargerNumber(scores[n].v[2 * j], scores[n].v[2 * j + 1]));
    }
    top = LargerNumber(top, ShuffleXor(top, 1));
    top = LargerNumber(top, ShuffleXor(top, 2));
    top = LargerNumber(top, rows.largest[j]);
    const float base = BaseOf(top);
    rows.growth[j] = PowerOfTwo(rows.largest[j] - base);
    rows.largest[j] = top;
    float sum = rows.sum[j] * rows.growth[j];
    RESIDENT_UNROLL(4)
    for (i32 n = 0; n < kScoreFragments; ++n) {
      RESIDENT_UNROLL(2)
      for (i32 i = 2 * j; i < 2 * j + 2; ++i) {
        // The scale is part of both the sum and the totals.
        scores[n].v[i] = PowerOfTwo(scores[n].v[i] - base) * kWeightScale<T>;
        sum += scores[n].v[i];
      }
    }
    rows.sum[j] = sum;
  }
}

// What a warp that computes scores does. Rows: from 16 * group on.
template <typename T>
RESIDENT_DEVICE void ComputeScores(const Block& block, const AttentionTask& task, PrefillRows& rows,
                                   PrefillCopies& copies, i32 group, i32 row_count) {
  const u32 lane = LaneOf(block);
  const i32 g = static_cast<i32>(lane) / 4;
  const i32 t = static_cast<i32>(lane) % 4;
  const u32 query_row = 16 * static_cast<u32>(group) + LeftRow(lane);
  const MemoryAddress query_at =
      copies.tiles + query_row * kPrefillRowBytes + 16 * Swizzle<16>(query_row, LeftChunk(lane));
  LeftFragment queries[kPrefillDim / 16];
  RESIDENT_UNROLL(8)
  for (u32 d = 0; d < kPrefillDim / 16; ++d) {
    if (16 * d < static_cast<u32>(task.depth)) LoadLeft(queries[d], StepAt(query_at, d));
  }
  copies.Start(block);

  const MemoryAddress key_place =
      RightRow(lane) * kPrefillRowBytes + 16 * Swizzle<16>(RightRow(lane), RightChunk(lane));
  // The words of the lane's two rows for fragment n are at `weights_at` ^ 16 n.
  const i32 row = 16 * group + g;
  const MemoryAddress weights_at =
      copies.tiles + 4 * kPrefillTileBytes + static_cast<u32>(row) * kWeightRowBytes +
      16 * Swizzle<4>(static_cast<u32>(row), 0) + 4 * static_cast<u32>(t);
  const i32 limits[2] = {rows.limit[row], rows.limit[row + 8]};
  const i32 warp_rows = row_count - 16 * group;
  // Keys that all of the warp's rows see, and that any of them sees.
  const i32 visible_to_all = warp_rows >= 16 ? rows.limit[16 * group] : 0;
  const i32 visible =
      warp_rows <= 0 ? 0 : rows.limit[16 * group + (warp_rows < 16 ? warp_rows : 16) - 1];
  // The scores are multiplied by log2(e), so that weights are powers of two.
  const float scale = task.scale * kLog2OfE;
  PrefillSums sums = {{-math::infinity(), -math::infinity()}, {0.0f, 0.0f}, {1.0f, 1.0f}};
  const i32 depth = task.depth;
  RESIDENT_UNROLL(1)
  for (i32 first = 0; first < copies.end; first += kPrefillKeys) {
    Accumulator scores[kScoreFragments] = {};
    if (first < visible) {
      MultiplyKeys<T>(
          depth, queries,
          copies.tiles + static_cast<u32>(first / kPrefillKeys) % 2 * kPrefillTileBytes + key_place,
          scores);
      RESIDENT_UNROLL(4)
      for (i32 n = 0; n < kScoreFragments; ++n) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) scores[n].v[i] *= scale;
      }
      if (first + kPrefillKeys > visible_to_all) HideKeys(first + 2 * t, limits, scores);
      WeighScores<T>(scores, sums);
    } else {
      sums.growth[0] = sums.growth[1] = 1.0f;
    }
    block.barrier();  // The keys, and the weights and values of the previous tile, have been used.
    RESIDENT_UNROLL(4)
    for (u32 n = 0; n < kScoreFragments; ++n) {
      RESIDENT_UNROLL(2)
      for (u32 j = 0; j < 2; ++j) {
        *PointerInMemory<u32>((weights_at ^ (16 * n)) + 8 * j * kWeightRowBytes) =
            Pack<T>(scores[n].v[2 * j], scores[n].v[2 * j + 1]);
      }
    }
    if (t == 0) {
      rows.growth[row] = sums.growth[0];
      rows.growth[row + 8] = sums.growth[1];
    }
    copies.Advance(first);
    block.barrier();  // The weights are stored, and the next keys and this tile's values are there.
  }
  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    float sum = sums.sum[j];
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    if (t == 0) rows.sum[row + 8 * j] = sum;
  }
  block.barrier();  // The sums are stored.
}

// --- Values -------------------------------------------------------------------------------------

inline constexpr i32 kValueRowTiles = 2;  // Of 16 rows.
inline constexpr i32 kValueColumns = kPrefillDim / 2;

using PrefillTotals = Accumulator[kValueRowTiles][kValueColumns / 8];

// Adds the weighted values of a tile. `columns`: of the warp that exist. `growth`: of the lane's
// rows.
template <typename T>
RESIDENT_DEVICE void AddWeighted(i32 columns, const float* growth, MemoryAddress weights_at,
                                 MemoryAddress value_at, PrefillTotals& totals) {
  float factor[kValueRowTiles][2];
  bool grows = false;
  RESIDENT_UNROLL(2)
  for (i32 r = 0; r < kValueRowTiles; ++r) {
    RESIDENT_UNROLL(2)
    for (i32 j = 0; j < 2; ++j) {
      factor[r][j] = growth[16 * r + 8 * j];
      grows |= factor[r][j] != 1.0f;
    }
  }
  if (AnyLane(grows)) {
    RESIDENT_UNROLL(2)
    for (i32 r = 0; r < kValueRowTiles; ++r) {
      RESIDENT_UNROLL(8)
      for (i32 n = 0; n < kValueColumns / 8; ++n) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) totals[r][n].v[i] *= factor[r][i / 2];
      }
    }
  }
  RESIDENT_UNROLL(2)
  for (u32 step = 0; step < kPrefillKeys / 16; ++step) {
    LeftFragment weights[kValueRowTiles];
    RESIDENT_UNROLL(2)
    for (u32 r = 0; r < kValueRowTiles; ++r) {
      LoadLeft(weights[r], (weights_at ^ (32 * step)) + 16 * r * kWeightRowBytes);
    }
    RESIDENT_UNROLL(4)
    for (u32 e = 0; e < kValueColumns / 16; ++e) {
      if (16 * static_cast<i32>(e) >= columns) continue;
      RightFragment value[2];
      LoadRightTransposed(value[0], value[1], (value_at ^ (32 * e)) + 16 * step * kPrefillRowBytes);
      RESIDENT_UNROLL(2)
      for (u32 r = 0; r < kValueRowTiles; ++r) {
        MultiplyAdd<T>(totals[r][2 * e], weights[r], value[0]);
        MultiplyAdd<T>(totals[r][2 * e + 1], weights[r], value[1]);
      }
    }
  }
}

// Writes two adjacent elements of out, whose numbers are the offset and the next one. The first
// column is even.
template <typename T>
RESIDENT_DEVICE void StorePair(const AttentionTask& task, i64 offset, float low, float high) {
  const i64 stride = task.out.strides[3];
  T* const to = ElementAt<T>(task.out.address, offset);
  if (stride == 1 && reinterpret_cast<u64>(to) % sizeof(u32) == 0) {
    *reinterpret_cast<u32*>(to) = Pack<T>(low, high);
  } else {
    to[0] = T(low);
    to[stride] = T(high);
  }
}

// Writes the totals of the warp's rows and columns, divided by the sums of the weights. Returns 1
// if a result is not finite.
RESIDENT_DEVICE u32 StoreTotals(const Block& block, const AttentionTask& task,
                                const PrefillRows& rows, i32 first_row, i32 first_column,
                                i32 row_count, const PrefillTotals& totals) {
  const i32 g = static_cast<i32>(LaneOf(block)) / 4;
  const i32 t = static_cast<i32>(LaneOf(block)) % 4;
  const i32 columns = task.columns - first_column;
  const i64 stride = task.out.strides[3];
  u32 not_finite = 0;
  RESIDENT_UNROLL(2)
  for (i32 r = 0; r < kValueRowTiles; ++r) {
    RESIDENT_UNROLL(2)
    for (i32 j = 0; j < 2; ++j) {
      const i32 row = first_row + 16 * r + 8 * j + g;
      if (row >= row_count) continue;
      const float sum = rows.sum[row];
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      // Scores near the lowest number are not finite when they have been multiplied by log2(e).
      if (sum == 0.0f && rows.limit[row] > 0) not_finite = 1;
      const i64 out = rows.out[row] + (first_column + 2 * t) * stride;
      RESIDENT_UNROLL(8)
      for (i32 n = 0; n < kValueColumns / 8; ++n) {
        if (8 * n >= columns) continue;
        float value[2];
        RESIDENT_UNROLL(2)
        for (i32 i = 0; i < 2; ++i) {
          value[i] = sum == 0.0f ? 0.0f : totals[r][n].v[2 * j + i] * inverse;
          if (value[i] - value[i] != 0.0f) not_finite = 1;
        }
        if (task.out.dtype == DType::kF16) {
          StorePair<Half>(task, out + 8 * n * stride, value[0], value[1]);
        } else {
          StorePair<BFloat16>(task, out + 8 * n * stride, value[0], value[1]);
        }
      }
    }
  }
  return not_finite;
}

// What a warp that adds values does. Rows: from first_row on, columns: from first_column on.
// Returns 1 if a result is not finite.
template <typename T>
RESIDENT_DEVICE u32 ComputeTotals(const Block& block, const AttentionTask& task,
                                  const PrefillRows& rows, PrefillCopies& copies, i32 first_row,
                                  i32 first_column, i32 row_count) {
  const u32 lane = LaneOf(block);
  const i32 g = static_cast<i32>(lane) / 4;
  copies.Start(block);

  const u32 weight_row = static_cast<u32>(first_row) + LeftRow(lane);
  const MemoryAddress weights_at = copies.tiles + 4 * kPrefillTileBytes +
                                   weight_row * kWeightRowBytes +
                                   16 * Swizzle<4>(weight_row, LeftChunk(lane));
  const MemoryAddress values_at =
      copies.tiles + 2 * kPrefillTileBytes + RightTransposedRow(lane) * kPrefillRowBytes +
      16 * Swizzle<16>(RightTransposedRow(lane),
                       static_cast<u32>(first_column) / 8 + RightTransposedChunk(lane));
  const float* const growth = rows.growth + first_row + g;
  const i32 columns = task.columns - first_column;
  PrefillTotals totals = {};
  RESIDENT_UNROLL(1)
  for (i32 first = 0; first < copies.end; first += kPrefillKeys) {
    // The previous tile.
    if (first > 0) {
      const u32 stage = static_cast<u32>(first / kPrefillKeys - 1) % 2;
      AddWeighted<T>(columns, growth, weights_at, values_at + stage * kPrefillTileBytes, totals);
    }
    block.barrier();  // The keys, and the weights and values of the previous tile, have been used.
    copies.Advance(first);
    block.barrier();  // The weights are stored, and the next keys and this tile's values are there.
  }
  if (copies.end > 0) {
    const u32 stage = static_cast<u32>((copies.end - 1) / kPrefillKeys) % 2;
    AddWeighted<T>(columns, growth, weights_at, values_at + stage * kPrefillTileBytes, totals);
  }
  block.barrier();  // The sums are stored.

  return StoreTotals(block, task, rows, first_row, first_column, row_count, totals);
}

// --- Tiles --------------------------------------------------------------------------------------

// Computes the rows of `tile`, at most kPrefillRows. False: a result is not finite.
template <typename T>
RESIDENT_NOINLINE bool PrefillTile(Block block, const TileOfPart& tile) {
  const AttentionTask& task = *block.memory<AttentionTask>();
  PrefillRows& rows = *block.memory<PrefillRows>(kPrefillRowsOffset);
  const i32 warp = static_cast<i32>(WarpOf(block));
  const i32 row_count = static_cast<i32>(tile.row_count);
#if !RESIDENT_GPU
  if (block.thread() == 0) ++emulated::PrefillTiles::count;
#endif
  block.barrier();  // The previous tile has been written.
  StartPrefillRows(block, task, rows, tile);
  block.barrier();
  const MemoryAddress tiles =
      AddressInMemory(block.memory<u8>(kPrefillTilesOffset, kPrefillEnd - kPrefillTilesOffset));
  PrefillCopies copies(block, task, tile, tiles, rows.limit[row_count - 1]);
  copies.Queries(block, task, rows, tile.row_count);
  WaitForCopies<0>();
  block.barrier();  // The queries have arrived.
  u32 not_finite = 0;
  if (warp < kScoreWarps) {
    ComputeScores<T>(block, task, rows, copies, warp, row_count);
  } else {
    const i32 part = warp - kScoreWarps;
    not_finite = ComputeTotals<T>(block, task, rows, copies, part / 2 * 16 * kValueRowTiles,
                                  part % 2 * kValueColumns, row_count);
  }
  WaitForCopies<0>();
  return block.reduce(not_finite, [](u32 a, u32 b) { return a | b; }) == 0;
}

}  // namespace resident::attention

#endif  // RESIDENT_WARPS

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_PREFILL_H_
