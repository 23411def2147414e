// Tensor cores: a warp computes 16 x 8 elements of the product at a time.
//
// signature: a: in bf16[M, K], b: in bf16[K, N], out: out f32[M, N]
// split: out/1 16
// summary: out = a b, accumulated in float32
#include "kernels/sdk/operator.h"

namespace {

using resident::BFloat16;
using resident::i64;
using resident::u32;

constexpr i64 kRows = 16, kColumns = 8;

struct Matrices {
  const BFloat16* a;
  const BFloat16* b;
  float* out;
  i64 rows, depth, columns;
};

#if RESIDENT_GPU

// Two elements that are `step` apart. `left` of them exist; the others are 0.
RESIDENT_DEVICE u32 Pair(const BFloat16* at, i64 step, i64 left) {
  const u32 low = left > 0 ? at[0].bits : 0;
  return low | (left > 1 ? at[step].bits : 0) << 16;
}

// Fragments as in the PTX ISA, mma.m16n8k16: a lane holds pairs of elements adjacent in k.
RESIDENT_DEVICE void Tile(const Matrices& m, i64 row, i64 column, u32 lane) {
  const i64 r = row + lane / 4, c = column + lane / 4;
  const i64 first = lane % 4 * 2;
  const BFloat16* a = m.a + r * m.depth + first;
  const BFloat16* b = m.b + first * m.columns + c;
  float sum[4] = {};
  RESIDENT_UNROLL(1)
  for (i64 left = m.depth - first; left > -first; left -= 16) {
    const i64 top = r < m.rows ? left : 0, low = r + 8 < m.rows ? left : 0;
    const i64 right = c < m.columns ? left : 0;
    const u32 a0 = Pair(a, 1, top), a1 = Pair(a + 8 * m.depth, 1, low);
    const u32 a2 = Pair(a + 8, 1, top - 8), a3 = Pair(a + 8 * m.depth + 8, 1, low - 8);
    const u32 b0 = Pair(b, m.columns, right), b1 = Pair(b + 8 * m.columns, m.columns, right - 8);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    a += 16;
    b += 16 * m.columns;
  }
  for (u32 i = 0; i < 4; ++i) {
    const i64 y = r + i / 2 * 8, x = column + lane % 4 * 2 + i % 2;
    if (y < m.rows && x < m.columns) m.out[y * m.columns + x] = sum[i];
  }
}

#else

RESIDENT_DEVICE void Tile(const Matrices& m, i64 row, i64 column, u32) {
  for (i64 y = row; y < row + kRows && y < m.rows; ++y) {
    for (i64 x = column; x < column + kColumns && x < m.columns; ++x) {
      float sum = 0;
      for (i64 k = 0; k < m.depth; ++k) sum += m.a[y * m.depth + k] * m.b[k * m.columns + x];
      m.out[y * m.columns + x] = sum;
    }
  }
}

#endif

}  // namespace

RESIDENT_OPERATOR(matmul_bf16)(resident::Block& block, const resident::Args& args) {
  auto a = args.tensor<const BFloat16>(0);
  auto b = args.tensor<const BFloat16>(1);
  auto out = args.tensor<float>(2);
  const Matrices m = {a.data(), b.data(), out.data(), out.shape(0), a.shape(1), out.shape(1)};
  const resident::Range bands = block.share((m.rows + kRows - 1) / kRows);
  // A warp on a GPU, the one thread of a block on the CPU.
  const u32 lanes = block.threads() < 32 ? block.threads() : 32;
  const u32 warp = block.thread() / lanes, warps = block.threads() / lanes;
  for (i64 row = bands.begin * kRows; row < bands.end * kRows; row += kRows) {
    RESIDENT_UNROLL(1)
    for (i64 column = warp * kColumns; column < m.columns; column += warps * kColumns) {
      Tile(m, row, column, block.thread() % lanes);
    }
  }
}
