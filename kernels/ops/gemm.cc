// The operators gemm and gemm_batched of the family "matrix": products of matrices.
//
// A block of several threads computes a tile of the product: from operands of 16 bits with tensor
// cores, otherwise from tiles of the operands in the block's memory. A block of one thread (the CPU
// engine) computes it from packed panels, with a loop that compilers vectorize.
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

constexpr bool kOneThread = Block::kMaxThreads == 1;

RESIDENT_DEVICE i64 Magnitude(i64 x) { return x < 0 ? -x : x; }

// One or several matrices. Strides are in elements.
struct Matrix {
  u64 address;
  i64 batch_stride;
  i64 row_stride;
  i64 column_stride;
  DType dtype;

  RESIDENT_DEVICE explicit Matrix(const Tensor<const Any>& tensor)
      : address(AddressOf(tensor)), batch_stride(0), dtype(tensor.dtype()) {
    const u32 rows = tensor.rank() - 2;
    if (rows > 0) batch_stride = tensor.stride(0);
    row_stride = tensor.stride(rows);
    column_stride = tensor.stride(rows + 1);
  }

  RESIDENT_DEVICE void Transpose() {
    const i64 stride = row_stride;
    row_stride = column_stride;
    column_stride = stride;
  }
};

// How an operand can be copied for tensor cores: in chunks of 16 bytes, whose elements are adjacent
// along the depth (kDeep) or along the other dimension (kWide).
enum class Layout : u32 { kOther, kDeep, kWide };

// c = alpha * a * b + beta * c.
struct Product {
  Matrix a;
  Matrix b;
  Matrix c;
  i64 batches;
  i64 rows;
  i64 columns;
  i64 depth;
  float alpha;
  float beta;
  Layout a_layout;
  Layout b_layout;

  RESIDENT_DEVICE explicit Product(const Args& args)
      : a(args.tensor<const Any>(0)),
        b(args.tensor<const Any>(1)),
        c(args.tensor<const Any>(2)),
        alpha(args.scalar<float>(3)),
        beta(args.scalar<float>(4)) {
    const Tensor<const Any> left = args.tensor<const Any>(0);
    const Tensor<const Any> right = args.tensor<const Any>(1);
    const u32 first = left.rank() - 2;
    batches = first > 0 ? left.shape(0) : 1;
    rows = left.shape(first);
    depth = left.shape(first + 1);
    columns = right.shape(first + 1);
    // The transposed product, if that makes the rows of c dense.
    if (Magnitude(c.row_stride) < Magnitude(c.column_stride)) {
      const Matrix other = a;
      a = b;
      b = other;
      a.Transpose();
      b.Transpose();
      c.Transpose();
      const i64 count = rows;
      rows = columns;
      columns = count;
    }
    // The strides of dimensions of one element have no meaning.
    if (batches == 1) a.batch_stride = b.batch_stride = c.batch_stride = 0;
    if (rows == 1) a.row_stride = c.row_stride = 0;
    if (columns == 1) b.column_stride = 0;
    if (depth == 1) a.column_stride = b.row_stride = 0;
    a_layout = FindLayout(a, a.row_stride, rows, a.column_stride);
    b_layout = FindLayout(b, b.column_stride, columns, b.row_stride);
  }

  RESIDENT_DEVICE bool OnTensorCores() const {
    return a.dtype == b.dtype && a_layout != Layout::kOther && b_layout != Layout::kOther &&
           depth > 0 && depth < kLimit;
  }

 private:
  // Of the depth, and of strides, so that 32 bits are enough for bytes.
  static constexpr i64 kLimit = i64{1} << 30;

  // `stride`: of the dimension that is not the depth, and has `width` elements.
  RESIDENT_DEVICE Layout FindLayout(const Matrix& matrix, i64 stride, i64 width,
                                    i64 depth_stride) const {
    constexpr i64 kChunk = 8;  // Elements of 16 bytes.
    if (matrix.dtype == DType::kF32) return Layout::kOther;
    if (Magnitude(stride) >= kLimit || Magnitude(depth_stride) >= kLimit) return Layout::kOther;
    if (matrix.address % 16 != 0 || matrix.batch_stride % kChunk != 0) return Layout::kOther;
    if ((depth_stride == 1 || depth == 1) && stride % kChunk == 0) return Layout::kDeep;
    if ((stride == 1 || width == 1) && depth_stride % kChunk == 0) return Layout::kWide;
    return Layout::kOther;
  }
};

// Where a tile starts.
struct Origin {
  i64 batch;
  i64 row;
  i64 column;
};

// Writes an element of c from its sum of products. beta = 0: c is not read.
RESIDENT_DEVICE void StoreProduct(const Product& p, i64 offset, float sum) {
  float value = p.alpha * sum;
  if (p.beta != 0.0f) value += p.beta * LoadFloat(p.c.address, p.c.dtype, offset);
  StoreFloat(p.c.address, p.c.dtype, offset, value);
}

// --- Tiles of several threads

// Each thread computes kMicro * kMicro elements of a tile, which is kThreadColumns threads wide.
constexpr i32 kMicro = 4;
constexpr i32 kThreadColumns = 16;
constexpr i32 kTileColumns = kMicro * kThreadColumns;
constexpr i32 kTileDepth = 32;
// Elements from one row of a tile in the block's memory to the next. Rows are 16-byte aligned, and
// start in different banks.
constexpr i32 kPitch = kTileColumns + kMicro;

// The block's memory: the product, then the tiles of both operands, or the tile of sums.
constexpr u32 kProductBytes = 256;
// At its end: the operands' tiles for tensor cores.
constexpr u32 kTilesOffset = kProductBytes - 32;
static_assert(sizeof(Product) <= kTilesOffset, "");
constexpr u32 kOperandFloats = kTileDepth * kPitch;
static_assert(kProductBytes + 2 * kOperandFloats * sizeof(float) <= kBlockMemoryBytes, "");
static_assert(kTileColumns * kTileColumns <= 2 * kOperandFloats, "");

RESIDENT_DEVICE i32 TileRows(const Block& block) {
  return kOneThread ? kMicro : static_cast<i32>(block.threads()) / kThreadColumns * kMicro;
}

// Copies kTileDepth rows of `width` elements to `tile`: element (d, w) is from[d * depth_stride +
// w * stride]. Those at and beyond the limits are 0.
template <typename T>
RESIDENT_NOINLINE void LoadTileAs(Block block, float* tile, u32 width, const T* from, i64 stride,
                                  i64 depth_stride, i64 width_limit, i64 depth_limit) {
  // Adjacent threads read adjacent elements.
  const bool along_depth = Magnitude(depth_stride) < Magnitude(stride);
  const u32 inner_size = along_depth ? u32{kTileDepth} : width;
  RESIDENT_UNROLL(4)
  for (u32 i = block.thread(); i < width * kTileDepth; i += block.threads()) {
    const u32 outer = i / inner_size;
    const u32 inner = i - outer * inner_size;
    const i64 d = along_depth ? inner : outer;
    const i64 w = along_depth ? outer : inner;
    float value = 0.0f;
    if (d < depth_limit && w < width_limit) value = from[d * depth_stride + w * stride];
    tile[d * kPitch + w] = value;
  }
}

RESIDENT_DEVICE void LoadTile(const Block& block, float* tile, i32 width, u64 address, DType dtype,
                              i64 offset, i64 stride, i64 depth_stride, i64 width_limit,
                              i64 depth_limit) {
  VisitFloat(dtype, [&](auto element) {
    LoadTileAs(block, tile, static_cast<u32>(width),
               ElementAt<const decltype(element)>(address, offset), stride, depth_stride,
               width_limit, depth_limit);
  });
}

[[maybe_unused]] RESIDENT_NOINLINE void TileOfThreads(Block block, const Product& p,
                                                      const Origin& origin) {
  const i32 tile_rows = TileRows(block);
  float* const left = block.memory<float>(kProductBytes, 2 * kOperandFloats);
  float* const right = left + kOperandFloats;
  const i32 my_row = static_cast<i32>(block.thread()) / kThreadColumns * kMicro;
  const i32 my_column = static_cast<i32>(block.thread()) % kThreadColumns * kMicro;
  const i64 a_offset = origin.batch * p.a.batch_stride + origin.row * p.a.row_stride;
  const i64 b_offset = origin.batch * p.b.batch_stride + origin.column * p.b.column_stride;

  // The sums of kTileDepth products each are added to `total`.
  float total[kMicro][kMicro] = {};
  RESIDENT_UNROLL(1)
  for (i64 depth = 0; depth < p.depth; depth += kTileDepth) {
    block.barrier();  // The reads of the previous tiles have finished.
    LoadTile(block, left, tile_rows, p.a.address, p.a.dtype, a_offset + depth * p.a.column_stride,
             p.a.row_stride, p.a.column_stride, p.rows - origin.row, p.depth - depth);
    LoadTile(block, right, kTileColumns, p.b.address, p.b.dtype, b_offset + depth * p.b.row_stride,
             p.b.column_stride, p.b.row_stride, p.columns - origin.column, p.depth - depth);
    block.barrier();
    float partial[kMicro][kMicro] = {};
    RESIDENT_UNROLL(4)
    for (i32 d = 0; d < kTileDepth; ++d) {
      const Quad<float> x = *reinterpret_cast<const Quad<float>*>(left + d * kPitch + my_row);
      const Quad<float> y = *reinterpret_cast<const Quad<float>*>(right + d * kPitch + my_column);
      for (i32 i = 0; i < kMicro; ++i) {
        for (i32 j = 0; j < kMicro; ++j) partial[i][j] += x.v[i] * y.v[j];
      }
    }
    for (i32 i = 0; i < kMicro; ++i) {
      for (i32 j = 0; j < kMicro; ++j) total[i][j] += partial[i][j];
    }
  }
  // By way of the block's memory, so that adjacent threads write adjacent elements.
  block.barrier();
  for (i32 i = 0; i < kMicro; ++i) {
    for (i32 j = 0; j < kMicro; ++j) {
      left[(my_row + i) * kTileColumns + my_column + j] = total[i][j];
    }
  }
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i32 i = static_cast<i32>(block.thread()); i < tile_rows * kTileColumns;
       i += static_cast<i32>(block.threads())) {
    const i64 row = origin.row + i / kTileColumns;
    const i64 column = origin.column + i % kTileColumns;
    if (row >= p.rows || column >= p.columns) continue;
    StoreProduct(
        p, origin.batch * p.c.batch_stride + row * p.c.row_stride + column * p.c.column_stride,
        left[i]);
  }
}

// --- Tiles of tensor cores

#if RESIDENT_WARPS

// Products that a tensor core adds to a sum before this partial sum is added to the total in
// float32. Tensor cores do not round to nearest: sums of thousands of terms of one sign would not
// be accurate enough (MatrixTest.GemmIsAccurateForADepthOf4096).
constexpr i32 kPartialDepth = 1024;

constexpr i32 kElementBytes = 2;
constexpr i32 kChunkElements = kChunkBytes / kElementBytes;
// A tile of the product, and the part of the depth that is in the block's memory at a time. There
// are two such stages: one is computed with while the other one is copied.
constexpr i32 kWideTile = 128;
constexpr i32 kStageDepth = 32;
// The tile consists of the tiles of 8 warps. A block with fewer warps computes as many of these at
// a time as it has warps.
constexpr i32 kWarpRows = 64;
constexpr i32 kWarpColumns = 32;
constexpr i32 kWarpsAcross = kWideTile / kWarpColumns;
constexpr i32 kWarpTiles = kWideTile / kWarpRows * kWarpsAcross;
// Fragments of a warp's tile.
constexpr i32 kLefts = kWarpRows / 16;
constexpr i32 kRights = kWarpColumns / 8;

// The block's memory after the product: the stages, each with the tile of a and then that of b.
// Later, each warp's sums.
constexpr u32 kOperandBytes = kWideTile * kStageDepth * kElementBytes;
constexpr u32 kStageBytes = 2 * kOperandBytes;
constexpr u32 kStages = 2;
static_assert(kProductBytes % 128 == 0, "Swizzle needs rows that start at multiples of 128 bytes");
static_assert(kProductBytes + kStages * kStageBytes <= kBlockMemoryBytes, "");

// How an operand's tile is stored in the block's memory. Deep: the elements of a chunk are adjacent
// along the depth, and there is a row of chunks for each row of a (column of b). Otherwise they are
// adjacent along the other dimension, and there is a row of chunks for each depth.
template <bool kDeep>
inline constexpr u32 kRowChunks = (kDeep ? kStageDepth : kWideTile) / kChunkElements;

template <bool kDeep>
RESIDENT_DEVICE u32 ChunkOffset(u32 row, u32 chunk) {
  constexpr u32 kChunks = kRowChunks<kDeep>;
  return (row * kChunks + Swizzle<kChunks>(row, chunk)) * kChunkBytes;
}

// An operand's tile in device memory, with the whole depth.
struct OperandTile {
  u64 address;
  i32 stride;  // Bytes from one row of chunks to the next.
  i32 width;   // Rows of a (columns of b) from the tile's first one.
};

static_assert(kTilesOffset + 2 * sizeof(OperandTile) <= kProductBytes, "");

// `stride` is in elements.
RESIDENT_DEVICE OperandTile MakeTile(const Matrix& matrix, i64 offset, i64 stride, i64 width) {
  return {matrix.address + static_cast<u64>(offset * kElementBytes),
          static_cast<i32>(stride * kElementBytes), static_cast<i32>(Smallest(width, kWideTile))};
}

// Starts the copies of two chunks of an operand's tile from depth `depth` on, whose rows are half a
// tile apart, so that the swizzle is the same. kCopyThreads threads copy a tile. kWhole: all of the
// tile exists.
constexpr u32 kCopyThreads = kOperandBytes / kChunkBytes / 2;

template <bool kDeep, bool kWhole>
RESIDENT_DEVICE void CopyChunks(u32 thread, const OperandTile& tile, MemoryAddress to, i32 depth,
                                i32 depth_limit) {
  constexpr i32 kChunks = kRowChunks<kDeep>;
  constexpr i32 kHalf = kCopyThreads / kChunks;  // Rows.
  const i32 row = static_cast<i32>(thread) / kChunks;
  const i32 chunk = static_cast<i32>(thread) % kChunks;
  const i64 line = kDeep ? row : depth + row;
  const u64 from =
      tile.address + static_cast<u64>(line * tile.stride) +
      (static_cast<u32>(chunk * kChunkElements) + (kDeep ? static_cast<u32>(depth) : 0)) *
          u64{kElementBytes};
  const u64 second = from + static_cast<u64>(i64{kHalf} * tile.stride);
  to += ChunkOffset<kDeep>(static_cast<u32>(row), static_cast<u32>(chunk));
  if constexpr (kWhole) {
    CopyAsync(to, from);
    CopyAsync(to + kOperandBytes / 2, second);
  } else {
    const i32 along = kDeep ? depth_limit - depth : tile.width;
    const i32 across = kDeep ? tile.width : depth_limit - depth;
    const i32 elements = along - chunk * kChunkElements;
    const i32 some = elements < kChunkElements ? elements : kChunkElements;
    const u32 bytes = some > 0 ? static_cast<u32>(some * kElementBytes) : 0;
    CopyAsync(to, from, row < across ? bytes : 0);
    CopyAsync(to + kOperandBytes / 2, second, row + kHalf < across ? bytes : 0);
  }
}

// Starts the copies of both operands' tiles from depth `depth` on, which are one group.
template <bool kLeftDeep, bool kRightDeep>
RESIDENT_DEVICE void CopyStage(const Block& block, const OperandTile* tiles, MemoryAddress stage,
                               i32 depth, i32 depth_limit, bool whole) {
  RESIDENT_UNROLL(1)
  for (u32 thread = block.thread(); thread < kCopyThreads; thread += block.threads()) {
    if (whole && depth + kStageDepth <= depth_limit) {
      CopyChunks<kLeftDeep, true>(thread, tiles[0], stage, depth, depth_limit);
      CopyChunks<kRightDeep, true>(thread, tiles[1], stage + kOperandBytes, depth, depth_limit);
    } else {
      CopyChunks<kLeftDeep, false>(thread, tiles[0], stage, depth, depth_limit);
      CopyChunks<kRightDeep, false>(thread, tiles[1], stage + kOperandBytes, depth, depth_limit);
    }
  }
  CommitCopies();
}

// The offsets in a stage of the lane's chunks of the first fragments of a warp's tile.
template <bool kDeep>
RESIDENT_DEVICE u32 OffsetOfLeft(u32 row, u32 lane) {
  if constexpr (kDeep) return ChunkOffset<true>(row + LeftRow(lane), LeftChunk(lane));
  return ChunkOffset<false>(LeftTransposedRow(lane),
                            row / kChunkElements + LeftTransposedChunk(lane));
}
template <bool kDeep>
RESIDENT_DEVICE u32 OffsetOfRight(u32 column, u32 lane) {
  if constexpr (kDeep) return ChunkOffset<true>(column + RightRow(lane), RightChunk(lane));
  return ChunkOffset<false>(RightTransposedRow(lane),
                            column / kChunkElements + RightTransposedChunk(lane));
}

// Adds the product of the tiles in a stage to the sums of a warp's tile. left, right: from
// OffsetOfLeft and OffsetOfRight.
template <typename T, bool kLeftDeep, bool kRightDeep>
RESIDENT_DEVICE void MultiplyStage(Accumulator (&sums)[kLefts][kRights], MemoryAddress stage,
                                   u32 left, u32 right) {
  // Fragments that are 16 rows (columns) or a depth of 16 apart are two chunks apart in a row of
  // chunks, where the swizzle is an exclusive or, or 16 rows of chunks apart.
  constexpr u32 kTwoChunks = 2 * kChunkBytes;
  constexpr u32 kLeftRows = 16 * kRowChunks<kLeftDeep> * kChunkBytes;
  constexpr u32 kRightRows = 16 * kRowChunks<kRightDeep> * kChunkBytes;
  RESIDENT_UNROLL(2)
  for (u32 step = 0; step < kStageDepth / 16; ++step) {
    RightFragment b[kRights];
    RESIDENT_UNROLL(2)
    for (u32 j = 0; j < kRights; j += 2) {
      if constexpr (kRightDeep) {
        LoadRight(b[j], b[j + 1], stage + (right ^ (step * kTwoChunks)) + j / 2 * kRightRows);
      } else {
        LoadRightTransposed(b[j], b[j + 1],
                            stage + (right ^ (j / 2 * kTwoChunks)) + step * kRightRows);
      }
    }
    RESIDENT_UNROLL(4)
    for (u32 i = 0; i < kLefts; ++i) {
      LeftFragment a;
      if constexpr (kLeftDeep) {
        LoadLeft(a, stage + (left ^ (step * kTwoChunks)) + i * kLeftRows);
      } else {
        LoadLeftTransposed(a, stage + (left ^ (i * kTwoChunks)) + step * kLeftRows);
      }
      RESIDENT_UNROLL(4)
      for (u32 j = 0; j < kRights; ++j) {
        MultiplyAdd<T>(sums[i][j], a, b[j]);
      }
    }
  }
}

// The totals of a warp's tile are in the block's scratch memory while it has partial sums: 16 bytes
// of each lane, then those of the next fragment.
constexpr u64 kTotals = u64{kLefts} * kRights * 32;
static_assert(kWarpTiles * kTotals * sizeof(Accumulator) <= kScratchBytes, "");

RESIDENT_DEVICE Accumulator* FindTotals(const Block& block) {
  return block.scratch<Accumulator>(block.thread() / 32 * (kTotals * sizeof(Accumulator)),
                                    kTotals) +
         LaneOf(block);
}

RESIDENT_DEVICE void AddTotals(const Accumulator* totals, Accumulator (&sums)[kLefts][kRights]) {
  RESIDENT_UNROLL(4)
  for (u32 i = 0; i < kLefts; ++i) {
    RESIDENT_UNROLL(4)
    for (u32 j = 0; j < kRights; ++j) {
      const Accumulator total = totals[(i * kRights + j) * 32];
      for (i32 k = 0; k < 4; ++k) sums[i][j].v[k] += total.v[k];
    }
  }
}

// Makes the sums the totals, and clears them.
RESIDENT_DEVICE void MoveToTotals(Accumulator* totals, Accumulator (&sums)[kLefts][kRights]) {
  RESIDENT_UNROLL(4)
  for (u32 i = 0; i < kLefts; ++i) {
    RESIDENT_UNROLL(4)
    for (u32 j = 0; j < kRights; ++j) {
      totals[(i * kRights + j) * 32] = sums[i][j];
      sums[i][j] = {};
    }
  }
}

struct alignas(8) TwoFloats {
  float v[2];
};

// Whether four elements of c whose first column is a multiple of 4 can be written at once.
RESIDENT_DEVICE bool StoresFour(const Product& p) {
  const u64 bytes = p.c.dtype == DType::kF32 ? 16 : 8;
  return p.c.column_stride == 1 && p.c.address % bytes == 0 &&
         ((p.c.row_stride | p.c.batch_stride) & 3) == 0;
}

template <typename T>
RESIDENT_DEVICE void StoreFour(const Product& p, i64 offset, const Quad<float>& sum) {
  Quad<T>* const to = reinterpret_cast<Quad<T>*>(ElementAt<T>(p.c.address, offset));
  float value[4];
  for (i32 i = 0; i < 4; ++i) value[i] = p.alpha * sum.v[i];
  if (p.beta != 0.0f) {
    const Quad<T> old = *to;
    for (i32 i = 0; i < 4; ++i) value[i] += p.beta * static_cast<float>(old.v[i]);
  }
  Quad<T> result;
  for (i32 i = 0; i < 4; ++i) result.v[i] = T(value[i]);
  *to = result;
}

// The sums of a warp's tile are written by way of the block's memory, where each warp has a place
// for half of its rows.
constexpr i32 kStoredRows = kWarpRows / 2;
static_assert(kWarpTiles * kStoredRows * kWarpColumns * sizeof(float) <= kStages * kStageBytes, "");

// The place of four adjacent sums. The order of the fours in a row avoids conflicts between banks.
RESIDENT_DEVICE u32 PlaceOfFour(u32 row, u32 four) {
  return row * kWarpColumns + (four ^ (row * 2 & 7)) * 4;
}

// Writes kStoredRows rows of sums to c, from `first` on; adjacent lanes write adjacent elements.
RESIDENT_DEVICE void StoreRows(const Block& block, const Product& p, const float* sums,
                               const Origin& first) {
  constexpr u32 kFours = kWarpColumns / 4;
  const u32 lane = LaneOf(block);
  const i64 column = first.column + lane % kFours * 4;
  const i32 columns = static_cast<i32>(Smallest(p.columns - column, 4));
  if (columns <= 0) return;
  const bool fours = columns == 4 && StoresFour(p);
  const i64 rows = Smallest(p.rows - first.row, kStoredRows);
  i64 offset = first.batch * p.c.batch_stride + (first.row + lane / kFours) * p.c.row_stride +
               column * p.c.column_stride;
  RESIDENT_UNROLL(1)
  for (u32 row = lane / kFours; row < rows; row += 32 / kFours) {
    const float* const from = sums + PlaceOfFour(row, lane % kFours);
    if (fours) {
      const Quad<float> sum = *reinterpret_cast<const Quad<float>*>(from);
      VisitFloat(p.c.dtype, [&](auto element) { StoreFour<decltype(element)>(p, offset, sum); });
    } else {
      RESIDENT_UNROLL(1)
      for (i32 i = 0; i < columns; ++i) {
        StoreProduct(p, offset + i * p.c.column_stride, from[i]);
      }
    }
    offset += 32 / kFours * p.c.row_stride;
  }
}

// Writes the sums of a warp's tile to c.
RESIDENT_DEVICE void StoreSums(const Block& block, const Product& p, float* memory,
                               const Origin& origin, const Accumulator (&sums)[kLefts][kRights]) {
  const u32 lane = LaneOf(block);
  RESIDENT_UNROLL(2)
  for (u32 half = 0; half < 2; ++half) {
    SynchronizeWarp();  // The reads of the first half have finished.
    RESIDENT_UNROLL(2)
    for (u32 i = 0; i < kLefts / 2; ++i) {
      RESIDENT_UNROLL(4)
      for (u32 j = 0; j < kRights; ++j) {
        RESIDENT_UNROLL(2)
        for (u32 k = 0; k < 2; ++k) {
          float* const to =
              memory + PlaceOfFour(i * 16 + k * 8 + lane / 4, j * 2 + lane % 4 / 2) + lane % 2 * 2;
          const Accumulator& sum = sums[half * (kLefts / 2) + i][j];
          *reinterpret_cast<TwoFloats*>(to) = {sum.v[2 * k], sum.v[2 * k + 1]};
        }
      }
    }
    SynchronizeWarp();
    StoreRows(block, p, memory, {origin.batch, origin.row + half * kStoredRows, origin.column});
  }
}

template <typename T, bool kLeftDeep, bool kRightDeep>
RESIDENT_NOINLINE void TileOfTensorCores(Block block, const Origin& origin) {
  const Product& p = *block.memory<Product>();
  const MemoryAddress memory =
      AddressInMemory(block.memory<unsigned char>(kProductBytes, kStages * kStageBytes));
  OperandTile* const tiles = PointerInMemory<OperandTile>(memory - (kProductBytes - kTilesOffset));
  if (block.thread() == 0) {
    tiles[0] = MakeTile(p.a, origin.batch * p.a.batch_stride + origin.row * p.a.row_stride,
                        kLeftDeep ? p.a.row_stride : p.a.column_stride, p.rows - origin.row);
    tiles[1] = MakeTile(p.b, origin.batch * p.b.batch_stride + origin.column * p.b.column_stride,
                        kRightDeep ? p.b.column_stride : p.b.row_stride, p.columns - origin.column);
  }
  const u32 lane = LaneOf(block);
  const i32 warps = static_cast<i32>(block.threads() / 32);
  RESIDENT_UNROLL(1)
  for (i32 first = 0; first < kWarpTiles; first += warps) {
    const i32 warp = first + static_cast<i32>(block.thread() / 32);
    const i32 row = warp / kWarpsAcross * kWarpRows;
    const i32 column = warp % kWarpsAcross * kWarpColumns;
    if (origin.row + first / kWarpsAcross * kWarpRows >= p.rows) break;
    const bool computes =
        warp < kWarpTiles && origin.row + row < p.rows && origin.column + column < p.columns;
    const u32 left = OffsetOfLeft<kLeftDeep>(static_cast<u32>(row), lane);
    const u32 right = kOperandBytes + OffsetOfRight<kRightDeep>(static_cast<u32>(column), lane);
    const i32 depth_limit = static_cast<i32>(p.depth);
    const bool whole = p.rows - origin.row >= kWideTile && p.columns - origin.column >= kWideTile;
    Accumulator sums[kLefts][kRights] = {};
    u32 stage = 0;
    block.barrier();  // The tiles are described, and the reads of the previous ones have finished.
    CopyStage<kLeftDeep, kRightDeep>(block, tiles, memory, 0, depth_limit, whole);
    RESIDENT_UNROLL(1)
    for (i32 depth = kStageDepth; depth - kStageDepth < depth_limit; depth += kStageDepth) {
      WaitForCopies<0>();
      block.barrier();  // The stage is complete, and the reads of the other one have finished.
      if (depth < depth_limit) {
        CopyStage<kLeftDeep, kRightDeep>(block, tiles, memory + (stage ^ kStageBytes), depth,
                                         depth_limit, whole);
      }
      if (computes) {
        MultiplyStage<T, kLeftDeep, kRightDeep>(sums, memory + stage, left, right);
      }
      stage ^= kStageBytes;
      if (depth % kPartialDepth == 0 && depth < depth_limit && computes) {
        Accumulator* const totals = FindTotals(block);
        if (depth > kPartialDepth) AddTotals(totals, sums);
        MoveToTotals(totals, sums);
      }
    }
    block.barrier();  // The reads of the last stage have finished.
    if (computes) {
      if (depth_limit > kPartialDepth) AddTotals(FindTotals(block), sums);
      StoreSums(block, p,
                PointerInMemory<float>(memory) + block.thread() / 32 * (kStoredRows * kWarpColumns),
                {origin.batch, origin.row + row, origin.column + column}, sums);
    }
  }
}

// Tiles are computed in this order: down, in groups of kGroup rows of tiles. The tiles that are
// computed at the same time then form a square, whose operands are read most often from cache.
RESIDENT_DEVICE Origin GroupedOrigin(i64 tile, i64 down, i64 across) {
  constexpr i64 kGroup = 16;
  const i64 batch = Quotient(tile, down * across);
  tile -= batch * (down * across);
  const i64 first = Quotient(tile, kGroup * across) * kGroup;
  tile -= first * across;
  const i64 lines = Smallest(kGroup, down - first);
  const i64 column = Quotient(tile, lines);
  return {batch, (first + tile - column * lines) * kWideTile, column * kWideTile};
}

template <typename T>
RESIDENT_DEVICE void TileOfElements(const Block& block, const Product& p, const Origin& origin) {
  if (p.a_layout == Layout::kDeep) {
    if (p.b_layout == Layout::kDeep) {
      TileOfTensorCores<T, true, true>(block, origin);
    } else {
      TileOfTensorCores<T, true, false>(block, origin);
    }
  } else {
    if (p.b_layout == Layout::kDeep) {
      TileOfTensorCores<T, false, true>(block, origin);
    } else {
      TileOfTensorCores<T, false, false>(block, origin);
    }
  }
}

// The chunks share the tiles.
RESIDENT_DEVICE void MultiplyOnTensorCores(const Block& block, const Product& p) {
  const i64 down = (p.rows + kWideTile - 1) / kWideTile;
  const i64 across = (p.columns + kWideTile - 1) / kWideTile;
  const Range tiles = block.share(p.batches * down * across);
  RESIDENT_UNROLL(1)
  for (i64 tile = tiles.begin; tile < tiles.end; ++tile) {
    const Origin origin = GroupedOrigin(tile, down, across);
    if (p.a.dtype == DType::kF16) {
      TileOfElements<Half>(block, p, origin);
    } else {
      TileOfElements<BFloat16>(block, p, origin);
    }
  }
}

#endif  // RESIDENT_WARPS

// --- Tiles of one thread

constexpr i32 kPanelRows = 4;
constexpr i32 kPanelColumns = 8;
constexpr i64 kPackedRows = 64;
constexpr i64 kPackedColumns = 128;
constexpr i64 kPackedDepth = 256;

// Copies `depth` * `width` elements to panels of kPanel columns, which are padded with 0.
template <i32 kPanel, typename T>
RESIDENT_NOINLINE void Pack(float* to, const T* from, i64 stride, i64 depth_stride, i64 width,
                            i64 depth) {
  for (i64 first = 0; first < width; first += kPanel, to += kPanel * depth) {
    const i64 count = Smallest(kPanel, width - first);
    const T* const panel = from + first * stride;
    if (count == kPanel && stride == 1) {
      for (i64 d = 0; d < depth; ++d) {
        for (i32 w = 0; w < kPanel; ++w) to[d * kPanel + w] = panel[d * depth_stride + w];
      }
    } else {
      for (i32 w = 0; w < kPanel; ++w) {
        for (i64 d = 0; d < depth; ++d) {
          to[d * kPanel + w] = w < count ? panel[d * depth_stride + w * stride] : T(0.0f);
        }
      }
    }
  }
}

// Adds the product of two panels to `sums`.
[[maybe_unused]] RESIDENT_NOINLINE void MultiplyPanels(i64 depth, const float* a, const float* b,
                                                       float* sums) {
  float sum[kPanelRows][kPanelColumns] = {};
  for (i64 d = 0; d < depth; ++d) {
    for (i32 i = 0; i < kPanelRows; ++i) {
      for (i32 j = 0; j < kPanelColumns; ++j) {
        sum[i][j] += a[d * kPanelRows + i] * b[d * kPanelColumns + j];
      }
    }
  }
  for (i32 i = 0; i < kPanelRows; ++i) {
    for (i32 j = 0; j < kPanelColumns; ++j) sums[i * kPackedColumns + j] += sum[i][j];
  }
}

[[maybe_unused]] RESIDENT_NOINLINE void TileOfOneThread(Block block, const Product& p,
                                                        const Origin& origin) {
  constexpr u32 kSums = kPackedRows * kPackedColumns;
  constexpr u32 kLeft = kPackedRows * kPackedDepth;
  constexpr u32 kRight = kPackedColumns * kPackedDepth;
  float* const sums = block.scratch<float>(0, kSums + kLeft + kRight);
  float* const left = sums + kSums;
  float* const right = left + kLeft;
  const i64 rows = Smallest(kPackedRows, p.rows - origin.row);
  const i64 columns = Smallest(kPackedColumns, p.columns - origin.column);
  const i64 a_offset = origin.batch * p.a.batch_stride + origin.row * p.a.row_stride;
  const i64 b_offset = origin.batch * p.b.batch_stride + origin.column * p.b.column_stride;

  for (u32 i = 0; i < kSums; ++i) sums[i] = 0.0f;
  for (i64 first = 0; first < p.depth; first += kPackedDepth) {
    const i64 depth = Smallest(kPackedDepth, p.depth - first);
    VisitFloat(p.a.dtype, [&](auto element) {
      using T = decltype(element);
      Pack<kPanelRows>(left, ElementAt<const T>(p.a.address, a_offset + first * p.a.column_stride),
                       p.a.row_stride, p.a.column_stride, rows, depth);
    });
    VisitFloat(p.b.dtype, [&](auto element) {
      using T = decltype(element);
      Pack<kPanelColumns>(right, ElementAt<const T>(p.b.address, b_offset + first * p.b.row_stride),
                          p.b.column_stride, p.b.row_stride, columns, depth);
    });
    for (i64 j = 0; j < columns; j += kPanelColumns) {
      for (i64 i = 0; i < rows; i += kPanelRows) {
        MultiplyPanels(depth, left + i * depth, right + j * depth, sums + i * kPackedColumns + j);
      }
    }
  }
  for (i64 i = 0; i < rows; ++i) {
    const i64 offset = origin.batch * p.c.batch_stride + (origin.row + i) * p.c.row_stride +
                       origin.column * p.c.column_stride;
    for (i64 j = 0; j < columns; ++j) {
      StoreProduct(p, offset + j * p.c.column_stride, sums[i * kPackedColumns + j]);
    }
  }
}

// --- All of them

// gemm, and with a leading dimension gemm_batched. The chunks share the tiles.
RESIDENT_NOINLINE void Multiply(Block block, Args args) {
  Product* const product = block.memory<Product>();
  if (block.thread() == 0) *product = Product(args);
  block.barrier();
  const Product& p = *product;
#if RESIDENT_WARPS
  if (p.OnTensorCores()) {
    MultiplyOnTensorCores(block, p);
    return;
  }
#endif
  const i64 tile_rows = kOneThread ? kPackedRows : TileRows(block);
  const i64 tile_columns = kOneThread ? kPackedColumns : kTileColumns;
  const i64 down = (p.rows + tile_rows - 1) / tile_rows;
  const i64 across = (p.columns + tile_columns - 1) / tile_columns;
  const Range tiles = block.share(p.batches * down * across);
  RESIDENT_UNROLL(1)
  for (i64 tile = tiles.begin; tile < tiles.end; ++tile) {
    const i64 line = Quotient(tile, across);
    const i64 batch = Quotient(line, down);
    const Origin origin = {batch, (line - batch * down) * tile_rows,
                           (tile - line * across) * tile_columns};
    if constexpr (kOneThread) {
      TileOfOneThread(block, p, origin);
    } else {
      TileOfThreads(block, p, origin);
      block.barrier();  // The reads of the tile of sums have finished.
    }
  }
}

}  // namespace

RESIDENT_OPERATOR(gemm)(Block& block, const Args& args) { Multiply(block, args); }
RESIDENT_OPERATOR(gemm_batched)(Block& block, const Args& args) { Multiply(block, args); }

}  // namespace resident
