// LongRows: few long rows, which are cut into parts, so that many blocks work on a row.
//
//   const LongRows cut = CutRows(rows, columns, kMinRow, kMinPart, kMaxPartsOf<float>);
//   if (!cut.any()) ... rows as a whole ...
//   const PartValues<float, 0> values(block, cut, rows, 2);
//   const Range own = values.OfChunk(block.chunk(), block.chunk_count());
//   ForEachPart(cut, own, [&](i64 p, i64 row, i64 index) {
//     ... the value of columns cut.ColumnsOf(index) of the row ...
//     if (block.thread() == 0) values[p] = ...
//   });
//   if (values.shared && !block.arrive()) return;  // The last chunk combines the values.
//   if (!values.shared) block.barrier();
//   for (i64 row = values.rows.begin; row < values.rows.end; ++row) ... CombineParts ...
//
// The parts depend only on the shape, and the values of a row are combined in the order of its
// parts by one warp: the bits of a result are the same for any number of chunks, also if the chunks
// share no memory (Block::task_memory) and one of them has a whole row.
//
// (collective) and (warp) as in rows.h and warp.h.
#ifndef RESIDENT_KERNELS_OPS_LONG_ROWS_H_
#define RESIDENT_KERNELS_OPS_LONG_ROWS_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/row_stream.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/block.h"

namespace resident {

// Parts of a task: as many as a large GPU has blocks that run tasks. Each has a value of at most 8
// bytes. There are fewer if the values are larger.
inline constexpr i64 kMaxParts = kTaskMemoryBytes / sizeof(u64);
template <typename T>
inline constexpr i64 kMaxPartsOf = sizeof(T) <= sizeof(u64) ? kMaxParts
                                                            : kTaskMemoryBytes / sizeof(T);
// A part begins at a multiple of this many columns: with 16-bit elements, of 128 bytes.
inline constexpr i64 kPartStep = 64;

struct LongRows {
  i64 columns;
  i64 of_row;  // Parts of a row; 0: rows are not cut.
  i64 width;   // Columns of a part; the last one of a row may be shorter.

  RESIDENT_DEVICE bool any() const { return of_row != 0; }
  RESIDENT_DEVICE i64 FirstOfRow(i64 row) const { return row * of_row; }
  // The columns of the part with this index in its row.
  RESIDENT_DEVICE Range ColumnsOf(i64 index) const {
    const i64 begin = index * width;
    return {begin, begin + width < columns ? begin + width : columns};
  }
};

// Cuts rows of at least `min_row` columns into parts of at least `min_part`, unless there are
// so many rows that each has a block.
RESIDENT_NOINLINE LongRows CutRows(i64 rows, i64 columns, i64 min_row, i64 min_part,
                                   i64 max_parts) {
  LongRows cut = {columns, 0, columns};
  if (columns < min_row || rows < 1 || rows > max_parts / 2) return cut;
  const i64 max_parts_of_row = Quotient(max_parts, rows);
  i64 parts = Quotient(columns, min_part);
  if (parts > max_parts_of_row) parts = max_parts_of_row;
  if (parts < 2) return cut;
  cut.width = (Quotient(columns - 1, parts) + kPartStep) / kPartStep * kPartStep;
  cut.of_row = Quotient(columns - 1, cut.width) + 1;
  return cut;
}

// Calls f(p, row, index) for each part p of [parts.begin, parts.end), the part with this index in
// its row.
template <typename F>
RESIDENT_DEVICE void ForEachPart(const LongRows& cut, Range parts, F f) {
  if (parts.begin >= parts.end) return;
  i64 row = Quotient(parts.begin, cut.of_row);
  i64 index = parts.begin - cut.FirstOfRow(row);
  RESIDENT_UNROLL(1)
  for (i64 p = parts.begin; p < parts.end; ++p) {
    f(p, row, index);
    if (++index < cut.of_row) continue;
    index = 0;
    ++row;
  }
}

// The share of one of `count` chunks of n parts, of which there are at most kMaxParts.
RESIDENT_DEVICE Range ShareOfParts(i64 n, i64 chunk, i64 count) {
  if (chunk >= n) return {n, n};
  if (count >= n) return {chunk, chunk + 1};
  const u32 parts = static_cast<u32>(n);
  const u32 chunks = static_cast<u32>(count);
  const u32 base = parts / chunks;
  const u32 more = parts - base * chunks;
  const u32 c = static_cast<u32>(chunk);
  const u32 begin = c * base + (c < more ? c : more);
  return {begin, begin + base + (c < more ? 1 : 0)};
}

// The values of a task's parts: in the task's memory, if its chunks share the rows, else those of
// the calling chunk's own rows, in the block's memory from byte kAt on.
template <typename T, u32 kAt>
struct PartValues {
  static_assert(kAt % sizeof(u64) == 0 && kAt + kTaskMemoryBytes <= kBlockMemoryBytes, "");

  bool shared;
  Range rows;   // All, or the chunk's.
  Range parts;  // Of these rows.
  T* values;    // That of part p is values[p - parts.begin].

  // The chunks share the rows if they share memory and are at least `min_chunks`.
  RESIDENT_DEVICE PartValues(const Block& block, const LongRows& cut, i64 all_rows, i64 min_chunks)
      : shared(block.task_memory<T>() != nullptr && block.chunk_count() >= min_chunks),
        rows(shared ? Range{0, all_rows} : block.share(all_rows)),
        parts{cut.FirstOfRow(rows.begin), cut.FirstOfRow(rows.end)},
        values(shared ? block.task_memory<T>(0, kMaxPartsOf<T>)
                      : block.memory<T>(kAt, kMaxPartsOf<T>)) {}

  RESIDENT_DEVICE T& operator[](i64 part) const { return values[part - parts.begin]; }
  // The parts that one of `count` chunks computes: all, if the chunks do not share them.
  RESIDENT_DEVICE Range OfChunk(i64 chunk, i64 count) const {
    return shared ? ShareOfParts(parts.end, chunk, count) : parts;
  }
};

#if RESIDENT_WARPS

// ShuffleXor of up to 16 bytes.
template <typename T>
RESIDENT_DEVICE T ShuffleXorOf(const T& value, u32 mask) {
  if constexpr (sizeof(T) <= sizeof(u64)) {
    return ShuffleXor(value, mask);
  } else {
    static_assert(sizeof(T) == 2 * sizeof(u64), "");
    u64 words[2];
    __builtin_memcpy(words, &value, sizeof(T));
    for (u64& word : words) word = ShuffleXor(word, mask);
    T other;
    __builtin_memcpy(&other, words, sizeof(T));
    return other;
  }
}

#endif

// (warp) Combines the values of the parts of a row, value(0) to value(count - 1), by f, which is
// associative; value(p) is `none` for a part that does not exist. The order depends only on
// `count`. All lanes get the result.
template <typename T, typename V, typename F>
RESIDENT_DEVICE T CombineParts([[maybe_unused]] const Block& block, i64 count, T none, V value,
                               F f) {
#if RESIDENT_WARPS
  // All values are requested before the first of them is used.
  constexpr u32 kOfLane = static_cast<u32>(kMaxParts / kWarpThreads);
  T values[kOfLane];
  for (u32 k = 0; k < kOfLane; ++k) {
    const i64 p = k * kWarpThreads + LaneOf(block);
    values[k] = none;
    if (p < count) values[k] = value(p);
  }
  T all = values[0];
  for (u32 k = 1; k < kOfLane; ++k) all = f(all, values[k]);
  RESIDENT_UNROLL(1)
  for (u32 mask = kWarpThreads / 2; mask > 0; mask /= 2) all = f(all, ShuffleXorOf(all, mask));
#else
  T all = none;
  for (i64 p = 0; p < count; ++p) all = f(all, value(p));
#endif
  return all;
}

// --- Operators of two steps ---------------------------------------------------------------------

// A row of at least this many columns is cut into parts of at least kMinStepsPart. The split rule
// of these operators gives a task of one such row eight chunks; they may be more than the parts.
inline constexpr i64 kLongStepsRow = 64 << 10;
inline constexpr i64 kMinStepsPart = 8 << 10;
// Fewer chunks do not share their rows: a half would be one chunk, for which the others wait.
inline constexpr i64 kMinStepsChunks = 4;

// Runs an operator whose outputs need the values of all parts of their row: first (collective)
// value(row, columns) for each part, which returns its value, then store(row, columns, values,
// index) for each part, which writes its outputs; `values` are those of the parts of its row, among
// which the part has this index. Values are in the block's memory, from byte 0 on.
//
// If the chunks of a task share its rows, the first half of them computes the values, and the
// second half waits for these. Chunks start in the order of their numbers, and those of the first
// half do not wait, so that the wait ends. A block that has ended a chunk of the first half usually
// takes one of the second half then.
template <typename T, typename F, typename G>
RESIDENT_DEVICE void InTwoSteps(const Block& block, const LongRows& cut, i64 rows, F value,
                                G store) {
  const PartValues<T, 0> values(block, cut, rows, kMinStepsChunks);
  const i64 first_half = block.chunk_count() / 2;
  const bool is_first = block.chunk() < first_half;
  const Range own = values.OfChunk(is_first ? block.chunk() : block.chunk() - first_half,
                                   is_first ? first_half : block.chunk_count() - first_half);
  if (!values.shared || is_first) {
    ForEachPart(cut, own, [&](i64 p, i64 row, i64 index) {
      const T of_part = value(row, cut.ColumnsOf(index));
      if (block.thread() == 0) values[p] = of_part;
    });
  }
  if (!values.shared) {
    block.barrier();
  } else if (is_first) {
    block.arrive();
    return;
  } else {
    block.await_arrivals(static_cast<u32>(first_half));
  }
  ForEachPart(cut, own, [&](i64, i64 row, i64 index) {
    store(row, cut.ColumnsOf(index), &values[cut.FirstOfRow(row)], index);
  });
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_LONG_ROWS_H_
