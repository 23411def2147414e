// Attention of many rows of 16-bit elements, on tensor cores.
//
// A block has tiles of 16 rows for each group of warps, whose queries remain in fast memory, and
// brings 32 keys and their values there at a time. A warp computes 16 rows for 16 keys at once:
// the scores become the weights, in registers, and these are the left operand of the product with
// the values. If there are enough warps, two of them share the rows, each with every second 16
// keys, and merge their results at the end.
//
// The keys of the next tile are copied during the product with the values, and the values during
// the product with the keys, so that each tile has two barriers.
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

namespace resident::attention {

inline constexpr i32 kPrefillKeys = 32;
inline constexpr i32 kPrefillStep = 16;  // Keys of a warp at once.
inline constexpr i32 kPrefillDim = 128;  // Elements of queries and values, at most.
inline constexpr i32 kMaxPrefillRows = 64;

struct PrefillRows {
  i64 query[kMaxPrefillRows];  // Offset in q, in bytes.
  i64 out[kMaxPrefillRows];    // Offset in out, in elements.
  i32 limit[kMaxPrefillRows];  // Keys from this one on are hidden.
};

inline constexpr u32 kPrefillRowBytes = 2 * kPrefillDim;
inline constexpr u32 kPrefillRowsOffset = kTileRowsEnd;
inline constexpr u32 kPrefillQueriesOffset = kPrefillRowsOffset + 1280;
inline constexpr u32 kPrefillKeysOffset =
    kPrefillQueriesOffset + kMaxPrefillRows * kPrefillRowBytes;
inline constexpr u32 kPrefillValuesOffset = kPrefillKeysOffset + kPrefillKeys * kPrefillRowBytes;
inline constexpr u32 kPrefillEnd = kPrefillValuesOffset + kPrefillKeys * kPrefillRowBytes;
static_assert(sizeof(PrefillRows) <= 1280 && kPrefillQueriesOffset % 128 == 0, "");
// The totals of the second warp of each pair, and its largest scores and sums, are merged there.
static_assert(kPrefillEnd - kPrefillQueriesOffset >= 4 * 16 * kPrefillDim * sizeof(float), "");
static_assert(kPrefillEnd + 4 * 4 * 32 * sizeof(float) <= kBlockMemoryBytes, "");

// The warps that share 16 rows, and the sets of 16 rows of a block of so many threads.
RESIDENT_DEVICE i32 PrefillKeyGroups(i32 threads) { return threads / 32 % 2 == 0 ? 2 : 1; }
RESIDENT_DEVICE i32 PrefillRowGroups(i32 threads) {
  const i32 groups = threads / 32 / PrefillKeyGroups(threads);
  return groups < kMaxPrefillRows / 16 ? groups : kMaxPrefillRows / 16;
}

RESIDENT_DEVICE bool CanPrefill(const AttentionTask& task) {
  // Tensors of 16 bits, without a mask, of more rows than StreamTile computes at once.
  if (!task.stream || task.parts != 0 || task.mask.address != 0 || task.rows <= kMaxTileRows) {
    return false;
  }
  // The weighted values are added by tensor cores, which do not round to nearest.
  if (task.keys > (1 << 18)) return false;
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
  RESIDENT_UNROLL(1)
  for (i32 r = static_cast<i32>(block.thread()); r < kMaxPrefillRows;
       r += static_cast<i32>(block.threads())) {
    const Query query = FindQuery(task, tile.kv_head, tile.first_row + r);
    const i64 visible = VisibleKeys(task, query);
    rows.limit[r] = r < tile.row_count && visible > 0 ? static_cast<i32>(visible) : 0;
    rows.query[r] = 2 * task.q.Offset(tile.batch, query.head, query.position);
    rows.out[r] = task.out.Offset(tile.batch, query.head, query.position);
  }
}

// The copies of a thread: one chunk of every (threads / 16)-th row.
struct PrefillCopies {
  const TileOfPart& tile;
  i32 chunk;
  i32 first_row;
  i32 row_step;
  i32 end;  // Of the keys.

  RESIDENT_DEVICE PrefillCopies(const Block& block, const TileOfPart& rows, i32 keys)
      : tile(rows),
        chunk(static_cast<i32>(block.thread()) % 16),
        first_row(static_cast<i32>(block.thread()) / 16),
        row_step(static_cast<i32>(block.threads()) / 16),
        end(keys) {}

  // The place of the thread's chunk of a row.
  RESIDENT_DEVICE u32 PlaceIn(i32 row) const {
    return static_cast<u32>(row) * kPrefillRowBytes +
           16 * Swizzle<16>(static_cast<u32>(row), static_cast<u32>(chunk));
  }
  RESIDENT_DEVICE void CopyQueries(MemoryAddress to, const AttentionTask& task,
                                   const PrefillRows& rows, i32 count) const {
    if (8 * chunk >= task.depth) return;
    RESIDENT_UNROLL(1)
    for (i32 row = first_row; row < count; row += row_step) {
      const bool there = row < static_cast<i32>(tile.row_count);
      CopyAsync(to + PlaceIn(row),
                task.q.address + (there ? static_cast<u64>(rows.query[row] + 16 * chunk) : 0),
                there ? kChunkBytes : 0);
    }
  }
  // kPrefillKeys keys, or their values, from key `first` on.
  RESIDENT_DEVICE void CopyTile(MemoryAddress to, const Operand& operand, i32 width,
                                i32 first) const {
    if (first < end && 8 * chunk < width) {
      const u64 from =
          operand.address +
          static_cast<u64>(2 * (operand.Offset(tile.batch, tile.kv_head, 0) + 8 * chunk));
      RESIDENT_UNROLL(1)
      for (i32 row = first_row; row < kPrefillKeys; row += row_step) {
        CopyAsync(to + PlaceIn(row),
                  from + static_cast<u64>(2 * i64{first + row} * operand.strides[2]),
                  first + row < end ? kChunkBytes : 0);
      }
    }
    CommitCopies();
  }
};

// --- Steps of 16 keys ---------------------------------------------------------------------------

// Rows g and g + 8 of a warp.
struct PrefillSums {
  float largest[2];
  float sum[2];
};

// The products of the warp's rows with 16 keys.
template <typename T>
RESIDENT_DEVICE void MultiplyKeys(i32 depth, MemoryAddress query_at, MemoryAddress key_at,
                                  Accumulator (&scores)[2]) {
  RESIDENT_UNROLL(4)
  for (u32 d = 0; d < static_cast<u32>(depth) / 16; ++d) {
    LeftFragment query;
    RightFragment key[2];
    LoadLeft(query, StepAt(query_at, d));
    LoadRight(key[0], key[1], StepAt(key_at, d));
    MultiplyAdd<T>(scores[0], query, key[0]);
    MultiplyAdd<T>(scores[1], query, key[1]);
  }
}

// Hides keys from `limits` of the two rows on. `first_key`: of the lane.
RESIDENT_DEVICE void HideKeys(i32 first_key, const i32 (&limits)[2], Accumulator (&scores)[2]) {
  RESIDENT_UNROLL(2)
  for (i32 n = 0; n < 2; ++n) {
    RESIDENT_UNROLL(4)
    for (i32 i = 0; i < 4; ++i) {
      if (first_key + 8 * n + i % 2 >= limits[i / 2]) scores[n].v[i] = -math::infinity();
    }
  }
}

// Replaces scores by weights, whose sums it adds, and the totals by what they are with the new
// largest scores.
template <typename T>
RESIDENT_DEVICE void WeighScores(Accumulator (&scores)[2], PrefillSums& rows,
                                 Accumulator (&totals)[kPrefillDim / 8]) {
  float growth[2];
  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    float top = LargerNumber(LargerNumber(scores[0].v[2 * j], scores[0].v[2 * j + 1]),
                             LargerNumber(scores[1].v[2 * j], scores[1].v[2 * j + 1]));
    top = LargerNumber(top, ShuffleXor(top, 1));
    top = LargerNumber(top, ShuffleXor(top, 2));
    top = LargerNumber(top, rows.largest[j]);
    const float base = BaseOf(top);
    growth[j] = PowerOfTwo(rows.largest[j] - base);
    rows.largest[j] = top;
    rows.sum[j] *= growth[j];
    RESIDENT_UNROLL(2)
    for (i32 n = 0; n < 2; ++n) {
      RESIDENT_UNROLL(2)
      for (i32 i = 2 * j; i < 2 * j + 2; ++i) {
        // The scale is part of both the sum and the totals.
        scores[n].v[i] = PowerOfTwo(scores[n].v[i] - base) * kWeightScale<T>;
        rows.sum[j] += scores[n].v[i];
      }
    }
  }
  if (AnyLane(growth[0] != 1.0f || growth[1] != 1.0f)) {
    RESIDENT_UNROLL(16)
    for (i32 n = 0; n < kPrefillDim / 8; ++n) {
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) totals[n].v[i] *= growth[i / 2];
    }
  }
}

// Adds the weighted values of 16 keys.
template <typename T>
RESIDENT_DEVICE void AddWeighted(i32 columns, const LeftFragment& weights, MemoryAddress value_at,
                                 Accumulator (&totals)[kPrefillDim / 8]) {
  RESIDENT_UNROLL(8)
  for (u32 e = 0; e < kPrefillDim / 16; ++e) {
    if (16 * e >= static_cast<u32>(columns)) continue;
    RightFragment value[2];
    LoadRightTransposed(value[0], value[1], StepAt(value_at, e));
    MultiplyAdd<T>(totals[2 * e], weights, value[0]);
    MultiplyAdd<T>(totals[2 * e + 1], weights, value[1]);
  }
}

// --- Results ------------------------------------------------------------------------------------

// Merges the results of the two warps that share rows; the first one gets them.
RESIDENT_DEVICE void MergeKeyGroups(const Block& block, bool active, i32 key_group, i32 row_group,
                                    PrefillSums& rows, Accumulator (&totals)[kPrefillDim / 8]) {
  const i32 lane = static_cast<i32>(block.thread()) % 32;
  const i32 place = active ? row_group : 0;
  float* const other = block.memory<float>(kPrefillQueriesOffset) + place * 16 * kPrefillDim + lane;
  float* const other_rows = block.memory<float>(kPrefillEnd) + place * 4 * 32 + lane;
  block.barrier();  // Queries, keys and values have been used.
  if (active && key_group == 1) {
    RESIDENT_UNROLL(2)
    for (i32 j = 0; j < 2; ++j) {
      other_rows[64 * j] = rows.largest[j];
      other_rows[64 * j + 32] = rows.sum[j];
    }
    RESIDENT_UNROLL(16)
    for (i32 n = 0; n < kPrefillDim / 8; ++n) {
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) other[32 * (4 * n + i)] = totals[n].v[i];
    }
  }
  block.barrier();
  if (!active || key_group != 0) return;
  float own_factor[2];
  float other_factor[2];
  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    const float base = BaseOf(LargerNumber(rows.largest[j], other_rows[64 * j]));
    own_factor[j] = PowerOfTwo(rows.largest[j] - base);
    other_factor[j] = PowerOfTwo(other_rows[64 * j] - base);
    rows.sum[j] = rows.sum[j] * own_factor[j] + other_rows[64 * j + 32] * other_factor[j];
  }
  RESIDENT_UNROLL(16)
  for (i32 n = 0; n < kPrefillDim / 8; ++n) {
    RESIDENT_UNROLL(4)
    for (i32 i = 0; i < 4; ++i) {
      totals[n].v[i] =
          totals[n].v[i] * own_factor[i / 2] + other[32 * (4 * n + i)] * other_factor[i / 2];
    }
  }
}

// Writes the lane's columns of rows `row` and row + 8, where they exist. Returns 1 if one is not
// finite.
RESIDENT_DEVICE u32 WriteRows(const AttentionTask& task, const PrefillRows& rows, i32 row,
                              i32 row_count, i32 t, const PrefillSums& sums,
                              const Accumulator (&totals)[kPrefillDim / 8]) {
  const i64 stride = task.out.strides[3];
  u32 not_finite = 0;
  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    if (row + 8 * j >= row_count) continue;
    const i64 out = rows.out[row + 8 * j];
    const float inverse = sums.sum[j] == 0.0f ? 0.0f : 1.0f / sums.sum[j];
    RESIDENT_UNROLL(16)
    for (i32 n = 0; n < kPrefillDim / 8; ++n) {
      RESIDENT_UNROLL(2)
      for (i32 i = 0; i < 2; ++i) {
        const i32 column = 8 * n + 2 * t + i;
        if (column >= task.columns) continue;
        const float total = sums.sum[j] == 0.0f ? 0.0f : totals[n].v[2 * j + i] * inverse;
        if (total - total != 0.0f) not_finite = 1;
        if (task.out.dtype == DType::kF16) {
          *ElementAt<Half>(task.out.address, out + column * stride) = Half(total);
        } else {
          *ElementAt<BFloat16>(task.out.address, out + column * stride) = BFloat16(total);
        }
      }
    }
  }
  return not_finite;
}

// --- Tiles --------------------------------------------------------------------------------------

// Computes the rows of `tile`, at most 16 for each row group. False: a result is not finite.
template <typename T>
RESIDENT_NOINLINE bool PrefillTile(const Block& block, const TileOfPart& tile) {
  const AttentionTask& task = *block.memory<AttentionTask>();
  PrefillRows& rows = *block.memory<PrefillRows>(kPrefillRowsOffset);
  const i32 threads = static_cast<i32>(block.threads());
  const i32 lane = static_cast<i32>(block.thread()) % 32;
  const i32 warp = static_cast<i32>(block.thread()) / 32;
  const i32 t = lane % 4;
  const i32 key_groups = PrefillKeyGroups(threads);
  const i32 key_group = warp % key_groups;
  const i32 row_group = warp / key_groups;
  const bool active = row_group < PrefillRowGroups(threads);
  const i32 row_count = static_cast<i32>(tile.row_count);

  block.barrier();  // The previous tile has been written.
  StartPrefillRows(block, task, rows, tile);
  block.barrier();
  const i32 end = rows.limit[row_count - 1];
  const MemoryAddress queries =
      AddressInMemory(block.memory<u8>(kPrefillQueriesOffset, 64 * kPrefillRowBytes));
  const MemoryAddress keys = queries + kMaxPrefillRows * kPrefillRowBytes;
  const MemoryAddress values = keys + kPrefillKeys * kPrefillRowBytes;
  const PrefillCopies copies(block, tile, end);
  copies.CopyQueries(queries, task, rows, 16 * PrefillRowGroups(threads));
  copies.CopyTile(keys, task.k, task.depth, 0);
  copies.CopyTile(values, task.v, task.columns, 0);

  // The lane's rows of chunks.
  const u32 l = static_cast<u32>(lane);
  const u32 query_row = 16 * static_cast<u32>(row_group) + LeftRow(l);
  const MemoryAddress query_at =
      queries + query_row * kPrefillRowBytes + 16 * Swizzle<16>(query_row, LeftChunk(l));
  const u32 key_place =
      RightRow(l) * kPrefillRowBytes + 16 * Swizzle<16>(RightRow(l), RightChunk(l));
  const u32 value_place = RightTransposedRow(l) * kPrefillRowBytes +
                          16 * Swizzle<16>(RightTransposedRow(l), RightTransposedChunk(l));

  // Rows g and g + 8. The scores are multiplied by log2(e), so that weights are powers of two.
  const i32 row = 16 * (active ? row_group : 0) + lane / 4;
  const i32 limits[2] = {active ? rows.limit[row] : 0, active ? rows.limit[row + 8] : 0};
  const i32 warp_rows = row_count - 16 * row_group;
  // Keys that all of the warp's rows see, and that any of them sees.
  const i32 visible_to_all = active && warp_rows >= 16 ? rows.limit[16 * row_group] : 0;
  const i32 visible = !active || warp_rows <= 0
                          ? 0
                          : rows.limit[16 * row_group + (warp_rows < 16 ? warp_rows : 16) - 1];
  const float scale = task.scale * kLog2OfE;
  PrefillSums sums = {{-math::infinity(), -math::infinity()}, {0.0f, 0.0f}};
  Accumulator totals[kPrefillDim / 8] = {};
  WaitForCopies<1>();
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i32 first = 0; first < end; first += kPrefillKeys) {
    // With one key group, the warp has the tile's steps in turn.
    RESIDENT_UNROLL(1)
    for (i32 part = key_group; part < kPrefillKeys / kPrefillStep; part += key_groups) {
      const i32 first_key = first + part * kPrefillStep;
      const u32 step_place = static_cast<u32>(part * kPrefillStep) * kPrefillRowBytes;
      const bool some = first_key < visible;
      LeftFragment weights;
      if (some) {
        Accumulator scores[2] = {};
        MultiplyKeys<T>(task.depth, query_at, keys + step_place + key_place, scores);
        RESIDENT_UNROLL(2)
        for (i32 n = 0; n < 2; ++n) {
          RESIDENT_UNROLL(4)
          for (i32 i = 0; i < 4; ++i) scores[n].v[i] *= scale;
        }
        if (first_key + kPrefillStep > visible_to_all) {
          HideKeys(first_key + 2 * t, limits, scores);
        }
        WeighScores<T>(scores, sums, totals);
        weights = ToLeft<T>(scores[0], scores[1]);
      }
      if (part == key_group) {
        WaitForCopies<0>();
        block.barrier();  // The values have arrived.
      }
      if (part + key_groups >= kPrefillKeys / kPrefillStep) {
        if (key_groups == 1) block.barrier();  // The keys have been used.
        copies.CopyTile(keys, task.k, task.depth, first + kPrefillKeys);
      }
      if (some) AddWeighted<T>(task.columns, weights, values + step_place + value_place, totals);
    }
    WaitForCopies<0>();
    block.barrier();  // The next keys have arrived, and the values have been used.
    copies.CopyTile(values, task.v, task.columns, first + kPrefillKeys);
  }
  WaitForCopies<0>();

  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    sums.sum[j] += ShuffleXor(sums.sum[j], 1);
    sums.sum[j] += ShuffleXor(sums.sum[j], 2);
  }
  if (key_groups == 2) MergeKeyGroups(block, active, key_group, row_group, sums, totals);
  u32 not_finite = 0;
  if (active && key_group == 0) {
    not_finite = WriteRows(task, rows, row, row_count, t, sums, totals);
  }
  return block.reduce(not_finite, [](u32 a, u32 b) { return a | b; }) == 0;
}

}  // namespace resident::attention

#endif  // RESIDENT_WARPS

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_PREFILL_H_
