// gemv and its relatives with weights in floating point, and products of several vectors with any
// weights, in blocks of several warps.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/ops/fused_operators.h"
#include "kernels/ops/gemv_operands.h"
#include "kernels/ops/gemv_several_vectors.h"
#include "kernels/ops/normalized_vector.h"
#include "kernels/sdk/operator.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

TEST(GemvWarpsTest, DenseWeights) {
  for (const DType type : {DType::kF16, DType::kBF16}) {
    Case c = {type, 33, 320};
    c.x = type;
    Check(c);
    c.bias = true;
    c.out = type;
    for (const i64 rows : {1, 15, 16, 17}) {
      c.rows = rows;
      Check(c);
    }
  }
  Check({DType::kBF16, 100, 2464, 3, DType::kBF16, DType::kF32, /*bias=*/true});
}

// x of float has two columns for each vector. Depths with which the warps have different numbers of
// units, some of them none.
TEST(GemvWarpsTest, FloatsWithWeightsOfBFloat16) {
  for (const i64 vectors : {1, 2, 3, 4, 5, 9}) {
    for (const i64 depth : {32, 352, 2048}) {
      Case c = {DType::kBF16, 33, depth, vectors, DType::kF32};
      c.tensor_cores = vectors > 1 || depth < 1024;
      Check(c);
      c.rows = 64;
      c.bias = true;
      c.out = DType::kBF16;
      Check(c);
    }
  }
  // More elements than the block's memory has space for.
  Check({DType::kBF16, 3, 32 * 400, 1, DType::kF32});
  Check({DType::kBF16, 3, 32 * 128, 4, DType::kF32});
  Case c = {DType::kBF16, 100, 96, 9, DType::kF32};
  c.any_chunks = true;
  Check(c);
}

// gemv_several_vectors.h, if the block has 256 threads: rows that fill tiles of 16, groups of
// tiles, and parts of them; depths with which the warps have the same number of units, different
// numbers, or none.
TEST(GemvWarpsTest, SeveralVectors) {
  for (const i64 vectors : {2, 7, 8, 9, 16, 17}) {
    for (const i64 rows : {1, 16, 17, 33, 64, 150}) {
      for (const i64 depth : {32, 288, 1024}) {
        Case c = {DType::kBF16, rows, depth, vectors, DType::kF32};
        c.any_chunks = rows < 64;
        Check(c);
        if (depth != 288) continue;
        c.out = DType::kBF16;
        c.bias = true;
        Check(c);
        c.out = DType::kF32;
        c.bias_of_vectors = true;
        Check(c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

#if RESIDENT_EMULATED_THREADS == 256
// The products that tensor cores compute: four for each unit, 16 rows and 8 vectors. Other forms
// use more of them, or none.
TEST(GemvWarpsTest, SeveralVectorsHaveAFormOfTheirOwn) {
  constexpr i64 kDepth = 256;  // 8 units.
  for (const auto& [vectors, rows, products] :
       {std::tuple<i64, i64, u64>{2, 16, 32}, {8, 33, 96}, {9, 16, 64}, {16, 64, 256}}) {
    for (const bool gated : {false, true}) {
      for (const bool normalized : {false, true}) {
        SCOPED_TRACE(std::to_string(vectors) + " vectors" + (gated ? ", gated" : "") +
                     (normalized ? ", normalized" : ""));
        const Operand x(DType::kF32, {vectors, kDepth});
        const Operand norm(DType::kBF16, {kDepth});
        const Operand w(DType::kBF16, {rows, kDepth});
        const Operand bias(DType::kF32, {0});
        const Operand out(DType::kF32, {vectors, rows});
        std::vector<Argument> arguments = {x.AsArgument()};
        if (normalized) arguments.push_back(norm.AsArgument());
        arguments.push_back(w.AsArgument());
        arguments.push_back((gated ? w : bias).AsArgument());
        arguments.push_back(out.AsArgument());
        if (normalized) arguments.push_back(ScalarArgument(bit_cast<u32>(1e-5f)));
        const OperatorFunction function =
            gated ? (normalized ? resident_operator_rmsnorm_gemv_silu_mul
                                : resident_operator_gemv_silu_mul)
                  : (normalized ? resident_operator_rmsnorm_gemv : resident_operator_gemv);
        const u64 before = emulated::Products::count;
        testing::Run(function, arguments, 1);
        EXPECT_EQ(emulated::Products::count - before, gated ? 2 * products : products);
      }
    }
  }
}
#endif

// A bias for each vector, in the other forms.
TEST(GemvWarpsTest, BiasOfVectors) {
  Case c = {DType::kF16, 33, 320, 3, DType::kF16};
  c.bias = c.bias_of_vectors = true;
  Check(c);
  c.tensor_cores = false;
  c.x = DType::kF32;
  Check(c);
  c.depth = 129;
  Check(c);
  c.weights = DType::kBF16;
  c.depth = 1024;
  c.vectors = 1;
  Check(c);
}

// It is refused by all forms.
TEST(GemvWarpsTest, BiasOfAnotherShape) {
  constexpr i64 kRows = 33;
  constexpr u32 kRefused = static_cast<u32>(CompletionStatus::kInvalidArgument) | 1u << 16;
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const i64 vectors : {1, 4, 17}) {
      const std::vector<std::vector<i64>> shapes = {
          {kRows + 1}, {vectors + 1, kRows}, {vectors, kRows + 1}, {1, vectors, kRows}};
      for (const std::vector<i64>& shape : shapes) {
        SCOPED_TRACE(std::to_string(vectors) + " vectors, bias of rank " +
                     std::to_string(shape.size()) + ", first size " + std::to_string(shape[0]));
        const Operand x(type, {vectors, 1024});
        const Operand norm(DType::kBF16, {1024});
        const Operand w(DType::kBF16, {kRows, 1024});
        const Operand bias(DType::kF32, shape);
        const Operand out(DType::kF32, {vectors, kRows});
        EXPECT_EQ(
            RunEmulated(resident_operator_gemv,
                        {x.AsArgument(), w.AsArgument(), bias.AsArgument(), out.AsArgument()}, 1),
            kRefused);
        EXPECT_EQ(RunEmulated(resident_operator_rmsnorm_gemv,
                              {x.AsArgument(), norm.AsArgument(), w.AsArgument(), bias.AsArgument(),
                               out.AsArgument(), ScalarArgument(bit_cast<u32>(1e-5f))},
                              1),
                  kRefused);
      }
    }
  }
}

// gemv_one_vector.h: rows that warps have in twos, and one of them alone; warps without a row;
// depths with whole steps, and such that leave runs of the last one empty.
TEST(GemvWarpsTest, OneLongVector) {
  const std::vector<i64> all_rows = {1, 2, 7, 8, 17, 33};
  const std::vector<i64> depths = {1024, 1032, 1544, 10240};
  for (const i64 rows : all_rows) {
    for (const i64 depth : depths) {
      Case c = {DType::kBF16, rows, depth, 1, DType::kF32};
      c.tensor_cores = false;
      c.any_chunks = true;
      Check(c);
      c.bias = true;
      c.x = DType::kF16;
      c.out = DType::kBF16;
      Check(c);
      c.weights = DType::kF16;
      c.out = DType::kF16;
      Check(c);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// gemv_silu_mul: the rows of both matrices, also such that a warp has alone, and those of the
// general way.
TEST(GemvWarpsTest, GatedLongVector) {
  const std::vector<i64> all_rows = {1, 7, 9, 33};
  const std::vector<i64> depths = {320, 1024, 1544, 10240};
  for (const i64 rows : all_rows) {
    for (const i64 depth : depths) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(depth));
      Numbers numbers;
      Operand x(DType::kF32, {depth});
      Operand gate(DType::kBF16, {rows, depth});
      Operand up(DType::kBF16, {rows, depth});
      Operand out(DType::kF32, {rows});
      for (Operand* const each : {&x, &gate, &up}) each->Fill(numbers);
      std::vector<float> first;
      for (const u64 chunks : {1, 3, 7}) {
        for (i64 i = 0; i < rows; ++i) out.Set(i, 12345.0f);
        testing::Run(resident_operator_gemv_silu_mul,
                     {x.AsArgument(), gate.AsArgument(), up.AsArgument(), out.AsArgument()},
                     chunks);
        for (i64 row = 0; row < rows; ++row) {
          double products[2] = {};
          for (i64 k = 0; k < depth; ++k) {
            products[0] += static_cast<double>(x.Get(k)) * gate.Get(row * depth + k);
            products[1] += static_cast<double>(x.Get(k)) * up.Get(row * depth + k);
          }
          const double want = Silu(products[0]) * products[1];
          EXPECT_NEAR(out.Get(row), want, 1e-3 + 1e-4 * std::abs(want)) << row;
          if (chunks == 1) {
            first.push_back(out.Get(row));
          } else {
            EXPECT_EQ(out.Get(row), first[static_cast<size_t>(row)]) << row;
          }
        }
      }
    }
  }
}

// rmsnorm_gemv and rmsnorm_gemv_silu_mul, of any form.
struct NormalizedCase {
  i64 rows;
  i64 depth;
  i64 vectors = 1;
  DType x = DType::kF32;
  DType norm = DType::kBF16;
  DType weights = DType::kBF16;
  bool bias = false;
  bool bias_of_vectors = false;
  float eps = 1e-5f;
  float size = 1.0f;  // Of the elements of x.
};

class NormalizedProduct {
 public:
  explicit NormalizedProduct(const NormalizedCase& c)
      : case_(c),
        x(c.x, {c.vectors, c.depth}),
        norm(c.norm, {c.depth}),
        first(c.weights, {c.rows, c.depth}),
        second(c.weights, {c.rows, c.depth}),
        bias(DType::kF32, c.bias_of_vectors ? std::vector<i64>{c.vectors, c.rows}
                                            : std::vector<i64>{c.bias ? c.rows : 0}),
        out(DType::kF32, {c.vectors, c.rows}) {
    Numbers numbers;
    for (i64 i = 0; i < x.size(); ++i) x.Set(i, c.size * numbers.Next());
    for (Operand* const each : {&norm, &first, &second, &bias}) each->Fill(numbers);
  }

  // The product of a normalized vector with a row of a matrix.
  double Want(i64 vector, const Operand& weights, i64 row) const {
    const i64 depth = case_.depth;
    double mean = 0;
    double sum = 0;
    for (i64 k = 0; k < depth; ++k) {
      const double value = x.Get(vector * depth + k);
      mean += value * value / static_cast<double>(depth);
      sum += value * norm.Get(k) * weights.Get(row * depth + k);
    }
    return sum / std::sqrt(mean + case_.eps);
  }

  // The results of any number of chunks have the same bits.
  void Check(bool gated) {
    SCOPED_TRACE(std::to_string(case_.rows) + " x " + std::to_string(case_.depth) + ", vectors " +
                 std::to_string(case_.vectors) + (gated ? ", gated" : ""));
    std::vector<float> results;
    for (const u64 chunks : {1, 3, 7}) {
      for (i64 i = 0; i < out.size(); ++i) out.Set(i, 12345.0f);
      std::vector<Argument> arguments = {
          x.AsArgument(),     norm.AsArgument(),
          first.AsArgument(), (gated ? second : bias).AsArgument(),
          out.AsArgument(),   ScalarArgument(bit_cast<u32>(case_.eps))};
      testing::Run(gated ? resident_operator_rmsnorm_gemv_silu_mul : resident_operator_rmsnorm_gemv,
                   arguments, chunks);
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
        double want = Want(vector, first, row);
        if (gated) {
          want = Silu(want) * Want(vector, second, row);
        } else if (case_.bias) {
          want += bias.Get((case_.bias_of_vectors ? vector * case_.rows : 0) + row);
        }
        const double got = results[static_cast<size_t>(vector * case_.rows + row)];
        error += (got - want) * (got - want);
        length += want * want;
      }
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(length));
  }

 private:
  const NormalizedCase case_;

 public:
  Operand x;
  Operand norm;
  Operand first;
  Operand second;
  Operand bias;
  Operand out;
};

void CheckNormalized(NormalizedCase c) {
  NormalizedProduct(c).Check(/*gated=*/true);
  NormalizedProduct(c).Check(/*gated=*/false);
  c.bias = true;
  NormalizedProduct(c).Check(/*gated=*/false);
  c.bias_of_vectors = true;
  NormalizedProduct(c).Check(/*gated=*/false);
}

// One vector and weights of 16 bits: gemv_one_vector.h.
TEST(GemvWarpsTest, NormalizedLongVector) {
  const std::vector<i64> all_rows = {2, 7, 9, 17, 33};
  const std::vector<i64> depths = {1024, 1032, 1544, 4104, 10240};
  for (const i64 rows : all_rows) {
    for (const i64 depth : depths) {
      NormalizedCase c = {rows, depth};
      CheckNormalized(c);
      c.norm = c.weights = DType::kF16;
      CheckNormalized(c);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// rmsnorm_gemv_qkv beside a reference in float64 and, row by row, beside rmsnorm_gemv of each
// matrix: warps whose rows belong to two or three matrices, and other forms.
struct StackedCase {
  std::vector<i64> rows;
  i64 depth;
  i64 vectors = 1;
  DType weights = DType::kBF16;
  DType last = DType::kBF16;  // Of the last matrix.
  std::vector<bool> biases = {false, false, false};
  DType x = DType::kF32;
  bool same_bits = true;
};

void CheckStacked(const StackedCase& c) {
  SCOPED_TRACE(std::to_string(c.rows[0]) + ", " + std::to_string(c.rows[1]) + ", " +
               std::to_string(c.rows[2]) + " x " + std::to_string(c.depth) + ", vectors " +
               std::to_string(c.vectors));
  Numbers numbers;
  Operand x(c.x, {c.vectors, c.depth});
  Operand norm(c.weights, {c.depth});
  x.Fill(numbers);
  norm.Fill(numbers);
  std::vector<Operand> matrices, biases, outs;
  for (size_t m = 0; m < 3; ++m) {
    matrices.emplace_back(m == 2 ? c.last : c.weights, std::vector<i64>{c.rows[m], c.depth});
    matrices[m].Fill(numbers);
    biases.emplace_back(DType::kF32, std::vector<i64>{c.biases[m] ? c.rows[m] : 0});
    biases[m].Fill(numbers);
    outs.emplace_back(DType::kF32, std::vector<i64>{c.vectors, c.rows[m]});
  }
  const Argument eps = ScalarArgument(bit_cast<u32>(1e-5f));
  std::vector<std::vector<float>> first(3);
  for (const u64 chunks : {1, 2, 3, 7}) {
    std::vector<Argument> arguments = {x.AsArgument(), norm.AsArgument()};
    for (const std::vector<Operand>* const of : {&matrices, &biases, &outs}) {
      for (const Operand& each : *of) arguments.push_back(each.AsArgument());
    }
    arguments.push_back(eps);
    for (Operand& out : outs) {
      for (i64 i = 0; i < out.size(); ++i) out.Set(i, 12345.0f);
    }
    testing::Run(resident_operator_rmsnorm_gemv_qkv, arguments, chunks);
    for (size_t m = 0; m < 3; ++m) {
      for (i64 i = 0; i < outs[m].size(); ++i) {
        if (chunks == 1) first[m].push_back(outs[m].Get(i));
        EXPECT_EQ(outs[m].Get(i), first[m][static_cast<size_t>(i)]) << m << ", " << i;
      }
    }
  }
  for (size_t m = 0; m < 3; ++m) {
    double error = 0;
    double length = 0;
    for (i64 vector = 0; vector < c.vectors; ++vector) {
      for (i64 row = 0; row < c.rows[m]; ++row) {
        double mean = 0;
        double want = 0;
        for (i64 k = 0; k < c.depth; ++k) {
          const double value = x.Get(vector * c.depth + k);
          mean += value * value / static_cast<double>(c.depth);
          want += value * norm.Get(k) * matrices[m].Get(row * c.depth + k);
        }
        want /= std::sqrt(mean + 1e-5);
        if (c.biases[m]) want += biases[m].Get(row);
        const double got = first[m][static_cast<size_t>(vector * c.rows[m] + row)];
        error += (got - want) * (got - want);
        length += want * want;
      }
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(length)) << m;
    if (!c.same_bits) continue;
    testing::Run(resident_operator_rmsnorm_gemv,
                 {x.AsArgument(), norm.AsArgument(), matrices[m].AsArgument(),
                  biases[m].AsArgument(), outs[m].AsArgument(), eps},
                 2);
    for (i64 i = 0; i < outs[m].size(); ++i) {
      EXPECT_EQ(outs[m].Get(i), first[m][static_cast<size_t>(i)]) << m << ", " << i;
    }
  }
}

TEST(GemvWarpsTest, ThreeMatricesOfOneNorm) {
  for (const std::vector<i64>& rows :
       std::vector<std::vector<i64>>{{1, 1, 1}, {2, 7, 3}, {33, 8, 8}, {5, 40, 0}, {0, 0, 9}}) {
    for (const i64 depth : {1024, 1032, 4104}) {
      StackedCase c = {rows, depth};
      CheckStacked(c);
      c.biases = {true, false, true};
      c.weights = c.last = DType::kF16;
      CheckStacked(c);
      if (::testing::Test::HasFailure()) return;
    }
  }
  CheckStacked({{3, 9, 4}, 10240});
}

// The general way: short rows, several vectors, and other dtypes.
TEST(GemvWarpsTest, ThreeMatricesOfAnyForm) {
  CheckStacked({{5, 3, 9}, 33});
  StackedCase c = {{17, 5, 2}, 96, 3};
  c.biases = {true, true, false};
  c.same_bits = false;  // rmsnorm_gemv has a form for several vectors.
  CheckStacked(c);
  c = {{5, 4, 3}, 1024};
  c.last = DType::kF32;
  c.same_bits = false;
  CheckStacked(c);
  c.weights = DType::kF32;
  c.same_bits = true;
  CheckStacked(c);
  c.x = DType::kBF16;
  CheckStacked(c);
}

// Squares whose sum is out of range, while their mean is not; and elements that are small beside
// eps.
TEST(GemvWarpsTest, NormalizedLongVectorOfAnySize) {
  for (const float size : {5e18f, 1e-12f}) {
    NormalizedCase c = {17, 1544};
    c.size = size;
    c.eps = 1e-6f;
    CheckNormalized(c);
    c.norm = DType::kF32;  // The general way.
    CheckNormalized(c);
  }
}

// gemv_several_vectors.h, or the general way.
TEST(GemvWarpsTest, NormalizedSeveralVectors) {
  for (const i64 vectors : {2, 8, 11, 16}) {
    for (const i64 rows : {5, 16, 40, 70}) {
      for (const i64 depth : {64, 1056}) {
        NormalizedCase c = {rows, depth, vectors};
        CheckNormalized(c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
  NormalizedCase c = {17, 512, 3};
  c.size = 5e18f;
  CheckNormalized(c);
}

// The general way: other types, several vectors, and other depths.
TEST(GemvWarpsTest, NormalizedVectorsOfAnyForm) {
  NormalizedCase c = {5, 1032};
  c.x = DType::kBF16;
  CheckNormalized(c);
  c.x = DType::kF32;
  c.norm = DType::kF32;
  CheckNormalized(c);
  c.norm = DType::kF16;
  CheckNormalized(c);
  c.weights = DType::kF32;
  c.vectors = 2;
  CheckNormalized(c);
  c.weights = DType::kBF16;
  c.norm = DType::kBF16;
  c.rows = 9;
  for (const i64 depth : {8, 33, 768}) {
    c.depth = depth;
    CheckNormalized(c);
  }
  c.vectors = 1;
  c.depth = 10248;
  c.rows = 3;
  CheckNormalized(c);
}

// Each part has 8 bits: together they leave at most 2^-17 of x, also in a single product.
TEST(GemvWarpsTest, FloatsKeepSixteenBits) {
  for (const i64 vectors : {1, 4}) {
    Case c = {DType::kBF16, 33, 64, vectors, DType::kF32};
    Product product(c);
    Numbers numbers;
    for (i64 vector = 0; vector < vectors; ++vector) {
      for (i64 k = 0; k < c.depth; ++k) {
        // One element of each vector is not zero.
        const float magnitude = std::ldexp(1.0f, static_cast<i32>(numbers.Bits() % 200) - 100);
        product.x.Set(vector * c.depth + k,
                      k == 7 + 9 * vector ? (2.0f + numbers.Next()) * magnitude : 0.0f);
      }
    }
    product.Multiply(2);
    for (i64 vector = 0; vector < vectors; ++vector) {
      for (i64 row = 0; row < c.rows; ++row) {
        const double want = product.Want(vector, row);
        EXPECT_NEAR(product.out.Get(vector * c.rows + row), want, std::abs(want) * 0x1p-17);
      }
    }
  }
}

TEST(GemvWarpsTest, Vectors) {
  for (const i64 vectors : {2, 3, 5, 9}) {
    Check({DType::kF16, 17, 352, vectors, DType::kF16});
    Case c = {DType::kU8, 17, 640, vectors};
    c.zeros = true;
    Check(c);
    c.bits = 4;
    Check(c);
    c.out = DType::kF16;
    Check(c);
  }
}

// More elements than the block's memory has space for.
TEST(GemvWarpsTest, Segments) {
  Check({DType::kBF16, 3, 32 * 128, 9});
  Case c = {DType::kI8, 3, 64 * 80, 8};
  c.group = 128;
  Check(c);
  c = {DType::kU8, 3, 128 * 41, 9};
  c.bits = 4;
  c.group = 128 * 41;
  Check(c);
  c = {DType::kI8, 3, 64 * 8 * 41};
  c.group = 64;
  Check(c);
}

TEST(GemvWarpsTest, AnyNumberOfChunks) {
  Case c = {DType::kBF16, 100, 96, 9};
  c.any_chunks = true;
  Check(c);
  c = {DType::kI8, 100, 192, 9};
  c.group = 64;
  c.any_chunks = true;
  Check(c);
  c.group = 128;
  c.depth = 256;
  c.bits = 4;
  c.weights = DType::kU8;
  Check(c);
}

TEST(GemvWarpsTest, OtherOperandsDoNotUseTensorCores) {
  Case c = {DType::kF16, 17, 128};
  c.tensor_cores = false;
  c.x = DType::kF32;
  Check(c);
  c.weights = DType::kF32;
  Check(c);
  c.weights = DType::kBF16;
  c.x = DType::kF16;
  Check(c);
  for (const DType x : {DType::kBF16, DType::kF32}) {
    c.x = x;
    for (const i64 depth : {120, 129}) {
      c.depth = depth;
      Check(c);
    }
  }
  c.x = DType::kBF16;
  c.depth = 128;
  c.weights = DType::kI8;
  c.group = 32;
  Check(c);
  c.bits = 4;
  c.weights = DType::kU8;
  c.group = 64;
  Check(c);
  c.group = 128;
  c.x = DType::kF32;
  Check(c);
}

// A product with x that is not finite is that of the reference; the other vectors are not changed.
TEST(GemvWarpsTest, InfiniteElements) {
  struct Types {
    DType weights;
    DType x;
  };
  for (const auto& [type, x] : {Types{DType::kBF16, DType::kBF16}, Types{DType::kBF16, DType::kF32},
                                Types{DType::kI8, DType::kBF16}, Types{DType::kU8, DType::kBF16}}) {
    for (const float special : {kInfinity, -kInfinity, std::nanf("")}) {
      Case c = {type, 33, 256, 2, x};
      c.bits = type == DType::kU8 ? 4 : 8;
      Product product(c);
      product.x.Set(c.depth + 77, special);
      product.Multiply(2);
      for (i64 vector = 0; vector < 2; ++vector) {
        for (i64 row = 0; row < c.rows; ++row) {
          const float got = product.out.Get(vector * c.rows + row);
          const float want = static_cast<float>(product.Want(vector, row));
          if (vector == 0) {
            EXPECT_NEAR(got, want, 1e-3f + 1e-4f * std::abs(want));
          } else if (want != want) {
            EXPECT_NE(got, got);
          } else {
            EXPECT_EQ(got, want);
          }
        }
      }
    }
  }
}

// Infinite weights make the products with the second part of x NaN, where it is 0; and the largest
// x are infinite as BFloat16. The results are those of the reference all the same.
TEST(GemvWarpsTest, InfiniteWeightsAndTheLargestFloats) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const i64 vectors : {1, 3, 6}) {
    Case c = {DType::kBF16, 40, 96, vectors, DType::kF32};
    c.bias = true;
    Product product(c);
    for (i64 i = 0; i < product.x.size(); ++i) product.x.Set(i, i % 5 - 2.0f);
    product.weights.Set(3 * c.depth + 1, kInfinity);
    product.weights.Set(4 * c.depth + 2, -kInfinity);
    product.weights.Set(5 * c.depth + 3, std::nanf(""));
    // Two vectors of which row 0 has a product that is as large as a float can be.
    for (i64 k = 0; k < c.depth; ++k) product.weights.Set(k, k == 0 ? 1.0f : 0.0f);
    product.x.Set(0, kLargest);
    product.x.Set((vectors - 1) * c.depth, -kLargest);
    for (const u64 chunks : {1, 2}) {
      product.Multiply(chunks);
      for (i64 vector = 0; vector < vectors; ++vector) {
        for (i64 row = 0; row < c.rows; ++row) {
          SCOPED_TRACE(std::to_string(vector) + ", " + std::to_string(row));
          const float got = product.out.Get(vector * c.rows + row);
          const float want = static_cast<float>(product.Want(vector, row));
          if (want != want) {
            EXPECT_NE(got, got);
          } else if (want - want != 0.0f) {
            EXPECT_EQ(got, want);
          } else {
            EXPECT_NEAR(got, want, 1e-4f + 1e-5f * std::abs(want));
          }
        }
      }
    }
  }
}

// The sums without the scale are out of range, those with it are not.
TEST(GemvWarpsTest, SumsOutOfRangeWithoutTheScale) {
  for (const i32 bits : {4, 8}) {
    Case c = {bits == 4 ? DType::kU8 : DType::kI8, 40, 256};
    c.bits = bits;
    Product product(c);
    for (i64 i = 0; i < c.depth; ++i) product.x.Set(i, i % 2 == 0 ? 2e38f : 1e38f);
    for (i64 i = 0; i < product.scales.size(); ++i) product.scales.Set(i, 0x1p-14f);
    product.Multiply(3);
    for (i64 row = 0; row < c.rows; ++row) {
      const double want = product.Want(0, row);
      EXPECT_NEAR(product.out.Get(row), want, 1e-5 * 2e38) << row;
    }
  }
}

// The limits by which graphs choose these operators (fused_operators.h).
TEST(GemvWarpsTest, LimitsOfFusedOperators) {
  using Several = SeveralVectors</*kGated=*/false, /*kNormalized=*/true, 2>;
  EXPECT_EQ(FindFusedOperator("rmsnorm_gemv").max_vectors, Several::kMaxVectors);
  EXPECT_EQ(FindFusedOperator("rmsnorm_gemv_qkv").max_columns_of_one, kMaxDepth);
  EXPECT_EQ(kColumnsOfUnit, Several::kUnitColumns);
  EXPECT_EQ(kColumnsOfOneVector, kMaxDepth);
  EXPECT_EQ(kNormalizedColumns, static_cast<unsigned>(kMaxNormalized));
  static_cast<void>(&NormalizeVector);  // Of the header with the limit; not called here.
  EXPECT_EQ(kMinGroupBytes, sizeof(Bytes16));
}

}  // namespace
}  // namespace resident::testing
