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
  i64 parts;  // That are merged, the first ones of a row,
  i64 pitch;  // and those that it has.
  i64 columns;
};

#if RESIDENT_WARPS

// Adds 32 parts of a row, or `count` if these are fewer, times their weights to the calling lane's
// columns: those of `values`, and every 32nd one from there on. Lane p has the weight of part p.
template <u32 kColumns, typename Index>
RESIDENT_DEVICE void AddParts(const float* values, Index columns, Index existing, u32 count,
                              float own_weight, float (&totals)[kColumns]) {
  constexpr u32 kAhead = 8;  // Parts whose values are read before the first of them is used.
  RESIDENT_UNROLL(1)
  for (u32 first = 0; first < count; first += kAhead) {
    float part[kAhead][kColumns];
    RESIDENT_UNROLL(8)
    for (u32 p = 0; p < kAhead; ++p) {
      RESIDENT_UNROLL(4)
      for (u32 i = 0; i < kColumns; ++i) {
        const bool there = first + p < count && 32 * i < existing;
        part[p][i] = there ? values[i64{p} * columns + 32 * i] : 0.0f;
      }
    }
    RESIDENT_UNROLL(8)
    for (u32 p = 0; p < kAhead; ++p) {
      const float w = Shuffle(own_weight, (first + p) % kWarpThreads);
      // The values of an empty part may be infinite or NaN.
      const bool empty = first + p >= count || IsHidden(w);
      RESIDENT_UNROLL(4)
      for (u32 i = 0; i < kColumns; ++i) totals[i] += empty ? 0.0f : w * part[p][i];
    }
    values += i64{kAhead} * columns;
  }
}

// Merges the parts of rows: a warp has a row, a lane has every 32nd part, then every 32nd column,
// and kColumns of these at once. Index: has the numbers of parts and columns, and some more.
template <u32 kColumns, typename Index>
RESIDENT_DEVICE void CombineRowsBy(const Block& block, const CombineTask& of_block, Range rows) {
  const CombineTask task = of_block;
  const Index parts = static_cast<Index>(task.parts);
  const Index columns = static_cast<Index>(task.columns);
  const Index lane = LaneOf(block);
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin + WarpOf(block); row < rows.end; row += block.threads() / 32) {
    const i64 first_of_row = row * task.pitch;
    const float* const largest = task.largest + first_of_row;
    const float* const sums = task.sums + first_of_row;
    // The lane's parts of a row with at most 32 parts are read once.
    struct Part {
      float largest;
      float sum;
    };
    const auto read = [=](Index p) {
      Part part = {-math::infinity(), 0.0f};
      if (p < parts) part = {largest[p], sums[p]};
      return part;
    };
    const auto is_empty = [](const Part& part) {
      return part.sum == 0.0f || part.largest == -math::infinity();
    };
    const Part first_part = read(lane);
    float top = is_empty(first_part) ? -math::infinity() : first_part.largest;
    RESIDENT_UNROLL(1)
    for (Index p = lane + 32; p < parts; p += 32) {
      const Part part = read(p);
      if (!is_empty(part)) top = Larger(top, part.largest);
    }
    top = CombineLanes(top, [](float a, float b) { return Larger(a, b); });
    const float base = BaseOf(top);
    // -0 for an empty part.
    const auto weigh = [=](const Part& part) {
      return is_empty(part) ? -0.0f : math::exp(part.largest - base);
    };
    const float first_weight = weigh(first_part);
    float sum = is_empty(first_part) ? 0.0f : first_weight * first_part.sum;
    RESIDENT_UNROLL(1)
    for (Index p = lane + 32; p < parts; p += 32) {
      const Part part = read(p);
      if (!is_empty(part)) sum += weigh(part) * part.sum;
    }
    sum = CombineLanes(sum, [](float a, float b) { return a + b; });

    RESIDENT_UNROLL(1)
    for (Index first = lane; first - lane < columns; first += 32 * kColumns) {
      float totals[kColumns] = {};
      const Index existing = first < columns ? columns - first : 0;
      RESIDENT_UNROLL(1)
      for (Index part = 0; part < parts; part += 32) {
        AddParts(task.acc + (first_of_row + part) * columns + first, columns, existing,
                 static_cast<u32>(parts - part < 32 ? parts - part : 32),
                 part == 0 ? first_weight : weigh(read(part + lane)), totals);
      }
      RESIDENT_UNROLL(4)
      for (u32 i = 0; i < kColumns; ++i) {
        if (32 * i >= existing) continue;
        StoreFloat(task.out, task.dtype, row * columns + first + 32 * i,
                   sum == 0.0f ? 0.0f : totals[i] / sum);
      }
    }
  }
}
RESIDENT_NOINLINE void CombineRows(Block block, CombineTask task, Range rows) {
  if ((task.parts | task.columns) >> 30 != 0) {
    CombineRowsBy<4, i64>(block, task, rows);
  } else if (task.columns <= 64) {
    CombineRowsBy<2, u32>(block, task, rows);
  } else {
    CombineRowsBy<4, u32>(block, task, rows);
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
    const float* const row_largest = task.largest + row * task.pitch;
    const float* const row_sums = task.sums + row * task.pitch;
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
    const float* const values = task.acc + row * task.pitch * columns;
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
