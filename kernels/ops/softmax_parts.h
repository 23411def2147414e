// This header computes softmax and log_softmax of few long rows, which are cut into parts
// (long_rows.h). normalization.cc has other rows.
//
// The first step computes the sums of the parts, the second one the outputs.
#ifndef RESIDENT_KERNELS_OPS_SOFTMAX_PARTS_H_
#define RESIDENT_KERNELS_OPS_SOFTMAX_PARTS_H_

#include "kernels/ops/groups.h"
#include "kernels/ops/long_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/rows.h"
#include "kernels/ops/softmax_stream.h"

namespace resident {

// --- One thread ---------------------------------------------------------------------------------

// exp(x) for x <= 0 and NaN, in a form that compilers vectorize; the error is some units in the
// last place.
[[maybe_unused]] RESIDENT_DEVICE float ExpOfDifference(float x) {
  // At least -104, whose exponential is rounded to 0; with a condition, GCC makes two paths of it.
  const i32 is_less = -static_cast<i32>(x < -104.0f);
  const float bounded =
      bit_cast<float>((bit_cast<i32>(x) & ~is_less) | (bit_cast<i32>(-104.0f) & is_less));
  // x = n * log(2) + r. Adding 1.5 * 2^23 rounds to an integer, which is then in the last bits.
  constexpr float kRound = 12582912.0f;
  const float shifted = bounded * 1.44269504f + kRound;
  const i32 n = bit_cast<i32>(shifted) - bit_cast<i32>(12582912.0f);
  const float multiple = shifted - kRound;
  const float r = bounded - multiple * 0.693359375f + multiple * 2.12194440e-4f;
  float power = 1.3981999507e-3f + r * 1.9875691500e-4f;
  power = 8.3334519073e-3f + r * power;
  power = 4.1665795894e-2f + r * power;
  power = 1.6666665459e-1f + r * power;
  power = 5.0000001201e-1f + r * power;
  power = 1.0f + (r + r * r * power);
  // 2^n in two factors, because it may be too small for a normal number.
  const i32 half = n >> 1;
  return power * bit_cast<float>((half + 127) << 23) * bit_cast<float>((n - half + 127) << 23);
}

// Writes exp(x - base) for `count` values, and returns the sum. REQUIRES: no x is larger than base.
[[maybe_unused]] RESIDENT_NOINLINE double WriteExponentials(const float* x, float* out, i64 count,
                                                            float base) {
  constexpr i32 kSums = 16;
  constexpr i32 kAtOnce = kSums * kAdditions;
  double total = 0;
  for (i64 c = 0; c < count; c += kAtOnce) {
    // In an array, so that the compiler knows that `out` does not change these elements of x.
    float exponentials[kAtOnce];
    const i32 here = static_cast<i32>(Smallest(kAtOnce, count - c));
    for (i32 i = 0; i < here; ++i) exponentials[i] = ExpOfDifference(x[c + i] - base);
    for (i32 i = here; i < kAtOnce; ++i) exponentials[i] = 0.0f;
    float partial[kSums] = {};
    for (i32 k = 0; k < kAdditions; ++k) {
      for (i32 p = 0; p < kSums; ++p) partial[p] += exponentials[k * kSums + p];
    }
    for (i32 width = kSums / 2; width > 0; width /= 2) {
      for (i32 p = 0; p < width; ++p) partial[p] += partial[p + width];
    }
    total += static_cast<double>(partial[0]);
    for (i32 i = 0; i < here; ++i) out[c + i] = exponentials[i];
  }
  return total;
}

// --- Parts --------------------------------------------------------------------------------------

// The tensors of a task.
struct SoftmaxTask {
  u64 x;
  u64 out;
  DType x_dtype;
  DType out_dtype;
  bool log;

  // Whether the first step writes exponentials to the output, and the second one only multiplies
  // them: by one thread, which has no faster function.
  RESIDENT_DEVICE bool writes_exponentials() const {
    return Block::kMaxThreads == 1 && !log && x_dtype == DType::kF32 && out_dtype == DType::kF32;
  }
};

// What is known of a row when the sums of its parts are.
struct SoftmaxRow {
  float largest;
  float scale;  // The reciprocal of the sum.
  float log_sum;
};

// (collective) Of `count` columns, from element `at` on.
template <typename T>
RESIDENT_NOINLINE SoftmaxSum SumOfPart(Block block, const SoftmaxTask& of_block, i64 at,
                                       i64 count) {
  const SoftmaxTask task = of_block;
  const T* const x = ElementAt<const T>(task.x, 0);
  const Team all(block, count, /*rows=*/1);
#if RESIDENT_WARPS
  float own = -math::infinity();
  double sum = 0;
  ForEachValue(all, x + at, count, own, [&](auto& v) { AddExponentials<T>(v, own, sum); });
  const float largest = block.reduce(own, [](float a, float b) { return LargerOf(a, b); });
  sum *= static_cast<double>(ExpOf<T>(own - BaseOf(largest)));
  return {largest, static_cast<float>(block.reduce_sum(sum))};
#else
  const float largest =
      Largest(block, all, count, [&](i64 c) { return static_cast<float>(x[at + c]); });
  const float base = BaseOf(largest);
  double sum = 0;
  if (task.writes_exponentials()) {
    sum = WriteExponentials(ElementAt<const float>(task.x, at), ElementAt<float>(task.out, at),
                            count, base);
  } else {
    sum = Sum(block, all, count,
              [&](i64 c) { return math::exp(static_cast<float>(x[at + c]) - base); });
  }
  return {largest, static_cast<float>(sum)};
#endif
}

// (warp) The row whose parts have these sums.
RESIDENT_NOINLINE SoftmaxRow CombineSums(Block block, i64 count, const SoftmaxSum* sums) {
  const float largest = CombineParts(
      block, count, -math::infinity(), [&](i64 p) { return sums[p].largest; },
      [](float a, float b) { return LargerOf(a, b); });
  const float base = BaseOf(largest);
  const double sum = CombineParts(
      block, count, 0.0,
      [&](i64 p) {
        const SoftmaxSum part = sums[p];
        return static_cast<double>(part.sum) * static_cast<double>(math::exp(part.largest - base));
      },
      [](double a, double b) { return a + b; });
  return {largest, static_cast<float>(1 / sum), math::log(static_cast<float>(sum))};
}

#if RESIDENT_WARPS

// As StorePart, for tensors of one dtype, at multiples of 16 bytes.
template <typename T>
RESIDENT_DEVICE void StoreGroups(const Block& block, const T* x, T* out, i64 count,
                                 const SoftmaxRow& row, bool log) {
  const float base = BaseOf(row.largest);
  const auto result = [=](float value) {
    return log ? value - row.largest - row.log_sum : ExpOf<T>(value - base) * row.scale;
  };
  const i64 groups = count / kGroupElements<T>;
  ForEachGroup</*kAligned=*/true>(
      Team(block, count, /*rows=*/1), x, count, 0.0f, [&](auto& v, i64 first) {
        for (float& value : v) value = result(value);
        RESIDENT_UNROLL(4)
        for (u32 c = 0; c < kThreadChunks; ++c) {
          const i64 at = first + c * block.threads();
          if (at < groups) {
            StoreOnce(reinterpret_cast<u64>(out) + static_cast<u64>(at) * kChunkBytes,
                      PackChunk<T>(v, c));
          }
        }
      });
  const i64 rest = groups * kGroupElements<T> + block.thread();
  if (rest < count) out[rest] = T(result(static_cast<float>(x[rest])));
}

#endif

// Writes the outputs of `count` columns, from element `at` on. `part`: their sum.
template <typename T>
RESIDENT_NOINLINE void StorePart(Block block, const SoftmaxTask& of_block, i64 at, i64 count,
                                 const SoftmaxRow& of_part, const SoftmaxSum& part) {
  const SoftmaxTask task = of_block;
  const SoftmaxRow row = of_part;
  const T* const data = ElementAt<const T>(task.x, at);
  const float base = BaseOf(row.largest);
  if (task.writes_exponentials()) {
    float* const out = ElementAt<float>(task.out, at);
    // 0 if all values are -infinity.
    const float factor = math::exp(part.largest - base) * row.scale;
    for (i64 c = 0; c < count; ++c) out[c] *= factor;
    return;
  }
#if RESIDENT_WARPS
  T* const to = ElementAt<T>(task.out, at);
  const u64 addresses = reinterpret_cast<u64>(data) | reinterpret_cast<u64>(to);
  if (task.x_dtype == task.out_dtype && addresses % kChunkBytes == 0) {
    StoreGroups(block, data, to, count, row, task.log);
    return;
  }
#endif
  const auto result = [&](i64 c) {
    const float value = static_cast<float>(data[c]);
    return task.log ? value - row.largest - row.log_sum : math::exp(value - base) * row.scale;
  };
  if (task.out_dtype == DType::kF32) {
    block.for_each({0, count}, [&](i64 c) { *ElementAt<float>(task.out, at + c) = result(c); });
  } else {
    RESIDENT_UNROLL(1)
    for (i64 c = block.thread(); c < count; c += block.threads()) {
      StoreFloat(task.out, task.out_dtype, at + c, result(c));
    }
  }
}

// False: the rows are not long, or too many.
RESIDENT_NOINLINE bool SoftmaxInParts(Block block, Args args, bool log) {
  const Tensor<const Any> x = args.tensor<const Any>(0);
  const Tensor<const Any> out = args.tensor<const Any>(1);
  if (x.size() == 0) return false;
  const i64 columns = x.shape(x.rank() - 1);
  const i64 rows = Quotient(x.size(), columns);
  const LongRows cut =
      CutRows(rows, columns, kLongStepsRow, kMinStepsPart, kMaxPartsOf<SoftmaxSum>);
  if (!cut.any()) return false;
  const SoftmaxTask task = {AddressOf(x), AddressOf(out), x.dtype(), out.dtype(), log};
  InTwoSteps<SoftmaxSum>(
      block, cut, rows,
      [&](i64 row, Range part) {
        SoftmaxSum sum{};
        VisitFloat(task.x_dtype, [&](auto element) {
          sum = SumOfPart<decltype(element)>(block, task, row * columns + part.begin, part.size());
        });
        return sum;
      },
      [&](i64 row, Range part, const SoftmaxSum* sums, i64 index) {
        const SoftmaxRow known = CombineSums(block, cut.of_row, sums);
        VisitFloat(task.x_dtype, [&](auto element) {
          StorePart<decltype(element)>(block, task, row * columns + part.begin, part.size(), known,
                                       sums[index]);
        });
      });
  return true;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_SOFTMAX_PARTS_H_
