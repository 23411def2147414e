// linear, and gemv of float32, in blocks of several warps: all of gemv_floats.h, and linear's
// epilogue in the other forms of a product.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/gemv_operands.h"
#include "kernels/ops/linear_epilogue.h"
#include "kernels/sdk/operator.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

struct Layer {
  i64 rows;
  i64 depth;
  i64 vectors = 1;
  DType x = DType::kF32;
  DType weights = DType::kF32;
  DType out = DType::kF32;
  Activation activation = Activation::kNone;
  bool bias = true;
  bool residual = true;
  i64 skipped = 0;  // Elements between two vectors of x.
};

double Expected(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kGelu:
      return x / 2 * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return GeluTanh(x);
    case Activation::kSilu:
      return Silu(x);
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kTanh:
      return std::tanh(x);
    default:
      return x;
  }
}

std::string Name(const Layer& c) {
  return std::to_string(c.vectors) + " vectors, " + std::to_string(c.rows) + " x " +
         std::to_string(c.depth) + ", x " + std::to_string(static_cast<i32>(c.x)) + ", weights " +
         std::to_string(static_cast<i32>(c.weights)) + ", activation " +
         std::to_string(static_cast<i32>(c.activation)) + (c.bias ? ", bias" : "") +
         (c.residual ? ", residual" : "") +
         (c.skipped != 0 ? ", skipped " + std::to_string(c.skipped) : "");
}

// In one chunk and in others, whose bits are the same.
void Check(const Layer& c) {
  SCOPED_TRACE(Name(c));
  Numbers numbers;
  const i64 step = c.depth + c.skipped;
  Operand x(c.x, {c.vectors, step});
  Operand w(c.weights, {c.rows, c.depth});
  Operand bias(DType::kF32, {c.bias ? c.rows : 0});
  Operand residual(DType::kBF16,
                   c.residual ? std::vector<i64>{c.vectors, c.rows} : std::vector<i64>{0});
  Operand out(c.out, {c.vectors, c.rows});
  for (Operand* operand : {&x, &w, &bias, &residual}) operand->Fill(numbers);
  // What is skipped is not read.
  for (i64 v = 0; v < c.vectors; ++v) {
    for (i64 k = c.depth; k < step; ++k) x.Set(v * step + k, std::nanf(""));
  }
  Argument strided = x.AsArgument();
  strided.tensor.shape[1] = c.depth;
  std::vector<u8> first;
  for (const u64 chunks : {1, 2, 3, 7}) {
    for (i64 i = 0; i < out.size(); ++i) out.Set(i, 12345.0f);
    testing::Run(resident_operator_linear,
                 {strided, w.AsArgument(), bias.AsArgument(), residual.AsArgument(),
                  out.AsArgument(), ScalarArgument(static_cast<u64>(c.activation))},
                 chunks);
    if (chunks == 1) {
      first.assign(out.bytes(), out.bytes() + out.byte_count());
      double error = 0;
      double norm = 0;
      for (i64 v = 0; v < c.vectors; ++v) {
        for (i64 n = 0; n < c.rows; ++n) {
          double sum = c.bias ? bias.Get(n) : 0;
          for (i64 k = 0; k < c.depth; ++k) {
            sum += double{x.Get(v * step + k)} * w.Get(n * c.depth + k);
          }
          double want = Expected(c.activation, sum);
          if (c.residual) want += residual.Get(v * c.rows + n);
          const double got = out.Get(v * c.rows + n);
          error += (got - want) * (got - want);
          norm += want * want;
        }
      }
      const double limit = c.out == DType::kF32 ? 1e-5 : c.out == DType::kF16 ? 2e-3 : 1e-2;
      EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm) + 1e-7);
    } else {
      EXPECT_EQ(std::memcmp(first.data(), out.bytes(), first.size()), 0) << chunks;
    }
  }
}

// Depths with one, two and four pieces, parts of them, several segments, and such that are not
// aligned; rows that fill units and tiles, and parts of them.
TEST(LinearWarpsTest, Floats) {
  for (const i64 depth : {4, 100, 128, 132, 256, 300, 512, 516, 1500, 33}) {
    for (const i64 rows : {1, 15, 16, 70, 128}) {
      for (const i64 vectors : {1, 2, 16, 17}) {
        if (depth * rows * vectors > 512 * 70 * 16) continue;
        Check({rows, depth, vectors, DType::kF32, DType::kF32, DType::kF32, Activation::kRelu});
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  Check({200, 128});
  Check({33, 4000});
}

TEST(LinearWarpsTest, Activations) {
  for (i64 activation = 0; activation < kActivations; ++activation) {
    for (const i64 vectors : {1, 3}) {
      for (const bool with : {false, true}) {
        Layer c = {20, 96, vectors};
        c.activation = static_cast<Activation>(activation);
        c.bias = with;
        c.residual = !with;
        Check(c);
        c.weights = DType::kBF16;
        Check(c);
        c.bias = c.residual = with;
        c.x = c.out = DType::kBF16;
        Check(c);
      }
    }
  }
}

TEST(LinearWarpsTest, OtherTypes) {
  for (const DType weights : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType x : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const i64 vectors : {1, 5, 20}) {
        for (const i64 depth : {32, 35, 1024}) {
          Layer c = {33, depth, vectors, x, weights, x, Activation::kSilu};
          Check(c);
          c.skipped = 32;
          Check(c);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(LinearWarpsTest, StridedVectors) {
  for (const i64 skipped : {4, 6, 128, 1}) {
    for (const i64 vectors : {1, 3, 33}) {
      Layer c = {24, 64, vectors};
      c.skipped = skipped;
      Check(c);
    }
  }
}

// An overflow of the first part of x, which the activation hides.
TEST(LinearWarpsTest, InfiniteSumsBehindAnActivation) {
  for (const i64 vectors : {1, 3}) {
    Operand x(DType::kF32, {vectors, 32});
    Operand w(DType::kBF16, {16, 32});
    const Operand none(DType::kF32, {0});
    Operand out(DType::kF32, {vectors, 16});
    // Rounded to bfloat16, x is infinite.
    for (i64 i = 0; i < x.size(); ++i) x.Set(i, i % 32 == 0 ? -3.4e38f : 0.0f);
    for (i64 i = 0; i < w.size(); ++i) w.Set(i, 1e-38f);
    testing::Run(resident_operator_linear,
                 {x.AsArgument(), w.AsArgument(), none.AsArgument(), none.AsArgument(),
                  out.AsArgument(), ScalarArgument(static_cast<u64>(Activation::kSigmoid))},
                 1);
    const double want = Sigmoid(-3.4e38 * double{w.Get(0)});
    for (i64 i = 0; i < out.size(); ++i) EXPECT_NEAR(out.Get(i), want, 1e-5 * want);
  }
}

TEST(LinearWarpsTest, AnInfiniteSumLeavesTheBitsOfOthers) {
  constexpr i64 kVectors = 3, kRows = 64, kDepth = 64;
  Operand x(DType::kF32, {kVectors, kDepth});
  Operand w(DType::kBF16, {kRows, kDepth});
  const Operand none(DType::kF32, {0});
  for (i64 i = 0; i < x.size(); ++i) x.Set(i, 0.01 * static_cast<double>(i % 37) - 0.17);
  for (i64 i = 0; i < w.size(); ++i) w.Set(i, 0.02 * static_cast<double>(i % 29) - 0.3);
  const auto run = [&](u32 chunks) {
    Operand out(DType::kF32, {kVectors, kRows});
    testing::Run(resident_operator_linear,
                 {x.AsArgument(), w.AsArgument(), none.AsArgument(), none.AsArgument(),
                  out.AsArgument(), ScalarArgument(static_cast<u64>(Activation::kTanh))},
                 chunks);
    std::vector<double> values;
    for (i64 i = 0; i < out.size(); ++i) values.push_back(out.Get(i));
    return values;
  };
  std::vector<double> want = run(1);
  for (i64 k = 0; k < kDepth; ++k) w.Set(k, 3e38);
  for (i64 v = 0; v < kVectors; ++v) {
    double sum = 0;
    for (i64 k = 0; k < kDepth; ++k) sum += x.Get(v * kDepth + k);
    want[static_cast<size_t>(v * kRows)] = sum < 0 ? -1 : 1;
  }
  for (const u32 chunks : {1u, 2u}) EXPECT_EQ(run(chunks), want) << chunks;
}

TEST(LinearWarpsTest, Refusals) {
  const auto refused = [](u32 detail) {
    return static_cast<u32>(CompletionStatus::kInvalidArgument) | detail << 16;
  };
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const i64 vectors : {1, 4}) {
      const Operand x(type, {vectors, 64});
      const Operand w(type, {32, 64});
      const Operand none(DType::kF32, {0});
      const Operand bad(DType::kF32, {33});
      const Operand row(DType::kF32, {32});
      const Operand out(DType::kF32, {vectors, 32});
      const auto run = [&](const Argument& vectors_of_x, const Operand& bias,
                           const Operand& residual, i64 activation) {
        return RunEmulated(resident_operator_linear,
                           {vectors_of_x, w.AsArgument(), bias.AsArgument(), residual.AsArgument(),
                            out.AsArgument(), ScalarArgument(static_cast<u64>(activation))},
                           2);
      };
      EXPECT_EQ(run(x.AsArgument(), none, none, 6), 0u);
      EXPECT_EQ(run(x.AsArgument(), bad, none, 0), refused(1));
      EXPECT_EQ(run(x.AsArgument(), none, row, 0), refused(2));
      EXPECT_EQ(run(x.AsArgument(), none, none, 7), refused(4));
      EXPECT_EQ(run(x.AsArgument(), none, none, -1), refused(4));
      Argument scattered = x.AsArgument();
      scattered.tensor.shape[1] = 32;
      Argument small = w.AsArgument();
      small.tensor.shape[1] = 32;
      scattered.tensor.strides[1] = 2;
      EXPECT_EQ(RunEmulated(resident_operator_linear,
                            {scattered, small, none.AsArgument(), none.AsArgument(),
                             out.AsArgument(), ScalarArgument(0)},
                            1),
                refused(3));
    }
  }
}

}  // namespace
}  // namespace resident::testing
