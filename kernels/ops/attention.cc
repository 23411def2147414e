// Of the family "attention": attention. embedding.cc has embeddings and the cache of keys and
// values, rope.cc rotary positions.
//
// For any tensors, a block computes a tile of up to 16 rows of a group (attention_task.h) over the
// tiles of its keys in turn:
//
//   1. Scores: keys are brought to fast memory in slices of some elements of the head dimension,
//      transposed, so that adjacent threads have adjacent keys.
//   2. Weights: exp(score - largest score so far), and how much the largest score has grown.
//   3. Sums of values: each thread has columns of the values, for some rows, and, if there are few
//      columns and rows, only a part of the keys.
#include "kernels/ops/attention_combine.h"
#include "kernels/ops/attention_decode.h"
#include "kernels/ops/attention_few_keys.h"
#include "kernels/ops/attention_one_position.h"
#include "kernels/ops/attention_prefill.h"
#include "kernels/ops/attention_stream.h"
#include "kernels/ops/attention_task.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

namespace resident::attention {
namespace {

// Details of INVALID_ARGUMENT.
constexpr u16 kHeadDimTooLarge = 1;
constexpr u16 kHeadsDoNotDivide = 2;
constexpr u16 kBadKeyCount = 3;
constexpr u16 kBadCausal = 4;
constexpr u16 kBadMaskShape = 5;

// --- Tiles of any tensors -----------------------------------------------------------------------

// The block's memory, after TileRows.
constexpr u32 kPartialOffset = kTileRowsEnd;
constexpr u32 kScoresOffset = kPartialOffset + 2 * 4 * 256;
static_assert(Block::kMaxThreads <= 256, "");

// scores[key * tile_rows + row], then queries[element * tile_rows + row], then
// keys[element * (tile_keys + 1) + key].
struct TileMemory {
  float* scores;
  float* queries;
  float* keys;

  RESIDENT_DEVICE TileMemory(const Block& block, const AttentionTask& task)
      : scores(block.memory<float>(kScoresOffset)),
        queries(scores + task.tile_rows * task.tile_keys),
        keys(queries + task.tile_rows * task.slice) {}
};
constexpr u32 TileBytes(u32 rows, u32 keys, u32 slice) {
  return 4 * (rows * keys + rows * slice + (keys + 1) * slice);
}
static_assert(kScoresOffset + TileBytes(1, 256, 16) <= kBlockMemoryBytes, "");
static_assert(kScoresOffset + TileBytes(4, 256, 16) <= kBlockMemoryBytes, "");
static_assert(kScoresOffset + TileBytes(8, 128, 16) <= kBlockMemoryBytes, "");
static_assert(kScoresOffset + TileBytes(16, 64, 32) <= kBlockMemoryBytes, "");

// Adjacent keys, or columns of values, of a thread: those of a host's vector registers.
template <i32 kRows>
inline constexpr i32 kLanes = Block::kMaxThreads > 1 ? 1 : (kRows == 1 ? 16 : 8);

// Brings elements [d, d + slice) of the tile's queries to fast memory; what does not exist is 0.
RESIDENT_NOINLINE void StageQueries(Block block, const AttentionTask& task, const TileRows& rows,
                                    const TileMemory& memory, i64 row_count, i32 d) {
  const i32 slice = task.slice;
  RESIDENT_UNROLL(1)
  for (i32 i = static_cast<i32>(block.thread()); i < task.tile_rows * slice;
       i += static_cast<i32>(block.threads())) {
    const i32 row = i / slice;
    const i32 at = i % slice;
    float value = 0.0f;
    if (row < row_count && d + at < task.depth) {
      value =
          LoadFloat(task.q.address, task.q.dtype, rows.query[row] + (d + at) * task.q.strides[3]);
    }
    memory.queries[at * task.tile_rows + row] = value;
  }
}

// Brings elements [d, d + slice) of `count` keys to fast memory. `first`: offset of the first key.
template <typename T>
RESIDENT_NOINLINE void StageKeys(Block block, const AttentionTask& task, float* keys, i64 first,
                                 i32 count, i32 d) {
  const i32 slice = task.slice;
  const i32 threads = static_cast<i32>(block.threads());
  const i32 thread = static_cast<i32>(block.thread());
  const bool several = threads >= slice;  // Keys at once.
  const i32 key_step = several ? threads / slice : 1;
  const i32 step = several ? slice : threads;
  const i32 begin = several ? thread % slice : thread;
  const i32 depth = task.depth - d < slice ? task.depth - d : slice;
  const i32 pitch = task.tile_keys + 1;
  const i64 key_stride = task.k.strides[2];
  const i64 stride = task.k.strides[3];
  const T* const from = ElementAt<const T>(task.k.address, first + d * stride);
  RESIDENT_UNROLL(4)
  for (i32 key = several ? thread / slice : 0; key < count; key += key_step) {
    const T* const row = from + key * key_stride;
    RESIDENT_UNROLL(1)
    for (i32 at = begin; at < depth; at += step) {
      keys[at * pitch + key] = static_cast<float>(row[at * stride]);
    }
    RESIDENT_UNROLL(1)
    for (i32 at = begin; depth < slice && at < slice; at += step) {
      if (at >= depth) keys[at * pitch + key] = 0.0f;
    }
  }
}

// Adds the products of the slices of queries and keys to the scores, or sets these (`first`).
template <i32 kRows>
RESIDENT_DEVICE void AddProducts(const Block& block, const AttentionTask& task,
                                 const TileMemory& memory, i32 count, bool first) {
  constexpr i32 kKeys = kLanes<kRows>;
  const i32 tile_rows = kRows == 1 ? 1 : task.tile_rows;
  const i32 slice = task.slice;
  const i32 pitch = task.tile_keys + 1;
  const i32 key_units = (count + kKeys - 1) / kKeys;
  const i32 units = key_units * (tile_rows / kRows);
  RESIDENT_UNROLL(1)
  for (i32 unit = static_cast<i32>(block.thread()); unit < units;
       unit += static_cast<i32>(block.threads())) {
    const i32 key = unit % key_units * kKeys;
    const i32 row = unit / key_units * kRows;
    const float* q = memory.queries + row;
    const float* k = memory.keys + key;
    float sums[kRows][kKeys] = {};
    RESIDENT_UNROLL(4)
    for (i32 at = 0; at < slice; ++at) {
      for (i32 r = 0; r < kRows; ++r) {
        for (i32 l = 0; l < kKeys; ++l) sums[r][l] += q[r] * k[l];
      }
      q += tile_rows;
      k += pitch;
    }
    float* const scores = memory.scores + key * tile_rows + row;
    for (i32 r = 0; r < kRows; ++r) {
      for (i32 l = 0; l < kKeys; ++l) {
        float& score = scores[l * tile_rows + r];
        score = first ? sums[r][l] : score + sums[r][l];
      }
    }
  }
}

// The score of key `key` (`at` in the tile) for a row, from the product of both; -infinity: hidden.
RESIDENT_DEVICE float ScoreOf(const AttentionTask& task, const TileRows& rows, i32 row, i64 key,
                              float product) {
  if (key >= rows.limit[row]) return -math::infinity();
  float score = task.scale * product;
  if (task.mask.address != 0) {
    const float mask =
        LoadFloat(task.mask.address, task.mask.dtype, rows.mask[row] + key * task.mask.strides[3]);
    score = mask == -math::infinity() ? mask : score + mask;
  }
  return score;
}

RESIDENT_DEVICE float WeightOf(float score, float base) {
  return score == -math::infinity() ? -0.0f : math::exp(score - base);
}

RESIDENT_DEVICE void UpdateRow(TileRows& rows, i32 row, float largest, float base, float sum) {
  const float growth = math::exp(rows.largest[row] - base);
  rows.growth[row] = growth;
  rows.sum[row] = rows.sum[row] * growth + sum;
  rows.largest[row] = largest;
}

// Replaces the products of a tile by weights, for one row.
RESIDENT_DEVICE void WeighOneRow(const Block& block, const AttentionTask& task, TileRows& rows,
                                 float* scores, i64 first, i32 count) {
  float largest = rows.largest[0];
  const i32 step = static_cast<i32>(block.threads());
  RESIDENT_UNROLL(1)
  for (i32 key = static_cast<i32>(block.thread()); key < count; key += step) {
    const float score = ScoreOf(task, rows, 0, first + key, scores[key]);
    scores[key] = score;
    largest = Larger(largest, score);
  }
  largest = block.reduce(largest, [](float a, float b) { return Larger(a, b); });
  const float base = BaseOf(largest);
  float sum = 0.0f;
  RESIDENT_UNROLL(1)
  for (i32 key = static_cast<i32>(block.thread()); key < count; key += step) {
    const float weight = WeightOf(scores[key], base);
    scores[key] = weight;
    sum += weight;
  }
  sum = block.reduce_sum(sum);
  if (block.thread() == 0) UpdateRow(rows, 0, largest, base, sum);
}

// The same for several rows. Adjacent threads have adjacent rows; each has every `parts`-th key.
RESIDENT_DEVICE void WeighRows(const Block& block, const AttentionTask& task, TileRows& rows,
                               float* scores, i64 first, i32 count) {
  float* const partial_largest = block.memory<float>(kPartialOffset);
  float* const partial_sum = partial_largest + 256;
  const i32 threads = static_cast<i32>(block.threads());
  const i32 thread = static_cast<i32>(block.thread());
  const i32 tile_rows = task.tile_rows;
  const i32 parts = threads >= tile_rows ? threads / tile_rows : 1;
  const i32 part = threads >= tile_rows ? thread / tile_rows : 0;
  const i32 first_row = thread % tile_rows;
  RESIDENT_UNROLL(1)
  for (i32 row = first_row; row < tile_rows; row += threads) {
    float largest = rows.largest[row];
    RESIDENT_UNROLL(1)
    for (i32 key = part; key < count; key += parts) {
      float& at = scores[key * tile_rows + row];
      at = ScoreOf(task, rows, row, first + key, at);
      largest = Larger(largest, at);
    }
    partial_largest[part * tile_rows + row] = largest;
  }
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i32 row = first_row; row < tile_rows; row += threads) {
    float largest = partial_largest[row];
    RESIDENT_UNROLL(4)
    for (i32 p = 1; p < parts; ++p) largest = Larger(largest, partial_largest[p * tile_rows + row]);
    const float base = BaseOf(largest);
    float sum = 0.0f;
    RESIDENT_UNROLL(1)
    for (i32 key = part; key < count; key += parts) {
      float& at = scores[key * tile_rows + row];
      at = WeightOf(at, base);
      sum += at;
    }
    partial_sum[part * tile_rows + row] = sum;
  }
  block.barrier();
  if (part != 0) return;
  RESIDENT_UNROLL(1)
  for (i32 row = first_row; row < tile_rows; row += threads) {
    float largest = partial_largest[row];
    float sum = partial_sum[row];
    RESIDENT_UNROLL(1)
    for (i32 p = 1; p < parts; ++p) {
      largest = Larger(largest, partial_largest[p * tile_rows + row]);
      sum += partial_sum[p * tile_rows + row];
    }
    UpdateRow(rows, row, largest, BaseOf(largest), sum);
  }
}

// A sum of values in which hidden keys have no part: 0 times infinity or NaN would be NaN.
template <typename T>
RESIDENT_NOINLINE float SumOfVisible(const float* weights, i32 weight_stride, const T* values,
                                     i64 value_stride, i32 count) {
  float sum = 0.0f;
  RESIDENT_UNROLL(1)
  for (i32 key = 0; key < count; ++key) {
    const float weight = weights[key * weight_stride];
    if (IsHidden(weight)) continue;
    sum += weight * static_cast<float>(values[key * value_stride]);
  }
  return sum;
}

// Adds weighted values of `count` keys to kRows rows and kColumns columns of `totals`, or sets
// these (`first`). REQUIRES: stride == 1 or kColumns == 1.
template <typename T, i32 kRows, i32 kColumns>
RESIDENT_DEVICE void AddValues(const float* weights, i32 tile_rows, const T* values,
                               i64 value_stride, i32 count, const float* growth, float* totals,
                               i32 pitch, bool first) {
  float sums[kRows][kColumns] = {};
  const float* w = weights;
  const T* v = values;
  RESIDENT_UNROLL(4)
  for (i32 key = 0; key < count; ++key) {
    float value[kColumns];
    for (i32 l = 0; l < kColumns; ++l) value[l] = static_cast<float>(v[l]);
    for (i32 r = 0; r < kRows; ++r) {
      for (i32 l = 0; l < kColumns; ++l) sums[r][l] += w[r] * value[l];
    }
    w += tile_rows;
    v += value_stride;
  }
  for (i32 r = 0; r < kRows; ++r) {
    for (i32 l = 0; l < kColumns; ++l) {
      float sum = sums[r][l];
      if (sum - sum != 0.0f)
        sum = SumOfVisible(weights + r, tile_rows, values + l, value_stride, count);
      float& total = totals[r * pitch + l];
      total = first ? sum : total * growth[r] + sum;
    }
  }
}

// Threads that share the columns and rows of the values, each with a part of a tile's keys.
RESIDENT_DEVICE i32 ValueParts(const Block& block, i32 units) {
  const i32 threads = static_cast<i32>(block.threads());
  return units == 0 || units >= threads ? 1 : threads / units;
}
template <i32 kRows>
RESIDENT_DEVICE i32 ValueUnits(const AttentionTask& task) {
  constexpr i32 kColumns = kLanes<kRows>;
  return (task.columns + kColumns - 1) / kColumns * (task.tile_rows / kRows);
}

// totals[part][row][column], in the block's scratch memory. `first`: offset of the first value.
template <typename T, i32 kRows>
RESIDENT_NOINLINE void AddTile(Block block, const AttentionTask& task, const TileRows& rows,
                               const float* scores, i64 first_value, i32 count, bool first) {
  constexpr i32 kColumns = kLanes<kRows>;
  const i32 tile_rows = kRows == 1 ? 1 : task.tile_rows;
  const i32 columns = task.columns;
  const i32 column_units = (columns + kColumns - 1) / kColumns;
  const i32 units = column_units * (tile_rows / kRows);
  const i32 parts = ValueParts(block, units);
  const i64 key_stride = task.v.strides[2];
  const i64 stride = task.v.strides[3];
  const T* const values = ElementAt<const T>(task.v.address, first_value);
  float* const totals = block.scratch<float>();
  RESIDENT_UNROLL(1)
  for (i32 i = static_cast<i32>(block.thread()); i < units * parts;
       i += static_cast<i32>(block.threads())) {
    const i32 part = i / units;
    const i32 column = i % column_units * kColumns;
    const i32 row = i % units / column_units * kRows;
    const i32 begin = count * part / parts;
    const i32 keys = count * (part + 1) / parts - begin;
    const float* const weights = scores + begin * tile_rows + row;
    const T* const from = values + begin * key_stride + column * stride;
    float* const to = totals + (part * tile_rows + row) * columns + column;
    if (kColumns == 1 || (stride == 1 && column + kColumns <= columns)) {
      AddValues<T, kRows, kColumns>(weights, tile_rows, from, key_stride, keys, rows.growth + row,
                                    to, columns, first);
    } else if constexpr (kColumns > 1) {
      for (i32 l = 0; l < kColumns && column + l < columns; ++l) {
        AddValues<T, kRows, 1>(weights, tile_rows, from + l * stride, key_stride, keys,
                               rows.growth + row, to + l, columns, first);
      }
    }
  }
}

// Writes the results of a tile: the values, or those of a part. `value_parts`: of the totals, 0 if
// the tile has no keys.
RESIDENT_NOINLINE void WriteTile(Block block, const AttentionTask& task, const TileRows& rows,
                                 const TileOfPart& tile, i32 value_parts) {
  const i32 columns = task.columns;
  const float* const totals = block.scratch<float>();
  struct Row {
    i32 index;
    float sum;
    i64 out;
  };
  ForEachInRows(
      block, {0, tile.row_count}, columns,
      [&](i64 r) {
        const Query query = FindQuery(task, tile.kv_head, tile.first_row + r);
        return Row{static_cast<i32>(r), rows.sum[r], OutOffset(task, tile, query)};
      },
      [&](const Row& row, i64 column) {
        float total = 0.0f;
        if (row.sum != 0.0f) {
          RESIDENT_UNROLL(1)
          for (i32 p = 0; p < value_parts; ++p) {
            total += totals[(p * task.tile_rows + row.index) * columns + column];
          }
          if (task.parts == 0) total /= row.sum;
        }
        const i64 stride = task.parts > 0 ? 1 : task.out.strides[3];
        StoreFloat(task.out.address, task.out.dtype, row.out + column * stride, total);
      });
  if (task.parts == 0) return;
  ForEach(block, tile.row_count, [&](i64 r) {
    const i64 at = PartIndex(task, tile, FindQuery(task, tile.kv_head, tile.first_row + r));
    *ElementAt<float>(task.largest, at) = rows.largest[r];
    *ElementAt<float>(task.sum, at) = rows.sum[r];
  });
}

RESIDENT_NOINLINE void AttendTile(Block block, const AttentionTask& task, const TileOfPart& tile) {
  TileRows& rows = *block.memory<TileRows>(kTileRowsOffset);
  const TileMemory memory(block, task);

  block.barrier();  // The previous tile has been written.
  StartRows(block, task, rows, tile, task.tile_rows);
  block.barrier();

  const bool one_row = task.tile_rows == 1;
  const i64 begin = PartBegin(task, tile.part);
  const i64 end = Smallest(PartBegin(task, tile.part + 1), rows.limit[tile.row_count - 1]);
  const i64 k = task.k.Offset(tile.batch, tile.kv_head, 0);
  const i64 v = task.v.Offset(tile.batch, tile.kv_head, 0);
  RESIDENT_UNROLL(1)
  for (i64 first = begin; first < end; first += task.tile_keys) {
    const i32 count = static_cast<i32>(Smallest(end - first, task.tile_keys));
    RESIDENT_UNROLL(1)
    for (i32 d = 0; d == 0 || d < task.depth; d += task.slice) {
      block.barrier();  // The previous slice, or the previous tile's weights, have been used.
      StageQueries(block, task, rows, memory, tile.row_count, d);
      VisitFloat(task.k.dtype, [&](auto element) {
        StageKeys<decltype(element)>(block, task, memory.keys, k + first * task.k.strides[2], count,
                                     d);
      });
      block.barrier();
      if (one_row) {
        AddProducts<1>(block, task, memory, count, d == 0);
      } else {
        AddProducts<4>(block, task, memory, count, d == 0);
      }
    }
    block.barrier();
    if (one_row) {
      WeighOneRow(block, task, rows, memory.scores, first, count);
    } else {
      WeighRows(block, task, rows, memory.scores, first, count);
    }
    block.barrier();
    VisitFloat(task.v.dtype, [&](auto element) {
      using T = decltype(element);
      const i64 values = v + first * task.v.strides[2];
      if (one_row) {
        AddTile<T, 1>(block, task, rows, memory.scores, values, count, first == begin);
      } else {
        AddTile<T, 4>(block, task, rows, memory.scores, values, count, first == begin);
      }
    });
  }
  block.barrier();
  const i32 units = one_row ? ValueUnits<1>(task) : ValueUnits<4>(task);
  WriteTile(block, task, rows, tile, begin < end ? ValueParts(block, units) : 0);
}

#if RESIDENT_WARPS

// Computes tiles on tensor cores, and those with results that are not finite in another way.
template <typename T>
RESIDENT_DEVICE void AttendToTiles(const Block& block, const AttentionTask& task, StreamWork work) {
  RESIDENT_UNROLL(1)
  while (StreamTiles<T>(block, task, work)) {
    AttendTile(block, task, work.Tile(task, work.tiles.begin - 1));
  }
}

template <typename T>
RESIDENT_DEVICE void AttendOnTensorCores(const Block& block, const AttentionTask& task,
                                         const Range& items) {
  if (!task.prefill) {
    AttendToTiles<T>(block, task, {items, nullptr});
    return;
  }
  RESIDENT_UNROLL(1)
  for (i64 i = items.begin; i < items.end; ++i) {
    const TileOfPart item = FindTile(task, i);
    if (PrefillTile<T>(block, item)) continue;
    AttendToTiles<T>(block, task, {{0, (item.row_count + kMaxTileRows - 1) / kMaxTileRows}, &item});
  }
}

#endif  // RESIDENT_WARPS

// --- The task of attention ----------------------------------------------------------------------

// The mask's strides for [B, N, S, L], to which its shape broadcasts. False: it does not.
RESIDENT_DEVICE bool ReadMask(const Tensor<const Any>& mask, const i64 (&shape)[4],
                              Operand& operand) {
  operand.address = 0;
  RESIDENT_UNROLL(1)
  for (i32 d = 0; d < 4; ++d) operand.strides[d] = 0;
  if (mask.size() == 0) return true;
  if (mask.rank() > 4) return false;
  operand.address = AddressOf(mask);
  operand.dtype = mask.dtype();
  const u32 missing = 4 - mask.rank();
  RESIDENT_UNROLL(1)
  for (u32 d = missing; d < 4; ++d) {
    const i64 extent = mask.shape(d - missing);
    if (extent != 1 && extent != shape[d]) return false;
    operand.strides[d] = extent == 1 ? 0 : mask.stride(d - missing);
  }
  return true;
}

// REQUIRES: x > 0, y >= 0.
RESIDENT_DEVICE bool Divides(i64 x, i64 y) { return Quotient(y, x) * x == y; }

// Reads argument i, a tensor of four dimensions, by a thread of another warp than the arguments
// before it.
RESIDENT_DEVICE void ReadOperand(const Block& block, const Args& args, u32 i, Operand& operand) {
  if (block.thread() == (i + 1) * kWarpThreads % block.threads()) {
    operand.Read(args.tensor<const Any>(i));
  }
}

// (one thread) Reads shapes and scalars, and refuses what does not fit. `scalars`: index of the
// argument `scale`.
RESIDENT_NOINLINE void ReadShapes(Args args, u32 scalars, i64 parts, AttentionTask& task) {
  const auto q = args.tensor<const Any>(0);
  const auto k = args.tensor<const Any>(1);
  const auto v = args.tensor<const Any>(2);
  const i64 length = k.shape(2);
  const i64 kv_len = args.scalar<i64>(scalars + 2);
  task.batches = q.shape(0);
  task.heads = q.shape(1);
  task.queries = q.shape(2);
  task.kv_heads = k.shape(1);
  task.keys = kv_len == -1 ? length : kv_len;
  task.parts = parts;
  task.used_parts = parts > 0 ? parts : 1;
  task.scale = args.scalar<float>(scalars);
  task.causal = args.scalar<i32>(scalars + 1);
  task.depth = static_cast<i32>(q.shape(3));
  task.columns = static_cast<i32>(v.shape(3));
  task.refusal = 0;
  if (q.shape(3) > kMaxHeadDim || v.shape(3) > kMaxHeadDim) {
    task.refusal = kHeadDimTooLarge;
  } else if (task.kv_heads == 0 ? task.heads != 0 : !Divides(task.kv_heads, task.heads)) {
    task.refusal = kHeadsDoNotDivide;
  } else if (kv_len < -1 || kv_len > length) {
    task.refusal = kBadKeyCount;
  } else if (task.causal != 0 && task.causal != 1) {
    task.refusal = kBadCausal;
  } else if (!ReadMask(args.tensor<const Any>(3), {task.batches, task.heads, task.queries, length},
                       task.mask)) {
    task.refusal = kBadMaskShape;
  }
}

// (one thread) Plans the tiles, when all operands have been read.
RESIDENT_NOINLINE void PlanTiles([[maybe_unused]] u32 threads, AttentionTask& task) {
  task.items = 0;
  task.stream = false;
  task.prefill = false;
  if (task.refusal != 0 || task.heads == 0) return;
  if (task.columns == 0 && task.parts == 0) return;  // There is nothing to write.
  task.shared_heads = Quotient(task.heads, task.kv_heads);
  task.rows = task.queries * task.shared_heads;
  task.tile_rows = task.rows <= 1 ? 1 : task.rows <= 4 ? 4 : task.rows <= 8 ? 8 : 16;
  task.tile_keys = task.tile_rows <= 4 ? 256 : 1024 / task.tile_rows;
  task.slice = task.tile_rows == 16 ? 32 : 16;
  task.stream = CanStream(task);
  task.item_rows = task.tile_rows;
#if RESIDENT_WARPS
  if (CanPrefill(task, threads)) {
    task.prefill = true;
    task.item_rows = kPrefillRows;
  }
#endif
  task.tiles = Quotient(task.rows + task.item_rows - 1, task.item_rows);
  task.items = task.batches * task.kv_heads * task.tiles * (task.parts > 0 ? task.parts : 1);
}

// (collective) Fills `task`, except for the outputs: read(task) reads these.
template <typename F>
RESIDENT_DEVICE void ReadAttention(const Block& block, const Args& args, u32 scalars, i64 parts,
                                   AttentionTask& task, F read) {
  ReadOperand(block, args, 0, task.q);
  ReadOperand(block, args, 1, task.k);
  ReadOperand(block, args, 2, task.v);
  read(task);
  if (block.thread() == 0) ReadShapes(args, scalars, parts, task);
  block.barrier();
  if (block.thread() == 0) PlanTiles(block.threads(), task);
  block.barrier();
}

// Computes items of the task in the block's memory.
RESIDENT_DEVICE void AttendItems(const Block& block, const AttentionTask& task,
                                 const Range& items) {
#if RESIDENT_WARPS
  if (task.stream) {
    if (task.k.dtype == DType::kF16) {
      AttendOnTensorCores<Half>(block, task, items);
    } else {
      AttendOnTensorCores<BFloat16>(block, task, items);
    }
    return;
  }
#endif
  RESIDENT_UNROLL(1)
  for (i64 item = items.begin; item < items.end; ++item) {
    AttendTile(block, task, FindTile(task, item));
  }
}

// (collective) The task of attention, or with kPartial of attention_partial.
template <bool kPartial>
RESIDENT_NOINLINE const AttentionTask& ReadTask(Block block, Args args) {
  auto& task = *block.memory<AttentionTask>();
  if constexpr (kPartial) {
    const auto acc = args.tensor<const Any>(4);
    const auto read = [&](AttentionTask& to) {
      if (block.thread() != 0) return;
      to.out.address = AddressOf(acc);
      to.out.dtype = DType::kF32;
      to.largest = AddressOf(args.tensor<const Any>(5));
      to.sum = AddressOf(args.tensor<const Any>(6));
    };
    ReadAttention(block, args, 7, acc.shape(3), task, read);
  } else {
    const auto read = [&](AttentionTask& to) { ReadOperand(block, args, 4, to.out); };
    ReadAttention(block, args, 5, 0, task, read);
  }
  return task;
}

#if RESIDENT_WARPS
// Computes an item of which attention_one_position.h has a result that is not finite.
template <bool kPartial>
RESIDENT_NOINLINE void AttendAgain(Block block, Args args, i64 item) {
  block.barrier();  // The reads of the other form's memory have finished.
  AttendItems(block, ReadTask<kPartial>(block, args), {item, item + 1});
  block.barrier();
}
#endif

template <bool kPartial>
RESIDENT_DEVICE void Attend(const Block& block, const Args& args) {
#if RESIDENT_WARPS
  PositionItems items;
  if (FindPositionItems<kPartial>(block, args, items)) {
    RESIDENT_UNROLL(1)
    for (u32 item = items.begin; item < items.end; ++item) {
      item = AttendOnePosition<kPartial>(block, args, item, items.end);
      if (item < items.end) AttendAgain<kPartial>(block, args, item);
    }
    return;
  }
#endif
  if (!block.await_inputs()) return;
  const AttentionTask& task = ReadTask<kPartial>(block, args);
  if (task.refusal != 0) {
    block.fail(CompletionStatus::kInvalidArgument, task.refusal);
    return;
  }
  // Without parts nothing is computed, but what does not fit is refused.
  if (kPartial && args.tensor<const Any>(4).shape(3) == 0) return;
  AttendItems(block, task, block.share(task.items));
}

// An item of attention_decode, for any tensors.
RESIDENT_NOINLINE void DecodeItem(Block block, Args args, DecodeItems items, i64 item) {
  block.barrier();  // What is in the memory, and in the scratch memory, has been used.
  auto& task = *block.memory<AttentionTask>();
  const i64 kv_head = Quotient(item, items.parts);
  const i64 index = item - kv_head * items.parts;
  const i64 part = items.by_heads ? 0 : index;
  // With an item for each head, each of them appends what it reads back: the same.
  RotateAndAppend(block, args, kv_head, /*appends=*/part + 1 == items.used);
  if (block.thread() == 0) {
    ReadDecodeHead(block, args, kv_head, items.used, task);
    PlanTiles(block.threads(), task);
  }
  block.barrier();
  if (items.by_heads) {
    // Other blocks may compute the other heads at the same time: nothing of them is written.
    AttendTile(block, task, {0, kv_head, index, 1, 0});
  } else {
    RESIDENT_UNROLL(1)
    for (i64 tile = 0; tile < task.tiles; ++tile) {
      const i64 first = (kv_head * task.tiles + tile) * task.parts + part;
      AttendItems(block, task, {first, first + 1});
    }
  }
  block.barrier();
  FinishItem(block, args, items, item, [&](const CombineTask& combined, const Range& rows) {
    CombineRows(block, combined, rows);
  });
}

#if RESIDENT_WARPS
// (collective) Awaits the inputs, and computes an item. False: one of its results is not finite.
// REQUIRES: CanDecodeAtOnce.
RESIDENT_DEVICE bool DecodeItemAtOnce(const Block& block, const Args& args, u32 item) {
  const DecodeItems items = DivideDecode(args, /*at_once=*/true);
  if (item % items.parts >= items.Active()) {
    if (block.await_inputs()) ClearItem(block, args, items, item);
    return true;
  }
  block.barrier();  // No thread uses the memory for an item before.
  if (CanDecodeFewKeys(args, items)) return DecodeFewKeys(block, args, items, item);
  if (block.thread() == 0) ReadPosition(args, items, *block.memory<PositionTask>());
  block.barrier();
  return items.by_heads || items.shared == 1 ? DecodeAtOnce<1>(block, args, item)
                                             : DecodeAtOnce<kHeadsAtOnce>(block, args, item);
}
#endif

RESIDENT_DEVICE void Decode(const Block& block, const Args& args) {
#if RESIDENT_WARPS
  if (CanDecodeAtOnce(block, args)) {
    const u32 parts = static_cast<u32>(args.described(kDecodeAcc).shape[1]);
    const Range share = block.share(args.described(kDecodeKeys).shape[0] * i64{parts});
    RESIDENT_UNROLL(1)
    for (u32 item = static_cast<u32>(share.begin); item < static_cast<u32>(share.end); ++item) {
      if (DecodeItemAtOnce(block, args, item)) continue;
      DecodeItem(block, args, DivideDecode(args, /*at_once=*/true), item);
    }
    return;
  }
#endif
  if (!block.await_inputs()) return;
  if (const u16 detail = RefuseDecode(args); detail != 0) {
    block.fail(CompletionStatus::kInvalidArgument, detail);
    return;
  }
  const DecodeItems items = DivideDecode(args, /*at_once=*/false);
  const Range share = block.share(args.tensor<const Any>(kDecodeKeys).shape(0) * i64{items.parts});
  RESIDENT_UNROLL(1)
  for (i64 item = share.begin; item < share.end; ++item) {
    if (item - Quotient(item, items.parts) * items.parts < items.Active()) {
      DecodeItem(block, args, items, item);
    } else {
      ClearItem(block, args, items, item);
    }
  }
}

}  // namespace
}  // namespace resident::attention

using resident::AddressOf;
using resident::Any;
using resident::Args;
using resident::Block;

RESIDENT_OPERATOR(attention)(Block& block, const Args& args) {
  resident::attention::Attend<false>(block, args);
}

RESIDENT_OPERATOR(attention_partial)(Block& block, const Args& args) {
  resident::attention::Attend<true>(block, args);
}

RESIDENT_OPERATOR(attention_decode)(Block& block, const Args& args) {
  resident::attention::Decode(block, args);
}

RESIDENT_OPERATOR(attention_combine)(Block& block, const Args& args) {
  const auto out = args.tensor<const Any>(3);
  if (out.size() == 0) return;
  const auto acc = args.tensor<const float>(0);
  const resident::i64 columns = acc.shape(4);
  const resident::attention::CombineTask task = {acc.data(),
                                                 args.tensor<const float>(1).data(),
                                                 args.tensor<const float>(2).data(),
                                                 AddressOf(out),
                                                 out.dtype(),
                                                 acc.shape(3),
                                                 acc.shape(3),
                                                 columns};
  const resident::Range rows = block.share(resident::Quotient(out.size(), columns));
  if (!block.await_inputs()) return;
  CombineRows(block, task, rows);
}
