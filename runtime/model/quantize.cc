#include "runtime/model/quantize.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/sdk/half.h"

namespace resident {
namespace {

// A float of this size has no fraction: adding it rounds to nearest, ties to even.
constexpr float kRounding = 0x1.8p23f;
constexpr float kMaxHalf = 65504.0f;
constexpr uint16_t kInfiniteHalf = 0x7c00;

// The bits of the smallest half that is not below `value`, which is not negative. Positive halves
// have the order of their bits.
uint16_t RoundUp(float value) {
  const uint16_t nearest = Half::Narrow(value);
  return Half::Widen(nearest) < value ? static_cast<uint16_t>(nearest + 1) : nearest;
}

}  // namespace

double QuantizableLimit(const Quantization& form) { return double{kMaxHalf} * form.largest(); }

bool QuantizeRow(std::span<const float> row, const Quantization& form, std::span<uint8_t> to,
                 std::span<uint16_t> scales) {
  assert(to.size() == form.RowBytes(row.size()) && scales.size() == form.Groups(row.size()));
  const float largest = form.largest();
  const size_t columns = row.size();
  const auto group_size = static_cast<size_t>(std::min<uint64_t>(form.group, columns));
  // Without an even number of columns, half of the last byte is unused.
  if (form.bits == 4) std::fill(to.begin(), to.end(), uint8_t{0});
  size_t group = 0;
  for (size_t begin = 0; begin < columns; begin += group_size, ++group) {
    const size_t end = std::min(begin + group_size, columns);
    float magnitude = 0;
    float check = 0;  // Becomes NaN at a weight that is not finite.
    for (size_t k = begin; k < end; ++k) {
      magnitude = std::max(magnitude, std::fabs(row[k]));
      check += row[k] * 0.0f;
    }
    // The division may have rounded down by half of a unit of a float.
    uint16_t bits = RoundUp(magnitude / largest);
    if (bits < kInfiniteHalf && Half::Widen(bits) * largest < magnitude) ++bits;
    if (check != 0 || bits >= kInfiniteHalf) return false;
    scales[group] = bits;
    const float inverse = bits == 0 ? 0.0f : 1.0f / Half::Widen(bits);
    const auto quantized = [&](size_t k) {
      const float q = std::clamp(row[k] * inverse, -largest, largest);
      return bit_cast<int32_t>(q + kRounding) - bit_cast<int32_t>(kRounding);
    };
    if (form.bits == 8) {
      for (size_t k = begin; k < end; ++k) to[k] = static_cast<uint8_t>(quantized(k));
    } else {
      for (size_t k = begin; k < end; ++k) {
        const auto nibble = static_cast<uint32_t>(quantized(k) + 8);
        to[k / 2] = static_cast<uint8_t>(to[k / 2] | nibble << (k % 2 * 4));
      }
    }
  }
  return true;
}

}  // namespace resident
