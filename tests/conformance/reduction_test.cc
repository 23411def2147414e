// The family "reduction": any axes, shapes, layouts and dtypes, and the values and positions that
// a reduction can get wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/operator_runner.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};
const char* const kOperators[] = {"sum", "mean", "max", "min", "argmax"};

// The elements of each output, in the row-major order of the reduced axes.
std::vector<std::vector<double>> Split(const std::vector<double>& values, const Dims& shape,
                                       uint32_t axes) {
  int64_t outputs = 1;
  for (size_t d = 0; d < shape.size(); ++d) outputs *= axes >> d & 1 ? 1 : shape[d];
  std::vector<std::vector<double>> split(outputs);
  for (size_t i = 0; i < values.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    int64_t output = 0;
    int64_t stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      const int64_t at = rest % shape[d];
      rest /= shape[d];
      if (axes >> d & 1) continue;
      output += at * stride;
      stride *= shape[d];
    }
    // Row-major order of all axes is that of the reduced ones for a fixed output.
    split[output].push_back(values[i]);
  }
  return split;
}

double Reference(const std::string& name, const std::vector<double>& values) {
  if (name == "sum" || name == "mean") {
    double sum = 0;
    for (const double value : values) sum += value;
    return name == "sum" ? sum : sum / static_cast<double>(values.size());
  }
  double best = values[0];
  size_t index = 0;
  for (size_t i = 0; i < values.size() && !std::isnan(best); ++i) {
    const double v = values[i];
    if (std::isnan(v) || (name == "min" ? v < best : v > best)) {
      best = v;
      index = i;
    }
  }
  return name == "argmax" ? static_cast<double>(index) : best;
}

std::vector<double> References(const std::string& name, const TestTensor& x, uint32_t axes) {
  std::vector<double> references;
  for (const auto& values : Split(x.Values(), x.shape(), axes)) {
    references.push_back(Reference(name, values));
  }
  return references;
}

Dims ReducedShape(const Dims& shape, uint32_t axes, bool keepdim) {
  Dims reduced;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (axes >> d & 1) {
      if (keepdim) reduced.push_back(1);
    } else {
      reduced.push_back(shape[d]);
    }
  }
  return reduced;
}

TestTensor OutputFor(const std::string& name, const TestTensor& x, uint32_t axes,
                     bool keepdim = false, DType dtype = DType::kF32) {
  return TestTensor::Output(name == "argmax" ? DType::kI64 : dtype,
                            ReducedShape(x.shape(), axes, keepdim));
}

class ReductionTest : public ::testing::Test {
 protected:
  void Check(const std::string& name, const TestTensor& x, uint32_t axes, uint32_t chunks = 1,
             bool keepdim = false, DType dtype = DType::kF32) {
    SCOPED_TRACE(name + " over axes " + std::to_string(axes) + ", seed " + std::to_string(seed_));
    const TestTensor out = OutputFor(name, x, axes, keepdim, dtype);
    ASSERT_EQ(RunOperator(name, {x, out, U32(axes)}, chunks).status, CompletionStatus::kOk);
    if (name == "sum" || name == "mean") {
      ExpectNear(out, References(name, x, axes), /*products=*/true);
      return;
    }
    std::vector<double> reference = References(name, x, axes);
    if (name != "argmax") {  // Rounded to the output's dtype.
      reference = TestTensor::Input(dtype, out.shape(), reference).Values();
    }
    ExpectEqual(out, reference);
  }

  // For sums: that of values around 0 may be near 0, where a relative error means nothing.
  TestTensor Positive(DType dtype, const Dims& shape) {
    std::vector<double> values = TestTensor::Random(DType::kF32, shape, random_).Values();
    for (double& value : values) value = std::abs(value);
    return TestTensor::Input(dtype, shape, values);
  }

  const unsigned seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
};

TEST_F(ReductionTest, AnyAxesShapesLayoutsAndDTypes) {
  const int rounds = Emulated() ? 60 : 400;
  for (int round = 0; round < rounds; ++round) {
    Dims shape;
    const uint64_t rank = round < 8 ? 8 : random_() % 6;
    for (uint64_t d = 0; d < rank; ++d) {
      shape.push_back(1 + static_cast<int64_t>(random_() % (rank == 8 ? 3 : rank > 3 ? 6 : 40)));
    }
    const auto axes = static_cast<uint32_t>(random_() % (uint64_t{1} << rank));
    const DType dtype = kFloats[random_() % 3];
    TestTensor x =
        round % 5 < 2 ? Positive(dtype, shape) : TestTensor::Random(dtype, shape, random_);
    if (random_() % 2 == 0) {
      std::vector<int> order(rank);
      for (size_t d = 0; d < rank; ++d) order[d] = static_cast<int>(d);
      std::shuffle(order.begin(), order.end(), random_);
      x = x.WithLayout(order, 1 + static_cast<int64_t>(random_() % 2));
    }
    Check(kOperators[round % 5], x, axes, 1 + random_() % 4, random_() % 2 == 0,
          kFloats[random_() % 3]);
    if (HasFailure()) return;
  }
}

TEST_F(ReductionTest, SizesAroundTheLimitsOfTeamsAndTiles) {
  for (const int64_t count :
       {1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 255, 256, 257, 1023, 1024, 1025, 4099, 65537}) {
    for (const int64_t outputs : {1, 3, 31, 33, 129}) {
      if (count * outputs > (Emulated() ? 70'000 : 600'000)) continue;
      const TestTensor rows = Positive(DType::kF32, {outputs, count});
      const TestTensor columns = Positive(DType::kF32, {count, outputs});
      SCOPED_TRACE(std::to_string(outputs) + " of " + std::to_string(count));
      const uint32_t chunks = count % 2 == 0 ? 1 : 3;
      for (const char* const name : {"argmax", "mean"}) {
        if (Emulated() && outputs == 129 && count > 300) continue;
        Check(name, rows, 2, chunks);
        Check(name, columns, 1, chunks);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(ReductionTest, MoreThanAMillionElements) {
  const int64_t n = (1 << 20) + 7;
  const TestTensor x = Positive(DType::kF32, {n});
  for (const char* const name : kOperators) Check(name, x, 1);
  const TestTensor wide = TestTensor::Random(DType::kBF16, {3, n / 3}, random_);
  for (const char* const name : {"max", "argmax"}) {
    Check(name, wide, 1, 5);
    Check(name, wide, 3, 2);
  }
}

TEST_F(ReductionTest, LongSumsStayAccurate) {
  // Equal values: each addition to a sum in float32 rounds in the same direction.
  const int64_t n = 256 << 10;
  for (const DType dtype : kFloats) {
    const TestTensor x = TestTensor::Input(dtype, {2, n}, std::vector<double>(2 * n, 0.1));
    Check("sum", x, 2);
    Check("mean", x, 2, 2, true);
    Check("sum", x.View({n, 2}, {1, n}), 1);      // Rows, transposed.
    Check("sum", x.View({n, 2}, {2, 1}), 1);      // Columns.
    Check("sum", x.View({2, n / 2}, {n, 2}), 2);  // Every second element.
  }
  std::vector<double> values(n);
  for (double& value : values) value = std::uniform_real_distribution<>(0, 1)(random_);
  const TestTensor x = TestTensor::Input(DType::kF32, {n}, values);
  Check("sum", x, 1);
  Check("mean", x, 1);
}

TEST_F(ReductionTest, ARowOf256KiWithTheMaximumAtAnyPosition) {
  const int64_t n = 256 << 10;
  std::vector<int64_t> positions = {0, 1, 31, 32, 255, 256, 1023, 1024, 1025, n / 2, n - 2, n - 1};
  for (int i = 0; i < 8; ++i) positions.push_back(static_cast<int64_t>(random_() % n));
  const TestTensor base = TestTensor::Random(DType::kF32, {n}, random_);
  std::vector<double> values = base.Values();
  for (const int64_t at : positions) {
    const double before = std::exchange(values[at], 50.0);
    const TestTensor x = TestTensor::Input(DType::kF32, {n}, values);
    const TestTensor out = TestTensor::Output(DType::kI64, {1});
    ASSERT_EQ(RunOperator("argmax", {x, out, U32(1)}).status, CompletionStatus::kOk);
    ExpectEqual(out, {static_cast<double>(at)});
    const TestTensor largest = TestTensor::Output(DType::kF32, {});
    ASSERT_EQ(RunOperator("max", {x, largest, U32(1)}).status, CompletionStatus::kOk);
    ExpectEqual(largest, {50});
    values[at] = before;
  }
}

// Rows of at least 128 Ki elements are shared by the chunks of a task.
TEST_F(ReductionTest, ChunksShareLongRows) {
  constexpr int64_t kLongRow = 128 << 10;
  const int rounds = Emulated() ? 5 : 40;
  for (int round = 0; round < rounds; ++round) {
    const int64_t rows = 1 + static_cast<int64_t>(random_() % 3);
    // Around the limit, or anywhere above.
    const int64_t columns = round % 2 == 0 ? kLongRow - 2 + static_cast<int64_t>(random_() % 5)
                                           : kLongRow + static_cast<int64_t>(random_() % 100'000);
    const DType dtype = kFloats[random_() % 3];
    const std::string name = kOperators[round % 5];
    const bool sums = name == "sum" || name == "mean";
    TestTensor x = sums ? Positive(dtype, {rows, columns})
                        : TestTensor::Random(dtype, {rows, columns}, random_);
    // Rows that are apart, and begin anywhere.
    if (round % 3 == 0) x = x.View({rows, columns - 3}, {columns, 1}, 1 + random_() % 3);
    const uint32_t chunks = 1 + random_() % (Emulated() ? 9 : 400);
    Check(name, x, 2, chunks, random_() % 2 == 0, kFloats[random_() % 3]);
    Check(name, x, 2, 2);
    if (HasFailure()) return;
  }
}

TEST_F(ReductionTest, EqualElementsAndNanInSeveralPartsOfALongRow) {
  constexpr int64_t kColumns = 150'000;
  for (const uint32_t chunks : {2u, 3u, 20u}) {
    for (const std::vector<int64_t>& at : std::vector<std::vector<int64_t>>{
             {16'383, 16'384}, {20'000, 70'000, kColumns - 1}, {kColumns - 1}, {0, 100'000}}) {
      std::vector<double> values(2 * kColumns, -1);
      for (const int64_t i : at) values[i] = values[kColumns + i] = 3;
      const Dims one = {1, kColumns};
      const std::vector<double> first(values.begin(), values.begin() + kColumns);
      Check("argmax", TestTensor::Input(DType::kF32, {2, kColumns}, values), 2, chunks);
      Check("argmax", TestTensor::Input(DType::kF32, one, first), 2, chunks);
      Check("argmax", TestTensor::Input(DType::kBF16, one, first), 3, chunks);
      for (const int64_t i : at) values[i] = kNan;
      const TestTensor x = TestTensor::Input(DType::kF32, {2, kColumns}, values);
      for (const char* const name : {"max", "min", "argmax", "sum"}) Check(name, x, 2, chunks);
      if (HasFailure()) return;
    }
  }
}

TEST_F(ReductionTest, TheLowestIndexOfEqualElements) {
  for (const std::vector<int64_t>& at : std::vector<std::vector<int64_t>>{
           {1, 1024}, {1024, 1025}, {0, 4999}, {31, 32}, {4999}, {7, 8, 9, 4000}}) {
    std::vector<double> values(5000, -1);
    for (const int64_t i : at) values[i] = 3;
    const TestTensor x = TestTensor::Input(DType::kF32, {5000}, values);
    Check("argmax", x, 1);
    // The same elements with another distance.
    Check("argmax", x.View({1, 5000, 1}, {7, 1, 3}), 2);
    Check("argmax", TestTensor::Input(DType::kF16, {5000}, values).WithLayout({0}, 3), 1);
  }
  const TestTensor equal = TestTensor::Input(DType::kF32, {2, 3000}, std::vector<double>(6000, 2));
  Check("argmax", equal, 2);
  Check("argmax", equal, 1);
  Check("argmax", equal, 3);
  Check("argmax", TestTensor::Input(DType::kF32, {3}, {-1, -0.0, 0.0}), 1);
  Check("argmax", TestTensor::Input(DType::kF32, {3, 2}, {-1, -1, -0.0, 0.0, 0.0, -0.0}), 1);
}

TEST_F(ReductionTest, InfinityAndNan) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 2, 40, 3000}) {
      std::vector<double> values(3 * n, -kInf);
      const TestTensor lowest = TestTensor::Input(dtype, {3, n}, values);
      for (const char* const name : kOperators) {
        Check(name, lowest, 2, 1, false, dtype);
        Check(name, lowest, 1, 1, false, dtype);
      }
      // Row 0 has a NaN beside infinity, row 1 two NaNs, row 2 only numbers and -infinity.
      for (double& value : values) value = std::normal_distribution<>(0, 1)(random_);
      values[n / 2] = kInf;
      values[n - 1] = kNan;
      values[n + n / 3] = kNan;
      values[2 * n - 1] = kNan;
      values[2 * n] = -kInf;
      const TestTensor x = TestTensor::Input(dtype, {3, n}, values);
      for (const char* const name : {"max", "min", "argmax", "sum"}) {
        Check(name, x, 2, 2, false, dtype);
        Check(name, x, 1, 2, false, dtype);
        Check(name, x.WithLayout({1, 0}, 2), 2, 2, false, dtype);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(ReductionTest, RepeatedAndReversedViews) {
  const TestTensor x = TestTensor::Random(DType::kF32, {600}, random_);
  for (const char* const name : {"max", "argmax"}) {
    Check(name, x.View({5, 100}, {-100, -1}, 599), 2);
    Check(name, x.View({5, 100}, {-100, -1}, 599), 1);
    Check(name, x.View({5, 100}, {0, 1}), 2);
    Check(name, x.View({5, 100}, {0, 1}), 1);
    Check(name, x.View({5, 100}, {1, 0}), 2);
  }
}

TEST_F(ReductionTest, TheBitsAreTheSameForAnyNumberOfChunks) {
  for (const Dims& shape :
       std::vector<Dims>{{40, 3000}, {300, 40}, {7, 200, 33}, {2, 140'000}, {1, 400'001}}) {
    const TestTensor x = TestTensor::Random(DType::kF32, shape, random_);
    for (const uint32_t axes : {1u, 2u}) {
      for (const char* const name : {"sum", "mean"}) {
        const TestTensor one = OutputFor(name, x, axes);
        ASSERT_EQ(RunOperator(name, {x, one, U32(axes)}).status, CompletionStatus::kOk);
        for (const uint32_t chunks : {2u, 7u, 33u}) {
          SCOPED_TRACE(name);
          const TestTensor several = OutputFor(name, x, axes);
          ASSERT_EQ(RunOperator(name, {x, several, U32(axes)}, chunks).status,
                    CompletionStatus::kOk);
          ExpectEqual(several, one.Values());
        }
      }
    }
  }
}

// The order of the additions of `sum` and `mean` depends on the layout: whole numbers have the same
// sum in any order.
TEST_F(ReductionTest, AViewHasTheBitsOfItsContiguousCopy) {
  for (const Dims& shape : std::vector<Dims>{{33, 130}, {130, 33}, {7, 20, 9}}) {
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    for (const DType dtype : kFloats) {
      if (Emulated() && dtype == DType::kF16) continue;
      const TestTensor normal = TestTensor::Random(dtype, shape, random_);
      std::vector<double> whole = normal.Values();
      for (double& value : whole) value = std::round(8 * value);
      const TestTensor numbers = TestTensor::Input(dtype, shape, whole);
      do {
        for (const std::string name : kOperators) {
          const TestTensor& x = name == "sum" || name == "mean" ? numbers : normal;
          for (const uint32_t axes : {1u, 2u, 3u}) {
            SCOPED_TRACE(name + ", axes " + std::to_string(axes));
            const TestTensor expected = OutputFor(name, x, axes);
            ASSERT_EQ(RunOperator(name, {x, expected, U32(axes)}, 3).status, CompletionStatus::kOk);
            const TestTensor view = x.WithLayout(order, 1 + static_cast<int64_t>(random_() % 3));
            const TestTensor out = OutputFor(name, x, axes);
            ASSERT_EQ(RunOperator(name, {view, out, U32(axes)}, 3).status, CompletionStatus::kOk);
            ExpectEqual(out, expected.Values());
          }
        }
        if (HasFailure()) return;
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST_F(ReductionTest, NoElements) {
  for (const char* const name : kOperators) {
    SCOPED_TRACE(name);
    const TestTensor x = TestTensor::Input(DType::kF32, {3, 0}, {});
    // No outputs.
    const TestTensor none = OutputFor(name, x, 1);
    EXPECT_EQ(RunOperator(name, {x, none, U32(1)}, 2).status, CompletionStatus::kOk);
    EXPECT_EQ(none.CheckWritten(), "");
    // Three outputs of no elements.
    const TestTensor out = OutputFor(name, x, 2);
    const Outcome outcome = RunOperator(name, {x, out, U32(2)}, 2);
    if (name == std::string("sum")) {
      EXPECT_EQ(outcome.status, CompletionStatus::kOk);
      ExpectEqual(out, {0, 0, 0});
    } else if (name == std::string("mean")) {
      EXPECT_EQ(outcome.status, CompletionStatus::kOk);
      ExpectEqual(out, {kNan, kNan, kNan});
    } else {
      EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
      EXPECT_EQ(outcome.detail, 3);
    }
  }
}

TEST_F(ReductionTest, NoAxes) {
  const TestTensor x = TestTensor::Random(DType::kF32, {3, 50}, random_);
  for (const char* const name : kOperators) {
    Check(name, x, 0);
    Check(name, TestTensor::Input(DType::kF32, {}, {4}), 0);
  }
}

TEST_F(ReductionTest, WrongAxesAndShapesAreRefused) {
  const TestTensor x = TestTensor::Random(DType::kF32, {2, 3, 4}, random_);
  const auto refused = [&](uint32_t axes, const Dims& shape, uint16_t detail) {
    for (const char* const name : kOperators) {
      const DType dtype = name == std::string("argmax") ? DType::kI64 : DType::kF32;
      const TestTensor out = TestTensor::Output(dtype, shape);
      const Outcome outcome = RunOperator(name, {x, out, U32(axes)});
      EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument) << name;
      EXPECT_EQ(outcome.detail, detail) << name << " axes " << axes;
    }
  };
  refused(8, {2, 3, 4}, 1);
  refused(0x80000001u, {3, 4}, 1);
  refused(1, {2, 3}, 2);
  refused(1, {4, 3}, 2);
  refused(1, {3}, 2);
  refused(1, {2, 3, 4}, 2);
  refused(1, {3, 4, 1}, 2);
  refused(1, {12}, 2);
  refused(1, {1, 1, 3, 4}, 2);
  refused(7, {2}, 2);
  refused(7, {1}, 2);
  refused(0, {2, 12}, 2);
}

}  // namespace
}  // namespace resident::testing
