// The family "attention": attention of elements of 16 bits, which GPUs compute with tensor cores.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/attention_operands.h"

namespace resident::testing {
namespace {

// Elements of 16 bits, in rows of a multiple of 16 bytes, which GPUs compute with tensor cores.
TEST_F(AttendTest, DecodeOf16BitsOfEveryHeadDimensionAndLength) {
  int which = 0;
  for (const int64_t d : {8, 16, 64, 80, 96, 128, 256}) {
    for (const int64_t length : {1, 15, 16, 17, 63, 64, 65, 1000}) {
      if (Emulated() && (length == 1000 || length == 64) && d != 80) continue;
      for (const int64_t s : {1, 3}) {
        if (Emulated() && s == 3 && length > 20) continue;
        const DType dtype = which % 2 == 0 ? DType::kBF16 : DType::kF16;
        // 4, 12, 8 or 24 rows for each key head.
        Attention a =
            Random(1, which % 3 == 0 ? 16 : 4, which % 3 == 0 ? 2 : 1, s,
                   Emulated() && length == 1000 ? 200 : length, d, which % 5 == 4 ? 40 : d, dtype);
        a.causal = which % 4 / 2;
        if (which % 7 == 3) a.kv_len = Below(length + 1);
        ++which;
        SCOPED_TRACE("D " + std::to_string(d) + ", L " + std::to_string(length) + ", S " +
                     std::to_string(s) + ", causal " + std::to_string(a.causal) + ", kv_len " +
                     std::to_string(a.kv_len));
        // float32: the weights are not rounded to 16 bits.
        CheckAttention(a, which % 3 == 0 ? dtype : DType::kF32, AnyChunks(),
                       Emulated() && which % 4 != 0 ? 0 : 1 + Below(4));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttendTest, DecodeOf16BitsOfEveryRatioOfHeads) {
  for (int64_t ratio = 1; ratio <= 8; ++ratio) {
    for (const int64_t s : {1, 2, 5}) {
      if (Emulated() && s > 1 && ratio % 3 != 0) continue;
      Attention a = Random(2, 2 * ratio, 2, s, 40, 24, 72, DType::kBF16);
      a.causal = 1;
      // [B, L, M, D] as a view, as many caches are stored.
      a.k = a.k.WithLayout({0, 2, 1, 3}, 1);
      a.v = a.v.WithLayout({0, 2, 1, 3}, 1);
      SCOPED_TRACE("ratio " + std::to_string(ratio) + ", S " + std::to_string(s));
      CheckAttention(a, DType::kF32, AnyChunks(), Emulated() ? 0 : 3);
      if (HasFailure()) return;
    }
  }
}

// Queries and results in float32 over a cache in 16 bits: the queries are not rounded.
TEST_F(AttendTest, DecodeOfFloat32OverACacheOf16Bits) {
  int which = 0;
  for (const int64_t d : {16, 64, 80, 128, 256}) {
    for (const int64_t length : {1, 15, 17, 160, 2048}) {
      if (Emulated() && length > 17 && (d != 64 || length > 160)) continue;
      for (const int64_t s : {1, 3}) {
        if (Emulated() && s == 3 && length > 20) continue;
        const DType dtype = which % 3 == 2 ? DType::kF16 : DType::kBF16;
        // 4, 12, 1 or 3 rows for each key head.
        const bool shared = which % 2 == 0;
        Attention a = Random(1, shared ? 8 : 2, 2, s, length, d, which % 5 == 4 ? 40 : d, dtype);
        a.q = TestTensor::Random(DType::kF32, a.q.shape(), random_);
        a.causal = which % 4 / 2;
        if (which % 7 == 3) a.kv_len = Below(length + 1);
        // Heads of keys and of values as parts of one cache, or [B, L, M, D] as a view.
        if (which % 3 == 1) {
          a.k = a.k.WithLayout({0, 2, 1, 3}, 1);
          a.v = a.v.WithLayout({0, 2, 1, 3}, 1);
        }
        // Queries that are not adjacent.
        if (which % 4 == 3) a.q = RandomLayout(a.q);
        ++which;
        SCOPED_TRACE("D " + std::to_string(d) + ", L " + std::to_string(length) + ", S " +
                     std::to_string(s) + ", causal " + std::to_string(a.causal) + ", kv_len " +
                     std::to_string(a.kv_len));
        CheckAttention(a, DType::kF32, AnyChunks(),
                       Emulated() && which % 4 != 0 ? 0 : 1 + Below(4));
        if (HasFailure()) return;
      }
    }
  }
}

// Queries whose lower bits determine the scores: large products that cancel each other. All sums
// are exact in float32.
TEST_F(AttendTest, LowerBitsOfFloat32QueriesAreNotLost) {
  Attention a = Random(1, 4, 1, 1, 40, 16, 16, DType::kBF16);
  std::vector<double> q(4 * 16, 0);
  std::vector<double> k(40 * 16, 0);
  for (int64_t row = 0; row < 4; ++row) {
    q[row * 16] = 1 + 1.5 / 512 + static_cast<double>(row + 1) / 131072;
    q[row * 16 + 1] = -1;
  }
  for (int64_t key = 0; key < 40; ++key) {
    k[key * 16] = k[key * 16 + 1] = static_cast<double>(Below(64)) * 4;
  }
  a.q = TestTensor::Input(DType::kF32, a.q.shape(), q);
  a.k = TestTensor::Input(DType::kBF16, a.k.shape(), k);
  a.scale = 1;
  CheckAttention(a, DType::kF32, 1);
}

// Elements of queries that are infinite, NaN or larger than any in bfloat16.
TEST_F(AttendTest, Float32QueriesThatAreNotFinite) {
  for (const double special : {kInf, kNan, 3.4028234663852886e38}) {
    Attention a = Random(1, 4, 1, 1, 40, 16, 16, DType::kBF16);
    std::vector<double> q(4 * 16, 0.5);
    q[16 + 3] = special;
    a.q = TestTensor::Input(DType::kF32, a.q.shape(), q);
    if (special < kInf) {
      std::vector<double> k = a.k.Values();
      for (double& value : k) value *= 0.0625;  // The products are finite.
      a.k = TestTensor::Input(DType::kBF16, a.k.shape(), k);
      a.scale = 1e-38f;
    }
    CheckAttention(a, DType::kF32, 1);
  }
}

TEST_F(AttendTest, DecodeOf16BitsWithMasksAndHiddenNan) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t s : {1, 3}) {
      Attention a = Random(2, 4, 2, s, 70, 16, 16, dtype);
      for (const Dims& shape : std::vector<Dims>{{70}, {s, 1}, {4, 1, 1}, {2, 1, s, 70}}) {
        a.mask = RandomMask(shape, 0.3);
        a.causal = 1 - a.causal;
        CheckAttention(a, DType::kF32, 1, Emulated() ? 0 : 3);
      }
      // Hidden keys: by the mask, and by kv_len.
      std::vector<double> mask(70, 0);
      std::vector<double> k = a.k.Values();
      std::vector<double> v = a.v.Values();
      for (const int64_t key : {0, 7, 31, 66, 69}) {
        mask[key] = -kInf;
        for (int64_t head = 0; head < 4; ++head) {
          const double poison = key == 7 ? kInf : kNan;
          std::fill_n(k.begin() + (head * 70 + key) * 16, 16, poison);
          std::fill_n(v.begin() + (head * 70 + key) * 16, 16, poison);
        }
      }
      a.k = TestTensor::Input(dtype, a.k.shape(), k);
      a.v = TestTensor::Input(dtype, a.v.shape(), v);
      a.mask = TestTensor::Input(DType::kF32, {70}, mask);
      a.causal = 0;
      CheckAttention(a, DType::kF32, 1, 3);
      a.mask = TestTensor::Output(DType::kF32, {0});
      a.kv_len = 0;
      CheckAttention(a, DType::kF32, 1, 3);
      // A visible value that is NaN.
      a.kv_len = 1;
      CheckAttention(a, DType::kF32, 1);
    }
  }
}

// Rows that do not start at multiples of 16 bytes, and elements that are not adjacent.
// One key has nearly all of the weight and a value of 0: the result is that of weights which are
// small for float16.
TEST_F(AttendTest, SmallWeightsOf16BitsAreNotLost) {
  const int64_t length = Emulated() ? 300 : 4096;
  for (const double gap : {8.5, 14.0, 18.25}) {
    for (const int64_t queries : {1, 17}) {
      std::vector<double> q(queries * 16), k(length * 16), v(length * 16, 1000.0);
      for (int64_t s = 0; s < queries; ++s) q[s * 16] = 1;
      k[0] = gap;
      std::fill_n(v.begin(), 16, 0.0);
      Attention a{TestTensor::Input(DType::kF16, {1, 1, queries, 16}, q),
                  TestTensor::Input(DType::kF16, {1, 1, length, 16}, k),
                  TestTensor::Input(DType::kF16, {1, 1, length, 16}, v)};
      CheckAttention(a, DType::kF16, 1);
      // Smaller weights have fewer bits than a result in float32.
      if (gap < 10) CheckAttention(a, DType::kF32, 1, 2);
    }
  }
}

TEST_F(AttendTest, DecodeOf16BitsOfOtherLayouts) {
  for (const int64_t d : {12, 16}) {
    Attention a = Random(1, 4, 2, 1, 50, d, 16, DType::kBF16);
    a.k = a.k.WithLayout({0, 1, 2, 3}, d == 16 ? 2 : 1);
    CheckAttention(a, DType::kF32, 1, 2);
  }
  Attention a = Random(1, 4, 2, 1, 50, 16, 16, DType::kF16);
  a.v = a.v.WithLayout({0, 1, 3, 2}, 1);
  CheckAttention(a, DType::kF32, 1, 2);
  Attention b = Random(1, 4, 2, 1, 51, 16, 16, DType::kF16);
  b.k = b.k.View({1, 2, 50, 16}, {51 * 32, 51 * 16, 16, 1}, 8);
  b.v = b.v.View({1, 2, 50, 16}, {51 * 32, 51 * 16, 16, 1}, 0);
  CheckAttention(b, DType::kF32, 1, 2);
  Attention c = Random(1, 4, 2, 1, 51, 16, 16, DType::kF16);
  c.k = c.k.View({1, 2, 50, 16}, {51 * 32, 51 * 16, 16, 1}, 1);
  c.v = c.v.View({1, 2, 50, 16}, {51 * 32, 51 * 16, 16, 1}, 0);
  CheckAttention(c, DType::kF32, 1, 2);
}

// More than 16 rows for each key head, and results of 16 bits: GPUs keep weights of 16 bits.
TEST_F(AttendTest, PromptsOf16BitsOfEveryHeadDimensionAndLength) {
  int which = 0;
  for (const int64_t d : {16, 48, 64, 80, 96, 128, 256}) {
    for (const int64_t s : {17, 63, 64, 65, 129, 1000}) {
      if (Emulated() && (s > 100 || (s > 17 && (d != 80 || s == 64)))) continue;
      for (const int causal : {0, 1}) {
        const DType dtype = which % 2 == 0 ? DType::kBF16 : DType::kF16;
        Attention a = Random(1 + which % 2, which % 3 == 0 ? 3 : 2, 1, s,
                             which % 5 == 0   ? s + 33
                             : which % 5 == 1 ? s - 7
                                              : s,
                             d, which % 4 == 0 ? 32 : d, dtype);
        a.causal = causal;
        if (which % 7 == 3) a.kv_len = Below(s - 7);
        ++which;
        SCOPED_TRACE("D " + std::to_string(d) + ", S " + std::to_string(s) + ", causal " +
                     std::to_string(causal) + ", kv_len " + std::to_string(a.kv_len));
        CheckAttention(a, which % 3 == 0 ? DType::kBF16 : dtype, AnyChunks());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttendTest, PromptsOf16BitsOfEveryRatioOfHeadsAndLayout) {
  for (int64_t ratio = 1; ratio <= 8; ++ratio) {
    Attention a = Random(2, 2 * ratio, 2, 20, 40, 32, 48, DType::kBF16);
    a.causal = static_cast<int32_t>(ratio % 2);
    // [B, S, N, D] as a view, as projections are stored.
    for (TestTensor* const tensor : {&a.q, &a.k, &a.v}) {
      if (Below(2) == 0) *tensor = tensor->WithLayout({0, 2, 1, 3}, 1);
    }
    SCOPED_TRACE("ratio " + std::to_string(ratio));
    CheckAttention(a, DType::kBF16, AnyChunks());
    TestTensor out = TestTensor::Output(DType::kBF16, a.OutShape());
    out = ratio % 2 == 0 ? out.WithLayout({0, 2, 1, 3}, 1) : RandomLayout(out);
    ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out), AnyChunks()).status,
              CompletionStatus::kOk);
    ExpectNear(out, AttentionReference(a), /*products=*/true);
    if (HasFailure()) return;
  }
  // Queries that are not aligned, or not adjacent.
  Attention a = Random(1, 2, 1, 33, 40, 32, 32, DType::kF16);
  a.q = a.q.WithLayout({0, 1, 2, 3}, 2);
  CheckAttention(a, DType::kF16, 2);
  Attention b = Random(1, 2, 1, 33, 40, 32, 32, DType::kF16);
  b.q = b.q.View({1, 2, 32, 32}, {2 * 33 * 32, 33 * 32, 32, 1}, 3);
  CheckAttention(b, DType::kF16, 2);
}

TEST_F(AttendTest, PromptsOf16BitsWithHiddenNan) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const double poison : {kNan, kInf}) {
      Attention a = Random(1, 2, 1, 50, 90, 32, 32, dtype);
      std::vector<double> k = a.k.Values();
      std::vector<double> v = a.v.Values();
      const auto spoil = [&](int64_t key) {
        std::fill_n(k.begin() + key * 32, 32, poison);
        std::fill_n(v.begin() + key * 32, 32, poison);
      };
      for (int64_t key = 70; key < 90; ++key) spoil(key);
      a.k = TestTensor::Input(dtype, a.k.shape(), k);
      a.v = TestTensor::Input(dtype, a.v.shape(), v);
      a.kv_len = 70;
      a.causal = 1;
      CheckAttention(a, dtype, 2);
      // The last key is hidden from all queries but the last.
      spoil(69);
      a.k = TestTensor::Input(dtype, a.k.shape(), k);
      a.v = TestTensor::Input(dtype, a.v.shape(), v);
      const TestTensor out = TestTensor::Output(dtype, a.OutShape());
      ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out)).status, CompletionStatus::kOk);
      const std::vector<double> values = out.Values();
      for (int64_t i = 0; i < out.size(); ++i) {
        ASSERT_TRUE(i / 32 % 50 == 49 || std::isfinite(values[i])) << "element " << i;
      }
    }
  }
}

// Rows without a visible key, and scores whose exponentials are far apart.
TEST_F(AttendTest, PromptsOf16BitsWithHiddenRowsAndLargeScores) {
  Attention a = Random(1, 1, 1, 50, 40, 32, 16, DType::kBF16);
  a.causal = 1;  // The first 10 queries see no key.
  CheckAttention(a, DType::kBF16, 1);
  std::vector<double> q(50 * 32, 0);
  std::vector<double> k(40 * 32, 0);
  for (int64_t i = 0; i < 50; ++i) q[i * 32] = i % 2 == 0 ? 64 : -64;
  for (int64_t i = 0; i < 40; ++i) k[i * 32] = static_cast<double>(i) * 8 - 100;
  a.q = TestTensor::Input(DType::kBF16, a.q.shape(), q);
  a.k = TestTensor::Input(DType::kBF16, a.k.shape(), k);
  for (const float scale : {1.0f, -1.0f, 0.001f}) {
    a.scale = scale;
    CheckAttention(a, DType::kBF16, 1);
  }
  a.kv_len = 0;
  CheckAttention(a, DType::kBF16, 1);
}

}  // namespace
}  // namespace resident::testing
