// MatrixTest: operands of the operators of the family "matrix", and references in float64.
//
// Thread safety: one thread.
#ifndef RESIDENT_TESTS_CONFORMANCE_MATRIX_OPERANDS_H_
#define RESIDENT_TESTS_CONFORMANCE_MATRIX_OPERANDS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/operator_runner.h"
#include "tests/support/float64.h"

namespace resident::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// alpha * a * b + beta * c for dense matrices.
inline std::vector<double> Product(const std::vector<double>& a, const std::vector<double>& b,
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
inline constexpr int64_t kFewOutputs = 4;
// The same where the operator takes each value of float32 as the sum of two of bfloat16: the error
// of the whole result is then about a fifth of the allowed one, and the norm of a few outputs of
// both signs is now and then less than a fifth of what it is on average.
inline constexpr int64_t kFewOutputsOfTwoParts = 32;

// The absolute values, times `sign`.
inline TestTensor Absolute(const TestTensor& tensor, double sign = 1) {
  std::vector<double> values = tensor.Values();
  for (double& value : values) value = sign * std::abs(value);
  return TestTensor::Input(tensor.dtype(), tensor.shape(), values);
}

inline std::vector<double> VectorProduct(const std::vector<double>& x, const std::vector<double>& w,
                                         const std::vector<double>& bias, int64_t vectors,
                                         int64_t rows, int64_t depth) {
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

// silu of the product with `gate`, times that with `up`.
inline std::vector<double> GatedProduct(const std::vector<double>& x,
                                        const std::vector<double>& gate,
                                        const std::vector<double>& up, int64_t vectors,
                                        int64_t rows, int64_t depth) {
  std::vector<double> result = VectorProduct(x, gate, {}, vectors, rows, depth);
  const std::vector<double> factors = VectorProduct(x, up, {}, vectors, rows, depth);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = Silu(result[i]) * factors[i];
  }
  return result;
}

inline constexpr double kEpsilon = 1e-5;

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

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_CONFORMANCE_MATRIX_OPERANDS_H_
