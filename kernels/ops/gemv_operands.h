// This header has the operands and products for the tests of gemv, gemv_quant and their relatives
// in blocks of several warps (RESIDENT_EMULATED_THREADS; tests/conformance has blocks of one),
// which share the depth of each row.
//
//   Case c = {DType::kBF16, /*rows=*/33, /*depth=*/320};
//   Check(c);                 // Computes the product, and compares it with one in float64.
#ifndef RESIDENT_KERNELS_OPS_GEMV_OPERANDS_H_
#define RESIDENT_KERNELS_OPS_GEMV_OPERANDS_H_

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
extern "C" void resident_operator_linear(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_qkv(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_silu_mul(resident::BlockState* state);
extern "C" void resident_operator_gemv_quant(resident::BlockState* state);
extern "C" void resident_operator_gemv_quant_bias(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_quant(resident::BlockState* state);
extern "C" void resident_operator_rmsnorm_gemv_quant_silu_mul(resident::BlockState* state);

namespace resident::testing {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

inline void Run(OperatorFunction function, const std::vector<Argument>& arguments, u64 chunks) {
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
  bool any_chunks = false;       // Whether other numbers of chunks are tried.
  bool bias_of_vectors = false;  // With `bias`: each vector has its own.

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
        bias(DType::kF32, c.bias_of_vectors ? std::vector<i64>{c.vectors, c.rows}
                                            : std::vector<i64>{c.bias ? c.rows : 0}),
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
    double sum = 0;
    if (case_.bias) sum = bias.Get((case_.bias_of_vectors ? vector * case_.rows : 0) + row);
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

inline std::string Name(const Case& c) {
  return std::to_string(c.rows) + " x " + std::to_string(c.depth) + ", vectors " +
         std::to_string(c.vectors) + ", weights " + std::to_string(static_cast<i32>(c.weights)) +
         ", x " + std::to_string(static_cast<i32>(c.x)) +
         (c.quantized()
              ? ", bits " + std::to_string(c.bits) + ", group " + std::to_string(c.group) +
                    (c.zeros ? ", zeros" : "") + (c.bias ? ", bias" : "")
              : "") +
         (c.bias_of_vectors ? ", a bias for each vector" : "");
}

inline void Check(const Case& c) {
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

}  // namespace resident::testing

#endif  // RESIDENT_KERNELS_OPS_GEMV_OPERANDS_H_
