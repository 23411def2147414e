// The family "normalization": rows of all lengths, the values that a softmax can get wrong, and the
// order of equal elements.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/operator_runner.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr int64_t kColumns[] = {1,   15,  16,   17,   31,   32,   33,   255,
                                256, 257, 1023, 1024, 1025, 4099, 65537};
constexpr int64_t kLongRow = 256 << 10;

class NormalizationTest : public ::testing::Test {
 protected:
  // Numbers of rows for a number of columns.
  std::vector<int64_t> Rows(int64_t columns) const {
    std::vector<int64_t> rows = {1, 3};
    if (columns < 5000) rows.push_back(Emulated() ? 37 : 300);
    return rows;
  }
  DType AnyFloat() { return kFloats[random_() % 3]; }

  void CheckSoftmax(const TestTensor& x, uint32_t chunks = 1, DType dtype = DType::kF32) {
    SCOPED_TRACE(Trace(x));
    const auto columns = static_cast<size_t>(x.shape().back());
    const TestTensor out = TestTensor::Output(dtype, x.shape());
    ASSERT_EQ(RunOperator("softmax", {x, out}, chunks).status, CompletionStatus::kOk);
    ExpectNear(out, ByRow(x.Values(), columns, Softmax));
    const TestTensor logs = TestTensor::Output(dtype, x.shape());
    ASSERT_EQ(RunOperator("log_softmax", {x, logs}, chunks).status, CompletionStatus::kOk);
    ExpectNear(logs, ByRow(x.Values(), columns, LogSoftmax));
  }

  void CheckTopK(const TestTensor& x, int64_t k, uint32_t chunks = 1) {
    SCOPED_TRACE(Trace(x) + ", k " + std::to_string(k));
    const int64_t rows = x.shape()[0];
    const int64_t columns = x.shape()[1];
    const TestTensor weights = TestTensor::Output(DType::kF32, {rows, k});
    const TestTensor indices = TestTensor::Output(DType::kI64, {rows, k});
    ASSERT_EQ(RunOperator("softmax_topk", {x, weights, indices}, chunks).status,
              CompletionStatus::kOk);
    std::vector<double> order;
    const std::vector<double> expected =
        ByRow(x.Values(), static_cast<size_t>(columns), [&](const std::vector<double>& row) {
          const std::vector<double> softmax = Softmax(row);
          const bool nan = std::isnan(softmax[0]);
          std::vector<int64_t> sorted(columns);
          std::iota(sorted.begin(), sorted.end(), 0);
          if (!nan) {
            std::stable_sort(sorted.begin(), sorted.end(),
                             [&](int64_t a, int64_t b) { return row[a] > row[b]; });
          }
          std::vector<double> result;
          double sum = 0;
          for (int64_t j = 0; j < k; ++j) {
            order.push_back(static_cast<double>(sorted[j]));
            result.push_back(softmax[sorted[j]]);
            sum += result.back();
          }
          for (double& weight : result) weight /= sum;
          return result;
        });
    ExpectEqual(indices, order);
    ExpectNear(weights, expected);
  }

  std::string Trace(const TestTensor& x) const {
    std::string text = "seed " + std::to_string(seed_) + ", shape";
    for (const int64_t dim : x.shape()) text.append(" ").append(std::to_string(dim));
    return text;
  }

  const unsigned seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
};

TEST_F(NormalizationTest, SoftmaxOfAnyLengthAndDType) {
  for (const int64_t columns : kColumns) {
    for (const int64_t rows : Rows(columns)) {
      const TestTensor x = TestTensor::Random(AnyFloat(), {rows, columns}, random_, 3);
      CheckSoftmax(x, 1 + random_() % 3, AnyFloat());
      if (HasFailure()) return;
    }
  }
  CheckSoftmax(TestTensor::Random(DType::kF32, {2, 3, 4, 5}, random_), 3);
  CheckSoftmax(TestTensor::Random(DType::kF32, {7}, random_));
  CheckSoftmax(TestTensor::Random(DType::kF32, {2, 40'000}, random_));
}

TEST_F(NormalizationTest, SoftmaxOfALongRowWithTheMaximumAtAnyIndex) {
  std::vector<double> values = TestTensor::Random(DType::kF32, {kLongRow}, random_).Values();
  std::vector<int64_t> positions = {0, 1, 1024, kLongRow / 2, kLongRow - 1};
  positions.push_back(static_cast<int64_t>(random_() % kLongRow));
  const std::vector<double> gaps = {88, 89, 200, 1e4, 5, 30};
  for (size_t i = 0; i < positions.size(); ++i) {
    const double before = std::exchange(values[positions[i]], gaps[i]);
    CheckSoftmax(TestTensor::Input(DType::kF32, {kLongRow}, values));
    values[positions[i]] = before;
  }
  // The largest sum: without the maximum's subtraction it is beyond float32.
  CheckSoftmax(TestTensor::Input(DType::kF32, {kLongRow}, std::vector<double>(kLongRow, 1000)));
}

// Rows of at least 64 Ki columns are shared by the chunks of a task.
TEST_F(NormalizationTest, ChunksShareLongRowsOfASoftmax) {
  constexpr int64_t kShared = 64 << 10;
  const int rounds = Emulated() ? 3 : 20;
  for (int round = 0; round < rounds; ++round) {
    const int64_t rows = 1 + static_cast<int64_t>(random_() % 3);
    // Around the limit, or anywhere above.
    const int64_t columns = round % 2 == 0 ? kShared - 2 + static_cast<int64_t>(random_() % 5)
                                           : kShared + static_cast<int64_t>(random_() % 100'000);
    const TestTensor x = TestTensor::Random(AnyFloat(), {rows, columns}, random_, 3);
    CheckSoftmax(x, 1 + random_() % (Emulated() ? 9 : 400), AnyFloat());
    if (HasFailure()) return;
  }
  // A row of only -infinity, one that has parts of -infinity, infinity, NaN.
  std::vector<double> values(4 * kShared, -kInf);
  for (int64_t c = kShared / 2; c < kShared; ++c) values[kShared + c] = -1000 - (c % 9);
  values[2 * kShared + 5] = kInf;
  values[4 * kShared - 1] = kNan;
  const TestTensor x = TestTensor::Input(DType::kF32, {4, kShared}, values);
  for (const uint32_t chunks : {1u, 4u, 31u}) CheckSoftmax(x, chunks);
}

TEST_F(NormalizationTest, SoftmaxOfLargeGaps) {
  for (const double gap : {87.0, 88.0, 89.0, 103.0, 104.0, 200.0, 1e4, 3e38}) {
    for (const int64_t columns : {2, 3, 40, 3000}) {
      for (const int64_t at : {int64_t{0}, columns / 2, columns - 1}) {
        std::vector<double> values(columns, -gap);
        values[at] = 0;
        CheckSoftmax(TestTensor::Input(DType::kF32, {1, columns}, values));
        for (double& value : values) value = -value;
        CheckSoftmax(TestTensor::Input(DType::kF32, {1, columns}, values));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(NormalizationTest, SoftmaxOfInfinityAndNan) {
  for (const DType dtype : kFloats) {
    for (const int64_t n : {1, 2, 20, 300, 3000}) {
      // Rows: only -infinity; some -infinity; infinity; NaN; ordinary.
      std::vector<double> values(5 * n, 1);
      for (int64_t c = 0; c < n; ++c) {
        values[c] = -kInf;
        values[n + c] = c % 2 == 0 ? 0.5 : -kInf;
      }
      values[2 * n + n / 2] = kInf;
      values[3 * n + n - 1] = kNan;
      CheckSoftmax(TestTensor::Input(dtype, {5, n}, values), 2, dtype);
      CheckTopK(TestTensor::Input(dtype, {5, n}, values), (n + 1) / 2, 2);
      if (HasFailure()) return;
    }
  }
}

TEST_F(NormalizationTest, TopKOfAnyNumberOfColumns) {
  for (const int64_t columns : kColumns) {
    for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{8}, int64_t{100}, columns}) {
      if (k > columns || (k > 10'000 && Emulated())) continue;
      const int64_t rows = columns < 2000 && k < 100 ? 5 : 1;
      CheckTopK(TestTensor::Random(AnyFloat(), {rows, columns}, random_, 2), k, 1 + random_() % 3);
      if (HasFailure()) return;
    }
  }
}

TEST_F(NormalizationTest, TopKTakesTheLowerIndexOfEqualElements) {
  for (const int64_t columns : {4, 100, 5000}) {
    for (const int64_t k : {int64_t{1}, int64_t{3}, columns / 2, columns}) {
      if (k > columns) continue;
      const int64_t rows = Emulated() ? 2 : 5;
      CheckTopK(TestTensor::Input(DType::kF32, {1, columns}, std::vector<double>(columns, 2)), k);
      std::vector<double> few(rows * columns);  // Few different values, also 0 and -0.
      for (double& value : few) value = static_cast<double>(random_() % 4) * 0.5 - 1;
      for (size_t i = 0; i < few.size(); ++i) {
        if (few[i] == 0 && i % 2 == 0) few[i] = -0.0;
      }
      CheckTopK(TestTensor::Input(DType::kF16, {rows, columns}, few), k);
      if (HasFailure()) return;
    }
  }
  std::vector<double> values(1025, -3);
  values[1] = values[1024] = 5;
  CheckTopK(TestTensor::Input(DType::kF32, {1, 1025}, values), 1);
  CheckTopK(TestTensor::Input(DType::kF32, {1, 1025}, values), 3);
}

TEST_F(NormalizationTest, TopKOfMoreThanTheColumnsIsRefused) {
  const TestTensor x = TestTensor::Random(DType::kF32, {2, 3}, random_);
  const Outcome outcome = RunOperator("softmax_topk", {x, TestTensor::Output(DType::kF32, {2, 4}),
                                                       TestTensor::Output(DType::kI64, {2, 4})});
  EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
  EXPECT_EQ(outcome.detail, 1);
}

TEST_F(NormalizationTest, RmsNormOfAnyLengthAndDType) {
  for (const int64_t columns : kColumns) {
    for (const int64_t rows : Rows(columns)) {
      for (const bool float32 : {true, false}) {
        const auto dtype = [&] { return float32 ? DType::kF32 : AnyFloat(); };
        const TestTensor x = TestTensor::Random(dtype(), {rows, columns}, random_);
        const TestTensor w = TestTensor::Random(dtype(), {columns}, random_);
        const TestTensor out = TestTensor::Output(dtype(), {rows, columns});
        SCOPED_TRACE(Trace(x));
        ASSERT_EQ(RunOperator("rmsnorm", {x, w, out, F32(1e-6f)}, 1 + random_() % 3).status,
                  CompletionStatus::kOk);
        ExpectNear(out, RmsNorm(x.Values(), w.Values(), 1e-6f));
        if (HasFailure()) return;
      }
    }
  }
  // eps is inside of the root.
  const TestTensor zeros = TestTensor::Input(DType::kF32, {1, 3}, {0, 0, 0});
  const TestTensor small = TestTensor::Input(DType::kF32, {1, 3}, {1e-3, -1e-3, 1e-3});
  const TestTensor w = TestTensor::Input(DType::kF32, {3}, {1, 2, 3});
  TestTensor out = TestTensor::Output(DType::kF32, {1, 3});
  ASSERT_EQ(RunOperator("rmsnorm", {zeros, w, out, F32(1e-6f)}).status, CompletionStatus::kOk);
  ExpectEqual(out, {0, 0, 0});
  out = TestTensor::Output(DType::kF32, {1, 3});
  ASSERT_EQ(RunOperator("rmsnorm", {small, w, out, F32(0.25f)}).status, CompletionStatus::kOk);
  ExpectNear(out, RmsNorm(small.Values(), w.Values(), 0.25));
}

TEST_F(NormalizationTest, TheResidualSumIsRoundedOnlyInItsOutput) {
  for (const int64_t columns : {1, 40, 300, 1025, 4099}) {
    for (const DType dtype : kFloats) {
      for (const int64_t rows : {1, 37}) {
        const TestTensor x = TestTensor::Random(dtype, {rows, columns}, random_);
        const TestTensor r = TestTensor::Random(AnyFloat(), {rows, columns}, random_, 100);
        const TestTensor w = TestTensor::Random(AnyFloat(), {columns}, random_);
        // A precise output shows whether it was computed from a rounded sum.
        const TestTensor out = TestTensor::Output(DType::kF32, {rows, columns});
        const TestTensor h = TestTensor::Output(dtype, {rows, columns});
        SCOPED_TRACE(Trace(x));
        ASSERT_EQ(RunOperator("rmsnorm_residual", {x, r, w, out, h, F32(1e-5f)}, 2).status,
                  CompletionStatus::kOk);
        std::vector<double> sum = x.Values();
        const std::vector<double> others = r.Values();
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += others[i];
        ExpectNear(h, sum);
        ExpectNear(out, RmsNorm(sum, w.Values(), 1e-5f));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(NormalizationTest, LayerNormOfAnyLengthAndDTypeWithAndWithoutBias) {
  for (const int64_t columns : kColumns) {
    for (const int64_t rows : Rows(columns)) {
      for (const bool biased : {true, false}) {
        const auto dtype = [&] { return biased == (rows == 3) ? DType::kF32 : AnyFloat(); };
        const TestTensor x = TestTensor::Random(dtype(), {rows, columns}, random_);
        const TestTensor w = TestTensor::Random(dtype(), {columns}, random_);
        const TestTensor b = TestTensor::Random(dtype(), {biased ? columns : 0}, random_);
        const TestTensor out = TestTensor::Output(dtype(), {rows, columns});
        SCOPED_TRACE(Trace(x));
        ASSERT_EQ(RunOperator("layernorm", {x, w, b, out, F32(1e-5f)}, 1 + random_() % 3).status,
                  CompletionStatus::kOk);
        ExpectNear(out, LayerNorm(x.Values(), w.Values(), b.Values(), 1e-5f));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(NormalizationTest, TheBitsAreTheSameForAnyNumberOfChunks) {
  for (const Dims& shape : std::vector<Dims>{{37, 300}, {3, 4099}, {1, 65537}, {2, 70'000}}) {
    const int64_t columns = shape.back();
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TestTensor x = TestTensor::Random(dtype, shape, random_);
      const TestTensor r = TestTensor::Random(dtype, shape, random_);
      const TestTensor w = TestTensor::Random(dtype, {columns}, random_);
      const TestTensor b = TestTensor::Random(dtype, {columns}, random_);
      // The inputs; outputs and scalars follow.
      const std::vector<std::pair<std::string, std::vector<TestArgument>>> operators = {
          {"softmax", {x}},
          {"log_softmax", {x}},
          {"rmsnorm", {x, w}},
          {"rmsnorm_residual", {x, r, w}},
          {"layernorm", {x, w, b}}};
      for (const auto& [name, inputs] : operators) {
        SCOPED_TRACE(name + " of " + Trace(x));
        std::vector<double> expected, expected_sum;
        for (const uint32_t chunks : {1u, 2u, 7u, 33u}) {
          const TestTensor out = TestTensor::Output(DType::kF32, shape);
          const TestTensor sum = TestTensor::Output(DType::kF32, shape);
          std::vector<TestArgument> arguments = inputs;
          arguments.emplace_back(out);
          if (name == "rmsnorm_residual") arguments.emplace_back(sum);
          if (inputs.size() > 1) arguments.push_back(F32(1e-5f));
          ASSERT_EQ(RunOperator(name, arguments, chunks).status, CompletionStatus::kOk);
          if (chunks == 1) expected = out.Values();
          ExpectEqual(out, expected);
          if (name != "rmsnorm_residual") continue;
          if (chunks == 1) expected_sum = sum.Values();
          ExpectEqual(sum, expected_sum);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(NormalizationTest, LayerNormOfALargeMean) {
  for (const double mean : {100.0, 1e4, 1e6}) {
    for (const int64_t columns : {300, 4099, 65537}) {
      std::vector<double> values = TestTensor::Random(DType::kF32, {columns}, random_).Values();
      for (double& value : values) value += mean;
      const TestTensor x = TestTensor::Input(DType::kF32, {1, columns}, values);
      const TestTensor w = TestTensor::Random(DType::kF32, {columns}, random_);
      const TestTensor b = TestTensor::Input(DType::kF32, {0}, {});
      const TestTensor out = TestTensor::Output(DType::kF32, {1, columns});
      SCOPED_TRACE(Trace(x) + ", mean " + std::to_string(mean));
      ASSERT_EQ(RunOperator("layernorm", {x, w, b, out, F32(1e-5f)}).status, CompletionStatus::kOk);
      ExpectNear(out, LayerNorm(x.Values(), w.Values(), {}, 1e-5f));
    }
  }
}

TEST_F(NormalizationTest, ABiasOfAnotherShapeIsRefused) {
  const TestTensor x = TestTensor::Random(DType::kF32, {2, 6}, random_);
  const TestTensor w = TestTensor::Random(DType::kF32, {6}, random_);
  for (const Dims& shape : std::vector<Dims>{{5}, {1}, {1, 6}, {2, 3}, {}}) {
    const TestTensor b = TestTensor::Random(DType::kF32, shape, random_);
    const TestTensor out = TestTensor::Output(DType::kF32, {2, 6});
    const Outcome outcome = RunOperator("layernorm", {x, w, b, out, F32(1e-5f)});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 1);
  }
}

TEST_F(NormalizationTest, NoElements) {
  for (const Dims& shape : std::vector<Dims>{{0, 5}, {3, 0}, {0, 0}}) {
    const TestTensor x = TestTensor::Random(DType::kF32, shape, random_);
    const TestTensor w = TestTensor::Random(DType::kF32, {shape[1]}, random_);
    const auto out = [&] { return TestTensor::Output(DType::kF32, shape); };
    EXPECT_EQ(RunOperator("softmax", {x, out()}, 2).status, CompletionStatus::kOk);
    EXPECT_EQ(RunOperator("log_softmax", {x, out()}).status, CompletionStatus::kOk);
    EXPECT_EQ(RunOperator("rmsnorm", {x, w, out(), F32(0)}).status, CompletionStatus::kOk);
    EXPECT_EQ(RunOperator("rmsnorm_residual", {x, x, w, out(), out(), F32(0)}).status,
              CompletionStatus::kOk);
    EXPECT_EQ(RunOperator("layernorm", {x, w, w, out(), F32(0)}).status, CompletionStatus::kOk);
    EXPECT_EQ(RunOperator("softmax_topk", {x, TestTensor::Output(DType::kF32, {shape[0], 0}),
                                           TestTensor::Output(DType::kI64, {shape[0], 0})})
                  .status,
              CompletionStatus::kOk);
  }
}

}  // namespace
}  // namespace resident::testing
