// The family "attention": attention, in one and in several parts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/conformance/attention_operands.h"

namespace resident::testing {
namespace {

TEST_F(AttendTest, EveryHeadDimensionAndLength) {
  int which = 0;
  for (const int64_t d : {16, 64, 80, 96, 128, 256}) {
    for (const int64_t length : {1, 63, 64, 65, 1000}) {
      for (const int64_t s : {1, 5, 65}) {
        if (s == 65 && (length > 65 || (Emulated() && d > 64))) continue;
        if (Emulated() && s == 5 && length == 1000 && d > 16) continue;
        Attention a = Random(1 + which % 2, 4, s == 1 ? 2 : 4, s, length, d, d);
        a.causal = which++ % 2;
        SCOPED_TRACE("D " + std::to_string(d) + ", L " + std::to_string(length) + ", S " +
                     std::to_string(s) + ", causal " + std::to_string(a.causal));
        CheckAttention(a, DType::kF32, AnyChunks(), Emulated() && d > 96 ? 0 : 3);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttendTest, LongPrompts) {
  Attention a = Random(1, 2, 1, Emulated() ? 100 : 1000, 1000, 16, 16);
  for (const int causal : {0, 1}) {
    a.causal = causal;
    CheckAttention(a, DType::kF32, 5);
  }
}

TEST_F(AttendTest, DecodeOverALongCache) {
  for (const DType dtype : kFloats) {
    // An exchange between the emulated threads of a warp takes long.
    const int64_t length =
        Emulated() ? (dtype == DType::kF32 ? 3000 : 300) : (dtype == DType::kF32 ? 70001 : 9001);
    const Attention a = Random(1, 3, 3, 1, length, 64, 64, dtype);
    CheckAttention(a, DType::kF32, 2, 7);
  }
}

TEST_F(AttendTest, EveryRatioOfHeads) {
  for (const int64_t heads : {8, 12}) {
    for (const int64_t ratio : {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}, heads}) {
      if (heads % ratio != 0) continue;
      for (const int64_t s : {1, 3}) {
        Attention a = Random(2, heads, heads / ratio, s, 70, 24, 40);
        a.causal = 1;
        SCOPED_TRACE("N " + std::to_string(heads) + ", ratio " + std::to_string(ratio));
        CheckAttention(a, DType::kF32, AnyChunks(), 2);
      }
    }
  }
}

TEST_F(AttendTest, AllTypesAndLayouts) {
  for (int round = 0; round < (Emulated() ? 40 : 150); ++round) {
    const int64_t m = 1 + Below(3);
    const int64_t length = 1 + Below(150);
    Attention a = Random(1 + Below(2), m * (1 + Below(3)), m, 1 + Below(9), length, 1 + Below(40),
                         1 + Below(40));
    if (CountElements(a.OutShape()) <= 4) {
      // All means of values of both signs could be close to 0, where no relative error is bounded.
      std::vector<double> v = a.v.Values();
      for (double& value : v) value = std::abs(value) + 0.1;
      a.v = TestTensor::Input(DType::kF32, a.v.shape(), v);
    }
    // Different types; [B, S, N, D] as a view of [B, N, S, D]; any strides.
    for (TestTensor* const tensor : {&a.q, &a.k, &a.v}) {
      *tensor = TestTensor::Input(AnyFloat(), tensor->shape(), tensor->Values());
      const int64_t layout = Below(3);
      if (layout == 1) *tensor = tensor->WithLayout({0, 2, 1, 3}, 1);
      if (layout == 2) *tensor = RandomLayout(*tensor);
    }
    a.causal = static_cast<int32_t>(Below(2));
    if (Below(3) == 0) a.kv_len = Below(length + 1);
    const DType dtype = AnyFloat();
    TestTensor out = TestTensor::Output(dtype, a.OutShape());
    if (Below(2) == 0) out = RandomLayout(out);
    ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out), AnyChunks()).status,
              CompletionStatus::kOk);
    SCOPED_TRACE(round);
    ExpectNear(out, AttentionReference(a), /*products=*/true);
    if (HasFailure()) return;
  }
}

TEST_F(AttendTest, MasksOfEveryShapeThatBroadcasts) {
  Attention a = Random(2, 4, 2, 5, 70, 16, 16);
  const std::vector<Dims> shapes = {{},           {1},           {70},          {5, 70},
                                    {5, 1},       {1, 70},       {4, 5, 70},    {4, 1, 1},
                                    {1, 5, 70},   {2, 4, 5, 70}, {2, 1, 1, 70}, {1, 1, 5, 70},
                                    {2, 4, 1, 1}, {1, 4, 5, 1}};
  for (const Dims& shape : shapes) {
    for (const bool causal : {false, true}) {
      a.mask = RandomMask(shape, 0.3);
      if (shape.size() == 4) a.mask = RandomLayout(a.mask);
      if (shape.size() == 2) {
        a.mask = TestTensor::Input(AnyFloat(), shape, a.mask.Values());
      }
      a.causal = causal;
      SCOPED_TRACE(shape.size());
      CheckAttention(a, DType::kF32, AnyChunks(), 3);
    }
  }
}

TEST_F(AttendTest, FullyMaskedRowsAreZero) {
  for (const int64_t s : {1, 3, 20}) {
    for (const int64_t length : {1, 64, 300}) {
      Attention a = Random(1, 2, 2, s, length, 16, 24);
      std::vector<double> mask(s * length, 0);
      std::fill(mask.begin() + (s - 1) * length, mask.end(), -kInf);  // The last row.
      a.mask = TestTensor::Input(DType::kF32, {s, length}, mask);
      CheckAttention(a, DType::kF32, 1, 3);
      const std::vector<double> reference = AttentionReference(a);
      EXPECT_EQ(reference.back(), 0);
      // Only the last key is visible, then only the first one.
      for (const int64_t visible : {length - 1, int64_t{0}}) {
        std::fill(mask.begin(), mask.end(), -kInf);
        for (int64_t i = 0; i < s; ++i) mask[i * length + visible] = -3;
        a.mask = TestTensor::Input(DType::kF32, {s, length}, mask);
        CheckAttention(a, DType::kF32, 1, 3);
      }
    }
  }
}

TEST_F(AttendTest, HiddenKeysHaveNoInfluenceEvenIfTheyAreNan) {
  for (const int64_t s : {1, 4, 20}) {
    for (const double poison : {kNan, kInf, -kInf}) {
      Attention a = Random(1, 2, 1, s, 90, 16, 16);
      std::vector<double> k = a.k.Values();
      std::vector<double> v = a.v.Values();
      std::vector<double> mask(90, 0);
      const auto spoil = [&](int64_t key) {
        std::fill_n(k.begin() + key * 16, 16, poison);
        std::fill_n(v.begin() + key * 16, 16, poison);
      };
      for (const int64_t key : {0, 7, 50}) {
        spoil(key);
        mask[key] = -kInf;
      }
      for (int64_t key = 80; key < 90; ++key) spoil(key);
      a.k = TestTensor::Input(DType::kF32, a.k.shape(), k);
      a.v = TestTensor::Input(DType::kF32, a.v.shape(), v);
      a.mask = TestTensor::Input(DType::kF32, {90}, mask);
      a.kv_len = 80;
      CheckAttention(a, DType::kF32, 1, 3);
      // The last of the visible keys is hidden from all queries but the last.
      spoil(79);
      a.k = TestTensor::Input(DType::kF32, a.k.shape(), k);
      a.v = TestTensor::Input(DType::kF32, a.v.shape(), v);
      a.causal = 1;
      const TestTensor out = TestTensor::Output(DType::kF32, a.OutShape());
      ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out)).status, CompletionStatus::kOk);
      const std::vector<double> values = out.Values();
      for (int64_t i = 0; i < out.size(); ++i) {
        const bool last = i / 16 % s == s - 1;
        ASSERT_TRUE(last || std::isfinite(values[i])) << "element " << i;
        ASSERT_TRUE(!last || std::isnan(values[i]) || poison == -kInf || poison == kInf);
      }
    }
  }
}

TEST_F(AttendTest, NanOfAVisibleKeyOrQueryGivesNan) {
  Attention a = Random(1, 1, 1, 2, 70, 16, 16);
  std::vector<double> q = a.q.Values();
  q[3] = kNan;  // Row 0.
  a.q = TestTensor::Input(DType::kF32, a.q.shape(), q);
  CheckAttention(a, DType::kF32, 1, 2);
  std::vector<double> v = a.v.Values();
  v[65 * 16 + 2] = kInf;  // Column 2 of both rows.
  a.v = TestTensor::Input(DType::kF32, a.v.shape(), v);
  CheckAttention(a, DType::kF32, 1);
}

TEST_F(AttendTest, NumbersOfKeysAndTheCausalAlignment) {
  for (const int64_t length : {1, 5, 64, 130}) {
    for (const int64_t s : {1, 4, 20}) {
      for (const int64_t kv_len : {int64_t{-1}, int64_t{0}, int64_t{1}, length / 2, length}) {
        for (const int causal : {0, 1}) {
          Attention a = Random(1, 2, 1, s, length, 16, 8);
          a.kv_len = kv_len;
          a.causal = causal;  // With more queries than keys, the first ones see none.
          SCOPED_TRACE("L " + std::to_string(length) + ", S " + std::to_string(s) + ", kv_len " +
                       std::to_string(kv_len));
          CheckAttention(a, DType::kF32, AnyChunks(), 2);
        }
      }
    }
  }
}

TEST_F(AttendTest, ScoresThatDifferByTenThousand) {
  for (const int64_t s : {1, 3, 16}) {
    for (const int64_t top : {0, 63, 64, 255, 256, 299}) {
      Attention a = Random(1, 1, 1, s, 300, 16, 16);
      std::vector<double> q(s * 16, 0);
      std::vector<double> k(300 * 16, 0);
      for (int64_t i = 0; i < s; ++i) q[i * 16] = i % 2 == 0 ? 100 : -100;
      for (int64_t t = 0; t < 300; ++t) k[t * 16] = static_cast<double>(Below(3) - 1) * 50;
      k[top * 16] = 100;
      k[(top + 150) % 300 * 16] = -100;
      a.q = TestTensor::Input(DType::kF32, a.q.shape(), q);
      a.k = TestTensor::Input(DType::kF32, a.k.shape(), k);
      a.scale = 1;
      CheckAttention(a, DType::kF32, 1, 4);
      // Masks of the smallest finite number.
      std::vector<double> mask(300, -3.4028234663852886e38);
      a.mask = TestTensor::Input(DType::kF32, {300}, mask);
      const TestTensor out = TestTensor::Output(DType::kF32, a.OutShape());
      ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out)).status, CompletionStatus::kOk);
      for (const double value : out.Values()) ASSERT_TRUE(std::isfinite(value));
      mask[17] = 0;
      a.mask = TestTensor::Input(DType::kF32, {300}, mask);
      CheckAttention(a, DType::kF32, 1, 4);
    }
  }
}

TEST_F(AttendTest, EmptyTensors) {
  const std::vector<std::vector<int64_t>> sizes = {
      {0, 2, 1, 3, 4, 8, 8}, {1, 0, 1, 3, 4, 8, 8}, {1, 0, 0, 3, 4, 8, 8}, {1, 2, 1, 0, 4, 8, 8},
      {1, 2, 1, 3, 0, 8, 8}, {1, 2, 1, 3, 4, 0, 8}, {1, 2, 1, 3, 4, 8, 0}};
  for (const std::vector<int64_t>& z : sizes) {
    const Attention a = Random(z[0], z[1], z[2], z[3], z[4], z[5], z[6]);
    CheckAttention(a, DType::kF16, 2, 3);
  }
  const Attention a = Random(1, 2, 1, 3, 4, 8, 8);
  const Parts p = NewParts(a, 0);
  ASSERT_EQ(RunOperator("attention_partial", PartialArguments(a, p)).status, CompletionStatus::kOk);
  // No parts: no key was seen.
  const TestTensor out = TestTensor::Output(DType::kF32, a.OutShape());
  ASSERT_EQ(RunOperator("attention_combine", {p.acc, p.largest, p.sum, out}).status,
            CompletionStatus::kOk);
  ExpectEqual(out, std::vector<double>(out.size(), 0));
}

TEST_F(AttendTest, BitsDoNotDependOnChunks) {
  const Attention a = Random(2, 6, 3, 11, 200, 48, 48, DType::kBF16);
  std::vector<double> expected;
  for (const uint32_t chunks : {1u, 2u, 7u, 100u}) {
    const TestTensor out = TestTensor::Output(DType::kF32, a.OutShape());
    ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out), chunks).status,
              CompletionStatus::kOk);
    if (expected.empty()) expected = out.Values();
    ExpectEqual(out, expected);
  }
}

// With 16 bits only views whose rows are dense do: a GPU computes others without its tensor cores.
TEST_F(AttendTest, ViewsHaveTheBitsOfTheirContiguousCopies) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t queries : {1, 11}) {
      const Attention a = Random(2, 4, 2, queries, 70, 48, 48, dtype);
      const TestTensor expected = TestTensor::Output(DType::kF32, a.OutShape());
      ASSERT_EQ(RunOperator("attention", AttentionArguments(a, expected), 2).status,
                CompletionStatus::kOk);
      for (const std::vector<int>& order : std::vector<std::vector<int>>{
               {0, 1, 2, 3}, {0, 2, 1, 3}, {1, 0, 2, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}}) {
        for (const int64_t spacing : {1, 2}) {
          if (dtype != DType::kF32 && (order.back() != 3 || spacing != 1)) continue;
          SCOPED_TRACE(std::to_string(queries) + " queries, the inner dimension is " +
                       std::to_string(order.back()) + ", spacing " + std::to_string(spacing));
          Attention views = a;
          views.q = a.q.WithLayout(order, spacing);
          views.k = a.k.WithLayout(order, spacing);
          views.v = a.v.WithLayout(order, spacing);
          const TestTensor out = TestTensor::Output(DType::kF32, a.OutShape());
          ASSERT_EQ(RunOperator("attention", AttentionArguments(views, out), 2).status,
                    CompletionStatus::kOk);
          ExpectEqual(out, expected.Values());
        }
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(AttendTest, RefusesWhatTheSignatureCannotExpress) {
  const auto refused = [](const Attention& a, uint16_t detail) {
    const TestTensor out = TestTensor::Output(DType::kF32, a.OutShape());
    ExpectRefused("attention", AttentionArguments(a, out), detail, {out}, 2);
    const Parts p = NewParts(a, 2);
    ExpectRefused("attention_partial", PartialArguments(a, p), detail, {p.acc, p.largest, p.sum});
  };
  refused(Random(1, 2, 1, 1, 4, 257, 16), 1);
  refused(Random(1, 2, 1, 1, 4, 16, 257), 1);
  refused(Random(1, 3, 2, 1, 4, 16, 16), 2);
  refused(Random(1, 2, 4, 1, 4, 16, 16), 2);
  refused(Random(1, 2, 0, 1, 4, 16, 16), 2);
  Attention a = Random(2, 4, 2, 3, 5, 16, 16);
  for (const int64_t kv_len : {int64_t{-2}, int64_t{6}, std::numeric_limits<int64_t>::min()}) {
    a.kv_len = kv_len;
    refused(a, 3);
  }
  a.kv_len = -1;
  for (const int causal : {-1, 2}) {
    a.causal = causal;
    refused(a, 4);
  }
  a.causal = 0;
  const std::vector<Dims> shapes = {{4}, {3, 4}, {2, 5}, {2, 3, 5}, {3, 4, 3, 5}, {1, 2, 4, 3, 5}};
  for (const Dims& shape : shapes) {
    a.mask = RandomMask(shape, 0);
    refused(a, 5);
  }
}

TEST_F(AttendTest, EmptyPartsHaveNoWeight) {
  // Two rows of three parts: part 1 is empty in the first, all are in the second.
  const TestTensor acc = TestTensor::Input(
      DType::kF32, {1, 1, 2, 3, 2}, {2, 4, kNan, kInf, 3, 5, kNan, kNan, kInf, -kInf, kNan, 7});
  const TestTensor largest =
      TestTensor::Input(DType::kF32, {1, 1, 2, 3}, {1, -kInf, 1, -kInf, -kInf, 1000});
  const TestTensor sum = TestTensor::Input(DType::kF32, {1, 1, 2, 3}, {1, 0, 4, 0, 0, 0});
  for (const DType dtype : kFloats) {
    const TestTensor out = TestTensor::Output(dtype, {1, 1, 2, 2});
    ASSERT_EQ(RunOperator("attention_combine", {acc, largest, sum, out}).status,
              CompletionStatus::kOk);
    ExpectNear(out, {1, 1.8, 0, 0});
  }
  // More parts than keys, and more than fit in a block's memory.
  for (const int64_t parts : {int64_t{40}, int64_t{Emulated() ? 300 : 5000}}) {
    const Attention a = Random(1, 1, 1, 2, 30, 16, 3);
    CheckAttention(a, DType::kF32, 3, parts);
  }
}

}  // namespace
}  // namespace resident::testing
