// gemv, gemv_quant and their relatives in blocks of several warps (RESIDENT_EMULATED_THREADS;
// tests/conformance has blocks of one), which share the depth of each row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/ops/gemv_tensor_cores.h"
#include "kernels/sdk/operator.h"

extern "C" void resident_operator_gemv(resident::BlockState* state);
extern "C" void resident_operator_gemv_silu_mul(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_silu_mul(resident::BlockState* state);
extern "C" void resident_operator_gemv_quant(resident::BlockState* state);
extern "C" void resident_operator_gemv_quant_bias(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_quant(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_quant_silu_mul(resident::BlockState* state);

namespace resident {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Many emulated threads take long: a large block runs fewer cases than a small one.
constexpr bool kLargeBlock = Block::kMaxThreads > 128;

// Numbers from -1 to 1 without a pattern.
class Numbers {
 public:
  u32 Bits() {
    state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<u32>(state_ >> 32);
  }
  float Next() { return static_cast<float>(Bits() >> 8) / (1 << 23) - 1.0f; }

 private:
  u64 state_ = 1;
};

// A tensor whose elements start at a multiple of 16 bytes.
class Operand {
 public:
  Operand(DType dtype, std::vector<i64> shape) : dtype_(dtype), shape_(std::move(shape)) {
    size_ = 1;
    for (const i64 n : shape_) size_ *= n;
    chunks_.resize(size_ * ElementBytes() / 16 + 1);
  }
  i64 size() const { return size_; }
  u8* bytes() const { return const_cast<u8*>(chunks_[0].bytes); }
  u64 byte_count() const { return size_ * ElementBytes(); }
  void Set(i64 i, float value) { StoreFloat(reinterpret_cast<u64>(bytes()), dtype_, i, value); }
  float Get(i64 i) const { return LoadFloat(reinterpret_cast<u64>(bytes()), dtype_, i); }
  void Fill(Numbers& numbers) {
    for (i64 i = 0; i < size_; ++i) Set(i, numbers.Next());
  }
  Argument AsArgument() const {
    return DenseArgument(size_ == 0 ? nullptr : bytes(), dtype_, shape_);
  }

 private:
  struct alignas(16) Chunk {
    u8 bytes[16];
  };

  u64 ElementBytes() const {
    return dtype_ == DType::kF32 ? 4 : dtype_ == DType::kU8 || dtype_ == DType::kI8 ? 1 : 2;
  }

  DType dtype_;
  std::vector<i64> shape_;
  i64 size_;
  std::vector<Chunk> chunks_;
};

void Run(OperatorFunction function, const std::vector<Argument>& arguments, u64 chunks) {
  EXPECT_EQ(RunEmulated(function, arguments, chunks), 0u);
}

struct Case {
  DType weights;  // kU8 and kI8: quantized.
  i64 rows;
  i64 depth;
  i64 vectors = 1;
  DType x = DType::kBF16;
  DType out = DType::kF32;
  bool bias = false;
  i32 bits = 8;  // Quantized weights.
  i64 group = 128;
  bool zeros = false;
  bool tensor_cores = true;
  bool any_chunks = false;  // Whether other numbers of chunks are tried.

  bool quantized() const { return weights == DType::kU8 || weights == DType::kI8; }
};

class Product {
 public:
  explicit Product(const Case& c)
      : case_(c),
        x(c.x, {c.vectors, c.depth}),
        weights(c.weights, {c.rows, c.quantized() ? c.depth * c.bits / 8 : c.depth}),
        scales(DType::kF16, {c.rows, Groups(c)}),
        zeros(DType::kF16, c.zeros ? std::vector<i64>{c.rows, Groups(c)} : std::vector<i64>{0}),
        bias(DType::kF32, {c.bias ? c.rows : 0}),
        out(c.out, {c.vectors, c.rows}) {
    Numbers numbers;
    x.Fill(numbers);
    bias.Fill(numbers);
    scales.Fill(numbers);
    for (i64 i = 0; i < zeros.size(); ++i) zeros.Set(i, 8.0f + 8.0f * numbers.Next());
    if (c.quantized()) {
      for (u64 i = 0; i < weights.byte_count(); ++i) {
        weights.bytes()[i] = static_cast<u8>(numbers.Bits());
      }
    } else {
      weights.Fill(numbers);
    }
  }

  double Weight(i64 row, i64 column) const {
    if (!case_.quantized()) return weights.Get(row * case_.depth + column);
    const i64 group = row * Groups(case_) + column / case_.group;
    i32 q;
    double zero = 0;
    if (case_.bits == 4) {
      q = weights.bytes()[(row * case_.depth + column) / 2] >> (column % 2 * 4) & 15;
      zero = 8;
    } else {
      const u8 byte = weights.bytes()[row * case_.depth + column];
      q = case_.weights == DType::kI8 ? static_cast<i8>(byte) : byte;
      zero = case_.weights == DType::kI8 ? 0 : 128;
    }
    if (case_.zeros) zero = zeros.Get(group);
    return (q - zero) * scales.Get(group);
  }
  double Want(i64 vector, i64 row) const {
    double sum = case_.bias ? bias.Get(row) : 0.0f;
    for (i64 k = 0; k < case_.depth; ++k) {
      sum += static_cast<double>(x.Get(vector * case_.depth + k)) * Weight(row, k);
    }
    return sum;
  }

  void Multiply(u64 chunks) {
    for (i64 i = 0; i < out.size(); ++i) out.Set(i, 12345.0f);
    if (case_.quantized()) {
      Argument group{};
      group.scalar_bits = static_cast<u64>(case_.group);
      std::vector<Argument> arguments = {x.AsArgument(), weights.AsArgument(), scales.AsArgument(),
                                         zeros.AsArgument()};
      if (case_.bias) arguments.push_back(bias.AsArgument());
      arguments.push_back(out.AsArgument());
      arguments.push_back(group);
      Run(case_.bias ? resident_operator_gemv_quant_bias : resident_operator_gemv_quant, arguments,
          chunks);
    } else {
      Run(resident_operator_gemv,
          {x.AsArgument(), weights.AsArgument(), bias.AsArgument(), out.AsArgument()}, chunks);
    }
  }

 private:
  static i64 Groups(const Case& c) { return (c.depth + c.group - 1) / c.group; }

  const Case case_;

 public:
  Operand x;
  Operand weights;
  Operand scales;
  Operand zeros;
  Operand bias;
  Operand out;
};

std::string Name(const Case& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.depth) + ", vectors " +
         std::to_string(c.vectors) + ", weights " + std::to_string(static_cast<i32>(c.weights)) +
         ", x " + std::to_string(static_cast<i32>(c.x)) +
         (c.quantized()
              ? ", bits " + std::to_string(c.bits) + ", group " + std::to_string(c.group) +
                    (c.zeros ? ", zeros" : "") + (c.bias ? ", bias" : "")
              : "");
}

void Check(const Case& c) {
  SCOPED_TRACE(Name(c));
  Product product(c);
  const u64 before = emulated::Products::count;
  product.Multiply(1);
  EXPECT_EQ(emulated::Products::count != before, c.tensor_cores);
  double error = 0;
  double norm = 0;
  for (i64 vector = 0; vector < c.vectors; ++vector) {
    for (i64 row = 0; row < c.rows; ++row) {
      const double want = product.Want(vector, row);
      const double got = product.out.Get(vector * c.rows + row);
      error += (got - want) * (got - want);
      norm += want * want;
    }
  }
  const double limit = c.out == DType::kF32 ? 1e-5 : c.out == DType::kF16 ? 2e-3 : 1e-2;
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm));
  if (!c.any_chunks) return;
  const std::vector<u8> first(product.out.bytes(), product.out.bytes() + product.out.byte_count());
  for (const u64 chunks : {2, 3, 7}) {
    product.Multiply(chunks);
    EXPECT_EQ(std::memcmp(first.data(), product.out.bytes(), first.size()), 0) << chunks;
  }
}

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

// gemv_one_vector.h: rows that warps have in twos, and one of them alone; warps without a row;
// depths with whole steps, and such that leave runs of the last one empty.
TEST(GemvWarpsTest, OneLongVector) {
  const std::vector<i64> all_rows =
      kLargeBlock ? std::vector<i64>{7, 17} : std::vector<i64>{1, 2, 7, 8, 33};
  const std::vector<i64> depths =
      kLargeBlock ? std::vector<i64>{1032} : std::vector<i64>{1024, 1032, 1544, 10240};
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
  const std::vector<i64> all_rows = kLargeBlock ? std::vector<i64>{9} : std::vector<i64>{1, 7, 33};
  const std::vector<i64> depths =
      kLargeBlock ? std::vector<i64>{320, 1544} : std::vector<i64>{320, 1024, 1544, 10240};
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
        resident::Run(resident_operator_gemv_silu_mul,
                      {x.AsArgument(), gate.AsArgument(), up.AsArgument(), out.AsArgument()},
                      chunks);
        for (i64 row = 0; row < rows; ++row) {
          double products[2] = {};
          for (i64 k = 0; k < depth; ++k) {
            products[0] += static_cast<double>(x.Get(k)) * gate.Get(row * depth + k);
            products[1] += static_cast<double>(x.Get(k)) * up.Get(row * depth + k);
          }
          const double want = products[0] / (1 + std::exp(-products[0])) * products[1];
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
        bias(DType::kF32, {c.bias ? c.rows : 0}),
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
      resident::Run(
          gated ? resident_operator_rmsnorm_gemv_silu_mul : resident_operator_rmsnorm_gemv,
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
          want *= Want(vector, second, row) / (1 + std::exp(-want));
        } else if (case_.bias) {
          want += bias.Get(row);
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
}

// One vector and weights of 16 bits: gemv_one_vector.h.
TEST(GemvWarpsTest, NormalizedLongVector) {
  const std::vector<i64> all_rows =
      kLargeBlock ? std::vector<i64>{9, 17} : std::vector<i64>{2, 7, 33};
  const std::vector<i64> depths =
      kLargeBlock ? std::vector<i64>{1032, 4104} : std::vector<i64>{1024, 1032, 1544, 10240};
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

TEST(GemvWarpsTest, BytesAndNibbles) {
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
TEST(GemvWarpsTest, GroupsAndDepths) {
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
TEST(GemvWarpsTest, QuantizedLongVector) {
  struct Form {
    DType weights;
    i32 bits;
    DType x;
    DType out;
  };
  const std::vector<i64> all_rows =
      kLargeBlock ? std::vector<i64>{17} : std::vector<i64>{1, 2, 7, 33};
  const std::vector<i64> depths =
      kLargeBlock ? std::vector<i64>{3104} : std::vector<i64>{1024, 1056, 3104};
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
TEST(GemvWarpsTest, QuantizedVectorWithABias) {
  const std::vector<i64> all_rows = kLargeBlock ? std::vector<i64>{17} : std::vector<i64>{1, 7, 33};
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
TEST(GemvWarpsTest, QuantizedLongVectorOfAnotherForm) {
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
      const i64 most = !zeros ? 10240 : bits == 8 ? 9216 : 8192;
      c.depth = most;
      c.tensor_cores = false;
      Check(c);
      c.depth = most + 128;
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
TEST(GemvWarpsTest, QuantizedLongVectorRefusals) {
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
TEST(GemvWarpsTest, QuantizedLongVectorThatIsNotFinite) {
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
TEST(GemvWarpsTest, QuantizedLongVectorOutOfRange) {
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
TEST(GemvWarpsTest, QuantizedLongVectorKeepsAllBitsOfX) {
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
          want *= Want(vector, up_, row) / (1 + std::exp(-want));
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
TEST(GemvWarpsTest, NormalizedQuantizedLongVector) {
  const std::vector<i64> all_rows =
      kLargeBlock ? std::vector<i64>{9, 17} : std::vector<i64>{2, 7, 33};
  const std::vector<i64> depths =
      kLargeBlock ? std::vector<i64>{1056, 4128} : std::vector<i64>{1024, 1056, 3104, 10240};
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
TEST(GemvWarpsTest, NormalizedQuantizedLongVectorOfAnySize) {
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
TEST(GemvWarpsTest, NormalizedQuantizedVectorsOfAnyForm) {
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
TEST(GemvWarpsTest, NormalizedQuantizedLongVectorThatIsNotFinite) {
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
TEST(GemvWarpsTest, NormalizedQuantizedRefusals) {
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

}  // namespace
}  // namespace resident
