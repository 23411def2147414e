// This header multiplies vectors with a matrix of weights, all of float32, for gemv and linear.
// vector_products.h has the products for operands that are not aligned, and for blocks that do not
// have 256 threads.
//
//   if (resident::MultiplyFloats</*kLinear=*/false>(block, args)) return;
//
// The weights are requested before the vectors may be read (Block::await_inputs), and all that is
// computed from shapes is computed before. The products are added in float32 (FMA).
//
// One vector (OneFloatVector): a warp has adjacent rows, and a lane four adjacent columns of each
// piece of 128 columns. A unit has 8 such quads of a lane: of 8 rows of up to 128 columns, of 4 of
// up to 256, or of 2 with 512 columns at a time. One unit is on its way to registers, and the next
// one to the block's memory, where the lane reads what it has copied itself. So each block has 64
// KiB on their way, and needs no barrier: a lane reads its columns of x itself.
//
// Several vectors (FloatTiles): the block computes tiles of 16 vectors and 16 rows. The warps
// divide the columns, in units of 16, so that a warp needs only its own columns, and reads these
// itself; then their parts are added. A lane has four vectors and four rows, for every second quad
// of columns.
//
// The arguments are read from the block's memory where they are needed: registers are for weights.
//
// In both the order of additions depends on the depth only: the bits of a result depend neither on
// the number of chunks nor on the other vectors and rows.
#ifndef RESIDENT_KERNELS_OPS_GEMV_FLOATS_H_
#define RESIDENT_KERNELS_OPS_GEMV_FLOATS_H_

#include "kernels/ops/gemv_one_vector.h"
#include "kernels/ops/gemv_tensor_cores.h"
#include "kernels/ops/linear_epilogue.h"
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/operator.h"

namespace resident {

#if RESIDENT_WARPS

inline constexpr u32 kFloatWarps = 8;

RESIDENT_DEVICE Quad<float> ToQuad(const Bytes16& bytes) {
  Quad<float> quad;
  for (u32 i = 0; i < 4; ++i) quad.v[i] = bit_cast<float>(bytes.words[i]);
  return quad;
}

// The results of gemv or linear: what is added to the sums, and where they are stored. x and w are
// arguments 0 and 1.
template <bool kLinear>
class FloatResults {
 public:
  static constexpr u32 kMatrix = 1;
  static constexpr u32 kBias = 2;
  static constexpr u32 kResidual = 3;
  static constexpr u32 kOut = kLinear ? kLinearOut : 3;

  RESIDENT_DEVICE explicit FloatResults(const Args& args) : args_(args) {}

  static RESIDENT_DEVICE bool Exists(const TensorArgument& tensor) {
    return (tensor.rank != 1) | (tensor.shape[0] != 0);
  }

  RESIDENT_DEVICE Addends Load(u32 vector, u32 row) const {
    Addends addends = {0.0f, 0.0f};
    const TensorArgument& bias = args_.described(kBias);
    if (Exists(bias)) {
      addends.bias = LoadFloat(bias.address, bias.dtype, bias.rank == 1 ? row : At(vector, row));
    }
    if constexpr (kLinear) {
      const TensorArgument& residual = args_.described(kResidual);
      if (Exists(residual)) {
        addends.residual = LoadFloat(residual.address, residual.dtype, At(vector, row));
      }
    }
    return addends;
  }
  RESIDENT_DEVICE void Store(u32 vector, u32 row, float sum, const Addends& addends) const {
    // There may be none, and -0 + 0 is 0.
    if (Exists(args_.described(kBias))) sum += addends.bias;
    if constexpr (kLinear) {
      sum = Activate(ReadActivation(args_), sum);
      if (Exists(args_.described(kResidual))) sum += addends.residual;
    }
    const TensorArgument& out = args_.described(kOut);
    StoreFloat(out.address, out.dtype, At(vector, row), sum);
  }

 private:
  RESIDENT_DEVICE i64 At(u32 vector, u32 row) const {
    return i64{vector} * args_.described(kMatrix).shape[0] + row;
  }

  const Args& args_;
};

// kPieces: the pieces of 128 columns that a lane has of x at a time: 1, 2 or 4.
template <bool kLinear, u32 kPieces>
class OneFloatVector {
 public:
  RESIDENT_DEVICE OneFloatVector(const Block& block, const Args& args)
      : args_(args), lane_(LaneOf(block)) {
    const TensorArgument& w = args.described(FloatResults<kLinear>::kMatrix);
    depth_ = static_cast<u32>(w.shape[1]);
    const WarpRows own(block, static_cast<u32>(w.shape[0]));
    row_ = own.first;
    end_ = own.first + own.count;
    next_row_ = row_;
    at_ = w.address + (u64{row_} * depth_ + lane_ * 4) * sizeof(float);
    place_ = AddressInMemory(block.memory<unsigned char>(0, kFloatWarps * kUnitBytes)) +
             WarpOf(block) * kUnitBytes + lane_ * kChunkBytes;
  }

  RESIDENT_DEVICE void Run(const Block& block) {
    Bytes16 unit[kQuads];
    ForEachQuad([&](u32 i, u64 from, bool exists) {
      unit[i] = {{0, 0, 0, 0}};
      if (exists) unit[i] = LoadOnce(reinterpret_cast<const Bytes16*>(from));
    });
    Advance();
    Copy();
    if (!block.await_inputs()) {
      WaitForCopies<0>();
      return;
    }
    Quad<float> x[kPieces];
    LoadX(0, x);
    u32 column = 0;
    RESIDENT_UNROLL(1)
    for (; row_ < end_; row_ += kRows) {
      const u32 own = row_ + lane_ / kRowLanes;
      const bool stores = (lane_ % kRowLanes == 0) & (own < end_);
      const FloatResults<kLinear> results(args_);
      Addends addends = {0.0f, 0.0f};
      if (stores) addends = results.Load(0, own);
      float sums[kRows] = {};
      RESIDENT_UNROLL(1)
      for (;;) {
        for (u32 k = 0; k < kPieces; ++k) {
          for (u32 r = 0; r < kRows; ++r) {
            const Quad<float> w = ToQuad(unit[r * kPieces + k]);
            float partial = w.v[0] * x[k].v[0];
            for (u32 i = 1; i < 4; ++i) partial += w.v[i] * x[k].v[i];
            sums[r] += partial;
          }
        }
        column += kColumns;
        const bool ends = column >= depth_;
        if (ends) column = 0;
        if (!ends || row_ + kRows < end_) {
          // The next unit, which has been copied, and behind it another one.
          WaitForCopies<0>();
          for (u32 i = 0; i < kQuads; ++i) unit[i] = Load16(place_ + i * kPieceBytes);
          Copy();
          if (depth_ > kColumns) LoadX(column, x);
        }
        if (ends) break;
      }
      const float sum = SumOfRow(sums);
      if (stores) results.Store(0, own, sum, addends);
    }
    WaitForCopies<0>();
  }

 private:
  static constexpr u32 kQuads = 8;  // Of a lane in a unit.
  static constexpr u32 kRows = kQuads / kPieces;
  static constexpr u32 kColumns = kPieces * kWarpThreads * 4;
  static constexpr u32 kUnitBytes = kQuads * kPieceBytes;
  static_assert(kFloatWarps * kUnitBytes <= kBlockMemoryBytes, "");
  // Adjacent lanes that have the sum of the same row in the end.
  static constexpr u32 kRowLanes = kWarpThreads / kRows;

  // Calls take(i, address, exists) for the lane's quads of the next unit.
  template <typename F>
  RESIDENT_DEVICE void ForEachQuad(F take) const {
    for (u32 r = 0; r < kRows; ++r) {
      for (u32 k = 0; k < kPieces; ++k) {
        const bool exists =
            (next_row_ + r < end_) & (next_column_ + lane_ * 4 + k * kWarpThreads * 4 < depth_);
        take(r * kPieces + k, at_ + (u64{r} * depth_ + k * kWarpThreads * 4) * sizeof(float),
             exists);
      }
    }
  }
  RESIDENT_DEVICE void Advance() {
    next_column_ += kColumns;
    at_ += kColumns * sizeof(float);
    if (next_column_ < depth_) return;
    at_ += (u64{kRows} * depth_ - next_column_) * sizeof(float);
    next_column_ = 0;
    next_row_ += kRows;
  }
  // Starts the copies of the next unit, if there is one. Quads that do not exist become 0.
  RESIDENT_DEVICE void Copy() {
    if (next_row_ >= end_) return;
    ForEachQuad([&](u32 i, u64 from, bool exists) {
      CopyAsync(place_ + i * kPieceBytes, from, exists ? kChunkBytes : 0);
    });
    CommitCopies();
    Advance();
  }

  RESIDENT_DEVICE void LoadX(u32 column, Quad<float> (&x)[kPieces]) const {
    for (u32 k = 0; k < kPieces; ++k) {
      const u32 at = column + (k * kWarpThreads + lane_) * 4;
      for (float& value : x[k].v) value = 0.0f;
      if (at < depth_) x[k] = *ElementAt<const Quad<float>>(args_.described(0).address, at / 4);
    }
  }

  // (warp) The sum of row lane / kRowLanes over all lanes.
  RESIDENT_DEVICE float SumOfRow(float (&sums)[kRows]) const {
    u32 mask = kWarpThreads / 2;
    RESIDENT_UNROLL(4)
    for (u32 half = kRows / 2; half > 0; half /= 2, mask /= 2) {
      const bool upper = (lane_ & mask) != 0;
      RESIDENT_UNROLL(4)
      for (u32 r = 0; r < half; ++r) {
        const float other = ShuffleXor(upper ? sums[r] : sums[r + half], mask);
        sums[r] = (upper ? sums[r + half] : sums[r]) + other;
      }
    }
    RESIDENT_UNROLL(5)
    for (u32 width = kRowLanes / 2; width > 0; width /= 2) sums[0] += ShuffleXor(sums[0], width);
    return sums[0];
  }

  const Args& args_;
  const u32 lane_;
  u32 depth_;
  // The warp's rows that are left.
  u32 row_;
  u32 end_;
  // The next unit that is requested: its first row and column, and where the lane's first quad is.
  u32 next_row_;
  u32 next_column_ = 0;
  u64 at_;
  MemoryAddress place_;  // Of the lane's first quad in the block's memory.
};

template <bool kLinear>
class FloatTiles {
 public:
  // `step`: elements from a vector to the next one.
  RESIDENT_DEVICE FloatTiles(const Block& block, const Args& args, u32 vectors, i64 step)
      : args_(args), vectors_(vectors), step_(step), warp_(WarpOf(block)), lane_(LaneOf(block)) {
    const TensorArgument& w = args.described(FloatResults<kLinear>::kMatrix);
    rows_ = static_cast<u32>(w.shape[0]);
    depth_ = static_cast<u32>(w.shape[1]);
    const u32 units = (depth_ + kUnitColumns - 1) / kUnitColumns;
    units_ = (units + kFloatWarps - 1 - warp_) / kFloatWarps;
    ring_ = AddressInMemory(block.memory<unsigned char>(0, kFloatWarps * kWarpBytes)) +
            warp_ * kWarpBytes;
  }

  RESIDENT_DEVICE void Run(const Block& block) {
    const u32 groups = (vectors_ + kTile - 1) / kTile;
    const u32 items = (rows_ + kTile - 1) / kTile * groups;
    const u32 chunks = static_cast<u32>(block.chunk_count());
    const u32 chunk = static_cast<u32>(block.chunk());
    const u32 each = items / chunks;
    const u32 more = items - each * chunks;
    u32 item = chunk * each + (chunk < more ? chunk : more);
    u32 left = each + (chunk < more ? 1 : 0);
    bool awaited = false;
    RESIDENT_UNROLL(1)
    for (; left > 0; --left, ++item) {
      const u32 tile = groups == 1 ? item : item / groups;
      const u32 first_row = tile * kTile;
      const u32 first_vector = (item - tile * groups) * kTile;
      const Source w = FindSource(args_.described(FloatResults<kLinear>::kMatrix).address, depth_,
                                  first_row, rows_);
      for (u32 unit = 0; unit < kWeightSlots; ++unit) {
        Copy(w, unit, unit * kSlotBytes);
        CommitCopies();
      }
      const Source x = FindSource(args_.described(0).address, step_, first_vector, vectors_);
      if (awaited) {
        block.barrier();  // The reads of the parts of the tile before have finished.
      } else if (!block.await_inputs()) {
        WaitForCopies<0>();
        return;
      }
      awaited = true;
      for (u32 unit = 0; unit < kVectorSlots; ++unit) {
        Copy(x, unit, kVectorsAt + unit * kSlotBytes);
        CommitCopies();
      }
      const u32 vector = first_vector + block.thread() / kTile;
      const u32 row = first_row + block.thread() % kTile;
      const bool stores = (vector < vectors_) & (row < rows_);
      const FloatResults<kLinear> results(args_);
      Addends addends = {0.0f, 0.0f};
      if (stores) addends = results.Load(vector, row);
      AddUnits(w, x, block);
      block.barrier();
      float sum = 0.0f;
      RESIDENT_UNROLL(8)
      for (u32 warp = 0; warp < kFloatWarps; ++warp) sum += PartsOf(block, warp)[block.thread()];
      if (stores) results.Store(vector, row, sum, addends);
    }
    if (!awaited) (void)block.await_inputs();
  }

 private:
  static constexpr u32 kTile = 16;
  static constexpr u32 kUnitColumns = 16;
  static constexpr u32 kUnitQuads = kUnitColumns / 4;
  // A slot has a unit of 16 rows, or of 16 vectors. A warp has a ring of each.
  static constexpr u32 kSlotBytes = kTile * kUnitColumns * sizeof(float);
  static constexpr u32 kWeightSlots = 3;
  static constexpr u32 kVectorSlots = 2;
  static constexpr u32 kVectorsAt = kWeightSlots * kSlotBytes;
  static constexpr u32 kWarpBytes = kVectorsAt + kVectorSlots * kSlotBytes;
  static_assert(kFloatWarps * kWarpBytes <= kBlockMemoryBytes, "");
  // Of a lane: vectors, and rows. Lanes that differ in one of the lowest two bits read the same of
  // one operand at the same time.
  static constexpr u32 kMicro = 4;

  // Rows of w, or vectors of x, of a tile: the lane copies a quad of two of them in each unit.
  struct Source {
    u64 first;  // The quad of the first unit.
    u64 to_second;
    u32 count;  // Of the two, those that exist.
  };
  RESIDENT_DEVICE Source FindSource(u64 address, i64 step, u32 first, u32 count) const {
    const u32 own = first + lane_ / kUnitQuads;
    const i64 at = i64{own < count ? own : 0} * step + OwnColumn();
    return {address + static_cast<u64>(at) * sizeof(float),
            static_cast<u64>(step) * (kTile / 2) * sizeof(float),
            own + kTile / 2 < count ? 2u
            : own < count           ? 1u
                                    : 0u};
  }
  RESIDENT_DEVICE u32 OwnColumn() const { return warp_ * kUnitColumns + lane_ % kUnitQuads * 4; }

  // The place of a quad in a slot. Four adjacent rows have the same quad in different banks.
  static RESIDENT_DEVICE constexpr u32 PlaceOf(u32 row, u32 quad) {
    return (row * kUnitQuads + (quad ^ (row / 2 % kUnitQuads))) * kChunkBytes;
  }

  // Starts the lane's copies of one of the warp's units to a slot. Those of a unit that does not
  // exist are none; rows and columns that do not exist become 0.
  RESIDENT_DEVICE void Copy(const Source& from, u32 unit, u32 slot) const {
    if (unit >= units_) return;
    constexpr u32 kStep = kFloatWarps * kUnitColumns;
    const u32 count = OwnColumn() + unit * kStep < depth_ ? from.count : 0;
    const u64 at = from.first + u64{unit} * (kStep * sizeof(float));
    const MemoryAddress to = ring_ + slot + PlaceOf(lane_ / kUnitQuads, lane_ % kUnitQuads);
    CopyAsync(to, at, count > 0 ? kChunkBytes : 0);
    // Half a tile has whole turns of PlaceOf.
    CopyAsync(to + kSlotBytes / 2, at + from.to_second, count > 1 ? kChunkBytes : 0);
  }

  // The warp's part of the sums of a tile, to its parts.
  RESIDENT_DEVICE void AddUnits(const Source& w, const Source& x, const Block& block) const {
    const u32 own_vector = (lane_ & 1) | (lane_ >> 1 & 2);
    const u32 own_row = (lane_ >> 1 & 1) | (lane_ >> 2 & 2);
    const u32 half = lane_ / 16;
    float sums[kMicro][kMicro] = {};
    u32 weight_slot = 0;
    u32 vector_slot = kVectorsAt;
    RESIDENT_UNROLL(1)
    for (u32 unit = 0; unit < units_; ++unit) {
      WaitForCopies<kVectorSlots - 1>();
      SynchronizeWarp();
      RESIDENT_UNROLL(2)
      for (u32 k = 0; k < kUnitQuads; k += 2) {
        Quad<float> left[kMicro];
        Quad<float> right[kMicro];
        for (u32 i = 0; i < kMicro; ++i) {
          left[i] = ToQuad(Load16(ring_ + vector_slot + PlaceOf(own_vector + 4 * i, k + half)));
          right[i] = ToQuad(Load16(ring_ + weight_slot + PlaceOf(own_row + 4 * i, k + half)));
        }
        for (u32 c = 0; c < 4; ++c) {
          for (u32 i = 0; i < kMicro; ++i) {
            for (u32 j = 0; j < kMicro; ++j) sums[i][j] += left[i].v[c] * right[j].v[c];
          }
        }
      }
      SynchronizeWarp();  // The reads of the slots have finished.
      Copy(w, unit + kWeightSlots, weight_slot);
      Copy(x, unit + kVectorSlots, vector_slot);
      CommitCopies();
      weight_slot = weight_slot + kSlotBytes == kVectorsAt ? 0 : weight_slot + kSlotBytes;
      vector_slot = vector_slot + kSlotBytes == kWarpBytes ? kVectorsAt : vector_slot + kSlotBytes;
    }
    WaitForCopies<0>();
    // The lanes of each half store the sums of two of the vectors.
    float* const parts = PartsOf(block, warp_);
    for (u32 i = 0; i < kMicro / 2; ++i) {
      for (u32 j = 0; j < kMicro; ++j) {
        const float other = ShuffleXor(half == 0 ? sums[i + 2][j] : sums[i][j], 16);
        const float own = half == 0 ? sums[i][j] : sums[i + 2][j];
        // The columns of the first half are added first.
        const float sum = half == 0 ? own + other : other + own;
        parts[(own_vector + 4 * (i + 2 * half)) * kTile + own_row + 4 * j] = sum;
      }
    }
  }
  // The sums of a warp: in the first slot of its vectors.
  RESIDENT_DEVICE float* PartsOf(const Block& block, u32 warp) const {
    return block.memory<float>(warp * kWarpBytes + kVectorsAt, kTile * kTile);
  }

  const Args& args_;
  const u32 vectors_;
  const i64 step_;
  const u32 warp_;
  const u32 lane_;
  u32 rows_;
  u32 depth_;
  u32 units_;  // Of the warp.
  MemoryAddress ring_;
};

// (collective) The operator gemv or linear, which awaits its inputs. False: the operands have
// another form, or must be refused, and nothing was awaited.
template <bool kLinear>
RESIDENT_DEVICE bool MultiplyFloats(const Block& block, const Args& args) {
  using Results = FloatResults<kLinear>;
  if (!kReadsDirectly) return false;
  const TensorArgument& x = args.described(0);
  const TensorArgument& w = args.described(Results::kMatrix);
  const TensorArgument& bias = args.described(Results::kBias);
  const TensorArgument& out = args.described(Results::kOut);
  const i64 rows = w.shape[0];
  const i64 depth = w.shape[1];
  const bool can = (w.dtype == DType::kF32) & (x.dtype == DType::kF32) & (depth > 0) &
                   (depth % 4 == 0) & (depth >> 30 == 0) & (rows > 0) & (rows >> 30 == 0) &
                   (block.chunk_count() >> 24 == 0) & ((x.address | w.address) % kChunkBytes == 0) &
                   (block.threads() == kFloatWarps * kWarpThreads);
  if (!can) return false;
  i64 vectors = 1;
  RESIDENT_UNROLL(1)
  for (u32 d = 0; d + 1 < out.rank; ++d) vectors *= out.shape[d];
  if (vectors <= 0 || vectors >> 30 != 0 || (vectors >> 4) * (rows >> 4) >> 28 != 0) return false;
  const auto is_result = [&](const TensorArgument& tensor) {
    bool same = tensor.rank == out.rank;
    RESIDENT_UNROLL(1)
    for (u32 d = 0; same && d < out.rank; ++d) same = tensor.shape[d] == out.shape[d];
    return same;
  };
  if (Results::Exists(bias) && !(bias.rank == 1 ? bias.shape[0] == rows : is_result(bias))) {
    return false;
  }
  i64 step = depth;
  if constexpr (kLinear) {
    const TensorArgument& residual = args.described(Results::kResidual);
    const i64 activation = args.scalar<i64>(kLinearActivation);
    if (activation < 0 || activation >= kActivations) return false;
    if (Results::Exists(residual) && !is_result(residual)) return false;
    if (!FindVectorStep(x, &step) || step % 4 != 0) return false;
  }
  if (vectors > 1) {
    FloatTiles<kLinear>(block, args, static_cast<u32>(vectors), step).Run(block);
  } else if (depth <= 128) {
    OneFloatVector<kLinear, 1>(block, args).Run(block);
  } else if (depth <= 256) {
    OneFloatVector<kLinear, 2>(block, args).Run(block);
  } else {
    OneFloatVector<kLinear, 4>(block, args).Run(block);
  }
  return true;
}

#endif  // RESIDENT_WARPS

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_GEMV_FLOATS_H_
