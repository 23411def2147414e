// The family "normalization": functions of rows, the last dimension of dense tensors.
#include "kernels/ops/rmsnorm_floats.h"
#include "kernels/ops/rmsnorm_stream.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/selection.h"
#include "kernels/ops/softmax_parts.h"
#include "kernels/ops/softmax_stream.h"

namespace resident {
namespace {

// Calls f(row * columns, columns of the row, team) for each row of this chunk's share; with 0
// columns for a team without a row, so that all threads make the same (collective) calls.
template <typename F>
RESIDENT_DEVICE void ForEachRow(const Block& block, const Tensor<const Any>& x, F f) {
  if (x.size() == 0) return;
  const i64 columns = x.shape(x.rank() - 1);
  const i64 rows = x.size() / columns;
  const Team team(block, columns, rows);
  const Range range = block.share(rows);
  RESIDENT_UNROLL(1)
  for (i64 first = range.begin; first < range.end; first += team.count) {
    const i64 row = first + team.index;
    const bool active = row < range.end;
    f(active ? row * columns : 0, active ? columns : 0, team);
  }
}

// Whether the rows of the first tensor are so long that they may be cut into parts (long_rows.h).
RESIDENT_DEVICE bool HasLongRows(const Args& args) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  return x.shape(x.rank() - 1) >= kLongStepsRow;
}

// Whether the tensors are float32.
template <typename... Tensors>
RESIDENT_DEVICE bool AreFloat32(const Tensors&... tensors) {
  return ((tensors.dtype() == DType::kF32) && ...);
}

// --- Rows in registers --------------------------------------------------------------------------

constexpr bool kOneThread = Block::kMaxThreads == 1;

// Whether the tensors have one dtype, and rows that can be read four elements at a time.
template <typename... Tensors>
RESIDENT_DEVICE bool HaveQuads(const Tensor<const Any>& x, const Tensors&... others) {
  const u64 bytes = 4 * SizeOf(x.dtype());
  const auto aligned = [=](const Tensor<const Any>& tensor) {
    return AddressOf(tensor) % bytes == 0;
  };
  return x.shape(x.rank() - 1) % 4 == 0 && aligned(x) &&
         ((others.dtype() == x.dtype() && aligned(others)) && ...);
}

// Functions that are called for each row take the block as an argument, and have copies of what
// they use: a GPU's compiler has these in registers. What they refer to would be read from memory
// after each barrier.

// Calls f(block, row, elements, columns, team) for each row of this chunk's share, as ForEachRow:
// `row` has the values in registers, and the row begins at element `elements` of its tensors.
// False: the rows are too long.
template <typename T, typename F>
RESIDENT_NOINLINE bool ForEachRowOfType(Block block, const T* data, i64 rows, u32 columns,
                                        float none, const F f) {
  using Row = RowRegisters<8>;
  const Team team(block, columns, rows);
  if (columns > Row::Capacity(team)) return false;
  const Range range = block.share(rows);
  RESIDENT_UNROLL(1)
  for (i64 first = range.begin; first < range.end; first += team.count) {
    const bool active = first + team.index < range.end;
    const i64 elements = active ? (first + team.index) * columns : 0;
    Row row;
    row.Load(team, data + elements, active ? columns : 0, none);
    f(block, row, elements, active ? columns : 0, team);
  }
  return true;
}

// Calls f(T{}, block, row, elements, columns, team) for each row; columns that do not exist have
// the value `none`. False: the rows are too long. REQUIRES: HaveQuads(x, ...).
template <typename F>
RESIDENT_DEVICE bool ForEachRowInRegisters(const Block& block, const Tensor<const Any>& x,
                                           float none, F f) {
  const i64 columns = x.shape(x.rank() - 1);
  if (kOneThread || x.size() == 0 || columns >> 31 != 0) return false;
  bool done = false;
  VisitFloat(x.dtype(), [&](auto element) {
    using T = decltype(element);
    done = ForEachRowOfType(
        block, ElementAt<const T>(AddressOf(x), 0), x.size() / columns, static_cast<u32>(columns),
        none, [f](const Block& own, auto& row, i64 elements, u32 row_columns, const Team& team) {
          f(T{}, own, row, elements, row_columns, team);
        });
  });
  return done;
}

// The quad of a tensor that begins at element i.
template <typename T>
RESIDENT_DEVICE Quad<float> LoadQuadAt(u64 address, i64 i) {
  const Quad<T> quad = *reinterpret_cast<const Quad<T>*>(ElementAt<const T>(address, i));
  Quad<float> values;
  for (i32 k = 0; k < 4; ++k) values.v[k] = quad.v[k];
  return values;
}

// --- Softmax ------------------------------------------------------------------------------------

template <bool kFloat32>
RESIDENT_NOINLINE void Softmax(Block block, Args args, bool log) {
  const Elements<kFloat32> x(args.tensor<const Any>(0));
  const Elements<kFloat32> out(args.tensor<Any>(1));
  ForEachRow(block, args.tensor<const Any>(0), [&](i64 at, i64 columns, const Team& team) {
    const float largest = Largest(block, team, columns, [&](i64 c) { return x.Load(at + c); });
    if constexpr (kOneThread && kFloat32) {
      if (!log) {
        float* const to = ElementAt<float>(out.address, at);
        const double sum =
            WriteExponentials(ElementAt<const float>(x.address, at), to, columns, largest);
        const float scale = static_cast<float>(1 / sum);
        for (i64 c = 0; c < columns; ++c) to[c] *= scale;
        return;
      }
    }
    // -infinity - -infinity and infinity - infinity are NaN, and so is then the sum.
    const double sum =
        Sum(block, team, columns, [&](i64 c) { return math::exp(x.Load(at + c) - largest); });
    const float scale = static_cast<float>(1 / sum);
    const float log_sum = math::log(static_cast<float>(sum));
    RESIDENT_UNROLL(1)
    for (i64 c = team.rank; c < columns; c += team.size) {
      const float difference = x.Load(at + c) - largest;
      out.Store(at + c, log ? difference - log_sum : math::exp(difference) * scale);
    }
  });
}

RESIDENT_DEVICE bool SoftmaxInRegisters(const Block& block, const Args& args, bool log) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(1);
  if (!HaveQuads(x, out)) return false;
  const u64 address = AddressOf(out);
  const auto one_row = [=](auto element, const Block& own, auto& row, i64 at, u32 columns,
                           const Team& team) {
    using T = decltype(element);
    const float largest = row.Largest(own, team);
    if (log) {
      const double sum = row.Sum(own, team, [=](float v) { return math::exp(v - largest); });
      const float log_sum = math::log(static_cast<float>(sum));
      row.Store(team, ElementAt<T>(address, at), columns, [=](Quad<float>& quad, u32) {
        for (float& v : quad.v) v = v - largest - log_sum;
      });
      return;
    }
    for (float& v : row.v) v = math::exp(v - largest);
    const double sum = row.Sum(own, team, [](float v) { return v; });
    const float scale = static_cast<float>(1 / sum);
    row.Store(team, ElementAt<T>(address, at), columns, [=](Quad<float>& quad, u32) {
      for (float& v : quad.v) v *= scale;
    });
  };
  return ForEachRowInRegisters(block, x, -math::infinity(), one_row);
}

RESIDENT_DEVICE void SoftmaxOf(Block& block, const Args& args, bool log) {
  if (HasLongRows(args) && SoftmaxInParts(block, args, log)) return;
  if (SoftmaxInStream(block, args, log) || SoftmaxInRegisters(block, args, log)) return;
  if (AreFloat32(args.tensor<const Any>(0), args.tensor<Any>(1))) {
    Softmax<true>(block, args, log);
  } else {
    Softmax<false>(block, args, log);
  }
}

// --- softmax_topk -------------------------------------------------------------------------------

constexpr u16 kTooMany = 1;

// A row of at most this many columns is sorted by counting.
constexpr i64 kCounted = i64{Block::kMaxThreads} * 4;
static_assert(kSelectionEnd + 4 * kCounted <= kBlockMemoryBytes, "");

// (collective) Writes the indices of the k largest elements, in order. `key` is the key of a
// column.
template <typename K>
RESIDENT_DEVICE void LargestByCounting(const Block& block, i64 columns, i64 k, K key,
                                       i64* indices) {
  u32* const keys = block.memory<u32>(kSelectionEnd, static_cast<u32>(kCounted));
  block.barrier();  // The reads of the previous row have finished.
  block.for_each({0, columns}, [&](i64 c) { keys[c] = key(c); });
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i64 c = block.thread(); c < columns; c += block.threads()) {
    const u32 mine = keys[c];
    i64 before = 0;
    RESIDENT_UNROLL(4)
    for (i64 other = 0; other < columns; ++other) {
      before += keys[other] > mine || (keys[other] == mine && other < c);
    }
    if (before < k) indices[before] = c;
  }
}

// (collective) Sorts n indices of columns by key, largest first, and for equal keys by index: a
// bitonic sort, in which a missing element is behind all others.
template <typename K>
RESIDENT_DEVICE void SortIndices(const Block& block, i64 n, K key, i64* indices) {
  RESIDENT_UNROLL(1)
  for (i64 length = 2; length < 2 * n; length *= 2) {
    RESIDENT_UNROLL(1)
    for (i64 distance = length / 2; distance > 0; distance /= 2) {
      block.barrier();
      RESIDENT_UNROLL(1)
      for (i64 i = block.thread(); i < n; i += block.threads()) {
        // The first step of a length compares with the mirrored element.
        const i64 other = distance == length / 2 ? i ^ (length - 1) : i ^ distance;
        if (other <= i || other >= n) continue;
        const i64 a = indices[i];
        const i64 b = indices[other];
        const u32 key_a = key(a);
        const u32 key_b = key(b);
        if (key_b > key_a || (key_b == key_a && b < a)) {
          indices[i] = b;
          indices[other] = a;
        }
      }
    }
  }
}

// (collective) The same as LargestByCounting, for any number of columns.
template <typename K>
RESIDENT_DEVICE void LargestBySelection(const Block& block, i64 columns, i64 k, K key,
                                        i64* indices) {
  const auto one = [](i64) { return u64{1}; };
  const Selection selection = Select(block, columns, key, one, static_cast<u64>(k));
  // In any order; the sort does not depend on it.
  auto& memory = *block.memory<SelectionMemory>();
  block.barrier();
  if (block.thread() == 0) memory.bins[0] = 0;
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i64 c = block.thread(); c < columns; c += block.threads()) {
    if (!selection.Has(key(c), c)) continue;
    i64 at = 0;
    if (Block::kMaxThreads == 1) {
      at = static_cast<i64>(memory.bins[0]++);
    } else {
      at = static_cast<i64>(atomic_add(&memory.bins[0], u64{1}));
    }
    indices[at] = c;
  }
  SortIndices(block, k, key, indices);
}

RESIDENT_NOINLINE void SoftmaxTopK(Block block, Args args) {
  const auto input = args.tensor<const Any>(0);
  const auto weights = args.tensor<float>(1);
  const i64 columns = input.shape(1);
  const i64 k = weights.shape(1);
  if (k > columns) {
    block.fail(CompletionStatus::kInvalidArgument, kTooMany);
    return;
  }
  if (k == 0) return;
  const Elements<false> x(input);
  const Team all(block, columns, 1);
  const Range range = block.share(input.shape(0));
  RESIDENT_UNROLL(1)
  for (i64 row = range.begin; row < range.end; ++row) {
    const i64 at = row * columns;
    const float largest = Largest(block, all, columns, [&](i64 c) { return x.Load(at + c); });
    // Otherwise the softmax is NaN in all columns, which are then equal.
    const bool defined = largest - largest == 0;
    const auto key = [&](i64 c) { return defined ? OrderedKey(x.Load(at + c)) : 1u; };
    i64* const indices = args.tensor<i64>(2).data() + row * k;
    if (columns <= kCounted && Block::kMaxThreads > 1) {
      LargestByCounting(block, columns, k, key, indices);
    } else {
      LargestBySelection(block, columns, k, key, indices);
    }
    block.barrier();
    const auto weight = [&](i64 j) { return math::exp(x.Load(at + indices[j]) - largest); };
    const float scale = static_cast<float>(1 / Sum(block, all, k, weight));
    float* const to = weights.data() + row * k;
    block.for_each({0, k}, [&](i64 j) { to[j] = defined ? weight(j) * scale : math::nan(); });
  }
}

// --- Normalization ------------------------------------------------------------------------------

// The factor of a row whose squares have this sum.
RESIDENT_DEVICE float RmsScale(double squares, i64 columns, float eps) {
  const float mean = static_cast<float>(squares / static_cast<double>(columns));
  return 1.0f / math::sqrt(mean + eps);
}

// out = value * w * rsqrt(mean of value^2 + eps) for a row of value(0) to value(columns - 1).
template <bool kFloat32, typename F>
RESIDENT_DEVICE void NormalizeRow(const Block& block, const Team& team, i64 columns, F value,
                                  const Elements<kFloat32>& w, float eps,
                                  const Elements<kFloat32>& out, i64 at) {
  const double squares = Sum(block, team, columns, [&](i64 c) {
    const float v = value(c);
    return v * v;
  });
  const float scale = RmsScale(squares, columns, eps);
  RESIDENT_UNROLL(1)
  for (i64 c = team.rank; c < columns; c += team.size) {
    out.Store(at + c, value(c) * scale * w.Load(c));
  }
}

// Writes v * scale * w.
template <typename T, typename Row>
RESIDENT_DEVICE void StoreScaled(const Row& row, const Team& team, T* out, u32 columns, float scale,
                                 u64 w) {
  row.Store(team, out, columns, [=](Quad<float>& quad, u32 column) {
    const Quad<float> weights = LoadQuadAt<T>(w, column);
    for (i32 i = 0; i < 4; ++i) quad.v[i] = quad.v[i] * scale * weights.v[i];
  });
}

RESIDENT_DEVICE bool RmsNormInRegisters(const Block& block, const Args& args) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> w = args.tensor<const Any>(1);
  const Tensor<const Any> out = args.tensor<const Any>(2);
  if (!HaveQuads(x, w, out)) return false;
  const float eps = args.scalar<float>(3);
  const u64 weights = AddressOf(w);
  const u64 address = AddressOf(out);
  const auto one_row = [=](auto element, const Block& own, auto& row, i64 at, u32 columns,
                           const Team& team) {
    using T = decltype(element);
    const double squares = row.Sum(own, team, [](float v) { return v * v; });
    StoreScaled(row, team, ElementAt<T>(address, at), columns, RmsScale(squares, columns, eps),
                weights);
  };
  return ForEachRowInRegisters(block, x, 0.0f, one_row);
}

RESIDENT_DEVICE bool RmsNormResidualInRegisters(const Block& block, const Args& args) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> r = args.tensor<const Any>(1);
  const Tensor<const Any> w = args.tensor<const Any>(2);
  const Tensor<const Any> out = args.tensor<const Any>(3);
  const Tensor<const Any> h = args.tensor<const Any>(4);
  if (!HaveQuads(x, r, w, out, h)) return false;
  const float eps = args.scalar<float>(5);
  const u64 residual = AddressOf(r);
  const u64 weights = AddressOf(w);
  const u64 address = AddressOf(out);
  const u64 sums = AddressOf(h);
  const auto one_row = [=](auto element, const Block& own, auto& row, i64 at, u32 columns,
                           const Team& team) {
    using T = decltype(element);
    auto other = row;
    other.Load(team, ElementAt<const T>(residual, at), columns, 0.0f);
    for (u32 i = 0; i < sizeof(row.v) / sizeof(row.v[0]); ++i) row.v[i] += other.v[i];
    const double squares = row.Sum(own, team, [](float v) { return v * v; });
    row.Store(team, ElementAt<T>(sums, at), columns, [](Quad<float>&, u32) {});
    StoreScaled(row, team, ElementAt<T>(address, at), columns, RmsScale(squares, columns, eps),
                weights);
  };
  return ForEachRowInRegisters(block, x, 0.0f, one_row);
}

template <bool kFloat32>
RESIDENT_NOINLINE void RmsNorm(Block block, Args args) {
  const Elements<kFloat32> x(args.tensor<const Any>(0));
  const Elements<kFloat32> w(args.tensor<const Any>(1));
  const Elements<kFloat32> out(args.tensor<Any>(2));
  const float eps = args.scalar<float>(3);
  ForEachRow(block, args.tensor<const Any>(0), [&](i64 at, i64 columns, const Team& team) {
    NormalizeRow(
        block, team, columns, [&](i64 c) { return x.Load(at + c); }, w, eps, out, at);
  });
}

template <bool kFloat32>
RESIDENT_NOINLINE void RmsNormResidual(Block block, Args args) {
  const Elements<kFloat32> x(args.tensor<const Any>(0));
  const Elements<kFloat32> r(args.tensor<const Any>(1));
  const Elements<kFloat32> w(args.tensor<const Any>(2));
  const Elements<kFloat32> out(args.tensor<Any>(3));
  const Elements<kFloat32> h(args.tensor<Any>(4));
  const float eps = args.scalar<float>(5);
  ForEachRow(block, args.tensor<const Any>(0), [&](i64 at, i64 columns, const Team& team) {
    const auto sum = [&](i64 c) { return x.Load(at + c) + r.Load(at + c); };
    NormalizeRow(block, team, columns, sum, w, eps, out, at);
    RESIDENT_UNROLL(1)
    for (i64 c = team.rank; c < columns; c += team.size) h.Store(at + c, sum(c));
  });
}

// --- Normalization of few long rows -------------------------------------------------------------

// How the rows are cut into parts with a value of type T for each. The functions ...InParts return
// false if they are not cut.
template <typename T>
RESIDENT_DEVICE LongRows CutOf(const Tensor<const Any>& x) {
  const i64 columns = x.shape(x.rank() - 1);
  const i64 rows = columns == 0 ? 0 : Quotient(x.size(), columns);
  return CutRows(rows, columns, kLongStepsRow, kMinStepsPart, kMaxPartsOf<T>);
}

// rmsnorm of value(i), element i of the rows; `store_sum` is called with each i, too.
template <bool kFloat32, typename F, typename G>
RESIDENT_DEVICE void RmsNormParts(const Block& block, const LongRows& cut, i64 rows, F value,
                                  const Elements<kFloat32>& w, float eps,
                                  const Elements<kFloat32>& out, G store_sum) {
  InTwoSteps<double>(
      block, cut, rows,
      [&](i64 row, Range part) {
        const i64 at = row * cut.columns + part.begin;
        return Sum(block, Team(block, part.size(), 1), part.size(), [&](i64 c) {
          const float v = value(at + c);
          return v * v;
        });
      },
      [&](i64 row, Range part, const double* squares, i64) {
        const double sum = CombineParts(
            block, cut.of_row, 0.0, [&](i64 i) { return squares[i]; },
            [](double a, double b) { return a + b; });
        const float scale = RmsScale(sum, cut.columns, eps);
        const i64 at = row * cut.columns;
        RESIDENT_UNROLL(1)
        for (i64 c = part.begin + block.thread(); c < part.end; c += block.threads()) {
          out.Store(at + c, value(at + c) * scale * w.Load(c));
          store_sum(at + c);
        }
      });
}

template <bool kFloat32>
RESIDENT_DEVICE void RmsNormInPartsOf(const Block& block, const Args& args, const LongRows& cut) {
  const Tensor<const Any> input = args.tensor<const Any>(0);
  const Elements<kFloat32> x(input);
  const Elements<kFloat32> w(args.tensor<const Any>(1));
  const Elements<kFloat32> out(args.tensor<Any>(2));
  RmsNormParts(
      block, cut, input.size() / cut.columns, [&](i64 i) { return x.Load(i); }, w,
      args.scalar<float>(3), out, [](i64) {});
}
RESIDENT_NOINLINE bool RmsNormInParts(Block block, Args args) {
  const LongRows cut = CutOf<double>(args.tensor<const Any>(0));
  if (!cut.any()) return false;
  // For GPUs one function suffices.
  if (kOneThread &&
      AreFloat32(args.tensor<const Any>(0), args.tensor<const Any>(1), args.tensor<Any>(2))) {
    RmsNormInPartsOf<kOneThread>(block, args, cut);
  } else {
    RmsNormInPartsOf<false>(block, args, cut);
  }
  return true;
}
template <bool kFloat32>
RESIDENT_DEVICE void RmsNormResidualInPartsOf(const Block& block, const Args& args,
                                              const LongRows& cut) {
  const Tensor<const Any> input = args.tensor<const Any>(0);
  const Elements<kFloat32> x(input);
  const Elements<kFloat32> r(args.tensor<const Any>(1));
  const Elements<kFloat32> w(args.tensor<const Any>(2));
  const Elements<kFloat32> out(args.tensor<Any>(3));
  const Elements<kFloat32> h(args.tensor<Any>(4));
  const auto sum = [&](i64 i) { return x.Load(i) + r.Load(i); };
  RmsNormParts(block, cut, input.size() / cut.columns, sum, w, args.scalar<float>(5), out,
               [&](i64 i) { h.Store(i, sum(i)); });
}
RESIDENT_NOINLINE bool RmsNormResidualInParts(Block block, Args args) {
  const LongRows cut = CutOf<double>(args.tensor<const Any>(0));
  if (!cut.any()) return false;
  // For GPUs one function suffices.
  if (kOneThread &&
      AreFloat32(args.tensor<const Any>(0), args.tensor<const Any>(1), args.tensor<const Any>(2),
                 args.tensor<Any>(3), args.tensor<Any>(4))) {
    RmsNormResidualInPartsOf<kOneThread>(block, args, cut);
  } else {
    RmsNormResidualInPartsOf<false>(block, args, cut);
  }
  return true;
}

// --- layernorm ----------------------------------------------------------------------------------

constexpr u16 kBadBias = 1;

// Whether argument 2 is a bias of the rows of argument 0, or none.
RESIDENT_DEVICE bool IsBiasOfRows(const Args& args) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> b = args.tensor<const Any>(2);
  return b.size() == 0 || (b.rank() == 1 && b.shape(0) == x.shape(x.rank() - 1));
}

// The mean of values, high + low, and the sum of the squares of their differences from it.
struct Moments {
  float high;
  float low;
  double squares;

  // The difference of a value from the mean.
  RESIDENT_DEVICE float Center(float value) const { return value - high - low; }
};

// (collective) Those of value(0) to value(count - 1).
template <typename F>
RESIDENT_DEVICE Moments MomentsOf(const Block& block, const Team& team, i64 count, F value) {
  // The mean in two parts: the second one is the mean of the differences from the first one, which
  // is accurate also if the mean is large.
  const double n = static_cast<double>(count);
  const double about = Sum(block, team, count, value) / n;
  Moments moments;
  moments.high = static_cast<float>(about);
  const double rest = Sum(block, team, count, [&](i64 c) { return value(c) - moments.high; }) / n;
  moments.low = static_cast<float>(rest);
  moments.squares = Sum(block, team, count, [&](i64 c) {
    const float v = moments.Center(value(c));
    return v * v;
  });
  return moments;
}

template <bool kFloat32>
RESIDENT_DEVICE void LayerNormInPartsOf(const Block& block, const Args& args, const LongRows& cut) {
  const Tensor<const Any> input = args.tensor<const Any>(0);
  const Elements<kFloat32> x(input);
  const Elements<kFloat32> w(args.tensor<const Any>(1));
  const Elements<kFloat32> b(args.tensor<const Any>(2));
  const Elements<kFloat32> out(args.tensor<Any>(3));
  const bool biased = args.tensor<const Any>(2).size() > 0;
  const float eps = args.scalar<float>(4);
  const double columns = static_cast<double>(cut.columns);
  const auto add = [](double a, double c) { return a + c; };
  InTwoSteps<Moments>(
      block, cut, input.size() / cut.columns,
      [&](i64 row, Range part) {
        const i64 at = row * cut.columns + part.begin;
        return MomentsOf(block, Team(block, part.size(), 1), part.size(),
                         [&](i64 c) { return x.Load(at + c); });
      },
      [&](i64 row, Range part, const Moments* parts, i64) {
        const auto size = [&](i64 i) { return static_cast<double>(cut.ColumnsOf(i).size()); };
        const auto mean_of = [&](i64 i) {
          return static_cast<double>(parts[i].high) + static_cast<double>(parts[i].low);
        };
        const double mean =
            CombineParts(
                block, cut.of_row, 0.0, [&](i64 i) { return size(i) * mean_of(i); }, add) /
            columns;
        Moments all;
        all.high = static_cast<float>(mean);
        all.low = static_cast<float>(mean - static_cast<double>(all.high));
        all.squares = CombineParts(
            block, cut.of_row, 0.0,
            [&](i64 i) {
              const double apart = mean_of(i) - mean;
              return parts[i].squares + size(i) * apart * apart;
            },
            add);
        const float scale = 1.0f / math::sqrt(static_cast<float>(all.squares / columns) + eps);
        const i64 at = row * cut.columns;
        RESIDENT_UNROLL(1)
        for (i64 c = part.begin + block.thread(); c < part.end; c += block.threads()) {
          const float normal = all.Center(x.Load(at + c)) * scale * w.Load(c);
          out.Store(at + c, biased ? normal + b.Load(c) : normal);
        }
      });
}
RESIDENT_NOINLINE bool LayerNormInParts(Block block, Args args) {
  const LongRows cut = CutOf<Moments>(args.tensor<const Any>(0));
  if (!cut.any()) return false;
  // For GPUs one function suffices.
  if (kOneThread && AreFloat32(args.tensor<const Any>(0), args.tensor<const Any>(1),
                               args.tensor<const Any>(2), args.tensor<Any>(3))) {
    LayerNormInPartsOf<kOneThread>(block, args, cut);
  } else {
    LayerNormInPartsOf<false>(block, args, cut);
  }
  return true;
}

template <bool kFloat32>
RESIDENT_NOINLINE void LayerNorm(Block block, Args args) {
  const Elements<kFloat32> x(args.tensor<const Any>(0));
  const Elements<kFloat32> w(args.tensor<const Any>(1));
  const Elements<kFloat32> b(args.tensor<const Any>(2));
  const Elements<kFloat32> out(args.tensor<Any>(3));
  const bool biased = args.tensor<const Any>(2).size() > 0;
  const float eps = args.scalar<float>(4);
  ForEachRow(block, args.tensor<const Any>(0), [&](i64 at, i64 columns, const Team& team) {
    const Moments moments = MomentsOf(block, team, columns, [&](i64 c) { return x.Load(at + c); });
    const float variance = static_cast<float>(moments.squares / static_cast<double>(columns));
    const float scale = 1.0f / math::sqrt(variance + eps);
    RESIDENT_UNROLL(1)
    for (i64 c = team.rank; c < columns; c += team.size) {
      const float normal = moments.Center(x.Load(at + c)) * scale * w.Load(c);
      out.Store(at + c, biased ? normal + b.Load(c) : normal);
    }
  });
}

}  // namespace

RESIDENT_OPERATOR(softmax)(Block& block, const Args& args) { SoftmaxOf(block, args, false); }
RESIDENT_OPERATOR(log_softmax)(Block& block, const Args& args) { SoftmaxOf(block, args, true); }
RESIDENT_OPERATOR(softmax_topk)(Block& block, const Args& args) { SoftmaxTopK(block, args); }

RESIDENT_OPERATOR(rmsnorm)(Block& block, const Args& args) {
  if (RmsNormOfFloats<false>(block, args) || !block.await_inputs()) return;
  if (HasLongRows(args) && RmsNormInParts(block, args)) return;
  if (RmsNormInStream(block, args) || RmsNormInRegisters(block, args)) return;
  if (AreFloat32(args.tensor<const Any>(0), args.tensor<const Any>(1), args.tensor<Any>(2))) {
    RmsNorm<true>(block, args);
  } else {
    RmsNorm<false>(block, args);
  }
}

RESIDENT_OPERATOR(rmsnorm_residual)(Block& block, const Args& args) {
  if (RmsNormOfFloats<true>(block, args) || !block.await_inputs()) return;
  if (HasLongRows(args) && RmsNormResidualInParts(block, args)) return;
  if (RmsNormResidualInStream(block, args) || RmsNormResidualInRegisters(block, args)) return;
  if (AreFloat32(args.tensor<const Any>(0), args.tensor<const Any>(1), args.tensor<const Any>(2),
                 args.tensor<Any>(3), args.tensor<Any>(4))) {
    RmsNormResidual<true>(block, args);
  } else {
    RmsNormResidual<false>(block, args);
  }
}

RESIDENT_OPERATOR(layernorm)(Block& block, const Args& args) {
  if (!IsBiasOfRows(args)) {
    block.fail(CompletionStatus::kInvalidArgument, kBadBias);
    return;
  }
  if (HasLongRows(args) && LayerNormInParts(block, args)) return;
  if (AreFloat32(args.tensor<const Any>(0), args.tensor<const Any>(1), args.tensor<const Any>(2),
                 args.tensor<Any>(3))) {
    LayerNorm<true>(block, args);
  } else {
    LayerNorm<false>(block, args);
  }
}

}  // namespace resident
