// Quantization of matrices, to the form of the operators gemv_quant and dequant without zeros.
//
// Each weight becomes a whole number q, and `group` adjacent columns of a row have one scale, an
// f16: the weight is about q * scale. With 8 bits q is from -127 to 127 and stored as an i8; with 4
// bits it is from -7 to 7, and q + 8 is half of a byte, that of an even column the low one. A scale
// is the smallest f16 with which no weight of its group is out of range. So the error of a weight
// is at most about half of its scale.
//
// Thread safety: pure functions.
//
//   const Quantization form = {.bits = 4};
//   std::vector<uint8_t> q(form.RowBytes(row.size()));
//   std::vector<uint16_t> scales(form.Groups(row.size()));
//   if (!QuantizeRow(row, form, q, scales)) ...
#ifndef RESIDENT_RUNTIME_MODEL_QUANTIZE_H_
#define RESIDENT_RUNTIME_MODEL_QUANTIZE_H_

#include <cstdint>
#include <span>

namespace resident {

struct Quantization {
  uint32_t bits = 8;     // Of a weight: 8 or 4.
  uint64_t group = 128;  // Columns with one scale, at least 1. The last group may have fewer.

  uint64_t RowBytes(uint64_t columns) const { return bits == 8 ? columns : (columns + 1) / 2; }
  uint64_t Groups(uint64_t columns) const { return columns / group + (columns % group != 0); }
  // The largest q.
  float largest() const { return bits == 8 ? 127.0f : 7.0f; }
};

// Writes the row's bytes, and the bits of its scales. False: a weight is not finite, or too large
// for a scale (QuantizableLimit). REQUIRES: `to` has RowBytes elements, and `scales` Groups.
bool QuantizeRow(std::span<const float> row, const Quantization& form, std::span<uint8_t> to,
                 std::span<uint16_t> scales);

// The largest absolute value of a weight that can be quantized.
double QuantizableLimit(const Quantization& form);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_QUANTIZE_H_
