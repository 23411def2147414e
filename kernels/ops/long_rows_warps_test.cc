// Few long rows in blocks of several warps (RESIDENT_EMULATED_THREADS; tests/conformance has blocks
// of one thread): all chunks of a task work on each row. Whatever their number and their order, and
// also if they share no memory, the bits of the result are the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/sdk/operator.h"
#include "tests/support/float64.h"

extern "C" {
void resident_operator_argmax(resident::BlockState* state);
void resident_operator_layernorm(resident::BlockState* state);
void resident_operator_log_softmax(resident::BlockState* state);
void resident_operator_max(resident::BlockState* state);
void resident_operator_mean(resident::BlockState* state);
void resident_operator_min(resident::BlockState* state);
void resident_operator_rmsnorm(resident::BlockState* state);
void resident_operator_rmsnorm_residual(resident::BlockState* state);
void resident_operator_softmax(resident::BlockState* state);
void resident_operator_sum(resident::BlockState* state);
void resident_operator_sum_rows(resident::BlockState* state);
}

namespace resident {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// As in reduction.cc.
constexpr i64 kLongRow = 128 << 10;
// The largest relative error of a row: the norm of the difference, over the norm.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float>  ? 1e-6
                              : std::is_same_v<T, Half> ? 1e-3
                                                        : 5e-3;

template <typename T>
constexpr DType kDType = DType::kF32;
template <>
constexpr DType kDType<Half> = DType::kF16;
template <>
constexpr DType kDType<BFloat16> = DType::kBF16;

// Elements that begin `shift` elements behind a multiple of 16 bytes.
template <typename T>
class Memory {
 public:
  explicit Memory(i64 size, i64 shift = 0)
      : shift_(shift), chunks_((size + shift) * sizeof(T) / 16 + 1) {}
  T* data() { return reinterpret_cast<T*>(chunks_.data()) + shift_; }
  T& operator[](i64 i) { return data()[i]; }

 private:
  i64 shift_;
  std::vector<Bytes16> chunks_;
};

struct Way {
  u64 chunks;
  EmulatedChunks how;
};

// Chunks in any order; the first `first` of them before the others.
std::vector<u64> Shuffled(u64 chunks, u64 first, std::mt19937& random) {
  std::vector<u64> order(chunks);
  std::iota(order.begin(), order.end(), u64{0});
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(first);
  std::shuffle(order.begin(), middle, random);
  std::shuffle(middle, order.end(), random);
  return order;
}

// How a task is run, after once with one chunk.
std::vector<Way> Ways(std::mt19937& random) {
  const auto shuffled = [&](u64 chunks) { return Shuffled(chunks, 0, random); };
  return {{2, {}},
          {2, {{1, 0}, true}},
          {7, {shuffled(7), true}},
          {40, {shuffled(40), true}},
          {5, {{}, false}}};
}
// The same for operators of two steps, the second of which waits for the first.
std::vector<Way> WaysOfTwoSteps(std::mt19937& random) {
  const auto shuffled = [&](u64 chunks) { return Shuffled(chunks, chunks / 2, random); };
  return {{2, {{1, 0}, true}},        {3, {}},
          {4, {shuffled(4), true}},   {9, {shuffled(9), true}},
          {40, {shuffled(40), true}}, {5, {{}, false}}};
}

bool IsSum(OperatorFunction op) {
  return op == resident_operator_sum || op == resident_operator_sum_rows ||
         op == resident_operator_mean;
}

template <typename T>
double Reference(OperatorFunction op, Memory<T>& x, i64 first, i64 count) {
  if (IsSum(op)) {
    double sum = 0;
    for (i64 i = 0; i < count; ++i) sum += static_cast<double>(static_cast<float>(x[first + i]));
    return op == resident_operator_mean ? sum / static_cast<double>(count) : sum;
  }
  double best = NAN;
  i64 index = 0;
  for (i64 i = 0; i < count; ++i) {
    const double v = static_cast<float>(x[first + i]);
    if (i == 0 || std::isnan(v) || (op == resident_operator_min ? v < best : v > best)) {
      best = v;
      index = i;
    }
    if (std::isnan(v)) break;
  }
  return op == resident_operator_argmax ? static_cast<double>(index) : best;
}

// Reduces the rows of x: with one chunk and in all the ways.
template <typename T>
void Check(OperatorFunction op, Memory<T>& x, i64 rows, i64 columns, std::mt19937& random) {
  const bool is_index = op == resident_operator_argmax;
  const DType out_dtype = is_index ? DType::kI64 : DType::kF32;
  std::vector<i64> one(static_cast<size_t>(rows), -1);
  const auto run = [&](std::vector<i64>& out, u64 chunks, const EmulatedChunks& how) {
    std::fill(out.begin(), out.end(), -1);
    std::vector<Argument> arguments = {DenseArgument(x.data(), kDType<T>, {rows, columns}),
                                       DenseArgument(out.data(), out_dtype, {rows})};
    if (op != resident_operator_sum_rows) arguments.push_back(ScalarArgument(2));
    EXPECT_EQ(RunEmulated(op, arguments, chunks, nullptr, how), 0u);
  };
  run(one, 1, {});
  for (i64 row = 0; row < rows; ++row) {
    const double want = Reference(op, x, row * columns, columns);
    const double got = is_index ? static_cast<double>(one[static_cast<size_t>(row)])
                                : reinterpret_cast<const float*>(one.data())[row];
    if (std::isnan(want) || std::isinf(want)) {
      EXPECT_EQ(std::isnan(got), std::isnan(want)) << "row " << row;
      if (!std::isnan(want)) {
        EXPECT_EQ(got, want) << "row " << row;
      }
    } else {
      EXPECT_NEAR(got, want, IsSum(op) ? 1e-6 * std::abs(want) : 0) << "row " << row;
    }
  }
  for (const Way& way : Ways(random)) {
    std::vector<i64> other(one.size());
    run(other, way.chunks, way.how);
    EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(i64)), 0)
        << way.chunks << " chunks, " << (way.how.share_memory ? "shared" : "not shared");
  }
}

const std::vector<OperatorFunction> kReductions = {resident_operator_sum, resident_operator_mean,
                                                   resident_operator_max, resident_operator_min,
                                                   resident_operator_argmax};

template <typename T>
void CheckReductions(i64 rows, i64 columns, i64 shift, std::mt19937& random) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + ", shift " +
               std::to_string(shift));
  Memory<T> x(rows * columns, shift);
  for (i64 i = 0; i < rows * columns; ++i) {
    x[i] = T(std::uniform_real_distribution<float>(0.0f, 4.0f)(random));
  }
  for (const OperatorFunction op : kReductions) Check(op, x, rows, columns, random);
  // sum_rows has other rows in an order of its own.
  if (std::is_same_v<T, float> && columns >= kLongRow) {
    Check(resident_operator_sum_rows, x, rows, columns, random);
  }
}

TEST(LongRowsTest, ReductionsAroundTheThreshold) {
  std::mt19937 random(17);
  for (const i64 columns : {kLongRow - 1, kLongRow, kLongRow + 1, kLongRow + 4099}) {
    CheckReductions<float>(1, columns, 0, random);
    CheckReductions<float>(1, columns, 1, random);
    CheckReductions<Half>(1, columns, 0, random);
    CheckReductions<BFloat16>(1, columns, 3, random);
  }
  CheckReductions<float>(3, kLongRow + 1 + static_cast<i64>(random() % 9000), 0, random);
  CheckReductions<BFloat16>(2, kLongRow + 8 * static_cast<i64>(random() % 1000), 0, random);
}

TEST(LongRowsTest, InfinityAndNan) {
  std::mt19937 random(18);
  constexpr i64 kColumns = kLongRow + 77;
  Memory<float> x(kColumns);
  const auto fill = [&](float value) {
    for (i64 i = 0; i < kColumns; ++i) x[i] = value;
  };
  fill(-kInfinity);
  for (const OperatorFunction op : kReductions) Check(op, x, 1, kColumns, random);
  fill(1);
  x[kColumns - 2] = kInfinity;
  x[100] = -kInfinity;
  for (const OperatorFunction op : kReductions) Check(op, x, 1, kColumns, random);
  x[kColumns / 2] = NAN;
  x[kColumns - 1] = NAN;
  for (const OperatorFunction op : kReductions) Check(op, x, 1, kColumns, random);
}

TEST(LongRowsTest, TheLowestIndexOfEqualElementsOfSeveralParts) {
  std::mt19937 random(19);
  constexpr i64 kColumns = 2 * kLongRow;
  for (const i64 rows : {1, 2}) {
    Memory<float> x(rows * kColumns);
    Memory<BFloat16> halves(rows * kColumns);
    for (const std::vector<i64>& at : std::vector<std::vector<i64>>{
             {16383, 16384}, {16384, 32768, kColumns - 1}, {kColumns - 1}, {0, 16384}}) {
      for (i64 i = 0; i < rows * kColumns; ++i) x[i] = -1;
      for (i64 row = 0; row < rows; ++row) {
        for (const i64 i : at) x[row * kColumns + i] = 3;
      }
      for (i64 i = 0; i < rows * kColumns; ++i) halves[i] = BFloat16(x[i]);
      Check(resident_operator_argmax, x, rows, kColumns, random);
      Check(resident_operator_argmax, halves, rows, kColumns, random);
    }
    for (i64 i = 0; i < rows * kColumns; ++i) x[i] = i % 2 == 0 ? -0.0f : 0.0f;
    Check(resident_operator_argmax, x, rows, kColumns, random);
  }
}

template <typename T, typename U>
void CheckSoftmax(bool log, Memory<T>& x, i64 rows, i64 columns, i64 shift_of_out,
                  std::mt19937& random) {
  const i64 size = rows * columns;
  Memory<U> one(size, shift_of_out);
  const auto run = [&](Memory<U>& out, u64 chunks, const EmulatedChunks& how) {
    for (i64 i = 0; i < size; ++i) out[i] = U(-77.0f);
    EXPECT_EQ(RunEmulated(log ? resident_operator_log_softmax : resident_operator_softmax,
                          {DenseArgument(x.data(), kDType<T>, {rows, columns}),
                           DenseArgument(out.data(), kDType<U>, {rows, columns})},
                          chunks, nullptr, how),
              0u);
  };
  run(one, 1, {});
  for (i64 row = 0; row < rows; ++row) {
    std::vector<double> values;
    for (i64 c = 0; c < columns; ++c) values.push_back(static_cast<float>(x[row * columns + c]));
    const std::vector<double> want = log ? testing::LogSoftmax(values) : testing::Softmax(values);
    double difference = 0, norm = 0;
    i64 wrong = 0;
    for (i64 c = 0; c < columns; ++c) {
      const double got = static_cast<float>(one[row * columns + c]);
      const double w = want[static_cast<size_t>(c)];
      if (!std::isfinite(w)) {
        wrong += std::isnan(w) ? !std::isnan(got) : got != w;
        continue;
      }
      difference += (got - w) * (got - w);
      norm += w * w;
    }
    EXPECT_EQ(wrong, 0) << "values of row " << row << " that should be infinite or NaN";
    EXPECT_LE(std::sqrt(difference), kTolerance<U> * std::sqrt(norm)) << "row " << row;
  }
  for (const Way& way : WaysOfTwoSteps(random)) {
    Memory<U> other(size, shift_of_out);
    run(other, way.chunks, way.how);
    EXPECT_EQ(std::memcmp(one.data(), other.data(), static_cast<size_t>(size) * sizeof(U)), 0)
        << way.chunks << " chunks, " << (way.how.share_memory ? "shared" : "not shared");
  }
}

template <typename T, typename U = T>
void CheckSoftmaxOfShape(i64 rows, i64 columns, i64 shift, i64 shift_of_out, std::mt19937& random) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns) + ", shifts " +
               std::to_string(shift) + " and " + std::to_string(shift_of_out));
  Memory<T> x(rows * columns, shift);
  for (i64 i = 0; i < rows * columns; ++i) {
    x[i] = T(std::normal_distribution<float>(0.0f, 3.0f)(random));
  }
  for (const bool log : {false, true}) {
    CheckSoftmax<T, U>(log, x, rows, columns, shift_of_out, random);
  }
}

TEST(LongRowsTest, SoftmaxAroundTheThreshold) {
  // As in softmax_parts.h.
  constexpr i64 kLong = 64 << 10;
  std::mt19937 random(20);
  for (const i64 columns : {kLong - 1, kLong, kLong + 1, 2 * kLong + 4099}) {
    CheckSoftmaxOfShape<float>(1, columns, 0, 0, random);
    CheckSoftmaxOfShape<BFloat16>(1, columns, 0, 0, random);
    CheckSoftmaxOfShape<Half>(1, columns, 1, 1, random);
    CheckSoftmaxOfShape<float>(1, columns, 0, 1, random);
    CheckSoftmaxOfShape<float, BFloat16>(1, columns, 0, 0, random);
  }
  CheckSoftmaxOfShape<float>(3, kLong + 64 + static_cast<i64>(random() % 9000), 0, 0, random);
  CheckSoftmaxOfShape<Half>(2, kLong + 8 * static_cast<i64>(random() % 1000), 0, 0, random);
}

TEST(LongRowsTest, SoftmaxWithTheMaximumInAnyPart) {
  constexpr i64 kColumns = (64 << 10) + 100;
  std::mt19937 random(21);
  Memory<float> x(kColumns);
  for (const i64 at : std::vector<i64>{0, 8191, 8192, kColumns / 2, kColumns - 1}) {
    for (const float gap : {88.0f, 200.0f, 1e4f}) {
      for (i64 i = 0; i < kColumns; ++i) x[i] = static_cast<float>(i % 7) / 8;
      x[at] = gap;
      CheckSoftmax<float, float>(false, x, 1, kColumns, 0, random);
      CheckSoftmax<float, float>(true, x, 1, kColumns, 0, random);
    }
  }
}

TEST(LongRowsTest, SoftmaxOfInfinityAndNan) {
  constexpr i64 kColumns = (64 << 10) + 100;
  std::mt19937 random(22);
  Memory<float> x(kColumns);
  const auto check = [&] {
    CheckSoftmax<float, float>(false, x, 1, kColumns, 0, random);
    CheckSoftmax<float, float>(true, x, 1, kColumns, 0, random);
  };
  for (i64 i = 0; i < kColumns; ++i) x[i] = -kInfinity;
  check();
  // Parts of only -infinity, beside numbers that are far from 0.
  for (i64 i = kColumns - 9000; i < kColumns; ++i) x[i] = static_cast<float>(i % 5) - 500.0f;
  check();
  x[3] = kInfinity;
  check();
  x[3] = NAN;
  check();
}

enum class Norm { kRms, kRmsResidual, kLayer };

// A norm of rows of x, with weights w of float32, in all the ways. `mean`: of the values.
template <typename T, typename U = T>
void CheckNorm(Norm norm, i64 rows, i64 columns, float mean, std::mt19937& random) {
  SCOPED_TRACE("norm " + std::to_string(static_cast<int>(norm)) + " of " + std::to_string(rows) +
               " x " + std::to_string(columns));
  constexpr float kEps = 1e-5f;
  u32 eps_bits = 0;
  std::memcpy(&eps_bits, &kEps, sizeof(kEps));
  const i64 size = rows * columns;
  std::normal_distribution<float> normal(0.0f, 2.0f);
  Memory<T> x(size), r(size), w(columns), b(columns);
  for (i64 i = 0; i < size; ++i) x[i] = T(mean + normal(random));
  for (i64 i = 0; i < size; ++i) r[i] = T(normal(random));
  for (i64 c = 0; c < columns; ++c) w[c] = T(normal(random));
  for (i64 c = 0; c < columns; ++c) b[c] = T(normal(random));
  const auto matrix = [&](Memory<T>& from) {
    return DenseArgument(from.data(), kDType<T>, {rows, columns});
  };
  const auto vector = [&](Memory<T>& from) {
    return DenseArgument(from.data(), kDType<T>, {columns});
  };
  // The outputs: of the norm, and the sum.
  struct Outputs {
    Memory<U> out;
    Memory<T> h;
  };
  const auto run = [&](Outputs& outputs, u64 chunks, const EmulatedChunks& how) {
    for (i64 i = 0; i < size; ++i) outputs.out[i] = U(-77.0f);
    for (i64 i = 0; i < size; ++i) outputs.h[i] = T(-77.0f);
    const Argument out = DenseArgument(outputs.out.data(), kDType<U>, {rows, columns});
    const Argument eps = ScalarArgument(eps_bits);
    u32 status = 0;
    if (norm == Norm::kRms) {
      status = RunEmulated(resident_operator_rmsnorm, {matrix(x), vector(w), out, eps}, chunks,
                           nullptr, how);
    } else if (norm == Norm::kRmsResidual) {
      status = RunEmulated(resident_operator_rmsnorm_residual,
                           {matrix(x), matrix(r), vector(w), out, matrix(outputs.h), eps}, chunks,
                           nullptr, how);
    } else {
      status = RunEmulated(resident_operator_layernorm, {matrix(x), vector(w), vector(b), out, eps},
                           chunks, nullptr, how);
    }
    EXPECT_EQ(status, 0u);
  };
  Outputs one = {Memory<U>(size), Memory<T>(size)};
  run(one, 1, {});
  std::vector<double> weights, bias;
  for (i64 c = 0; c < columns; ++c) {
    weights.push_back(static_cast<float>(w[c]));
    bias.push_back(static_cast<float>(b[c]));
  }
  for (i64 row = 0; row < rows; ++row) {
    std::vector<double> v;
    for (i64 i = row * columns; i < (row + 1) * columns; ++i) {
      double value = static_cast<float>(x[i]);
      if (norm == Norm::kRmsResidual) value += static_cast<double>(static_cast<float>(r[i]));
      v.push_back(value);
    }
    const std::vector<double> reference = norm == Norm::kLayer
                                              ? testing::LayerNorm(v, weights, bias, kEps)
                                              : testing::RmsNorm(v, weights, kEps);
    double difference = 0, wanted = 0;
    for (i64 c = 0; c < columns; ++c) {
      const double value = v[static_cast<size_t>(c)];
      const double want = reference[static_cast<size_t>(c)];
      const double got = static_cast<float>(one.out[row * columns + c]);
      difference += (got - want) * (got - want);
      wanted += want * want;
      if (norm == Norm::kRmsResidual) {
        ASSERT_EQ(static_cast<float>(one.h[row * columns + c]),
                  static_cast<float>(T(static_cast<float>(value))));
      }
    }
    EXPECT_LE(std::sqrt(difference), kTolerance<U> * std::sqrt(wanted)) << "row " << row;
  }
  for (const Way& way : WaysOfTwoSteps(random)) {
    Outputs other = {Memory<U>(size), Memory<T>(size)};
    run(other, way.chunks, way.how);
    const auto same = [&](const void* a, const void* b, size_t bytes) {
      EXPECT_EQ(std::memcmp(a, b, bytes), 0)
          << way.chunks << " chunks, " << (way.how.share_memory ? "shared" : "not shared");
    };
    same(one.out.data(), other.out.data(), static_cast<size_t>(size) * sizeof(U));
    same(one.h.data(), other.h.data(), static_cast<size_t>(size) * sizeof(T));
  }
}

TEST(LongRowsTest, Norms) {
  constexpr i64 kLong = 64 << 10;
  std::mt19937 random(23);
  for (const Norm norm : {Norm::kRms, Norm::kRmsResidual, Norm::kLayer}) {
    CheckNorm<float>(norm, 1, kLong + static_cast<i64>(random() % 2), 0, random);
    CheckNorm<BFloat16>(norm, 2, kLong + static_cast<i64>(random() % 9000), 0, random);
    CheckNorm<float>(norm, 1, kLong - 1, 0, random);
    CheckNorm<float>(norm, 3, kLong + 4099, 0, random);
    CheckNorm<Half, float>(norm, 1, 3 * kLong + 7, 0, random);
  }
  CheckNorm<float>(Norm::kLayer, 1, kLong + 100, 1000, random);
}

}  // namespace
}  // namespace resident
