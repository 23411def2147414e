// The operators gemv_quant, its relatives, and dequant of the family "matrix": weights that are
// stored in few bits.
//
// rmsnorm_gemv_quant and rmsnorm_gemv_quant_silu_mul normalize x first, as those of matrix.cc.
#include "kernels/ops/gemv_quant_one_vector.h"
#include "kernels/ops/gemv_tensor_cores.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/normalized_vector.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/vector_products.h"
#include "kernels/ops/warp.h"
#include "kernels/ops/weights.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// Details of INVALID_ARGUMENT, beside those of CheckWeights.
constexpr u16 kBadBias = 5;
constexpr u16 kLongVector = 6;

// Of QuantizedArguments: what one function for several operators needs.
struct ArgumentNumbers {
  u32 q;
  u32 bias;  // 0: there is none.
  u32 out;   // `group` and, with a normalization, eps follow.
  bool normalized;
};

template <typename Arguments>
constexpr ArgumentNumbers kNumbersOf = {Arguments::kMatrix,
                                        Arguments::kBiased ? Arguments::kSecond : 0,
                                        Arguments::kOut, Arguments::kNormalized};

// All operators but the gated one.
RESIDENT_NOINLINE void MultiplyQuantized(Block block, Args args, ArgumentNumbers numbers) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(numbers.out);
  const i64 group = args.scalar<i64>(numbers.out + 1);
  const i64 rows = args.tensor<const Any>(numbers.q).shape(0);
  const i64 depth = x.shape(x.rank() - 1);
  const i32 bits = CheckWeights(block, args, numbers.q, depth, group);
  if (bits == 0) return;
  VectorProduct p = {AddressOf(x), 0, AddressOf(out), x.dtype(), DType::kF32,
                     out.dtype(),  1, rows,           depth};
  if (numbers.bias != 0) {
    const Tensor<const Any> bias = args.tensor<const Any>(numbers.bias);
    if (bias.size() != 0) {
      if (bias.rank() != 1 || bias.shape(0) != rows) {
        block.fail(CompletionStatus::kInvalidArgument, kBadBias);
        return;
      }
      p.bias = AddressOf(bias);
      p.bias_dtype = bias.dtype();
    }
  }
  if (numbers.normalized && depth > kMaxNormalized) {
    block.fail(CompletionStatus::kInvalidArgument, kLongVector);
    return;
  }
  if (out.size() == 0) return;
  const i64 vectors = out.size() / rows;
  if (!numbers.normalized) p.vectors = vectors;
  RESIDENT_UNROLL(1)
  for (i64 vector = 0; vector < vectors; vector += p.vectors) {
    if (numbers.normalized) {
      p.x = NormalizeVector(block, args, vector, args.scalar<float>(numbers.out + 2));
      p.x_dtype = DType::kF32;
    }
    VisitWeights(args, bits, numbers.q, depth, group,
                 [&](const auto& weights) { MultiplyVectors(block, p, weights); });
    p.out += static_cast<u64>(rows) * SizeOf(out.dtype());
  }
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
  if (MultiplyQuantizedVector<GemvQuant>(block, args) || !block.await_inputs()) return;
#if RESIDENT_WARPS
  TensorTask& task = ReadQuantized(block, args);
  block.barrier();
  if (task.fits) {
    const bool bytes = task.pitch == task.product.depth;
    if (task.product.x_dtype == DType::kF16) {
      if (bytes) {
        MultiplyByTensorCores<BytesFormat<Half>>(block, task);
      } else {
        MultiplyByTensorCores<NibblesFormat<Half>>(block, task);
      }
    } else if (bytes) {
      MultiplyByTensorCores<BytesFormat<BFloat16>>(block, task);
    } else {
      MultiplyByTensorCores<NibblesFormat<BFloat16>>(block, task);
    }
    if (task.not_finite) ReplaceQuantized(block, args, task);
    return;
  }
#endif
  MultiplyQuantized(block, args, kNumbersOf<GemvQuant>);
}

RESIDENT_OPERATOR(gemv_quant_bias)(Block& block, const Args& args) {
  if (MultiplyQuantizedVector<GemvQuantBias>(block, args) || !block.await_inputs()) return;
  MultiplyQuantized(block, args, kNumbersOf<GemvQuantBias>);
}

RESIDENT_OPERATOR(rmsnorm_gemv_quant)(Block& block, const Args& args) {
  if (MultiplyQuantizedVector<RmsNormGemvQuant>(block, args) || !block.await_inputs()) return;
  MultiplyQuantized(block, args, kNumbersOf<RmsNormGemvQuant>);
}

// --- rmsnorm_gemv_quant_silu_mul ----------------------------------------------------------------

namespace {

// The products of a slice of rows, of both matrices, are in the block's scratch memory behind the
// normalized vector before they are combined.
constexpr i64 kSliceRows =
    static_cast<i64>((kScratchBytes - kNormalizedBytes) / (2 * sizeof(float)));

// The products of one vector with p.rows rows of the matrix whose q is argument `q`, from row
// `first` on. REQUIRES: CheckWeights returned `bits`.
RESIDENT_NOINLINE void MultiplySlice(Block block, Args args, const VectorProduct& p, u32 q,
                                     i32 bits, i64 group, i64 first) {
  VisitWeights(args, bits, q, p.depth, group, [&](const auto& weights) {
    MultiplyByBlocks(block, p, weights.From(first), {0, GroupsOfRows(p)});
  });
}

RESIDENT_NOINLINE void MultiplyAndGateQuantized(Block block, Args args) {
  using Arguments = RmsNormGemvQuantSiluMul;
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(Arguments::kOut);
  const i64 group = args.scalar<i64>(Arguments::kGroup);
  const i64 rows = args.tensor<const Any>(Arguments::kMatrix).shape(0);
  const i64 depth = x.shape(x.rank() - 1);
  const i32 gate_bits = CheckWeights(block, args, Arguments::kMatrix, depth, group);
  if (gate_bits == 0) return;
  const i32 up_bits = CheckWeights(block, args, Arguments::kSecond, depth, group);
  if (up_bits == 0) return;
  if (depth > kMaxNormalized) {
    block.fail(CompletionStatus::kInvalidArgument, kLongVector);
    return;
  }
  if (out.size() == 0) return;
  const i64 vectors = out.size() / rows;
  const Range share = block.share(rows);
  RESIDENT_UNROLL(1)
  for (i64 first = share.begin; first < share.end; first += kSliceRows) {
    const i64 count = Smallest(kSliceRows, share.end - first);
    const float* const products =
        block.scratch<float>(kNormalizedBytes, static_cast<u64>(2 * count));
    RESIDENT_UNROLL(1)
    for (i64 vector = 0; vector < vectors; ++vector) {
      VectorProduct p = {
          NormalizeVector(block, args, vector, args.scalar<float>(Arguments::kEpsilon)),
          0,
          reinterpret_cast<u64>(products),
          DType::kF32,
          DType::kF32,
          DType::kF32,
          1,
          count,
          depth};
      MultiplySlice(block, args, p, Arguments::kMatrix, gate_bits, group, first);
      p.out = reinterpret_cast<u64>(products + count);
      MultiplySlice(block, args, p, Arguments::kSecond, up_bits, group, first);
      block.barrier();
      block.for_each({0, count}, [&](i64 i) {
        StoreFloat(AddressOf(out), out.dtype(), vector * rows + first + i,
                   math::silu_mul(products[i], products[count + i]));
      });
      block.barrier();  // The reads of the products have finished.
    }
  }
}

}  // namespace

RESIDENT_OPERATOR(rmsnorm_gemv_quant_silu_mul)(Block& block, const Args& args) {
  if (MultiplyQuantizedVector<RmsNormGemvQuantSiluMul>(block, args) || !block.await_inputs()) {
    return;
  }
  MultiplyAndGateQuantized(block, args);
}

// --- dequant ------------------------------------------------------------------------------------

namespace {

template <typename Weights>
RESIDENT_NOINLINE void Dequantize(Block block, Args args, const Weights& weights) {
  const Tensor<const Any> out = args.tensor<const Any>(3);
  const i64 columns = out.shape(1);
  const u64 address = AddressOf(out);
  const DType dtype = out.dtype();
  const Range range = block.share(out.size(), kMapStep);
  ForEachElement(block, range, columns, [&](i64 i, i64 row, i64 column) {
    StoreFloat(address, dtype, i, weights.One(row, column, weights.GroupOf(column)));
  });
}

}  // namespace

RESIDENT_OPERATOR(dequant)(Block& block, const Args& args) {
  const Tensor<const Any> out = args.tensor<const Any>(3);
  const i64 group = args.scalar<i64>(4);
  const i32 bits = CheckWeights(block, args, 0, out.shape(1), group);
  if (bits == 0 || out.size() == 0) return;
  VisitWeights(args, bits, 0, out.shape(1), group,
               [&](const auto& weights) { Dequantize(block, args, weights); });
}

}  // namespace resident
