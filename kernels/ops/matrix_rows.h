// Rows and columns of dense matrices, for operators that distribute the elements of a matrix over
// threads.
#ifndef RESIDENT_KERNELS_OPS_MATRIX_ROWS_H_
#define RESIDENT_KERNELS_OPS_MATRIX_ROWS_H_

#include "kernels/sdk/block.h"
#include "kernels/sdk/element.h"

namespace resident {

// Four adjacent elements, which are read or written at once.
template <typename T>
struct alignas(4 * sizeof(T)) Quad {
  T v[4];
};

// Calls f(T{}) with the type of elements of `dtype`, one of float32, float16 and bfloat16.
template <typename F>
RESIDENT_DEVICE void VisitFloat(DType dtype, F f) {
  switch (dtype) {
    case DType::kF16:
      return f(Half(0.0f));
    case DType::kBF16:
      return f(BFloat16(0.0f));
    default:
      return f(float{});
  }
}

RESIDENT_DEVICE i64 Smallest(i64 x, i64 y) { return x < y ? x : y; }

// REQUIRES: x >= 0, y > 0. A division of 64 bits is slow on a GPU.
RESIDENT_DEVICE i64 Quotient(i64 x, i64 y) {
  if (((x | y) >> 32) == 0) return static_cast<i64>(static_cast<u32>(x) / static_cast<u32>(y));
  return x / y;
}

// Calls f(i, row, column) for each element i of the range of a matrix with `columns` columns,
// distributed over the block's threads; adjacent threads have adjacent elements.
template <typename F>
RESIDENT_DEVICE void ForEachElement(const Block& block, Range range, i64 columns, F f) {
  const i64 first = range.begin + block.thread();
  if (first >= range.end) return;
  i64 row = Quotient(first, columns);
  i64 column = first - row * columns;
  RESIDENT_UNROLL(1)
  for (i64 i = first; i < range.end; i += block.threads()) {
    f(i, row, column);
    column += block.threads();
    if (column >= columns) {
      const i64 more = Quotient(column, columns);
      row += more;
      column -= more * columns;
    }
  }
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_MATRIX_ROWS_H_
