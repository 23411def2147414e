#include "runtime/model/quantize.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sdk/half.h"

namespace resident {
namespace {

struct Row {
  std::vector<uint8_t> q;
  std::vector<uint16_t> scales;
};

Row Quantize(const std::vector<float>& weights, const Quantization& form) {
  Row row = {std::vector<uint8_t>(form.RowBytes(weights.size()), 0xaa),
             std::vector<uint16_t>(form.Groups(weights.size()))};
  EXPECT_TRUE(QuantizeRow(weights, form, row.q, row.scales));
  return row;
}

bool CanQuantize(const std::vector<float>& weights, const Quantization& form) {
  std::vector<uint8_t> q(form.RowBytes(weights.size()));
  std::vector<uint16_t> scales(form.Groups(weights.size()));
  return QuantizeRow(weights, form, q, scales);
}

int Value(const Row& row, const Quantization& form, size_t k) {
  if (form.bits == 8) return static_cast<int8_t>(row.q[k]);
  return (row.q[k / 2] >> (k % 2 * 4) & 15) - 8;
}

TEST(QuantizeTest, ErrorsAreAtMostHalfOfAScale) {
  std::mt19937 random(7);
  for (const uint32_t bits : {8u, 4u}) {
    for (const uint64_t group : {uint64_t{1}, uint64_t{3}, uint64_t{32}, uint64_t{1000}}) {
      const Quantization form = {bits, group};
      for (const float spread : {1e-6f, 1e-3f, 1.0f, 3e4f}) {
        std::normal_distribution<float> normal(0, spread);
        std::vector<float> weights(65);
        for (float& weight : weights) weight = normal(random);
        const Row row = Quantize(weights, form);
        for (size_t k = 0; k < weights.size(); ++k) {
          const uint16_t scale_bits = row.scales[k / std::min<uint64_t>(group, weights.size())];
          const double scale = Half::Widen(scale_bits);
          const int q = Value(row, form, k);
          EXPECT_LE(std::abs(q), form.largest());
          EXPECT_LE(std::fabs(q * scale - double{weights[k]}), scale * (0.5 + 1e-4))
              << bits << " bits, groups of " << group << ", weight " << weights[k];
        }
        // A smaller scale would have a weight out of range.
        float magnitude = 0;
        for (size_t k = 0; k < std::min<uint64_t>(group, weights.size()); ++k) {
          magnitude = std::max(magnitude, std::fabs(weights[k]));
        }
        const auto smaller = static_cast<uint16_t>(row.scales[0] - 1);
        EXPECT_GE(double{Half::Widen(row.scales[0])} * form.largest(), magnitude);
        EXPECT_LT(double{Half::Widen(smaller)} * form.largest(), magnitude);
      }
    }
  }
}

TEST(QuantizeTest, BytesOfTheOperators) {
  const Row bytes = Quantize({127, -127, 1, 0}, {8, 4});
  EXPECT_EQ(bytes.q, (std::vector<uint8_t>{127, 0x81, 1, 0}));
  EXPECT_EQ(bytes.scales, std::vector<uint16_t>{0x3c00});
  // The low half is the even column, and the half behind the last column is 0.
  const Row halves = Quantize({7, -7, 1, 3.5f, 0}, {4, 2});
  EXPECT_EQ(halves.q, (std::vector<uint8_t>{0x1f, 0xfa, 0x08}));
  EXPECT_EQ(halves.scales, (std::vector<uint16_t>{0x3c00, 0x3800, 0}));
}

TEST(QuantizeTest, RefusesWhatNoScaleCanRepresent) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const uint32_t bits : {8u, 4u}) {
    const Quantization form = {bits, 2};
    const auto limit = static_cast<float>(QuantizableLimit(form));
    EXPECT_TRUE(CanQuantize({1, 2, -limit}, form));
    EXPECT_FALSE(CanQuantize({1, 2, limit * 1.001f}, form));
    EXPECT_FALSE(CanQuantize({1, kInfinity, 2}, form));
    EXPECT_FALSE(CanQuantize({1, std::numeric_limits<float>::quiet_NaN(), 2}, form));
  }
}

}  // namespace
}  // namespace resident
