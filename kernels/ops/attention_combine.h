// attention_combine: merges the results of attention_partial for parts of the keys.
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_COMBINE_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_COMBINE_H_

#include "kernels/ops/attention_task.h"
#include "kernels/ops/warp.h"

namespace resident::attention {

// The tensors of attention_combine.
struct CombineTask {
  const float* acc;
  const float* largest;
  const float* sums;
  u64 out;
  DType dtype;
  i64 parts;
  i64 columns;
};

#if RESIDENT_WARPS

// Merges the parts of rows: a warp has a row, a lane has every 32nd part, then every 32nd column.
RESIDENT_NOINLINE void CombineRows(const Block& block, const CombineTask& task, Range rows) {
  const i64 parts = task.parts;
  const i64 columns = task.columns;
  const i64 lane = LaneOf(block);
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin + block.thread() / 32; row < rows.end; row += block.threads() / 32) {
    const float* const largest = task.largest + row * parts;
    const float* const sums = task.sums + row * parts;
    float top = -math::infinity();
    RESIDENT_UNROLL(1)
    for (i64 p = lane; p < parts; p += 32) {
      const float score = largest[p];
      if (sums[p] != 0.0f && score != -math::infinity()) top = Larger(top, score);
    }
    top = CombineLanes(top, [](float a, float b) { return Larger(a, b); });
    const float base = BaseOf(top);
    // -0 for an empty part.
    const auto weight = [=](i64 p) {
      if (p >= parts || sums[p] == 0.0f || largest[p] == -math::infinity()) return -0.0f;
      return math::exp(largest[p] - base);
    };
    float sum = 0.0f;
    RESIDENT_UNROLL(1)
    for (i64 p = lane; p < parts; p += 32) {
      const float w = weight(p);
      if (!IsHidden(w)) sum += w * sums[p];
    }
    sum = CombineLanes(sum, [](float a, float b) { return a + b; });

    constexpr i32 kColumns = 4;  // Of a lane at once.
    RESIDENT_UNROLL(1)
    for (i64 first = 0; first < columns; first += 32 * kColumns) {
      float totals[kColumns] = {};
      RESIDENT_UNROLL(1)
      for (i64 first_part = 0; first_part < parts; first_part += 32) {
        const float own_weight = weight(first_part + lane);
        const i32 count = static_cast<i32>(Smallest(parts - first_part, 32));
        const float* values = task.acc + (row * parts + first_part) * columns + first + lane;
        RESIDENT_UNROLL(4)
        for (i32 p = 0; p < count; ++p) {
          const float w = Shuffle(own_weight, static_cast<u32>(p));
          RESIDENT_UNROLL(4)
          for (i32 i = 0; i < kColumns; ++i) {
            const bool there = first + lane + 32 * i < columns && !IsHidden(w);
            totals[i] += w * (there ? values[32 * i] : 0.0f);
          }
          values += columns;
        }
      }
      RESIDENT_UNROLL(1)
      for (i32 i = 0; i < kColumns; ++i) {
        const i64 column = first + lane + 32 * i;
        if (column >= columns) break;
        float total = totals[0];
        if (i == 1) total = totals[1];
        if (i == 2) total = totals[2];
        if (i == 3) total = totals[3];
        StoreFloat(task.out, task.dtype, row * columns + column, sum == 0.0f ? 0.0f : total / sum);
      }
    }
  }
}

#else

// Merges the parts of rows.
RESIDENT_DEVICE void CombineRows(const Block& block, const CombineTask& task, Range rows) {
  const i64 parts = task.parts;
  const i64 columns = task.columns;
  // The weights of the first parts; those of more parts are computed again for each column.
  constexpr i64 kStored = 4096;
  float* const stored = block.memory<float>(0, kStored);
  const auto larger = [](float a, float b) { return Larger(a, b); };
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const float* const row_largest = task.largest + row * parts;
    const float* const row_sums = task.sums + row * parts;
    const auto empty = [=](i64 p) {
      return row_sums[p] == 0.0f || row_largest[p] == -math::infinity();
    };
    float top = -math::infinity();
    ForEach(block, parts, [&](i64 p) {
      if (!empty(p)) top = Larger(top, row_largest[p]);
    });
    top = block.reduce(top, larger);
    const float base = BaseOf(top);
    const auto weight = [=](i64 p) { return empty(p) ? 0.0f : math::exp(row_largest[p] - base); };
    float sum = 0.0f;
    ForEach(block, parts, [&](i64 p) {
      const float w = weight(p);
      if (p < kStored) stored[p] = w;
      sum += empty(p) ? 0.0f : w * row_sums[p];
    });
    sum = block.reduce_sum(sum);  // The weights have been stored.
    const float* const values = task.acc + row * parts * columns;
    ForEach(block, columns, [&](i64 column) {
      float total = 0.0f;
      RESIDENT_UNROLL(1)
      for (i64 p = 0; p < parts; ++p) {
        if (empty(p)) continue;
        total += (p < kStored ? stored[p] : weight(p)) * values[p * columns + column];
      }
      StoreFloat(task.out, task.dtype, row * columns + column, sum == 0.0f ? 0.0f : total / sum);
    });
    block.barrier();
  }
}

#endif  // RESIDENT_WARPS

}  // namespace resident::attention

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_COMBINE_H_
