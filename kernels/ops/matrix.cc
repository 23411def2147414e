// Operators of the family "matrix": products of matrices with vectors, of which linear also has an
// activation. matrix_quant.cc has those
// whose weights are stored in few bits, gemm.cc products of matrices.
//
// rmsnorm_gemv, rmsnorm_gemv_qkv and rmsnorm_gemv_silu_mul normalize x first. gemv_one_vector.h and
// gemv_several_vectors.h have the forms of a model's layers. Otherwise normalized vectors are
// written to the block's scratch memory, and multiplied from there.
//
// The weights are read once, so that a product is as fast as the memory. On a GPU, one vector and
// long rows of 16 bits have a form of their own (gemv_one_vector.h), and so have a few vectors of
// float32 with weights of bfloat16 (gemv_several_vectors.h), and any vectors of float32 with such
// weights (gemv_floats.h). Tensor cores multiply other vectors of
// these types, and such of 16-bit elements (gemv_tensor_cores.h). vector_products.h has the others.
#include "kernels/ops/gemv_floats.h"
#include "kernels/ops/gemv_one_vector.h"
#include "kernels/ops/gemv_several_vectors.h"
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

// Details of INVALID_ARGUMENT.
constexpr u16 kBadBias = 1;
constexpr u16 kMixedWeights = 1;
constexpr u16 kLongVector = 2;
constexpr u16 kBadResidual = 2;
constexpr u16 kScatteredVectors = 3;
constexpr u16 kBadActivation = 4;

RESIDENT_DEVICE bool HasShape(const Tensor<const Any>& tensor, const Tensor<const Any>& other) {
  bool has = tensor.rank() == other.rank();
  for (u32 i = 0; has && i < tensor.rank(); ++i) has = tensor.shape(i) == other.shape(i);
  return has;
}

// Which arguments a product has, beside x and its normalization.
struct DenseArguments {
  u32 matrix;
  u32 bias;
  u32 out;
  u32 eps;
  // Of linear, whose vectors may have strides.
  bool linear = false;
};
template <bool kNormalized>
RESIDENT_DEVICE DenseArguments OnlyProduct() {
  constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
  return {kMatrix, kMatrix + 1, kMatrix + 2, kMatrix + 3};
}
RESIDENT_DEVICE DenseArguments LinearProduct() { return {1, 2, kLinearOut, 0, /*linear=*/true}; }

// 0, or the detail with which a product is refused.
template <bool kNormalized>
RESIDENT_NOINLINE u16 RefuseDense(Args args, DenseArguments of) {
  const Tensor<const Any> w = args.tensor<const Any>(of.matrix);
  const Tensor<const Any> bias = args.tensor<const Any>(of.bias);
  const bool fits = bias.rank() == 1 ? bias.shape(0) == w.shape(0)
                                     : HasShape(bias, args.tensor<const Any>(of.out));
  if (bias.size() != 0 && !fits) return kBadBias;
  if (of.linear) {
    const Tensor<const Any> residual = args.tensor<const Any>(kLinearResidual);
    if (residual.size() != 0 && !HasShape(residual, args.tensor<const Any>(of.out))) {
      return kBadResidual;
    }
    const i64 activation = args.scalar<i64>(kLinearActivation);
    if (activation < 0 || activation >= kActivations) return kBadActivation;
    i64 step;
    if (args.tensor<const Any>(0).size() != 0 && !FindVectorStep(args.described(0), &step)) {
      return kScatteredVectors;
    }
  }
  return kNormalized && w.shape(1) > kMaxNormalized ? kLongVector : 0;
}

// gemv, linear, with kNormalized rmsnorm_gemv, or one of the products of rmsnorm_gemv_qkv. It is
// not refused.
template <bool kNormalized>
RESIDENT_NOINLINE void MultiplyDense(Block block, Args args, DenseArguments of) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> w = args.tensor<const Any>(of.matrix);
  const Tensor<const Any> bias = args.tensor<const Any>(of.bias);
  const Tensor<const Any> out = args.tensor<const Any>(of.out);
  const i64 rows = w.shape(0);
  const i64 depth = w.shape(1);
  const bool of_vectors = bias.rank() != 1;
  if (out.size() == 0) return;
  VectorProduct p = {AddressOf(x),
                     bias.size() == 0 ? 0 : AddressOf(bias),
                     AddressOf(out),
                     x.dtype(),
                     bias.dtype(),
                     out.dtype(),
                     out.size() / rows,
                     rows,
                     depth,
                     of_vectors ? rows : 0};
  if (of.linear) {
    const Tensor<const Any> residual = args.tensor<const Any>(kLinearResidual);
    p.epilogue = {ReadActivation(args), residual.dtype(),
                  residual.size() == 0 ? 0 : AddressOf(residual)};
    if (x.size() != 0) FindVectorStep(args.described(0), &p.x_step);
  }
  VisitFloat(w.dtype(), [&](auto element) {
    using T = decltype(element);
    const DenseWeights<T> weights = {ElementAt<const T>(AddressOf(w), 0), depth};
    if constexpr (kNormalized) {
      const float eps = args.scalar<float>(of.eps);
      // As many vectors at a time as there is space for.
      const i64 max_vectors = depth == 0 ? p.vectors : Quotient(kMaxNormalized, depth);
      VectorProduct some = p;
      some.x_dtype = DType::kF32;
      RESIDENT_UNROLL(1)
      for (i64 vector = 0; vector < p.vectors; vector += max_vectors) {
        some.vectors = Smallest(max_vectors, p.vectors - vector);
        // The first one is the last to be normalized: its address is that of all.
        RESIDENT_UNROLL(1)
        for (i64 i = some.vectors; i-- > 0;) {
          some.x = NormalizeVector(block, args, vector + i, eps, i);
        }
        some.out = p.out + static_cast<u64>(vector * rows) * SizeOf(out.dtype());
        if (p.bias != 0) {
          some.bias = p.bias + static_cast<u64>(vector * p.bias_step) * SizeOf(bias.dtype());
        }
        MultiplyVectors(block, some, weights);
      }
    } else {
      MultiplyVectors(block, p, weights);
    }
  });
}

template <bool kNormalized>
RESIDENT_DEVICE void MultiplyUnlessRefused(const Block& block, const Args& args,
                                           const DenseArguments& product) {
  if (const u16 detail = RefuseDense<kNormalized>(args, product); detail != 0) {
    block.fail(CompletionStatus::kInvalidArgument, detail);
    return;
  }
  MultiplyDense<kNormalized>(block, args, product);
}

#if RESIDENT_WARPS

// Reads the arguments of gemv or linear. After a barrier task.fits is false if tensor cores cannot
// multiply them, or if they are refused.
template <bool kLinear>
RESIDENT_NOINLINE TensorTask& ReadDense(Block block, Args args) {
  TensorTask& task = TensorTask::Read < kLinear ? 5 : 4 > (block, args);
  if (block.thread() != 0) return task;
  const auto& [x, w, bias, fourth, fifth] = task.operands;
  const auto& out = kLinear ? fifth : fourth;
  const i64 rows = w.shape[0];
  const bool has_bias = bias.size != 0;
  task.fits = false;
  // Otherwise MultiplyDense decides.
  const bool of_vectors = bias.rank == 2 && out.rank == 2 && bias.shape[0] == out.shape[0];
  if (has_bias && (bias.last_shape != rows || !(bias.rank == 1 || of_vectors))) return task;
  if (out.size == 0 || w.dtype == DType::kF32) return task;
  if (x.dtype != w.dtype && !(x.dtype == DType::kF32 && w.dtype == DType::kBF16)) return task;
  task.product = {
      x.address, has_bias ? bias.address : 0, out.address, x.dtype,    bias.dtype,
      out.dtype, VectorsOf(out.size, rows),   rows,        w.shape[1], of_vectors ? rows : 0};
  if constexpr (kLinear) {
    if (RefuseDense</*kNormalized=*/false>(args, LinearProduct()) != 0) return task;
    task.product.epilogue = {ReadActivation(args), fourth.dtype,
                             fourth.size == 0 ? 0 : fourth.address};
    if (x.size != 0) FindVectorStep(args.described(0), &task.product.x_step);
  }
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

// gemv or linear, whose inputs are ready, if it has no other form.
template <bool kLinear>
RESIDENT_DEVICE void MultiplyByAnyMeans(const Block& block, const Args& args) {
#if RESIDENT_WARPS
  TensorTask& task = ReadDense<kLinear>(block, args);
  block.barrier();
  if (task.fits) {
    if (task.product.x_dtype == DType::kF16) {
      MultiplyByTensorCores<DenseFormat<Half>>(block, task);
    } else if (task.product.x_dtype == DType::kBF16) {
      MultiplyByTensorCores<DenseFormat<BFloat16>>(block, task);
    } else {
      MultiplyByTensorCores<DenseFormat<BFloat16, kPartsOfFloat>>(block, task);
      if (task.not_finite) ReplaceDense(block, task);
    }
    return;
  }
#endif
  MultiplyUnlessRefused</*kNormalized=*/false>(
      block, args, kLinear ? LinearProduct() : OnlyProduct</*kNormalized=*/false>());
}

}  // namespace

RESIDENT_OPERATOR(gemv)(Block& block, const Args& args) {
  if (MultiplyOneVector</*kNormalized=*/false>(block, args) ||
      MultiplySeveralVectors</*kNormalized=*/false>(block, args)) {
    return;
  }
#if RESIDENT_WARPS
  if (MultiplyFloats</*kLinear=*/false>(block, args)) return;
#endif
  if (block.await_inputs()) MultiplyByAnyMeans</*kLinear=*/false>(block, args);
}

RESIDENT_OPERATOR(linear)(Block& block, const Args& args) {
#if RESIDENT_WARPS
  if (MultiplyFloats</*kLinear=*/true>(block, args)) return;
#endif
  if (block.await_inputs()) MultiplyByAnyMeans</*kLinear=*/true>(block, args);
}

RESIDENT_OPERATOR(rmsnorm_gemv)(Block& block, const Args& args) {
  if (MultiplyOneVector</*kNormalized=*/true>(block, args) ||
      MultiplySeveralVectors</*kNormalized=*/true>(block, args) || !block.await_inputs()) {
    return;
  }
  MultiplyUnlessRefused</*kNormalized=*/true>(block, args, OnlyProduct</*kNormalized=*/true>());
}

RESIDENT_OPERATOR(rmsnorm_gemv_qkv)(Block& block, const Args& args) {
  if (MultiplyStacked(block, args) || !block.await_inputs()) return;
  const auto product = [](u32 m) {
    return DenseArguments{kArgumentOfMatrix<true> + m, kStackedBias + m, kStackedOut + m,
                          kStackedEps};
  };
  RESIDENT_UNROLL(1)
  for (u32 m = 0; m < kStackedMatrices; ++m) {
    if (const u16 detail = RefuseDense</*kNormalized=*/true>(args, product(m)); detail != 0) {
      block.fail(CompletionStatus::kInvalidArgument, detail);
      return;
    }
  }
  RESIDENT_UNROLL(1)
  for (u32 m = 0; m < kStackedMatrices; ++m) {
    MultiplyDense</*kNormalized=*/true>(block, args, product(m));
  }
}

// --- gemv_silu_mul ------------------------------------------------------------------------------

namespace {

// The products of a slice of rows, of both matrices in turn, are in the block's scratch memory
// before they are combined: behind the normalized vector, if there is one.
template <bool kNormalized>
constexpr u64 kSliceOffset = kNormalized ? kNormalizedBytes : 0;
template <bool kNormalized>
constexpr i64 kSliceRows = static_cast<i64>((kScratchBytes - kSliceOffset<kNormalized>) /
                                            (2 * sizeof(float)));

// Weights of both matrices that a cache of the processor has space for.
constexpr i64 kCachedBytes = 1024 * 1024;
constexpr i64 kMinSliceRows = 32;

// gemv_silu_mul for one vector and rows that are at most kSliceRows. `of_rows` has the number of
// these rows, and in `out` the address of the first result. The vector of kNormalized has been
// normalized.
template <bool kNormalized, typename T>
RESIDENT_DEVICE void MultiplyAndGate(const Block& block, const VectorProduct& of_rows,
                                     const RowsInTurn<T>& weights) {
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
               math::silu_mul(products[2 * i], products[2 * i + 1]));
  });
  block.barrier();  // The reads of the products have finished.
}

// gemv_silu_mul, with kNormalized rmsnorm_gemv_silu_mul.
template <bool kNormalized>
RESIDENT_NOINLINE void MultiplyAndGateDense(Block block, Args args) {
  constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
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
  if (kNormalized && depth > kMaxNormalized) {
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
    // With several vectors, weights that remain in a cache until all vectors have used them; but
    // enough of them to normalize the vectors again for each slice.
    i64 slice = kSliceRows<kNormalized>;
    if (vectors > 1) {
      const i64 cached = Quotient(kCachedBytes, 2 * depth * i64{sizeof(T)} + 1);
      slice = Smallest(slice, cached > kMinSliceRows ? cached : kMinSliceRows);
    }
    RESIDENT_UNROLL(1)
    for (i64 first = share.begin; first < share.end; first += slice) {
      const i64 count = Smallest(slice, share.end - first);
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
  if (GateOneVector</*kNormalized=*/false>(block, args) ||
      GateSeveralVectors</*kNormalized=*/false>(block, args) || !block.await_inputs()) {
    return;
  }
  MultiplyAndGateDense</*kNormalized=*/false>(block, args);
}

RESIDENT_OPERATOR(rmsnorm_gemv_silu_mul)(Block& block, const Args& args) {
  if (GateOneVector</*kNormalized=*/true>(block, args) ||
      GateSeveralVectors</*kNormalized=*/true>(block, args) || !block.await_inputs()) {
    return;
  }
  MultiplyAndGateDense</*kNormalized=*/true>(block, args);
}

}  // namespace resident
