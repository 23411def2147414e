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

  // Random weights. bits: 4 or 8.
  Weights RandomWeights(int bits, DType dtype, bool with_zeros, int64_t rows, int64_t depth,
                        int64_t group) {
    Weights weights;
    const int64_t pitch = bits == 8 ? depth : (depth + 1) / 2;
    const int64_t groups = (depth + group - 1) / group;
    std::vector<int> bytes(rows * pitch);
    std::vector<double> stored;
    for (int& byte : bytes) {
      byte = static_cast<int>(random_() % 256);
      stored.push_back(dtype == DType::kI8 && byte > 127 ? byte - 256 : byte);
    }
    weights.q = TestTensor::Input(dtype, {rows, pitch}, stored);
    weights.scales = Random(DType::kF16, {rows, groups}, 0.1);
    weights.zeros =
        with_zeros ? Random(DType::kF16, {rows, groups}, 5) : TestTensor::Output(DType::kF16, {0});
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

}  // namespace
}  // namespace resident::testing
