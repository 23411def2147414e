// The family "matrix": gemm and gemm_batched. Shapes, dtypes and their mixtures, layouts, chunks
// and special values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/matrix_operands.h"

namespace resident::testing {
namespace {

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

}  // namespace
}  // namespace resident::testing
