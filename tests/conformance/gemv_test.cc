// The family "matrix": gemv, and those with a gate or a norm. Shapes, dtypes and their mixtures,
// chunks and special values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/conformance/matrix_operands.h"

namespace resident::testing {
namespace {

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

// --- linear

double Activated(int64_t activation, double x) {
  switch (activation) {
    case 1:
      return std::max(x, 0.0);
    case 2:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case 3:
      return GeluTanh(x);
    case 4:
      return Silu(x);
    case 5:
      return Sigmoid(x);
    case 6:
      return std::tanh(x);
    default:
      return x;
  }
}

class LinearTest : public MatrixTest {
 protected:
  struct Layer {
    int64_t vectors;
    int64_t rows;
    int64_t depth;
    DType x = DType::kF32;
    DType w = DType::kF32;
    DType out = DType::kF32;
    int64_t activation = 0;
    bool bias = true;
    bool residual = true;
    int64_t skipped = 0;  // Elements between two vectors.
    uint32_t chunks = 1;
  };

  void Check(const Layer& c) {
    SCOPED_TRACE("seed " + std::to_string(seed_) + ", depth " + std::to_string(c.depth) + ", " +
                 std::to_string(c.rows) + " rows, " + std::to_string(c.vectors) +
                 " vectors, activation " + std::to_string(c.activation) + ", " +
                 std::to_string(c.chunks) + " chunks");
    const int64_t step = c.depth + c.skipped;
    const double deviation = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(c.depth, 1)));
    const TestTensor all = Absolute(Random(c.x, {c.vectors, step}));
    const TestTensor x = all.View({c.vectors, c.depth}, {step, 1});
    // Results of one sign.
    const TestTensor w = Absolute(Random(c.w, {c.rows, c.depth}, deviation));
    const TestTensor bias = Absolute(Random(AnyFloat(), {c.bias ? c.rows : 0}));
    const Dims shape = {c.vectors, c.rows};
    const TestTensor residual = Absolute(Random(AnyFloat(), c.residual ? shape : Dims{0}));
    const TestTensor out = TestTensor::Output(c.out, shape);
    ASSERT_EQ(
        RunOperator("linear", {x, w, bias, residual, out, I64(c.activation)}, c.chunks).status,
        CompletionStatus::kOk);
    std::vector<double> expected =
        VectorProduct(x.Values(), w.Values(), bias.Values(), c.vectors, c.rows, c.depth);
    const std::vector<double> added = residual.Values();
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] = Activated(c.activation, expected[i]) + (c.residual ? added[i] : 0);
    }
    ExpectNear(out, expected, /*products=*/true);
  }
};

TEST_F(LinearTest, AnyShapesAndDTypes) {
  for (const int64_t depth : {0, 1, 4, 33, 128, 132, 256, 516, 1025, 2048}) {
    for (const int64_t rows : {0, 1, 16, 33, 130}) {
      for (const int64_t vectors : {0, 1, 3, 16, 35}) {
        Layer c = {vectors, rows, depth};
        if (Below(3) == 0) c.x = AnyFloat();
        if (Below(3) == 0) c.w = AnyFloat();
        if (Below(3) == 0) c.out = AnyFloat();
        c.activation = Below(7);
        c.bias = Below(2) == 0;
        c.residual = Below(2) == 0;
        c.skipped = Below(3) == 0 ? 4 * Below(3) + Below(2) : 0;
        c.chunks = 1 + static_cast<uint32_t>(Below(5));
        Check(c);
        if (HasFailure()) return;
      }
    }
  }
}

// The bits of a result do not depend on the chunks, nor on the other vectors and rows.
TEST_F(LinearTest, AnyChunks) {
  for (const int64_t depth : {128, 300, 512, 640}) {
    for (const int64_t vectors : {1, 5, 20}) {
      const TestTensor x = Random(DType::kF32, {vectors, depth});
      const TestTensor w = Random(DType::kF32, {150, depth});
      const TestTensor none = Random(DType::kF32, {0});
      std::vector<double> first;
      for (const uint32_t chunks : {1u, 2u, 7u, 200u}) {
        const TestTensor out = TestTensor::Output(DType::kF32, {vectors, 150});
        ASSERT_EQ(RunOperator("linear", {x, w, none, none, out, I64(1)}, chunks).status,
                  CompletionStatus::kOk);
        if (first.empty()) first = out.Values();
        ExpectEqual(out, first);
      }
    }
  }
}

// --- gemv_silu_mul

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
    const std::vector<double> normalized = RmsNorm(x.Values(), norm.Values(), kEpsilon);
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
               VectorProduct(RmsNorm(x.Values(), norm.Values(), kEpsilon), w.Values(),
                             bias.Values(), 1, rows, depth),
               /*products=*/true);
  }
}

// rmsnorm_gemv_qkv, each of whose products is one of rmsnorm_gemv.
TEST_F(NormalizedMatrixTest, ThreeMatrices) {
  for (const int64_t depth : {1, 33, 1024, 1032, 2048}) {
    for (const int64_t vectors : {1, 3}) {
      SCOPED_TRACE("seed " + std::to_string(seed_) + ", depth " + std::to_string(depth) + ", " +
                   std::to_string(vectors) + " vectors");
      const DType weights = depth == 33 ? DType::kF32 : DType::kBF16;
      const TestTensor x =
          Absolute(Random(DType::kF32, vectors == 1 ? Dims{depth} : Dims{vectors, depth}));
      const TestTensor norm = Absolute(Random(weights, {depth}));
      std::vector<TestTensor> matrices, biases, outs;
      for (const int64_t rows : {67, 9, 16}) {
        matrices.push_back(Absolute(Random(weights, {rows, depth})));
        biases.push_back(Absolute(Random(DType::kF32, {random_() % 2 == 0 ? rows : 0})));
        outs.push_back(
            TestTensor::Output(DType::kF32, vectors == 1 ? Dims{rows} : Dims{vectors, rows}));
      }
      const uint32_t chunks = 1 + static_cast<uint32_t>(Below(40));
      ASSERT_EQ(RunOperator("rmsnorm_gemv_qkv",
                            {x, norm, matrices[0], matrices[1], matrices[2], biases[0], biases[1],
                             biases[2], outs[0], outs[1], outs[2], F32(kEpsilon)},
                            chunks)
                    .status,
                CompletionStatus::kOk);
      const std::vector<double> normalized = RmsNorm(x.Values(), norm.Values(), kEpsilon);
      for (size_t m = 0; m < 3; ++m) {
        ExpectNear(outs[m],
                   VectorProduct(normalized, matrices[m].Values(), biases[m].Values(), vectors,
                                 matrices[m].shape()[0], depth),
                   /*products=*/true);
      }
    }
  }
}

TEST_F(NormalizedMatrixTest, RefusesWrongBiasesOfThreeMatrices) {
  const TestTensor x = Random(DType::kF32, {8});
  const TestTensor w = Random(DType::kF32, {3, 8});
  const TestTensor none = TestTensor::Output(DType::kF32, {0});
  for (size_t m = 0; m < 3; ++m) {
    std::vector<TestArgument> arguments = {x, x, w, w, w};
    for (size_t i = 0; i < 3; ++i) {
      arguments.push_back(i == m ? Random(DType::kF32, {2}) : none);
    }
    for (size_t i = 0; i < 3; ++i) arguments.push_back(TestTensor::Output(DType::kF32, {3}));
    arguments.push_back(F32(kEpsilon));
    const Outcome outcome = RunOperator("rmsnorm_gemv_qkv", arguments);
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 1);
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

}  // namespace
}  // namespace resident::testing
