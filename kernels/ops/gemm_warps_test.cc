// gemm in blocks of several warps (RESIDENT_EMULATED_THREADS; tests/conformance has blocks of one):
// the warps share the copies of a tile, and each computes its own part, or several of these.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/sdk/operator.h"

extern "C" void resident_operator_gemm(resident::BlockState* state);

namespace resident {
namespace {

// Multiples of 1/4 in [-2, 2], for which sums of products are exact.
float Value(i64 index) { return static_cast<float>(index * 7919 % 17 - 8) / 4; }

struct Sizes {
  i64 rows;
  i64 columns;
  i64 depth;
};

Argument Tensor2(const void* data, DType dtype, i64 rows, i64 columns, i64 row_stride,
                 i64 column_stride) {
  Argument argument{};
  argument.tensor.address = reinterpret_cast<u64>(data);
  argument.tensor.dtype = dtype;
  argument.tensor.rank = 2;
  argument.tensor.shape[0] = rows;
  argument.tensor.shape[1] = columns;
  argument.tensor.strides[0] = row_stride;
  argument.tensor.strides[1] = column_stride;
  return argument;
}

void Check(const Sizes& sizes, bool transposed_a, bool transposed_b) {
  SCOPED_TRACE(std::to_string(sizes.rows) + " x " + std::to_string(sizes.columns) + " x " +
               std::to_string(sizes.depth) + (transposed_a ? ", a transposed" : "") +
               (transposed_b ? ", b transposed" : ""));
  const auto round_up = [](i64 n) { return (n + 7) / 8 * 8; };
  const i64 a_pitch = round_up(transposed_a ? sizes.rows : sizes.depth);
  const i64 b_pitch = round_up(transposed_b ? sizes.depth : sizes.columns);
  const i64 a_size = (transposed_a ? sizes.depth : sizes.rows) * a_pitch;
  const i64 b_size = (transposed_b ? sizes.columns : sizes.depth) * b_pitch;
  struct alignas(16) Chunk {
    BFloat16 elements[8];
  };
  std::vector<Chunk> a_memory(a_size / 8);
  std::vector<Chunk> b_memory(b_size / 8);
  BFloat16* const a = a_memory[0].elements;
  BFloat16* const b = b_memory[0].elements;
  for (i64 i = 0; i < a_size; ++i) a[i] = BFloat16(Value(i));
  for (i64 i = 0; i < b_size; ++i) b[i] = BFloat16(Value(3 * i + 1));
  std::vector<float> c(sizes.rows * sizes.columns, -1e30f);

  const i64 a_row = transposed_a ? 1 : a_pitch;
  const i64 a_column = transposed_a ? a_pitch : 1;
  const i64 b_row = transposed_b ? 1 : b_pitch;
  const i64 b_column = transposed_b ? b_pitch : 1;
  const u64 before = emulated::Products::count;
  EXPECT_EQ(
      RunEmulated(resident_operator_gemm,
                  {Tensor2(a, DType::kBF16, sizes.rows, sizes.depth, a_row, a_column),
                   Tensor2(b, DType::kBF16, sizes.depth, sizes.columns, b_row, b_column),
                   Tensor2(c.data(), DType::kF32, sizes.rows, sizes.columns, sizes.columns, 1),
                   ScalarArgument(bit_cast<u32>(1.0f)), ScalarArgument(0)}),
      0u);
  EXPECT_NE(emulated::Products::count, before) << "it did not use tensor cores";
  for (i64 row = 0; row < sizes.rows; ++row) {
    for (i64 column = 0; column < sizes.columns; ++column) {
      float want = 0;
      for (i64 k = 0; k < sizes.depth; ++k) {
        want += static_cast<float>(a[row * a_row + k * a_column]) *
                static_cast<float>(b[k * b_row + column * b_column]);
      }
      ASSERT_EQ(c[row * sizes.columns + column], want) << "row " << row << ", column " << column;
    }
  }
}

TEST(GemmWarpsTest, AnyLayout) {
  for (const bool transposed_a : {false, true}) {
    for (const bool transposed_b : {false, true}) {
      Check({131, 133, 41}, transposed_a, transposed_b);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Each warp has totals of its own.
TEST(GemmWarpsTest, PartialSums) {
  Check({100, 40, 512}, false, false);
  Check({129, 40, 1030}, false, false);
}

}  // namespace
}  // namespace resident
