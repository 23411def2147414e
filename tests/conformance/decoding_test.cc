// The family "decoding": the random numbers, the distribution of the tokens, the tokens that can be
// drawn, and that a seed gives the same tokens on every engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/philox.h"
#include "tests/conformance/operator_runner.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What can be drawn.
struct Limits {
  int64_t k = 0;  // 0: no such limit.
  float p = 0;
};

struct Draws {
  float temperature = 1;
  int64_t seed = 0;
  int64_t offset = 0;
  Limits limits = {};
  uint32_t chunks = 1;
};

Outcome Draw(const TestTensor& logits, const TestTensor& token, const Draws& draws) {
  std::vector<TestArgument> arguments = {logits, token, F32(draws.temperature), I64(draws.seed),
                                         I64(draws.offset)};
  std::string name = "sample";
  if (draws.limits.k != 0) {
    name = "sample_topk";
    arguments.push_back(I64(draws.limits.k));
  } else if (draws.limits.p != 0) {
    name = "sample_topp";
    arguments.push_back(F32(draws.limits.p));
  }
  return RunOperator(name, arguments, draws.chunks);
}

std::vector<int64_t> Tokens(const TestTensor& logits, const Draws& draws) {
  const TestTensor token = TestTensor::Output(DType::kI64, {logits.shape()[0]});
  EXPECT_EQ(Draw(logits, token, draws).status, CompletionStatus::kOk);
  EXPECT_EQ(token.CheckWritten(), "");
  std::vector<int64_t> tokens;
  for (const double value : token.Values()) tokens.push_back(static_cast<int64_t>(value));
  return tokens;
}

// The uniform number of a row: 64 bits.
double Uniform(int64_t seed, int64_t counter) {
  const auto key = static_cast<uint64_t>(seed);
  const auto count = static_cast<uint64_t>(counter);
  const PhiloxWords random =
      Philox({{static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), 0, 0}},
             static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  return std::ldexp(random.words[1], -32) + std::ldexp(random.words[0], -64);
}

// The columns that can be drawn, and their probabilities, in float64.
std::vector<double> Probabilities(const std::vector<double>& logits, double temperature,
                                  const Limits& limits) {
  std::vector<double> p = logits;
  for (double& v : p) v /= temperature;
  p = Softmax(std::move(p));
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  size_t kept = p.size();
  if (limits.k != 0) kept = static_cast<size_t>(limits.k);
  if (limits.p != 0) {
    kept = 0;
    for (double reached = 0; kept < p.size() && reached < limits.p * (1 - 1e-9); ++kept) {
      reached += p[order[kept]];
    }
  }
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (i >= kept) p[order[i]] = 0;
    total += p[order[i]];
  }
  for (double& v : p) v /= total;
  return p;
}

class DecodingTest : public ::testing::Test {
 protected:
  // Compares with a reference in float64. Its rounding differs, so the token may be a neighbour if
  // the random number is within 1e-6 of the limit between two tokens.
  void Check(const TestTensor& logits, const Draws& draws) {
    SCOPED_TRACE("seed " + std::to_string(draws.seed) + ", columns " +
                 std::to_string(logits.shape()[1]) + ", temperature " +
                 std::to_string(draws.temperature) + ", k " + std::to_string(draws.limits.k) +
                 ", p " + std::to_string(draws.limits.p));
    const int64_t columns = logits.shape()[1];
    const std::vector<double> values = logits.Values();
    const std::vector<int64_t> tokens = Tokens(logits, draws);
    for (size_t r = 0; r < tokens.size(); ++r) {
      const auto row = values.begin() + static_cast<int64_t>(r) * columns;
      const std::vector<double> p =
          Probabilities({row, row + columns}, draws.temperature, draws.limits);
      ASSERT_GE(tokens[r], 0);
      ASSERT_LT(tokens[r], columns);
      ASSERT_GT(p[tokens[r]], 0);
      const double below = std::accumulate(p.begin(), p.begin() + tokens[r], 0.0);
      const double u = Uniform(draws.seed, draws.offset + static_cast<int64_t>(r));
      EXPECT_GE(u, below - 1e-6) << "row " << r << ", token " << tokens[r];
      EXPECT_LE(u, below + p[tokens[r]] + 1e-6) << "row " << r << ", token " << tokens[r];
    }
  }

  int64_t AnySeed() { return static_cast<int64_t>(random_()); }

  std::mt19937_64 random_{std::random_device{}()};
};

// Logits without a library function: multiples of 2^-7 in [-4, 4).
TestTensor FixedLogits(int64_t rows, int64_t columns) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) {
    values.push_back(static_cast<double>(i * 7919 % 1021 - 510) / 128);
  }
  return TestTensor::Input(DType::kF32, {rows, columns}, values);
}

TEST(PhiloxTest, ThePublishedVectors) {
  const auto words = [](PhiloxWords counter, uint32_t key_0, uint32_t key_1) {
    const PhiloxWords result = Philox(counter, key_0, key_1);
    return std::vector<uint32_t>(result.words, result.words + 4);
  };
  EXPECT_EQ(words({{0, 0, 0, 0}}, 0, 0),
            (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(words({{ones, ones, ones, ones}}, ones, ones),
            (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0),
            (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST_F(DecodingTest, AnyNumberOfColumnsDTypeTemperatureAndLimit) {
  for (const int64_t columns :
       {1, 2, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4099, 65537, 131072}) {
    const int64_t rows = columns < 2000 ? 5 : 1;
    const DType dtype = std::vector<DType>{DType::kF32, DType::kF16, DType::kBF16}[random_() % 3];
    const TestTensor logits = TestTensor::Random(dtype, {rows, columns}, random_, 2);
    for (const float temperature : {1.0f, 0.3f, 5.0f}) {
      Draws draws = {temperature, AnySeed(), static_cast<int64_t>(random_() % 1000)};
      draws.chunks = 1 + random_() % 3;
      Check(logits, draws);
      draws.limits.k = 1 + static_cast<int64_t>(random_() % columns);
      Check(logits, draws);
      draws.limits = {0, std::uniform_real_distribution<float>(0.05f, 1)(random_)};
      // A probability exactly at p is in the set of one computation and not of another.
      if (dtype == DType::kF32) Check(logits, draws);
      if (HasFailure()) return;
    }
  }
}

// The tokens are those of another implementation in float64; no random number is near the limit
// between two tokens.
TEST_F(DecodingTest, ASeedGivesTheseTokensOnEveryEngine) {
  const TestTensor logits = FixedLogits(8, 5000);
  Draws draws = {1, 0x123456789abcdef, 1000};
  for (const uint32_t chunks : {1u, 3u}) {
    draws.chunks = chunks;
    draws.limits = {};
    EXPECT_EQ(Tokens(logits, draws),
              (std::vector<int64_t>{3220, 1319, 4454, 1906, 4295, 1255, 134, 3093}));
    draws.limits = {50, 0};
    EXPECT_EQ(Tokens(logits, draws),
              (std::vector<int64_t>{3674, 1696, 4171, 1947, 4217, 1218, 261, 3388}));
    draws.limits = {0, 0.7f};
    EXPECT_EQ(Tokens(logits, draws),
              (std::vector<int64_t>{3219, 1311, 4446, 1902, 4295, 1255, 134, 3093}));
  }
  const TestTensor wide = FixedLogits(2, 131072);
  draws = {0.7f, -1, -1};
  EXPECT_EQ(Tokens(wide, draws), (std::vector<int64_t>{34345, 10868}));
  draws.limits = {0, 0.9f};
  EXPECT_EQ(Tokens(wide, draws), (std::vector<int64_t>{34333, 10843}));
}

// The ends of a decoding step. The largest logit is at any place of a row, also behind its last
// quad.
TEST_F(DecodingTest, ChooseToken) {
  for (const int64_t columns : {1, 2, 3, 5, 7, 150, 1003}) {
    for (const int64_t from_end : {1, 2, 3, 4, 150}) {
      const int64_t want = std::max<int64_t>(columns - from_end, 0);
      std::vector<double> values;
      for (int64_t i = 0; i < columns; ++i) {
        values.push_back(i == want ? 9 : static_cast<double>(i % 7) - 3);
      }
      const TestTensor logits = TestTensor::Input(DType::kF32, {columns}, values);
      for (const int64_t parts : {1, 4}) {
        SCOPED_TRACE(std::to_string(columns) + " logits, " + std::to_string(parts) + " parts");
        const TestTensor scratch = TestTensor::Output(DType::kI64, {parts});
        const TestTensor arrived = TestTensor::Input(DType::kI32, {1}, {0});
        const TestTensor token = TestTensor::Output(DType::kI64, {1});
        const TestTensor reported = TestTensor::Output(DType::kI64, {1});
        const TestTensor record = TestTensor::Output(DType::kI64, {1});
        ASSERT_EQ(RunOperator("choose_token",
                              {logits, scratch, arrived, token, reported, record, I64(5), I64(7)},
                              static_cast<uint32_t>(parts))
                      .status,
                  CompletionStatus::kOk);
        EXPECT_EQ(token.Values(), std::vector<double>{static_cast<double>(want)});
        EXPECT_EQ(reported.Values(), std::vector<double>{-1});
        EXPECT_EQ(record.Values(), std::vector<double>{-1});
        EXPECT_EQ(arrived.Values(), std::vector<double>{0});
      }
    }
  }
}

TEST_F(DecodingTest, ConsecutiveSeedsGiveIndependentTokensOfTheRightFrequencies) {
  // Probabilities are multiples of 1/64: exp(log(n)).
  const std::vector<double> counts = {1, 2, 3, 10, 16, 32};
  std::vector<double> logits;
  for (const double count : counts) logits.push_back(std::log(count));
  const TestTensor x = TestTensor::Input(DType::kF32, {1, 6}, logits);
  const int seeds = 4096;
  std::vector<double> seen(6);
  std::vector<double> pairs(36);
  int64_t previous = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const int64_t token = Tokens(x, {1, seed, 0})[0];
    seen[token] += 1;
    if (seed % 2 == 1) pairs[previous * 6 + token] += 1;
    previous = token;
  }
  double chi_squared = 0;
  double chi_squared_of_pairs = 0;
  for (int a = 0; a < 6; ++a) {
    const double expected = seeds * counts[a] / 64;
    chi_squared += (seen[a] - expected) * (seen[a] - expected) / expected;
    for (int b = 0; b < 6; ++b) {
      const double both = expected / 2 * counts[b] / 64;
      chi_squared_of_pairs += (pairs[a * 6 + b] - both) * (pairs[a * 6 + b] - both) / both;
    }
  }
  // Exceeded by 1 of 1000 sequences of random numbers.
  EXPECT_LT(chi_squared, 20.5);           // 5 degrees of freedom.
  EXPECT_LT(chi_squared_of_pairs, 66.6);  // 35 degrees of freedom.
}

TEST_F(DecodingTest, RowsAreDrawnWithConsecutiveCounters) {
  const int64_t rows = Emulated() ? 64 : 2048;
  const TestTensor equal =
      TestTensor::Input(DType::kF32, {rows, 16}, std::vector<double>(rows * 16, 0.5));
  const std::vector<int64_t> tokens = Tokens(equal, {1, 77, 5});
  std::vector<double> seen(16);
  for (int64_t r = 0; r < rows; ++r) {
    EXPECT_EQ(tokens[r], static_cast<int64_t>(Uniform(77, 5 + r) * 16));
    seen[tokens[r]] += 1;
  }
  double chi_squared = 0;
  const double expected = static_cast<double>(rows) / 16;
  for (const double n : seen) chi_squared += (n - expected) * (n - expected) / expected;
  EXPECT_LT(chi_squared, 37.7);  // 15 degrees of freedom, 1 of 1000.
  // Row r of offset 5 is row 0 of offset 5 + r, and the counter wraps.
  EXPECT_EQ(Tokens(equal, {1, 77, 8})[0], tokens[3]);
  EXPECT_EQ(Tokens(equal, {1, 77, -1})[1], Tokens(equal, {1, 77, 0})[0]);
}

TEST_F(DecodingTest, TemperatureZeroIsTheFirstLargest) {
  for (const Limits& limits : {Limits{}, Limits{2, 0}, Limits{0, 0.5f}}) {
    for (const int64_t columns : {2, 300, 131072}) {
      std::vector<double> values(2 * columns, -1);
      values[columns - 1] = 3;
      values[columns + columns / 2] = values[2 * columns - 1] = 7;
      const TestTensor x = TestTensor::Input(DType::kF32, {2, columns}, values);
      EXPECT_EQ(Tokens(x, {0, AnySeed(), 0, limits}),
                (std::vector<int64_t>{columns - 1, columns / 2}));
    }
  }
  // As argmax: NaN is the largest; infinity is allowed.
  const TestTensor x =
      TestTensor::Input(DType::kF32, {3, 3}, {1, kNan, kInf, -kInf, -kInf, -kInf, 0, kInf, kInf});
  EXPECT_EQ(Tokens(x, {0, 1, 0}), (std::vector<int64_t>{1, 0, 1}));
  EXPECT_EQ(Tokens(x, {-0.0f, 1, 0}), (std::vector<int64_t>{1, 0, 1}));
}

TEST_F(DecodingTest, VeryLowAndHighTemperatures) {
  const TestTensor x = TestTensor::Input(DType::kF32, {1, 5}, {1, 3, -kInf, 2.9, 3});
  std::set<int64_t> cold;
  std::set<int64_t> hot;
  for (int64_t seed = 0; seed < 64; ++seed) {
    cold.insert(Tokens(x, {1e-30f, seed, 0})[0]);
    hot.insert(Tokens(x, {std::numeric_limits<float>::infinity(), seed, 0})[0]);
  }
  EXPECT_EQ(cold, (std::set<int64_t>{1, 4}));
  EXPECT_EQ(hot, (std::set<int64_t>{0, 1, 3, 4}));
}

// All tokens of many draws.
std::set<int64_t> Drawn(const TestTensor& row, const Limits& limits, float temperature = 1) {
  const int64_t columns = row.shape()[1];
  const int64_t rows = Emulated() ? 40 : 400;
  const std::vector<int64_t> tokens =
      Tokens(row.View({rows, columns}, {0, 1}).WithLayout({0, 1}, 1), {temperature, 3, 0, limits});
  return {tokens.begin(), tokens.end()};
}

TEST_F(DecodingTest, TopKTakesTheLowerIndexOfEqualLogits) {
  const TestTensor x = TestTensor::Input(DType::kF32, {1, 7}, {1, 2, 2.5, 2, 2, 2.5, -1});
  EXPECT_EQ(Drawn(x, {1, 0}), (std::set<int64_t>{2}));
  EXPECT_EQ(Drawn(x, {2, 0}), (std::set<int64_t>{2, 5}));
  EXPECT_EQ(Drawn(x, {3, 0}), (std::set<int64_t>{1, 2, 5}));
  EXPECT_EQ(Drawn(x, {4, 0}), (std::set<int64_t>{1, 2, 3, 5}));
  const TestTensor equal = TestTensor::Input(DType::kF32, {1, 3000}, std::vector<double>(3000, 4));
  EXPECT_EQ(Drawn(equal, {2, 0}), (std::set<int64_t>{0, 1}));
}

TEST_F(DecodingTest, TopPIsTheSmallestPrefixThatReachesP) {
  // Equal probabilities of 1/4, exactly.
  const TestTensor equal = TestTensor::Input(DType::kF32, {1, 4}, {3, 3, 3, 3});
  EXPECT_EQ(Drawn(equal, {0, 0.25f}), (std::set<int64_t>{0}));
  EXPECT_EQ(Drawn(equal, {0, 0.2501f}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(Drawn(equal, {0, 0.5f}), (std::set<int64_t>{0, 1}));
  EXPECT_EQ(Drawn(equal, {0, 0.75f}), (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(Drawn(equal, {0, 0.7501f}), (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Drawn(equal, {0, 1}), (std::set<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(Drawn(equal, {0, 1e-38f}), (std::set<int64_t>{0}));
  // 0.1, 0.5, 0.2, 0.2: the crossing token is included.
  const TestTensor x =
      TestTensor::Input(DType::kF32, {1, 4}, {std::log(1), std::log(5), std::log(2), std::log(2)});
  EXPECT_EQ(Drawn(x, {0, 0.49f}), (std::set<int64_t>{1}));
  EXPECT_EQ(Drawn(x, {0, 0.51f}), (std::set<int64_t>{1, 2}));
  EXPECT_EQ(Drawn(x, {0, 0.69f}), (std::set<int64_t>{1, 2}));
  EXPECT_EQ(Drawn(x, {0, 0.71f}), (std::set<int64_t>{1, 2, 3}));
  EXPECT_EQ(Drawn(x, {0, 0.91f}), (std::set<int64_t>{0, 1, 2, 3}));
}

TEST_F(DecodingTest, TopPOf128KiColumns) {
  const int64_t n = 128 << 10;
  // 2^17 equal columns: exactly half of them, the first ones, reach 1/2.
  const TestTensor equal = TestTensor::Input(DType::kF32, {1, n}, std::vector<double>(n, -2));
  int64_t largest = 0;
  for (int64_t seed = 0; seed < (Emulated() ? 8 : 64); ++seed) {
    largest = std::max(largest, Tokens(equal, {1, seed, 0, {0, 0.5f}})[0]);
  }
  EXPECT_LT(largest, n / 2);
  EXPECT_GT(largest, n / 4);
  // One token of probability 0.6 at any position, and the others below 1e-5 each.
  for (const int64_t at : {int64_t{0}, n / 2, n - 1}) {
    std::vector<double> values(n, 0);
    values[at] = std::log(1.5 * static_cast<double>(n - 1));
    const TestTensor x = TestTensor::Input(DType::kF32, {1, n}, values);
    for (int64_t seed = 0; seed < 4; ++seed) {
      EXPECT_EQ(Tokens(x, {1, seed, 0, {0, 0.55f}}), std::vector<int64_t>{at});
      Check(x, {1, seed, 0, {0, 0.8f}});
    }
  }
}

TEST_F(DecodingTest, WhatCannotBeDrawnIsRefused) {
  const TestTensor x = TestTensor::Input(DType::kF32, {1, 3}, {1, 2, 3});
  const auto refused = [](const TestTensor& logits, const Draws& draws, uint16_t detail) {
    const TestTensor token = TestTensor::Output(DType::kI64, {logits.shape()[0]});
    const Outcome outcome = Draw(logits, token, draws);
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, detail);
  };
  for (const Limits& limits : {Limits{}, Limits{1, 0}, Limits{0, 0.5f}}) {
    refused(x, {-1, 0, 0, limits}, 1);
    refused(x, {static_cast<float>(kNan), 0, 0, limits}, 1);
    for (const double value : {kNan, kInf}) {
      refused(TestTensor::Input(DType::kF32, {1, 3}, {1, value, 3}), {1, 0, 0, limits}, 3);
    }
    refused(TestTensor::Input(DType::kF32, {1, 3}, {-kInf, -kInf, -kInf}), {1, 0, 0, limits}, 3);
  }
  for (const float temperature : {0.0f, 1.0f}) {
    refused(x, {temperature, 0, 0, {-1, 0}}, 2);
    refused(x, {temperature, 0, 0, {4, 0}}, 2);
    refused(x, {temperature, 0, 0, {0, -0.5f}}, 2);
    refused(x, {temperature, 0, 0, {0, 1.001f}}, 2);
    refused(x, {temperature, 0, 0, {0, static_cast<float>(kNan)}}, 2);
    refused(TestTensor::Input(DType::kF32, {2, 0}, {}), {temperature, 0, 0}, 3);
  }
  const TestTensor token = TestTensor::Output(DType::kI64, {1});
  EXPECT_EQ(RunOperator("sample_topk", {x, token, F32(1), I64(0), I64(0), I64(0)}).detail, 2);
  EXPECT_EQ(RunOperator("sample_topp", {x, token, F32(1), I64(0), I64(0), F32(0)}).detail, 2);
}

TEST_F(DecodingTest, NoRows) {
  EXPECT_TRUE(Tokens(TestTensor::Input(DType::kF32, {0, 7}, {}), {1, 0, 0}).empty());
  EXPECT_TRUE(Tokens(TestTensor::Input(DType::kF32, {0, 7}, {}), {1, 0, 0, {0, 0.5f}}).empty());
}

}  // namespace
}  // namespace resident::testing
