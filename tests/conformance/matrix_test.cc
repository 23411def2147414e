// The family "matrix": shapes, dtypes and their mixtures, layouts, chunks and special values.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/operator_runner.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// alpha * a * b + beta * c for dense matrices.
std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& b,
                            const std::vector<double>& c, int64_t batches, int64_t rows,
                            int64_t columns, int64_t depth, double alpha, double beta) {
  std::vector<double> result(batches * rows * columns);
  std::vector<double> line(columns);
  for (int64_t i = 0; i < batches; ++i) {
    for (int64_t m = 0; m < rows; ++m) {
      line.assign(columns, 0);
      for (int64_t k = 0; k < depth; ++k) {
        const double factor = a[(i * rows + m) * depth + k];
        for (int64_t n = 0; n < columns; ++n) {
          line[n] += factor * b[(i * depth + k) * columns + n];
        }
      }
      for (int64_t n = 0; n < columns; ++n) {
        const int64_t at = (i * rows + m) * columns + n;
        result[at] = alpha * line[n] + (beta == 0 ? 0 : beta * c[at]);
      }
    }
  }
  return result;
}

// With fewer outputs, inputs have one sign.
constexpr int64_t kFewOutputs = 4;
// The same where the operator takes each value of float32 as the sum of two of bfloat16: the error
// of the whole result is then about a fifth of the allowed one, and the norm of a few outputs of
// both signs is now and then less than a fifth of what it is on average.
constexpr int64_t kFewOutputsOfTwoParts = 32;

// The absolute values, times `sign`.
TestTensor Absolute(const TestTensor& tensor, double sign = 1) {
  std::vector<double> values = tensor.Values();
  for (double& value : values) value = sign * std::abs(value);
  return TestTensor::Input(tensor.dtype(), tensor.shape(), values);
}

class MatrixTest : public ::testing::Test {
 protected:
  void SetUp() override { RecordProperty("seed", std::to_string(seed_)); }

  DType AnyFloat() { return kFloats[random_() % 3]; }
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  // Any order of the last two dimensions, and any distance between elements.
  TestTensor RandomLayout(const TestTensor& tensor) {
    std::vector<int> order = {0, 1, 2};
    if (tensor.shape().size() == 2) order = {0, 1};
    if (random_() % 2 == 0) std::swap(order[order.size() - 2], order.back());
    return tensor.WithLayout(order, 1 + Below(2));
  }
  TestTensor Random(DType dtype, Dims shape, double deviation = 1) {
    return TestTensor::Random(dtype, std::move(shape), random_, deviation);
  }

  struct Gemm {
    int64_t rows;
    int64_t columns;
    int64_t depth;
    int64_t batches = 0;  // 0: gemm.
    double alpha = 1;
    double beta = 0;
    uint32_t chunks = 1;
    DType a = DType::kF32;
    DType b = DType::kF32;
    DType c = DType::kF32;
    bool any_layout = false;
  };

  // Runs it on random matrices and compares with the reference. Returns c.
  std::vector<double> Check(const Gemm& test) {
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", " + std::to_string(test.batches) + " x " +
                 std::to_string(test.rows) + " x " + std::to_string(test.columns) + " x " +
                 std::to_string(test.depth) + ", " + std::to_string(test.chunks) + " chunks");
    const auto shape = [&](int64_t rows, int64_t columns) {
      return test.batches == 0 ? Dims{rows, columns} : Dims{test.batches, rows, columns};
    };
    TestTensor a = Random(test.a, shape(test.rows, test.depth));
    TestTensor b = Random(test.b, shape(test.depth, test.columns));
    TestTensor c = test.beta == 0 ? TestTensor::Output(test.c, shape(test.rows, test.columns))
                                  : Random(test.c, shape(test.rows, test.columns));
    // A sum of few values of both signs may be close to 0, and its relative error is then large.
    if (std::max<int64_t>(test.batches, 1) * test.rows * test.columns < kFewOutputs) {
      a = Absolute(a);
      b = Absolute(b);
      if (test.beta != 0) c = Absolute(c, test.alpha * test.beta < 0 ? -1 : 1);
    }
    if (test.any_layout) {
      a = RandomLayout(a);
      b = RandomLayout(b);
      c = RandomLayout(c);
    }
    const std::vector<double> reference =
        Product(a.Values(), b.Values(), c.Values(), std::max<int64_t>(test.batches, 1), test.rows,
                test.columns, test.depth, test.alpha, test.beta);
    EXPECT_EQ(RunOperator(test.batches == 0 ? "gemm" : "gemm_batched",
                          {a, b, c, F32(static_cast<float>(test.alpha)),
                           F32(static_cast<float>(test.beta))},
                          test.chunks)
                  .status,
              CompletionStatus::kOk);
    ExpectNear(c, reference, /*products=*/true);
    return c.Values();
  }

  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
};

TEST_F(MatrixTest, GemmOfAllSmallShapes) {
  const std::vector<int64_t> sizes =
      Emulated() ? std::vector<int64_t>{0, 1, 7, 33} : std::vector<int64_t>{0, 1, 3, 7, 33, 67};
  for (const int64_t rows : sizes) {
    for (const int64_t columns : sizes) {
      for (const int64_t depth : sizes) {
        Check({.rows = rows, .columns = columns, .depth = depth});
        Check({.rows = rows,
               .columns = columns,
               .depth = depth,
               .alpha = -0.5,
               .beta = 2,
               .chunks = 3,
               .any_layout = true});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MatrixTest, GemmAroundTheLimitsOfTiles) {
  for (const int64_t size : {31, 32, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    Check({.rows = size, .columns = 5, .depth = 33});
    Check({.rows = 5, .columns = size, .depth = 31, .chunks = 4});
    Check({.rows = 3, .columns = 4, .depth = size, .beta = 1});
    if (Emulated()) continue;
    Check({.rows = size, .columns = size, .depth = size, .chunks = 5});
    Check({.rows = size, .columns = 1, .depth = 1023, .any_layout = true});
    Check({.rows = 1, .columns = size, .depth = 1025, .any_layout = true});
  }
  // More than 2^16 elements of c, and of a.
  Check({.rows = 263, .columns = 251, .depth = Emulated() ? 3 : 67, .chunks = 7});
  Check({.rows = 65537, .columns = 1, .depth = 1, .chunks = 3});
  Check({.rows = 1, .columns = 65537, .depth = 2, .chunks = 3});
  Check({.rows = 2, .columns = 3, .depth = Emulated() ? 4099 : 65537});
}

TEST_F(MatrixTest, GemmOfAnyDTypesAndLayouts) {
  for (int round = 0; round < (Emulated() ? 20 : 60); ++round) {
    const int64_t limit = Emulated() ? 50 : 150;
    Check({.rows = 1 + Below(limit),
           .columns = 1 + Below(limit),
           .depth = 1 + Below(limit),
           .batches = round % 2 == 0 ? 0 : 1 + Below(4),
           .alpha = 0.75,
           .beta = round % 3 == 0 ? 0.0 : -1.5,
           .chunks = 1 + static_cast<uint32_t>(Below(5)),
           .a = AnyFloat(),
           .b = AnyFloat(),
           .c = AnyFloat(),
           .any_layout = true});
    if (HasFailure()) return;
  }
}

// Values of one sign, for which the error of a plain sum grows fastest.
TEST_F(MatrixTest, GemmIsAccurateForADepthOf4096) {
  constexpr int64_t kDepth = 4096;
  const int64_t size = Emulated() ? 9 : 65;
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<double> left(size * kDepth);
  std::vector<double> right(size * kDepth);
  for (double& value : left) value = uniform(random_);
  for (double& value : right) value = uniform(random_);
  for (const DType dtype : kFloats) {
    const TestTensor a = TestTensor::Input(dtype, {size, kDepth}, left);
    const TestTensor b = TestTensor::Input(dtype, {kDepth, size}, right);
    const TestTensor c = TestTensor::Output(DType::kF32, {size, size});
    ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0)}).status, CompletionStatus::kOk);
    ExpectNear(c, Product(a.Values(), b.Values(), {}, 1, size, size, kDepth, 1, 0),
               /*products=*/true);
    Check({.rows = size, .columns = size, .depth = kDepth, .a = dtype, .b = dtype});
  }
}

TEST_F(MatrixTest, GemmReadsCOnlyIfBetaIsNotZero) {
  const TestTensor a = Random(DType::kF32, {3, 4});
  const TestTensor b = Random(DType::kF32, {4, 5});
  for (const double value : {kNan, kInf}) {
    for (const DType dtype : kFloats) {
      const TestTensor c = TestTensor::Input(dtype, {3, 5}, std::vector<double>(15, value));
      ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0)}).status, CompletionStatus::kOk);
      ExpectNear(c, Product(a.Values(), b.Values(), {}, 1, 3, 5, 4, 1, 0), /*products=*/true);
      ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(-0.0f)}).status, CompletionStatus::kOk);
      ExpectNear(c, Product(a.Values(), b.Values(), {}, 1, 3, 5, 4, 1, 0), /*products=*/true);
    }
    const TestTensor c = TestTensor::Input(DType::kF32, {3, 5}, std::vector<double>(15, value));
    ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0.5)}).status, CompletionStatus::kOk);
    ExpectEqual(c, std::vector<double>(15, value));
  }
}

TEST_F(MatrixTest, GemmWithoutDepthIsBetaTimesC) {
  const TestTensor a = TestTensor::Output(DType::kF32, {2, 0});
  const TestTensor b = TestTensor::Output(DType::kF32, {0, 3});
  TestTensor c = TestTensor::Input(DType::kF32, {2, 3}, {1, 2, 3, 4, kNan, kInf});
  ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(3), F32(-2)}).status, CompletionStatus::kOk);
  ExpectEqual(c, {-2, -4, -6, -8, kNan, -kInf});
  c = TestTensor::Output(DType::kF16, {2, 3});
  ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(3), F32(0)}).status, CompletionStatus::kOk);
  ExpectEqual(c, {0, 0, 0, 0, 0, 0});
}

TEST_F(MatrixTest, GemmPropagatesNanAndInfinityWithinTheirRowsAndColumns) {
  constexpr int64_t kSize = 67;
  std::vector<double> left(kSize * kSize, 1);
  std::vector<double> right(kSize * kSize, 1);
  left[5 * kSize + 66] = kNan;
  left[66 * kSize + 1] = kInf;
  right[3 * kSize + 65] = -kInf;
  const TestTensor a = TestTensor::Input(DType::kBF16, {kSize, kSize}, left);
  const TestTensor b = TestTensor::Input(DType::kF32, {kSize, kSize}, right);
  const TestTensor c = TestTensor::Output(DType::kF32, {kSize, kSize});
  ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0)}).status, CompletionStatus::kOk);
  ExpectNear(c, Product(left, right, {}, 1, kSize, kSize, kSize, 1, 0), /*products=*/true);
}

TEST_F(MatrixTest, GemmOfReversedAndRepeatedViews) {
  const TestTensor x = TestTensor::Input(DType::kF32, {6}, {1, 2, 3, 4, 5, 6});
  const TestTensor c = TestTensor::Output(DType::kF32, {2, 2});
  // (6 5 4; 3 2 1) * (1 1; 2 2; 3 3)
  ASSERT_EQ(
      RunOperator("gemm", {x.View({2, 3}, {-3, -1}, 5), x.View({3, 2}, {1, 0}), c, F32(1), F32(0)})
          .status,
      CompletionStatus::kOk);
  ExpectEqual(c, {28, 28, 10, 10});
  // One matrix for all of a batch.
  const TestTensor all = TestTensor::Output(DType::kF32, {2, 1, 2});
  ASSERT_EQ(RunOperator("gemm_batched", {x.View({2, 1, 2}, {2, 2, 1}), x.View({2, 2, 2}, {0, 2, 1}),
                                         all, F32(1), F32(0)})
                .status,
            CompletionStatus::kOk);
  ExpectEqual(all, {7, 10, 15, 22});
}

TEST_F(MatrixTest, GemmHasTheSameBitsForAnyNumberOfChunks) {
  const TestTensor a = Random(DType::kF32, {150, 77});
  const TestTensor b = Random(DType::kF32, {77, 140});
  std::vector<double> first;
  for (const uint32_t chunks : {1, 2, 11}) {
    const TestTensor c = TestTensor::Output(DType::kF32, {150, 140});
    ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0)}, chunks).status, CompletionStatus::kOk);
    if (first.empty()) first = c.Values();
    ExpectEqual(c, first);
  }
}

// The layout decides whether a GPU uses its tensor cores for 16 bits, which add in another order:
// whole numbers have the same sum in any order.
TEST_F(MatrixTest, AProductOfViewsHasTheBitsOfThatOfTheirContiguousCopies) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto values = [&](const Dims& shape) {
      const TestTensor normal = Random(dtype, shape);
      if (dtype == DType::kF32) return normal;
      std::vector<double> whole = normal.Values();
      for (double& value : whole) value = std::round(4 * value);
      return TestTensor::Input(dtype, shape, whole);
    };
    const TestTensor a = values({70, 1100});
    const TestTensor b = values({1100, 40});
    const TestTensor expected = TestTensor::Output(DType::kF32, {70, 40});
    ASSERT_EQ(RunOperator("gemm", {a, b, expected, F32(1), F32(0)}, 2).status,
              CompletionStatus::kOk);
    for (const int64_t spacing : {1, 3}) {
      for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 1}, {1, 0}}) {
        for (const bool both : {false, true}) {
          SCOPED_TRACE("spacing " + std::to_string(spacing) +
                       (order[0] == 0 ? "" : ", transposed"));
          const TestTensor c = TestTensor::Output(DType::kF32, {70, 40});
          ASSERT_EQ(RunOperator("gemm",
                                {a.WithLayout(order, spacing),
                                 both ? b.WithLayout(order, spacing) : b, c, F32(1), F32(0)},
                                2)
                        .status,
                    CompletionStatus::kOk);
          ExpectEqual(c, expected.Values());
        }
      }
    }
    if (HasFailure()) return;
  }
}

TEST_F(MatrixTest, GemmBatchedShapes) {
  for (const int64_t batches : {0, 1, 3}) {
    for (const int64_t size : {0, 1, 33, 65}) {
      Check({.rows = size,
             .columns = 17,
             .depth = 5,
             .batches = std::max<int64_t>(batches, 1),
             .chunks = 2});
      Check({.rows = 4,
             .columns = size,
             .depth = size,
             .batches = std::max<int64_t>(batches, 1),
             .beta = 0.5,
             .chunks = 4,
             .any_layout = true});
    }
  }
  const TestTensor none = TestTensor::Output(DType::kF32, {0, 3, 3});
  EXPECT_EQ(RunOperator("gemm_batched", {none, none, none, F32(1), F32(0)}).status,
            CompletionStatus::kOk);
  Check({.rows = 2, .columns = 3, .depth = 4, .batches = Emulated() ? 257 : 70001, .chunks = 3});
}

// --- gemm of 16-bit operands, on tensor cores where they can be copied in chunks of 16 bytes

class TensorCoreGemmTest : public MatrixTest {
 protected:
  struct Sixteen {
    int64_t rows;
    int64_t columns;
    int64_t depth;
    int64_t batches = 0;  // 0: gemm.
    DType dtype = DType::kBF16;
    DType c = DType::kF32;
    // The order of the last two dimensions in memory.
    bool transposed_a = false;
    bool transposed_b = false;
    bool transposed_c = false;
    // One matrix for all of a batch.
    bool same_a = false;
    bool same_b = false;
    // In elements: of the first element of a and b, and additional distance between their rows.
    int64_t offset = 0;
    int64_t padding = 0;
    int64_t spacing_c = 1;
    double alpha = 1;
    double beta = 0;
    uint32_t chunks = 1;
    // What must execute it.
    bool on_tensor_cores = true;
  };

  // A matrix, or a batch of matrices, of values in [-4, 4] for which sums of products are exact.
  // Its rows (transposed: columns) start at multiples of 16 bytes from the first one, plus
  // `padding`. NaN is between them.
  TestTensor Operand(const Sixteen& test, int64_t rows, int64_t columns, bool transposed,
                     bool same) {
    const int64_t lines = transposed ? columns : rows;
    const int64_t pitch = ((transposed ? rows : columns) + 7) / 8 * 8 + test.padding;
    const int64_t batches = same ? 1 : std::max<int64_t>(test.batches, 1);
    std::vector<double> memory(test.offset + batches * lines * pitch, kNan);
    const int64_t row_stride = transposed ? 1 : pitch;
    const int64_t column_stride = transposed ? pitch : 1;
    for (int64_t i = 0; i < batches; ++i) {
      for (int64_t m = 0; m < rows; ++m) {
        for (int64_t n = 0; n < columns; ++n) {
          memory[test.offset + i * lines * pitch + m * row_stride + n * column_stride] =
              static_cast<double>(Below(33) - 16) / 4;
        }
      }
    }
    const TestTensor tensor =
        TestTensor::Input(test.dtype, {static_cast<int64_t>(memory.size())}, memory);
    if (test.batches == 0) {
      return tensor.View({rows, columns}, {row_stride, column_stride}, test.offset);
    }
    return tensor.View({test.batches, rows, columns},
                       {same ? 0 : lines * pitch, row_stride, column_stride}, test.offset);
  }

  void Check(const Sixteen& test) {
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", " + std::to_string(test.batches) + " x " +
                 std::to_string(test.rows) + " x " + std::to_string(test.columns) + " x " +
                 std::to_string(test.depth) + (test.dtype == DType::kF16 ? ", f16" : ", bf16") +
                 (test.transposed_a ? ", a transposed" : "") +
                 (test.transposed_b ? ", b transposed" : "") +
                 (test.transposed_c ? ", c transposed" : "") + ", offset " +
                 std::to_string(test.offset) + ", padding " + std::to_string(test.padding));
    const TestTensor a = Operand(test, test.rows, test.depth, test.transposed_a, test.same_a);
    const TestTensor b = Operand(test, test.depth, test.columns, test.transposed_b, test.same_b);
    const Dims shape = test.batches == 0 ? Dims{test.rows, test.columns}
                                         : Dims{test.batches, test.rows, test.columns};
    TestTensor c = test.beta == 0 ? TestTensor::Output(test.c, shape) : Random(test.c, shape);
    std::vector<int> order = {0, 1, 2};
    if (test.batches == 0) order = {0, 1};
    if (test.transposed_c) std::swap(order[order.size() - 2], order.back());
    c = c.WithLayout(order, test.spacing_c);
    const std::vector<double> reference =
        Product(a.Values(), b.Values(), c.Values(), std::max<int64_t>(test.batches, 1), test.rows,
                test.columns, test.depth, test.alpha, test.beta);
    const uint64_t before = EmulatedTensorCoreProducts();
    ASSERT_EQ(RunOperator(test.batches == 0 ? "gemm" : "gemm_batched",
                          {a, b, c, F32(static_cast<float>(test.alpha)),
                           F32(static_cast<float>(test.beta))},
                          test.chunks)
                  .status,
              CompletionStatus::kOk);
    if (Emulated()) {
      EXPECT_EQ(EmulatedTensorCoreProducts() != before, test.on_tensor_cores);
    }
    if (test.beta == 0 && test.alpha == 1 && test.c == DType::kF32) {
      ExpectEqual(c, reference);
    } else {
      ExpectNear(c, reference, /*products=*/true);
    }
  }
};

constexpr DType kSixteenBits[] = {DType::kF16, DType::kBF16};

TEST_F(TensorCoreGemmTest, EachSizeInEachLayout) {
  for (const int64_t size : {1, 15, 16, 17, 31, 33, 67, 127, 129}) {
    for (int layout = 0; layout < 8; ++layout) {
      Sixteen test = {.rows = 18, .columns = 21, .depth = 35};
      test.dtype = kSixteenBits[layout % 2];
      test.transposed_a = layout / 2 % 2 != 0;
      test.transposed_b = layout / 4 != 0;
      for (int64_t Sixteen::*dimension : {&Sixteen::rows, &Sixteen::columns, &Sixteen::depth}) {
        Sixteen other = test;
        other.*dimension = size;
        Check(other);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(TensorCoreGemmTest, LargeSizesInEachLayout) {
  const std::vector<int64_t> sizes =
      Emulated() ? std::vector<int64_t>{131} : std::vector<int64_t>{127, 128, 131, 257};
  for (const int64_t size : sizes) {
    for (int layout = 0; layout < 8; ++layout) {
      Check({.rows = size,
             .columns = size + (layout / 2 % 2 == 0 ? 0 : 30),
             .depth = Emulated() ? 37 : size,
             .dtype = kSixteenBits[layout % 2],
             .transposed_a = layout / 2 % 2 != 0,
             .transposed_b = layout / 4 != 0,
             .chunks = 3});
      if (HasFailure()) return;
    }
  }
}

// More rows of tiles than are computed one after the other.
TEST_F(TensorCoreGemmTest, ManyTiles) {
  Check({.rows = 16 * 128 + 70, .columns = 140, .depth = 9, .chunks = 5});
  Check({.rows = 5, .columns = 7 * 128 + 1, .depth = 3, .chunks = 30});
  Check({.rows = 3, .columns = 4, .depth = Emulated() ? 2051 : 20011});
}

TEST_F(TensorCoreGemmTest, ResultsOfAnyDTypeAndLayout) {
  for (const DType c : kFloats) {
    for (const bool transposed_c : {false, true}) {
      for (const int64_t spacing_c : {1, 2}) {
        for (const double beta : {0.0, -1.5}) {
          // Rows of c that are a multiple of four elements apart, and others.
          for (const int64_t size : {20, 35}) {
            Check({.rows = size,
                   .columns = size + 4,
                   .depth = 19,
                   .dtype = kSixteenBits[size % 2],
                   .c = c,
                   .transposed_c = transposed_c,
                   .spacing_c = spacing_c,
                   .alpha = beta == 0 ? 0.75 : -2,
                   .beta = beta});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(TensorCoreGemmTest, BatchesAndOneMatrixForAllOfABatch) {
  for (const bool same_a : {false, true}) {
    for (const bool same_b : {false, true}) {
      for (const int64_t batches : {1, 3}) {
        Check({.rows = 17,
               .columns = 33,
               .depth = 20,
               .batches = batches,
               .transposed_a = same_b,
               .transposed_b = same_a,
               .transposed_c = same_a,
               .same_a = same_a,
               .same_b = same_b,
               .beta = batches == 3 ? 1.0 : 0.0,
               .chunks = 2});
      }
    }
  }
}

// What cannot be copied in chunks of 16 bytes gives the same result.
TEST_F(TensorCoreGemmTest, UnalignedOperands) {
  for (const DType dtype : kSixteenBits) {
    for (const bool transposed : {false, true}) {
      for (const int64_t offset : {1, 4, 7}) {
        Check({.rows = 18,
               .columns = 19,
               .depth = 20,
               .dtype = dtype,
               .transposed_a = transposed,
               .transposed_b = !transposed,
               .offset = offset,
               .on_tensor_cores = false});
      }
      for (const int64_t padding : {1, 4, 7}) {
        Check({.rows = 18,
               .columns = 19,
               .depth = 20,
               .dtype = dtype,
               .transposed_a = !transposed,
               .transposed_b = transposed,
               .padding = padding,
               .on_tensor_cores = false});
      }
      Check({.rows = 18,
             .columns = 19,
             .depth = 20,
             .dtype = dtype,
             .transposed_a = transposed,
             .transposed_b = transposed,
             .offset = 8,
             .padding = 16});
    }
  }
}

TEST_F(TensorCoreGemmTest, ReversedRows) {
  for (const DType dtype : kSixteenBits) {
    const TestTensor a = Random(dtype, {40, 24});
    const TestTensor b = Random(dtype, {24, 40});
    const TestTensor c = TestTensor::Output(DType::kF32, {40, 40});
    const TestTensor reversed_a = a.View({40, 24}, {-24, 1}, 39 * 24);
    const TestTensor reversed_b = b.View({24, 40}, {-40, 1}, 23 * 40);
    ASSERT_EQ(RunOperator("gemm", {reversed_a, reversed_b, c, F32(1), F32(0)}).status,
              CompletionStatus::kOk);
    ExpectNear(c, Product(reversed_a.Values(), reversed_b.Values(), {}, 1, 40, 40, 24, 1, 0),
               /*products=*/true);
  }
}

TEST_F(TensorCoreGemmTest, OperandsOfTwoDTypesAndWithoutDepth) {
  const TestTensor a = Random(DType::kF16, {16, 16});
  const TestTensor b = Random(DType::kBF16, {16, 16});
  TestTensor c = TestTensor::Output(DType::kF32, {16, 16});
  ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0)}).status, CompletionStatus::kOk);
  ExpectNear(c, Product(a.Values(), b.Values(), {}, 1, 16, 16, 16, 1, 0), /*products=*/true);
  for (const DType dtype : kSixteenBits) {
    c = TestTensor::Output(DType::kF32, {16, 16});
    ASSERT_EQ(RunOperator("gemm", {TestTensor::Output(dtype, {16, 0}),
                                   TestTensor::Output(dtype, {0, 16}), c, F32(1), F32(0)})
                  .status,
              CompletionStatus::kOk);
    ExpectEqual(c, std::vector<double>(256, 0));
  }
}

TEST_F(TensorCoreGemmTest, CIsReadOnlyIfBetaIsNotZero) {
  for (const DType dtype : kSixteenBits) {
    const TestTensor a = Random(dtype, {17, 16});
    const TestTensor b = Random(dtype, {16, 24});
    for (const DType c_dtype : kFloats) {
      for (const double value : {kNan, kInf}) {
        const TestTensor c =
            TestTensor::Input(c_dtype, {17, 24}, std::vector<double>(17 * 24, value));
        for (const float beta : {0.0f, -0.0f}) {
          ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(beta)}).status,
                    CompletionStatus::kOk);
          ExpectNear(c, Product(a.Values(), b.Values(), {}, 1, 17, 24, 16, 1, 0),
                     /*products=*/true);
        }
      }
    }
  }
}

TEST_F(TensorCoreGemmTest, NanAndInfinity) {
  for (const DType dtype : kSixteenBits) {
    for (const bool transposed : {false, true}) {
      constexpr int64_t kSize = 40;
      std::vector<double> left(kSize * kSize);
      std::vector<double> right(kSize * kSize);
      for (double& value : left) value = 1 + static_cast<double>(Below(4));
      for (double& value : right) value = 1 + static_cast<double>(Below(4));
      left[3 * kSize + 38] = kInf;
      left[7 * kSize + 5] = kNan;
      left[11 * kSize + 39] = -kInf;
      right[39 * kSize + 2] = 0;  // Times infinity.
      right[9 * kSize + 35] = kInf;
      const TestTensor b = TestTensor::Input(dtype, {kSize, kSize}, right);
      const TestTensor a = TestTensor::Input(dtype, {kSize, kSize}, left);
      // The same with transposed operands and result.
      const Dims strides = transposed ? Dims{1, kSize} : Dims{kSize, 1};
      const TestTensor c = TestTensor::Output(DType::kF32, {kSize, kSize});
      const TestTensor x = (transposed ? b : a).View({kSize, kSize}, strides);
      const TestTensor y = (transposed ? a : b).View({kSize, kSize}, strides);
      ASSERT_EQ(RunOperator("gemm", {x, y, c.View({kSize, kSize}, strides), F32(1), F32(0)}).status,
                CompletionStatus::kOk);
      ExpectEqual(c, Product(left, right, {}, 1, kSize, kSize, kSize, 1, 0));
    }
  }
}

TEST_F(TensorCoreGemmTest, TheSameBitsForAnyNumberOfChunks) {
  const TestTensor a = Random(DType::kBF16, {150, 80});
  const TestTensor b = Random(DType::kBF16, {80, 136});
  std::vector<double> first;
  for (const uint32_t chunks : {1, 2, 11}) {
    const TestTensor c = TestTensor::Output(DType::kF32, {150, 136});
    ASSERT_EQ(RunOperator("gemm", {a, b, c, F32(1), F32(0)}, chunks).status, CompletionStatus::kOk);
    if (first.empty()) first = c.Values();
    ExpectEqual(c, first);
  }
}

// --- gemv

std::vector<double> VectorProduct(const std::vector<double>& x, const std::vector<double>& w,
                                  const std::vector<double>& bias, int64_t vectors, int64_t rows,
                                  int64_t depth) {
  std::vector<double> result(vectors * rows);
  for (int64_t s = 0; s < vectors; ++s) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = bias.empty() ? 0 : bias[n];
      for (int64_t k = 0; k < depth; ++k) sum += x[s * depth + k] * w[n * depth + k];
      result[s * rows + n] = sum;
    }
  }
  return result;
}

TEST_F(MatrixTest, GemvOfAnyShapesAndDTypes) {
  const std::vector<int64_t> depths =
      Emulated() ? std::vector<int64_t>{0, 1, 4, 33, 257, 4096, 4100, 8193}
                 : std::vector<int64_t>{0,    1,    4,    31,   32,   33,   255,  256,  257,
                                        1023, 1025, 2048, 2052, 4096, 4100, 8193, 65537};
  for (const int64_t depth : depths) {
    for (const int64_t rows : {0, 1, 7, 8, 9, 33}) {
      for (const int64_t vectors : {0, 1, 3}) {
        SCOPED_TRACE("seed " + std::to_string(seed_) + ", depth " + std::to_string(depth) + ", " +
                     std::to_string(rows) + " rows, " + std::to_string(vectors) + " vectors");
        TestTensor x = Random(AnyFloat(), vectors == 1 ? Dims{depth} : Dims{vectors, depth});
        TestTensor w = Random(AnyFloat(), {rows, depth});
        const bool biased = random_() % 2 == 0;
        TestTensor bias = Random(AnyFloat(), {biased ? rows : 0});
        if (vectors * rows < kFewOutputs) {
          x = Absolute(x);
          w = Absolute(w);
          bias = Absolute(bias);
        }
        const TestTensor out =
            TestTensor::Output(AnyFloat(), vectors == 1 ? Dims{rows} : Dims{vectors, rows});
        const uint32_t chunks = 1 + static_cast<uint32_t>(Below(4));
        ASSERT_EQ(RunOperator("gemv", {x, w, bias, out}, chunks).status, CompletionStatus::kOk);
        ExpectNear(out, VectorProduct(x.Values(), w.Values(), bias.Values(), vectors, rows, depth),
                   /*products=*/true);
        if (HasFailure()) return;
      }
    }
  }
}

// --- gemv_silu_mul

std::vector<double> GatedProduct(const std::vector<double>& x, const std::vector<double>& gate,
                                 const std::vector<double>& up, int64_t vectors, int64_t rows,
                                 int64_t depth) {
  std::vector<double> result = VectorProduct(x, gate, {}, vectors, rows, depth);
  const std::vector<double> factors = VectorProduct(x, up, {}, vectors, rows, depth);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] *= factors[i] / (1 + std::exp(-result[i]));
  }
  return result;
}

TEST_F(MatrixTest, GemvSiluMulOfAnyShapesAndDTypes) {
  const std::vector<int64_t> depths =
      Emulated() ? std::vector<int64_t>{0, 1, 33, 1024, 1160, 8193}
                 : std::vector<int64_t>{0, 1, 4, 31, 32, 257, 1024, 1032, 2048, 4100, 8192, 10248};
  for (const int64_t depth : depths) {
    for (const int64_t rows : {0, 1, 7, 8, 33}) {
      for (const int64_t vectors : {0, 1, 3}) {
        SCOPED_TRACE("seed " + std::to_string(seed_) + ", depth " + std::to_string(depth) + ", " +
                     std::to_string(rows) + " rows, " + std::to_string(vectors) + " vectors");
        // Products of one sign: silu(x) of a large negative x is the difference of equal numbers.
        const DType weights = AnyFloat();
        const TestTensor x =
            Absolute(Random(AnyFloat(), vectors == 1 ? Dims{depth} : Dims{vectors, depth}));
        const TestTensor gate = Absolute(Random(weights, {rows, depth}));
        const TestTensor up = Absolute(Random(weights, {rows, depth}));
        const TestTensor out =
            TestTensor::Output(DType::kF32, vectors == 1 ? Dims{rows} : Dims{vectors, rows});
        const uint32_t chunks = 1 + static_cast<uint32_t>(Below(4));
        ASSERT_EQ(RunOperator("gemv_silu_mul", {x, gate, up, out}, chunks).status,
                  CompletionStatus::kOk);
        ExpectNear(out, GatedProduct(x.Values(), gate.Values(), up.Values(), vectors, rows, depth),
                   /*products=*/true);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(MatrixTest, GemvSiluMulRefusesWeightsOfTwoDTypes) {
  const Outcome outcome = RunOperator(
      "gemv_silu_mul", {Random(DType::kF32, {8}), Random(DType::kF32, {3, 8}),
                        Random(DType::kBF16, {3, 8}), TestTensor::Output(DType::kF32, {3})});
  EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
  EXPECT_EQ(outcome.detail, 1);
}

// The bits of a result do not depend on the chunks.
TEST_F(MatrixTest, GemvSiluMulOfAnyChunks) {
  for (const int64_t depth : {40, 1024}) {
    const TestTensor x = Random(DType::kF32, {depth});
    const TestTensor gate = Random(DType::kBF16, {70, depth});
    const TestTensor up = Random(DType::kBF16, {70, depth});
    std::vector<double> first;
    for (const uint32_t chunks : {1u, 2u, 7u, 100u}) {
      const TestTensor out = TestTensor::Output(DType::kF32, {70});
      ASSERT_EQ(RunOperator("gemv_silu_mul", {x, gate, up, out}, chunks).status,
                CompletionStatus::kOk);
      if (first.empty()) first = out.Values();
      ExpectEqual(out, first);
    }
  }
}

// --- rmsnorm_gemv, rmsnorm_gemv_silu_mul

constexpr double kEpsilon = 1e-5;

std::vector<double> Normalized(const std::vector<double>& x, const std::vector<double>& norm,
                               int64_t vectors, int64_t depth) {
  std::vector<double> result(x.size());
  for (int64_t s = 0; s < vectors; ++s) {
    double mean = 0;
    for (int64_t k = 0; k < depth; ++k) {
      mean += x[s * depth + k] * x[s * depth + k] / static_cast<double>(depth);
    }
    const double root = std::sqrt(mean + kEpsilon);
    for (int64_t k = 0; k < depth; ++k) result[s * depth + k] = x[s * depth + k] * norm[k] / root;
  }
  return result;
}

class NormalizedMatrixTest : public MatrixTest {
 protected:
  // Both operators on random operands of one sign: silu(x) of a large negative x is the difference
  // of equal numbers, and there may be few outputs.
  void Check(int64_t depth, int64_t rows, int64_t vectors, DType x_dtype, DType norm_dtype,
             DType weights, DType out_dtype) {
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", depth " + std::to_string(depth) + ", " +
                 std::to_string(rows) + " rows, " + std::to_string(vectors) + " vectors");
    const TestTensor x =
        Absolute(Random(x_dtype, vectors == 1 ? Dims{depth} : Dims{vectors, depth}));
    const TestTensor norm = Absolute(Random(norm_dtype, {depth}));
    const TestTensor w = Absolute(Random(weights, {rows, depth}));
    const TestTensor up = Absolute(Random(weights, {rows, depth}));
    const TestTensor bias = Absolute(Random(AnyFloat(), {random_() % 2 == 0 ? rows : 0}));
    const Dims shape = vectors == 1 ? Dims{rows} : Dims{vectors, rows};
    const TestTensor out = TestTensor::Output(out_dtype, shape);
    const TestTensor gated = TestTensor::Output(DType::kF32, shape);
    const uint32_t chunks = 1 + static_cast<uint32_t>(Below(4));
    const std::vector<double> normalized = Normalized(x.Values(), norm.Values(), vectors, depth);
    ASSERT_EQ(RunOperator("rmsnorm_gemv", {x, norm, w, bias, out, F32(kEpsilon)}, chunks).status,
              CompletionStatus::kOk);
    ExpectNear(out, VectorProduct(normalized, w.Values(), bias.Values(), vectors, rows, depth),
               /*products=*/true);
    ASSERT_EQ(
        RunOperator("rmsnorm_gemv_silu_mul", {x, norm, w, up, gated, F32(kEpsilon)}, chunks).status,
        CompletionStatus::kOk);
    ExpectNear(gated, GatedProduct(normalized, w.Values(), up.Values(), vectors, rows, depth),
               /*products=*/true);
  }
};

TEST_F(NormalizedMatrixTest, AnyShapesAndDTypes) {
  const std::vector<int64_t> depths =
      Emulated() ? std::vector<int64_t>{0, 1, 33, 1024, 1160, 8193}
                 : std::vector<int64_t>{0, 1, 4, 31, 32, 257, 1024, 1032, 2048, 4100, 8192, 10248};
  for (const int64_t depth : depths) {
    for (const int64_t rows : {0, 1, 7, 8, 33}) {
      for (const int64_t vectors : {0, 1, 3}) {
        Check(depth, rows, vectors, AnyFloat(), AnyFloat(), AnyFloat(), AnyFloat());
        if (HasFailure()) return;
      }
    }
  }
}

// The types of a model's layers, in one of which a GPU reads the weights before x.
TEST_F(NormalizedMatrixTest, OneVectorAndWeightsOf16Bits) {
  for (const DType weights : {DType::kF16, DType::kBF16}) {
    for (const int64_t depth : {1024, 1032, 2048, 4096, 10240}) {
      if (Emulated() && depth > 2048) continue;
      for (const int64_t rows : {1, 9, 67}) {
        Check(depth, rows, 1, DType::kF32, weights, weights, DType::kF32);
        if (HasFailure()) return;
      }
    }
  }
}

// x of both signs, most of which cancel each other.
TEST_F(NormalizedMatrixTest, ElementsOfBothSigns) {
  const int64_t rows = Emulated() ? 67 : 513;
  for (const int64_t depth : {100, 1024, 2048}) {
    SCOPED_TRACE("seed " + std::to_string(seed_));
    const TestTensor x = Random(DType::kF32, {depth}, 100);
    const TestTensor norm = Random(DType::kBF16, {depth});
    const TestTensor w = Random(DType::kBF16, {rows, depth});
    const TestTensor bias = Random(DType::kF32, {rows});
    const TestTensor out = TestTensor::Output(DType::kF32, {rows});
    ASSERT_EQ(RunOperator("rmsnorm_gemv", {x, norm, w, bias, out, F32(kEpsilon)}, 3).status,
              CompletionStatus::kOk);
    ExpectNear(out,
               VectorProduct(Normalized(x.Values(), norm.Values(), 1, depth), w.Values(),
                             bias.Values(), 1, rows, depth),
               /*products=*/true);
  }
}

TEST_F(NormalizedMatrixTest, AnyChunks) {
  for (const int64_t depth : {40, 1024}) {
    const TestTensor x = Random(DType::kF32, {depth});
    const TestTensor norm = Random(DType::kBF16, {depth});
    const TestTensor w = Random(DType::kBF16, {70, depth});
    const TestTensor up = Random(DType::kBF16, {70, depth});
    const TestTensor bias = Random(DType::kF32, {70});
    for (const bool gated : {false, true}) {
      std::vector<double> first;
      for (const uint32_t chunks : {1u, 2u, 7u, 100u}) {
        const TestTensor out = TestTensor::Output(DType::kF32, {70});
        ASSERT_EQ(RunOperator(gated ? "rmsnorm_gemv_silu_mul" : "rmsnorm_gemv",
                              {x, norm, w, gated ? up : bias, out, F32(kEpsilon)}, chunks)
                      .status,
                  CompletionStatus::kOk);
        if (first.empty()) first = out.Values();
        ExpectEqual(out, first);
      }
    }
  }
}

TEST_F(NormalizedMatrixTest, LongestVector) {
  constexpr int64_t kMax = 65536;
  Check(kMax, 3, 2, DType::kF32, DType::kF32, DType::kF32, DType::kF32);
  const TestTensor x = Random(DType::kBF16, {kMax + 1});
  const TestTensor w = Random(DType::kBF16, {2, kMax + 1});
  const TestTensor out = TestTensor::Output(DType::kF32, {2});
  for (const bool gated : {false, true}) {
    const Outcome outcome = RunOperator(
        gated ? "rmsnorm_gemv_silu_mul" : "rmsnorm_gemv",
        {x, x, w, gated ? w : TestTensor::Output(DType::kF32, {0}), out, F32(kEpsilon)});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 2);
  }
}

TEST_F(NormalizedMatrixTest, RefusesOtherBiasesAndWeightsOfTwoDTypes) {
  const TestTensor x = Random(DType::kF32, {8});
  const TestTensor w = Random(DType::kF32, {3, 8});
  const TestTensor out = TestTensor::Output(DType::kF32, {3});
  for (const Dims& shape : {Dims{2}, Dims{3, 1}, Dims{1, 3}}) {
    const Outcome outcome =
        RunOperator("rmsnorm_gemv", {x, x, w, Random(DType::kF32, shape), out, F32(kEpsilon)});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 1);
  }
  const Outcome outcome = RunOperator("rmsnorm_gemv_silu_mul",
                                      {x, x, w, Random(DType::kBF16, {3, 8}), out, F32(kEpsilon)});
  EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
  EXPECT_EQ(outcome.detail, 1);
}

TEST_F(MatrixTest, GemvOfManyRows) {
  for (const DType dtype : kFloats) {
    SCOPED_TRACE("seed " + std::to_string(seed_));
    const int64_t rows = Emulated() ? 1025 : 65537;
    const TestTensor x = Random(DType::kF32, {2, 2, 20});
    const TestTensor w = Random(dtype, {rows, 20});
    const TestTensor out = TestTensor::Output(DType::kF32, {2, 2, rows});
    ASSERT_EQ(RunOperator("gemv", {x, w, TestTensor::Output(DType::kF32, {0}), out}, 5).status,
              CompletionStatus::kOk);
    ExpectNear(out, VectorProduct(x.Values(), w.Values(), {}, 4, rows, 20), /*products=*/true);
  }
}

// The products of a decoder, whose vectors are of float32: whole tiles of rows, and others.
TEST_F(MatrixTest, GemvOfFloatsAndWeightsOfBFloat16) {
  constexpr int64_t kDepth = 2048;
  const std::vector<int64_t> all_rows =
      Emulated() ? std::vector<int64_t>{1, 64, 97} : std::vector<int64_t>{1, 64, 97, 2048, 4225};
  for (const int64_t rows : all_rows) {
    for (const int64_t vectors : {1, 2, 3, 4, 5}) {
      for (const DType out_dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE("seed " + std::to_string(seed_) + ", " + std::to_string(rows) + " rows, " +
                     std::to_string(vectors) + " vectors");
        TestTensor x = Random(DType::kF32, {vectors, kDepth});
        TestTensor w = Random(DType::kBF16, {rows, kDepth});
        TestTensor bias = Random(AnyFloat(), {random_() % 2 == 0 ? rows : 0});
        if (vectors * rows < kFewOutputsOfTwoParts) {
          x = Absolute(x);
          w = Absolute(w);
          bias = Absolute(bias);
        }
        const TestTensor out = TestTensor::Output(out_dtype, {vectors, rows});
        const uint32_t chunks = 1 + static_cast<uint32_t>(Below(140));
        ASSERT_EQ(RunOperator("gemv", {x, w, bias, out}, chunks).status, CompletionStatus::kOk);
        ExpectNear(out, VectorProduct(x.Values(), w.Values(), bias.Values(), vectors, rows, kDepth),
                   /*products=*/true);
        if (HasFailure()) return;
      }
    }
  }
}

// Views of rows that are not aligned to four elements.
TEST_F(MatrixTest, GemvOfUnalignedWeights) {
  for (const DType dtype : kFloats) {
    SCOPED_TRACE("seed " + std::to_string(seed_));
    const TestTensor memory = Random(dtype, {1 + 5 * 64});
    const TestTensor w = memory.View({5, 64}, {64, 1}, 1);
    const TestTensor x = memory.View({64}, {1}, 3);
    const TestTensor out = TestTensor::Output(DType::kF32, {5});
    ASSERT_EQ(RunOperator("gemv", {x, w, TestTensor::Output(DType::kF32, {0}), out}).status,
              CompletionStatus::kOk);
    ExpectNear(out, VectorProduct(x.Values(), w.Values(), {}, 1, 5, 64), /*products=*/true);
  }
}

TEST_F(MatrixTest, GemvHasTheSameBitsForAnyNumberOfChunks) {
  const TestTensor x = Random(DType::kF32, {3, 333});
  const TestTensor w = Random(DType::kF16, {100, 333});
  std::vector<double> first;
  for (const uint32_t chunks : {1, 2, 11}) {
    const TestTensor out = TestTensor::Output(DType::kF32, {3, 100});
    ASSERT_EQ(RunOperator("gemv", {x, w, TestTensor::Output(DType::kF32, {0}), out}, chunks).status,
              CompletionStatus::kOk);
    if (first.empty()) first = out.Values();
    ExpectEqual(out, first);
  }
}

TEST_F(MatrixTest, GemvPropagatesNanAndInfinity) {
  const TestTensor x = TestTensor::Input(DType::kF32, {2, 3}, {1, 2, kNan, 1, kInf, 1});
  const TestTensor w = TestTensor::Input(DType::kF16, {2, 3}, {1, 1, 1, 1, 0, 1});
  const TestTensor bias = TestTensor::Input(DType::kBF16, {2}, {1, 2});
  const TestTensor out = TestTensor::Output(DType::kF32, {2, 2});
  ASSERT_EQ(RunOperator("gemv", {x, w, bias, out}).status, CompletionStatus::kOk);
  ExpectEqual(out, {kNan, kNan, kInf, kNan});
}

TEST_F(MatrixTest, GemvOfFloatsAndWeightsOfBFloat16PropagatesNanAndInfinity) {
  constexpr int64_t kDepth = 64;
  constexpr double kLargest = std::numeric_limits<float>::max();
  // Vectors with 1 and another value, and rows with 1 and another value in its place.
  const std::vector<double> of_x = {0, 1, kLargest, kInf, -kInf, kNan};
  const std::vector<double> of_w = {0, 1, kInf, -kInf, kNan};
  std::vector<double> x(of_x.size() * kDepth, 0);
  std::vector<double> w(of_w.size() * kDepth, 0);
  std::vector<double> want;
  for (size_t i = 0; i < of_x.size(); ++i) {
    x[i * kDepth] = 1;
    x[i * kDepth + 33] = of_x[i];
    for (size_t j = 0; j < of_w.size(); ++j) {
      w[j * kDepth] = 1;
      w[j * kDepth + 33] = of_w[j];
      want.push_back(static_cast<float>(1 + of_x[i] * of_w[j]));
    }
  }
  const auto vectors = static_cast<int64_t>(of_x.size());
  const auto rows = static_cast<int64_t>(of_w.size());
  const TestTensor out = TestTensor::Output(DType::kF32, {vectors, rows});
  ASSERT_EQ(RunOperator("gemv",
                        {TestTensor::Input(DType::kF32, {vectors, kDepth}, x),
                         TestTensor::Input(DType::kBF16, {rows, kDepth}, w),
                         TestTensor::Output(DType::kF32, {0}), out},
                        2)
                .status,
            CompletionStatus::kOk);
  ExpectEqual(out, want);
}

TEST_F(MatrixTest, GemvRefusesABiasOfAnotherShape) {
  const TestTensor x = Random(DType::kF32, {4});
  const TestTensor w = Random(DType::kF32, {3, 4});
  for (const Dims& shape : {Dims{2}, Dims{4}, Dims{3, 1}, Dims{1, 3}}) {
    const TestTensor out = TestTensor::Output(DType::kF32, {3});
    const Outcome outcome = RunOperator("gemv", {x, w, Random(DType::kF32, shape), out});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 1);
    EXPECT_EQ(out.CheckWritten(), "element 0 was not written");
  }
}

// --- Quantized weights

class QuantizedTest : public MatrixTest {
 protected:
  struct Weights {
    TestTensor q = TestTensor::Output(DType::kU8, {0});
    TestTensor scales = q;
    TestTensor zeros = q;
    std::vector<double> values;
  };

  // Random weights. bits: 4 or 8. positive: all weights are above 0.
  Weights RandomWeights(int bits, DType dtype, bool with_zeros, int64_t rows, int64_t depth,
                        int64_t group, bool positive = false) {
    Weights weights;
    const int64_t pitch = bits == 8 ? depth : (depth + 1) / 2;
    const int64_t groups = (depth + group - 1) / group;
    std::vector<int> bytes(rows * pitch);
    std::vector<double> stored;
    for (int& byte : bytes) {
      byte = static_cast<int>(random_() % 256);
      if (positive) {
        // Above the zero of weights that have none of their own.
        byte = bits == 4 ? byte % 7 + 9 + 16 * (byte / 16 % 7 + 9)
                         : byte % 127 + (dtype == DType::kI8 ? 1 : 129);
      }
      stored.push_back(dtype == DType::kI8 && byte > 127 ? byte - 256 : byte);
    }
    weights.q = TestTensor::Input(dtype, {rows, pitch}, stored);
    weights.scales = Random(DType::kF16, {rows, groups}, 0.1);
    weights.zeros =
        with_zeros ? Random(DType::kF16, {rows, groups}, 5) : TestTensor::Output(DType::kF16, {0});
    if (positive) {
      weights.scales = Absolute(weights.scales);
      if (with_zeros) weights.zeros = Absolute(weights.zeros, -1);
    }
    const std::vector<double> scales = weights.scales.Values();
    const std::vector<double> zeros = weights.zeros.Values();
    for (int64_t n = 0; n < rows; ++n) {
      for (int64_t k = 0; k < depth; ++k) {
        double value = 0;
        double zero = 0;
        if (bits == 8) {
          value = stored[n * pitch + k];
          zero = dtype == DType::kI8 ? 0 : 128;
        } else {
          const int byte = bytes[n * pitch + k / 2];
          value = k % 2 == 0 ? byte % 16 : byte / 16;
          zero = 8;
        }
        const int64_t at = n * groups + k / group;
        if (with_zeros) zero = zeros[at];
        weights.values.push_back((value - zero) * scales[at]);
      }
    }
    return weights;
  }

  void Check(int bits, DType dtype, bool with_zeros, int64_t vectors, int64_t rows, int64_t depth,
             int64_t group) {
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", " + std::to_string(bits) + " bits, " +
                 std::to_string(vectors) + " x " + std::to_string(rows) + " x " +
                 std::to_string(depth) + ", groups of " + std::to_string(group) +
                 (with_zeros ? ", zeros" : ""));
    const Weights weights = RandomWeights(bits, dtype, with_zeros, rows, depth, group);
    const uint32_t chunks = 1 + static_cast<uint32_t>(Below(4));
    TestTensor out = TestTensor::Output(AnyFloat(), {rows, depth});
    ASSERT_EQ(
        RunOperator("dequant", {weights.q, weights.scales, weights.zeros, out, I64(group)}, chunks)
            .status,
        CompletionStatus::kOk);
    ExpectNear(out, weights.values);
    const TestTensor x = Random(AnyFloat(), {vectors, depth});
    out = TestTensor::Output(AnyFloat(), {vectors, rows});
    ASSERT_EQ(RunOperator("gemv_quant",
                          {x, weights.q, weights.scales, weights.zeros, out, I64(group)}, chunks)
                  .status,
              CompletionStatus::kOk);
    ExpectNear(out, VectorProduct(x.Values(), weights.values, {}, vectors, rows, depth),
               /*products=*/true);
    const TestTensor bias = Random(AnyFloat(), {random_() % 4 == 0 ? 0 : rows});
    out = TestTensor::Output(AnyFloat(), {vectors, rows});
    ASSERT_EQ(
        RunOperator("gemv_quant_bias",
                    {x, weights.q, weights.scales, weights.zeros, bias, out, I64(group)}, chunks)
            .status,
        CompletionStatus::kOk);
    ExpectNear(out, VectorProduct(x.Values(), weights.values, bias.Values(), vectors, rows, depth),
               /*products=*/true);
  }
};

TEST_F(QuantizedTest, AnyShapesGroupsAndForms) {
  const std::vector<int64_t> depths =
      Emulated() ? std::vector<int64_t>{0, 2, 3, 4, 33, 256, 257}
                 : std::vector<int64_t>{0, 2, 3, 4, 31, 32, 33, 255, 256, 257, 1023, 1025};
  for (const int64_t depth : depths) {
    for (const int64_t group : {1, 3, 4, 31, 32, 1024}) {
      for (const bool with_zeros : {false, true}) {
        const int64_t rows = 4 + Below(12);
        const int64_t vectors = 1 + Below(2);
        Check(8, DType::kI8, with_zeros, vectors, rows, depth, group);
        Check(8, DType::kU8, with_zeros, vectors, rows, depth, group);
        Check(4, DType::kU8, with_zeros, vectors, rows, depth, group);
        Check(4, DType::kI8, with_zeros, vectors, rows, depth, group);
        if (HasFailure()) return;
      }
    }
  }
  for (const DType dtype : {DType::kI8, DType::kU8}) Check(8, dtype, true, 1, 3, 1, 1);
  Check(8, DType::kI8, true, 1, 0, 8, 4);
  Check(4, DType::kU8, true, 0, 5, 8, 4);
}

TEST_F(QuantizedTest, LargeSizes) {
  for (const int bits : {4, 8}) {
    Check(bits, DType::kU8, true, 1, 9, 4100, 128);
    Check(bits, DType::kU8, false, 1, 5, 8193, 127);
    Check(bits, DType::kI8, true, 2, Emulated() ? 257 : 65537, 8, 4);
    Check(bits, DType::kI8, false, 1, 5, 65537, int64_t{1} << 62);
  }
}

// Sums that are out of range without the scale, and not with it: in all rows but the last one.
TEST_F(QuantizedTest, SumsThatAreLargeWithoutTheScale) {
  for (const int bits : {4, 8}) {
    for (const bool with_zeros : {false, true}) {
      for (const int64_t depth : {64, 352, 12288}) {
        SCOPED_TRACE("seed " + std::to_string(seed_) + ", " + std::to_string(bits) +
                     " bits, depth " + std::to_string(depth) + (with_zeros ? ", zeros" : ""));
        constexpr int64_t kRows = 9;
        constexpr double kScale = 0x1p-14;
        const int zero = with_zeros ? 3 : bits == 8 ? 128 : 8;
        const int zero_byte = bits == 8 ? zero : zero * 17;
        const int64_t pitch = depth * bits / 8;
        std::vector<double> bytes;
        std::vector<double> values;
        for (int64_t n = 0; n < kRows; ++n) {
          for (int64_t k = 0; k < pitch; ++k) {
            // The last row has one weight that is not 0.
            const int byte =
                n < kRows - 1 ? static_cast<int>(Below(256)) : zero_byte + (k == pitch / 2 ? 1 : 0);
            bytes.push_back(byte);
            if (bits == 8) {
              values.push_back((byte - zero) * kScale);
            } else {
              values.push_back((byte % 16 - zero) * kScale);
              values.push_back((byte / 16 - zero) * kScale);
            }
          }
        }
        std::vector<double> large;
        for (int64_t k = 0; k < depth; ++k) {
          large.push_back((Below(2) == 0 ? 0x1p125 : -0x1p125) *
                          (1 + static_cast<double>(Below(8)) / 8));
        }
        const int64_t group = depth % 128 == 0 ? 128 : 32;
        const Dims groups = {kRows, depth / group};
        const std::vector<double> same(CountElements(groups), 1);
        std::vector<double> scales = same;
        for (double& scale : scales) scale = kScale;
        std::vector<double> zeros = same;
        for (double& value : zeros) value = zero;
        const TestTensor w[] = {TestTensor::Input(DType::kU8, {kRows, pitch}, bytes),
                                TestTensor::Input(DType::kF16, groups, scales),
                                with_zeros ? TestTensor::Input(DType::kF16, groups, zeros)
                                           : TestTensor::Output(DType::kF16, {0})};
        const auto run = [&](const std::vector<double>& x_values) {
          const TestTensor x = TestTensor::Input(DType::kBF16, {depth}, x_values);
          const TestTensor out = TestTensor::Output(DType::kF32, {kRows});
          ASSERT_EQ(RunOperator("gemv_quant", {x, w[0], w[1], w[2], out, I64(group)}).status,
                    CompletionStatus::kOk);
          ExpectNear(out, VectorProduct(x.Values(), values, {}, 1, kRows, depth),
                     /*products=*/true);
        };
        run(large);
        // What is not finite with the scale either.
        large[depth - 1] = kInf;
        run(large);
        large[depth / 3] = kNan;
        run(large);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(QuantizedTest, TheEvenColumnIsInTheLowNibble) {
  const TestTensor q = TestTensor::Input(DType::kU8, {1, 2}, {0xf0, 0x18});
  const TestTensor scales = TestTensor::Input(DType::kF16, {1, 1}, {0.5});
  const TestTensor out = TestTensor::Output(DType::kF32, {1, 3});
  ASSERT_EQ(
      RunOperator("dequant", {q, scales, TestTensor::Output(DType::kF16, {0}), out, I64(4)}).status,
      CompletionStatus::kOk);
  ExpectEqual(out, {-4, 3.5, 0});
}

TEST_F(QuantizedTest, UnalignedBytes) {
  const Weights weights = RandomWeights(8, DType::kU8, false, 1, 1 + 4 * 64, 512);
  const double scale = weights.scales.Values()[0];
  const std::vector<double> bytes = weights.q.Values();
  const TestTensor x = Random(DType::kF32, {64});
  const TestTensor scales = TestTensor::Input(DType::kF16, {4, 1}, std::vector<double>(4, scale));
  const TestTensor none = TestTensor::Output(DType::kF16, {0});
  const TestTensor out = TestTensor::Output(DType::kF32, {4});
  ASSERT_EQ(RunOperator("gemv_quant",
                        {x, weights.q.View({4, 64}, {64, 1}, 1), scales, none, out, I64(64)})
                .status,
            CompletionStatus::kOk);
  ExpectNear(
      out,
      VectorProduct(x.Values(), {weights.values.begin() + 1, weights.values.end()}, {}, 1, 4, 64),
      /*products=*/true);
}

TEST_F(QuantizedTest, WrongShapesAreRefused) {
  const auto bytes = [&](Dims shape) {
    return TestTensor::Input(DType::kU8, shape, std::vector<double>(CountElements(shape), 1));
  };
  const auto refused = [&](uint16_t detail, Dims q, Dims scales, Dims zeros, int64_t depth,
                           int64_t group) {
    const TestTensor tensors[] = {bytes(q), Random(DType::kF16, scales),
                                  Random(DType::kF16, zeros)};
    const TestTensor weights = TestTensor::Output(DType::kF32, {q[0], depth});
    Outcome outcome =
        RunOperator("dequant", {tensors[0], tensors[1], tensors[2], weights, I64(group)});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, detail);
    EXPECT_EQ(weights.CheckWritten(), "element 0 was not written");
    const TestTensor out = TestTensor::Output(DType::kF32, {q[0]});
    outcome = RunOperator("gemv_quant", {Random(DType::kF32, {depth}), tensors[0], tensors[1],
                                         tensors[2], out, I64(group)});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, detail);
    EXPECT_EQ(out.CheckWritten(), "element 0 was not written");
  };
  refused(1, {2, 7}, {2, 2}, {0}, 8, 4);
  refused(1, {2, 9}, {2, 2}, {0}, 8, 4);
  refused(1, {2, 4}, {2, 3}, {0}, 9, 4);
  refused(1, {2, 16}, {2, 2}, {0}, 8, 4);
  refused(2, {2, 8}, {2, 2}, {0}, 8, 0);
  refused(2, {2, 8}, {2, 2}, {0}, 8, -1);
  refused(3, {2, 8}, {2, 1}, {0}, 8, 4);
  refused(3, {2, 8}, {2, 3}, {0}, 8, 4);
  refused(3, {2, 5}, {2, 2}, {0}, 9, 4);
  refused(4, {2, 8}, {2, 2}, {2, 1}, 8, 4);
  refused(4, {2, 8}, {2, 2}, {2}, 8, 4);
  refused(4, {2, 8}, {2, 2}, {4}, 8, 4);
  refused(4, {2, 8}, {2, 2}, {1, 2, 2}, 8, 4);
}

TEST_F(QuantizedTest, BiasesOfOtherShapesAreRefused) {
  const Weights w = RandomWeights(8, DType::kI8, false, 3, 8, 4);
  const TestTensor x = Random(DType::kF32, {8});
  for (const Dims& shape : {Dims{2}, Dims{1}, Dims{3, 1}, Dims{1, 3}, Dims{}}) {
    const TestTensor out = TestTensor::Output(DType::kF32, {3});
    const Outcome outcome = RunOperator(
        "gemv_quant_bias", {x, w.q, w.scales, w.zeros, Random(DType::kF32, shape), out, I64(4)});
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 5);
    EXPECT_EQ(out.CheckWritten(), "element 0 was not written");
  }
}

// --- rmsnorm_gemv_quant, rmsnorm_gemv_quant_silu_mul

class NormalizedQuantizedTest : public QuantizedTest {
 protected:
  struct Form {
    int bits = 8;
    DType q = DType::kI8;
    bool zeros = false;
    int64_t group = 128;
  };

  Weights PositiveWeights(const Form& form, int64_t rows, int64_t depth) {
    return RandomWeights(form.bits, form.q, form.zeros, rows, depth, form.group, true);
  }
  Outcome Run(const TestTensor& x, const TestTensor& norm, const Weights& w, const TestTensor& bias,
              const TestTensor& out, int64_t group, uint32_t chunks = 1) {
    return RunOperator("rmsnorm_gemv_quant",
                       {x, norm, w.q, w.scales, w.zeros, bias, out, I64(group), F32(kEpsilon)},
                       chunks);
  }
  Outcome RunGated(const TestTensor& x, const TestTensor& norm, const Weights& gate,
                   const Weights& up, const TestTensor& out, int64_t group, uint32_t chunks = 1) {
    return RunOperator("rmsnorm_gemv_quant_silu_mul",
                       {x, norm, gate.q, gate.scales, gate.zeros, up.q, up.scales, up.zeros, out,
                        I64(group), F32(kEpsilon)},
                       chunks);
  }

  // Both operators on random operands of one sign, as of NormalizedMatrixTest. `up`: of the second
  // matrix; its group is that of `form`.
  void Check(const Form& form, Form up, int64_t depth, int64_t rows, int64_t vectors, DType x_dtype,
             DType norm_dtype, DType out_dtype) {
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", " + std::to_string(form.bits) + " bits, " +
                 std::to_string(vectors) + " x " + std::to_string(rows) + " x " +
                 std::to_string(depth) + ", groups of " + std::to_string(form.group) +
                 (form.zeros ? ", zeros" : ""));
    up.group = form.group;
    const TestTensor x =
        Absolute(Random(x_dtype, vectors == 1 ? Dims{depth} : Dims{vectors, depth}));
    const TestTensor norm = Absolute(Random(norm_dtype, {depth}));
    const Weights gate_weights = PositiveWeights(form, rows, depth);
    const Weights up_weights = PositiveWeights(up, rows, depth);
    const TestTensor bias = Absolute(Random(AnyFloat(), {random_() % 2 == 0 ? rows : 0}));
    const Dims shape = vectors == 1 ? Dims{rows} : Dims{vectors, rows};
    const TestTensor out = TestTensor::Output(out_dtype, shape);
    const TestTensor gated = TestTensor::Output(DType::kF32, shape);
    const uint32_t chunks = 1 + static_cast<uint32_t>(Below(4));
    const std::vector<double> normalized = Normalized(x.Values(), norm.Values(), vectors, depth);
    ASSERT_EQ(Run(x, norm, gate_weights, bias, out, form.group, chunks).status,
              CompletionStatus::kOk);
    ExpectNear(out,
               VectorProduct(normalized, gate_weights.values, bias.Values(), vectors, rows, depth),
               /*products=*/true);
    ASSERT_EQ(RunGated(x, norm, gate_weights, up_weights, gated, form.group, chunks).status,
              CompletionStatus::kOk);
    ExpectNear(
        gated,
        GatedProduct(normalized, gate_weights.values, up_weights.values, vectors, rows, depth),
        /*products=*/true);
  }
  Form AnyForm() {
    // P = 1 with K = 1 is a byte for each weight.
    return {random_() % 2 == 0 ? 8 : 4, random_() % 2 == 0 ? DType::kI8 : DType::kU8,
            random_() % 2 == 0,
            std::vector<int64_t>{1, 7, 32, 96, 128, 20000}[static_cast<size_t>(Below(6))]};
  }
};

TEST_F(NormalizedQuantizedTest, AnyShapesAndForms) {
  const std::vector<int64_t> depths =
      Emulated() ? std::vector<int64_t>{0, 2, 33, 1024, 1184, 8193}
                 : std::vector<int64_t>{0, 2, 4, 31, 32, 257, 1024, 1056, 2048, 4100, 8192, 10272};
  for (const int64_t depth : depths) {
    for (const int64_t rows : {0, 1, 7, 8, 33}) {
      for (const int64_t vectors : {0, 1, 3}) {
        // float16 does not have the sums of many large weights.
        Check(AnyForm(), AnyForm(), depth, rows, vectors, AnyFloat(), AnyFloat(),
              random_() % 2 == 0 ? DType::kF32 : DType::kBF16);
        if (HasFailure()) return;
      }
    }
  }
}

// The forms of a model's layers, in which a GPU reads the weights before x.
TEST_F(NormalizedQuantizedTest, OneVectorAndWeightsWithoutZeros) {
  for (const DType norm : {DType::kF16, DType::kBF16}) {
    for (const int64_t depth : {1024, 1056, 2048, 4096, 10240}) {
      if (Emulated() && depth > 2048) continue;
      for (const int64_t rows : {1, 9, 67}) {
        for (const int64_t group : {int64_t{32}, int64_t{128}, depth}) {
          const Form bytes = {8, DType::kI8, false, group};
          const Form nibbles = {4, DType::kU8, false, group};
          Check(bytes, bytes, depth, rows, 1, DType::kF32, norm, DType::kF32);
          Check(nibbles, nibbles, depth, rows, 1, DType::kF32, norm, DType::kF32);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// x of both signs, most of which cancel each other.
TEST_F(NormalizedQuantizedTest, ElementsOfBothSigns) {
  const int64_t rows = Emulated() ? 67 : 513;
  for (const int bits : {8, 4}) {
    for (const int64_t depth : {100, 1024, 2048}) {
      SCOPED_TRACE("seed " + std::to_string(seed_));
      const TestTensor x = Random(DType::kF32, {depth}, 100);
      const TestTensor norm = Random(DType::kBF16, {depth});
      const Weights w = RandomWeights(bits, DType::kU8, false, rows, depth, 32);
      const TestTensor bias = Random(DType::kF32, {rows});
      const TestTensor out = TestTensor::Output(DType::kF32, {rows});
      ASSERT_EQ(Run(x, norm, w, bias, out, 32, 3).status, CompletionStatus::kOk);
      ExpectNear(out,
                 VectorProduct(Normalized(x.Values(), norm.Values(), 1, depth), w.values,
                               bias.Values(), 1, rows, depth),
                 /*products=*/true);
    }
  }
}

TEST_F(NormalizedQuantizedTest, AnyChunks) {
  for (const int bits : {8, 4}) {
    for (const int64_t depth : {40, 1024}) {
      const TestTensor x = Random(DType::kF32, {depth});
      const TestTensor norm = Random(DType::kBF16, {depth});
      const Weights w = RandomWeights(bits, DType::kU8, false, 70, depth, 32);
      const Weights up = RandomWeights(bits, DType::kU8, false, 70, depth, 32);
      const TestTensor bias = Random(DType::kF32, {70});
      for (const bool gated : {false, true}) {
        std::vector<double> first;
        for (const uint32_t chunks : {1u, 2u, 7u, 100u}) {
          const TestTensor out = TestTensor::Output(DType::kF32, {70});
          const Outcome outcome = gated ? RunGated(x, norm, w, up, out, 32, chunks)
                                        : Run(x, norm, w, bias, out, 32, chunks);
          ASSERT_EQ(outcome.status, CompletionStatus::kOk);
          if (first.empty()) first = out.Values();
          ExpectEqual(out, first);
        }
      }
    }
  }
}

TEST_F(NormalizedQuantizedTest, LongestVector) {
  constexpr int64_t kMax = 65536;
  const Form form = {4, DType::kU8, false, 128};
  Check(form, form, kMax, 3, 2, DType::kF32, DType::kF32, DType::kF32);
  const TestTensor x = Random(DType::kBF16, {kMax + 1});
  const Weights w = RandomWeights(8, DType::kI8, false, 2, kMax + 1, kMax + 1);
  const TestTensor out = TestTensor::Output(DType::kF32, {2});
  for (const bool gated : {false, true}) {
    const Outcome outcome = gated
                                ? RunGated(x, x, w, w, out, kMax + 1)
                                : Run(x, x, w, TestTensor::Output(DType::kF32, {0}), out, kMax + 1);
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 6);
    EXPECT_EQ(out.CheckWritten(), "element 0 was not written");
  }
}

TEST_F(NormalizedQuantizedTest, WrongShapesAreRefused) {
  const TestTensor x = Random(DType::kF32, {8});
  const TestTensor none = TestTensor::Output(DType::kF32, {0});
  const Weights good = RandomWeights(8, DType::kI8, false, 3, 8, 4);
  Weights packed = good;
  packed.q = Random(DType::kU8, {3, 7}, 0);
  Weights zeros = good;
  zeros.zeros = Random(DType::kF16, {3, 1});
  const auto refused = [&](const Outcome& outcome, const TestTensor& out, uint16_t detail) {
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, detail);
    EXPECT_EQ(out.CheckWritten(), "element 0 was not written");
  };
  const TestTensor out = TestTensor::Output(DType::kF32, {3});
  refused(Run(x, x, packed, none, out, 4), out, 1);
  refused(Run(x, x, good, none, out, 0), out, 2);
  refused(Run(x, x, good, none, out, 8), out, 3);
  refused(Run(x, x, zeros, none, out, 4), out, 4);
  for (const Dims& shape : {Dims{2}, Dims{3, 1}, Dims{1, 3}}) {
    refused(Run(x, x, good, Random(DType::kF32, shape), out, 4), out, 5);
  }
  refused(RunGated(x, x, packed, good, out, 4), out, 1);
  refused(RunGated(x, x, good, packed, out, 4), out, 1);
  refused(RunGated(x, x, good, good, out, -1), out, 2);
  refused(RunGated(x, x, good, good, out, 3), out, 3);
  refused(RunGated(x, x, zeros, good, out, 4), out, 4);
  refused(RunGated(x, x, good, zeros, out, 4), out, 4);
}

}  // namespace
}  // namespace resident::testing
