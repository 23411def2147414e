// Rows: the rows of a tensor, distributed over teams of a block's threads.
//
//   const Team team(block, columns, rows);
//   for (i64 row = range.begin + team.index; ...; row += team.count) {
//     const double sum = Sum(block, team, columns, [&](i64 c) { return x.Load(row * columns + c);
//     });
//   }
//
// A team has few threads if rows are short and many, and otherwise all threads of the block. Its
// size depends only on the numbers of rows and columns and on the block's size, so the order of
// additions, and thus each bit of a result, is the same for any number of chunks.
//
// (collective) members must be called by all threads of the block, also by those of a team without
// a row; they pass 0 columns.
#ifndef RESIDENT_KERNELS_OPS_ROWS_H_
#define RESIDENT_KERNELS_OPS_ROWS_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/operator.h"

namespace resident {

struct Team {
  u32 size;   // Threads of a team.
  u32 count;  // Teams of the block.
  u32 index;  // The calling thread's team, and its number in it.
  u32 rank;

  RESIDENT_DEVICE Team(const Block& block, i64 columns, i64 rows) {
    if (Block::kMaxThreads == 1) {  // Known at compile time.
      size = count = 1;
      index = rank = 0;
      return;
    }
    size = columns <= 16     ? 1
           : columns <= 256  ? 8
           : columns <= 1024 ? kWarpThreads
                             : block.threads();
    if (rows * size < block.threads()) size = block.threads();
    count = block.threads() / size;
    index = block.thread() / size;
    rank = block.thread() % size;
  }
};

// (collective) Combines one value of each thread of a team; all of them get the result.
// sizeof(T) <= 8.
template <typename T, typename F>
RESIDENT_DEVICE T Combine(const Block& block, const Team& team, T value, F f) {
  if (team.size == 1) return value;
#if RESIDENT_WARPS
  // Smaller teams are parts of a warp.
  if (team.size < block.threads()) return CombineLanes(value, f, team.size);
#endif
  return block.reduce(value, f);
}

// Independent partial results of a thread: on the CPU enough to be vectorized.
inline constexpr i32 kPartials = Block::kMaxThreads == 1 ? 16 : 4;
// Additions to a partial sum in float32 before it is added to a sum in float64. A bias of the
// rounding, which is the same in each addition if all values are equal, stays below 32 * 2^-25.
inline constexpr i32 kAdditions = 32;

// The sum of value(0) to value(count - 1), of which the calling thread has every size'th.
template <typename F>
RESIDENT_DEVICE double PartOfSum(const Team& team, i64 count, F value) {
  const i64 step = i64{team.size} * kPartials;
  double total = 0;
  i64 base = 0;
  RESIDENT_UNROLL(1)
  while (base + step <= count) {
    float partial[kPartials] = {};
    RESIDENT_UNROLL(1)
    for (i32 k = 0; k < kAdditions && base + step <= count; ++k, base += step) {
      for (i32 p = 0; p < kPartials; ++p)
        partial[p] += value(base + p * i64{team.size} + team.rank);
    }
    for (i32 width = kPartials / 2; width > 0; width /= 2) {
      for (i32 p = 0; p < width; ++p) partial[p] += partial[p + width];
    }
    total += static_cast<double>(partial[0]);
  }
  RESIDENT_UNROLL(1)
  for (i64 i = base + team.rank; i < count; i += team.size) total += static_cast<double>(value(i));
  return total;
}

// (collective)
template <typename F>
RESIDENT_DEVICE double Sum(const Block& block, const Team& team, i64 count, F value) {
  return Combine(block, team, PartOfSum(team, count, value),
                 [](double a, double b) { return a + b; });
}

// The combination of value(0) to value(count - 1) and `none` by f, which is associative,
// commutative and idempotent; as above.
template <typename F, typename G>
RESIDENT_DEVICE float PartOfExtreme(const Team& team, i64 count, float none, F value, G f) {
  const i64 step = i64{team.size} * kPartials;
  float partial[kPartials];
  for (i32 p = 0; p < kPartials; ++p) partial[p] = none;
  i64 base = 0;
  RESIDENT_UNROLL(1)
  for (; base + step <= count; base += step) {
    for (i32 p = 0; p < kPartials; ++p) {
      partial[p] = f(partial[p], value(base + p * i64{team.size} + team.rank));
    }
  }
  RESIDENT_UNROLL(1)
  for (i64 i = base + team.rank; i < count; i += team.size) partial[0] = f(partial[0], value(i));
  for (i32 p = 1; p < kPartials; ++p) partial[0] = f(partial[0], partial[p]);
  return partial[0];
}

// The larger value, NaN if one is NaN, in a form that compilers vectorize.
RESIDENT_DEVICE float LargerOf(float x, float y) {
#if RESIDENT_GPU
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
#else
  const float larger = x > y ? x : y;
  return y != y ? y : (x != x ? x : larger);
#endif
}

// (collective) The largest value, NaN if there is one, -infinity if count is 0.
template <typename F>
RESIDENT_DEVICE float Largest(const Block& block, const Team& team, i64 count, F value) {
  const auto larger = [](float a, float b) { return LargerOf(a, b); };
  return Combine(block, team, PartOfExtreme(team, count, -math::infinity(), value, larger), larger);
}

// Elements of a dense tensor of float32, float16 or bfloat16. kFloat32: known to be float32.
template <bool kFloat32>
struct Elements {
  u64 address;
  DType dtype;

  template <typename T>
  RESIDENT_DEVICE explicit Elements(const Tensor<T>& tensor)
      : address(AddressOf(tensor)), dtype(tensor.dtype()) {}
  RESIDENT_DEVICE float Load(i64 i) const {
    if constexpr (kFloat32) return *ElementAt<const float>(address, i);
    return LoadFloat(address, dtype, i);
  }
  RESIDENT_DEVICE void Store(i64 i, float value) const {
    if constexpr (kFloat32) {
      *ElementAt<float>(address, i) = value;
    } else {
      StoreFloat(address, dtype, i, value);
    }
  }
};

// A row in the registers of its team, so that it is read once. Quad q of the thread with rank r has
// columns 4 * (q * size + r) and the next three.
template <i32 kQuads>
struct RowRegisters {
  float v[4 * kQuads];

  // The columns that a team can have in registers.
  static RESIDENT_DEVICE i64 Capacity(const Team& team) { return i64{4} * kQuads * team.size; }

  static RESIDENT_DEVICE u32 Column(const Team& team, i32 quad) {
    return 4 * (team.size * static_cast<u32>(quad) + team.rank);
  }
  // Columns that the row does not have get the value `none`. REQUIRES: `columns` is a multiple of
  // 4, and a row begins at a multiple of four elements.
  template <typename T>
  RESIDENT_DEVICE void Load(const Team& team, const T* row, u32 columns, float none) {
    Quad<T> loaded[kQuads];
    for (i32 q = 0; q < kQuads; ++q) {
      const u32 column = Column(team, q);
      if (column < columns) loaded[q] = LoadOnce(reinterpret_cast<const Quad<T>*>(row + column));
    }
    for (i32 q = 0; q < kQuads; ++q) {
      const bool exists = Column(team, q) < columns;
      for (i32 i = 0; i < 4; ++i) v[4 * q + i] = exists ? float{loaded[q].v[i]} : none;
    }
  }
  // Writes the values as rounded to T. f(quad, column) computes the values of four columns, from
  // `column` on, from those in the registers.
  template <typename T, typename F>
  RESIDENT_DEVICE void Store(const Team& team, T* row, u32 columns, F f) const {
    for (i32 q = 0; q < kQuads; ++q) {
      const u32 column = Column(team, q);
      if (column >= columns) continue;
      Quad<float> values;
      for (i32 i = 0; i < 4; ++i) values.v[i] = v[4 * q + i];
      f(values, column);
      Quad<T> rounded;
      for (i32 i = 0; i < 4; ++i) rounded.v[i] = T(values.v[i]);
      *reinterpret_cast<Quad<T>*>(row + column) = rounded;
    }
  }
  // The sum of f(v) of the thread's columns; f(none) must be 0.
  template <typename F>
  RESIDENT_DEVICE double PartOfSum(F f) const {
    float partial[4] = {};
    for (i32 i = 0; i < 4 * kQuads; ++i) partial[i % 4] += f(v[i]);
    return static_cast<double>((partial[0] + partial[2]) + (partial[1] + partial[3]));
  }
  // NaN if a value is NaN.
  RESIDENT_DEVICE float PartOfLargest() const {
    float largest = v[0];
    for (i32 i = 1; i < 4 * kQuads; ++i) largest = LargerOf(largest, v[i]);
    return largest;
  }
  // (collective) The same of all columns.
  template <typename F>
  RESIDENT_DEVICE double Sum(const Block& block, const Team& team, F f) const {
    return Combine(block, team, PartOfSum(f), [](double a, double b) { return a + b; });
  }
  RESIDENT_DEVICE float Largest(const Block& block, const Team& team) const {
    return Combine(block, team, PartOfLargest(), [](float a, float b) { return LargerOf(a, b); });
  }
};

// A key for each float32, in the order of the values: -0 and 0 have the same one, and NaN has the
// largest one.
RESIDENT_DEVICE u32 OrderedKey(float value) {
  const u32 bits = bit_cast<u32>(value + 0.0f);
  if (value != value) return ~0u;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_ROWS_H_
