// This header computes gemv and gemv_silu_mul of 2 to 16 vectors of float32 with weights of
// bfloat16, and the same with the normalization of the vectors in front (rmsnorm_gemv,
// rmsnorm_gemv_silu_mul), as a step that decodes several texts needs them. gemv_one_vector.h has
// the products of one vector, gemv_tensor_cores.h and vector_products.h those of other forms, and
// those in blocks that do not have 256 threads.
//
//   if (resident::MultiplySeveralVectors</*kNormalized=*/false>(block, args)) return;
//
// The weights are read once. A row consists of units of 64 bytes, which the warps have in turn, so
// that a warp needs only its own columns of the vectors, and reads these itself, and the block
// reads adjacent units at about the same time. The block computes up to 64 rows at a time, in tiles
// of 16: with 8 vectors four tiles, with 16 vectors two. The products of a unit are computed by
// tensor cores (tensor_cores.h), and are added in float32. Then the parts of the warps are added,
// in their order: the bits of a row depend neither on the number of chunks nor on the rows with
// which it is computed.
//
// A lane has four tiles of units on their way to the block's memory, also from one group of rows to
// the next one, and the first ones start before the vectors may be read (Block::await_inputs). It
// reads what it has copied itself, so that no thread waits for another one. The elements of x for
// the next unit are on their way to registers. Those for the one behind it were tried, in registers
// and as requests of the L1 cache: each made the loop longer, and the products slower.
//
// x has two parts: x rounded to bfloat16, and the rounded rest. What is left of x after both is at
// most 2^-17 of it. A result that is not finite is computed again in float32: the first part of x
// may be out of range, and an infinite weight makes the products with a second part of 0 NaN.
//
// With a normalization the factor is that of gemv_one_vector.h: out = sum of (x * norm) * w, times
// 1 / sqrt(mean + eps). The means are computed beside the products of the first rows.
#ifndef RESIDENT_KERNELS_OPS_GEMV_SEVERAL_VECTORS_H_
#define RESIDENT_KERNELS_OPS_GEMV_SEVERAL_VECTORS_H_

#include "kernels/ops/gemv_one_vector.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/operator.h"

namespace resident {

#if RESIDENT_WARPS

// The sum of a row, in float32 and by one thread, which ends when it is NaN. `matrix`: the
// argument.
template <bool kNormalized>
RESIDENT_DEVICE float SumOfFloats(const Args& args, u32 matrix, u64 vector, u64 row) {
  const TensorArgument& w = args.described(matrix);
  const u64 depth = static_cast<u64>(w.shape[1]);
  float sum = 0.0f;
  RESIDENT_UNROLL(1)
  for (u64 k = 0; k < depth; ++k) {
    float value = *ElementAt<const float>(args.described(0).address, vector * depth + k);
    if constexpr (kNormalized) value *= *ElementAt<const BFloat16>(args.described(1).address, k);
    sum += value * *ElementAt<const BFloat16>(w.address, row * depth + k);
    if (sum != sum) break;
  }
  return sum;
}

// kColumnGroups: groups of 8 vectors, 1 or 2.
template <bool kGated, bool kNormalized, u32 kColumnGroups>
class SeveralVectors {
 public:
  static constexpr u32 kWarps = 8;
  static constexpr u32 kMaxVectors = 8 * kColumnGroups;
  static constexpr u32 kUnitColumns = 32;

  RESIDENT_DEVICE SeveralVectors(const Block& block, const Args& args)
      : args_(args),
        warp_(WarpOf(block)),
        lane_(LaneOf(block)),
        depth_(static_cast<u32>(args.described(kMatrix).shape[1])) {
    const TensorArgument& w = args.described(kMatrix);
    const Range share = block.share(w.shape[0]);
    row_ = static_cast<u32>(share.begin);
    end_ = static_cast<u32>(share.end);
    units_ = (depth_ / kUnitColumns + kWarps - 1 - warp_) / kWarps;
    ring_ =
        AddressInMemory(block.memory<unsigned char>()) + warp_ * kRingBytes + lane_ * kChunkBytes;
    copied_row_ = row_;
    const TensorArgument& x = args.described(0);
    const u32 vectors = static_cast<u32>(x.shape[0]);
    for (u32 n = 0; n < kColumnGroups; ++n) {
      const u32 vector = 8 * n + lane_ / 4;
      // A vector that does not exist is the last one, whose products are not used.
      const u64 existing = vector < vectors ? vector : vectors - 1;
      x_at_[n] = x.address + (existing * depth_ + OwnColumn(0)) * sizeof(float);
    }
  }

  RESIDENT_DEVICE void Run(const Block& block) {
    for (u32 slot = 0; slot < kSlots; ++slot) Copy(slot);
    if (kNormalized && units_ != 0) LoadNorm(0);
    if (!block.await_inputs()) {
      WaitForCopies<0>();
      return;
    }
    if (units_ != 0) LoadX(0);
    u32 slot = 0;
    bool first = true;
    RESIDENT_UNROLL(1)
    for (; row_ < end_; row_ += kGroupRows) {
      AddUnits(slot, first);
      if (kNormalized && first) ComputeScale(block);
      first = false;
      StoreSums(block);
    }
    WaitForCopies<0>();
  }

 private:
  static constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
  static constexpr u32 kColumns = kMaxVectors;
  static constexpr u32 kTileRows = 16;
  static constexpr u32 kUnitBytes = kUnitColumns * sizeof(BFloat16);
  // The parts of the warps are added in two rounds, which have 256 results each. With two matrices
  // the first round has the products of the first one.
  static constexpr u32 kRounds = 2;
  static constexpr u32 kRoundTiles = 2 / kColumnGroups;
  static constexpr u32 kRoundRows = kRoundTiles * kTileRows;
  static constexpr u32 kRoundSums = kRoundRows * kColumns;
  static_assert(kRoundSums == kWarps * kWarpThreads, "a thread has one result of each round");
  static constexpr u32 kTiles = kRounds * kRoundTiles;
  static constexpr u32 kGroupRows = kGated ? kRoundRows : kRounds * kRoundRows;
  // A slot of the ring has a tile of a unit: a chunk of each lane in rows g, and one in rows g + 8.
  static constexpr u32 kSlots = 4;
  static constexpr u32 kSlotBytes = kTileRows * kUnitBytes;
  static constexpr u32 kRingBytes = kSlots * kSlotBytes;
  static constexpr u32 kSumsAt = kWarps * kRingBytes;
  static_assert(kSumsAt + kWarps * kRoundSums * sizeof(float) <= kBlockMemoryBytes, "");

  // The first row of a tile, from that of its group on.
  static RESIDENT_DEVICE constexpr u32 RowOfTile(u32 tile) {
    return (kGated ? tile % kRoundTiles : tile) * kTileRows;
  }

  // Requests the lane's chunks of the next tile. There may be none, which still is a group of
  // copies.
  RESIDENT_DEVICE void Copy(u32 slot) {
    if (copied_row_ < end_ && units_ != 0) {
      const TensorArgument& w =
          args_.described(kMatrix + (kGated && copied_tile_ >= kRoundTiles ? 1 : 0));
      const u32 row = copied_row_ + RowOfTile(copied_tile_) + lane_ / 4;
      const u64 column = OwnColumn(copied_unit_);
      const MemoryAddress to = ring_ + slot * kSlotBytes;
      for (u32 half = 0; half < 2; ++half) {
        // A row that does not exist has zeros.
        const bool exists = row + 8 * half < end_;
        const u64 from = u64{exists ? row + 8 * half : copied_row_} * depth_ + column;
        CopyAsyncOfLineFor(LastUse(), to + half * (kSlotBytes / 2),
                           w.address + from * sizeof(BFloat16), exists ? kChunkBytes : 0);
      }
      ++copied_tile_;
      if (kGated && copied_tile_ < kRoundTiles && !Exists(copied_row_, copied_tile_)) {
        copied_tile_ = kRoundTiles;
      }
      if (copied_tile_ == kTiles || !Exists(copied_row_, copied_tile_)) {
        copied_tile_ = 0;
        if (++copied_unit_ == units_) {
          copied_unit_ = 0;
          copied_row_ += kGroupRows;
        }
      }
    }
    CommitCopies();
  }
  // Whether a group has rows in this tile.
  RESIDENT_DEVICE bool Exists(u32 row, u32 tile) const { return row + RowOfTile(tile) < end_; }

  // The lane's first column of a unit of the warp.
  RESIDENT_DEVICE u32 OwnColumn(u32 unit) const {
    return (unit * kWarps + warp_) * kUnitColumns + lane_ % 4 * kRunWeights;
  }

  RESIDENT_DEVICE void LoadX(u32 unit) {
    for (u32 n = 0; n < kColumnGroups; ++n) {
      for (u32 k = 0; k < 2; ++k) {
        x_[n][k] = *ElementAt<const Quad<float>>(x_at_[n], unit * (kWarps * kUnitColumns / 4) + k);
      }
    }
  }
  RESIDENT_DEVICE void LoadNorm(u32 unit) {
    norm_ = *ElementAt<const Bytes16>(args_.described(1).address, OwnColumn(unit) / kRunWeights);
  }

  // The warp's part of the sums of the rows from row_ on.
  RESIDENT_DEVICE void AddUnits(u32& slot, bool first) {
    RESIDENT_UNROLL(kTiles)
    for (u32 tile = 0; tile < kTiles; ++tile) {
      for (u32 n = 0; n < kColumnGroups; ++n) sums_[tile][n] = {};
    }
    RESIDENT_UNROLL(1)
    for (u32 unit = 0; unit < units_; ++unit) AddUnit(unit, slot, first);
  }

  // Adds the products of a unit, whose elements of x have been loaded.
  RESIDENT_DEVICE void AddUnit(u32 unit, u32& slot, [[maybe_unused]] bool first) {
    // The lane's elements of both parts of x: right[n][part][k] has those of product k.
    RightFragment right[kColumnGroups][2][2];
    [[maybe_unused]] const float per_column = 1.0f / static_cast<float>(depth_);
    for (u32 n = 0; n < kColumnGroups; ++n) {
      for (u32 i = 0; i < 4; ++i) {
        float a = x_[n][i / 2].v[i % 2 * 2];
        float b = x_[n][i / 2].v[i % 2 * 2 + 1];
        if constexpr (kNormalized) {
          if (first) squares_[n] += a * a * per_column + b * b * per_column;
          a *= BFloat16::Widen(static_cast<u16>(norm_.words[i]));
          b *= BFloat16::Widen(static_cast<u16>(norm_.words[i] >> 16));
        }
        const u32 rounded = Pack<BFloat16>(a, b);
        right[n][0][i / 2].v[i % 2] = rounded;
        right[n][1][i / 2].v[i % 2] =
            Pack<BFloat16>(a - BFloat16::Widen(static_cast<u16>(rounded)),
                           b - BFloat16::Widen(static_cast<u16>(rounded >> 16)));
      }
    }
    // The next rows begin with the first unit again.
    const u32 next = unit + 1 == units_ ? 0 : unit + 1;
    LoadX(next);
    if constexpr (kNormalized) LoadNorm(next);
    RESIDENT_UNROLL(kTiles)
    for (u32 tile = 0; tile < kTiles; ++tile) {
      if (!Exists(row_, tile)) continue;
      WaitForCopies<kSlots - 1>();
      const MemoryAddress place = ring_ + slot * kSlotBytes;
      const Bytes16 upper = Load16(place);
      const Bytes16 lower = Load16(place + kSlotBytes / 2);
      Copy(slot);
      slot = (slot + 1) % kSlots;
      for (u32 n = 0; n < kColumnGroups; ++n) {
        Accumulator products = {};
        for (u32 k = 0; k < 2; ++k) {
          const LeftFragment left = {{upper.words[2 * k], lower.words[2 * k],
                                      upper.words[2 * k + 1], lower.words[2 * k + 1]}};
          for (u32 part = 0; part < 2; ++part) {
            MultiplyAdd<BFloat16>(products, left, right[n][part][k]);
          }
        }
        for (u32 k = 0; k < 4; ++k) sums_[tile][n].v[k] += products.v[k];
      }
    }
  }

  // Where the warps' parts of a round are. Adjacent lanes have them in different banks.
  RESIDENT_DEVICE float* PartsOf(const Block& block, u32 warp) const {
    return block.memory<float>(kSumsAt, kWarps * kRoundSums) + warp * kRoundSums;
  }
  // The places of a column's sums follow each other, in this order of columns, and in the order of
  // rows ^ SwizzleOf(place).
  static RESIDENT_DEVICE constexpr u32 PlaceOf(u32 column) {
    return column % 2 * (kColumns / 2) + column / 2;
  }
  static RESIDENT_DEVICE constexpr u32 ColumnAt(u32 place) {
    return place % (kColumns / 2) * 2 + place / (kColumns / 2);
  }
  static RESIDENT_DEVICE constexpr u32 SwizzleOf(u32 place) {
    return kColumnGroups == 1 ? place % 4 * 8 : place / 2 % 2 * 8;
  }
  RESIDENT_DEVICE u32 OwnPlace() const { return Thread() / kRoundRows; }
  RESIDENT_DEVICE u32 Thread() const { return warp_ * kWarpThreads + lane_; }

  // Sets scale_ to that of the vector of which the thread has sums.
  RESIDENT_DEVICE void ComputeScale(const Block& block) {
    for (u32 n = 0; n < kColumnGroups; ++n) {
      const float sum = CombineLanes(
          squares_[n], [](float a, float b) { return a + b; }, 4);
      if (lane_ % 4 == 0) PartsOf(block, 0)[warp_ * kColumns + 8 * n + lane_ / 4] = sum;
    }
    block.barrier();
    const u32 column = ColumnAt(OwnPlace());
    float mean = 0.0f;
    for (u32 warp = 0; warp < kWarps; ++warp) {
      mean += PartsOf(block, 0)[warp * kColumns + column];
    }
    scale_ = math::rsqrt(mean + args_.scalar<float>(kMatrix + 3));
    block.barrier();  // The reads of the parts have finished.
  }

  // Adds the warps' parts, and stores the results.
  RESIDENT_DEVICE void StoreSums(const Block& block) {
    const u32 g = lane_ / 4;
    const u32 t = lane_ % 4;
    const u32 place = OwnPlace();
    const u32 column = ColumnAt(place);
    [[maybe_unused]] float gate = 0.0f;
    RESIDENT_UNROLL(kRounds)
    for (u32 round = 0; round < kRounds; ++round) {
      if (!Exists(row_, round * kRoundTiles)) break;
      float* const parts = PartsOf(block, warp_);
      for (u32 i = 0; i < kRoundTiles; ++i) {
        for (u32 n = 0; n < kColumnGroups; ++n) {
          for (u32 k = 0; k < 4; ++k) {
            const u32 to = PlaceOf(8 * n + 2 * t + k % 2);
            const u32 row = i * kTileRows + k / 2 * 8 + g;
            parts[to * kRoundRows + (row ^ SwizzleOf(to))] = sums_[round * kRoundTiles + i][n].v[k];
          }
        }
      }
      block.barrier();
      float sum = 0.0f;
      for (u32 warp = 0; warp < kWarps; ++warp) sum += PartsOf(block, warp)[Thread()];
      block.barrier();  // The reads of the parts have finished.
      const u32 row =
          row_ + RowOfTile(round * kRoundTiles) + ((Thread() % kRoundRows) ^ SwizzleOf(place));
      if (column >= static_cast<u32>(args_.described(0).shape[0]) || row >= end_) continue;
      if (!(sum - sum == 0.0f)) {
        sum = SumOfFloats<kNormalized>(args_, kMatrix + (kGated ? round : 0), column, row);
      }
      if constexpr (kNormalized) sum *= scale_;
      if constexpr (kGated) {
        if (round == 0) {
          gate = sum;
          continue;
        }
        sum = math::silu_mul(gate, sum);
      } else {
        const TensorArgument& bias = args_.described(kMatrix + 1);
        if (bias.shape[0] != 0) {
          const u64 first = bias.rank == 1 ? 0 : u64{column} * static_cast<u32>(bias.shape[1]);
          sum += LoadFloat(bias.address, bias.dtype, static_cast<i64>(first + row));
        }
      }
      const TensorArgument& out = args_.described(kMatrix + 2);
      const u64 rows = static_cast<u64>(args_.described(kMatrix).shape[0]);
      StoreFloat(out.address, out.dtype, static_cast<i64>(column * rows + row), sum);
    }
  }

  const Args& args_;
  const u32 warp_;
  const u32 lane_;
  const u32 depth_;
  u32 units_;  // Of the warp.
  // The block's rows that are left.
  u32 row_;
  u32 end_;
  // The lane's first chunk in the ring, and the next tile that is requested.
  MemoryAddress ring_;
  u32 copied_row_;
  u32 copied_unit_ = 0;
  u32 copied_tile_ = 0;
  // The lane's elements of x: where those of its first unit are, and those of the next one.
  u64 x_at_[kColumnGroups];
  Quad<float> x_[kColumnGroups][2];
  Bytes16 norm_;
  Accumulator sums_[kTiles][kColumnGroups];
  // The lane's part of the means of the squares of x.
  float squares_[kColumnGroups] = {};
  float scale_ = 1.0f;
};

// Whether SeveralVectors can multiply x and w. All members are read at the same time.
RESIDENT_DEVICE bool CanMultiplySeveralVectors(const TensorArgument& x, const TensorArgument& w,
                                               const TensorArgument& out) {
  using Largest = SeveralVectors</*kGated=*/false, /*kNormalized=*/false, 2>;
  const u64 rows = static_cast<u64>(w.shape[0]);
  const u64 depth = static_cast<u64>(w.shape[1]);
  return (x.rank == 2) & (out.rank == 2) & (x.shape[0] > 1) & (x.shape[0] <= Largest::kMaxVectors) &
         (rows >> 31 == 0) & (depth >> 31 == 0) & (depth != 0) &
         (depth % Largest::kUnitColumns == 0) & (x.dtype == DType::kF32) &
         (w.dtype == DType::kBF16) & (w.address % sizeof(Bytes16) == 0) &
         (x.address % sizeof(Bytes16) == 0);
}

// Whether a bias is that of gemv: a row for all vectors, or one for each of them; or none.
RESIDENT_DEVICE bool IsBiasOfSeveral(const TensorArgument& bias, const TensorArgument& out) {
  return ((bias.rank == 1) & ((bias.shape[0] == 0) | (bias.shape[0] == out.shape[1]))) |
         ((bias.rank == 2) & (bias.shape[0] == out.shape[0]) & (bias.shape[1] == out.shape[1]));
}

template <bool kGated, bool kNormalized>
RESIDENT_DEVICE bool MultiplySeveralVectorsOf(const Block& block, const Args& args) {
  using OneGroup = SeveralVectors<kGated, kNormalized, 1>;
  using TwoGroups = SeveralVectors<kGated, kNormalized, 2>;
  if (!kReadsDirectly || block.chunk_count() >> 24 != 0 ||
      block.threads() != OneGroup::kWarps * kWarpThreads) {
    return false;
  }
  constexpr u32 kMatrix = kArgumentOfMatrix<kNormalized>;
  const TensorArgument& x = args.described(0);
  const TensorArgument& w = args.described(kMatrix);
  const TensorArgument& next = args.described(kMatrix + 1);
  const TensorArgument& out = args.described(kMatrix + 2);
  bool can = CanMultiplySeveralVectors(x, w, out);
  if constexpr (kGated) {
    can = can & (next.dtype == w.dtype) & (next.address % sizeof(Bytes16) == 0);
  } else {
    can = can & IsBiasOfSeveral(next, out);
  }
  if constexpr (kNormalized) {
    const TensorArgument& norm = args.described(1);
    can = can & (norm.dtype == w.dtype) & (norm.address % sizeof(Bytes16) == 0);
  }
  if (!can) return false;
  if (x.shape[0] <= OneGroup::kMaxVectors) {
    OneGroup(block, args).Run(block);
  } else {
    TwoGroups(block, args).Run(block);
  }
  return true;
}

#endif  // RESIDENT_WARPS

// (collective) The operator gemv, with kNormalized rmsnorm_gemv, which awaits its inputs. False:
// the operands have another form, or must be refused, and nothing was awaited.
template <bool kNormalized>
RESIDENT_DEVICE bool MultiplySeveralVectors([[maybe_unused]] const Block& block,
                                            [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  return MultiplySeveralVectorsOf</*kGated=*/false, kNormalized>(block, args);
#else
  return false;
#endif
}

// (collective) The same for gemv_silu_mul and rmsnorm_gemv_silu_mul.
template <bool kNormalized>
RESIDENT_DEVICE bool GateSeveralVectors([[maybe_unused]] const Block& block,
                                        [[maybe_unused]] const Args& args) {
#if RESIDENT_WARPS
  return MultiplySeveralVectorsOf</*kGated=*/true, kNormalized>(block, args);
#else
  return false;
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_GEMV_SEVERAL_VECTORS_H_
