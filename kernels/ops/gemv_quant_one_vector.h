// This header computes gemv_quant and its relatives of one vector whose rows are as long as those
// of a model's layers, and whose groups are a power of two of runs of 16 bytes, or whole rows.
// vector_products.h and gemv_tensor_cores.h have other products.
//
//   if (resident::MultiplyQuantizedVector<resident::GemvQuant>(block, args)) return;
//
// The warps have rows, and read them, as those of gemv_one_vector.h. What takes time here are the
// instructions for each weight, so there are three: one that makes the weight's bits the last ones
// of a floating-point number, a subtraction, and the multiplication, in float32 and with an x that
// is not rounded. One weight in four or eight takes a shift as well. Two rows share what they need
// of x.
//
// The weights of a run have one scale and one zero:
//
//   scale * (sum of x * (q - centre)  -  (zero - centre) * sum of x)
//
// where the centre is 128, or 8 for 4 bits, or 0 for signed weights. The sums of x are in the
// block's memory, for each run. A warp reads the scales and zeros of a piece one piece before it,
// from the L2 cache, as it has requested those of its rows in the beginning.
//
// A sum that is not finite, or whose result is not, is computed again, as vector_products.h does.
// That includes sums which are out of range only as long as they are not multiplied with the scale.
// With a normalization it is not: x * norm has the size of a model's activations.
//
// A normalization is that of gemv_one_vector.h: the factor of the vector is multiplied with the
// sums. Only the forms that a model needs have code: x of float32 and weights without zeros.
#ifndef RESIDENT_KERNELS_OPS_GEMV_QUANT_ONE_VECTOR_H_
#define RESIDENT_KERNELS_OPS_GEMV_QUANT_ONE_VECTOR_H_

#include "kernels/ops/gemv_one_vector.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/vector_products.h"
#include "kernels/ops/warp.h"
#include "kernels/ops/weights.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/operator.h"

namespace resident {

// The arguments of an operator. kGated: silu_mul of two products, with q, scales and zeros of the
// gates, and then those of what they are multiplied with. kNormalized: argument 1 has the weights
// of x's normalization, and the last one is eps. kBiased: a bias in front of the result.
template <bool gated, bool normalized, bool biased>
struct QuantizedArguments {
  static constexpr bool kGated = gated;
  static constexpr bool kNormalized = normalized;
  static constexpr bool kBiased = biased;
  // Only gemv_quant has code for x of any type, and for weights with zeros: it is about as much for
  // each form.
  static constexpr bool kAnyForm = !gated && !normalized && !biased;
  static constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
  static constexpr u32 kSecond = kMatrix + 3;  // The second matrix, or the bias.
  static constexpr u32 kOut = kSecond + (kGated ? 3 : kBiased ? 1 : 0);
  static constexpr u32 kGroup = kOut + 1;
  static constexpr u32 kEpsilon = kOut + 2;
};
using GemvQuant = QuantizedArguments</*gated=*/false, /*normalized=*/false, /*biased=*/false>;
using GemvQuantBias = QuantizedArguments</*gated=*/false, /*normalized=*/false, /*biased=*/true>;
using RmsNormGemvQuant = QuantizedArguments</*gated=*/false, /*normalized=*/true, /*biased=*/true>;
using RmsNormGemvQuantSiluMul =
    QuantizedArguments</*gated=*/true, /*normalized=*/true, /*biased=*/false>;

#if RESIDENT_WARPS

// x in the block's memory, in float32. The first quads of all runs come first, then the second
// ones, and so on, so that adjacent lanes read adjacent quads. Between them is some space, if there
// is enough of it, so that the quads of a run are in different banks. The sums of the runs follow.
template <u32 kBits, bool kZeros>
struct QuantizedX {
  static constexpr u32 kWeights = 8 * sizeof(Bytes16) / kBits;  // Of a run.
  static constexpr u32 kQuads = kWeights / 4;
  static constexpr u32 kRunBytes = kWeights * sizeof(float) + (kZeros ? sizeof(float) : 0);
  static constexpr u32 kMaxRuns = kBlockMemoryBytes / kRunBytes / kStepRuns * kStepRuns;
  static constexpr u32 kSpaceQuads = 8 / kQuads;
  static constexpr u32 kSpaceBytes = kQuads * kSpaceQuads * sizeof(Quad<float>);

  // How much of the block's memory it has, rounded up to 16 bytes, for this number of runs.
  static RESIDENT_DEVICE u32 EndOf(u32 padded) {
    return (padded * kRunBytes + kSpaceBytes + 15) / 16 * 16;
  }

  Quad<float>* quads;
  float* sums;
  u32 runs;
  u32 pitch;

  // `padded`: runs, at most kMaxRuns.
  RESIDENT_DEVICE QuantizedX(const Block& block, u32 padded) : runs(padded) {
    const bool has_space = padded * kRunBytes + kSpaceBytes <= kBlockMemoryBytes;
    pitch = padded + (has_space ? kSpaceQuads : 0);
    quads = reinterpret_cast<Quad<float>*>(block.memory<float>());
    sums = reinterpret_cast<float*>(quads + kQuads * pitch);
  }

  RESIDENT_DEVICE Quad<float>& QuadAt(u32 quad) const {
    return quads[quad % kQuads * pitch + quad / kQuads];
  }

  // (collective) Reads a vector of `depth` elements; the rest of the runs is filled up with zeros.
  template <typename X>
  RESIDENT_DEVICE void Read(const Block& block, u64 vector, u32 depth) const {
    constexpr u32 kAtOnce = 4;
    const u32 count = kQuads * runs;
    // All lanes of a warp have a quad, or none of them has: there are whole steps.
    RESIDENT_UNROLL(1)
    for (u32 first = block.thread(); first < count; first += kAtOnce * block.threads()) {
      Quad<X> stored[kAtOnce];
      for (u32 i = 0; i < kAtOnce; ++i) {
        stored[i] = LoadQuad<X>(vector, first + i * block.threads(), depth);
      }
      for (u32 i = 0; i < kAtOnce; ++i) {
        const u32 quad = first + i * block.threads();
        if (quad >= count) break;
        Quad<float> values;
        for (u32 k = 0; k < 4; ++k) values.v[k] = stored[i].v[k];
        const u32 run = quad / kQuads;
        QuadAt(quad) = values;
        if constexpr (kZeros) {
          const float sum = CombineLanes((values.v[0] + values.v[1]) + (values.v[2] + values.v[3]),
                                         [](float a, float b) { return a + b; }, kQuads);
          if (quad % kQuads == 0) sums[run] = sum;
        }
      }
    }
    block.barrier();
  }

  // Quads of the weights of a normalization that a thread has before x may be read.
  static constexpr u32 kFirstNorms = 2;

  // (collective) The same for a vector of float32 that is normalized. `norm`: where the weights
  // are, of the type T, and the thread's first ones. Returns what the products are multiplied by.
  template <typename T>
  RESIDENT_DEVICE float ReadNormalized(const Block& block, u64 vector, u64 norm,
                                       const Quad<u16> (&first_norms)[kFirstNorms], u32 depth,
                                       float per_column, float eps) const {
    static_assert(!kZeros, "");
    const u32 count = kQuads * runs;
    float mean = 0.0f;
    const auto place = [&](u32 quad, Quad<float> values, const Quad<u16>& stored) {
      float partial = 0.0f;
      for (u32 k = 0; k < 4; ++k) partial += values.v[k] * values.v[k];
      mean += partial * per_column;
      for (u32 k = 0; k < 4; ++k) values.v[k] *= T::Widen(stored.v[k]);
      if (quad < count) QuadAt(quad) = values;
    };
    Quad<float> first[kFirstNorms];
    for (u32 k = 0; k < kFirstNorms; ++k) {
      first[k] = LoadQuad<float>(vector, block.thread() + k * block.threads(), depth);
    }
    for (u32 k = 0; k < kFirstNorms; ++k) {
      place(block.thread() + k * block.threads(), first[k], first_norms[k]);
    }
    RESIDENT_UNROLL(2)
    for (u32 quad = block.thread() + kFirstNorms * block.threads(); quad < count;
         quad += block.threads()) {
      place(quad, LoadQuad<float>(vector, quad, depth), LoadQuad<u16>(norm, quad, depth));
    }
    // Its barriers are behind the stores.
    return math::rsqrt(block.reduce_sum(mean) + eps);
  }
};

// The numbers in a word of weights. A number whose lowest bit is bit b of a word becomes the last
// bits of a float from 2^(23 - b) on, in which that bit counts 1.
template <u32 kBits>
class WordNumbers {
 public:
  static constexpr float kHalf = 1 << (kBits - 1);

  // is_signed: of 8 bits, in two's complement. The sign bits are inverted, which adds kHalf.
  RESIDENT_DEVICE explicit WordNumbers(bool is_signed) {
    for (u32 p = 0; p < kPlaces; ++p) {
      powers_[p] = (150 - kBits * p) << 23 ^ (is_signed ? 1u << (kBits * p + kBits - 1) : 0u);
    }
  }

  // Number i, less kHalf unless it is signed.
  RESIDENT_DEVICE float Of(u32 word, u32 i) const {
    const u32 place = i % kPlaces;
    const u32 bits = i < kPlaces ? word : word >> 16;
    const u32 number = MaskedXor(bits, kMask << (kBits * place), powers_[place]);
    return bit_cast<float>(number) - (static_cast<float>(1u << (23 - kBits * place)) + kHalf);
  }

 private:
  static constexpr u32 kPlaces = 16 / kBits;  // Of half a word.
  static constexpr u32 kMask = (1u << kBits) - 1;

  // Without assembler it would be two instructions where the compiler knows the power.
  static RESIDENT_DEVICE u32 MaskedXor(u32 bits, u32 mask, u32 power) {
#if RESIDENT_GPU
    u32 number;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(number) : "r"(bits), "r"(mask), "r"(power));
    return number;
#else
    return (bits & mask) ^ power;
#endif
  }

  u32 powers_[kPlaces];
};

// LoadRun if the run exists, without a branch. Otherwise `to` remains as it is.
RESIDENT_DEVICE void LoadRunIf(bool exists, u64 from, [[maybe_unused]] u64 policy, Bytes16& to) {
#if RESIDENT_GPU
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.u32 exists, %6, 0;\n"
      "@exists ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;\n"
      "}"
      : "+r"(to.words[0]), "+r"(to.words[1]), "+r"(to.words[2]), "+r"(to.words[3])
      : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), "l"(policy),
        "r"(u32{exists}));
#else
  if (exists) to = *reinterpret_cast<const Bytes16*>(from);
#endif
}

// The same for a scale or a zero. The caches keep the line, which is read several times.
RESIDENT_DEVICE void LoadFactorIf(bool exists, u64 from, Half& to) {
#if RESIDENT_GPU
  asm volatile(
      "{\n"
      ".reg .pred exists;\n"
      "setp.ne.u32 exists, %2, 0;\n"
      "@exists ld.global.u16 %0, [%1];\n"
      "}"
      : "+h"(to.bits)
      : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))), "r"(u32{exists}));
#else
  if (exists) to = *reinterpret_cast<const Half*>(from);
#endif
}

// The scales and zeros of a piece.
template <bool kZeros>
struct PieceFactors {
  Half scales[kStepRows];
  Half zeros[kZeros ? kStepRows : 1];
};

// Where the scales and zeros of a warp's rows are. kGated: the rows of a step are rows of two
// matrices, whose scales are `second` bytes apart.
template <bool kZeros, bool kGated>
struct FactorRows {
  static_assert(!kZeros || !kGated, "");

  u64 scales;  // Of the first row of a step.
  u64 zeros;   // From the scales, in bytes.
  u64 second;
  u32 shift;  // A group has 2 to the power of this runs.
  u32 pitch;  // Bytes of a row.

  // Reads those of a run and of as many of the rows as there are. If the run does not exist, they
  // remain those of a run of the same rows, for weights that are multiplied by 0: the bits of a row
  // do not depend on other rows of the warp.
  RESIDENT_DEVICE void Load(bool exists, u32 run, u32 rows, PieceFactors<kZeros>& to) const {
    const u64 from = scales + (run >> shift) * u32{sizeof(Half)};
    for (u32 r = 0; r < kStepRows; ++r) {
      const bool row_exists = exists & ((kGated ? 0 : r) < rows);
      const u64 of_row = from + (kGated ? r * second : r * pitch);
      LoadFactorIf(row_exists, of_row, to.scales[r]);
      if constexpr (kZeros) LoadFactorIf(row_exists, of_row + zeros, to.zeros[r]);
    }
  }

  // Requests those of `rows` rows for the L2 cache, up to a limit.
  RESIDENT_DEVICE void Prefetch([[maybe_unused]] u32 rows, [[maybe_unused]] u32 lane) const {
#if RESIDENT_GPU
    constexpr u32 kSector = 32;
    constexpr u32 kMaxBytes = 16 * 1024;
    const u64 bytes = u64{rows} * pitch;
    RESIDENT_UNROLL(1)
    for (u32 offset = lane * kSector; offset < bytes && offset < kMaxBytes;
         offset += kWarpThreads * kSector) {
      const auto request = [](u64 from) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(
            __cvta_generic_to_global(reinterpret_cast<const void*>(from))));
      };
      request(scales + offset);
      if constexpr (kGated) request(scales + second + offset);
      if constexpr (kZeros) request(scales + zeros + offset);
    }
#endif
  }
};

// Computes the warp's results that are not finite again. `bias`: the number of that argument of
// gemv_quant_bias; 0: the operator is gemv_quant.
RESIDENT_NOINLINE void ReplaceRows(Block block, Args args, u32 bias) {
  constexpr u32 kMatrix = GemvQuant::kMatrix;
  const u32 last = bias != 0 ? GemvQuantBias::kOut : GemvQuant::kOut;
  const TensorArgument& x = args.described(0);
  const TensorArgument& q = args.described(kMatrix);
  const TensorArgument& out = args.described(last);
  const i64 rows = q.shape[0];
  const i64 depth = x.shape[x.rank - 1];
  const WarpRows own(block, static_cast<u32>(rows));
  const u32 lane = LaneOf(block);
  VectorProduct p = {x.address, 0, out.address, x.dtype, DType::kF32, out.dtype, 1, rows, depth};
  if (bias != 0 && args.described(bias).shape[0] != 0) {
    p.bias = args.described(bias).address;
    p.bias_dtype = args.described(bias).dtype;
  }
  VisitWeights(args, q.shape[1] == depth ? 8 : 4, kMatrix, depth, args.scalar<i64>(last + 1),
               [&](const auto& weights) {
                 SynchronizeWarp();
                 RESIDENT_UNROLL(1)
                 for (u32 row = own.first; row < own.first + own.count; ++row) {
                   const float stored = LoadFloat(p.out, p.out_dtype, row);
                   // All lanes have read it before one of them replaces it.
                   if (!AnyLane(!(stored - stored == 0.0f))) continue;
                   const float sum = SumOfScaled(p, weights, 0, row, lane);
                   if (lane == 0) StoreOutput(p, 0, row, sum);
                 }
               });
}

template <u32 kBits, bool kZeros, typename Arguments>
RESIDENT_DEVICE void MultiplyQuantizedVectorBy(const Block& block, const Args& args) {
  using X = QuantizedX<kBits, kZeros>;
  constexpr bool kGated = Arguments::kGated;
  constexpr bool kNormalized = Arguments::kNormalized;
  constexpr u32 kRows = kGated ? 1 : kStepRows;
  constexpr u32 kMatrix = Arguments::kMatrix;
  const u32 lane = LaneOf(block);
  const TensorArgument& q = args.described(kMatrix);
  const TensorArgument& scales = args.described(kMatrix + 1);
  // Of the second matrix, if there is one.
  [[maybe_unused]] const TensorArgument& second_q = args.described(Arguments::kSecond);
  [[maybe_unused]] const TensorArgument& second_scales = args.described(Arguments::kSecond + 1);
  const WarpRows own(block, static_cast<u32>(q.shape[0]));

  const u32 runs = static_cast<u32>(q.shape[1]) / sizeof(Bytes16);
  const u32 steps = (runs + kStepRuns - 1) / kStepRuns;
  const u32 padded = steps * kStepRuns;

  WeightSteps weights = {
      LastUse(), q.address + (u64{own.first} * runs + lane) * sizeof(Bytes16),
      lane,      lane,
      runs,      padded,
      own.count, kGated ? second_q.address - q.address : u64{runs} * sizeof(Bytes16)};
  // The division needs registers that ahead[] has later.
  [[maybe_unused]] const float per_column = 1.0f / static_cast<float>(runs * X::kWeights);
  StepWeights ahead[2];
  weights.template Load<kRows>(ahead[0]);
  weights.template Load<kRows>(ahead[1]);

  const u32 groups = static_cast<u32>(scales.shape[1]);
  u32 shift = 31;  // A group is the whole row.
  if (groups > 1) {
    const u32 group_runs = static_cast<u32>(args.scalar<i64>(Arguments::kGroup)) / X::kWeights;
    for (shift = 0; group_runs >> shift > 1;) ++shift;
  }
  FactorRows<kZeros, kGated> factors = {
      scales.address + u64{own.first} * groups * sizeof(Half),
      kZeros ? args.described(kMatrix + 2).address - scales.address : 0,
      kGated ? second_scales.address - scales.address : 0, shift, groups * u32{sizeof(Half)}};
  PieceFactors<kZeros> of_piece = {};
  factors.Load(lane < runs, lane, own.count, of_piece);
  StepRing ring(block, X::EndOf(padded));
  if (ring.exists()) ring.template Fill<kRows>(weights);
  factors.Prefetch(own.count, lane);
  [[maybe_unused]] const TensorArgument& norm = args.described(1);
  Quad<u16> first_norms[X::kFirstNorms];
  if constexpr (kNormalized) {
    for (u32 k = 0; k < X::kFirstNorms; ++k) {
      first_norms[k] =
          LoadQuad<u16>(norm.address, block.thread() + k * block.threads(), runs * X::kWeights);
    }
  }
  if (!block.await_inputs()) {
    ring.Drain();
    return;
  }

  const TensorArgument& x_argument = args.described(0);
  const X x(block, padded);
  [[maybe_unused]] float scale = 1.0f;
  if constexpr (kNormalized) {
    const auto read = [&](auto element) {
      scale = x.template ReadNormalized<decltype(element)>(
          block, x_argument.address, norm.address, first_norms, runs * X::kWeights, per_column,
          args.scalar<float>(Arguments::kEpsilon));
    };
    if (norm.dtype == DType::kF16) {
      read(Half(0.0f));
    } else {
      read(BFloat16(0.0f));
    }
  } else if constexpr (Arguments::kAnyForm) {
    VisitFloat(x_argument.dtype, [&](auto element) {
      x.template Read<decltype(element)>(block, x_argument.address, runs * X::kWeights);
    });
  } else {
    x.template Read<float>(block, x_argument.address, runs * X::kWeights);
  }

  [[maybe_unused]] const TensorArgument& bias = args.described(Arguments::kSecond);
  const TensorArgument& out = args.described(Arguments::kOut);
  const bool is_signed = kBits == 8 && q.dtype == DType::kI8;
  const WordNumbers<kBits> numbers(is_signed);
  [[maybe_unused]] const float centre = is_signed ? 0.0f : WordNumbers<kBits>::kHalf;
  [[maybe_unused]] bool replace = false;
  u32 at = lane;  // The lane's first run of a step.
  float sums[kStepRows] = {};
  const u32 end = own.first + own.count;
  u32 left = own.count;
  const auto add = [&](StepWeights& step) {
    if (ring.exists()) ring.Await();
    const bool last = at + kStepRuns >= padded;  // Step of the rows.
    const u32 next = last ? lane : at + kStepRuns;
    const u32 next_left = last ? (left > kRows ? left - kRows : 0) : left;
    RESIDENT_UNROLL(2)
    for (u32 k = 0; k < kStepPieces; ++k) {
      const u32 run = at + k * kWarpThreads;
      float partial[kStepRows][2] = {};
      RESIDENT_UNROLL(8)
      for (u32 i = 0; i < X::kQuads; ++i) {
        const Quad<float> values = x.quads[i * x.pitch + run];
        for (u32 r = 0; r < kStepRows; ++r) {
          const u32 word = step.runs[r][k].words[i * kBits / 8];
          for (u32 j = 0; j < 4; ++j) {
            partial[r][j % 2] += values.v[j] * numbers.Of(word, i * 4 % (32 / kBits) + j);
          }
        }
      }
      for (u32 r = 0; r < kStepRows; ++r) {
        float product = partial[r][0] + partial[r][1];
        if constexpr (kZeros) product -= (of_piece.zeros[r] - centre) * x.sums[run];
        sums[r] += product * of_piece.scales[r];
      }
      // What follows takes the place of what has been used.
      if (ring.exists()) {
        ring.template ExchangePiece<kRows>(weights, k, step);
      } else {
        weights.template TakePiece<kRows>(k, [&](u32 r, u64 from, bool exists) {
          LoadRunIf(exists, from, weights.policy, step.runs[r][k]);
        });
      }
      if (k + 1 < kStepPieces) {
        const u32 next_run = run + kWarpThreads;
        factors.Load(next_run < runs, next_run, left, of_piece);
      } else {
        if (last) factors.scales += kRows * factors.pitch;
        factors.Load(next < runs, next, next_left, of_piece);
      }
    }
    if (ring.exists()) {
      ring.template Advance<kRows>(weights);
    } else {
      weights.template Advance<kRows>();
    }
    at = next;
    if (!last) return;
    // Lanes below 16 have the sum of the first row, the others that of the second one.
    const bool second = lane >= kWarpThreads / 2;
    float sum = SumOverLanes(sums, second);
    if constexpr (kNormalized) sum *= scale;
    if constexpr (kGated) {
      const float up = ShuffleXor(sum, kWarpThreads / 2);
      if (lane == 0) StoreFloat(out.address, out.dtype, end - left, math::silu_mul(sum, up));
    } else if (u32{second} < left) {
      const u32 row = end - left + u32{second};
      if constexpr (Arguments::kBiased) {
        if (bias.shape[0] != 0) sum += LoadFloat(bias.address, bias.dtype, row);
      }
      if constexpr (!kNormalized) {
        const float max = out.dtype == DType::kF16 ? 65504.0f : 0x1p127f;
        replace = replace || !(sum < max && sum > -max);
      }
      if (lane % (kWarpThreads / 2) == 0) StoreFloat(out.address, out.dtype, row, sum);
    }
    sums[0] = sums[1] = 0.0f;
    left = next_left;
  };
  RESIDENT_UNROLL(1)
  while (left > 0) {
    add(ahead[0]);
    if (left == 0) break;
    add(ahead[1]);
  }
  ring.Drain();
  if constexpr (!kNormalized) {
    if (AnyLane(replace)) ReplaceRows(block, args, Arguments::kBiased ? Arguments::kSecond : 0);
  }
}

// `padded`: runs with which a row is filled up. False: x has no space in the memory.
template <u32 kBits, bool kZeros, typename Arguments>
RESIDENT_DEVICE bool MultiplyQuantizedVectorIn(const Block& block, const Args& args, u32 padded) {
  if (padded > QuantizedX<kBits, kZeros>::kMaxRuns) return false;
  MultiplyQuantizedVectorBy<kBits, kZeros, Arguments>(block, args);
  return true;
}

template <typename Arguments>
RESIDENT_DEVICE bool MultiplyQuantizedVectorOf(const Block& block, const Args& args) {
  if (!kReadsDirectly || block.chunk_count() >> 24 != 0) return false;
  constexpr u32 kMatrix = Arguments::kMatrix;
  const TensorArgument& x = args.described(0);
  const TensorArgument& q = args.described(kMatrix);
  const TensorArgument& scales = args.described(kMatrix + 1);
  const TensorArgument& zeros = args.described(kMatrix + 2);
  const TensorArgument& out = args.described(Arguments::kOut);
  // All members are read at the same time. The shapes must be those that CheckWeights accepts.
  const u64 rows = static_cast<u64>(q.shape[0]);
  const u64 pitch = static_cast<u64>(q.shape[1]);
  const u64 groups = static_cast<u64>(scales.shape[1]);
  const u64 group = static_cast<u64>(args.scalar<i64>(Arguments::kGroup));
  const u64 depth = static_cast<u64>(out.rank == 1 ? x.shape[0] : x.shape[1]);
  const bool none = (zeros.rank == 1) & (zeros.shape[0] == 0);
  const bool has_zeros =
      (zeros.rank == 2) & (zeros.shape[0] == q.shape[0]) & (zeros.shape[1] == scales.shape[1]);
  const bool bytes = pitch == depth;
  const u64 run = bytes ? 16 : 32;
  const u64 quad = x.dtype == DType::kF32 ? 16 : 8;
  bool can = ((out.rank == 1) | ((out.rank == 2) & (out.shape[0] == 1))) & (rows > 0) &
             (rows >> 31 == 0) & (depth >= kMinDepth) & (depth <= kMaxDepth) & (depth % run == 0) &
             (bytes | (2 * pitch == depth)) & (q.address % sizeof(Bytes16) == 0) &
             (x.address % quad == 0) & (none | (Arguments::kAnyForm & has_zeros));
  if (groups == 1) {
    can = can & (static_cast<i64>(group) >= static_cast<i64>(depth));
  } else {
    can = can & (group >= run) & (group < depth) & ((group & (group - 1)) == 0) &
          (groups >> 31 == 0) & ((groups - 1) * group < depth) & (groups * group >= depth);
  }
  if constexpr (!Arguments::kAnyForm) can = can & (x.dtype == DType::kF32);
  if constexpr (Arguments::kBiased) {
    const TensorArgument& bias = args.described(Arguments::kSecond);
    can = can & (bias.rank == 1) & ((bias.shape[0] == 0) | (bias.shape[0] == q.shape[0]));
  }
  if constexpr (Arguments::kGated) {
    const TensorArgument& second = args.described(Arguments::kSecond);
    const TensorArgument& second_zeros = args.described(Arguments::kSecond + 2);
    can = can & (second.shape[1] == q.shape[1]) & (second.dtype == q.dtype) &
          (second.address % sizeof(Bytes16) == 0) & (second_zeros.rank == 1) &
          (second_zeros.shape[0] == 0);
  }
  if constexpr (Arguments::kNormalized) {
    const TensorArgument& norm = args.described(1);
    can = can & (norm.dtype != DType::kF32) & (norm.address % sizeof(Quad<u16>) == 0);
  }
  if (!can) return false;
  const u32 runs = static_cast<u32>(pitch / sizeof(Bytes16));
  const u32 padded = (runs + kStepRuns - 1) / kStepRuns * kStepRuns;
  if (bytes) {
    if (none) return MultiplyQuantizedVectorIn<8, false, Arguments>(block, args, padded);
    if constexpr (Arguments::kAnyForm)
      return MultiplyQuantizedVectorIn<8, true, Arguments>(block, args, padded);
  } else {
    if (none) return MultiplyQuantizedVectorIn<4, false, Arguments>(block, args, padded);
    if constexpr (Arguments::kAnyForm)
      return MultiplyQuantizedVectorIn<4, true, Arguments>(block, args, padded);
  }
  return false;
}

#endif  // RESIDENT_WARPS

// (collective) The operator with these arguments, which awaits its inputs. False: the operands have
// another form, or must be refused, and nothing was awaited.
template <typename Arguments>
RESIDENT_DEVICE bool MultiplyQuantizedVector([[maybe_unused]] const Block& block,
                                             [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  return MultiplyQuantizedVectorOf<Arguments>(block, args);
#else
  return false;
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_GEMV_QUANT_ONE_VECTOR_H_
