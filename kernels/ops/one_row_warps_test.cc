// rope, kv_append, argmax and the ends of a decoding step in blocks of several warps
// (RESIDENT_EMULATED_THREADS; tests/conformance has blocks of one thread): the forms of a decoding
// step, and such that need the general way.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/sdk/operator.h"

extern "C" {
void resident_operator_argmax(resident::BlockState* state);
void resident_operator_choose_token(resident::BlockState* state);
void resident_operator_take_token(resident::BlockState* state);
void resident_operator_kv_append(resident::BlockState* state);
void resident_operator_rope(resident::BlockState* state);
}

namespace resident {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct alignas(16) Floats {
  float v[4];
};

float Value(i64 i) { return static_cast<float>((i * 7919) % 4093) / 512 - 4; }

// A tensor with these strides.
Argument Strided(const void* data, DType dtype, const std::vector<i64>& shape,
                 const std::vector<i64>& strides) {
  Argument argument = DenseArgument(data, dtype, shape);
  for (size_t d = 0; d < strides.size(); ++d) argument.tensor.strides[d] = strides[d];
  return argument;
}

struct RopeCase {
  i64 positions;
  i64 heads;
  i64 half;
  i32 layout;
  i64 gap = 0;  // Elements between two positions.
};

void CheckRope(const RopeCase& c, u64 chunks) {
  SCOPED_TRACE(std::to_string(c.positions) + " x " + std::to_string(c.heads) + " x " +
               std::to_string(2 * c.half) + ", layout " + std::to_string(c.layout));
  constexpr i64 kOffset = 2;
  const i64 width = 2 * c.half;
  const i64 pitch = c.heads * width + c.gap;
  std::vector<float> x(static_cast<size_t>(2 * c.positions * pitch));
  std::vector<float> out(x.size(), NAN);
  std::vector<float> angles(static_cast<size_t>((c.positions + kOffset) * c.half));
  for (size_t i = 0; i < x.size(); ++i) x[i] = Value(static_cast<i64>(i));
  for (size_t i = 0; i < angles.size(); ++i) angles[i] = Value(static_cast<i64>(i) + 11) * 3;
  const std::vector<i64> shape = {2, c.positions, c.heads, width};
  const std::vector<i64> strides = {c.positions * pitch, pitch, width, 1};
  EXPECT_EQ(RunEmulated(resident_operator_rope,
                        {Strided(x.data(), DType::kF32, shape, strides),
                         DenseArgument(angles.data(), DType::kF32, {c.positions + kOffset, c.half}),
                         Strided(out.data(), DType::kF32, shape, strides), ScalarArgument(kOffset),
                         ScalarArgument(static_cast<u64>(c.layout))},
                        chunks),
            0u);
  for (i64 b = 0; b < 2; ++b) {
    for (i64 s = 0; s < c.positions; ++s) {
      for (i64 n = 0; n < c.heads; ++n) {
        const i64 head = (b * c.positions + s) * pitch + n * width;
        for (i64 i = 0; i < c.half; ++i) {
          const i64 low = head + (c.layout == 0 ? 2 * i : i);
          const i64 high = low + (c.layout == 0 ? 1 : c.half);
          const double t = angles[static_cast<size_t>((kOffset + s) * c.half + i)];
          const double x_low = x[static_cast<size_t>(low)];
          const double x_high = x[static_cast<size_t>(high)];
          EXPECT_NEAR(out[static_cast<size_t>(low)], x_low * std::cos(t) - x_high * std::sin(t),
                      1e-5);
          EXPECT_NEAR(out[static_cast<size_t>(high)], x_low * std::sin(t) + x_high * std::cos(t),
                      1e-5);
        }
      }
    }
  }
}

TEST(OneRowTest, Rope) {
  for (const i32 layout : {0, 1}) {
    for (const i64 half : {2, 8, 32}) {
      CheckRope({1, 40, half, layout}, 1);
      CheckRope({3, 5, half, layout, 4}, 2);
    }
    // Pairs that no number of threads divides.
    CheckRope({2, 3, 5, layout}, 1);
  }
}

struct AppendCase {
  DType from;
  DType to;
  i64 heads;
  i64 positions;
  i64 width;
};

void CheckAppend(const AppendCase& c, u64 chunks) {
  SCOPED_TRACE(std::to_string(c.heads) + " x " + std::to_string(c.positions) + " x " +
               std::to_string(c.width));
  constexpr i64 kLength = 9;
  constexpr i64 kPos = 3;
  constexpr float kBefore = -77.0f;
  struct alignas(16) Chunk {
    u8 bytes[16];
  };
  const auto make = [](i64 elements) { return std::vector<Chunk>(elements * 4 / 16 + 2); };
  std::vector<Chunk> from = make(c.heads * c.positions * c.width);
  std::vector<Chunk> cache = make(c.heads * kLength * c.width);
  const u64 from_at = reinterpret_cast<u64>(from.data());
  const u64 cache_at = reinterpret_cast<u64>(cache.data());
  for (i64 i = 0; i < c.heads * c.positions * c.width; ++i) {
    StoreFloat(from_at, c.from, i, Value(i));
  }
  for (i64 i = 0; i < c.heads * kLength * c.width; ++i) StoreFloat(cache_at, c.to, i, kBefore);
  // Positions are outside of heads, as in the output of a projection.
  EXPECT_EQ(RunEmulated(resident_operator_kv_append,
                        {Strided(from.data(), c.from, {1, c.heads, c.positions, c.width},
                                 {c.heads * c.positions * c.width, c.width, c.heads * c.width, 1}),
                         DenseArgument(cache.data(), c.to, {1, c.heads, kLength, c.width}),
                         ScalarArgument(kPos)},
                        chunks),
            0u);
  for (i64 n = 0; n < c.heads; ++n) {
    for (i64 s = 0; s < kLength; ++s) {
      for (i64 d = 0; d < c.width; ++d) {
        const bool is_new = s >= kPos && s < kPos + c.positions;
        float want = kBefore;
        if (is_new) want = LoadFloat(from_at, c.from, ((s - kPos) * c.heads + n) * c.width + d);
        float rounded = 0;
        StoreFloat(reinterpret_cast<u64>(&rounded), c.to, 0, want);
        EXPECT_EQ(LoadFloat(cache_at, c.to, (n * kLength + s) * c.width + d),
                  LoadFloat(reinterpret_cast<u64>(&rounded), c.to, 0))
            << n << ", " << s << ", " << d;
      }
    }
  }
}

TEST(OneRowTest, Append) {
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      CheckAppend({from, to, 16, 1, 64}, 1);
      CheckAppend({from, to, 3, 4, 12}, 2);
      // Rows that do not consist of quads.
      CheckAppend({from, to, 2, 2, 6}, 1);
    }
  }
}

void CheckArgmax(const std::vector<float>& x, i64 want, i64 columns = 0, u32 axes = 2) {
  struct alignas(16) Aligned {
    float v[4];
  };
  std::vector<Aligned> aligned(x.size() / 4 + 1);
  for (size_t i = 0; i < x.size(); ++i) aligned[i / 4].v[i % 4] = x[i];
  const i64 size = static_cast<i64>(x.size());
  i64 index = -1;
  const std::vector<i64> shape =
      columns == 0 ? std::vector<i64>{1, size} : std::vector<i64>{size / columns, columns};
  EXPECT_EQ(RunEmulated(resident_operator_argmax,
                        {DenseArgument(aligned.data(), DType::kF32, shape),
                         DenseArgument(&index, DType::kI64, {1}), ScalarArgument(axes)}),
            0u);
  EXPECT_EQ(index, want) << x.size() << " elements";
}

TEST(OneRowTest, Argmax) {
  for (const size_t size : {1, 3, 4, 130, 4096, 8195, 40000}) {
    for (const size_t place : {size_t{0}, size / 3, size / 2, size - 1}) {
      std::vector<float> x(size);
      for (size_t i = 0; i < size; ++i) x[i] = Value(static_cast<i64>(i));
      x[place] = 5;
      CheckArgmax(x, static_cast<i64>(place));
      // The first one of equal elements.
      x[size - 1] = 5;
      CheckArgmax(x, static_cast<i64>(place));
      x[size - 1] = NAN;
      CheckArgmax(x, static_cast<i64>(size) - 1);
      x[place] = NAN;
      CheckArgmax(x, static_cast<i64>(place));
    }
    CheckArgmax(std::vector<float>(size, -kInfinity), 0);
    std::vector<float> zeros(size, -0.0f);
    zeros[size - 1] = 0.0f;
    CheckArgmax(zeros, 0);
  }
  // The first axis of a column.
  std::vector<float> column(300);
  for (size_t i = 0; i < column.size(); ++i) column[i] = Value(static_cast<i64>(i));
  column[211] = 9;
  CheckArgmax(column, 211, 1, 1);
}

// choose_token beside argmax, for any numbers of logits, parts and chunks.
void CheckChoice(DType dtype, const std::vector<float>& logits, i64 pos, i64 prompt_len) {
  std::vector<Floats> memory(logits.size() / 4 + 1);
  const u64 address = reinterpret_cast<u64>(memory.data());
  for (size_t i = 0; i < logits.size(); ++i) {
    StoreFloat(address, dtype, static_cast<i64>(i), logits[i]);
  }
  const i64 columns = static_cast<i64>(logits.size());
  i64 want = -7;
  ASSERT_EQ(RunEmulated(resident_operator_argmax,
                        {DenseArgument(memory.data(), dtype, {1, columns}),
                         DenseArgument(&want, DType::kI64, {1}), ScalarArgument(2)}),
            0u);
  const i64 shown = pos + 1 < prompt_len ? -1 : want;
  for (const i64 part_count : {1, 3, 9}) {
    for (const u64 chunks : {1, 2, 5, 11}) {
      SCOPED_TRACE(std::to_string(columns) + " logits, " + std::to_string(part_count) +
                   " parts, chunks " + std::to_string(chunks));
      std::vector<i64> parts(static_cast<size_t>(part_count), -5);
      i32 arrived = 0;
      i64 token[3] = {-9, -9, -9};
      EmulatedChunks how;
      how.share_memory = false;  // As in a graph.
      for (u64 c = chunks; c-- > 0;) how.order.push_back(c);
      ASSERT_EQ(RunEmulated(resident_operator_choose_token,
                            {DenseArgument(memory.data(), dtype, {columns}),
                             DenseArgument(parts.data(), DType::kI64, {part_count}),
                             DenseArgument(&arrived, DType::kI32, {1}),
                             DenseArgument(&token[0], DType::kI64, {1}),
                             DenseArgument(&token[1], DType::kI64, {1}),
                             DenseArgument(&token[2], DType::kI64, {1}),
                             ScalarArgument(static_cast<u64>(pos)),
                             ScalarArgument(static_cast<u64>(prompt_len))},
                            chunks, nullptr, how),
                0u);
      EXPECT_EQ(token[0], want);
      EXPECT_EQ(token[1], shown);
      EXPECT_EQ(token[2], shown);
      EXPECT_EQ(arrived, 0);
      for (const i64 part : parts) EXPECT_NE(part, -5);
    }
  }
}

TEST(OneRowWarpsTest, ChooseToken) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const i64 columns : {1, 3, 4, 5, 120, 1003, 20000}) {
      std::vector<float> logits;
      for (i64 i = 0; i < columns; ++i) logits.push_back(Value(i));
      CheckChoice(dtype, logits, 4, 6);
      CheckChoice(dtype, logits, 5, 6);
      if (::testing::Test::HasFailure()) return;
      // Equal ones, infinity, and NaN.
      logits[logits.size() / 2] = logits.back() = 100;
      CheckChoice(dtype, logits, 0, 1);
      for (float& logit : logits) logit = -kInfinity;
      CheckChoice(dtype, logits, 0, 1);
      logits[logits.size() / 3] = NAN;
      CheckChoice(dtype, logits, 0, 2);
    }
  }
}

TEST(OneRowWarpsTest, ChoicesThatAreRefused) {
  const std::vector<float> logits(8, 1.0f);
  const auto run = [&](i64 columns, i64 part_count, i32 arrived, u64 chunks) {
    std::vector<i64> parts(8);
    i64 token[3] = {};
    const u32 status = RunEmulated(
        resident_operator_choose_token,
        {DenseArgument(logits.data(), DType::kF32, {columns}),
         DenseArgument(parts.data(), DType::kI64, {part_count}),
         DenseArgument(&arrived, DType::kI32, {1}), DenseArgument(&token[0], DType::kI64, {1}),
         DenseArgument(&token[1], DType::kI64, {1}), DenseArgument(&token[2], DType::kI64, {1}),
         ScalarArgument(0), ScalarArgument(1)},
        chunks);
    EXPECT_EQ(status & 0xffff, static_cast<u32>(CompletionStatus::kInvalidArgument));
    return status >> 16;
  };
  EXPECT_EQ(run(0, 1, 0, 1), 1u);
  EXPECT_EQ(run(i64{1} << 31, 1, 0, 1), 1u);
  EXPECT_EQ(run(8, 0, 0, 1), 2u);
  EXPECT_EQ(run(8, 2, -1, 2), 3u);
  EXPECT_EQ(run(8, 2, 2, 2), 3u);
}

TEST(OneRowWarpsTest, TakeToken) {
  constexpr i64 kRows = 9;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType out_dtype : {DType::kF32, DType::kBF16}) {
      for (const i64 columns : {1, 7, 8, 100, 2048, 5000}) {
        SCOPED_TRACE(std::to_string(columns) + " columns");
        std::vector<Floats> table(static_cast<size_t>(kRows * columns / 4 + 1));
        const u64 address = reinterpret_cast<u64>(table.data());
        for (i64 i = 0; i < kRows * columns; ++i) StoreFloat(address, dtype, i, Value(i));
        std::vector<Floats> out(static_cast<size_t>(columns / 4 + 1));
        const i64 prompt[3] = {4, 8, 100};
        for (const i64 pos : {0, 1, 2, 7}) {
          for (i64 i = 0; i < columns; ++i) {
            StoreFloat(reinterpret_cast<u64>(out.data()), out_dtype, i, NAN);
          }
          i64 token = 5;
          ASSERT_EQ(RunEmulated(resident_operator_take_token,
                                {DenseArgument(prompt, DType::kI64, {3}),
                                 DenseArgument(&token, DType::kI64, {1}),
                                 DenseArgument(table.data(), dtype, {kRows, columns}),
                                 DenseArgument(out.data(), out_dtype, {columns}),
                                 ScalarArgument(static_cast<u64>(pos)), ScalarArgument(2)}),
                    0u);
          const i64 want = pos < 2 ? prompt[pos] : 5;
          EXPECT_EQ(token, want);
          for (i64 i = 0; i < columns; ++i) {
            float rounded = 0;
            StoreFloat(reinterpret_cast<u64>(&rounded), out_dtype, 0,
                       LoadFloat(address, dtype, want * columns + i));
            ASSERT_EQ(LoadFloat(reinterpret_cast<u64>(out.data()), out_dtype, i),
                      LoadFloat(reinterpret_cast<u64>(&rounded), out_dtype, 0))
                << i;
          }
        }
      }
    }
  }
}

TEST(OneRowWarpsTest, TokensThatAreRefused) {
  const float table[6] = {};
  const auto run = [&](i64 token, i64 pos, i64 length) {
    const i64 prompt[2] = {1, 3};
    float out[2] = {7, 7};
    const i64 before = token;
    const u32 status = RunEmulated(
        resident_operator_take_token,
        {DenseArgument(prompt, DType::kI64, {2}), DenseArgument(&token, DType::kI64, {1}),
         DenseArgument(table, DType::kF32, {3, 2}), DenseArgument(out, DType::kF32, {2}),
         ScalarArgument(static_cast<u64>(pos)), ScalarArgument(static_cast<u64>(length))});
    EXPECT_EQ(status & 0xffff, static_cast<u32>(CompletionStatus::kInvalidArgument));
    EXPECT_EQ(token, before);
    EXPECT_EQ(out[0], 7);
    return status >> 16;
  };
  EXPECT_EQ(run(0, -1, 1), 1u);
  EXPECT_EQ(run(0, 0, 3), 1u);
  EXPECT_EQ(run(0, 1, 2), 2u);
  EXPECT_EQ(run(-1, 2, 2), 2u);
  EXPECT_EQ(run(3, 2, 2), 2u);
}

}  // namespace
}  // namespace resident
