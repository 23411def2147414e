// Reductions of rows, whose elements are adjacent, in blocks of several warps: wherever a row
// begins and whatever is between two rows, a result has the bits of that of the dense tensor.
// long_rows_warps_test.cc has rows that several chunks share.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/sdk/operator.h"

extern "C" {
void resident_operator_argmax(resident::BlockState* state);
void resident_operator_max(resident::BlockState* state);
void resident_operator_mean(resident::BlockState* state);
void resident_operator_min(resident::BlockState* state);
void resident_operator_sum(resident::BlockState* state);
}

namespace resident {
namespace {

struct alignas(16) Aligned {
  unsigned char bytes[16];
};

// rows x columns elements: the first one is `shift` elements behind a multiple of 16 bytes, and
// between two rows are `gap` elements.
template <typename T>
class Rows {
 public:
  Rows(DType dtype, i64 rows, i64 columns, i64 shift, i64 gap)
      : dtype_(dtype), rows_(rows), columns_(columns), shift_(shift), pitch_(columns + gap) {
    memory_.resize(static_cast<size_t>(shift + rows * pitch_) * sizeof(T) / sizeof(Aligned) + 1);
    std::memset(static_cast<void*>(memory_.data()), 0xff, memory_.size() * sizeof(Aligned));
  }
  T& at(i64 row, i64 column) { return data()[row * pitch_ + column]; }
  Argument argument() {
    Argument argument = DenseArgument(data(), dtype_, {rows_, columns_});
    argument.tensor.strides[0] = pitch_;
    return argument;
  }

 private:
  T* data() { return reinterpret_cast<T*>(memory_.data()) + shift_; }

  DType dtype_;
  i64 rows_;
  i64 columns_;
  i64 shift_;
  i64 pitch_;
  std::vector<Aligned> memory_;
};

// The bytes of the results, of which each has 8.
template <typename T>
std::vector<i64> Reduce(OperatorFunction op, Rows<T>& x, i64 rows, u64 chunks) {
  std::vector<i64> out(static_cast<size_t>(rows), -1);
  const DType dtype = op == resident_operator_argmax ? DType::kI64 : DType::kF32;
  EXPECT_EQ(RunEmulated(
                op, {x.argument(), DenseArgument(out.data(), dtype, {rows}), ScalarArgument(0b10)},
                chunks),
            0u);
  return out;
}

template <typename T>
double Reference(OperatorFunction op, Rows<T>& x, i64 row, i64 columns) {
  double sum = 0;
  double largest = -std::numeric_limits<double>::infinity();
  double smallest = -largest;
  i64 index = 0;
  for (i64 c = 0; c < columns; ++c) {
    const double value = static_cast<float>(x.at(row, c));
    sum += value;
    if (value > largest) index = c;
    largest = std::max(largest, value);
    smallest = std::min(smallest, value);
  }
  if (op == resident_operator_sum) return sum;
  if (op == resident_operator_mean) return sum / static_cast<double>(columns);
  if (op == resident_operator_max) return largest;
  if (op == resident_operator_min) return smallest;
  return static_cast<double>(index);
}

const std::vector<OperatorFunction> kReductions = {resident_operator_sum, resident_operator_mean,
                                                   resident_operator_max, resident_operator_min,
                                                   resident_operator_argmax};

template <typename T>
void Check(DType dtype, i64 rows, i64 columns, std::mt19937& random) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
  std::normal_distribution<float> normal;
  Rows<T> dense(dtype, rows, columns, 0, 0);
  const i64 shift = 1 + static_cast<i64>(random() % 7);
  const i64 gap = static_cast<i64>(random() % 5);
  Rows<T> view(dtype, rows, columns, shift, gap);
  Rows<T> aligned_view(dtype, rows, columns, 0, 8 + static_cast<i64>(random() % 3));
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < columns; ++c) {
      dense.at(r, c) = view.at(r, c) = aligned_view.at(r, c) = T(normal(random));
    }
  }
  for (const OperatorFunction op : kReductions) {
    const std::vector<i64> got = Reduce(op, dense, rows, 1);
    for (i64 r = 0; r < rows; ++r) {
      const double want = Reference(op, dense, r, columns);
      if (op == resident_operator_argmax) {
        EXPECT_EQ(static_cast<double>(got[static_cast<size_t>(r)]), want) << "row " << r;
        continue;
      }
      const double value = reinterpret_cast<const float*>(got.data())[r];
      const bool exact = op == resident_operator_max || op == resident_operator_min;
      EXPECT_NEAR(value, want, exact ? 0 : 1e-6 * static_cast<double>(columns)) << "row " << r;
    }
    EXPECT_EQ(Reduce(op, view, rows, 1), got) << "shift " << shift << ", gap " << gap;
    EXPECT_EQ(Reduce(op, aligned_view, rows, 1), got);
    EXPECT_EQ(Reduce(op, view, rows, 3), got) << "3 chunks";
  }
}

TEST(ReductionOfRows, EqualsTheReferenceAndThatOfAView) {
  std::mt19937 random(23);
  // Around the sizes at which a row gets more threads, and of whole groups of 16 bytes.
  for (const i64 columns :
       {1, 3, 7, 8, 16, 17, 31, 33, 128, 255, 256, 257, 511, 1023, 1024, 1025}) {
    Check<float>(DType::kF32, 1 + static_cast<i64>(random() % 40), columns, random);
    Check<Half>(DType::kF16, 1 + static_cast<i64>(random() % 40), columns, random);
    Check<BFloat16>(DType::kBF16, 1 + static_cast<i64>(random() % 40), columns, random);
  }
  Check<float>(DType::kF32, 2, 40'003, random);
  Check<BFloat16>(DType::kBF16, 2, 40'003, random);
}

TEST(ReductionOfRows, NanAndInfinityInAnyColumn) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const i64 columns : {5, 40, 1030}) {
    for (const i64 at : {i64{0}, columns / 2, columns - 1}) {
      Rows<float> x(DType::kF32, 2, columns, 1, 0);
      for (i64 c = 0; c < columns; ++c) x.at(0, c) = x.at(1, c) = -1.0f;
      x.at(0, at) = NAN;
      x.at(1, at) = infinity;
      for (const OperatorFunction op : kReductions) {
        const std::vector<i64> got = Reduce(op, x, 2, 1);
        if (op == resident_operator_argmax) {
          EXPECT_EQ(got, (std::vector<i64>{at, at}));
          continue;
        }
        const float* const values = reinterpret_cast<const float*>(got.data());
        EXPECT_TRUE(std::isnan(values[0]));
        EXPECT_EQ(values[1], op == resident_operator_min && columns > 1 ? -1.0f : infinity);
      }
    }
  }
}

TEST(ReductionOfRows, OfInfinitiesOnly) {
  for (const float value :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    Rows<float> x(DType::kF32, 3, 37, 0, 0);
    for (i64 r = 0; r < 3; ++r) {
      for (i64 c = 0; c < 37; ++c) x.at(r, c) = value;
    }
    for (const OperatorFunction op : kReductions) {
      if (op == resident_operator_argmax) continue;
      const std::vector<i64> got = Reduce(op, x, 3, 1);
      for (i64 r = 0; r < 3; ++r) EXPECT_EQ(reinterpret_cast<const float*>(got.data())[r], value);
    }
  }
}

}  // namespace
}  // namespace resident
