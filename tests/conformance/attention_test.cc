// The family "attention". The references are written here, in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/operator_runner.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// The values as `dtype` represents them.
std::vector<double> Rounded(DType dtype, const std::vector<double>& values) {
  return TestTensor::Input(dtype, {static_cast<int64_t>(values.size())}, values).Values();
}

class AttentionTest : public ::testing::Test {
 protected:
  DType AnyFloat() { return kFloats[random_() % 3]; }
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  uint32_t AnyChunks() { return 1 + static_cast<uint32_t>(random_() % 5); }

  // The tensor in any order of dimensions, with any distance between elements.
  TestTensor RandomLayout(const TestTensor& tensor) {
    std::vector<int> order(tensor.shape().size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
    std::shuffle(order.begin(), order.end(), random_);
    return tensor.WithLayout(order, 1 + Below(3));
  }
  TestTensor RandomIds(DType dtype, const Dims& shape, int64_t limit) {
    std::vector<double> ids(CountElements(shape));
    for (double& id : ids) id = static_cast<double>(Below(limit));
    return TestTensor::Input(dtype, shape, ids);
  }

  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

void ExpectRefused(const std::string& name, const std::vector<TestArgument>& arguments,
                   uint16_t detail, const std::vector<TestTensor>& outputs, uint32_t chunks = 1) {
  std::vector<std::vector<double>> before;
  for (const TestTensor& output : outputs) before.push_back(output.Values());
  const Outcome outcome = RunOperator(name, arguments, chunks);
  EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument) << name;
  EXPECT_EQ(outcome.detail, detail) << name;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<double> after = outputs[i].Values();
    for (size_t k = 0; k < after.size(); ++k) {
      ASSERT_TRUE(after[k] == before[i][k] || (std::isnan(after[k]) && std::isnan(before[i][k])))
          << name << " wrote element " << k << " of output " << i;
    }
  }
}

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

// --- attention ----------------------------------------------------------------------------------

struct Attention {
  TestTensor q;
  TestTensor k;
  TestTensor v;
  TestTensor mask = TestTensor::Output(DType::kF32, {0});
  float scale = 1;
  int32_t causal = 0;
  int64_t kv_len = -1;

  int64_t heads() const { return q.shape()[1]; }
  int64_t queries() const { return q.shape()[2]; }
  int64_t columns() const { return v.shape()[3]; }
  Dims OutShape() const { return {q.shape()[0], heads(), queries(), columns()}; }
};

// The mask's value for (b, n, s, t): aligned at the last dimension, dimensions of 1 repeat.
double MaskAt(const Dims& shape, const std::vector<double>& values, const int64_t (&index)[4]) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t i = index[4 - shape.size() + d];
    at = at * shape[d] + (shape[d] == 1 ? 0 : i);
  }
  return values[at];
}

// Keys that the causal rule, kv_len or a mask of -infinity hides have no influence.
std::vector<double> AttentionReference(const Attention& a) {
  const std::vector<double> q = a.q.Values();
  const std::vector<double> k = a.k.Values();
  const std::vector<double> v = a.v.Values();
  const std::vector<double> mask = a.mask.Values();
  const int64_t n_count = a.heads();
  const int64_t s_count = a.queries();
  const int64_t m_count = a.k.shape()[1];
  const int64_t length = a.k.shape()[2];
  const int64_t d = a.q.shape()[3];
  const int64_t e = a.columns();
  const int64_t keys = a.kv_len < 0 ? length : a.kv_len;
  std::vector<double> out(CountElements(a.OutShape()));
  std::vector<double> weights(keys);
  for (int64_t row = 0; row < a.q.shape()[0] * n_count * s_count; ++row) {
    const int64_t b = row / s_count / n_count;
    const int64_t n = row / s_count % n_count;
    const int64_t s = row % s_count;
    const int64_t kv = b * m_count + n * m_count / n_count;
    double largest = -kInf;
    for (int64_t t = 0; t < keys; ++t) {
      weights[t] = -kInf;
      if (a.causal != 0 && t > keys - s_count + s) continue;
      double bias = 0;
      if (!mask.empty()) bias = MaskAt(a.mask.shape(), mask, {b, n, s, t});
      if (bias == -kInf) continue;
      double product = 0;
      for (int64_t i = 0; i < d; ++i) product += q[row * d + i] * k[(kv * length + t) * d + i];
      weights[t] = a.scale * product + bias;
      if (std::isnan(weights[t]) || weights[t] > largest) largest = weights[t];
      if (std::isnan(largest)) break;
    }
    double sum = 0;
    for (int64_t t = 0; t < keys; ++t) {
      if (weights[t] == -kInf) continue;
      const double weight = std::exp(weights[t] - largest);
      sum += weight;
      for (int64_t i = 0; i < e; ++i) out[row * e + i] += weight * v[(kv * length + t) * e + i];
    }
    for (int64_t i = 0; i < e && sum != 0; ++i) out[row * e + i] /= sum;
  }
  return out;
}

std::vector<TestArgument> AttentionArguments(const Attention& a, const TestTensor& out) {
  return {a.q, a.k, a.v, a.mask, out, F32(a.scale), I32(a.causal), I64(a.kv_len)};
}

// The result in parts, and combined.
struct Parts {
  TestTensor acc;
  TestTensor largest;
  TestTensor sum;
};
Parts NewParts(const Attention& a, int64_t parts) {
  const Dims rows = {a.q.shape()[0], a.heads(), a.queries(), parts};
  Dims acc = rows;
  acc.push_back(a.columns());
  return {TestTensor::Output(DType::kF32, acc), TestTensor::Output(DType::kF32, rows),
          TestTensor::Output(DType::kF32, rows)};
}
std::vector<TestArgument> PartialArguments(const Attention& a, const Parts& p) {
  return {a.q,       a.k,   a.v,          a.mask,        p.acc,
          p.largest, p.sum, F32(a.scale), I32(a.causal), I64(a.kv_len)};
}

void CheckAttention(const Attention& a, DType dtype, uint32_t chunks, int64_t parts = 0) {
  const std::vector<double> reference = AttentionReference(a);
  const TestTensor out = TestTensor::Output(dtype, a.OutShape());
  ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out), chunks).status,
            CompletionStatus::kOk);
  ExpectNear(out, reference, /*products=*/true);
  if (parts == 0) return;
  const Parts p = NewParts(a, parts);
  ASSERT_EQ(RunOperator("attention_partial", PartialArguments(a, p), chunks).status,
            CompletionStatus::kOk);
  EXPECT_EQ(p.acc.CheckWritten(), "");
  EXPECT_EQ(p.largest.CheckWritten(), "");
  EXPECT_EQ(p.sum.CheckWritten(), "");
  const TestTensor combined = TestTensor::Output(dtype, a.OutShape());
  ASSERT_EQ(RunOperator("attention_combine", {p.acc, p.largest, p.sum, combined}, chunks).status,
            CompletionStatus::kOk);
  ExpectNear(combined, reference, /*products=*/true);
}

class AttendTest : public AttentionTest {
 protected:
  Attention Random(int64_t b, int64_t n, int64_t m, int64_t s, int64_t length, int64_t d, int64_t e,
                   DType dtype = DType::kF32) {
    Attention a{TestTensor::Random(dtype, {b, n, s, d}, random_),
                TestTensor::Random(dtype, {b, m, length, d}, random_),
                TestTensor::Random(dtype, {b, m, length, e}, random_)};
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1))));
    return a;
  }
  TestTensor RandomMask(const Dims& shape, double hidden) {
    std::normal_distribution<double> normal;
    std::vector<double> values(CountElements(shape));
    for (double& value : values) {
      value = std::uniform_real_distribution<double>()(random_) < hidden ? -kInf : normal(random_);
    }
    return TestTensor::Input(DType::kF32, shape, values);
  }
};

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
