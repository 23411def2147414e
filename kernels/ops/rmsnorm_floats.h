// rmsnorm and rmsnorm_residual of float32, with weights of any type of their own: the rows of a
// model's activations. A row is the work of the whole block, which has it in registers. One row, as
// of a decoding step, takes as long as its instructions need one after the other, so they are few.
// normalization.cc has other rows.
#ifndef RESIDENT_KERNELS_OPS_RMSNORM_FLOATS_H_
#define RESIDENT_KERNELS_OPS_RMSNORM_FLOATS_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/operator.h"

namespace resident {

#if RESIDENT_WARPS

// Rows up to this have teams of less than a block (rows.h), if there are several.
inline constexpr i64 kShortRow = 1024;

struct RmsFloatsTask {
  u64 x;
  u64 r;  // Of rmsnorm_residual.
  u64 w;
  u64 out;
  u64 h;  // Of rmsnorm_residual.
  u32 rows;
  u32 columns;
  float eps;
};

// REQUIRES: a row has at most 4 * kQuads elements for each thread.
template <bool kResidual, u32 kQuads, typename W>
RESIDENT_NOINLINE void NormalizeFloatRows(Block block, const RmsFloatsTask& of_block) {
  const RmsFloatsTask task = of_block;
  const u32 quads = task.columns / 4;
  const u32 warps = block.threads() / kWarpThreads;
  const float per_column = 1.0f / static_cast<float>(task.columns);
  // Two places in turn: a thread that has passed the barrier of a row may write for the next one
  // while others still read.
  float* sums = block.memory<float>(0, 2 * Block::kMaxThreads / kWarpThreads);
  u32 place = 0;
  const Range range = block.share(task.rows);
  Quad<W> w[kQuads];
  for (u32 q = 0; q < kQuads; ++q) {
    const u32 at = block.thread() + q * block.threads();
    if (at < quads) w[q] = *ElementAt<const Quad<W>>(task.w, at);
  }
  if (!block.await_inputs()) return;
  RESIDENT_UNROLL(1)
  for (i64 row = range.begin; row < range.end; ++row) {
    const i64 first = row * quads;
    Quad<float> v[kQuads];
    for (u32 q = 0; q < kQuads; ++q) {
      const u32 at = block.thread() + q * block.threads();
      v[q] = {{0.0f, 0.0f, 0.0f, 0.0f}};
      if (at >= quads) continue;
      v[q] = *ElementAt<const Quad<float>>(task.x, first + at);
      if constexpr (kResidual) {
        const Quad<float> r = *ElementAt<const Quad<float>>(task.r, first + at);
        for (u32 i = 0; i < 4; ++i) v[q].v[i] += r.v[i];
      }
    }
    float share = 0.0f;
    for (u32 q = 0; q < kQuads; ++q) {
      float partial = 0.0f;
      for (u32 i = 0; i < 4; ++i) partial += v[q].v[i] * v[q].v[i];
      share += partial * per_column;
      const u32 at = block.thread() + q * block.threads();
      if (kResidual && at < quads) *ElementAt<Quad<float>>(task.h, first + at) = v[q];
    }
    share = CombineLanes(share, [](float a, float b) { return a + b; });
    if (LaneOf(block) == 0) sums[place + WarpOf(block)] = share;
    block.barrier();
    float mean = 0.0f;
    RESIDENT_UNROLL(8)
    for (u32 i = 0; i < warps; ++i) mean += sums[place + i];
    place ^= Block::kMaxThreads / kWarpThreads;
    const float scale = 1.0f / math::sqrt(mean + task.eps);
    for (u32 q = 0; q < kQuads; ++q) {
      const u32 at = block.thread() + q * block.threads();
      if (at >= quads) continue;
      for (u32 i = 0; i < 4; ++i) v[q].v[i] = v[q].v[i] * scale * w[q].v[i];
      *ElementAt<Quad<float>>(task.out, first + at) = v[q];
    }
  }
}

// Whether a tensor is float32, and its rows can be read four elements at a time.
RESIDENT_DEVICE bool IsFloatsOfQuads(const TensorArgument& tensor) {
  return (tensor.dtype == DType::kF32) & (tensor.address % (4 * sizeof(float)) == 0);
}

#endif  // RESIDENT_WARPS

// (collective) The operators, which await their inputs. False: the tensors have another form, and
// nothing was awaited.
template <bool kResidual>
RESIDENT_DEVICE bool RmsNormOfFloats([[maybe_unused]] const Block& block,
                                     [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  if (!kReadsDirectly || args.compact()) return false;
  constexpr u32 kW = kResidual ? 2 : 1;
  const TensorArgument& x = args.described(0);
  const TensorArgument& w = args.described(kW);
  const TensorArgument& out = args.described(kW + 1);
  const i64 columns = x.shape[x.rank - 1];
  i64 rows = 1;
  RESIDENT_UNROLL(1)
  for (u32 d = 0; d + 1 < x.rank; ++d) rows *= x.shape[d];
  const u64 w_quad = w.dtype == DType::kF32 ? 16 : 8;
  bool fits = IsFloatsOfQuads(x) & IsFloatsOfQuads(out) & (w.address % w_quad == 0) &
              (columns % 4 == 0) & (columns > 0) & (rows >> 31 == 0);
  RmsFloatsTask task = {x.address,
                        0,
                        w.address,
                        out.address,
                        0,
                        static_cast<u32>(rows),
                        static_cast<u32>(columns),
                        args.scalar<float>(kW + (kResidual ? 3 : 2))};
  if constexpr (kResidual) {
    const TensorArgument& r = args.described(1);
    const TensorArgument& h = args.described(4);
    fits = fits & IsFloatsOfQuads(r) & IsFloatsOfQuads(h);
    task.r = r.address;
    task.h = h.address;
  }
  // Many rows with weights of their own type have a stream (rmsnorm_stream.h), and many short ones
  // smaller teams (rows.h).
  fits = fits & (rows == 1 || (w.dtype != DType::kF32 && columns > kShortRow));
  if (!fits) return false;
  const i64 quads_of_thread = i64{4} * block.threads();
  if (columns > 8 * quads_of_thread) return false;
  VisitFloat(w.dtype, [&](auto element) {
    using W = decltype(element);
    if (columns <= 2 * quads_of_thread) {
      NormalizeFloatRows<kResidual, 2, W>(block, task);
    } else {
      NormalizeFloatRows<kResidual, 8, W>(block, task);
    }
  });
  return true;
#else
  return false;
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_RMSNORM_FLOATS_H_
