// This header multiplies a matrix of weights with a few vectors on tensor cores: vectors of Half or
// BFloat16, and vectors of float with weights of BFloat16 if gemv_several_vectors.h does not take
// them. vector_products.h has the same for other vectors and for rows that are not aligned.
//
//   TensorTask& task = TensorTask::Read<5>(block, args);
//   if (block.thread() == 0) ...  // Sets the operands, then task.Prepare<kBits>(block).
//   block.barrier();
//   if (task.fits) MultiplyByTensorCores<Format>(block, task);
//
// The block computes 32 rows at a time (kItemRows) with up to 8 vectors: the weights are the left
// operands of MultiplyAdd (tensor_cores.h), and the vectors are the columns of the right operand.
// Each warp has a part of the depth of all these rows, with which it is done without the others;
// then the parts are added in the order of the warps, so that the bits depend on the number of
// threads of a block, but not on the number of chunks.
//
// A part consists of units: 64 bytes of each row. A lane reads 16 of them, of the four rows g, g +
// 8, g + 16 and g + 24 (g = lane / 4), and uses them as its elements of the left fragments. The
// depth that they have in a fragment is not that in the row, but it is the same as of the elements
// of x, which Format::Order puts into that order. So weights need no exchange between lanes, and
// not the block's memory. When the weights of a unit have been used, the loads of the next one
// start; with the 16 warps of two blocks that is enough, and more registers would cost more.
//
// Quantized weights are (u - zero) * scale, where u is the unsigned number of 4 or 8 bits that is
// stored (with the sign bit inverted if it is signed). A fragment has other numbers, which need
// fewer instructions: (u - Format::kSubtracted) / Format::kFactor. The products of a unit, whose
// weights have one scale and one zero, are therefore
//
//   scale * kFactor * sum of x * number  +  scale * (kSubtracted - zero) * sum of x
//
// The sum of x is a product on the tensor cores as well, with weights that are all 1.
//
// A vector of float has two columns (kPartsOfFloat): x rounded to BFloat16, and the rounded rest.
// What is left of x after both is at most 2^-17 of it. The products of the columns are added in
// float. The weights are read once for up to 4 of these vectors, and for up to 8 others.
//
// Tensor cores drop the low bits of sums, so that only the products of a unit are added there.
//
// A function that is called through a pointer must save half of the registers that it uses in
// device memory. With 96 registers, and local variables there too, gemv_quant took 47 us for 32 MiB
// of weights; with fewer it takes 28 us (K = N = 8192 on an H200). Therefore what all threads need
// is in the block's memory (TensorTask), and they have few variables. One warp writes it, as the
// arguments take long to read.
#ifndef RESIDENT_KERNELS_OPS_GEMV_TENSOR_CORES_H_
#define RESIDENT_KERNELS_OPS_GEMV_TENSOR_CORES_H_

#include "kernels/ops/linear_epilogue.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/operator.h"

namespace resident {

// The operands of y = x * w^T + bias, without w, and what is done with y.
struct VectorProduct {
  // Of x_step: the vectors follow each other.
  static constexpr i64 kDense = i64{1} << 62;

  u64 x;
  u64 bias;  // 0: none.
  u64 out;
  DType x_dtype;
  DType bias_dtype;
  DType out_dtype;
  i64 vectors;
  i64 rows;
  i64 depth;
  // Elements from the bias of a vector to that of the next one; 0: they have the same.
  i64 bias_step = 0;
  // Elements from a vector to the next one.
  i64 x_step = kDense;
  Epilogue epilogue = {};

  // Where a vector begins, in elements.
  RESIDENT_DEVICE i64 Vector(i64 vector) const {
    return vector * (x_step == kDense ? depth : x_step);
  }
};

// What is added to a sum before and after the activation.
struct Addends {
  float bias;
  float residual;
};
RESIDENT_DEVICE Addends LoadAddends(const VectorProduct& p, i64 vector, i64 row) {
  Addends addends = {0.0f, 0.0f};
  if (p.bias != 0) addends.bias = LoadFloat(p.bias, p.bias_dtype, vector * p.bias_step + row);
  if (p.epilogue.residual != 0) {
    addends.residual =
        LoadFloat(p.epilogue.residual, p.epilogue.residual_dtype, vector * p.rows + row);
  }
  return addends;
}
RESIDENT_DEVICE void StoreWith(const Addends& addends, const VectorProduct& p, i64 vector, i64 row,
                               float sum) {
  if (p.bias != 0) sum += addends.bias;
  sum = Activate(p.epilogue.activation, sum);
  if (p.epilogue.residual != 0) sum += addends.residual;
  StoreFloat(p.out, p.out_dtype, vector * p.rows + row, sum);
}
RESIDENT_DEVICE void StoreOutput(const VectorProduct& p, i64 vector, i64 row, float sum) {
  StoreWith(LoadAddends(p, vector, row), p, vector, row, sum);
}

#if RESIDENT_WARPS

// --- Formats -------------------------------------------------------------------------------------

// A format has the type of elements of the right operand, how many of these add up to an element of
// x (kParts), the bits of a weight, and whether the weights have scales. A lane's weights of a unit
// belong to kChunks chunks of 8 elements of x:
//
//   Unpack     the four words of weights of chunk i, two weights in each
//   Order      puts the elements of a chunk into the order of Unpack

// The parts of an element of x that is a float.
inline constexpr u32 kPartsOfFloat = 2;

// Weights of type T. With one part x has this type too.
template <typename T, u32 kPartsOfX = 1>
struct DenseFormat {
  using Element = T;
  static constexpr u32 kParts = kPartsOfX;
  static constexpr u32 kBits = 16;
  static constexpr bool kScaled = false;

  static RESIDENT_DEVICE void Unpack(const Bytes16& run, u32, u32, u32 (&pairs)[4]) {
    for (u32 k = 0; k < 4; ++k) pairs[k] = run.words[k];
  }
  static RESIDENT_DEVICE Bytes16 Order(const Bytes16& x) { return x; }
};

RESIDENT_DEVICE u32 LowHalves(u32 a, u32 b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x5410);
#else
  return (a & 0xffffu) | b << 16;
#endif
}
RESIDENT_DEVICE u32 HighHalves(u32 a, u32 b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x7632);
#else
  return a >> 16 | (b & 0xffff0000u);
#endif
}

// bits & mask | others. Without assembler the constants would take two instructions.
template <u32 kMask, u32 kOthers>
RESIDENT_DEVICE u32 MaskedWith(u32 bits) {
#if RESIDENT_GPU
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(bits), "n"(kMask), "n"(kOthers));
  return result;
#else
  return (bits & kMask) | kOthers;
#endif
}

// The differences of two pairs, which must be exact.
RESIDENT_DEVICE u32 DifferencesOfBFloat16(u32 a, u32 b) {
#if RESIDENT_GPU
  // A subtraction of such pairs needs compute capability 9.0.
  constexpr u32 kMinusOnes = 0xbf80bf80u;
  u32 differences;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(differences) : "r"(b), "r"(kMinusOnes), "r"(a));
  return differences;
#else
  const auto difference = [](u32 a, u32 b) {
    return BFloat16::Widen(static_cast<u16>(a)) - BFloat16::Widen(static_cast<u16>(b));
  };
  return Pack<BFloat16>(difference(a, b), difference(a >> 16, b >> 16));
#endif
}

// 8 bits.
template <typename T>
struct BytesFormat {
  using Element = T;
  static constexpr u32 kParts = 1;
  static constexpr u32 kBits = 8;
  static constexpr bool kScaled = true;
  static constexpr bool kHalf = __is_same(T, Half);
  static constexpr float kSubtracted = kHalf ? 0.0f : 128.0f;
  static constexpr float kFactor = kHalf ? 0x1p24f : 1.0f;

  static RESIDENT_DEVICE u32 Pair(u32 bytes, u32 inverted) {
    if constexpr (kHalf) {
      // As the bits of a number below the normal ones, u is u * 2^-24.
      return (bytes & 0x00ff00ffu) ^ inverted;
    } else {
      // The last 7 bits of u become those of 128, and so a number from 128 to 255. From this 256
      // is subtracted, or 128 if the first bit is set.
      constexpr u32 k128 = 0x43004300u;
      const u32 minuend = MaskedWith<0x007f007fu, k128>(bytes);
      const u32 subtrahend = (bytes & 0x00800080u) ^ (inverted ^ 0x00800080u ^ k128);
      return DifferencesOfBFloat16(minuend, subtrahend);
    }
  }
  static RESIDENT_DEVICE void Unpack(const Bytes16& run, u32 i, u32 inverted, u32 (&pairs)[4]) {
    for (u32 k = 0; k < 4; ++k) {
      pairs[k] = Pair(run.words[2 * i + k / 2] >> (k % 2 * 8), inverted);
    }
  }
  static RESIDENT_DEVICE Bytes16 Order(const Bytes16& x) {
    return {{LowHalves(x.words[0], x.words[1]), HighHalves(x.words[0], x.words[1]),
             LowHalves(x.words[2], x.words[3]), HighHalves(x.words[2], x.words[3])}};
  }
};

// 4 bits.
template <typename T>
struct NibblesFormat {
  using Element = T;
  static constexpr u32 kParts = 1;
  static constexpr u32 kBits = 4;
  static constexpr bool kScaled = true;
  static constexpr bool kHalf = __is_same(T, Half);
  static constexpr float kSubtracted = kHalf ? 0.0f : -16.0f;
  static constexpr float kFactor = kHalf ? 0x1p24f : 1.0f;

  static RESIDENT_DEVICE void Unpack(const Bytes16& run, u32 i, u32, u32 (&pairs)[4]) {
    const u32 word = run.words[i];
    for (u32 k = 0; k < 4; ++k) {
      if constexpr (kHalf) {
        // As the bits of a number below the normal ones, u is u * 2^-24.
        pairs[k] = word >> (4 * k) & 0x000f000fu;
      } else {
        // As the first bits after the point of 16, u makes it 16 + u.
        const u32 shifted = k == 0 ? word << 3 : word >> (4 * k - 3);
        pairs[k] = MaskedWith<0x00780078u, 0x41804180u>(shifted);
      }
    }
  }
  static RESIDENT_DEVICE Bytes16 Order(const Bytes16& x) {
    return {{LowHalves(x.words[0], x.words[2]), HighHalves(x.words[0], x.words[2]),
             LowHalves(x.words[1], x.words[3]), HighHalves(x.words[1], x.words[3])}};
  }
};

// --- The task ------------------------------------------------------------------------------------

// What the threads of a block have in common, at the end of the block's memory.
struct TensorTask {
  static constexpr u32 kItemRows = 32;
  static constexpr u32 kColumns = 8;  // Of the right operand.
  static constexpr u32 kUnitBytes = 64;
  // Weights of kBits bits of a row in a unit.
  template <u32 kBits>
  static constexpr u32 kUnit = 8 * kUnitBytes / kBits;

  // Set by the operator. Those from `scales` on are for quantized weights.
  VectorProduct product;
  u64 data;
  u64 scales;  // Half, `groups` in each row.
  u64 zeros;   // As the scales; 0: none.
  i64 groups;
  i64 group;       // Weights of a group, at most the depth.
  float zero;      // Of u. If there are zeros, it is added to them.
  bool is_signed;  // The numbers of 8 bits.

  // Set by Prepare.
  bool fits;         // Whether MultiplyByTensorCores can be called.
  bool not_finite;   // Whether a result of the chunk is, perhaps, not finite.
  i64 pitch;         // Bytes of a row.
  i64 x_pitch;       // Bytes of a vector.
  u32 item_vectors;  // Vectors of a batch.
  i64 batches;
  Range share;     // Of pairs of 32 rows and a batch.
  u32 warp_bytes;  // Of memory of a warp.
  u32 part_units;  // Of each warp,
  u32 more_units;  // and of so many of them one more.
  u32 group_units;
  u32 inverted;  // What inverts the sign bits of two numbers of 8 bits in a word.

  // The tensors of the arguments, which lanes read at the same time.
  struct Operand {
    u64 address;
    i64 size;
    i64 shape[2];
    i64 last_shape;
    i32 rank;
    DType dtype;
  };
  static constexpr u32 kMaxOperands = 5;
  Operand operands[kMaxOperands];

  // (collective) The task of the block. The first warp reads the first kTensors arguments; only
  // these threads may use them before a barrier.
  template <u32 kTensors>
  static RESIDENT_DEVICE TensorTask& Read(const Block& block, const Args& args) {
    static_assert(kTensors <= kMaxOperands, "");
    TensorTask& task = *reinterpret_cast<TensorTask*>(
        block.memory<unsigned char>(kBlockMemoryBytes - kBytes, kBytes));
    if (WarpOf(block) != 0) return task;
    const u32 lane = LaneOf(block);
    if (lane < kTensors) {
      const Tensor<const Any> tensor = args.tensor<const Any>(lane);
      const i32 rank = tensor.rank();
      task.operands[lane] = {AddressOf(tensor),
                             tensor.size(),
                             {rank > 0 ? tensor.shape(0) : 1, rank > 1 ? tensor.shape(1) : 1},
                             rank > 0 ? tensor.shape(rank - 1) : 1,
                             rank,
                             tensor.dtype()};
    }
    SynchronizeWarp();
    return task;
  }

  // (one thread) kBits: of a weight. Weights of 16 bits have x's type, or x is of float.
  template <u32 kBits>
  RESIDENT_DEVICE void Prepare(const Block& block) {
    const i64 depth = product.depth;
    constexpr bool kScaled = kBits < 16;
    pitch = depth * i64{kBits} / 8;
    fits = depth > 0 && depth >> 31 == 0 && depth % kUnit<kBits> == 0 &&
           (product.x | data) % kChunkBytes == 0 && (!kScaled || group % kUnit<kBits> == 0);
    if (!fits) return;
    const bool of_float = product.x_dtype == DType::kF32;
    x_pitch = product.Vector(1) * static_cast<i64>(of_float ? sizeof(float) : sizeof(Half));
    fits = product.vectors == 1 || x_pitch % kChunkBytes == 0;
    if (!fits) return;
    item_vectors = of_float ? kColumns / kPartsOfFloat : kColumns;
    batches = Quotient(product.vectors + (item_vectors - 1), item_vectors);
    share = block.share((product.rows + (kItemRows - 1)) / kItemRows * batches);
    const u32 warps = block.threads() / kWarpThreads;
    constexpr u32 kAlignment = 128;
    warp_bytes = (kBlockMemoryBytes - kBytes) / warps / kAlignment * kAlignment;
    const u32 units = static_cast<u32>(depth) / kUnit<kBits>;
    part_units = units / warps;
    more_units = units - part_units * warps;
    not_finite = false;
    if constexpr (kScaled) {
      group_units = static_cast<u32>(group / kUnit<kBits>);
      inverted = is_signed ? 0x00800080u : 0u;
    }
  }

  static constexpr u32 kBytes = 512;
};
static_assert(sizeof(TensorTask) <= TensorTask::kBytes, "");

// A scale and what it makes of the sum of x. They are in the memory for each group and row.
struct alignas(8) Factors {
  float of_product;
  float of_sum;
};
inline constexpr u32 kFactorBytes = TensorTask::kItemRows * sizeof(Factors);

// --- The product ---------------------------------------------------------------------------------

template <typename Format>
class TensorProduct {
 public:
  using Element = typename Format::Element;
  // task.item_vectors, which needs no register here.
  static constexpr u32 kItemVectors = TensorTask::kColumns / Format::kParts;

  // REQUIRES: task.fits, and a barrier after Prepare.
  RESIDENT_DEVICE TensorProduct(const Block& block, TensorTask& task)
      : task_(task), warp_(WarpOf(block)), lane_(LaneOf(block)) {}

  // (warp) The warp's part of the products of the rows from `row` on with the vectors from `vector`
  // on, to the warp's memory.
  RESIDENT_DEVICE void AddUnits(const Block& block, i64 row, i64 vector, u32 vectors) const {
    const u32 g = lane_ / 4;
    const u32 t = lane_ % 4;
    const u32 first_unit =
        task_.part_units * warp_ + (warp_ < task_.more_units ? warp_ : task_.more_units);
    const u32 end_unit = first_unit + task_.part_units + (warp_ < task_.more_units ? 1 : 0);
    u64 from[kLaneRows];
    for (u32 r = 0; r < kLaneRows; ++r) {
      // A row that does not exist is the last one.
      const i64 existing = Smallest(row + g + 8 * r, task_.product.rows - 1);
      from[r] = task_.data + static_cast<u64>(existing * task_.pitch) +
                u64{first_unit} * TensorTask::kUnitBytes + t * kChunkBytes;
    }
    u32 left = end_unit - first_unit;  // Units that are not being loaded yet.
    Bytes16 runs[kLaneRows];
    const auto load = [&] {
      if (left == 0) return;
      --left;
      for (u32 r = 0; r < kLaneRows; ++r) {
        runs[r] = LoadWeights(from[r]);
        from[r] += TensorTask::kUnitBytes;
      }
    };
    load();

    const u32 shift = ShiftFor(vectors * kParts);
    unsigned char* const memory = MemoryOf(block, warp_);
    const u32 segment = SegmentUnits(shift);
    float totals[kRowGroups][4] = {};
    RESIDENT_UNROLL(1)
    for (u32 begin = first_unit; begin < end_unit; begin += segment) {
      const u32 end = static_cast<u32>(Smallest(begin + segment, end_unit));
      if (begin != first_unit) SynchronizeWarp();  // The reads of the memory have finished.
      u32 in_group = 0;                            // Units of the group that were before.
      MemoryAddress factors = AddressInMemory(memory);
      MemoryAddress x = factors;
      if constexpr (Format::kScaled) {
        const u32 group = begin / task_.group_units;
        const u32 groups = (end - 1) / task_.group_units - group + 1;
        in_group = begin - group * task_.group_units;
        x += groups * kFactorBytes;
        CopyX(begin, end - begin, vector, vectors, x);
        StageFactors(group, groups, Smallest(row + lane_, task_.product.rows - 1), memory);
        factors += g * static_cast<u32>(sizeof(Factors));
      } else {
        CopyX(begin, end - begin, vector, vectors, x);
      }
      WaitForCopies<0>();
      if constexpr (Format::kScaled) OrderX((end - begin) << shift, x);
      SynchronizeWarp();
      x += ((g & ((1u << shift) - 1)) * 4 + t) * kChunkBytes;
      const u32 x_step = (4 * kChunkBytes) << shift;
      RESIDENT_UNROLL(1)
      for (u32 unit = begin; unit < end; ++unit) {
        AddUnit(runs, x, x_step, factors, totals);
        load();
        x += kChunks * x_step;
        if constexpr (Format::kScaled) {
          if (++in_group == task_.group_units) {
            in_group = 0;
            factors += kFactorBytes;
          }
        }
      }
    }
    SynchronizeWarp();  // The reads of the memory have finished.
    float* const sums = reinterpret_cast<float*>(memory);
    for (u32 r = 0; r < kRowGroups; ++r) {
      if constexpr (kParts == 1) {
        for (u32 k = 0; k < 4; ++k) {
          const u32 column = 2 * t + k % 2;
          if (column < vectors) {
            sums[column * TensorTask::kItemRows + 16 * r + k / 2 * 8 + g] = totals[r][k];
          }
        }
      } else if (t < vectors) {
        for (u32 k = 0; k < 4; k += 2) {
          sums[t * TensorTask::kItemRows + 16 * r + k / 2 * 8 + g] =
              totals[r][k] + totals[r][k + 1];
        }
      }
    }
  }

  // Adds the warps' parts, after a barrier.
  RESIDENT_DEVICE void StoreSums(const Block& block, i64 row, i64 vector, u32 vectors) const {
    RESIDENT_UNROLL(1)
    for (u32 i = block.thread(); i < TensorTask::kItemRows * vectors; i += block.threads()) {
      float sum = 0.0f;
      RESIDENT_UNROLL(4)
      for (u32 warp = 0; warp < block.threads() / kWarpThreads; ++warp) {
        sum += reinterpret_cast<const float*>(MemoryOf(block, warp))[i];
      }
      const i64 own_row = row + i % TensorTask::kItemRows;
      if (own_row >= task_.product.rows) continue;
      if constexpr (kChecked) {
        // Also if it may be out of the range of the output.
        const float largest = task_.product.out_dtype == DType::kF16 ? 65504.0f : 0x1.fep127f;
        if (!(sum <= largest && sum >= -largest)) {
          // What ReplaceInfinities finds: an activation may make the sum finite.
          if (task_.product.epilogue.activation != Activation::kNone) {
            sum = bit_cast<float>(0x7fc00000u);
          }
          // Other threads may write the same.
#if RESIDENT_GPU
          task_.not_finite = true;
#else
          __atomic_store_n(&task_.not_finite, true, __ATOMIC_RELAXED);
#endif
        }
      }
      StoreOutput(task_.product, vector + i / TensorTask::kItemRows, own_row, sum);
    }
  }

 private:
  static constexpr u32 kUnit = TensorTask::kUnit<Format::kBits>;
  // The parts of an element of x are in adjacent columns, so that a lane has their products.
  static constexpr u32 kParts = Format::kParts;
  static_assert(kParts == 1 || (kParts == kPartsOfFloat && !Format::kScaled), "");
  // Whether a sum may be not finite although the result is another one: without the scale it may be
  // out of range; so may the first part of x, and an infinite x or weight makes the products with
  // the second part NaN.
  static constexpr bool kChecked = Format::kScaled || kParts > 1;
  // Chunks of x for a lane's weights of a unit.
  static constexpr u32 kChunks = kUnit / 4 * sizeof(Element) / kChunkBytes;
  // Groups of 16 rows, and the rows of which a lane has weights.
  static constexpr u32 kRowGroups = TensorTask::kItemRows / 16;
  static constexpr u32 kLaneRows = 2 * kRowGroups;

  RESIDENT_DEVICE unsigned char* MemoryOf(const Block& block, u32 warp) const {
    return block.memory<unsigned char>(warp * task_.warp_bytes, task_.warp_bytes);
  }
  // The columns of x in the memory are 2 to the power of this.
  static RESIDENT_DEVICE u32 ShiftFor(u32 columns) {
    return columns > 4 ? 3 : columns > 2 ? 2 : columns - 1;
  }

  static RESIDENT_DEVICE Bytes16 LoadWeights(u64 from) {
#if defined(__CUDA_ARCH__)
    Bytes16 run;
    // The L2 cache reads the adjacent bytes, which another load needs soon, at the same time.
    asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(run.words[0]), "=r"(run.words[1]), "=r"(run.words[2]), "=r"(run.words[3])
                 : "l"(from));
    return run;
#else
    return *reinterpret_cast<const Bytes16*>(from);
#endif
  }

  // Units for which x and the factors are in a warp's memory at a time.
  RESIDENT_DEVICE u32 SegmentUnits(u32 shift) const {
    const u32 x_bytes = (kUnit * static_cast<u32>(sizeof(Element))) << shift;
    if constexpr (Format::kScaled) {
      // n units belong to at most (n - 2) / group + 2 groups. A smaller group needs more memory.
      const u32 group = static_cast<u32>(Smallest(task_.group_units, 1024));
      return (task_.warp_bytes * group - 2 * kFactorBytes * (group - 1)) /
             (x_bytes * group + kFactorBytes);
    } else {
      return task_.warp_bytes / x_bytes;
    }
  }

  // Copies x for the units from `unit` on, or its parts. Chunk i of the lanes 4g + t is chunk
  // ((unit
  // * kChunks + i) * columns + g) * 4 + t of the memory, where columns is a power of two.
  RESIDENT_DEVICE void CopyX(u32 unit, u32 count, i64 vector, u32 vectors, MemoryAddress to) const {
    constexpr u32 kPartBytes = kParts * kChunkBytes;  // Of x for a chunk of the memory.
    const u32 shift = ShiftFor(vectors * kParts);
    const u32 vector_shift = shift - (kParts - 1);
    const u64 from = task_.product.x + static_cast<u64>(vector * task_.x_pitch) +
                     u64{unit} * (kUnit * sizeof(Element) * kParts);
    RESIDENT_UNROLL(1)
    for (u32 n = lane_; n < (count * 4 * kChunks) << vector_shift; n += kWarpThreads) {
      const u32 own = n / 4 & ((1u << vector_shift) - 1);
      const u32 chunk = (n / 4 >> vector_shift) * 4 + n % 4;
      const u32 place = chunk / (4 * kChunks) * kChunks + chunk % kChunks;
      const u32 index = ((place << shift) + own * kParts) * 4 + chunk / kChunks % 4;
      // A vector that does not exist is the first one.
      const u64 existing = own < vectors ? own : 0;
      const u64 x = from + existing * static_cast<u64>(task_.x_pitch) + chunk * kPartBytes;
      if constexpr (kParts == 1) {
        CopyAsync(to + index * kChunkBytes, x);
      } else {
        CopyParts(to + index * kChunkBytes, x);
      }
    }
    CommitCopies();
  }
  // Copies the parts of 8 floats to two chunks, which are in adjacent columns.
  static RESIDENT_DEVICE void CopyParts(MemoryAddress to, u64 from) {
    const Quad<float> x[2] = {*ElementAt<const Quad<float>>(from, 0),
                              *ElementAt<const Quad<float>>(from, 1)};
    Bytes16 first;
    Bytes16 second;
    for (u32 k = 0; k < 4; ++k) {
      const float a = x[k / 2].v[k % 2 * 2];
      const float b = x[k / 2].v[k % 2 * 2 + 1];
      const u32 rounded = Pack<Element>(a, b);
      first.words[k] = rounded;
      second.words[k] = Pack<Element>(a - Element::Widen(static_cast<u16>(rounded)),
                                      b - Element::Widen(static_cast<u16>(rounded >> 16)));
    }
    *PointerInMemory<Bytes16>(to) = first;
    *PointerInMemory<Bytes16>(to + 4 * kChunkBytes) = second;
  }
  // Puts the elements of the chunks into the order of the weights.
  RESIDENT_DEVICE void OrderX(u32 columns_and_units, MemoryAddress x) const {
    SynchronizeWarp();
    RESIDENT_UNROLL(1)
    for (u32 n = lane_; n < columns_and_units * (4 * kChunks); n += kWarpThreads) {
      const MemoryAddress chunk = x + n * kChunkBytes;
      *PointerInMemory<Bytes16>(chunk) = Format::Order(Load16(chunk));
    }
  }

  // Writes the factors of the groups [group, group + count) of the lane's row, `row`.
  RESIDENT_DEVICE void StageFactors(u32 group, u32 count, i64 row, unsigned char* to) const {
    const u64 offset = static_cast<u64>(row * task_.groups + group) * sizeof(Half);
    const bool has_zeros = task_.zeros != 0;
    const u64 scales = task_.scales + offset;
    const u64 zeros = (has_zeros ? task_.zeros : task_.scales) + offset;
    Factors* const factors = reinterpret_cast<Factors*>(to) + lane_;
    const auto write = [&](u32 index, u32 scale, u32 zero) {
      const float factor = Half::Widen(static_cast<u16>(scale));
      const float sum = task_.zero + (has_zeros ? Half::Widen(static_cast<u16>(zero)) : 0.0f);
      factors[index * TensorTask::kItemRows] = {factor * Format::kFactor,
                                                factor * (Format::kSubtracted - sum)};
    };
    u32 done = 0;
    if ((scales | zeros) % sizeof(Bytes16) == 0) {
      RESIDENT_UNROLL(1)
      for (; done + 8 <= count; done += 8) {
        const Bytes16 s = *ElementAt<const Bytes16>(scales, done / 8);
        const Bytes16 z = *ElementAt<const Bytes16>(zeros, done / 8);
        for (u32 k = 0; k < 8; ++k) {
          write(done + k, s.words[k / 2] >> (k % 2 * 16), z.words[k / 2] >> (k % 2 * 16));
        }
      }
    }
    RESIDENT_UNROLL(4)
    for (; done < count; ++done) {
      write(done, *ElementAt<const u16>(scales, done), *ElementAt<const u16>(zeros, done));
    }
  }

  // Adds the products of a unit. `x`: the lane's first chunk; `factors`: those of its first row.
  RESIDENT_DEVICE void AddUnit(const Bytes16 (&runs)[kLaneRows], MemoryAddress x, u32 x_step,
                               MemoryAddress factors, float (&totals)[kRowGroups][4]) const {
    constexpr u32 kOnes = __is_same(Element, Half) ? 0x3c003c00u : 0x3f803f80u;
    constexpr LeftFragment ones = {{kOnes, kOnes, kOnes, kOnes}};
    Accumulator products[kRowGroups] = {};
    Accumulator sum_of_x = {};
    for (u32 i = 0; i < kChunks; ++i) {
      const Bytes16 chunk = Load16(x + i * x_step);
      const RightFragment right[2] = {{{chunk.words[0], chunk.words[1]}},
                                      {{chunk.words[2], chunk.words[3]}}};
      for (u32 r = 0; r < kRowGroups; ++r) {
        u32 upper[4];
        u32 lower[4];
        Format::Unpack(runs[2 * r], i, task_.inverted, upper);
        Format::Unpack(runs[2 * r + 1], i, task_.inverted, lower);
        for (u32 k = 0; k < 2; ++k) {
          const LeftFragment left = {
              {upper[2 * k], lower[2 * k], upper[2 * k + 1], lower[2 * k + 1]}};
          MultiplyAdd<Element>(products[r], left, right[k]);
        }
      }
      if constexpr (Format::kScaled) {
        for (u32 k = 0; k < 2; ++k) MultiplyAdd<Element>(sum_of_x, ones, right[k]);
      }
    }
    for (u32 r = 0; r < kRowGroups; ++r) {
      for (u32 k = 0; k < 4; ++k) {
        if constexpr (Format::kScaled) {
          // The compiler loads the factors of k = 0 and 1, and of 2 and 3, once.
          const Factors f = *PointerInMemory<const Factors>(
              factors + (16 * r + k / 2 * 8) * static_cast<u32>(sizeof(Factors)));
          totals[r][k] += products[r].v[k] * f.of_product + sum_of_x.v[k % 2] * f.of_sum;
        } else {
          totals[r][k] += products[r].v[k];
        }
      }
    }
  }

  TensorTask& task_;
  const u32 warp_;
  const u32 lane_;
};

// The chunks share the products of 32 rows with each batch of vectors. REQUIRES: task.fits, and a
// barrier after Prepare. Results of quantized weights, or of x of float, that are not finite must
// be computed again (TensorProduct::kChecked): afterwards task.not_finite says whether there may be
// any.
template <typename Format>
RESIDENT_NOINLINE void MultiplyByTensorCores(Block block, TensorTask& task) {
  const TensorProduct<Format> product(block, task);
  RESIDENT_UNROLL(1)
  for (i64 item = task.share.begin; item < task.share.end; ++item) {
    const i64 rows = task.batches == 1 ? item : Quotient(item, task.batches);
    const i64 row = rows * TensorTask::kItemRows;
    const i64 vector = (item - rows * task.batches) * product.kItemVectors;
    const u32 vectors =
        static_cast<u32>(Smallest(task.product.vectors - vector, product.kItemVectors));
    product.AddUnits(block, row, vector, vectors);
    block.barrier();
    product.StoreSums(block, row, vector, vectors);
    block.barrier();  // The reads of the sums have finished.
  }
}

#endif  // RESIDENT_WARPS

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_GEMV_TENSOR_CORES_H_
