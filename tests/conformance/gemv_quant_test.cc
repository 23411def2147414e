// The family "matrix": quantized weights, dequant and gemv_quant.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/matrix_operands.h"

namespace resident::testing {
namespace {

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
    const std::vector<double> normalized = RmsNorm(x.Values(), norm.Values(), kEpsilon);
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
                 VectorProduct(RmsNorm(x.Values(), norm.Values(), kEpsilon), w.values,
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
