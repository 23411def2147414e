// The family "matrix": products of matrices with vectors, and matrices whose elements are stored in
// few bits. gemm.cc has products of matrices.
//
// rmsnorm_gemv and rmsnorm_gemv_silu_mul normalize x first. gemv_one_vector.h has the form of a
// model's layers. Otherwise the normalized vector is written to the block's scratch memory, one at
// a time, and multiplied from there.
//
// The weights are read once, so that a product is as fast as the memory. On a GPU, one vector and
// long rows of 16 bits have a form of their own (gemv_one_vector.h), and tensor cores multiply
// other vectors of 16-bit elements, and of float32 with weights of bfloat16
// (gemv_tensor_cores.h). For other vectors each warp computes kRowsOfWarp outputs, and a lane reads
// 16 bytes of each row at a time (MultiplyByWarps). Rows that are not aligned are read by all
// threads of the block (MultiplyByBlocks), as by the CPU engine.
#include "kernels/ops/gemv_one_vector.h"
#include "kernels/ops/gemv_tensor_cores.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/warp.h"
#include "kernels/ops/weights.h"
#include "kernels/sdk/operator.h"

using resident::AddressOf;
using resident::Any;
using resident::Args;
using resident::BFloat16;
using resident::bit_cast;
using resident::Block;
using resident::Bytes16;
using resident::CompletionStatus;
using resident::DenseWeights;
using resident::DType;
using resident::ElementAt;
using resident::Half;
using resident::i32;
using resident::i64;
using resident::kWarpThreads;
using resident::LoadFloat;
using resident::Quad;
using resident::Quotient;
using resident::Range;
using resident::Smallest;
using resident::StoreFloat;
using resident::StoreOutput;
using resident::Tensor;
using resident::u16;
using resident::u32;
using resident::u64;
using resident::u8;
using resident::VectorProduct;
using resident::VisitFloat;
using resident::WeightRun;
#if RESIDENT_WARPS
using resident::BytesFormat;
using resident::DenseFormat;
using resident::NibblesFormat;
using resident::TensorTask;
#endif

namespace {

constexpr bool kOneThread = Block::kMaxThreads == 1;

// --- gemv ---------------------------------------------------------------------------------------

// Outputs that a block computes at a time. Each thread has a partial sum of each of them.
constexpr i32 kOutputs = 8;
// Elements of x that are in the block's memory at a time.
constexpr i64 kSegment = kOneThread ? 2048 : 4096;
static_assert((kSegment + (kOneThread ? kSegment : i64{kOutputs} * Block::kMaxThreads)) *
                      static_cast<i64>(sizeof(float)) <=
                  i64{resident::kBlockMemoryBytes},
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
  float* const others =
      block.memory<float>(kOthers, (resident::kBlockMemoryBytes - kOthers) / sizeof(float));
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
              ElementAt<const decltype(element)>(p.x, vector * p.depth + begin);
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
constexpr i32 kRowsOfWarp = 4;
constexpr i64 kRowsOfItem = 32;
// Elements of x that are in the block's memory at a time: whole runs of each lane.
constexpr i64 kSegmentOfRuns = resident::kBlockMemoryBytes / sizeof(float) / 1024 * 1024;

// Copies elements [begin, end) of x to the block's memory, in runs of kRun elements.
template <i32 kRun>
RESIDENT_DEVICE void StageRuns(const Block& block, const VectorProduct& p, i64 vector, i64 begin,
                               i64 end, float* to) {
  const i64 runs = (end - begin) / kRun;
  VisitFloat(p.x_dtype, [&](auto element) {
    using T = decltype(element);
    const T* const from = ElementAt<const T>(p.x, vector * p.depth + begin);
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
        LoadFloat(p.x, p.x_dtype, vector * p.depth + k) * weights.One(row, k, weights.GroupOf(k));
  }
  return resident::CombineLanes(sum, [](float a, float b) { return a + b; });
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
  const u32 lane = resident::LaneOf(block);
  const RunsOfX x = {block.memory<float>(0, kSegmentOfRuns), count};
  const WeightRun* from[kRowsOfWarp];
  for (i32 r = 0; r < kRowsOfWarp; ++r) from[r] = weights.RunAt(row + r, begin);
  typename Weights::Groups groups(weights, row, begin + lane * u32{Weights::kRun});
  WeightRun runs[kAhead][kRowsOfWarp];
  const auto load = [&](u32 n, u32 at) {
    // A run that does not exist is another one, which is not used.
    const u32 existing = at < count ? at : 0;
    for (i32 r = 0; r < kRowsOfWarp; ++r) runs[n][r] = resident::LoadOnce(from[r] + existing);
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
  const u32 lane = resident::LaneOf(block);
  float* const memory = block.memory<float>(0, kSegmentOfRuns);
  i64 in_memory = -1;  // The vector whose elements are in the memory.
  RESIDENT_UNROLL(1)
  for (i64 item = share.begin; item < share.end; ++item) {
    const i64 rows_of_item = Quotient(item, p.vectors);
    const i64 vector = item - rows_of_item * p.vectors;
    const i64 end_row = Smallest((rows_of_item + 1) * kRowsOfItem, p.rows);
    RESIDENT_UNROLL(1)
    for (i64 first = rows_of_item * kRowsOfItem; first < end_row; first += rows_of_warps) {
      const i64 own_row = first + i64{resident::WarpOf(block)} * kRowsOfWarp;
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
        const float all = resident::CombineLanes(sums.v[r], [](float a, float b) { return a + b; });
        if (lane == static_cast<u32>(r)) sum = all;
      }
      if constexpr (Weights::kScaled) {
        // A run's sum may be out of range without the scale, and not with it. This is seen only
        // here, as a sum that is not finite remains so.
        const bool finite = sum - sum == 0.0f;
        if (resident::AnyLane(!finite)) {
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

// Details of INVALID_ARGUMENT.
constexpr u16 kBadBias = 1;
constexpr u16 kMixedWeights = 1;
constexpr u16 kLongVector = 2;

// Argument 0, normalized with argument 1: one vector at a time, in the first half of the block's
// scratch memory.
constexpr u64 kNormalizedBytes = resident::kScratchBytes / 2;
constexpr i64 kMostNormalized = static_cast<i64>(kNormalizedBytes / sizeof(float));

// Returns the address of the normalized vector, which all threads may read.
RESIDENT_NOINLINE u64 NormalizeVector(Block block, Args args, i64 vector, float eps) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> norm = args.tensor<const Any>(1);
  const i64 depth = norm.shape(0);
  const float per_column = 1.0f / static_cast<float>(depth);
  float* const to = block.scratch<float>(0, static_cast<u64>(depth));
  // Few additions one after the other, also where the block has one thread.
  constexpr i32 kPartials = 16;
  float partial[kPartials] = {};
  VisitFloat(x.dtype(), [&](auto element) {
    const auto* const from = ElementAt<const decltype(element)>(AddressOf(x), vector * depth);
    const i64 threads = block.threads();
    const auto add = [&](i64 k, float& sum) {
      const float value = from[k];
      sum += value * value * per_column;
    };
    i64 k = block.thread();
    RESIDENT_UNROLL(1)
    for (; k + (kPartials - 1) * threads < depth; k += kPartials * threads) {
      for (i32 p = 0; p < kPartials; ++p) add(k + p * threads, partial[p]);
    }
    RESIDENT_UNROLL(1)
    for (; k < depth; k += threads) add(k, partial[0]);
  });
  for (i32 width = kPartials / 2; width > 0; width /= 2) {
    for (i32 p = 0; p < width; ++p) partial[p] += partial[p + width];
  }
  const float scale = 1.0f / resident::math::sqrt(block.reduce_sum(partial[0]) + eps);
  VisitFloat(x.dtype(), [&](auto element) {
    const auto* const from = ElementAt<const decltype(element)>(AddressOf(x), vector * depth);
    block.for_each({0, depth}, [&](i64 k) { to[k] = from[k] * scale; });
  });
  // A thread has the same elements as before.
  VisitFloat(norm.dtype(), [&](auto element) {
    const auto* const weights = ElementAt<const decltype(element)>(AddressOf(norm), 0);
    block.for_each({0, depth}, [&](i64 k) { to[k] *= weights[k]; });
  });
  block.barrier();
  return reinterpret_cast<u64>(to);
}

// gemv, with kNormalized rmsnorm_gemv.
template <bool kNormalized>
RESIDENT_NOINLINE void MultiplyDense(Block block, Args args) {
  constexpr u32 kMatrix = resident::kArgumentOfMatrix<kNormalized>;
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> w = args.tensor<const Any>(kMatrix);
  const Tensor<const Any> bias = args.tensor<const Any>(kMatrix + 1);
  const Tensor<const Any> out = args.tensor<const Any>(kMatrix + 2);
  const i64 rows = w.shape(0);
  const i64 depth = w.shape(1);
  if (bias.size() != 0 && (bias.rank() != 1 || bias.shape(0) != rows)) {
    block.fail(CompletionStatus::kInvalidArgument, kBadBias);
    return;
  }
  if (kNormalized && depth > kMostNormalized) {
    block.fail(CompletionStatus::kInvalidArgument, kLongVector);
    return;
  }
  if (out.size() == 0) return;
  const VectorProduct p = {AddressOf(x),
                           bias.size() == 0 ? 0 : AddressOf(bias),
                           AddressOf(out),
                           x.dtype(),
                           bias.dtype(),
                           out.dtype(),
                           out.size() / rows,
                           rows,
                           depth};
  VisitFloat(w.dtype(), [&](auto element) {
    using T = decltype(element);
    const DenseWeights<T> weights = {ElementAt<const T>(AddressOf(w), 0), depth};
    if constexpr (kNormalized) {
      const float eps = args.scalar<float>(kMatrix + 3);
      const u64 row_bytes = static_cast<u64>(rows) * SizeOf(out.dtype());
      VectorProduct one = p;
      one.x_dtype = DType::kF32;
      one.vectors = 1;
      RESIDENT_UNROLL(1)
      for (i64 vector = 0; vector < p.vectors; ++vector) {
        one.x = NormalizeVector(block, args, vector, eps);
        MultiplyVectors(block, one, weights);
        one.out += row_bytes;
      }
    } else {
      MultiplyVectors(block, p, weights);
    }
  });
}

#if RESIDENT_WARPS

RESIDENT_DEVICE i64 VectorsOf(i64 outputs, i64 rows) {
  return outputs == rows ? 1 : Quotient(outputs, rows);
}

// Computes the chunk's results that are not finite again, as SumOfScaled does.
template <typename Weights>
RESIDENT_DEVICE void ReplaceInfinities(const Block& block, const TensorTask& task,
                                       const Weights& weights) {
  const VectorProduct& p = task.product;
  const u32 lane = resident::LaneOf(block);
  RESIDENT_UNROLL(1)
  for (i64 item = task.share.begin; item < task.share.end; ++item) {
    const i64 rows_of_item = Quotient(item, task.batches);
    const i64 first_row = rows_of_item * TensorTask::kItemRows;
    const i64 first_vector = (item - rows_of_item * task.batches) * task.item_vectors;
    const i64 rows = Smallest(TensorTask::kItemRows, p.rows - first_row);
    const i64 vectors = Smallest(task.item_vectors, p.vectors - first_vector);
    RESIDENT_UNROLL(1)
    for (i64 i = resident::WarpOf(block); i < rows * vectors; i += block.threads() / kWarpThreads) {
      const i64 vector = first_vector + i / rows;
      const i64 row = first_row + i % rows;
      const float stored = LoadFloat(p.out, p.out_dtype, vector * p.rows + row);
      // All lanes have read it before one of them replaces it.
      if (!resident::AnyLane(!(stored - stored == 0.0f))) continue;
      const float sum = SumOfScaled(p, weights, vector, row, lane);
      if (lane == 0) StoreOutput(p, vector, row, sum);
    }
  }
}

// Reads the arguments of gemv. After a barrier task.fits is false if tensor cores cannot multiply
// them, or if they are refused.
RESIDENT_NOINLINE TensorTask& ReadDense(Block block, Args args) {
  TensorTask& task = TensorTask::Read<4>(block, args);
  if (block.thread() != 0) return task;
  const auto& [x, w, bias, out, none] = task.operands;
  const i64 rows = w.shape[0];
  const bool has_bias = bias.size != 0;
  task.fits = false;
  if (has_bias && (bias.rank != 1 || bias.shape[0] != rows)) return task;
  if (out.size == 0 || w.dtype == DType::kF32) return task;
  if (x.dtype != w.dtype && !(x.dtype == DType::kF32 && w.dtype == DType::kBF16)) return task;
  task.product = {x.address, has_bias ? bias.address : 0, out.address, x.dtype,   bias.dtype,
                  out.dtype, VectorsOf(out.size, rows),   rows,        w.shape[1]};
  task.data = w.address;
  task.Prepare<16>(block);
  return task;
}

RESIDENT_NOINLINE void ReplaceDense(Block block, const TensorTask& task) {
  ReplaceInfinities(
      block, task,
      DenseWeights<BFloat16>{ElementAt<const BFloat16>(task.data, 0), task.product.depth});
}

#endif  // RESIDENT_WARPS

}  // namespace

RESIDENT_OPERATOR(gemv)(Block& block, const Args& args) {
  if (resident::MultiplyOneVector</*kNormalized=*/false>(block, args) || !block.await_inputs()) {
    return;
  }
#if RESIDENT_WARPS
  TensorTask& task = ReadDense(block, args);
  block.barrier();
  if (task.fits) {
    if (task.product.x_dtype == DType::kF16) {
      resident::MultiplyByTensorCores<DenseFormat<Half>>(block, task);
    } else if (task.product.x_dtype == DType::kBF16) {
      resident::MultiplyByTensorCores<DenseFormat<BFloat16>>(block, task);
    } else {
      resident::MultiplyByTensorCores<DenseFormat<BFloat16, resident::kPartsOfFloat>>(block, task);
      if (task.not_finite) ReplaceDense(block, task);
    }
    return;
  }
#endif
  MultiplyDense</*kNormalized=*/false>(block, args);
}

RESIDENT_OPERATOR(rmsnorm_gemv)(Block& block, const Args& args) {
  if (resident::MultiplyOneVector</*kNormalized=*/true>(block, args) || !block.await_inputs()) {
    return;
  }
  MultiplyDense</*kNormalized=*/true>(block, args);
}

// --- gemv_silu_mul ------------------------------------------------------------------------------

namespace {

// The products of a slice of rows, of both matrices in turn, are in the block's scratch memory
// before they are combined: behind the normalized vector, if there is one.
template <bool kNormalized>
constexpr u64 kSliceOffset = kNormalized ? kNormalizedBytes : 0;
template <bool kNormalized>
constexpr i64 kSliceRows = static_cast<i64>((resident::kScratchBytes - kSliceOffset<kNormalized>) /
                                            (2 * sizeof(float)));

// gemv_silu_mul for one vector and rows that are at most kSliceRows. `of_rows` has the number of
// these rows, and in `out` the address of the first result. The vector of kNormalized has been
// normalized.
template <bool kNormalized, typename T>
RESIDENT_DEVICE void MultiplyAndGate(const Block& block, const VectorProduct& of_rows,
                                     const resident::RowsInTurn<T>& weights) {
  const float* const products =
      block.scratch<float>(kSliceOffset<kNormalized>, static_cast<u64>(2 * of_rows.rows));
  const VectorProduct p = {of_rows.x,
                           0,
                           reinterpret_cast<u64>(products),
                           of_rows.x_dtype,
                           DType::kF32,
                           DType::kF32,
                           1,
                           2 * of_rows.rows,
                           of_rows.depth};
  MultiplyByBlocks(block, p, weights, {0, GroupsOfRows(p)});
  block.barrier();
  block.for_each({0, of_rows.rows}, [&](i64 i) {
    StoreFloat(of_rows.out, of_rows.out_dtype, i,
               resident::math::silu_mul(products[2 * i], products[2 * i + 1]));
  });
  block.barrier();  // The reads of the products have finished.
}

// gemv_silu_mul, with kNormalized rmsnorm_gemv_silu_mul.
template <bool kNormalized>
RESIDENT_NOINLINE void MultiplyAndGateDense(Block block, Args args) {
  constexpr u32 kMatrix = resident::kArgumentOfMatrix<kNormalized>;
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> gate = args.tensor<const Any>(kMatrix);
  const Tensor<const Any> up = args.tensor<const Any>(kMatrix + 1);
  const Tensor<const Any> out = args.tensor<const Any>(kMatrix + 2);
  const i64 rows = gate.shape(0);
  const i64 depth = gate.shape(1);
  if (gate.dtype() != up.dtype()) {
    block.fail(CompletionStatus::kInvalidArgument, kMixedWeights);
    return;
  }
  if (kNormalized && depth > kMostNormalized) {
    block.fail(CompletionStatus::kInvalidArgument, kLongVector);
    return;
  }
  if (out.size() == 0) return;
  const i64 vectors = out.size() / rows;
  const Range share = block.share(rows);
  const u64 x_bytes = SizeOf(x.dtype());
  const u64 out_bytes = SizeOf(out.dtype());
  VisitFloat(gate.dtype(), [&](auto element) {
    using T = decltype(element);
    RESIDENT_UNROLL(1)
    for (i64 first = share.begin; first < share.end; first += kSliceRows<kNormalized>) {
      const i64 count = Smallest(kSliceRows<kNormalized>, share.end - first);
      const auto rows_from = [&](const Tensor<const Any>& w) {
        return DenseWeights<T>{ElementAt<const T>(AddressOf(w), first * depth), depth};
      };
      RESIDENT_UNROLL(1)
      for (i64 vector = 0; vector < vectors; ++vector) {
        VectorProduct p = {AddressOf(x) + static_cast<u64>(vector * depth) * x_bytes,
                           0,
                           AddressOf(out) + static_cast<u64>(vector * rows + first) * out_bytes,
                           x.dtype(),
                           DType::kF32,
                           out.dtype(),
                           1,
                           count,
                           depth};
        if constexpr (kNormalized) {
          p.x = NormalizeVector(block, args, vector, args.scalar<float>(kMatrix + 3));
          p.x_dtype = DType::kF32;
        }
        MultiplyAndGate<kNormalized, T>(block, p, {rows_from(gate), rows_from(up)});
      }
    }
  });
}

}  // namespace

RESIDENT_OPERATOR(gemv_silu_mul)(Block& block, const Args& args) {
  if (resident::GateOneVector</*kNormalized=*/false>(block, args) || !block.await_inputs()) return;
  MultiplyAndGateDense</*kNormalized=*/false>(block, args);
}

RESIDENT_OPERATOR(rmsnorm_gemv_silu_mul)(Block& block, const Args& args) {
  if (resident::GateOneVector</*kNormalized=*/true>(block, args) || !block.await_inputs()) return;
  MultiplyAndGateDense</*kNormalized=*/true>(block, args);
}

// --- gemv_quant, dequant ------------------------------------------------------------------------

namespace {

template <typename Weights>
RESIDENT_NOINLINE void Dequantize(Block block, Args args, const Weights& weights) {
  const Tensor<const Any> out = args.tensor<const Any>(3);
  const i64 columns = out.shape(1);
  const u64 address = AddressOf(out);
  const DType dtype = out.dtype();
  const Range range = block.share(out.size(), resident::kMapStep);
  resident::ForEachElement(block, range, columns, [&](i64 i, i64 row, i64 column) {
    StoreFloat(address, dtype, i, weights.One(row, column, weights.GroupOf(column)));
  });
}

RESIDENT_NOINLINE void MultiplyQuantized(Block block, Args args) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(4);
  const i64 group = args.scalar<i64>(5);
  const i64 rows = args.tensor<const Any>(1).shape(0);
  const i64 depth = x.shape(x.rank() - 1);
  const i32 bits = CheckWeights(block, args, 1, depth, group);
  if (bits == 0 || out.size() == 0) return;
  const VectorProduct p = {AddressOf(x),      0,           AddressOf(out),
                           x.dtype(),         DType::kF32, out.dtype(),
                           out.size() / rows, rows,        depth};
  VisitWeights(args, bits, 1, depth, group,
               [&](const auto& weights) { MultiplyVectors(block, p, weights); });
}

#if RESIDENT_WARPS

// Reads the arguments of gemv_quant. After a barrier task.fits is false if tensor cores cannot
// multiply them, or if they are refused.
RESIDENT_NOINLINE TensorTask& ReadQuantized(Block block, Args args) {
  TensorTask& task = TensorTask::Read<5>(block, args);
  if (block.thread() != 0) return task;
  const auto& [x, q, scales, zeros, out] = task.operands;
  const i64 rows = q.shape[0];
  const i64 depth = x.last_shape;
  const i64 groups = scales.shape[1];
  const i64 group = Smallest(args.scalar<i64>(5), depth);
  const i32 bits = q.shape[1] == depth ? 8 : 4;
  const bool has_zeros = zeros.size != 0;
  task.fits = false;
  if (out.size == 0 || x.dtype == DType::kF32 || depth >> 31 != 0) return task;
  // As CheckWeights, for the shapes that Prepare accepts.
  if (q.shape[1] * 8 != depth * bits || group < 1) return task;
  if (groups >> 31 != 0 || groups * group < depth || (groups - 1) * group >= depth) return task;
  if (has_zeros &&
      (zeros.rank != 2 || zeros.shape[0] != scales.shape[0] || zeros.shape[1] != groups)) {
    return task;
  }
  task.product = {
      x.address, 0,    out.address, x.dtype, DType::kF32, out.dtype, VectorsOf(out.size, rows),
      rows,      depth};
  task.is_signed = bits == 8 && q.dtype == DType::kI8;
  task.data = q.address;
  task.scales = scales.address;
  task.zeros = has_zeros ? zeros.address : 0;
  task.groups = groups;
  task.group = group;
  task.zero = has_zeros && !task.is_signed ? 0.0f : static_cast<float>(1 << (bits - 1));
  if (bits == 8) {
    task.Prepare<8>(block);
  } else {
    task.Prepare<4>(block);
  }
  return task;
}

RESIDENT_NOINLINE void ReplaceQuantized(Block block, Args args, const TensorTask& task) {
  const i64 depth = task.product.depth;
  VisitWeights(args, task.pitch == depth ? 8 : 4, 1, depth, args.scalar<i64>(5),
               [&](const auto& weights) { ReplaceInfinities(block, task, weights); });
}

#endif  // RESIDENT_WARPS

}  // namespace

RESIDENT_OPERATOR(gemv_quant)(Block& block, const Args& args) {
#if RESIDENT_WARPS
  TensorTask& task = ReadQuantized(block, args);
  block.barrier();
  if (task.fits) {
    const bool bytes = task.pitch == task.product.depth;
    if (task.product.x_dtype == DType::kF16) {
      if (bytes) {
        resident::MultiplyByTensorCores<BytesFormat<Half>>(block, task);
      } else {
        resident::MultiplyByTensorCores<NibblesFormat<Half>>(block, task);
      }
    } else if (bytes) {
      resident::MultiplyByTensorCores<BytesFormat<BFloat16>>(block, task);
    } else {
      resident::MultiplyByTensorCores<NibblesFormat<BFloat16>>(block, task);
    }
    if (task.not_finite) ReplaceQuantized(block, args, task);
    return;
  }
#endif
  MultiplyQuantized(block, args);
}

RESIDENT_OPERATOR(dequant)(Block& block, const Args& args) {
  const Tensor<const Any> out = args.tensor<const Any>(3);
  const i64 group = args.scalar<i64>(4);
  const i32 bits = CheckWeights(block, args, 0, out.shape(1), group);
  if (bits == 0 || out.size() == 0) return;
  VisitWeights(args, bits, 0, out.shape(1), group,
               [&](const auto& weights) { Dequantize(block, args, weights); });
}
