// The emulation of tensor cores against plain loops: every load, both dtypes, the zeros of partial
// copies, and the product as an operand.
#include "kernels/ops/tensor_cores.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace resident {
namespace {

constexpr u32 kRows = 16;
constexpr u32 kColumns = 16;
constexpr u32 kDepth = 16;
constexpr u32 kChunks = 2;  // Of each row of the matrices.

// A value of few bits, so that all products and sums are exact.
float LeftValue(u32 row, u32 depth) { return static_cast<float>((row * 7 + depth * 3) % 13) - 6; }
float RightValue(u32 depth, u32 column) {
  return static_cast<float>((depth * 5 + column * 11) % 9) - 4;
}

struct Memory {
  alignas(128) u16 left[16][16];
  alignas(128) u16 right[16][16];
};

template <typename T>
class TensorCoresTest : public ::testing::Test {
 protected:
  // Row r of the matrix has the elements value(r, 0) to value(r, 15), in swizzled chunks.
  static void Fill(u16 (*rows)[16], const std::function<float(u32, u32)>& value) {
    for (u32 r = 0; r < 16; ++r) {
      for (u32 e = 0; e < 16; ++e) {
        rows[r][Swizzle<kChunks>(r, e / 8) * 8 + e % 8] = T(value(r, e)).bits;
      }
    }
  }
  static MemoryAddress ChunkAddress(const u16 (*rows)[16], u32 row, u32 chunk) {
    return AddressInMemory(&rows[row][Swizzle<kChunks>(row, chunk) * 8]);
  }
};
using Types = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(TensorCoresTest, Types);

TYPED_TEST(TensorCoresTest, ProductsOfOperandsInAnyLayout) {
  using T = TypeParam;
  for (const bool left_transposed : {false, true}) {
    for (const bool right_transposed : {false, true}) {
      auto memory = std::make_unique<Memory>();
      TestFixture::Fill(memory->left, [&](u32 r, u32 e) {
        return left_transposed ? LeftValue(e, r) : LeftValue(r, e);
      });
      TestFixture::Fill(memory->right, [&](u32 r, u32 e) {
        return right_transposed ? RightValue(r, e) : RightValue(e, r);
      });
      float product[kRows][kColumns] = {};
      emulated::RunBlock(32, [&] {
        const u32 lane = emulated::CurrentThread();
        LeftFragment a;
        RightFragment b[2];
        if (left_transposed) {
          LoadLeftTransposed(a, TestFixture::ChunkAddress(memory->left, LeftTransposedRow(lane),
                                                          LeftTransposedChunk(lane)));
        } else {
          LoadLeft(a, TestFixture::ChunkAddress(memory->left, LeftRow(lane), LeftChunk(lane)));
        }
        if (right_transposed) {
          LoadRightTransposed(b[0], b[1],
                              TestFixture::ChunkAddress(memory->right, RightTransposedRow(lane),
                                                        RightTransposedChunk(lane)));
        } else {
          LoadRight(b[0], b[1],
                    TestFixture::ChunkAddress(memory->right, RightRow(lane), RightChunk(lane)));
        }
        for (u32 n = 0; n < 2; ++n) {
          Accumulator sum = {{1, 2, 3, 4}};
          MultiplyAdd<T>(sum, a, b[n]);
          MultiplyAdd<T>(sum, a, b[n]);
          for (u32 i = 0; i < 4; ++i) {
            product[lane / 4 + i / 2 * 8][n * 8 + lane % 4 * 2 + i % 2] = sum.v[i] - (i + 1.0f);
          }
        }
      });
      for (u32 row = 0; row < kRows; ++row) {
        for (u32 column = 0; column < kColumns; ++column) {
          float want = 0;
          for (u32 k = 0; k < kDepth; ++k) want += 2 * LeftValue(row, k) * RightValue(k, column);
          EXPECT_EQ(product[row][column], want) << row << ", " << column;
        }
      }
    }
  }
}

TYPED_TEST(TensorCoresTest, AProductIsTheLeftOperandOfTheNextOne) {
  using T = TypeParam;
  auto memory = std::make_unique<Memory>();
  TestFixture::Fill(memory->left, LeftValue);
  // A permutation of columns, twice.
  TestFixture::Fill(memory->right,
                    [](u32 k, u32 n) { return n == (k * 3 + 1) % 16 ? 1.0f : 0.0f; });
  float product[kRows][kColumns] = {};
  emulated::RunBlock(32, [&] {
    const u32 lane = emulated::CurrentThread();
    LeftFragment a;
    RightFragment b[2];
    LoadLeft(a, TestFixture::ChunkAddress(memory->left, LeftRow(lane), LeftChunk(lane)));
    LoadRightTransposed(b[0], b[1],
                        TestFixture::ChunkAddress(memory->right, RightTransposedRow(lane),
                                                  RightTransposedChunk(lane)));
    for (u32 round = 0; round < 2; ++round) {
      Accumulator sums[2] = {};
      for (u32 n = 0; n < 2; ++n) MultiplyAdd<T>(sums[n], a, b[n]);
      a = ToLeft<T>(sums[0], sums[1]);
      for (u32 n = 0; n < 2; ++n) {
        for (u32 i = 0; i < 4; ++i) {
          product[lane / 4 + i / 2 * 8][n * 8 + lane % 4 * 2 + i % 2] = sums[n].v[i];
        }
      }
    }
  });
  for (u32 row = 0; row < kRows; ++row) {
    for (u32 k = 0; k < kDepth; ++k) {
      EXPECT_EQ(product[row][((k * 3 + 1) * 3 + 1) % 16], LeftValue(row, k)) << row << ", " << k;
    }
  }
}

TEST(CopyAsyncTest, CopiesAreMadeInGroupsAndTheRestOfAChunkIsZero) {
  struct Chunks {
    alignas(16) u16 elements[4][8];
  };
  const auto from = std::make_unique<Chunks>();
  const auto to = std::make_unique<Chunks>();
  for (u32 i = 0; i < 32; ++i) from->elements[i / 8][i % 8] = static_cast<u16>(i + 1);
  const auto copy = [&](u32 chunk, u32 bytes) {
    CopyAsync(AddressInMemory(to->elements[chunk]), reinterpret_cast<u64>(from->elements[chunk]),
              bytes);
  };
  emulated::RunBlock(1, [&] {
    copy(0, 16);
    copy(1, 6);
    CommitCopies();
    copy(2, 0);
    CommitCopies();
    copy(3, 16);
    CommitCopies();
    WaitForCopies<1>();
    EXPECT_EQ(to->elements[0][7], 8);
    EXPECT_EQ(to->elements[1][2], 11);
    EXPECT_EQ(to->elements[1][3], 0);
    EXPECT_EQ(to->elements[2][0], 0);
    EXPECT_EQ(to->elements[3][0], 0xffff);
    WaitForCopies<0>();
    EXPECT_EQ(to->elements[3][0], 25);
  });
}

TEST(ShuffleXorTest, LanesExchangeTheirValues) {
  emulated::RunBlock(32, [] {
    const u32 lane = emulated::CurrentThread();
    for (const u32 mask : {1u, 2u, 16u}) {
      const float got = ShuffleXor(static_cast<float>(lane), mask);
      EXPECT_EQ(got, static_cast<float>(lane ^ mask));
    }
  });
}

TEST(SwizzleTest, EightAdjacentRowsHaveAChunkInDifferentBanks) {
  const auto check = [](auto chunks) {
    constexpr u32 kCount = decltype(chunks)::value;
    for (u32 first = 0; first < 16; first += 8) {
      for (u32 chunk = 0; chunk < kCount; ++chunk) {
        u32 banks = 0;
        for (u32 row = first; row < first + 8; ++row) {
          const u32 place = Swizzle<kCount>(row, chunk);
          EXPECT_LT(place, kCount);
          banks |= 1u << (row * kCount + place) % 8;
        }
        EXPECT_EQ(banks, 0xffu) << kCount << " chunks, chunk " << chunk;
      }
    }
  };
  check(std::integral_constant<u32, 1>());
  check(std::integral_constant<u32, 2>());
  check(std::integral_constant<u32, 4>());
  check(std::integral_constant<u32, 8>());
  check(std::integral_constant<u32, 16>());
  check(std::integral_constant<u32, 24>());
}

}  // namespace
}  // namespace resident
