// What the ways to compute attention have in common: the task, the rows of a tile, the parts of the
// keys, and exponentials.
//
// The queries that use the same keys, those of N / M heads at S positions, are the rows of a group.
// A block computes a tile of adjacent rows of a group, over all of the group's keys or over a part
// of them. There are four ways:
//
//   AttendTile         (attention.cc)              any tensors
//   AttendOnePosition  (attention_one_position.h)  one position, and 16-bit keys and values, not
//                                                  too many
//   StreamTiles        (attention_stream.h)        16 rows at a time, of 16-bit elements, or of
//                                                  float32 with keys and values in bfloat16
//   PrefillTile        (attention_prefill.h)       more rows of 16-bit elements, without a mask and
//                                                  parts, in blocks of 256 threads
//
// The results of parts are merged by CombineRows (attention_combine.h).
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_TASK_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_TASK_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/operand.h"

namespace resident::attention {

inline constexpr i64 kMaxHeadDim = 256;
inline constexpr i32 kMaxTileRows = 16;

struct AttentionTask {
  Operand q;
  Operand k;
  Operand v;
  Operand mask;  // Strides of 0 where it broadcasts; address 0: no mask.
  Operand out;   // For parts: acc, without strides.
  u64 largest;   // Parts only.
  u64 sum;       // Parts only.
  i64 batches;
  i64 heads;
  i64 queries;
  i64 kv_heads;
  i64 shared_heads;  // Heads of q that share a head of k.
  i64 keys;          // The first ones of each head, which are used.
  i64 parts;         // 0: the operator attention.
  i64 used_parts;    // Those that have keys, or 1; the first ones.
  i64 rows;          // Of a group.
  i64 tiles;         // Of a group.
  i64 items;         // All tiles of all parts.
  float scale;
  i32 depth;    // Elements of q and k.
  i32 columns;  // Elements of v.
  i32 causal;
  i32 tile_rows;  // 1, 4, 8 or 16.
  i32 tile_keys;
  i32 slice;     // Elements of keys that are in fast memory at once.
  u16 refusal;   // 0, or a detail.
  bool stream;   // StreamTiles can compute the tiles.
  bool prefill;  // PrefillTile can, of item_rows rows.
  i32 item_rows;
};

// A tile, and the part of the keys for which it is computed.
struct TileOfPart {
  i64 batch;
  i64 kv_head;
  i64 first_row;
  i64 row_count;
  i64 part;
};

// What the threads share about the rows of a tile.
struct TileRows {
  i64 query[kMaxTileRows];  // Offset in q.
  i64 mask[kMaxTileRows];   // Offset in the mask.
  i64 limit[kMaxTileRows];  // Keys from this one on are hidden.
  float largest[kMaxTileRows];
  float sum[kMaxTileRows];
  float growth[kMaxTileRows];  // exp(previous largest score - largest score).
};

// The block's memory: the task, then TileRows, then what each way has of its own.
inline constexpr u32 kTileRowsOffset = 512;
inline constexpr u32 kTileRowsEnd = kTileRowsOffset + 640;
static_assert(sizeof(AttentionTask) <= kTileRowsOffset, "");
static_assert(sizeof(TileRows) <= kTileRowsEnd - kTileRowsOffset, "");

// --- Rows and parts -----------------------------------------------------------------------------

// The position and the head of a row of a group.
struct Query {
  i64 position;
  i64 head;
};
RESIDENT_DEVICE Query FindQuery(const AttentionTask& task, i64 kv_head, i64 row) {
  const i64 shared = task.shared_heads;
  const i64 position = Quotient(row, shared);
  return {position, kv_head * shared + row - position * shared};
}

// The tile, or with parts one of its parts, that is item `item`.
RESIDENT_DEVICE TileOfPart FindTile(const AttentionTask& task, i64 item) {
  i64 tile = item;
  i64 part = 0;
  if (task.parts > 0) {
    tile = Quotient(item, task.parts);
    part = item - tile * task.parts;
  }
  const i64 group = Quotient(tile, task.tiles);
  i64 index = tile - group * task.tiles;
  // A tile that sees many keys, then one that sees few: chunks of several tiles are alike.
  if (task.prefill) index = index % 2 == 0 ? task.tiles - 1 - index / 2 : index / 2;
  const i64 batch = Quotient(group, task.kv_heads);
  const i64 first_row = index * task.item_rows;
  return {batch, group - batch * task.kv_heads, first_row,
          Smallest(task.rows - first_row, task.item_rows), part};
}

// The keys that a query sees: at position s those up to keys - S + s, if the attention is causal.
RESIDENT_DEVICE i64 VisibleKeys(const AttentionTask& task, const Query& query) {
  return task.causal ? Smallest(task.keys - task.queries + query.position + 1, task.keys)
                     : task.keys;
}

// Where part `part` of the keys begins, one of the parts that are used or the one behind them.
RESIDENT_DEVICE i64 PartBegin(const AttentionTask& task, i64 part) {
  const i64 parts = task.used_parts;
  const i64 size = Quotient(task.keys, parts);
  return part * size + Smallest(part, task.keys - size * parts);
}

// The index of a query's result for a part, in `largest` and `sum`.
RESIDENT_DEVICE i64 PartIndex(const AttentionTask& task, const TileOfPart& tile,
                              const Query& query) {
  return ((tile.batch * task.heads + query.head) * task.queries + query.position) * task.parts +
         tile.part;
}

// Where a query's row of results begins in `out`.
RESIDENT_DEVICE i64 OutOffset(const AttentionTask& task, const TileOfPart& tile,
                              const Query& query) {
  return task.parts > 0 ? PartIndex(task, tile, query) * task.columns
                        : task.out.Offset(tile.batch, query.head, query.position);
}

// `limit`, of rows that do not exist as well, is set for `count` rows.
[[maybe_unused]] RESIDENT_NOINLINE void StartRows(Block block, const AttentionTask& task,
                                                  TileRows& rows, const TileOfPart& tile,
                                                  i64 count) {
  ForEach(block, count, [&](i64 r) {
    const Query query = FindQuery(task, tile.kv_head, tile.first_row + r);
    rows.limit[r] = r < tile.row_count ? VisibleKeys(task, query) : 0;
    rows.query[r] = task.q.Offset(tile.batch, query.head, query.position);
    rows.mask[r] = task.mask.Offset(tile.batch, query.head, query.position);
    rows.largest[r] = -math::infinity();
    rows.sum[r] = 0.0f;
  });
}

// --- Weights ------------------------------------------------------------------------------------

// The weight of a key that is hidden, or whose score is -infinity, is -0, as is no exponential.
RESIDENT_DEVICE bool IsHidden(float weight) { return bit_cast<u32>(weight) == 0x80000000u; }

// The score that others are compared with: exp(-infinity - -infinity) would be NaN.
RESIDENT_DEVICE float BaseOf(float largest) {
  return largest == -math::infinity() ? 0.0f : largest;
}

// For 16-bit elements: 2 to the power of x, with an error of some units in the last place.
RESIDENT_DEVICE float PowerOfTwo(float x) {
#if RESIDENT_GPU
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return __builtin_exp2f(x);
#endif
}

inline constexpr float kLog2OfE = 1.44269504f;
RESIDENT_DEVICE float ExponentialOf(float difference) { return PowerOfTwo(difference * kLog2OfE); }

RESIDENT_DEVICE float LargerNumber(float x, float y) {
#if RESIDENT_GPU
  return ::fmaxf(x, y);
#else
  return __builtin_fmaxf(x, y);
#endif
}

// Weights, which are at most 1, are multiplied by this before they are rounded to 16 bits: small
// float16 numbers have few bits.
template <typename T>
inline constexpr float kWeightScale = 1.0f;
template <>
inline constexpr float kWeightScale<Half> = 16384.0f;

}  // namespace resident::attention

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_TASK_H_
