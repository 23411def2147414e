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

// 8 and 16 bytes, which are read or written at once.
struct alignas(8) Bytes8 {
  u32 words[2];
};
struct alignas(16) Bytes16 {
  u32 words[4];
};

// Reads 8 or 16 bytes that are not read again soon. On a GPU they do not replace the contents of
// the L1 cache, among which are the callers' registers.
template <typename T>
RESIDENT_DEVICE T LoadOnce(const T* from) {
  static_assert(sizeof(T) == 8 || sizeof(T) == 16, "");
#if defined(__CUDA_ARCH__)
  u32 words[sizeof(T) / 4];
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from));
  } else {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "l"(from));
  }
  T value;
  memcpy(&value, words, sizeof(value));
  return value;
#else
  return *from;
#endif
}

// A policy of a GPU's L2 cache, for loads: the lines leave it before its other contents.
RESIDENT_DEVICE u64 LastUse() {
  u64 policy = 0;
#if RESIDENT_GPU
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

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

// Calls f(i) for each i below `count`, distributed over the block's threads; small code.
template <typename F>
RESIDENT_DEVICE void ForEach(const Block& block, i64 count, F f) {
  RESIDENT_UNROLL(1)
  for (i64 i = block.thread(); i < count; i += block.threads()) f(i);
}

// Calls f(start(row), column) for each row of the range and each column, distributed over the
// block's threads: adjacent threads have adjacent columns. `start` computes what the elements of a
// row have in common.
template <typename Start, typename F>
RESIDENT_DEVICE void ForEachInRows(const Block& block, Range rows, i64 columns, Start start, F f) {
  if (columns <= 0) return;
  if constexpr (Block::kMaxThreads == 1) {
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const auto common = start(row);
      for (i64 column = 0; column < columns; ++column) f(common, column);
    }
  } else {
    const i64 row_step = block.threads() / columns;
    const i64 column_step = block.threads() % columns;
    i64 row = rows.begin + block.thread() / columns;
    i64 column = block.thread() % columns;
    RESIDENT_UNROLL(1)
    while (row < rows.end) {
      f(start(row), column);
      row += row_step;
      column += column_step;
      if (column >= columns) {
        column -= columns;
        ++row;
      }
    }
  }
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_MATRIX_ROWS_H_
