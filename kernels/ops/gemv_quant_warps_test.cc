// gemv_quant and its relatives in blocks of several warps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/gemv_operands.h"
#include "kernels/sdk/operator.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

TEST(GemvQuantWarpsTest, BytesAndNibbles) {
  for (const DType x : {DType::kF16, DType::kBF16}) {
    for (const bool zeros : {false, true}) {
      for (const i32 bits : {4, 8}) {
        for (const DType type : {DType::kU8, DType::kI8}) {
          if (bits == 4 && type == DType::kI8) continue;
          Case c = {type, 33, 640, 1, x};
          c.bits = bits;
          c.zeros = zeros;
          Check(c);
          c.rows = 17;
          c.group = 640;
          Check(c);
        }
      }
    }
  }
}

// Groups of one unit, of several, and of the whole row, which may be longer than the depth. Depths
// with which the warps have different numbers of units, some of them none.
TEST(GemvQuantWarpsTest, GroupsAndDepths) {
  for (const i64 group : {64, 128, 256, 100000}) {
    for (const i64 depth : {64, 192, 1344}) {
      // One long vector has another form.
      Case c = {DType::kI8, 16, depth, depth < 1024 ? 1 : 2};
      c.group = group;
      Check(c);
    }
  }
  for (const i64 group : {128, 256, 384, 100000}) {
    for (const i64 depth : {128, 384, 2432}) {
      Case c = {DType::kU8, 15, depth, depth < 1024 ? 1 : 2};
      c.bits = 4;
      c.group = group;
      c.zeros = true;
      Check(c);
    }
  }
  // 8 scales of a row are read at once.
  Case c = {DType::kU8, 33, 128 * 8 * 3, 2};
  c.bits = 4;
  c.zeros = true;
  Check(c);
}

// gemv_quant_one_vector.h: rows that warps have in twos, and one of them alone; warps without a
// row; depths with whole steps, and such that leave runs of the last one empty; groups of one run,
// of several, and whole rows.
TEST(GemvQuantWarpsTest, QuantizedLongVector) {
  struct Form {
    DType weights;
    i32 bits;
    DType x;
    DType out;
  };
  const std::vector<i64> all_rows = {1, 2, 7, 17, 33};
  const std::vector<i64> depths = {1024, 1056, 3104};
  for (const auto& [weights, bits, x, out] : {Form{DType::kI8, 8, DType::kF32, DType::kF32},
                                              Form{DType::kU8, 8, DType::kBF16, DType::kF32},
                                              Form{DType::kU8, 4, DType::kF32, DType::kF32},
                                              Form{DType::kI8, 4, DType::kF16, DType::kF16},
                                              Form{DType::kU8, 4, DType::kBF16, DType::kBF16}}) {
    for (const i64 rows : all_rows) {
      for (const i64 depth : depths) {
        for (const i64 group : {i64{128 / bits}, i64{128}, depth, depth + 1}) {
          for (const bool zeros : {false, true}) {
            Case c = {weights, rows, depth, 1, x, out};
            c.bits = bits;
            c.group = group;
            c.zeros = zeros;
            c.tensor_cores = false;
            c.any_chunks = group == 128;
            Check(c);
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

// gemv_quant_bias, in the form of one long vector and in the general one: other types of x, zeros,
// several vectors, and groups and depths of any size.
TEST(GemvQuantWarpsTest, QuantizedVectorWithABias) {
  const std::vector<i64> all_rows = {1, 7, 17, 33};
  for (const i32 bits : {8, 4}) {
    for (const i64 rows : all_rows) {
      Case c = {bits == 8 ? DType::kI8 : DType::kU8, rows, 1056, 1, DType::kF32};
      c.bits = bits;
      c.bias = true;
      c.group = 32;
      c.tensor_cores = false;
      c.any_chunks = true;
      Check(c);
      c.group = 2000;
      c.out = DType::kBF16;
      Check(c);
      c.group = 96;
      c.out = DType::kF32;
      Check(c);
      c.group = 32;
      c.zeros = true;
      Check(c);
      c.zeros = false;
      c.x = DType::kBF16;
      Check(c);
      c.x = DType::kF32;
      c.vectors = 2;
      Check(c);
      c.vectors = 1;
      c.depth = 70;
      Check(c);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// What the form of one long vector does not have: groups that are no power of two of runs, or
// smaller than a run, other depths, and more elements of x than the block's memory has space for.
TEST(GemvQuantWarpsTest, QuantizedLongVectorOfAnotherForm) {
  for (const i32 bits : {8, 4}) {
    Case c = {DType::kU8, 9, 1536, 1, DType::kF32};
    c.bits = bits;
    c.tensor_cores = false;
    for (const i64 group : {8, 24, 96, 100, 384}) {
      c.group = group;
      c.zeros = group != 96;
      Check(c);
    }
    c.group = 128;
    for (const i64 depth : {1000, 1026, 1028, 1040}) {
      c.depth = depth;
      Check(c);
    }
    // With x of bfloat16 these have tensor cores.
    c.x = DType::kBF16;
    c.rows = 3;
    for (const bool zeros : {false, true}) {
      c.zeros = zeros;
      const i64 max_depth = !zeros ? 10240 : bits == 8 ? 9216 : 8192;
      c.depth = max_depth;
      c.tensor_cores = false;
      Check(c);
      c.depth = max_depth + 128;
      c.tensor_cores = true;
      Check(c);
    }
    c.depth = 1536;
    c.group = 384;
    Check(c);
    c.group = 128;
    c.depth = 896;
    Check(c);
  }
}

// The details of refusals, for operands whose other forms are those of one long vector.
TEST(GemvQuantWarpsTest, QuantizedLongVectorRefusals) {
  constexpr i64 kRows = 3;
  constexpr i64 kDepth = 2048;
  const auto status = [&](i64 packed, std::vector<i64> scales, std::vector<i64> zeros, i64 group,
                          std::vector<i64> biases = {}) {
    const Operand x(DType::kF32, {kDepth});
    const Operand q(DType::kU8, {kRows, packed});
    const Operand s(DType::kF16, std::move(scales));
    const Operand z(DType::kF16, std::move(zeros));
    Operand out(DType::kF32, {kRows});
    for (i64 i = 0; i < kRows; ++i) out.Set(i, 12345.0f);
    std::vector<Argument> arguments = {x.AsArgument(), q.AsArgument(), s.AsArgument(),
                                       z.AsArgument()};
    const bool has_bias = !biases.empty();
    const Operand bias(DType::kF16, std::move(biases));
    if (has_bias) arguments.push_back(bias.AsArgument());
    arguments.push_back(out.AsArgument());
    arguments.push_back(ScalarArgument(static_cast<u64>(group)));
    const u32 result = RunEmulated(
        has_bias ? resident_operator_gemv_quant_bias : resident_operator_gemv_quant, arguments, 2);
    for (i64 i = 0; i < kRows; ++i) EXPECT_EQ(out.Get(i) == 12345.0f, result != 0);
    return result;
  };
  const auto refused = [](u32 detail) {
    return static_cast<u32>(CompletionStatus::kInvalidArgument) | detail << 16;
  };
  for (const i64 packed : {kDepth, kDepth / 2}) {
    EXPECT_EQ(status(packed, {kRows, 16}, {0}, 128), 0u);
    EXPECT_EQ(status(packed, {kRows, 16}, {0, 5}, 128), 0u);
    EXPECT_EQ(status(packed, {kRows, 16}, {kRows, 16}, 128), 0u);
    EXPECT_EQ(status(packed, {kRows, 1}, {0}, kDepth), 0u);
    EXPECT_EQ(status(packed, {kRows, 1}, {0}, i64{1} << 62), 0u);
    for (const i64 group : {0, -1, -128}) {
      EXPECT_EQ(status(packed, {kRows, 16}, {0}, group), refused(2));
      EXPECT_EQ(status(packed, {kRows, 1}, {0}, group), refused(2));
    }
    EXPECT_EQ(status(packed, {kRows, 15}, {0}, 128), refused(3));
    EXPECT_EQ(status(packed, {kRows, 17}, {0}, 128), refused(3));
    EXPECT_EQ(status(packed, {kRows, 1}, {0}, kDepth - 1), refused(3));
    EXPECT_EQ(status(packed, {kRows, 1}, {0}, 1024), refused(3));
    EXPECT_EQ(status(packed, {kRows, 2}, {0}, kDepth), refused(3));
    EXPECT_EQ(status(packed, {kRows, 0}, {0}, 128), refused(3));
    EXPECT_EQ(status(packed, {kRows, 16}, {kRows, 15}, 128), refused(4));
    EXPECT_EQ(status(packed, {kRows, 16}, {kRows + 1, 16}, 128), refused(4));
    EXPECT_EQ(status(packed, {kRows, 16}, {kRows * 16}, 128), refused(4));
    EXPECT_EQ(status(packed, {kRows, 16}, {kRows, 16, 1}, 128), refused(4));
    EXPECT_EQ(status(packed, {kRows, 16}, {0}, 128, {0}), 0u);
    EXPECT_EQ(status(packed, {kRows, 16}, {0}, 128, {kRows}), 0u);
    EXPECT_EQ(status(packed, {kRows, 16}, {0}, 0, {kRows}), refused(2));
    EXPECT_EQ(status(packed, {kRows, 15}, {0}, 128, {kRows}), refused(3));
    EXPECT_EQ(status(packed, {kRows, 16}, {kRows}, 128, {kRows}), refused(4));
    for (const std::vector<i64>& wrong :
         std::vector<std::vector<i64>>{{kRows + 1}, {1}, {kRows, 1}, {1, kRows}}) {
      EXPECT_EQ(status(packed, {kRows, 16}, {0}, 128, wrong), refused(5));
    }
  }
  for (const i64 packed : {kDepth / 4, kDepth / 2 + 16, 2 * kDepth}) {
    EXPECT_EQ(status(packed, {kRows, 16}, {0}, 128), refused(1));
  }
}

// Elements, scales and zeros that are not finite make a result what the reference makes of them,
// and change no other one.
TEST(GemvQuantWarpsTest, QuantizedLongVectorThatIsNotFinite) {
  for (const i32 bits : {8, 4}) {
    for (const bool zeros : {false, true}) {
      Case c = {DType::kU8, 9, 2080, 1, DType::kF32};
      c.bits = bits;
      c.group = 32;
      c.zeros = zeros;
      c.bias = !zeros;
      const auto check = [&](Product& product) {
        product.Multiply(7);
        const std::vector<u8> first(product.out.bytes(),
                                    product.out.bytes() + product.out.byte_count());
        product.Multiply(1);
        EXPECT_EQ(std::memcmp(first.data(), product.out.bytes(), first.size()), 0);
        for (i64 row = 0; row < c.rows; ++row) {
          const float got = product.out.Get(row);
          const double exact = product.Want(0, row);
          const float want = static_cast<float>(exact);
          if (want != want) {
            EXPECT_NE(got, got) << row;
          } else if (want - want != 0.0f) {
            EXPECT_EQ(got, want) << row;
          } else {
            EXPECT_NEAR(got, want, 1e-2f + 1e-4f * std::abs(want)) << row;
          }
        }
      };
      for (const float special : {kInfinity, -kInfinity, std::nanf("")}) {
        Product product(c);
        product.x.Set(77, special);
        check(product);
        Product scaled(c);
        scaled.scales.Set(3 * 65 + 7, special);
        check(scaled);
        if (!zeros) continue;
        Product shifted(c);
        shifted.zeros.Set(4 * 65 + 7, special);
        check(shifted);
      }
    }
  }
}

// The sums without the scale are out of range, those with it are not; and results that are out of
// the range of the output only.
TEST(GemvQuantWarpsTest, QuantizedLongVectorOutOfRange) {
  for (const i32 bits : {4, 8}) {
    for (const bool zeros : {false, true}) {
      Case c = {DType::kU8, 9, 1056, 1, DType::kF32};
      c.bits = bits;
      c.group = 32;
      c.zeros = zeros;
      c.bias = !zeros;
      Product product(c);
      for (i64 i = 0; i < c.depth; ++i) product.x.Set(i, i % 2 == 0 ? 2e38f : 1e38f);
      for (i64 i = 0; i < product.scales.size(); ++i) product.scales.Set(i, 0x1p-14f);
      for (i64 i = 0; i < product.zeros.size(); ++i)
        product.zeros.Set(i, bits == 8 ? 120.0f : 7.0f);
      product.Multiply(3);
      for (i64 row = 0; row < c.rows; ++row) {
        EXPECT_NEAR(product.out.Get(row), product.Want(0, row), 1e-5 * 2e38) << row;
      }
      c.out = DType::kF16;
      Product narrow(c);
      for (i64 i = 0; i < narrow.scales.size(); ++i) narrow.scales.Set(i, 1000.0f);
      std::vector<float> first;
      for (const u64 chunks : {1, 3, 7}) {
        narrow.Multiply(chunks);
        for (i64 row = 0; row < c.rows; ++row) {
          const float got = narrow.out.Get(row);
          const float want = Half(static_cast<float>(narrow.Want(0, row)));
          EXPECT_TRUE(got == want || std::abs(got - want) <= 1e-2f * std::abs(want)) << row;
          if (chunks == 1) {
            first.push_back(got);
          } else {
            EXPECT_EQ(got, first[static_cast<size_t>(row)]) << row;
          }
        }
      }
    }
  }
}

// Each product is exact but for the rounding of x * scale: x is not rounded, and weights that are
// the zero of their group are 0.
TEST(GemvQuantWarpsTest, QuantizedLongVectorKeepsAllBitsOfX) {
  for (const i32 bits : {4, 8}) {
    for (const bool zeros : {false, true}) {
      Case c = {DType::kU8, 5, 1056, 1, DType::kF32};
      c.bits = bits;
      c.group = 32;
      c.zeros = zeros;
      Product product(c);
      Numbers numbers;
      for (i64 i = 0; i < product.zeros.size(); ++i) product.zeros.Set(i, 3.0f);
      for (i64 i = 0; i < product.scales.size(); ++i) product.scales.Set(i, 0.25f);
      for (const i64 position : {0, 1, 33, 1024, 1055}) {
        for (i64 k = 0; k < c.depth; ++k) {
          product.x.Set(k, k == position ? 1.0f + 0x1p-20f * numbers.Next() : 0.0f);
        }
        product.Multiply(1);
        for (i64 row = 0; row < c.rows; ++row) {
          const double want = product.Want(0, row);
          // With zeros two products are subtracted, each of which is rounded.
          EXPECT_NEAR(product.out.Get(row), want, zeros ? 128 * 0x1p-23 : 0x1p-23 * std::abs(want));
        }
      }
    }
  }
}

// rmsnorm_gemv_quant and rmsnorm_gemv_quant_silu_mul, of any form.
struct NormalizedQuantizedCase {
  i64 rows;
  i64 depth;
  i32 bits = 8;
  i64 group = 128;
  DType q = DType::kU8;
  bool zeros = false;
  i64 vectors = 1;
  DType x = DType::kF32;
  DType norm = DType::kBF16;
  DType out = DType::kF32;
  bool bias = false;
  float eps = 1e-5f;
  float size = 1.0f;  // Of the elements of x.
  i32 up_bits = 0;    // Of the second matrix; 0: as of the first one.
};

class NormalizedQuantizedProduct {
 public:
  explicit NormalizedQuantizedProduct(const NormalizedQuantizedCase& c)
      : case_(c),
        gate_(Weights(c, c.bits)),
        up_(Weights(c, c.up_bits == 0 ? c.bits : c.up_bits)),
        x(c.x, {c.vectors, c.depth}),
        norm(c.norm, {c.depth}),
        bias(DType::kF32, {c.bias ? c.rows : 0}),
        out(c.out, {c.vectors, c.rows}) {
    Numbers numbers;
    for (i64 i = 0; i < x.size(); ++i) x.Set(i, c.size * numbers.Next());
    norm.Fill(numbers);
    bias.Fill(numbers);
    // Products of the size of 1, for which silu is not 0.
    for (i64 i = 0; i < gate_.scales.size(); ++i) {
      gate_.scales.Set(i, gate_.scales.Get(i) * (c.bits == 8 ? 0x1p-11f : 0x1p-7f));
    }
    // Otherwise the second matrix would be the first one.
    for (u64 i = 0; i < up_.weights.byte_count(); ++i) {
      up_.weights.bytes()[i] = static_cast<u8>(numbers.Bits());
    }
  }

  u32 Run(bool gated, u64 chunks) {
    for (i64 i = 0; i < out.size(); ++i) out.Set(i, 12345.0f);
    std::vector<Argument> arguments = {x.AsArgument(), norm.AsArgument()};
    const auto add = [&](const Product& w) {
      for (const Operand* const each : {&w.weights, &w.scales, &w.zeros}) {
        arguments.push_back(each->AsArgument());
      }
    };
    add(gate_);
    if (gated) {
      add(up_);
    } else {
      arguments.push_back(bias.AsArgument());
    }
    arguments.push_back(out.AsArgument());
    arguments.push_back(ScalarArgument(static_cast<u64>(case_.group)));
    arguments.push_back(ScalarArgument(bit_cast<u32>(case_.eps)));
    return RunEmulated(gated ? resident_operator_rmsnorm_gemv_quant_silu_mul
                             : resident_operator_rmsnorm_gemv_quant,
                       arguments, chunks);
  }

  // The results of any number of chunks have the same bits.
  void Check(bool gated) {
    SCOPED_TRACE(std::to_string(case_.rows) + " x " + std::to_string(case_.depth) + ", bits " +
                 std::to_string(case_.bits) + ", group " + std::to_string(case_.group) +
                 ", vectors " + std::to_string(case_.vectors) + (case_.zeros ? ", zeros" : "") +
                 (gated ? ", gated" : ""));
    std::vector<float> results;
    for (const u64 chunks : {1, 3, 7}) {
      EXPECT_EQ(Run(gated, chunks), 0u);
      for (i64 i = 0; i < out.size(); ++i) {
        if (chunks == 1) {
          results.push_back(out.Get(i));
        } else {
          EXPECT_EQ(out.Get(i), results[static_cast<size_t>(i)]) << i;
        }
      }
    }
    double error = 0;
    double length = 0;
    for (i64 vector = 0; vector < case_.vectors; ++vector) {
      for (i64 row = 0; row < case_.rows; ++row) {
        double want = Want(vector, gate_, row);
        if (gated) {
          want = Silu(want) * Want(vector, up_, row);
        } else if (case_.bias) {
          want += bias.Get(row);
        }
        const double got = results[static_cast<size_t>(vector * case_.rows + row)];
        error += (got - want) * (got - want);
        length += want * want;
      }
    }
    const double limit = case_.out == DType::kF32 ? 1e-5 : case_.out == DType::kF16 ? 2e-3 : 1e-2;
    EXPECT_LE(std::sqrt(error), limit * std::sqrt(length));
  }

 private:
  static Product Weights(const NormalizedQuantizedCase& c, i32 bits) {
    Case of_weights = {c.q, c.rows, c.depth};
    of_weights.bits = bits;
    of_weights.group = c.group;
    of_weights.zeros = c.zeros;
    return Product(of_weights);
  }
  // The product of a normalized vector with a row of a matrix.
  double Want(i64 vector, const Product& weights, i64 row) const {
    const i64 depth = case_.depth;
    double mean = 0;
    double sum = 0;
    for (i64 k = 0; k < depth; ++k) {
      const double value = x.Get(vector * depth + k);
      mean += value * value / static_cast<double>(depth);
      sum += value * norm.Get(k) * weights.Weight(row, k);
    }
    return sum / std::sqrt(mean + case_.eps);
  }

  const NormalizedQuantizedCase case_;
  Product gate_;
  Product up_;

 public:
  Operand x;
  Operand norm;
  Operand bias;
  Operand out;
};

void CheckNormalized(NormalizedQuantizedCase c) {
  NormalizedQuantizedProduct(c).Check(/*gated=*/true);
  NormalizedQuantizedProduct(c).Check(/*gated=*/false);
  c.bias = true;
  NormalizedQuantizedProduct(c).Check(/*gated=*/false);
}

// One vector of float32 and weights without zeros: gemv_quant_one_vector.h.
TEST(GemvQuantWarpsTest, NormalizedQuantizedLongVector) {
  const std::vector<i64> all_rows = {2, 7, 9, 17, 33};
  const std::vector<i64> depths = {1024, 1056, 3104, 4128, 10240};
  for (const i64 rows : all_rows) {
    for (const i64 depth : depths) {
      for (const i32 bits : {8, 4}) {
        NormalizedQuantizedCase c = {rows, depth, bits};
        c.group = rows % 2 == 0 ? 32 : 128;
        CheckNormalized(c);
        c.q = DType::kI8;
        c.norm = DType::kF16;
        c.group = depth + 1;
        c.out = DType::kBF16;
        CheckNormalized(c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Squares whose sum is out of range, while their mean is not; and elements that are small beside
// eps.
TEST(GemvQuantWarpsTest, NormalizedQuantizedLongVectorOfAnySize) {
  for (const float size : {5e18f, 1e-12f}) {
    NormalizedQuantizedCase c = {17, 1568, 4};
    c.group = 32;
    c.size = size;
    c.eps = 1e-6f;
    CheckNormalized(c);
    c.norm = DType::kF32;  // The general way.
    CheckNormalized(c);
  }
}

// The general way: other types, zeros, several vectors, matrices of two forms, and other depths
// and groups.
TEST(GemvQuantWarpsTest, NormalizedQuantizedVectorsOfAnyForm) {
  for (const i32 bits : {8, 4}) {
    NormalizedQuantizedCase c = {5, 1056, bits};
    c.group = 32;
    c.up_bits = 12 - bits;
    CheckNormalized(c);
    c.up_bits = 0;
    c.zeros = true;
    CheckNormalized(c);
    c.x = DType::kBF16;
    CheckNormalized(c);
    c.zeros = false;
    CheckNormalized(c);
    c.x = DType::kF32;
    c.norm = DType::kF32;
    CheckNormalized(c);
    c.norm = DType::kBF16;
    c.vectors = 2;
    CheckNormalized(c);
    c.vectors = 1;
    c.group = 96;
    CheckNormalized(c);
    c.rows = 9;
    for (const i64 depth : {2, 34, 768}) {
      c.depth = depth;
      CheckNormalized(c);
    }
    c.depth = 10272;
    c.rows = 3;
    c.group = 128;
    CheckNormalized(c);
    if (::testing::Test::HasFailure()) return;
  }
}

// An element of x that is not finite makes all results NaN, as the reference does.
TEST(GemvQuantWarpsTest, NormalizedQuantizedLongVectorThatIsNotFinite) {
  for (const float special : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const i32 bits : {8, 4}) {
      for (const DType norm : {DType::kBF16, DType::kF32}) {
        NormalizedQuantizedCase c = {5, 1056, bits, 32};
        c.norm = norm;
        NormalizedQuantizedProduct product(c);
        product.x.Set(77, special);
        for (const bool gated : {false, true}) {
          EXPECT_EQ(product.Run(gated, 2), 0u);
          for (i64 i = 0; i < c.rows; ++i) EXPECT_NE(product.out.Get(i), product.out.Get(i));
        }
      }
    }
  }
}

// The details of refusals, for operands whose other forms are those of one long vector.
TEST(GemvQuantWarpsTest, NormalizedQuantizedRefusals) {
  constexpr i64 kRows = 3;
  constexpr i64 kDepth = 2048;
  struct Shapes {
    std::vector<i64> q = {kRows, kDepth};
    std::vector<i64> zeros = {0};
  };
  const auto status = [&](bool gated, const Shapes& first, const Shapes& second,
                          std::vector<i64> biases, i64 groups, i64 group) {
    const Operand x(DType::kF32, {kDepth});
    const Operand norm(DType::kBF16, {kDepth});
    const Operand q(DType::kU8, first.q);
    const Operand scales(DType::kF16, {kRows, groups});
    const Operand zeros(DType::kF16, first.zeros);
    const Operand second_q(DType::kU8, second.q);
    const Operand second_zeros(DType::kF16, second.zeros);
    const Operand bias(DType::kF32, std::move(biases));
    Operand out(DType::kF32, {kRows});
    for (i64 i = 0; i < kRows; ++i) out.Set(i, 12345.0f);
    std::vector<Argument> arguments = {x.AsArgument(), norm.AsArgument(), q.AsArgument(),
                                       scales.AsArgument(), zeros.AsArgument()};
    if (gated) {
      arguments.push_back(second_q.AsArgument());
      arguments.push_back(scales.AsArgument());
      arguments.push_back(second_zeros.AsArgument());
    } else {
      arguments.push_back(bias.AsArgument());
    }
    arguments.push_back(out.AsArgument());
    arguments.push_back(ScalarArgument(static_cast<u64>(group)));
    arguments.push_back(ScalarArgument(bit_cast<u32>(1e-5f)));
    const u32 result = RunEmulated(gated ? resident_operator_rmsnorm_gemv_quant_silu_mul
                                         : resident_operator_rmsnorm_gemv_quant,
                                   arguments, 2);
    for (i64 i = 0; i < kRows; ++i) EXPECT_EQ(out.Get(i) == 12345.0f, result != 0);
    return result;
  };
  const auto refused = [](u32 detail) {
    return static_cast<u32>(CompletionStatus::kInvalidArgument) | detail << 16;
  };
  const Shapes narrow = {.q = {kRows, kDepth / 2 - 16}};
  const Shapes bad_zeros = {.zeros = {kRows, 15}};
  for (const bool gated : {false, true}) {
    EXPECT_EQ(status(gated, {}, {}, {0}, 16, 128), 0u);
    EXPECT_EQ(status(gated, {}, {}, {kRows}, 16, 128), 0u);
    EXPECT_EQ(status(gated, narrow, {}, {0}, 16, 128), refused(1));
    EXPECT_EQ(status(gated, {}, {}, {0}, 16, 0), refused(2));
    EXPECT_EQ(status(gated, {}, {}, {0}, 15, 128), refused(3));
    EXPECT_EQ(status(gated, bad_zeros, {}, {0}, 16, 128), refused(4));
  }
  EXPECT_EQ(status(true, {}, narrow, {0}, 16, 128), refused(1));
  EXPECT_EQ(status(true, {}, bad_zeros, {0}, 16, 128), refused(4));
  for (const std::vector<i64>& wrong :
       std::vector<std::vector<i64>>{{kRows + 1}, {1}, {kRows, 1}, {1, kRows}}) {
    EXPECT_EQ(status(false, {}, {}, wrong, 16, 128), refused(5));
  }
}

}  // namespace
}  // namespace resident::testing
