// This header computes attention of up to 16 rows on tensor cores, with keys and values of 16-bit
// elements, whose reading limits it. The products are exact and are summed in float32.
//
// A warp has every n-th step of 16 keys, where n is the number of the block's warps; the warps'
// results are merged at the end. A step is read in units of 64 elements of the 16 keys, then of
// their values. A warp always has two units on their way from device memory to its own part of the
// block's memory, which is what reaches the memory's bandwidth: 64 KiB for each SM with two blocks.
// A lane reads only the 16-byte chunks that it has copied itself, so that copies need no barrier.
//
//   Scores[key, row] = sum of keys[key, d] * queries[d, row]. A lane's chunk has 8 adjacent
//   elements of a key. As fragments these are other elements of the depth, but the same ones of
//   keys and of queries, whose sum has any order. A query in float32 is the sum of three elements
//   in bfloat16, which have all of its 24 bits, and is multiplied in three parts.
//
//   Totals[column, row] = sum of values[column, key] * weights[key, row]. A lane has chunks of four
//   keys, of which it makes pairs of keys for each of 8 columns. The weights, whose fragments are
//   those of the transposed scores, are the sum of two elements of 16 bits, so that they have at
//   least 16 bits of precision (in float16 only weights above 2^-22 have them).
//
// Sums over the keys are added outside of the tensor cores, which do not round to nearest.
//
// A hidden key has weight 0, and 0 times a value that is infinite or NaN is NaN. A tile with a
// result that is not finite must therefore be computed again in another way.
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_STREAM_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_STREAM_H_

#include "kernels/ops/attention_task.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"

namespace resident::attention {

// Of queries in float32, which a block's memory has in three parts.
inline constexpr i32 kSplitParts = 3;
inline constexpr i32 kSplitDim = 128;  // Elements of q and v, at most.

RESIDENT_DEVICE bool CanStream([[maybe_unused]] const AttentionTask& task) {
#if RESIDENT_WARPS
  const DType dtype = task.k.dtype;
  if (dtype != DType::kF16 && dtype != DType::kBF16) return false;
  if (task.v.dtype != dtype) return false;
  if (task.q.dtype != dtype) {
    // Float16 would lose bits of small elements.
    if (task.q.dtype != DType::kF32 || dtype != DType::kBF16) return false;
    if (task.depth > kSplitDim || task.columns > kSplitDim) return false;
  }
  u64 unaligned = task.k.address | task.v.address | static_cast<u64>(2 * task.depth) |
                  static_cast<u64>(2 * task.columns);
  RESIDENT_UNROLL(1)
  for (i32 d = 0; d < 3; ++d) {
    unaligned |= static_cast<u64>(2 * task.k.strides[d]) | static_cast<u64>(2 * task.v.strides[d]);
  }
  return unaligned % kChunkBytes == 0 && task.depth > 0 && task.columns > 0 &&
         task.k.strides[3] == 1 && task.v.strides[3] == 1 && task.keys < (1 << 30) - 64;
#else
  return false;
#endif
}

#if RESIDENT_WARPS

inline constexpr i32 kStreamKeys = 16;
inline constexpr i32 kUnitElements = 64;
inline constexpr u32 kUnitChunks = 4;  // Of each lane.
inline constexpr u32 kUnitBytes = kUnitChunks * kWarpThreads * kChunkBytes;
inline constexpr i32 kSetRows = 8;  // The rows of a fragment.
inline constexpr i32 kMaxWarps = Block::kMaxThreads / kWarpThreads;

// The rows' results for each warp's keys.
struct WarpRows {
  float largest[kMaxWarps][kMaxTileRows];
  float sum[kMaxWarps][kMaxTileRows];
  i64 out[kMaxTileRows];  // Where the row begins in `out`.
};

// In the block's memory: the queries, units. At the end WarpRows and each warp's totals of 8 rows
// and 128 columns are there instead; the distance of rows avoids conflicts between banks.
inline constexpr u32 kStreamQueriesOffset = kTileRowsEnd;
inline constexpr u32 kStreamQueriesBytes = 2 * kSplitParts * kSplitDim * kSetRows;
inline constexpr u32 kUnitsOffset = kStreamQueriesOffset + kStreamQueriesBytes;
inline constexpr u32 kWarpRowsOffset = kTileRowsEnd;
inline constexpr u32 kTotalsOffset = kWarpRowsOffset + 1152;
inline constexpr i32 kTotalColumns = 128;
inline constexpr i32 kTotalPitch = kTotalColumns + 1;
inline constexpr i32 kTotalsOfWarp = kSetRows * kTotalPitch;
static_assert(sizeof(WarpRows) <= 1152 && kUnitsOffset % 128 == 0, "");
static_assert(2 * kMaxHeadDim * kSetRows <= kStreamQueriesBytes, "");
static_assert(kUnitsOffset + kMaxWarps * 2 * kUnitBytes <= kBlockMemoryBytes, "");
static_assert(kTotalsOffset + kMaxWarps * kTotalsOfWarp * sizeof(float) <= kBlockMemoryBytes, "");

// --- Fragments ----------------------------------------------------------------------------------

// Transposes an 8 x 8 matrix of 16-bit elements: lane l has row l / 4, columns 2 (l % 4) and
// 2 (l % 4) + 1, of the argument and of the result.
RESIDENT_DEVICE u32 Transpose8x8(u32 pair) {
#if RESIDENT_GPU
  u32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
#else
  const u64 mine = pair;
  const auto* const all = emulated::Exchange::All(&mine, 1);
  const u32 lane = emulated::CurrentThread() % kWarpThreads;
  const u32 row = lane / 4;
  const u32 column = lane % 4 * 2;
  const u64 low = all[column * 4 + row / 2][0] >> (row % 2 * 16);
  const u64 high = all[(column + 1) * 4 + row / 2][0] >> (row % 2 * 16);
  return static_cast<u32>((low & 0xffffu) | (high & 0xffffu) << 16);
#endif
}

template <typename T>
RESIDENT_DEVICE float LowOf(u32 pair) {
  return T::Widen(static_cast<u16>(pair));
}
template <typename T>
RESIDENT_DEVICE float HighOf(u32 pair) {
  return T::Widen(static_cast<u16>(pair >> 16));
}

// --- Steps --------------------------------------------------------------------------------------

// The calling thread in its warp and block. As of fragments, g and t are the lane's group of four
// lanes and its place there.
struct StreamThread {
  i32 thread;
  i32 threads;
  i32 lane;
  i32 g;
  i32 t;
  i32 warp;

  RESIDENT_DEVICE explicit StreamThread(const Block& block)
      : thread(static_cast<i32>(block.thread())),
        threads(static_cast<i32>(block.threads())),
        lane(thread % 32),
        g(lane / 4),
        t(lane % 4),
        warp(thread / 32) {}
  // Keys of all warps' steps.
  RESIDENT_DEVICE i32 Step() const { return threads / 32 * kStreamKeys; }
};

// The units of a warp's steps, of which two are on their way.
struct UnitCopies {
  const AttentionTask& task;
  const StreamThread& me;
  i32 step;
  i32 end;
  i32 key_units;
  i32 units;  // Of a step.
  // The next unit to copy, and the lane's first elements in its step.
  i32 copied_key;
  i32 copied_unit = 0;
  u64 key_at;
  u64 value_at;
  // The lane's chunks of the warp's two units, and those of the next unit to use.
  MemoryAddress own_chunks;
  MemoryAddress chunks;

  RESIDENT_DEVICE UnitCopies(const Block& block, const StreamThread& thread, const TileOfPart& tile,
                             i32 begin, i32 last)
      : task(*block.memory<AttentionTask>()), me(thread), step(me.Step()), end(last) {
    key_units = (task.depth + kUnitElements - 1) / kUnitElements;
    units = key_units + (task.columns + kUnitElements - 1) / kUnitElements;
    copied_key = begin + me.warp * kStreamKeys;
    const i64 key = task.k.Offset(tile.batch, tile.kv_head, copied_key + me.g) + me.t * 8;
    const i64 value = task.v.Offset(tile.batch, tile.kv_head, copied_key + 2 * me.t) + me.g * 8;
    key_at = task.k.address + static_cast<u64>(2 * key);
    value_at = task.v.address + static_cast<u64>(2 * value);
    own_chunks = AddressInMemory(
        block.memory<Bytes16>(kUnitsOffset + static_cast<u32>(me.warp) * 2 * kUnitBytes, 2 * 128) +
        me.lane);
    chunks = own_chunks;
    Copy(own_chunks);
    Copy(own_chunks + kUnitBytes);
  }

  // Starts the copy of the next unit.
  RESIDENT_DEVICE void Copy(MemoryAddress to) {
    if (copied_key < end) {
      const bool of_keys = copied_unit < key_units;
      const i32 unit = of_keys ? copied_unit : copied_unit - key_units;
      const u64 distance = static_cast<u64>(2 * (of_keys ? task.k.strides[2] : task.v.strides[2]));
      const u64 from = (of_keys ? key_at : value_at) + static_cast<u64>(unit * 2 * kUnitElements);
      // Keys g and g + 8 and two chunks of each, or four keys, of which each has one chunk.
      const u64 second = of_keys ? 8 * distance : distance;
      const u64 third = of_keys ? 64 : 8 * distance;
      const i32 keys = end - copied_key - (of_keys ? me.g : 2 * me.t);
      const i32 second_key = of_keys ? 8 : 1;
      const i32 third_key = of_keys ? 0 : 8;
      const i32 elements =
          (of_keys ? task.depth - me.t * 8 : task.columns - me.g * 8) - unit * kUnitElements;
      const u32 low = elements > 0 ? kChunkBytes : 0;
      const u32 high = elements > (of_keys ? 32 : 0) ? kChunkBytes : 0;
      CopyAsync(to, from, keys > 0 ? low : 0);
      CopyAsync(to + 512, from + second, keys > second_key ? low : 0);
      CopyAsync(to + 1024, from + third, keys > third_key ? high : 0);
      CopyAsync(to + 1536, from + second + third, keys > second_key + third_key ? high : 0);
    }
    CommitCopies();
    if (++copied_unit == units) {
      copied_unit = 0;
      copied_key += step;
      key_at += static_cast<u64>(2 * step * task.k.strides[2]);
      value_at += static_cast<u64>(2 * step * task.v.strides[2]);
    }
  }

  // Starts the copy of the unit after the next one, in place of the unit that has been used.
  RESIDENT_DEVICE void ReplaceUnit() {
    Copy(chunks);
    chunks = chunks == own_chunks ? own_chunks + kUnitBytes : own_chunks;
  }
};

// Brings the queries to the block's memory, as right fragments:
// queries[((chunk * kSets + set) * kParts + part) * 32 + lane] has 8 elements. Returns the address
// of the lane's first ones. kParts: 1, or of queries in float32 3, whose sum they are.
template <typename T, i32 kSets, i32 kParts>
RESIDENT_DEVICE MemoryAddress StageFragments(const Block& block, const StreamThread& me,
                                             const TileRows& rows, const TileOfPart& tile,
                                             i32 first_row, i32 key_units) {
  const AttentionTask& task = *block.memory<AttentionTask>();
  Bytes16* const queries = block.memory<Bytes16>(kStreamQueriesOffset, kStreamQueriesBytes / 16);
  const i32 words = key_units * 2 * kSets * 32 * 4;
  RESIDENT_UNROLL(2)
  for (i32 i = me.thread; i < words; i += me.threads) {
    const i32 row = first_row + i / 128 % kSets * kSetRows + i / 16 % 8;
    const i32 d = i / 128 / kSets * 32 + i / 4 % 4 * 8 + i % 4 * 2;
    const bool there = row < tile.row_count && d < task.depth;
    const i64 at = there ? rows.query[row] + d * task.q.strides[3] : 0;
    if constexpr (kParts == 1) {
      u32 word = 0;
      if (there) {
        const u32 low = *ElementAt<const u16>(task.q.address, at);
        word = low | u32{*ElementAt<const u16>(task.q.address, at + task.q.strides[3])} << 16;
      }
      queries[i / 4].words[i % 4] = word;
    } else {
      float low = there ? *ElementAt<const float>(task.q.address, at) : 0.0f;
      float high = there ? *ElementAt<const float>(task.q.address, at + task.q.strides[3]) : 0.0f;
      RESIDENT_UNROLL(4)
      for (i32 part = 0; part < kParts; ++part) {
        const u32 word = Pack<T>(low, high);
        queries[(i / 128 * kParts + part) * 32 + i / 4 % 32].words[i % 4] = word;
        low -= LowOf<T>(word);
        high -= HighOf<T>(word);
      }
    }
  }
  return AddressInMemory(queries + me.lane);
}

// The products of a step's keys with the rows.
template <typename T, i32 kSets, i32 kParts>
RESIDENT_DEVICE void AddKeys(UnitCopies& copies, MemoryAddress own_queries,
                             Accumulator (&scores)[kSets]) {
  // Of the first parts, then of the others: the small sums are not rounded with the large ones.
  constexpr i32 kSums = kParts > 1 ? 2 : 1;
  Accumulator sums[kSets][kSums] = {};
  RESIDENT_UNROLL(1)
  for (i32 u = 0; u < copies.key_units; ++u) {
    const MemoryAddress query_at = own_queries + static_cast<u32>(1024 * kSets * kParts * u);
    WaitForCopies<1>();
    RESIDENT_UNROLL(4)
    for (i32 chunk = 0; chunk < 2; ++chunk) {
      const Bytes16 low = Load16(copies.chunks + 1024 * chunk);
      const Bytes16 high = Load16(copies.chunks + 1024 * chunk + 512);
      const LeftFragment a[2] = {{{low.words[0], high.words[0], low.words[1], high.words[1]}},
                                 {{low.words[2], high.words[2], low.words[3], high.words[3]}}};
      RESIDENT_UNROLL(4)
      for (i32 set = 0; set < kSets; ++set) {
        RESIDENT_UNROLL(4)
        for (i32 part = 0; part < kParts; ++part) {
          Accumulator& sum = sums[set][part == 0 ? 0 : 1];
          const Bytes16 query = Load16(query_at + 512 * ((chunk * kSets + set) * kParts + part));
          MultiplyAdd<T>(sum, a[0], RightFragment{{query.words[0], query.words[1]}});
          MultiplyAdd<T>(sum, a[1], RightFragment{{query.words[2], query.words[3]}});
        }
      }
    }
    copies.ReplaceUnit();
  }
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    scores[set] = sums[set][0];
    if constexpr (kSums > 1) {
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) scores[set].v[i] += sums[set][1].v[i];
    }
  }
}

// Replaces the lane's products of a set of rows by scores, where keys may be hidden or there is a
// mask. `first_row`: of the set.
RESIDENT_DEVICE void MaskScores(const AttentionTask& task, const TileRows& rows,
                                const StreamThread& me, i32 first_row, i32 first_key, i32 end,
                                float (&score)[4]) {
  RESIDENT_UNROLL(4)
  for (i32 i = 0; i < 4; ++i) {
    const i32 row = first_row + 2 * me.t + i % 2;
    const i32 key = first_key + me.g + i / 2 * 8;
    if (key >= end || key >= rows.limit[row]) {
      score[i] = -math::infinity();
    } else if (task.mask.address != 0) {
      const float mask = LoadFloat(task.mask.address, task.mask.dtype,
                                   rows.mask[row] + key * task.mask.strides[3]);
      score[i] = mask == -math::infinity() ? mask : score[i] + mask;
    }
  }
}

// Rows 2t and 2t + 1 of a set; the sums are those of the lane's keys.
struct SetRows {
  float largest[2];
  float sum[2];
  float growth[2];  // Of the totals, in this step.
};

// The weights of a step's keys, for a set of rows.
struct SetWeights {
  RightFragment rounded;
  RightFragment remainders;
};

template <typename T>
RESIDENT_DEVICE SetWeights WeighSet(const float (&score)[4], SetRows& rows) {
  float weight[4];
  RESIDENT_UNROLL(4)
  for (i32 j = 0; j < 2; ++j) {
    float top = LargerNumber(score[j], score[2 + j]);
    top = LargerNumber(top, ShuffleXor(top, 4));
    top = LargerNumber(top, ShuffleXor(top, 8));
    top = LargerNumber(top, ShuffleXor(top, 16));
    top = LargerNumber(top, rows.largest[j]);
    const float base = BaseOf(top);
    rows.growth[j] = ExponentialOf(rows.largest[j] - base);
    rows.largest[j] = top;
    weight[j] = ExponentialOf(score[j] - base);
    weight[2 + j] = ExponentialOf(score[2 + j] - base);
    rows.sum[j] = rows.sum[j] * rows.growth[j] + (weight[j] + weight[2 + j]);
  }
  RESIDENT_UNROLL(4)
  for (i32 i = 0; i < 4; ++i) weight[i] *= kWeightScale<T>;
  SetWeights weights;
  RESIDENT_UNROLL(4)
  for (i32 i = 0; i < 2; ++i) {
    const u32 pair = Pack<T>(weight[2 * i], weight[2 * i + 1]);
    const u32 rest = Pack<T>(weight[2 * i] - LowOf<T>(pair), weight[2 * i + 1] - HighOf<T>(pair));
    weights.rounded.v[i] = Transpose8x8(pair);
    weights.remainders.v[i] = Transpose8x8(rest);
  }
  return weights;
}

// Adds a unit of weighted values, 64 columns, to the totals.
template <typename T, i32 kSets>
RESIDENT_DEVICE void AddUnitOfValues(UnitCopies& copies, const SetWeights (&weights)[kSets],
                                     const SetRows (&rows)[kSets],
                                     Accumulator* const (&totals)[kSets]) {
  Bytes8 values[4];  // Two words of each of the four keys' chunks.
  WaitForCopies<1>();
  RESIDENT_UNROLL(4)
  for (i32 i = 0; i < 4; ++i) {
    if (i % 2 == 0) {
      RESIDENT_UNROLL(4)
      for (i32 n = 0; n < 4; ++n) values[n] = Load8(copies.chunks + 512 * n + 4 * i);
    }
    LeftFragment a;
    RESIDENT_UNROLL(4)
    for (i32 half = 0; half < 2; ++half) {
      const u32 x = values[2 * half].words[i % 2];
      const u32 y = values[2 * half + 1].words[i % 2];
      a.v[2 * half] = (x & 0xffffu) | y << 16;
      a.v[2 * half + 1] = x >> 16 | (y & 0xffff0000u);
    }
    RESIDENT_UNROLL(4)
    for (i32 set = 0; set < kSets; ++set) {
      Accumulator product = {};
      MultiplyAdd<T>(product, a, weights[set].rounded);
      MultiplyAdd<T>(product, a, weights[set].remainders);
      float(&total)[4] = totals[set][i].v;
      RESIDENT_UNROLL(4)
      for (i32 e = 0; e < 4; ++e) {
        total[e] = total[e] * rows[set].growth[e % 2] + product.v[e] * (1 / kWeightScale<T>);
      }
    }
  }
  copies.ReplaceUnit();
}

// --- Results ------------------------------------------------------------------------------------

// The largest score of row r for all warps' keys.
RESIDENT_DEVICE float LargestOf(const WarpRows& results, i32 warps, i32 r) {
  float top = results.largest[0][r];
  RESIDENT_UNROLL(8)
  for (i32 w = 1; w < kMaxWarps; ++w) {
    if (w < warps) top = LargerNumber(top, results.largest[w][r]);
  }
  return top;
}

// Merges the warps' sums of `count` rows, after a barrier, and writes those of a part. Returns 1 if
// one is not finite.
RESIDENT_DEVICE u32 MergeSums(const AttentionTask& task, const StreamThread& me, TileRows& rows,
                              WarpRows& results, const TileOfPart& tile, i32 first_row, i32 count) {
  const i32 warps = me.threads / 32;
  u32 not_finite = 0;
  RESIDENT_UNROLL(1)
  for (i32 r = me.thread; r < count; r += me.threads) {
    const float top = LargestOf(results, warps, r);
    const float base = BaseOf(top);
    float all = 0.0f;
    RESIDENT_UNROLL(1)
    for (i32 w = 0; w < warps; ++w) {
      all += results.sum[w][r] * ExponentialOf(results.largest[w][r] - base);
    }
    const i32 row = first_row + r;
    rows.sum[row] = all;
    if (row >= tile.row_count) continue;
    const Query query = FindQuery(task, tile.kv_head, tile.first_row + row);
    results.out[r] = OutOffset(task, tile, query);
    if (all - all != 0.0f) not_finite = 1;
    if (task.parts == 0) continue;
    const i64 at = PartIndex(task, tile, query);
    *ElementAt<float>(task.largest, at) = top;
    *ElementAt<float>(task.sum, at) = all;
  }
  return not_finite;
}

// Writes the sum of the warps' totals: 8 rows, from `first_result` of the results on, and 128
// columns from `first_column` on. Row r of the results is row first_row + r of the tile. Returns 1
// if one is not finite.
RESIDENT_DEVICE u32 WriteTotals(const AttentionTask& task, const StreamThread& me,
                                const TileRows& rows, const WarpRows& results, const float* totals,
                                const TileOfPart& tile, i32 first_row, i32 first_result,
                                i32 first_column) {
  const i32 warps = me.threads / 32;
  const i64 stride = task.parts > 0 ? 1 : task.out.strides[3];
  u32 not_finite = 0;
  RESIDENT_UNROLL(1)
  for (i32 i = me.thread; i < kSetRows * kTotalColumns; i += me.threads) {
    const i32 r = first_result + i / kTotalColumns;
    const i32 column = first_column + i % kTotalColumns;
    const i32 at = i / kTotalColumns * kTotalPitch + i % kTotalColumns;
    if (first_row + r >= tile.row_count || column >= task.columns) continue;
    const float row_sum = rows.sum[first_row + r];
    float all = 0.0f;
    if (row_sum != 0.0f) {
      RESIDENT_UNROLL(4)
      for (i32 w = 0; w < warps; ++w) all += totals[w * kTotalsOfWarp + at];
      if (all - all != 0.0f) not_finite = 1;
      if (task.parts == 0) all /= row_sum;
    }
    StoreFloat(task.out.address, task.out.dtype, results.out[r] + column * stride, all);
  }
  return not_finite;
}

// --- Tiles --------------------------------------------------------------------------------------

// The keys of a tile that any of its rows sees.
struct KeysOfTile {
  i32 begin;
  i32 end;

  RESIDENT_DEVICE KeysOfTile(const AttentionTask& task, const TileOfPart& tile)
      : begin(static_cast<i32>(PartBegin(task, tile.part))) {
    const Query last = FindQuery(task, tile.kv_head, tile.first_row + tile.row_count - 1);
    const i64 visible = Smallest(PartBegin(task, tile.part + 1), VisibleKeys(task, last));
    end = visible < begin ? begin : static_cast<i32>(visible);
  }
};

// Computes rows [first_row, first_row + 8 kSets) of a tile. False: a result is not finite. kBlocks:
// of 64 columns.
template <typename T, i32 kSets, i32 kBlocks, i32 kParts>
RESIDENT_DEVICE bool StreamRows(const Block& block, const TileOfPart& tile, i32 first_row) {
  const AttentionTask& task = *block.memory<AttentionTask>();
  TileRows& rows = *block.memory<TileRows>(kTileRowsOffset);
  const StreamThread me(block);
  const KeysOfTile keys(task, tile);
  const i32 begin = keys.begin;
  const i32 end = keys.end;
  block.barrier();  // The previous rows have been written.
  // The copies are started first, because they take the longest.
  UnitCopies copies(block, me, tile, begin, end);
  StartRows(block, task, rows, tile, kMaxTileRows);
  block.barrier();
  const MemoryAddress own_queries =
      StageFragments<T, kSets, kParts>(block, me, rows, tile, first_row, copies.key_units);
  block.barrier();

  SetRows sets[kSets];
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    RESIDENT_UNROLL(4)
    for (i32 j = 0; j < 2; ++j) {
      sets[set].largest[j] = -math::infinity();
      sets[set].sum[j] = 0.0f;
    }
  }
  Accumulator totals[kSets][kBlocks][4] = {};
  const i32 visible_to_all = static_cast<i32>(Smallest(rows.limit[0], end));
  RESIDENT_UNROLL(1)
  for (i32 first = begin + me.warp * kStreamKeys; first < end; first += copies.step) {
    Accumulator scores[kSets];
    AddKeys<T, kSets, kParts>(copies, own_queries, scores);
    const bool some_hidden = first + kStreamKeys > visible_to_all || task.mask.address != 0;
    SetWeights weights[kSets];
    RESIDENT_UNROLL(4)
    for (i32 set = 0; set < kSets; ++set) {
      float(&score)[4] = scores[set].v;
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) score[i] *= task.scale;
      if (some_hidden) {
        MaskScores(task, rows, me, first_row + set * kSetRows, first, end, score);
      }
      weights[set] = WeighSet<T>(score, sets[set]);
    }
    RESIDENT_UNROLL(4)
    for (i32 b = 0; b < kBlocks; ++b) {
      if (b >= copies.units - copies.key_units) continue;
      Accumulator* unit_totals[kSets];
      for (i32 set = 0; set < kSets; ++set) unit_totals[set] = totals[set][b];
      AddUnitOfValues<T>(copies, weights, sets, unit_totals);
    }
  }
  WaitForCopies<0>();

  // Merges the warps' results.
  block.barrier();  // The queries have been used.
  WarpRows& results = *block.memory<WarpRows>(kWarpRowsOffset);
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    RESIDENT_UNROLL(4)
    for (i32 j = 0; j < 2; ++j) {
      float all = sets[set].sum[j];
      all += ShuffleXor(all, 4);
      all += ShuffleXor(all, 8);
      all += ShuffleXor(all, 16);
      if (me.g != 0) continue;
      results.largest[me.warp][set * kSetRows + 2 * me.t + j] = sets[set].largest[j];
      results.sum[me.warp][set * kSetRows + 2 * me.t + j] = all;
    }
  }
  block.barrier();
  u32 not_finite = MergeSums(task, me, rows, results, tile, first_row, kSets * kSetRows);
  float* const block_totals = block.memory<float>(kTotalsOffset);
  float* const own_totals = block_totals + me.warp * kTotalsOfWarp;
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    float factor[2];
    RESIDENT_UNROLL(4)
    for (i32 j = 0; j < 2; ++j) {
      factor[j] =
          ExponentialOf(sets[set].largest[j] -
                        BaseOf(LargestOf(results, me.threads / 32, set * kSetRows + 2 * me.t + j)));
    }
    RESIDENT_UNROLL(4)
    for (i32 half = 0; half < kBlocks / 2; ++half) {
      block.barrier();  // The previous totals have been used.
      RESIDENT_UNROLL(4)
      for (i32 b = 0; b < 2; ++b) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) {
          const float(&total)[4] = totals[set][2 * half + b][i].v;
          RESIDENT_UNROLL(4)
          for (i32 e = 0; e < 4; ++e) {
            own_totals[(2 * me.t + e % 2) * kTotalPitch + b * kUnitElements + me.g * 8 + 2 * i +
                       e / 2] = total[e] * factor[e % 2];
          }
        }
      }
      block.barrier();
      not_finite |= WriteTotals(task, me, rows, results, block_totals, tile, first_row,
                                set * kSetRows, half * kTotalColumns);
    }
  }
  return block.reduce(not_finite, [](u32 a, u32 b) { return a | b; }) == 0;
}

// The tiles that a block computes: those of a range of items, or those of the rows of one item.
struct StreamWork {
  Range tiles;
  const TileOfPart* item;  // Null: tiles are items.

  RESIDENT_DEVICE TileOfPart Tile(const AttentionTask& task, i64 i) const {
    if (item == nullptr) return FindTile(task, i);
    const i64 first = i * kMaxTileRows;
    return {item->batch, item->kv_head, item->first_row + first,
            Smallest(item->row_count - first, kMaxTileRows), item->part};
  }
};

// Computes tiles from `tiles.begin` on, which it increments; ends early behind a tile of which a
// result is not finite, and returns true. It is a function with a loop, because a call saves and
// restores many registers.
template <typename T, i32 kSets, i32 kBlocks, i32 kParts = 1>
RESIDENT_NOINLINE bool StreamTilesOf(Block block, StreamWork& work) {
  const AttentionTask& task = *block.memory<AttentionTask>();
  RESIDENT_UNROLL(1)
  while (work.tiles.begin < work.tiles.end) {
    const TileOfPart tile = work.Tile(task, work.tiles.begin++);
    bool finite = true;
    RESIDENT_UNROLL(1)
    for (i32 first_row = 0; first_row < static_cast<i32>(tile.row_count);
         first_row += kSets * kSetRows) {
      finite = StreamRows<T, kSets, kBlocks, kParts>(block, tile, first_row) && finite;
    }
    if (!finite) return true;
  }
  return false;
}

template <typename T>
RESIDENT_DEVICE bool StreamTiles(const Block& block, const AttentionTask& task, StreamWork& work) {
  if constexpr (__is_same(T, BFloat16)) {
    if (task.q.dtype == DType::kF32) return StreamTilesOf<T, 1, 2, kSplitParts>(block, work);
  }
  if (task.depth > 128 || task.columns > 128) return StreamTilesOf<T, 1, 4>(block, work);
  if (task.rows <= kSetRows) return StreamTilesOf<T, 1, 2>(block, work);
  return StreamTilesOf<T, 2, 2>(block, work);
}

#endif  // RESIDENT_WARPS

}  // namespace resident::attention

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_STREAM_H_
