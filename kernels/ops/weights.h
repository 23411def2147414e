// This header reads the weights of gemv, gemv_quant and dequant: those in floating point
// (DenseWeights), and those of 4 or 8 bits with scales and zeros (QuantizedWeights). Both classes
// have the same members, for products that read one weight, four, several, or runs of 16 bytes.
#ifndef RESIDENT_KERNELS_OPS_WEIGHTS_H_
#define RESIDENT_KERNELS_OPS_WEIGHTS_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/operator.h"

namespace resident {

// The weights of one row that a lane reads at once.
using WeightRun = Bytes16;

// Rounded up, without overflow.
RESIDENT_DEVICE i64 QuotientUp(i64 x, i64 y) {
  const i64 quotient = x / y;
  return quotient + (quotient * y != x);
}

// --- Weights in floating point ------------------------------------------------------------------

template <typename T>
struct DenseWeights {
  const T* data;
  i64 depth;

  // Weights of a run.
  static constexpr i32 kRun = sizeof(WeightRun) / sizeof(T);

  RESIDENT_DEVICE bool InRuns() const {
    return depth % kRun == 0 && reinterpret_cast<u64>(data) % sizeof(WeightRun) == 0;
  }
  RESIDENT_DEVICE const WeightRun* RunAt(i64 row, i64 column) const {
    return ElementAt<const WeightRun>(reinterpret_cast<u64>(data + (row * depth + column)), 0);
  }
  // Whether the weights have a scale.
  static constexpr bool kScaled = false;
  // What the weights of a run have in common.
  struct Common {};
  // The groups of the calling lane's runs, in turn, in adjacent rows from `row` on. `column`: of
  // the first run.
  struct Groups {
    RESIDENT_DEVICE Groups(const DenseWeights&, i64 row, i64 column) {}
    // Of the run in row `row` + r.
    RESIDENT_DEVICE Common Of(i32) const { return {}; }
    // Goes on to the lane's next run, kWarpThreads runs after this one.
    RESIDENT_DEVICE void Advance() {}
  };
  // The factor of the products of Value.
  static RESIDENT_DEVICE float Scale(const Common&) { return 1.0f; }
  // Weight i of a run.
  RESIDENT_DEVICE float Value(const WeightRun& run, i32 i, const Common&) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return bit_cast<float>(run.words[i]);
    } else {
      return T::Widen(static_cast<u16>(run.words[i / 2] >> (i % 2 * 16)));
    }
  }

  // Whether Four() can be called.
  RESIDENT_DEVICE bool InFours() const {
    return depth % 4 == 0 && reinterpret_cast<u64>(data) % alignof(Quad<T>) == 0;
  }
  // The group of columns to which a column belongs.
  RESIDENT_DEVICE i64 GroupOf(i64) const { return 0; }
  // The weight in this row and column.
  RESIDENT_DEVICE float One(i64 row, i64 column, i64) const { return data[row * depth + column]; }
  // Four of them, from a column that is a multiple of 4.
  RESIDENT_DEVICE void Four(i64 row, i64 column, i64, float (&w)[4]) const {
    const Quad<T> quad = *reinterpret_cast<const Quad<T>*>(data + (row * depth + column));
    for (i32 i = 0; i < 4; ++i) w[i] = quad.v[i];
  }
  // `count` of them; `buffer` has space for these.
  RESIDENT_DEVICE const float* Several(i64 row, i64 column, i64 count, float* buffer) const {
    const T* const from = data + (row * depth + column);
    if constexpr (sizeof(T) == sizeof(float)) {
      return from;
    } else {
      for (i64 i = 0; i < count; ++i) buffer[i] = from[i];
      return buffer;
    }
  }
};

// The rows of two matrices in turn: row 2r is row r of the first one, row 2r + 1 of the second one.
// Only for products that read one weight, four or several.
template <typename T>
struct RowsInTurn {
  DenseWeights<T> first;
  DenseWeights<T> second;

  RESIDENT_DEVICE const DenseWeights<T>& Of(i64 row) const { return row % 2 == 0 ? first : second; }
  RESIDENT_DEVICE bool InFours() const { return first.InFours() && second.InFours(); }
  RESIDENT_DEVICE i64 GroupOf(i64) const { return 0; }
  RESIDENT_DEVICE float One(i64 row, i64 column, i64 group) const {
    return Of(row).One(row / 2, column, group);
  }
  RESIDENT_DEVICE void Four(i64 row, i64 column, i64 group, float (&w)[4]) const {
    Of(row).Four(row / 2, column, group, w);
  }
  RESIDENT_DEVICE const float* Several(i64 row, i64 column, i64 count, float* buffer) const {
    return Of(row).Several(row / 2, column, count, buffer);
  }
};

// --- Weights of few bits -------------------------------------------------------------------------

// Details of INVALID_ARGUMENT.
constexpr u16 kBadPackedColumns = 1;
constexpr u16 kBadGroup = 2;
constexpr u16 kBadGroupCount = 3;
constexpr u16 kBadZeros = 4;

// The bits of 2^23.
constexpr u32 kTwoToThe23rd = 0x4b000000u;

// Weights of 4 or 8 bits: (q - zero) * scale, where scale and zero are those of the row and of the
// column's group. kZeros: whether there are zeros.
template <i32 kBits, bool kZeros>
struct QuantizedWeights {
  const u8* data;
  const Half* scales;
  const Half* zeros;
  i64 depth;
  i64 pitch;  // Bytes of a row.
  i64 groups;
  i64 group;
  i32 group_shift;  // group is 2 to the power of this; -1: it is no such number.
  i32 sign;         // 128 for int8, whose values are stored in two's complement, else 0.
  float zero;       // Of all weights; 0 if there are zeros.
  // kTwoToThe23rd. As a constant it would be part of the GPU's instruction that selects a byte,
  // which then would need another one for the number of the byte.
  u32 power;

  // The rows from `row` on.
  RESIDENT_DEVICE QuantizedWeights From(i64 row) const {
    QuantizedWeights rest = *this;
    rest.data += row * pitch;
    rest.scales += row * groups;
    if constexpr (kZeros) rest.zeros += row * groups;
    return rest;
  }

  // Weights of a run.
  static constexpr i32 kRun = 8 * sizeof(WeightRun) / kBits;

  RESIDENT_DEVICE bool InRuns() const {
    return depth % kRun == 0 && group % kRun == 0 && depth >> 31 == 0 &&
           reinterpret_cast<u64>(data) % sizeof(WeightRun) == 0;
  }
  RESIDENT_DEVICE const WeightRun* RunAt(i64 row, i64 column) const {
    return ElementAt<const WeightRun>(
        reinterpret_cast<u64>(data + (row * pitch + column / (8 / kBits))), 0);
  }
  // As of DenseWeights.
  static constexpr bool kScaled = true;
  struct Common {
    float scale;
    float zero;
  };
  // 32 bits are enough for the runs and groups of a row (InRuns).
  struct Groups {
    u64 scales;  // Of the first row.
    u64 zeros;
    float zero;
    u32 pitch;  // Groups of a row.
    u32 group;
    u32 run;   // In the group.
    u32 runs;  // Of a group.
    u32 group_step;
    u32 run_step;

    RESIDENT_DEVICE Groups(const QuantizedWeights& weights, i64 row, i64 column)
        : scales(reinterpret_cast<u64>(weights.scales + row * weights.groups)),
          zeros(kZeros ? reinterpret_cast<u64>(weights.zeros + row * weights.groups) : 0),
          zero(weights.zero),
          pitch(static_cast<u32>(weights.groups)),
          runs(static_cast<u32>(weights.group) / kRun) {
      const u32 first = static_cast<u32>(column) / kRun;
      group = first / runs;
      run = first % runs;
      group_step = kWarpThreads / runs;
      run_step = kWarpThreads % runs;
    }
    RESIDENT_DEVICE Common Of(i32 r) const {
      const i64 at = group + static_cast<u32>(r) * pitch;
      const float scale = *ElementAt<const Half>(scales, at);
      if constexpr (kZeros) return {scale, *ElementAt<const Half>(zeros, at)};
      return {scale, zero};
    }
    RESIDENT_DEVICE void Advance() {
      group += group_step;
      run += run_step;
      if (run >= runs) {
        run -= runs;
        ++group;
      }
    }
  };
  static RESIDENT_DEVICE float Scale(const Common& common) { return common.scale; }
  RESIDENT_DEVICE float Value(const WeightRun& run, i32 i, const Common& common) const {
    constexpr i32 kOfWord = 32 / kBits;
    const float value = Weight(run.words[i / kOfWord], i % kOfWord);
    return kZeros ? value - common.zero : value;
  }

  // Weight i of a word, less the zero of all weights. Conversions from integers are slow on a GPU:
  // instead the weight becomes the last byte of the floating-point number 2^23, which is then
  // subtracted. That is exact.
  RESIDENT_DEVICE float Weight(u32 word, i32 i) const {
    if constexpr (kBits == 8) {
      word ^= static_cast<u32>(sign) * 0x01010101u;
    } else {
      word = (i % 2 == 0 ? word : word >> 4) & 0x0f0f0f0fu;
      i /= 2;
    }
    // Of signed weights and of those without zeros, half of the range is below 0.
    constexpr float kHalf = 1 << (kBits - 1);
    const float subtracted = !kZeros ? kHalf : kBits == 8 ? static_cast<float>(sign) : 0.0f;
#if defined(__CUDA_ARCH__)
    const u32 number = __byte_perm(word, power, 0x7650u + static_cast<u32>(i));
#else
    const u32 number = (word >> (8 * i) & 0xffu) | power;
#endif
    return bit_cast<float>(number) - (8388608.0f + subtracted);
  }

  RESIDENT_DEVICE bool InFours() const {
    return depth % 4 == 0 && group % 4 == 0 && reinterpret_cast<u64>(data) % (kBits / 2) == 0;
  }
  RESIDENT_DEVICE i32 Value(u32 byte_or_nibble) const {
    return static_cast<i32>(byte_or_nibble ^ static_cast<u32>(sign)) - sign;
  }
  RESIDENT_DEVICE float ZeroOf(i64 index) const {
    if constexpr (kZeros) return zeros[index];
    return zero;
  }
  RESIDENT_DEVICE i32 ValueAt(i64 row, i64 column) const {
    if constexpr (kBits == 8) return Value(data[row * pitch + column]);
    return Value(data[row * pitch + column / 2] >> (column % 2 * 4) & 15u);
  }
  RESIDENT_DEVICE i64 GroupOf(i64 column) const {
    return group_shift >= 0 ? column >> group_shift : Quotient(column, group);
  }
  RESIDENT_DEVICE float One(i64 row, i64 column, i64 column_group) const {
    const i64 index = row * groups + column_group;
    return (static_cast<float>(ValueAt(row, column)) - ZeroOf(index)) * scales[index];
  }
  RESIDENT_DEVICE void Four(i64 row, i64 column, i64 column_group, float (&w)[4]) const {
    const i64 index = row * groups + column_group;
    const float scale = scales[index];
    const float subtracted = ZeroOf(index);
    const u8* const from = data + (row * pitch + column / (8 / kBits));
    u32 word = 0;
    if constexpr (kBits == 8) {
      word = *reinterpret_cast<const u32*>(from);
    } else {
      word = *reinterpret_cast<const u16*>(from);
    }
    for (i32 i = 0; i < 4; ++i) {
      const u32 bits = word >> (kBits * i) & ((1u << kBits) - 1);
      w[i] = (static_cast<float>(Value(bits)) - subtracted) * scale;
    }
  }
  RESIDENT_DEVICE const float* Several(i64 row, i64 column, i64 count, float* buffer) const {
    const i64 end = column + count;
    const u8* const from = data + row * pitch;
    float* to = buffer;
    for (i64 at = column; at < end;) {
      const i64 g = at / group;
      const i64 stop = Smallest(end, (g + 1) * group);
      const float scale = scales[row * groups + g];
      const float subtracted = ZeroOf(row * groups + g);
      const auto weight = [&](u32 byte_or_nibble) {
        return (static_cast<float>(Value(byte_or_nibble)) - subtracted) * scale;
      };
      // A compiler can vectorize the loops over bytes.
      if constexpr (kBits == 8) {
        for (i64 i = 0; i < stop - at; ++i) to[i] = weight(from[at + i]);
        to += stop - at;
        at = stop;
      } else {
        if (at % 2 != 0) *to++ = weight(u32{from[at++ / 2]} >> 4);
        const u8* const bytes = from + at / 2;
        const i64 whole = (stop - at) / 2;
        for (i64 i = 0; i < whole; ++i) {
          to[2 * i] = weight(bytes[i] & 15u);
          to[2 * i + 1] = weight(u32{bytes[i]} >> 4);
        }
        to += 2 * whole;
        at += 2 * whole;
        if (at < stop) *to++ = weight(from[at++ / 2] & 15u);
      }
    }
    return buffer;
  }
};

// Checks the shapes of q, scales and zeros (arguments q, q + 1, q + 2) for rows of `depth` weights.
// Returns the bits of a weight, or 0 after a failure.
RESIDENT_DEVICE i32 CheckWeights(const Block& block, const Args& args, u32 q, i64 depth,
                                 i64 group) {
  const i64 pitch = args.tensor<const Any>(q).shape(1);
  const Tensor<const Any> scales = args.tensor<const Any>(q + 1);
  const Tensor<const Any> zeros = args.tensor<const Any>(q + 2);
  u16 detail = 0;
  if (pitch != depth && pitch != depth / 2 + depth % 2) {
    detail = kBadPackedColumns;
  } else if (group < 1) {
    detail = kBadGroup;
  } else if (scales.shape(1) != QuotientUp(depth, group)) {
    detail = kBadGroupCount;
  } else if (zeros.size() != 0 && (zeros.rank() != 2 || zeros.shape(0) != scales.shape(0) ||
                                   zeros.shape(1) != scales.shape(1))) {
    detail = kBadZeros;
  }
  if (detail != 0) {
    block.fail(CompletionStatus::kInvalidArgument, detail);
    return 0;
  }
  return pitch == depth ? 8 : 4;
}

template <i32 kBits, bool kZeros>
RESIDENT_DEVICE QuantizedWeights<kBits, kZeros> ReadWeights(const Args& args, u32 q, i64 depth,
                                                            i64 group) {
  const Tensor<const Any> data = args.tensor<const Any>(q);
  const Tensor<const Any> zeros = args.tensor<const Any>(q + 2);
  const bool is_signed = kBits == 8 && data.dtype() == DType::kI8;
  QuantizedWeights<kBits, kZeros> weights;
  weights.data = ElementAt<const u8>(AddressOf(data), 0);
  weights.scales = args.tensor<const Half>(q + 1).data();
  weights.zeros = kZeros ? zeros.as<const Half>().data() : nullptr;
  weights.depth = depth;
  weights.pitch = data.shape(1);
  weights.groups = args.tensor<const Any>(q + 1).shape(1);
  weights.group = Smallest(group, depth);
  weights.group_shift = -1;
  RESIDENT_UNROLL(1)
  for (i32 shift = 0; shift < 62; ++shift) {
    if (i64{1} << shift == weights.group) weights.group_shift = shift;
  }
  weights.power = kTwoToThe23rd;
  weights.sign = is_signed ? 128 : 0;
  weights.zero = is_signed || kZeros ? 0.0f : static_cast<float>(1 << (kBits - 1));
  return weights;
}

// Calls f with the weights. REQUIRES: CheckWeights returned `bits`, and there are weights.
template <typename F>
RESIDENT_DEVICE void VisitWeights(const Args& args, i32 bits, u32 q, i64 depth, i64 group, F f) {
  const bool zeros = args.tensor<const Any>(q + 2).size() != 0;
  if (bits == 8) {
    if (zeros) return f(ReadWeights<8, true>(args, q, depth, group));
    return f(ReadWeights<8, false>(args, q, depth, group));
  }
  if (zeros) return f(ReadWeights<4, true>(args, q, depth, group));
  return f(ReadWeights<4, false>(args, q, depth, group));
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_WEIGHTS_H_
