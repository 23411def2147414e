// The family "training": losses and their gradients, optimizers, norms of gradients.
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// --- Indices ------------------------------------------------------------------------------------

// Detail of INVALID_ARGUMENT: a target or an index is out of range.
constexpr u16 kBadIndex = 1;

// (collective) Whether one of the indices is not in [0, limit), which is reported. Every chunk
// checks all of them, so that none writes anything if one is out of range.
RESIDENT_NOINLINE bool RefuseIndices(Block block, const Tensor<const i64>& indices, i64 limit) {
  const i64* const data = indices.data();
  u32 bad = 0;
  RESIDENT_UNROLL(4)
  for (i64 i = block.thread(); i < indices.size(); i += block.threads()) {
    bad |= static_cast<u64>(data[i]) >= static_cast<u64>(limit) ? 1u : 0u;
  }
  if (block.reduce_max(bad) == 0) return false;
  block.fail(CompletionStatus::kInvalidArgument, kBadIndex);
  return true;
}

}  // namespace

// --- Losses -------------------------------------------------------------------------------------

RESIDENT_OPERATOR(cross_entropy)(Block& block, const Args& args) {
  const Tensor<const Any> logits = args.tensor<const Any>(0);
  const i64* const targets = args.tensor<const i64>(1).data();
  float* const loss = args.tensor<float>(2).data();
  float* const log_probs = args.tensor<float>(3).data();
  const i64 rows = logits.shape(0);
  const i64 columns = logits.shape(1);
  if (RefuseIndices(block, args.tensor<const i64>(1), columns)) return;
  const u64 address = AddressOf(logits);
  const DType dtype = logits.dtype();
  double total = 0.0;  // Of thread 0.
  RESIDENT_UNROLL(1)
  for (i64 row = 0; row < rows; ++row) {
    const i64 first = row * columns;
    float largest = -math::infinity();
    RESIDENT_UNROLL(4)
    for (i64 i = block.thread(); i < columns; i += block.threads()) {
      largest = math::maximum(largest, LoadFloat(address, dtype, first + i));
    }
    largest = block.reduce_max(largest);
    // The largest element adds 1. What the others add is not lost if it is small.
    double sum = 0.0;
    RESIDENT_UNROLL(1)
    for (i64 i = block.thread(); i < columns; i += block.threads()) {
      sum += static_cast<double>(math::exp(LoadFloat(address, dtype, first + i) - largest));
    }
    sum = block.reduce_sum(sum);
    const float log_sum = math::log1p(static_cast<float>(sum - 1.0));
    RESIDENT_UNROLL(1)
    for (i64 i = block.thread(); i < columns; i += block.threads()) {
      log_probs[first + i] = LoadFloat(address, dtype, first + i) - largest - log_sum;
    }
    if (block.thread() == 0) {
      const float target = LoadFloat(address, dtype, first + targets[row]);
      total -=
          static_cast<double>(target) - static_cast<double>(largest) - static_cast<double>(log_sum);
    }
  }
  if (block.thread() == 0) *loss = static_cast<float>(total / static_cast<double>(rows));
}

RESIDENT_OPERATOR(cross_entropy_backward)(Block& block, const Args& args) {
  const Tensor<const float> log_probs = args.tensor<const float>(0);
  const i64* const targets = args.tensor<const i64>(1).data();
  const Tensor<const Any> out = args.tensor<const Any>(2);
  const float scale = args.scalar<float>(3);
  const i64 columns = log_probs.shape(1);
  if (RefuseIndices(block, args.tensor<const i64>(1), columns)) return;
  const float* const from = log_probs.data();
  const u64 address = AddressOf(out);
  const DType dtype = out.dtype();
  ForEachElement(
      block, block.share(log_probs.size(), kMapStep), columns, [&](i64 i, i64 row, i64 column) {
        const float value = column == targets[row] ? math::expm1(from[i]) : math::exp(from[i]);
        StoreFloat(address, dtype, i, value * scale);
      });
}

namespace {

// Experts whose tokens are counted at a time.
constexpr i64 kExperts = kBlockMemoryBytes / sizeof(u32);

}  // namespace

RESIDENT_OPERATOR(aux_loss)(Block& block, const Args& args) {
  const Tensor<const float> probs = args.tensor<const float>(0);
  const Tensor<const i64> indices = args.tensor<const i64>(1);
  const float alpha = args.scalar<float>(3);
  const i64 tokens = probs.shape(0);
  const i64 experts = probs.shape(1);
  const i64 choices = indices.shape(1);
  if (RefuseIndices(block, indices, experts)) return;
  const float* const p = probs.data();
  const i64* const index = indices.data();
  u32* const counts = block.memory<u32>(0, kExperts);
  // The sum over e of count(e) * sum(p[:, e]) is the sum of count(e) * p[n, e] over n and e.
  double sum = 0.0;
  RESIDENT_UNROLL(1)
  for (i64 first = 0; first < experts; first += kExperts) {
    const i64 width = Smallest(kExperts, experts - first);
    block.barrier();  // The reads of the previous counts have finished.
    RESIDENT_UNROLL(1)
    for (i64 i = block.thread(); i < width; i += block.threads()) counts[i] = 0;
    block.barrier();
    ForEachElement(block, {0, indices.size()}, choices, [&](i64 i, i64, i64 choice) {
      const i64 expert = index[i];
      if (expert < first || expert >= first + width) return;
      // A token that names an expert twice counts once.
      RESIDENT_UNROLL(1)
      for (i64 k = 1; k <= choice; ++k) {
        if (index[i - k] == expert) return;
      }
      atomic_add(&counts[expert - first], u32{1});
    });
    block.barrier();
    ForEachElement(block, {0, tokens * width}, width, [&](i64, i64 token, i64 column) {
      sum += static_cast<double>(p[token * experts + first + column]) *
             static_cast<double>(counts[column]);
    });
  }
  sum = block.reduce_sum(sum);
  if (block.thread() == 0) {
    const double count = static_cast<double>(tokens);
    const double factor = static_cast<double>(alpha) * static_cast<double>(experts);
    args.tensor<float>(2).data()[0] = static_cast<float>(factor * (sum / count / count));
  }
}

// --- AdamW --------------------------------------------------------------------------------------

namespace {

// Detail of INVALID_ARGUMENT: the step is less than 1.
constexpr u16 kBadStep = 1;

// REQUIRES: exponent >= 0.
RESIDENT_DEVICE double Power(double base, i64 exponent) {
  double result = 1.0;
  RESIDENT_UNROLL(1)
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result *= base;
    base *= base;
  }
  return result;
}

struct AdamW {
  float decay;
  float b1;
  float rest1;
  float b2;
  float rest2;
  float rate;
  float unbias;
  float eps;

  // Arguments 4 to 9: lr, b1, b2, eps, wd, step. What is close to 1 or 0 is computed in float64.
  RESIDENT_DEVICE explicit AdamW(const Args& args) {
    const double lr = static_cast<double>(args.scalar<float>(4));
    const double first = static_cast<double>(args.scalar<float>(5));
    const double second = static_cast<double>(args.scalar<float>(6));
    const i64 step = args.scalar<i64>(9);
    decay = static_cast<float>(1.0 - lr * static_cast<double>(args.scalar<float>(8)));
    b1 = static_cast<float>(first);
    rest1 = static_cast<float>(1.0 - first);
    b2 = static_cast<float>(second);
    rest2 = static_cast<float>(1.0 - second);
    rate = static_cast<float>(lr / (1.0 - Power(first, step)));
    unbias = 1.0f / math::sqrt(static_cast<float>(1.0 - Power(second, step)));
    eps = args.scalar<float>(7);
  }

  RESIDENT_DEVICE float operator()(float p, float g, float& m, float& v) const {
    m = b1 * m + rest1 * g;
    v = b2 * v + rest2 * g * g;
    return p * decay - rate * (m / (math::sqrt(v) * unbias + eps));
  }
};

// Updates the range of elements.
template <typename P, typename G>
RESIDENT_NOINLINE void Update(Block block, Range range, const AdamW& update, P* p, const G* g,
                              float* m, float* v) {
  const bool aligned = reinterpret_cast<u64>(p) % sizeof(Quad<P>) == 0 &&
                       reinterpret_cast<u64>(g) % sizeof(Quad<G>) == 0 &&
                       (reinterpret_cast<u64>(m) | reinterpret_cast<u64>(v)) % 16 == 0;
  if (aligned) {
    const i64 end = range.begin + range.size() / 4 * 4;
    RESIDENT_UNROLL(1)
    for (i64 i = range.begin + 4 * i64{block.thread()}; i < end; i += 4 * i64{block.threads()}) {
      Quad<P> p4 = *reinterpret_cast<const Quad<P>*>(p + i);
      const Quad<G> g4 = *reinterpret_cast<const Quad<G>*>(g + i);
      Quad<float> m4 = *reinterpret_cast<const Quad<float>*>(m + i);
      Quad<float> v4 = *reinterpret_cast<const Quad<float>*>(v + i);
      for (i32 k = 0; k < 4; ++k) p4.v[k] = P(update(p4.v[k], g4.v[k], m4.v[k], v4.v[k]));
      *reinterpret_cast<Quad<P>*>(p + i) = p4;
      *reinterpret_cast<Quad<float>*>(m + i) = m4;
      *reinterpret_cast<Quad<float>*>(v + i) = v4;
    }
    range.begin = end;
  }
  RESIDENT_UNROLL(1)
  for (i64 i = range.begin + block.thread(); i < range.end; i += block.threads()) {
    p[i] = P(update(p[i], g[i], m[i], v[i]));
  }
}

}  // namespace

RESIDENT_OPERATOR(adamw)(Block& block, const Args& args) {
  if (args.scalar<i64>(9) < 1) {
    block.fail(CompletionStatus::kInvalidArgument, kBadStep);
    return;
  }
  const Tensor<const Any> p = args.tensor<const Any>(0);
  const Tensor<const Any> g = args.tensor<const Any>(1);
  const AdamW update(args);
  const Range range = block.share(p.size(), kMapStep);
  VisitFloat(p.dtype(), [&](auto p_element) {
    using P = decltype(p_element);
    VisitFloat(g.dtype(), [&](auto g_element) {
      using G = decltype(g_element);
      Update(block, range, update, ElementAt<P>(AddressOf(p), 0),
             ElementAt<const G>(AddressOf(g), 0), args.tensor<float>(2).data(),
             args.tensor<float>(3).data());
    });
  });
}

// --- Norms of gradients -------------------------------------------------------------------------

namespace {

// Elements whose squares are added to one partial sum.
constexpr i64 kNormGrain = 65536;

// Detail of INVALID_ARGUMENT: the partial sums are not all elements of `partial`.
constexpr u16 kBadPartials = 1;

// The calling thread's part of the sum of squares of `count` elements.
template <typename T>
RESIDENT_NOINLINE double SumOfSquares(Block block, const T* g, i64 count) {
  // Several partial sums make the additions independent.
  constexpr i32 kSums = 4;
  double sums[kSums] = {};
  const i64 threads = block.threads();
  i64 i = block.thread();
  RESIDENT_UNROLL(1)
  for (; i + (kSums - 1) * threads < count; i += kSums * threads) {
    for (i32 k = 0; k < kSums; ++k) {
      const double value = static_cast<double>(static_cast<float>(g[i + k * threads]));
      sums[k] += value * value;
    }
  }
  RESIDENT_UNROLL(1)
  for (; i < count; i += threads) {
    const double value = static_cast<double>(static_cast<float>(g[i]));
    sums[0] += value * value;
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// The square root, in float32, of a sum whose range is that of float64.
RESIDENT_DEVICE float SquareRoot(double sum) {
  if (sum > 0x1p100) return math::sqrt(static_cast<float>(sum * 0x1p-200)) * 0x1p100f;
  if (sum < 0x1p-100) return math::sqrt(static_cast<float>(sum * 0x1p200)) * 0x1p-100f;
  return math::sqrt(static_cast<float>(sum));
}

}  // namespace

RESIDENT_OPERATOR(grad_norm_partial)(Block& block, const Args& args) {
  const Tensor<const Any> g = args.tensor<const Any>(0);
  const Tensor<double> partial = args.tensor<double>(1);
  const i64 first = args.scalar<i64>(2);
  const i64 count = g.size() / kNormGrain + (g.size() % kNormGrain != 0);
  if (first < 0 || count > partial.size() || first > partial.size() - count) {
    block.fail(CompletionStatus::kInvalidArgument, kBadPartials);
    return;
  }
  const Range range = block.share(count);
  RESIDENT_UNROLL(1)
  for (i64 i = range.begin; i < range.end; ++i) {
    const i64 begin = i * kNormGrain;
    double sum = 0.0;
    VisitFloat(g.dtype(), [&](auto element) {
      sum = SumOfSquares(block, ElementAt<const decltype(element)>(AddressOf(g), begin),
                         Smallest(kNormGrain, g.size() - begin));
    });
    sum = block.reduce_sum(sum);
    if (block.thread() == 0) partial.data()[first + i] = sum;
  }
}

RESIDENT_OPERATOR(grad_norm)(Block& block, const Args& args) {
  const Tensor<const double> partial = args.tensor<const double>(0);
  const double* const from = partial.data();
  double sum = 0.0;
  RESIDENT_UNROLL(4)
  for (i64 i = block.thread(); i < partial.size(); i += block.threads()) sum += from[i];
  sum = block.reduce_sum(sum);
  if (block.thread() == 0) args.tensor<float>(1).data()[0] = SquareRoot(sum);
}

RESIDENT_OPERATOR(grad_clip)(Block& block, const Args& args) {
  const Tensor<const Any> g = args.tensor<const Any>(0);
  const float norm = args.tensor<const float>(1).data()[0];
  // NaN remains NaN.
  const float factor = math::minimum(args.scalar<float>(2) / (norm + 1e-6f), 1.0f);
  const auto scaled = [factor](const float* v) { return v[0] * factor; };
  if (g.dtype() == DType::kF32) {
    const float* const in[] = {args.tensor<const float>(0).data()};
    Map<1>(block, args.tensor<float>(0), in, scaled);
    return;
  }
  const u64 address = AddressOf(g);
  const DType dtype = g.dtype();
  const Range range = block.share(g.size(), kMapStep);
  RESIDENT_UNROLL(4)
  for (i64 i = range.begin + block.thread(); i < range.end; i += block.threads()) {
    StoreFloat(address, dtype, i, LoadFloat(address, dtype, i) * factor);
  }
}

// --- scatter_add ---------------------------------------------------------------------------------

RESIDENT_OPERATOR(scatter_add)(Block& block, const Args& args) {
  const Tensor<const float> source = args.tensor<const float>(2);
  const i64 width = source.shape(1);
  if (RefuseIndices(block, args.tensor<const i64>(1), args.tensor<float>(0).shape(0))) return;
  float* const to = args.tensor<float>(0).data();
  const i64* const index = args.tensor<const i64>(1).data();
  const float* const from = source.data();
  const Range range = block.share(source.size(), kMapStep);
  // Indices may be repeated: atomically, unless no other thread adds.
  const bool alone = block.threads() == 1 && block.chunk_count() == 1;
  ForEachElement(block, range, width, [&](i64 i, i64 row, i64 column) {
    float* const at = to + (index[row] * width + column);
    if (alone) {
      *at += from[i];
    } else {
      atomic_add(at, from[i]);
    }
  });
}

}  // namespace resident
