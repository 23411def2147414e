// attention_decode in blocks of several emulated warps (tests/conformance has blocks of one
// thread): beside a reference in float64, and what it leaves in the cache and in the counts of
// arrivals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/attention_task.h"
#include "kernels/ops/emulated_task.h"
#include "kernels/sdk/operator.h"

extern "C" void resident_operator_attention_decode(resident::BlockState* state);

namespace resident {
namespace {

struct Case {
  i64 heads;
  i64 kv_heads;
  i64 dim;
  i64 length;
  i64 pos;
  i64 parts;
  i32 layout = 1;
  bool rotates = true;
  DType cache = DType::kBF16;
  DType q = DType::kF32;
  // Elements between the first one of a row and a multiple of 16 bytes, of q, k and v.
  i64 shift = 0;
};

// A dense tensor whose elements start at a multiple of 16 bytes.
class Elements {
 public:
  Elements(DType dtype, std::vector<i64> shape) : dtype_(dtype), shape_(std::move(shape)) {
    size_ = 1;
    for (const i64 n : shape_) size_ *= n;
    chunks_.resize(static_cast<size_t>(size_ * 4 / 16 + 1));
  }
  i64 size() const { return size_; }
  u64 address() const { return reinterpret_cast<u64>(chunks_.data()); }
  float Get(i64 i) const { return LoadFloat(address(), dtype_, i); }
  void Set(i64 i, float value) { StoreFloat(address(), dtype_, i, value); }
  void Fill(std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    for (i64 i = 0; i < size_; ++i) Set(i, normal(random));
  }
  Argument ToArgument() const {
    return DenseArgument(size_ == 0 ? nullptr : chunks_.data(), dtype_, shape_);
  }

 private:
  struct alignas(16) Chunk {
    u8 bytes[16];
  };
  DType dtype_;
  std::vector<i64> shape_;
  i64 size_;
  std::vector<Chunk> chunks_;
};

class Decode {
 public:
  Decode(const Case& c, u64 seed)
      : case_(c),
        q(c.q, {c.heads, c.dim}),
        k(c.q, {c.kv_heads, c.dim}),
        v(c.q, {c.kv_heads, c.dim}),
        angles(DType::kF32, {c.rotates ? c.dim / 2 : 0}),
        keys(c.cache, {c.kv_heads, c.length, c.dim}),
        values(c.cache, {c.kv_heads, c.length, c.dim}),
        acc(DType::kF32, {c.heads, c.parts, c.dim}),
        largest(DType::kF32, {c.heads, c.parts}),
        sum(DType::kF32, {c.heads, c.parts}),
        out(DType::kF32, {c.heads, c.dim}),
        arrived(static_cast<size_t>(c.kv_heads), 0) {
    std::mt19937_64 random(seed);
    for (Elements* const each : {&q, &k, &v, &keys, &values}) each->Fill(random);
    for (i64 i = 0; i < angles.size(); ++i) {
      angles.Set(i, static_cast<float>(std::uniform_real_distribution<>(0, 900)(random)));
    }
    // What is behind `pos` must have no influence.
    for (i64 head = 0; head < c.kv_heads; ++head) {
      for (i64 i = std::max(c.pos, i64{0}) * c.dim; i < c.length * c.dim; ++i) {
        keys.Set(head * c.length * c.dim + i, std::numeric_limits<float>::quiet_NaN());
        values.Set(head * c.length * c.dim + i, std::numeric_limits<float>::quiet_NaN());
      }
    }
    scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  }

  u32 Run(u64 chunks) {
    for (i64 i = 0; i < out.size(); ++i) out.Set(i, -77.0f);
    return RunEmulated(
        resident_operator_attention_decode,
        {Shifted(q), Shifted(k), Shifted(v), angles.ToArgument(), keys.ToArgument(),
         values.ToArgument(), acc.ToArgument(), largest.ToArgument(), sum.ToArgument(),
         DenseArgument(arrived.data(), DType::kI32, {case_.kv_heads}), out.ToArgument(),
         ScalarArgument(static_cast<u64>(case_.pos)), ScalarArgument(bit_cast<u32>(scale)),
         ScalarArgument(static_cast<u64>(case_.layout))},
        chunks);
  }

  Argument Shifted(const Elements& from) const {
    Argument argument = from.ToArgument();
    if (case_.shift == 0) return argument;
    // The same elements elsewhere.
    auto* const to = reinterpret_cast<float*>(shifted_.emplace_back(4096).data()) + case_.shift;
    for (i64 i = 0; i < from.size(); ++i) to[i] = from.Get(i);
    argument.tensor.address = reinterpret_cast<u64>(to);
    return argument;
  }

  // Element d of a head at `row`, rotated.
  double Rotated(const Elements& from, i64 row, i64 d) const {
    const double own = from.Get(row * case_.dim + d);
    if (!case_.rotates) return own;
    const i64 half = case_.dim / 2;
    const bool interleaved = case_.layout == 0;
    const i64 pair = interleaved ? d / 2 : d % half;
    const bool high = interleaved ? d % 2 != 0 : d >= half;
    const double other = from.Get(row * case_.dim + (interleaved ? d ^ 1
                                                     : high      ? d - half
                                                                 : d + half));
    const double angle = angles.Get(pair);
    return high ? other * std::sin(angle) + own * std::cos(angle)
                : own * std::cos(angle) - other * std::sin(angle);
  }

  // Compares what the cache has at `pos`, and nothing behind it, with the new key and value.
  void CheckCache() const {
    const double bound = case_.cache == DType::kF32   ? 1e-5
                         : case_.cache == DType::kF16 ? 1e-3
                                                      : 8e-3;
    for (i64 head = 0; head < case_.kv_heads; ++head) {
      for (i64 d = 0; d < case_.dim; ++d) {
        const i64 at = (head * case_.length + case_.pos) * case_.dim + d;
        const double key = Rotated(k, head, d);
        ASSERT_NEAR(keys.Get(at), key, bound * (1 + std::abs(key))) << head << ", " << d;
        const double value = v.Get(head * case_.dim + d);
        ASSERT_NEAR(values.Get(at), value, bound * (1 + std::abs(value)));
        if (case_.pos + 1 == case_.length) continue;
        ASSERT_TRUE(std::isnan(keys.Get(at + case_.dim)));
      }
    }
  }

  // Compares out with attention over the cache.
  void CheckOut() const {
    double error = 0;
    double norm = 0;
    for (i64 head = 0; head < case_.heads; ++head) {
      const i64 kv_head = head / (case_.heads / case_.kv_heads);
      std::vector<double> weights;
      double total = 0;
      for (i64 key = 0; key <= case_.pos; ++key) {
        double product = 0;
        for (i64 d = 0; d < case_.dim; ++d) {
          product += Rotated(q, head, d) * keys.Get((kv_head * case_.length + key) * case_.dim + d);
        }
        weights.push_back(std::exp(product * static_cast<double>(scale)));
        total += weights.back();
      }
      for (i64 d = 0; d < case_.dim; ++d) {
        double want = 0;
        for (i64 key = 0; key <= case_.pos; ++key) {
          want += weights[static_cast<size_t>(key)] / total *
                  values.Get((kv_head * case_.length + key) * case_.dim + d);
        }
        const double got = out.Get(head * case_.dim + d);
        ASSERT_TRUE(std::isfinite(got)) << head << ", " << d;
        error += (got - want) * (got - want);
        norm += want * want;
      }
    }
    EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(norm));
  }

  Case case_;
  Elements q, k, v, angles, keys, values, acc, largest, sum, out;
  std::vector<i32> arrived;
  float scale;
  struct alignas(16) Floats {
    float v[4];
  };
  mutable std::deque<std::vector<Floats>> shifted_;
};

void Check(const Case& c, u64 chunks) {
  SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " heads of " +
               std::to_string(c.dim) + ", pos " + std::to_string(c.pos) + ", " +
               std::to_string(c.parts) + " parts, " + std::to_string(chunks) + " chunks");
  static u64 seed = 0;
  Decode decode(c, ++seed);
  ASSERT_EQ(decode.Run(chunks), 0u);
  decode.CheckCache();
  decode.CheckOut();
  EXPECT_EQ(decode.arrived, std::vector<i32>(decode.arrived.size(), 0));
  // Parts without keys are empty.
  const bool at_once =
      (c.dim == 64 || c.dim == 128) && c.cache != DType::kF32 && c.q == DType::kF32;
  const bool one = c.pos < 512 && at_once;
  const i64 used = one ? 1 : std::min(c.parts, (c.pos + 32) / 32);
  for (i64 row = 0; row < c.heads * c.parts; ++row) {
    EXPECT_EQ(decode.sum.Get(row) == 0.0f, row % c.parts >= used) << row;
    if (row % c.parts < used) continue;
    EXPECT_EQ(decode.acc.Get(row * c.dim), 0.0f) << row;
  }
}

TEST(AttentionDecodeTest, PositionsAndParts) {
  for (const i64 pos : {0, 1, 6, 31, 32, 33, 63, 64, 99, 160}) {
    for (const i64 parts : {1, 3, 16}) Check({4, 1, 64, 200, pos, parts}, 1);
  }
}

// Around the largest number of keys that are one part, in whose place chunks have heads if there
// are enough parts.
TEST(AttentionDecodeTest, OnePartAndSeveral) {
  for (const i64 pos : {510, 511, 512, 513, 543, 544, 600, 831, 832}) {
    for (const i64 parts : {1, 3, 8, 30}) Check({4, 1, 64, 900, pos, parts}, 3);
    Check({6, 2, 128, 900, pos, 3, /*layout=*/0}, 6);
    Check({10, 1, 64, 900, pos, 4}, 2);  // More heads than are computed at once.
    Check({2, 2, 64, 900, pos, 1, /*layout=*/1, true, DType::kF16}, 2);
  }
}

TEST(AttentionDecodeTest, HeadsDimensionsLayoutsAndChunks) {
  Check({8, 2, 128, 70, 63, 2}, 3);
  Check({8, 2, 128, 70, 69, 2, /*layout=*/0}, 4);
  Check({8, 2, 64, 70, 40, 4, 0, true, DType::kF16}, 8);
  Check({8, 8, 64, 70, 40, 2, 1, /*rotates=*/false}, 16);
  Check({10, 1, 64, 70, 33, 3}, 2);  // More heads than are computed at once.
  Check({6, 2, 64, 70, 65, 700}, 7);
  Check({2, 1, 128, 300, 299, 5}, 3);
}

// An item for each head, of keys that a block has in registers at the same time, and of more:
// attention_few_keys.h. Where q, k and v are not aligned, AttendOnePositionBy computes the same.
TEST(AttentionDecodeTest, FewKeys) {
  for (const i64 dim : {64, 128}) {
    for (const i64 pos :
         {0, 1, 5, 11, 12, 31, 47, 48, 71, 72, 95, 96, 191, 192, 193, 383, 384, 511}) {
      for (const i32 layout : {0, 1}) {
        Check({4, 2, dim, 520, pos, 2, layout}, 3);
        Check({3, 3, dim, 520, pos, 1, layout, pos % 2 == 0, DType::kF16}, 2);
        if (::testing::Test::HasFailure()) return;
      }
    }
    Case c = {4, 2, dim, 200, 160, 3};
    c.shift = 1;
    Check(c, 2);
  }
}

TEST(AttentionDecodeTest, OtherFormsThanThatOf16BitsAndAlignedHeads) {
  Check({4, 2, 64, 50, 37, 3, 1, true, DType::kF32}, 2);
  Check({4, 2, 80, 50, 37, 3, 0}, 2);
  Check({4, 2, 64, 50, 37, 3, 1, true, DType::kBF16, /*q=*/DType::kBF16}, 6);
  Check({4, 2, 16, 50, 0, 2, 1, true, DType::kF16}, 1);
  Check({40, 1, 32, 50, 20, 2}, 2);
  Check({4, 2, 32, 120, 119, 3, 1, true, DType::kF32}, 4);
  Check({8, 2, 64, 120, 119, 3, 1, true, DType::kF32}, 3);  // More heads than parts.
  Check({6, 2, 64, 600, 560, 5, 1, true, DType::kF32}, 5);
}

TEST(AttentionDecodeTest, FurtherTasksOnTheSameCounts) {
  for (const i64 pos : {260, 560}) {
    Decode decode({4, 2, 64, 600, pos, 4}, 7);
    for (const u64 chunks : {1, 2, 3}) {
      ASSERT_EQ(decode.Run(chunks), 0u);
      decode.CheckOut();
      EXPECT_EQ(decode.arrived, std::vector<i32>(2, 0));
    }
  }
}

TEST(AttentionDecodeTest, BitsDoNotDependOnTheChunks) {
  for (const i64 pos : {280, 580}) {
    Decode decode({8, 2, 64, 600, pos, 4}, 8);
    ASSERT_EQ(decode.Run(1), 0u);
    std::vector<float> want;
    for (i64 i = 0; i < decode.out.size(); ++i) want.push_back(decode.out.Get(i));
    for (const u64 chunks : {2, 3, 8, 50}) {
      ASSERT_EQ(decode.Run(chunks), 0u);
      for (i64 i = 0; i < decode.out.size(); ++i) {
        ASSERT_EQ(bit_cast<u32>(decode.out.Get(i)), bit_cast<u32>(want[static_cast<size_t>(i)]));
      }
    }
  }
}

// A hidden key has no part in a result, also if its value is not finite: then chunks compute again.
void CheckMinusInfinity(i64 pos, i64 parts, u64 chunks) {
  const Case c = {4, 1, 64, 600, pos, parts, 1, /*rotates=*/false};
  Decode decode(c, 9);
  for (i64 i = 0; i < decode.q.size(); ++i) decode.q.Set(i, std::abs(decode.q.Get(i)) + 0.1f);
  for (i64 d = 0; d < c.dim; ++d) {
    decode.keys.Set(3 * c.dim + d, -std::numeric_limits<float>::infinity());
    decode.values.Set(3 * c.dim + d, std::numeric_limits<float>::infinity());
  }
  ASSERT_EQ(decode.Run(chunks), 0u);
  EXPECT_EQ(decode.arrived[0], 0);
  // Its weight is 0, and so may its value be.
  for (i64 d = 0; d < c.dim; ++d) decode.values.Set(3 * c.dim + d, 0.0f);
  decode.CheckOut();
}
TEST(AttentionDecodeTest, ScoresOfMinusInfinityBesideInfiniteValues) {
  CheckMinusInfinity(/*pos=*/70, /*parts=*/2, /*chunks=*/2);
  CheckMinusInfinity(/*pos=*/70, /*parts=*/5, /*chunks=*/3);
  CheckMinusInfinity(/*pos=*/560, /*parts=*/2, /*chunks=*/2);
  CheckMinusInfinity(/*pos=*/560, /*parts=*/5, /*chunks=*/5);
}

TEST(AttentionDecodeTest, Refusals) {
  const auto detail = [](const Case& c) {
    Decode decode(c, 10);
    const u32 status = decode.Run(1);
    EXPECT_EQ(status & 0xffff, static_cast<u32>(CompletionStatus::kInvalidArgument));
    EXPECT_EQ(decode.arrived, std::vector<i32>(decode.arrived.size(), 0));
    return status >> 16;
  };
  EXPECT_EQ(detail({1, 1, 258, 4, 0, 1}), 1u);
  EXPECT_EQ(detail({3, 2, 64, 4, 0, 1}), 2u);
  EXPECT_EQ(detail({2, 2, 64, 4, 4, 1}), 3u);
  EXPECT_EQ(detail({2, 2, 64, 4, -1, 1}), 3u);
  EXPECT_EQ(detail({2, 2, 64, 4, 0, 1, /*layout=*/2}), 4u);
  EXPECT_EQ(detail({2, 2, 64, 4, 0, 0}), 6u);
  Decode counted({2, 2, 64, 600, 512, 2}, 12);
  counted.arrived[1] = 2;
  EXPECT_EQ(counted.Run(1) >> 16, 8u);
  // One part is not counted.
  Decode uncounted({2, 2, 64, 4, 0, 1}, 13);
  uncounted.arrived[1] = 1;
  ASSERT_EQ(uncounted.Run(1), 0u);
  uncounted.CheckOut();
  EXPECT_EQ(uncounted.arrived, (std::vector<i32>{0, 1}));
  Decode decode({2, 2, 64, 4, 0, 1}, 11);
  decode.angles = Elements(DType::kF32, {31});
  EXPECT_EQ(decode.Run(1) >> 16, 5u);
}

}  // namespace
}  // namespace resident
