// Attention in blocks of 8 emulated warps (tests/conformance has blocks of one warp). Many rows of
// 16-bit elements (attention_prefill.h): some warps compute scores, others add values, a tile of
// keys later. Queries in float32 (attention_stream.h): each warp has a part of the keys. One
// position (attention_one_position.h): so has each group of lanes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ops/attention_prefill.h"
#include "kernels/ops/emulated_task.h"
#include "kernels/sdk/operator.h"

extern "C" {
void resident_operator_attention(resident::BlockState* state);
void resident_operator_attention_partial(resident::BlockState* state);
void resident_operator_attention_combine(resident::BlockState* state);
}

namespace resident {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Sizes {
  i64 heads;
  i64 kv_heads;
  i64 queries;
  i64 keys;
  i64 depth;
  i64 columns;
  bool causal = true;
  i64 used_keys = -1;  // The argument kv_len.
};

// A dense tensor [1, N, S, D].
template <typename T>
struct Matrices {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr bool kIsHalf = std::is_same_v<T, Half>;
  struct alignas(16) Chunk {
    T elements[8];
  };
  i64 shape[4];
  std::vector<Chunk> chunks;

  Matrices(i64 heads, i64 rows, i64 width)
      : shape{1, heads, rows, width}, chunks(static_cast<size_t>((heads * rows * width + 7) / 8)) {}
  T* data() { return chunks[0].elements; }
  T& At(i64 head, i64 row, i64 column) {
    return data()[(head * shape[2] + row) * shape[3] + column];
  }
  void Fill(std::mt19937_64& random) {
    std::normal_distribution<float> normal;
    for (i64 i = 0; i < shape[1] * shape[2] * shape[3]; ++i) data()[i] = T(normal(random));
  }
  Argument ToArgument() {
    const DType dtype = kIsFloat ? DType::kF32 : (kIsHalf ? DType::kF16 : DType::kBF16);
    return DenseArgument(data(), dtype, {shape[0], shape[1], shape[2], shape[3]});
  }
};

class AttentionWarpsTest : public ::testing::Test {
 protected:
  // Runs the chunks of the task, and compares its result with a reference in float64. T: of keys
  // and values; Q: of queries and results.
  template <typename T, typename Q = T>
  void Check(const Sizes& sizes, i64 chunks = 1, float last_value = 0.0f) {
    SCOPED_TRACE(std::to_string(sizes.heads) + " / " + std::to_string(sizes.kv_heads) + " heads, " +
                 std::to_string(sizes.queries) + " queries, " + std::to_string(sizes.keys) +
                 " keys, " + std::to_string(sizes.depth) + " x " + std::to_string(sizes.columns) +
                 (sizes.causal ? ", causal" : ""));
    Matrices<Q> q(sizes.heads, sizes.queries, sizes.depth);
    Matrices<T> k(sizes.kv_heads, sizes.keys, sizes.depth);
    Matrices<T> v(sizes.kv_heads, sizes.keys, sizes.columns);
    Matrices<Q> out(sizes.heads, sizes.queries, sizes.columns);
    q.Fill(random_);
    k.Fill(random_);
    v.Fill(random_);
    const i64 used = sizes.used_keys < 0 ? sizes.keys : sizes.used_keys;
    if (last_value != 0.0f) {
      for (i64 head = 0; head < sizes.kv_heads; ++head) {
        v.At(head, sizes.keys - 1, 0) = T(last_value);
      }
    }
    for (i64 i = 0; i < sizes.heads * sizes.queries * sizes.columns; ++i) out.data()[i] = Q(-77.0f);
    const float scale = 1.0f / std::sqrt(static_cast<float>(sizes.depth));
    Run(q.ToArgument(), k.ToArgument(), v.ToArgument(), out.ToArgument(), scale, sizes, chunks,
        /*prefill=*/!Matrices<Q>::kIsFloat, /*replaced=*/last_value != 0.0f);

    double error = 0;
    double norm = 0;
    for (i64 head = 0; head < sizes.heads; ++head) {
      const i64 kv_head = head / (sizes.heads / sizes.kv_heads);
      for (i64 s = 0; s < sizes.queries; ++s) {
        const i64 visible = sizes.causal ? std::min(used - sizes.queries + s + 1, used) : used;
        std::vector<double> weights;
        double sum = 0;
        for (i64 key = 0; key < visible; ++key) {
          double product = 0;
          for (i64 d = 0; d < sizes.depth; ++d) {
            product += static_cast<double>(static_cast<float>(q.At(head, s, d))) *
                       static_cast<double>(static_cast<float>(k.At(kv_head, key, d)));
          }
          weights.push_back(std::exp(product * static_cast<double>(scale)));
          sum += weights.back();
        }
        for (i64 column = 0; column < sizes.columns; ++column) {
          double want = 0;
          for (i64 key = 0; key < visible; ++key) {
            want += weights[static_cast<size_t>(key)] *
                    static_cast<double>(static_cast<float>(v.At(kv_head, key, column)));
          }
          if (visible > 0) want /= sum;
          const double got = static_cast<float>(out.At(head, s, column));
          if (!std::isfinite(want)) {
            EXPECT_FALSE(std::isfinite(got)) << "head " << head << ", query " << s;
            continue;
          }
          ASSERT_TRUE(std::isfinite(got)) << "head " << head << ", query " << s << ", " << column;
          error += (got - want) * (got - want);
          norm += want * want;
        }
      }
    }
    const double limit = Matrices<Q>::kIsFloat ? 1e-5 : (Matrices<Q>::kIsHalf ? 2e-3 : 1e-2);
    EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm));
  }

  // Whether attention_one_position.h computes it.
  static bool IsOnePosition(const Sizes& sizes) {
    return sizes.queries == 1 && sizes.depth == sizes.columns &&
           (sizes.depth == 64 || sizes.depth == 128) && sizes.heads / sizes.kv_heads <= 16 &&
           sizes.keys <= 2048;
  }

  // `replaced`: one position has a result that is not finite, and is computed again.
  static void Run(const Argument& q, const Argument& k, const Argument& v, const Argument& out,
                  float scale, const Sizes& sizes, i64 chunks, bool prefill = true,
                  bool replaced = false) {
    const Argument no_mask = DenseArgument(nullptr, DType::kF32, {0});
    const u64 before = emulated::PrefillTiles::count;
    const u64 products = emulated::Products::count;
    EXPECT_EQ(RunEmulated(resident_operator_attention,
                          {q, k, v, no_mask, out, ScalarArgument(bit_cast<u32>(scale)),
                           ScalarArgument(sizes.causal ? 1 : 0),
                           ScalarArgument(static_cast<u64>(sizes.used_keys))},
                          static_cast<u64>(chunks)),
              0u);
    const i64 shared = sizes.heads / sizes.kv_heads;
    if (IsOnePosition(sizes)) {
      EXPECT_EQ(emulated::Products::count != products, replaced) << "by tensor cores";
      return;
    }
    EXPECT_GT(emulated::Products::count, products);
    EXPECT_EQ(
        emulated::PrefillTiles::count - before,
        prefill ? static_cast<u64>(sizes.kv_heads * ((shared * sizes.queries + 63) / 64)) : 0);
  }

  const u64 seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

TEST_F(AttentionWarpsTest, NumbersOfKeysAroundTheTiles) {
  for (const i64 keys : {1, 31, 32, 33, 63, 64, 65, 96, 130}) {
    Check<BFloat16>({1, 1, 20, keys, 32, 32, false});
    if (HasFailure()) return;
  }
}

TEST_F(AttentionWarpsTest, CausalRowsAroundTheTiles) {
  for (const i64 queries : {17, 63, 64, 65, 100}) {
    Check<BFloat16>({1, 1, queries, queries, 64, 64});
    Check<Half>({1, 1, queries, queries + 37, 64, 64});
    if (HasFailure()) return;
  }
}

TEST_F(AttentionWarpsTest, HeadDimensions) {
  for (const i64 size : {16, 48, 80, 112, 128}) {
    Check<BFloat16>({1, 1, 33, 70, size, 128});
    Check<Half>({1, 1, 33, 70, 128, size});
    if (HasFailure()) return;
  }
}

// The rows of a tile are those of several heads. The chunks divide the tiles.
TEST_F(AttentionWarpsTest, SharedHeadsAndChunks) {
  for (const i64 kv_heads : {1, 2, 4}) Check<BFloat16>({4, kv_heads, 45, 60, 32, 48}, 3);
  Check<Half>({6, 2, 23, 40, 32, 16}, 5);
}

// Rows that see no key are 0; keys behind kv_len are hidden.
TEST_F(AttentionWarpsTest, HiddenKeys) {
  Check<BFloat16>({1, 1, 80, 50, 32, 32});
  Check<Half>({2, 1, 30, 90, 32, 32, true, 41});
}

// A value that is infinite or NaN is in the results of the rows that see it, and in no other.
TEST_F(AttentionWarpsTest, ValuesThatAreNotFinite) {
  for (const float value : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    Check<BFloat16>({1, 1, 40, 40, 32, 32}, 1, value);
    Check<Half>({1, 1, 40, 64, 32, 32, true, 60}, 1, value);
  }
}

// Rows of one tile and of several ones, of one set of 8 rows and of two.
TEST_F(AttentionWarpsTest, QueriesInFloat32) {
  for (const i64 keys : {1, 17, 128, 129, 300}) {
    Check<BFloat16, float>({4, 1, 1, keys, 64, 64, false});
    if (HasFailure()) return;
  }
  Check<BFloat16, float>({32, 8, 1, 200, 64, 64, false, 160}, 8);
  Check<BFloat16, float>({4, 2, 1, 150, 128, 128, false}, 3);
  Check<BFloat16, float>({6, 2, 3, 40, 24, 72}, 2);
  Check<BFloat16, float>({4, 1, 9, 50, 80, 40});
}

// Rows with a result that is not finite are computed again in another way.
TEST_F(AttentionWarpsTest, QueriesInFloat32AndValuesThatAreNotFinite) {
  Check<BFloat16, float>({4, 1, 3, 40, 32, 32}, 1, kInfinity);
  Check<BFloat16, float>({4, 1, 1, 64, 32, 32, true, 60}, 1, kInfinity);
}

// Heads that share keys in fours, with less, and with several times four; keys for each group of
// lanes or for some of them, once and several times; several items in a chunk.
TEST_F(AttentionWarpsTest, OnePosition) {
  for (const i64 keys : {1, 3, 16, 31, 33, 70, 150}) {
    Check<BFloat16, float>({4, 2, 1, keys, 64, 64, false});
    Check<Half>({6, 2, 1, keys, 128, 128}, 2);
    if (HasFailure()) return;
  }
  for (const i64 shared : {1, 3, 5, 8, 16, 17}) {
    Check<BFloat16>({2 * shared, 2, 1, 40, 64, 64, false, 37}, 3);
    Check<BFloat16, float>({shared, 1, 1, 20, 128, 128});
    if (HasFailure()) return;
  }
  Check<Half, float>({8, 2, 1, 50, 64, 64, false, 0});
  // As many keys as an item may have, and more.
  Check<BFloat16, float>({4, 1, 1, 2048, 64, 64, false});
  Check<BFloat16, float>({4, 1, 1, 2049, 64, 64, false});
}

// The parts of the keys, merged by attention_combine, are the attention of all keys.
TEST_F(AttentionWarpsTest, PartsOfOnePosition) {
  for (const i64 parts : {1, 3, 16, 40}) {
    const Sizes sizes = {8, 2, 1, 37, 64, 64, false};
    Matrices<float> q(8, 1, 64);
    Matrices<BFloat16> k(2, 37, 64);
    Matrices<BFloat16> v(2, 37, 64);
    Matrices<float> want(8, 1, 64);
    Matrices<float> got(8, 1, 64);
    q.Fill(random_);
    k.Fill(random_);
    v.Fill(random_);
    Run(q.ToArgument(), k.ToArgument(), v.ToArgument(), want.ToArgument(), 0.125f, sizes, 1);
    std::vector<float> acc(static_cast<size_t>(8 * parts * 64), NAN);
    std::vector<float> largest(static_cast<size_t>(8 * parts), NAN);
    std::vector<float> sums(static_cast<size_t>(8 * parts), NAN);
    const Argument acc_argument = DenseArgument(acc.data(), DType::kF32, {1, 8, 1, parts, 64});
    const Argument largest_argument = DenseArgument(largest.data(), DType::kF32, {1, 8, 1, parts});
    const Argument sums_argument = DenseArgument(sums.data(), DType::kF32, {1, 8, 1, parts});
    const u64 products = emulated::Products::count;
    EXPECT_EQ(RunEmulated(resident_operator_attention_partial,
                          {q.ToArgument(), k.ToArgument(), v.ToArgument(),
                           DenseArgument(nullptr, DType::kF32, {0}), acc_argument, largest_argument,
                           sums_argument, ScalarArgument(bit_cast<u32>(0.125f)), ScalarArgument(0),
                           ScalarArgument(static_cast<u64>(-1))},
                          /*chunks=*/5),
              0u);
    EXPECT_EQ(emulated::Products::count, products);
    EXPECT_EQ(RunEmulated(resident_operator_attention_combine,
                          {acc_argument, largest_argument, sums_argument, got.ToArgument()}, 3),
              0u);
    for (i64 head = 0; head < 8; ++head) {
      for (i64 column = 0; column < 64; ++column) {
        EXPECT_NEAR(got.At(head, 0, column), want.At(head, 0, column), 1e-5)
            << parts << " parts, head " << head;
      }
    }
    // Parts without keys.
    if (parts > 37) {
      EXPECT_EQ(largest.back(), -kInfinity);
      EXPECT_EQ(sums.back(), 0.0f);
      EXPECT_EQ(acc.back(), 0.0f);
    }
  }
}

// An infinite value is in the result; one of a hidden key is not.
TEST_F(AttentionWarpsTest, OnePositionAndValuesThatAreNotFinite) {
  Check<BFloat16, float>({4, 1, 1, 40, 64, 64}, 1, kInfinity);
  Check<Half, float>({4, 1, 1, 40, 64, 64, true, 39});
}

// An item that is computed again does not change the bits of the others of its chunk.
TEST_F(AttentionWarpsTest, BitsOfOnePositionDoNotDependOnTheChunks) {
  const Sizes sizes = {8, 2, 1, 40, 64, 64, false};
  Matrices<float> q(8, 1, 64);
  Matrices<BFloat16> k(2, 40, 64);
  Matrices<BFloat16> v(2, 40, 64);
  q.Fill(random_);
  k.Fill(random_);
  v.Fill(random_);
  for (const i64 infinite_head : {-1, 0, 1}) {
    if (infinite_head >= 0) v.At(infinite_head, 7, 3) = BFloat16(kInfinity);
    Matrices<float> first(8, 1, 64);
    for (const i64 chunks : {1, 2, 3}) {
      Matrices<float> out(8, 1, 64);
      Run(q.ToArgument(), k.ToArgument(), v.ToArgument(), out.ToArgument(), 0.125f, sizes, chunks,
          /*prefill=*/false, /*replaced=*/infinite_head >= 0);
      if (chunks == 1) std::memcpy(first.data(), out.data(), 8 * 64 * sizeof(float));
      EXPECT_EQ(std::memcmp(first.data(), out.data(), 8 * 64 * sizeof(float)), 0)
          << chunks << " chunks, infinite head " << infinite_head;
    }
    if (infinite_head >= 0) v.At(infinite_head, 7, 3) = BFloat16(0.5f);
  }
}

// Scores near the lowest number, whose exponentials would all be 0 relative to 0.
TEST_F(AttentionWarpsTest, LowestScores) {
  Matrices<Half> q(1, 40, 64);
  Matrices<Half> k(1, 70, 64);
  Matrices<Half> v(1, 70, 64);
  Matrices<Half> out(1, 40, 64);
  v.Fill(random_);
  for (i64 row = 0; row < 40; ++row) q.At(0, row, 0) = Half(0.5f);
  for (i64 row = 0; row < 70; ++row) k.At(0, row, 0) = Half(-0.5f);
  Run(q.ToArgument(), k.ToArgument(), v.ToArgument(), out.ToArgument(), 3e38f,
      {1, 1, 40, 70, 64, 64, false}, 1);
  // All weights are equal.
  for (i64 column = 0; column < 64; ++column) {
    double mean = 0;
    for (i64 key = 0; key < 70; ++key) mean += static_cast<float>(v.At(0, key, column)) / 70.0;
    EXPECT_NEAR(static_cast<float>(out.At(0, 39, column)), mean, 1e-3);
  }
}

}  // namespace
}  // namespace resident
