// The family "attention": embedding, the cache of keys and values, and rope.
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

// --- embedding ----------------------------------------------------------------------------------

TEST_F(AttentionTest, EmbeddingOfAllTypesAndSizes) {
  struct Size {
    int64_t ids;
    int64_t vocabulary;
    int64_t columns;
  };
  std::vector<Size> sizes = {{0, 5, 7},    {3, 5, 0},    {1, 1, 1},    {1, 2, 31},   {31, 3, 32},
                             {33, 17, 33}, {255, 9, 8},  {257, 9, 1},  {7, 5, 255},  {5, 3, 256},
                             {3, 5, 257},  {2, 3, 1023}, {3, 2, 1025}, {13, 4, 1021}};
  if (!Emulated()) sizes.push_back({65537, 70001, 17});
  for (const Size& size : sizes) {
    for (const DType from : kFloats) {
      const DType to = random_() % 2 == 0 ? from : AnyFloat();
      const TestTensor table = TestTensor::Random(from, {size.vocabulary, size.columns}, random_);
      const std::vector<double> values = table.Values();
      for (const DType id_dtype : {DType::kI64, DType::kI32}) {
        const TestTensor ids = RandomIds(id_dtype, {size.ids}, size.vocabulary);
        const TestTensor out = TestTensor::Output(to, {size.ids, size.columns});
        ASSERT_EQ(RunOperator("embedding", {ids, table, out}, AnyChunks()).status,
                  CompletionStatus::kOk);
        const std::vector<double> id = ids.Values();
        std::vector<double> reference;
        for (int64_t i = 0; i < out.size(); ++i) {
          const int64_t row = static_cast<int64_t>(id[i / size.columns]);
          reference.push_back(values[row * size.columns + i % size.columns]);
        }
        SCOPED_TRACE(size.columns);
        ExpectEqual(out, Rounded(to, reference));
      }
    }
  }
}

TEST_F(AttentionTest, EmbeddingKeepsTheShapeOfTheIdsAndSpecialValues) {
  const TestTensor table = TestTensor::Input(DType::kF16, {2, 3}, {1, kInf, kNan, -kInf, 65504, 0});
  const TestTensor ids = TestTensor::Input(DType::kI32, {2, 1, 2}, {1, 0, 0, 1});
  const TestTensor out = TestTensor::Output(DType::kF32, {2, 1, 2, 3});
  ASSERT_EQ(RunOperator("embedding", {ids, table, out}).status, CompletionStatus::kOk);
  ExpectEqual(out, {-kInf, 65504, 0, 1, kInf, kNan, 1, kInf, kNan, -kInf, 65504, 0});
  // A single id without dimensions.
  const TestTensor scalar = TestTensor::Input(DType::kI64, {}, {1});
  const TestTensor row = TestTensor::Output(DType::kF16, {3});
  ASSERT_EQ(RunOperator("embedding", {scalar, table, row}).status, CompletionStatus::kOk);
  ExpectEqual(row, {-kInf, 65504, 0});
}

TEST_F(AttentionTest, EmbeddingRefusesIdsOutOfRangeBeforeAnyChunkWrites) {
  constexpr int64_t kIds = 300;
  const TestTensor table = TestTensor::Random(DType::kF32, {10, 16}, random_);
  for (const double bad : {-1.0, 10.0, 2147483647.0, -2147483648.0, 4294967296.0}) {
    for (const int64_t position : {int64_t{0}, kIds / 2, kIds - 1}) {
      for (const uint32_t chunks : {1u, 4u, 40u}) {
        std::vector<double> ids(kIds, 3);
        ids[position] = bad;
        const TestTensor out = TestTensor::Output(DType::kF32, {kIds, 16});
        ExpectRefused("embedding", {TestTensor::Input(DType::kI64, {kIds}, ids), table, out}, 1,
                      {out}, chunks);
        if (std::abs(bad) > 2147483648.0) continue;
        ExpectRefused("embedding", {TestTensor::Input(DType::kI32, {kIds}, ids), table, out}, 1,
                      {out}, chunks);
      }
    }
  }
  // No id is in the range of an empty table.
  const TestTensor empty = TestTensor::Output(DType::kF32, {0, 16});
  const TestTensor out = TestTensor::Output(DType::kF32, {1, 16});
  ExpectRefused("embedding", {TestTensor::Input(DType::kI64, {1}, {0}), empty, out}, 1, {out});
}

// --- kv_append ----------------------------------------------------------------------------------

TEST_F(AttentionTest, AppendWritesItsPositionsAndNothingElse) {
  for (int round = 0; round < (Emulated() ? 60 : 400); ++round) {
    const int64_t b = Below(3) + (round % 10 == 0 ? 0 : 1);
    const int64_t n = Below(5) + 1;
    const int64_t s = Below(4) + (round % 10 == 1 ? 0 : 1);
    const int64_t length = s + Below(30);
    const int64_t pos = Below(length - s + 1);
    const int64_t d = (round % 2 == 0 ? 8 : 1) * (1 + Below(20));
    const DType from = AnyFloat();
    const DType to = random_() % 2 == 0 ? from : AnyFloat();
    TestTensor added = TestTensor::Random(from, {b, n, s, d}, random_);
    TestTensor cache = TestTensor::Random(to, {b, n, length, d}, random_);
    if (random_() % 4 == 0) added = RandomLayout(added);
    if (random_() % 4 == 0) cache = RandomLayout(cache);
    if (random_() % 4 == 0) cache = cache.WithLayout({0, 2, 1, 3}, 1);  // [B, L, N, D].
    std::vector<double> reference = cache.Values();
    const std::vector<double> values = Rounded(to, added.Values());
    for (int64_t i = 0; i < added.size(); ++i) {
      const int64_t head = i / (s * d);
      const int64_t at = i / d % s;
      reference[(head * length + pos + at) * d + i % d] = values[i];
    }
    ASSERT_EQ(RunOperator("kv_append", {added, cache, I64(pos)}, AnyChunks()).status,
              CompletionStatus::kOk);
    ASSERT_NO_FATAL_FAILURE(ExpectEqual(cache, reference));
  }
}

TEST_F(AttentionTest, AppendOfALongPrompt) {
  const TestTensor added =
      TestTensor::Random(DType::kF16, {1, 3, Emulated() ? 300 : 3000, 64}, random_);
  const int64_t s = added.shape()[2];
  const TestTensor cache = TestTensor::Random(DType::kF16, {1, 3, s + 1, 64}, random_);
  std::vector<double> reference = cache.Values();
  const std::vector<double> values = added.Values();
  for (int64_t i = 0; i < added.size(); ++i) {
    reference[i + (i / (s * 64) + 1) * 64] = values[i];
  }
  ASSERT_EQ(RunOperator("kv_append", {added, cache, I64(1)}, 7).status, CompletionStatus::kOk);
  ExpectEqual(cache, reference);
}

TEST_F(AttentionTest, AppendRefusesPositionsOutOfRange) {
  const TestTensor added = TestTensor::Random(DType::kF32, {2, 2, 3, 4}, random_);
  const TestTensor cache = TestTensor::Random(DType::kF32, {2, 2, 8, 4}, random_);
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t pos : {int64_t{-1}, int64_t{6}, int64_t{8}, int64_t{9}, kMin, kMax}) {
    for (const uint32_t chunks : {1u, 3u}) {
      ExpectRefused("kv_append", {added, cache, I64(pos)}, 1, {cache}, chunks);
    }
  }
  // More new positions than the cache has.
  const TestTensor small = TestTensor::Random(DType::kF32, {2, 2, 2, 4}, random_);
  ExpectRefused("kv_append", {added, small, I64(0)}, 1, {small});
  ASSERT_EQ(RunOperator("kv_append", {added, cache, I64(5)}).status, CompletionStatus::kOk);
}

// --- rope_freqs ---------------------------------------------------------------------------------

TEST_F(AttentionTest, FrequenciesAreThoseOfFloat64) {
  struct Case {
    int64_t length;
    int64_t half;
    float base;
    float alpha;
  };
  std::vector<Case> cases = {{0, 8, 10000, 1},      {8, 0, 10000, 1},     {1, 2, 10000, 1},
                             {33, 32, 10000, 1},    {257, 40, 500000, 1}, {65, 64, 10000, 8},
                             {31, 128, 1000, 2.5f}, {3, 1025, 10000, 1}};
  if (!Emulated()) cases.push_back({131072 + 7, 8, 10000, 4});
  if (!Emulated()) cases.push_back({131072, 3, 10000, 1});
  for (const Case& test : cases) {
    const TestTensor out = TestTensor::Output(DType::kF32, {test.length, test.half});
    ASSERT_EQ(RunOperator("rope_freqs", {out, F32(test.base), F32(test.alpha)}, AnyChunks()).status,
              CompletionStatus::kOk);
    const double d = 2.0 * static_cast<double>(test.half);
    const long double base =
        test.base * std::pow(static_cast<long double>(test.alpha), d / (d - 2));
    std::vector<double> reference(out.size());
    for (int64_t i = 0; i < out.size(); ++i) {
      const int64_t column = i % test.half;
      reference[i] = static_cast<double>(i / test.half * std::pow(base, -2.0L * column / d));
    }
    SCOPED_TRACE(test.half);
    ExpectNear(out, reference);
    // Each angle is rounded once.
    const std::vector<double> values = out.Values();
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_LE(std::abs(values[i] - reference[i]), 6.1e-8 * reference[i]) << "element " << i;
    }
  }
}

TEST_F(AttentionTest, FrequenciesOfHeadDimensionTwoAndOfBadBasesAreRefused) {
  const TestTensor two = TestTensor::Output(DType::kF32, {4, 1});
  ExpectRefused("rope_freqs", {two, F32(10000), F32(1)}, 1, {two}, 2);
  const TestTensor out = TestTensor::Output(DType::kF32, {4, 2});
  const float inf = std::numeric_limits<float>::infinity();
  for (const float base : {0.0f, -10000.0f, inf, std::numeric_limits<float>::quiet_NaN()}) {
    ExpectRefused("rope_freqs", {out, F32(base), F32(1)}, 2, {out});
  }
  ExpectRefused("rope_freqs", {out, F32(10000), F32(0)}, 2, {out});
  ExpectRefused("rope_freqs", {out, F32(10000), F32(-0.5f)}, 2, {out});
}

// --- rope ---------------------------------------------------------------------------------------

std::vector<double> RopeReference(const TestTensor& x, const TestTensor& freqs, int64_t offset,
                                  int layout) {
  const std::vector<double> values = x.Values();
  const std::vector<double> angles = freqs.Values();
  const int64_t s_count = x.shape()[1];
  const int64_t n = x.shape()[2];
  const int64_t d = x.shape()[3];
  const int64_t half = d / 2;
  std::vector<double> out(values.size());
  for (int64_t row = 0; row < static_cast<int64_t>(values.size()) / std::max<int64_t>(d, 1);
       ++row) {
    const int64_t s = row / n % s_count;
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = row * d + (layout == 0 ? 2 * i : i);
      const int64_t second = row * d + (layout == 0 ? 2 * i + 1 : i + half);
      const double angle = angles[(offset + s) * half + i];
      out[first] = values[first] * std::cos(angle) - values[second] * std::sin(angle);
      out[second] = values[first] * std::sin(angle) + values[second] * std::cos(angle);
    }
  }
  return out;
}

TEST_F(AttentionTest, RopeOfAllTypesShapesAndLayouts) {
  for (const int64_t half : {1, 2, 8, 32, 40, 48, 64, 128, 1, 3, 31, 33, 0, 1025}) {
    for (const int layout : {0, 1}) {
      for (int round = 0; round < (Emulated() ? 3 : 6); ++round) {
        const int64_t s = round == 5 ? 0 : 1 + Below(7);
        const int64_t length = s + Below(9);
        const int64_t offset = Below(length - s + 1);
        const Dims shape = {1 + Below(2), s, 1 + Below(9), 2 * half};
        std::vector<double> angles(length * half);
        for (double& angle : angles) angle = static_cast<double>(Below(131072 * 16)) / 16;
        const TestTensor freqs = TestTensor::Input(DType::kF32, {length, half}, angles);
        TestTensor x = TestTensor::Random(round < 2 ? DType::kF32 : AnyFloat(), shape, random_);
        TestTensor out = TestTensor::Output(round < 2 ? DType::kF32 : AnyFloat(), shape);
        if (round % 2 == 1) {
          x = RandomLayout(x);
          out = RandomLayout(out);
        }
        ASSERT_EQ(
            RunOperator("rope", {x, freqs, out, I64(offset), I32(layout)}, AnyChunks()).status,
            CompletionStatus::kOk);
        SCOPED_TRACE("H " + std::to_string(half) + ", layout " + std::to_string(layout));
        ExpectNear(out, RopeReference(x, freqs, offset, layout));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(AttentionTest, RopeOfAViewHasTheBitsOfThatOfItsContiguousCopy) {
  for (const int64_t half : {1, 8, 33, 64}) {
    for (const int layout : {0, 1}) {
      for (const DType dtype : kFloats) {
        const Dims shape = {2, 5, 3, 2 * half};
        std::vector<double> angles(9 * half);
        for (double& angle : angles) angle = static_cast<double>(Below(131072 * 16)) / 16;
        const TestTensor freqs = TestTensor::Input(DType::kF32, {9, half}, angles);
        const TestTensor x = TestTensor::Random(dtype, shape, random_);
        const TestTensor expected = TestTensor::Output(dtype, shape);
        ASSERT_EQ(RunOperator("rope", {x, freqs, expected, I64(2), I32(layout)}, 2).status,
                  CompletionStatus::kOk);
        for (int round = 0; round < 4; ++round) {
          SCOPED_TRACE("H " + std::to_string(half) + ", layout " + std::to_string(layout));
          TestTensor out = TestTensor::Output(dtype, shape);
          if (round % 2 == 1) out = RandomLayout(out);
          ASSERT_EQ(
              RunOperator("rope", {RandomLayout(x), freqs, out, I64(2), I32(layout)}, 2).status,
              CompletionStatus::kOk);
          ExpectEqual(out, expected.Values());
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttentionTest, RopeOfQueriesAndKeysWithOtherNumbersOfHeadsAtTheEndOfALongContext) {
  const int64_t length = Emulated() ? 4096 : 131072;
  const TestTensor freqs = TestTensor::Output(DType::kF32, {length, 64});
  ASSERT_EQ(RunOperator("rope_freqs", {freqs, F32(10000), F32(1)}, 3).status,
            CompletionStatus::kOk);
  for (const int64_t heads : {32, 8, 1}) {
    const TestTensor x = TestTensor::Random(DType::kF32, {1, 5, heads, 128}, random_);
    const TestTensor out = TestTensor::Output(DType::kF32, {1, 5, heads, 128});
    ASSERT_EQ(RunOperator("rope", {x, freqs, out, I64(length - 5), I32(0)}, 2).status,
              CompletionStatus::kOk);
    ExpectNear(out, RopeReference(x, freqs, length - 5, 0));
  }
}

TEST_F(AttentionTest, RopeRefusesOffsetsDimensionsAndLayouts) {
  const TestTensor x = TestTensor::Random(DType::kF32, {2, 3, 2, 8}, random_);
  const TestTensor out = TestTensor::Output(DType::kF32, {2, 3, 2, 8});
  const TestTensor freqs = TestTensor::Random(DType::kF32, {10, 4}, random_);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t offset : {int64_t{-1}, int64_t{8}, int64_t{10}, kMax, -kMax - 1}) {
    ExpectRefused("rope", {x, freqs, out, I64(offset), I32(0)}, 2, {out}, 2);
  }
  for (const int64_t half : {3, 5, 8}) {
    const TestTensor other = TestTensor::Random(DType::kF32, {10, half}, random_);
    ExpectRefused("rope", {x, other, out, I64(0), I32(0)}, 1, {out});
  }
  for (const int layout : {-1, 2}) {
    ExpectRefused("rope", {x, freqs, out, I64(0), I32(layout)}, 3, {out});
  }
  ASSERT_EQ(RunOperator("rope", {x, freqs, out, I64(7), I32(1)}).status, CompletionStatus::kOk);
}

}  // namespace
}  // namespace resident::testing
