// The operators gemv_quant and dequant of the family "matrix": weights that are stored in few bits.
#include "kernels/ops/gemv_quant_one_vector.h"
#include "kernels/ops/gemv_tensor_cores.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/vector_products.h"
#include "kernels/ops/warp.h"
#include "kernels/ops/weights.h"
#include "kernels/sdk/operator.h"

using resident::AddressOf;
using resident::Any;
using resident::Args;
using resident::BFloat16;
using resident::Block;
using resident::CheckWeights;
using resident::DType;
using resident::Half;
using resident::i32;
using resident::i64;
using resident::MultiplyVectors;
using resident::Range;
using resident::Smallest;
using resident::StoreFloat;
using resident::Tensor;
using resident::u64;
using resident::VectorProduct;
using resident::VisitWeights;
#if RESIDENT_WARPS
using resident::BytesFormat;
using resident::NibblesFormat;
using resident::ReplaceInfinities;
using resident::TensorTask;
using resident::VectorsOf;
#endif

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
  if (resident::MultiplyQuantizedVector(block, args) || !block.await_inputs()) return;
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
