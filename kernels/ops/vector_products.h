// This header multiplies a matrix of weights (weights.h) with vectors of any form, for gemv and its
// relatives (matrix.cc, matrix_quant.cc).
//
//   MultiplyVectors(block, product, weights);
//
// On a GPU each warp computes kRowsOfWarp outputs, and a lane reads 16 bytes of each row at a time
// (MultiplyByWarps). Rows that are not aligned are read by all threads of the block
// (MultiplyByBlocks), as by the CPU engine. Products that tensor cores have computed are replaced
// here where they are not finite (ReplaceInfinities).
#ifndef RESIDENT_KERNELS_OPS_VECTOR_PRODUCTS_H_
#define RESIDENT_KERNELS_OPS_VECTOR_PRODUCTS_H_

#include "kernels/ops/gemv_tensor_cores.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/warp.h"
#include "kernels/ops/weights.h"
#include "kernels/sdk/operator.h"

namespace resident {

inline constexpr bool kOneThread = Block::kMaxThreads == 1;

// Outputs that a block computes at a time. Each thread has a partial sum of each of them.
inline constexpr i32 kOutputs = 8;
// Elements of x that are in the block's memory at a time.
inline constexpr i64 kSegment = kOneThread ? 2048 : 4096;
static_assert((kSegment + (kOneThread ? kSegment : i64{kOutputs} * Block::kMaxThreads)) *
                      static_cast<i64>(sizeof(float)) <=
                  i64{kBlockMemoryBytes},
              "");

// Element i of the run with index `run` of x is in quad i / 4 of that run. The quads of equal
// number of all runs are adjacent, so that adjacent lanes read adjacent quads.
struct RunsOfX {
  const float* x;
  u32 count;

  RESIDENT_DEVICE Quad<float> At(u32 run, u32 quad) const {
    return reinterpret_cast<const Quad<float>*>(x)[quad * count + run];
  }
};

// The sum of the products. Partial sums make the additions independent.
[[maybe_unused]] RESIDENT_DEVICE float Dot(const float* a, const float* b, i64 count) {
  constexpr i32 kPartials = 16;
  float partial[kPartials] = {};
  i64 i = 0;
  for (; i + kPartials <= count; i += kPartials) {
    for (i32 k = 0; k < kPartials; ++k) partial[k] += a[i + k] * b[i + k];
  }
  for (; i < count; ++i) partial[0] += a[i] * b[i];
  for (i32 width = kPartials / 2; width > 0; width /= 2) {
    for (i32 k = 0; k < width; ++k) partial[k] += partial[k + width];
  }
  return partial[0];
}

// The calling thread's part of the sums of `count` rows, for columns [begin, end), whose elements
// of x start at `x`.
template <typename Weights>
RESIDENT_DEVICE void AddProducts(const Block& block, const Weights& weights, bool in_fours,
                                 const float* x, i64 row, i64 count, i64 begin, i64 end,
                                 float (&sums)[kOutputs]) {
  if (in_fours) {
    RESIDENT_UNROLL(1)
    for (i64 k = begin + 4 * i64{block.thread()}; k < end; k += 4 * i64{block.threads()}) {
      const Quad<float> values = *reinterpret_cast<const Quad<float>*>(x + (k - begin));
      const i64 group = weights.GroupOf(k);
      for (i32 r = 0; r < kOutputs; ++r) {
        if (r >= count) continue;
        float w[4];
        weights.Four(row + r, k, group, w);
        for (i32 i = 0; i < 4; ++i) sums[r] += values.v[i] * w[i];
      }
    }
    return;
  }
  RESIDENT_UNROLL(1)
  for (i64 k = begin + block.thread(); k < end; k += block.threads()) {
    const float value = x[k - begin];
    const i64 group = weights.GroupOf(k);
    for (i32 r = 0; r < kOutputs; ++r) {
      if (r < count) sums[r] += value * weights.One(row + r, k, group);
    }
  }
}

// The products of each group of kOutputs rows with each vector.
RESIDENT_DEVICE i64 GroupsOfRows(const VectorProduct& p) {
  return (p.rows + kOutputs - 1) / kOutputs * p.vectors;
}

// Computes these products of groups of rows with vectors.
template <typename Weights>
RESIDENT_NOINLINE void MultiplyByBlocks(Block block, const VectorProduct& p, const Weights& weights,
                                        Range items) {
  const bool in_fours = weights.InFours();
  float* const x = block.memory<float>(0, kSegment);
  constexpr u32 kOthers = kSegment * sizeof(float);
  float* const others = block.memory<float>(kOthers, (kBlockMemoryBytes - kOthers) / sizeof(float));
  i64 in_memory = -1;  // The vector whose elements are at x.
  RESIDENT_UNROLL(1)
  for (i64 item = items.begin; item < items.end; ++item) {
    const i64 group = Quotient(item, p.vectors);
    const i64 vector = item - group * p.vectors;
    const i64 row = group * kOutputs;
    const i64 count = Smallest(kOutputs, p.rows - row);
    float sums[kOutputs] = {};
    RESIDENT_UNROLL(1)
    for (i64 begin = 0; begin < p.depth; begin += kSegment) {
      const i64 end = Smallest(begin + kSegment, p.depth);
      if (in_memory != vector || p.depth > kSegment) {
        block.barrier();  // The reads of the previous elements have finished.
        VisitFloat(p.x_dtype, [&](auto element) {
          const auto* const from =
              ElementAt<const decltype(element)>(p.x, p.Vector(vector) + begin);
          RESIDENT_UNROLL(4)
          for (u32 i = block.thread(); i < static_cast<u32>(end - begin); i += block.threads()) {
            x[i] = from[i];
          }
        });
        block.barrier();
        in_memory = vector;
      }
      if constexpr (kOneThread) {
        for (i64 r = 0; r < count; ++r) {
          sums[r] += Dot(x, weights.Several(row + r, begin, end - begin, others), end - begin);
        }
      } else {
        AddProducts(block, weights, in_fours, x, row, count, begin, end, sums);
      }
    }
    if constexpr (kOneThread) {
      for (i64 r = 0; r < count; ++r) StoreOutput(p, vector, row + r, sums[r]);
    } else {
      // Adds the threads' partial sums: first kOutputs of them by each thread, then the rest.
      const u32 threads = block.threads();
      const u32 parts = threads / kOutputs;
      for (u32 r = 0; r < kOutputs; ++r) others[r * threads + block.thread()] = sums[r];
      block.barrier();
      float* const mine = others + block.thread() / parts * threads + block.thread() % parts;
      float sum = mine[0];
      for (u32 i = 1; i < kOutputs; ++i) sum += mine[i * parts];
      mine[0] = sum;
      block.barrier();
      if (block.thread() < count) {
        const float* const part = others + block.thread() * threads;
        float all = 0.0f;
        RESIDENT_UNROLL(4)
        for (u32 i = 0; i < parts; ++i) all += part[i];
        StoreOutput(p, vector, row + block.thread(), all);
      }
      block.barrier();  // The reads of the partial sums have finished.
    }
  }
}

#if RESIDENT_WARPS

// Rows whose products a warp computes at a time, and rows that are one item of a chunk's share.
inline constexpr i32 kRowsOfWarp = 4;
inline constexpr i64 kRowsOfItem = 32;
// Elements of x that are in the block's memory at a time: whole runs of each lane.
inline constexpr i64 kSegmentOfRuns = kBlockMemoryBytes / sizeof(float) / 1024 * 1024;

// Copies elements [begin, end) of x to the block's memory, in runs of kRun elements.
template <i32 kRun>
RESIDENT_DEVICE void StageRuns(const Block& block, const VectorProduct& p, i64 vector, i64 begin,
                               i64 end, float* to) {
  const i64 runs = (end - begin) / kRun;
  VisitFloat(p.x_dtype, [&](auto element) {
    using T = decltype(element);
    const T* const from = ElementAt<const T>(p.x, p.Vector(vector) + begin);
    const bool aligned = reinterpret_cast<u64>(from) % sizeof(Quad<T>) == 0;
    RESIDENT_UNROLL(4)
    for (i32 i = static_cast<i32>(block.thread()); i < static_cast<i32>(end - begin) / 4;
         i += static_cast<i32>(block.threads())) {
      const i32 run = i / (kRun / 4);
      const i32 quad = i % (kRun / 4);
      Quad<float> values;
      if (aligned) {
        const Quad<T> quad = reinterpret_cast<const Quad<T>*>(from)[i];
        for (i32 k = 0; k < 4; ++k) values.v[k] = quad.v[k];
      } else {
        for (i32 k = 0; k < 4; ++k) values.v[k] = from[4 * i + k];
      }
      *reinterpret_cast<Quad<float>*>(to + 4 * (quad * runs + run)) = values;
    }
  });
}

// (warp) The sum of a row, in which each weight is multiplied by its scale, if it has one, before
// it is multiplied by x.
template <typename Weights>
RESIDENT_NOINLINE float SumOfScaled(const VectorProduct& p, const Weights& weights, i64 vector,
                                    i64 row, u32 lane) {
  float sum = 0.0f;
  RESIDENT_UNROLL(1)
  for (i64 k = lane; k < p.depth; k += kWarpThreads) {
    sum +=
        LoadFloat(p.x, p.x_dtype, p.Vector(vector) + k) * weights.One(row, k, weights.GroupOf(k));
  }
  return CombineLanes(sum, [](float a, float b) { return a + b; });
}

// The calling lane's parts of the sums of kRowsOfWarp rows.
struct SumsOfLane {
  float v[kRowsOfWarp];
};

// Adds the calling lane's products of rows row to row + kRowsOfWarp - 1, from column `begin` on. A
// row's products are added in the same order by any warp. It is a function of its own so that its
// loop has all registers.
template <typename Weights>
RESIDENT_NOINLINE SumsOfLane AddRuns(Block block, const Weights& weights, i64 row, i64 begin,
                                     u32 count, SumsOfLane sums) {
  // While the products of one run of each row are computed, the loads of so many others are under
  // way. Weights of few bits need more registers, and more instructions for each byte.
  constexpr u32 kAhead = Weights::kScaled ? 1 : 2;
  const u32 lane = LaneOf(block);
  const RunsOfX x = {block.memory<float>(0, kSegmentOfRuns), count};
  const WeightRun* from[kRowsOfWarp];
  for (i32 r = 0; r < kRowsOfWarp; ++r) from[r] = weights.RunAt(row + r, begin);
  typename Weights::Groups groups(weights, row, begin + lane * u32{Weights::kRun});
  WeightRun runs[kAhead][kRowsOfWarp];
  const auto load = [&](u32 n, u32 at) {
    // A run that does not exist is another one, which is not used.
    const u32 existing = at < count ? at : 0;
    for (i32 r = 0; r < kRowsOfWarp; ++r) runs[n][r] = LoadOnce(from[r] + existing);
  };
  for (u32 n = 0; n < kAhead; ++n) load(n, lane + n * kWarpThreads);
  RESIDENT_UNROLL(1)
  for (u32 index = lane; index < count; index += kAhead * kWarpThreads) {
    RESIDENT_UNROLL(2)
    for (u32 n = 0; n < kAhead; ++n) {
      const u32 at = index + n * kWarpThreads;
      if (n > 0 && at >= count) break;
      WeightRun run[kRowsOfWarp];
      for (i32 r = 0; r < kRowsOfWarp; ++r) run[r] = runs[n][r];
      load(n, at + kAhead * kWarpThreads);
      typename Weights::Common common[kRowsOfWarp];
      float products[kRowsOfWarp] = {};
      for (i32 r = 0; r < kRowsOfWarp; ++r) common[r] = groups.Of(r);
      groups.Advance();
      RESIDENT_UNROLL(8)
      for (i32 quad = 0; quad < Weights::kRun / 4; ++quad) {
        const Quad<float> values = x.At(at, static_cast<u32>(quad));
        for (i32 r = 0; r < kRowsOfWarp; ++r) {
          for (i32 i = 0; i < 4; ++i) {
            products[r] += values.v[i] * weights.Value(run[r], 4 * quad + i, common[r]);
          }
        }
      }
      for (i32 r = 0; r < kRowsOfWarp; ++r) {
        sums.v[r] += products[r] * Weights::Scale(common[r]);
      }
    }
  }
  return sums;
}

// The chunks share the products of each item with each vector. REQUIRES: weights.InRuns(), and at
// least kRowsOfWarp rows.
template <typename Weights>
RESIDENT_NOINLINE void MultiplyByWarps(Block block, const VectorProduct& p,
                                       const Weights& weights) {
  const i64 items = (p.rows + kRowsOfItem - 1) / kRowsOfItem;
  const Range share = block.share(items * p.vectors);
  const i64 rows_of_warps = i64{kRowsOfWarp} * (block.threads() / kWarpThreads);
  const u32 lane = LaneOf(block);
  float* const memory = block.memory<float>(0, kSegmentOfRuns);
  i64 in_memory = -1;  // The vector whose elements are in the memory.
  RESIDENT_UNROLL(1)
  for (i64 item = share.begin; item < share.end; ++item) {
    const i64 rows_of_item = Quotient(item, p.vectors);
    const i64 vector = item - rows_of_item * p.vectors;
    const i64 end_row = Smallest((rows_of_item + 1) * kRowsOfItem, p.rows);
    RESIDENT_UNROLL(1)
    for (i64 first = rows_of_item * kRowsOfItem; first < end_row; first += rows_of_warps) {
      const i64 own_row = first + i64{WarpOf(block)} * kRowsOfWarp;
      // The last warp also computes rows of the one before it, instead of rows that do not exist.
      const i64 row = Smallest(own_row, p.rows - kRowsOfWarp);
      SumsOfLane sums = {};
      RESIDENT_UNROLL(1)
      for (i64 begin = 0; begin < p.depth; begin += kSegmentOfRuns) {
        const i64 end = Smallest(begin + kSegmentOfRuns, p.depth);
        if (in_memory != vector || p.depth > kSegmentOfRuns) {
          // The reads of the previous elements, and of what was in the memory before, have
          // finished.
          block.barrier();
          StageRuns<Weights::kRun>(block, p, vector, begin, end, memory);
          block.barrier();
          in_memory = vector;
        }
        if (own_row < end_row) {
          sums = AddRuns(block, weights, row, begin,
                         static_cast<u32>(end - begin) / u32{Weights::kRun}, sums);
        }
      }
      // Lane r gets the sum of row r.
      float sum = 0.0f;
      for (i32 r = 0; r < kRowsOfWarp; ++r) {
        const float all = CombineLanes(sums.v[r], [](float a, float b) { return a + b; });
        if (lane == static_cast<u32>(r)) sum = all;
      }
      if constexpr (Weights::kScaled) {
        // A run's sum may be out of range without the scale, and not with it. This is seen only
        // here, as a sum that is not finite remains so.
        const bool finite = sum - sum == 0.0f;
        if (AnyLane(!finite)) {
          RESIDENT_UNROLL(1)
          for (u32 r = 0; r < kRowsOfWarp; ++r) {
            const float scaled = SumOfScaled(p, weights, vector, row + r, lane);
            if (lane == r && !finite) sum = scaled;
          }
        }
      }
      if (lane < kRowsOfWarp && row + lane >= own_row && row + lane < end_row) {
        StoreOutput(p, vector, row + lane, sum);
      }
    }
  }
}

RESIDENT_DEVICE i64 VectorsOf(i64 outputs, i64 rows) {
  return outputs == rows ? 1 : Quotient(outputs, rows);
}

// Computes the chunk's results that are not finite again, as SumOfScaled does.
template <typename Weights>
RESIDENT_DEVICE void ReplaceInfinities(const Block& block, const TensorTask& task,
                                       const Weights& weights) {
  const VectorProduct& p = task.product;
  const u32 lane = LaneOf(block);
  RESIDENT_UNROLL(1)
  for (i64 item = task.share.begin; item < task.share.end; ++item) {
    const i64 rows_of_item = Quotient(item, task.batches);
    const i64 first_row = rows_of_item * TensorTask::kItemRows;
    const i64 first_vector = (item - rows_of_item * task.batches) * task.item_vectors;
    const i64 rows = Smallest(TensorTask::kItemRows, p.rows - first_row);
    const i64 vectors = Smallest(task.item_vectors, p.vectors - first_vector);
    RESIDENT_UNROLL(1)
    for (i64 i = WarpOf(block); i < rows * vectors; i += block.threads() / kWarpThreads) {
      const i64 vector = first_vector + i / rows;
      const i64 row = first_row + i % rows;
      const float stored = LoadFloat(p.out, p.out_dtype, vector * p.rows + row);
      // All lanes have read it before one of them replaces it.
      if (!AnyLane(!(stored - stored == 0.0f))) continue;
      const float sum = SumOfScaled(p, weights, vector, row, lane);
      if (lane == 0) StoreOutput(p, vector, row, sum);
    }
  }
}

#endif  // RESIDENT_WARPS

template <typename Weights>
RESIDENT_DEVICE void MultiplyVectors(const Block& block, const VectorProduct& p,
                                     const Weights& weights) {
#if RESIDENT_WARPS
  if (p.rows >= kRowsOfWarp && weights.InRuns()) {
    MultiplyByWarps(block, p, weights);
    return;
  }
#endif
  MultiplyByBlocks(block, p, weights, block.share(GroupsOfRows(p)));
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_VECTOR_PRODUCTS_H_
