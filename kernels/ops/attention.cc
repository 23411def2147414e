// The family "attention": embeddings, rotary positions, the cache of keys and values, attention.
#include "kernels/ops/numbers.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/sdk/operator.h"

namespace math = resident::math;

using resident::Any;
using resident::Args;
using resident::bit_cast;
using resident::Block;
using resident::CompletionStatus;
using resident::DType;
using resident::ElementAt;
using resident::i32;
using resident::i64;
using resident::Larger;
using resident::LoadFloat;
using resident::Range;
using resident::StoreFloat;
using resident::Tensor;
using resident::u16;
using resident::u32;
using resident::u64;
using resident::u8;

namespace {

RESIDENT_DEVICE i64 AtMost(i64 value, i64 limit) { return value < limit ? value : limit; }

RESIDENT_DEVICE void Refuse(const Block& block, u16 detail) {
  block.fail(CompletionStatus::kInvalidArgument, detail);
}

// A tensor of four dimensions.
struct Operand {
  u64 address;
  i64 strides[4];
  DType dtype;

  RESIDENT_DEVICE void Read(const Tensor<const Any>& tensor) {
    address = reinterpret_cast<u64>(tensor.data());
    dtype = tensor.dtype();
    RESIDENT_UNROLL(1)
    for (i32 d = 0; d < 4; ++d) strides[d] = tensor.stride(d);
  }
};

// Calls f(i) for each i below `count`, distributed over the block's threads; small code.
template <typename F>
RESIDENT_DEVICE void ForEach(const Block& block, i64 count, F f) {
  RESIDENT_UNROLL(1)
  for (i64 i = block.thread(); i < count; i += block.threads()) f(i);
}

// Calls f(start(row), column) for each row of the range and each column, distributed over the
// block's threads: adjacent threads have adjacent columns. `start` computes what the elements of a
// row have in common.
template <typename Start, typename F>
RESIDENT_DEVICE void ForEachInRows(const Block& block, Range rows, i64 columns, Start start, F f) {
  if (columns <= 0) return;
  if constexpr (Block::kMaxThreads == 1) {
    for (i64 row = rows.begin; row < rows.end; ++row) {
      const auto common = start(row);
      for (i64 column = 0; column < columns; ++column) f(common, column);
    }
  } else {
    const i64 row_step = block.threads() / columns;
    const i64 column_step = block.threads() % columns;
    i64 row = rows.begin + block.thread() / columns;
    i64 column = block.thread() % columns;
    RESIDENT_UNROLL(1)
    while (row < rows.end) {
      f(start(row), column);
      row += row_step;
      column += column_step;
      if (column >= columns) {
        column -= columns;
        ++row;
      }
    }
  }
}

// --- Copies of rows -----------------------------------------------------------------------------

// Where a row begins in its tensors, in elements.
struct RowCopy {
  i64 from;
  i64 to;
};

RESIDENT_NOINLINE RowCopy OffsetsAt(const resident::IndexMap<2>& map, i64 row) {
  i64 offsets[2];
  map.Offsets(row, offsets);
  return {offsets[0], offsets[1]};
}

// The rows of an embedding, or of an append.
struct RowIndex {
  const resident::IndexMap<2>* map;  // Offsets of an append's rows; null: an embedding.
  i64 first;                         // Of an append: added to `to`.
  u64 ids;
  bool narrow_ids;  // int32.
  i64 columns;

  RESIDENT_DEVICE i64 Id(i64 i) const {
    return narrow_ids ? i64{*ElementAt<const i32>(ids, i)} : *ElementAt<const i64>(ids, i);
  }
  RESIDENT_DEVICE RowCopy operator()(i64 row) const {
    if (map == nullptr) return {Id(row) * columns, row * columns};
    const RowCopy at = OffsetsAt(*map, row);
    return {at.from, first + at.to};
  }
};

// The operands of CopyRows. The columns of a row have these strides.
struct RowOperand {
  u64 address;
  DType dtype;
  i64 stride;
};

// 16 bytes, which a thread copies at once.
struct alignas(16) Quad {
  u32 words[4];
};

// Copies rows of equal types without a conversion. A T has 2^shift elements.
template <typename T>
RESIDENT_DEVICE void CopyWords(const Block& block, Range rows, i64 columns, const RowOperand& from,
                               const RowOperand& to, i32 shift, const RowIndex& index) {
  const T* const in = ElementAt<const T>(from.address, 0);
  T* const out = ElementAt<T>(to.address, 0);
  const i64 in_stride = from.stride;
  const i64 out_stride = to.stride;
  const auto copy = [=](RowCopy at, i64 c) {
    out[(at.to >> shift) + c * out_stride] = in[(at.from >> shift) + c * in_stride];
  };
  ForEachInRows(block, rows, columns >> shift, index, copy);
}

// Copies rows and converts between float32, float16 and bfloat16. `row_bytes`: the bits of all
// distances between rows, in bytes.
RESIDENT_NOINLINE void CopyRows(const Block& block, Range rows, i64 columns, const RowOperand& from,
                                const RowOperand& to, u64 row_bytes, const RowIndex& index) {
  if (from.dtype != to.dtype) {
    ForEachInRows(block, rows, columns, index, [&](RowCopy at, i64 c) {
      StoreFloat(to.address, to.dtype, at.to + c * to.stride,
                 LoadFloat(from.address, from.dtype, at.from + c * from.stride));
    });
    return;
  }
  const i64 bytes = SizeOf(from.dtype);
  const u64 unaligned = from.address | to.address | row_bytes | static_cast<u64>(columns * bytes);
  if (from.stride == 1 && to.stride == 1 && unaligned % sizeof(Quad) == 0) {
    CopyWords<Quad>(block, rows, columns, from, to, bytes == 4 ? 2 : 3, index);
  } else if (bytes == 4) {
    CopyWords<u32>(block, rows, columns, from, to, 0, index);
  } else {
    CopyWords<u16>(block, rows, columns, from, to, 0, index);
  }
}

}  // namespace

RESIDENT_OPERATOR(embedding)(Block& block, const Args& args) {
  const auto ids = args.tensor<const Any>(0);
  const auto table = args.tensor<const Any>(1);
  const auto out = args.tensor<const Any>(2);
  const i64 count = ids.size();
  const i64 vocabulary = table.shape(0);
  const i64 columns = table.shape(1);
  const RowIndex index = {nullptr, 0, reinterpret_cast<u64>(ids.data()), ids.dtype() == DType::kI32,
                          columns};

  // Every chunk that writes checks all ids, so that no chunk writes if one is out of range. With at
  // most one such chunk for each column, all chunks together read no more ids than they write
  // elements.
  const i64 chunks = AtMost(block.chunk_count(), columns > 1 ? columns : 1);
  if (block.chunk() >= chunks) return;
  u32 outside = 0;
  block.for_each({0, count}, [&](i64 i) {
    const i64 value = index.Id(i);
    outside |= value < 0 || value >= vocabulary ? 1 : 0;
  });
  outside = block.reduce(outside, [](u32 a, u32 b) { return a | b; });
  if (outside != 0) {
    Refuse(block, 1);
    return;
  }

  const i64 base = count / chunks;
  const i64 more = count % chunks;
  const i64 begin = block.chunk() * base + AtMost(block.chunk(), more);
  const Range rows = {begin, begin + base + (block.chunk() < more ? 1 : 0)};
  CopyRows(block, rows, columns, {reinterpret_cast<u64>(table.data()), table.dtype(), 1},
           {reinterpret_cast<u64>(out.data()), out.dtype(), 1}, 0, index);
}

RESIDENT_OPERATOR(kv_append)(Block& block, const Args& args) {
  const auto from = args.tensor<const Any>(0);
  const auto cache = args.tensor<const Any>(1);
  const i64 pos = args.scalar<i64>(2);
  const i64 length = from.shape(2);
  if (pos < 0 || pos > cache.shape(2) - length) {
    Refuse(block, 1);
    return;
  }
  // The rows of `from`, and the strides of the cache.
  struct Rows {
    const Tensor<const Any>& shape_of;
    const Tensor<const Any>& strides_of;
    RESIDENT_DEVICE u32 rank() const { return 3; }
    RESIDENT_DEVICE i64 shape(u32 d) const { return shape_of.shape(d); }
    RESIDENT_DEVICE i64 stride(u32 d) const { return strides_of.stride(d); }
  };
  auto& map = *block.memory<resident::IndexMap<2>>();
  if (block.thread() == 0) {
    map.Start(Rows{from, from});
    map.Add(0, Rows{from, from});
    map.Add(1, Rows{from, cache});
    map.Finish();
  }
  block.barrier();
  const i64 bytes = SizeOf(from.dtype());
  u64 distances = static_cast<u64>(pos * cache.stride(2));
  RESIDENT_UNROLL(1)
  for (u32 d = 0; d < 3; ++d) distances |= static_cast<u64>(from.stride(d) | cache.stride(d));
  const i64 first = pos * cache.stride(2);
  CopyRows(block, block.share(map.size()), from.shape(3),
           {reinterpret_cast<u64>(from.data()), from.dtype(), from.stride(3)},
           {reinterpret_cast<u64>(cache.data()), cache.dtype(), cache.stride(3)},
           distances * static_cast<u64>(bytes), {&map, first, 0, false, 0});
}

// --- Rotary positions ---------------------------------------------------------------------------

namespace {

// Frequencies, or angles, that fit in the block's memory at once.
constexpr i64 kFrequencies = 1024;

RESIDENT_NOINLINE double Power(double x, double y) {
#if RESIDENT_GPU
  return ::pow(x, y);
#else
  return __builtin_pow(x, y);
#endif
}

struct Rotation {
  float cosine;
  float sine;
};
RESIDENT_NOINLINE Rotation RotationBy(float angle) { return {math::cos(angle), math::sin(angle)}; }

// The tensors of a rope, and one position's heads in them.
struct RopeTask {
  Operand x;
  Operand out;
  i64 heads;
  i64 half;
  bool interleaved;
};

// Rotates pairs [first, first + count) of each head at offsets `x` and `out`. float32 with
// adjacent elements: compilers vectorize it.
template <bool kInterleaved>
RESIDENT_DEVICE void RotateDense(const Block& block, const RopeTask& task, i64 first, i64 count,
                                 i64 x, i64 out, const float* cosines, const float* sines) {
  struct Head {
    const float* x;
    float* out;
  };
  constexpr i64 kStep = kInterleaved ? 2 : 1;
  const i64 gap = kInterleaved ? 1 : task.half;
  ForEachInRows(
      block, {0, task.heads}, count,
      [&](i64 n) {
        return Head{
            ElementAt<const float>(task.x.address, x + n * task.x.strides[2] + first * kStep),
            ElementAt<float>(task.out.address, out + n * task.out.strides[2] + first * kStep)};
      },
      [=](const Head& head, i64 i) {
        const float a = head.x[i * kStep];
        const float b = head.x[i * kStep + gap];
        head.out[i * kStep] = a * cosines[i] - b * sines[i];
        head.out[i * kStep + gap] = a * sines[i] + b * cosines[i];
      });
}

// The same for all types and strides.
RESIDENT_DEVICE void Rotate(const Block& block, const RopeTask& task, i64 first, i64 count, i64 x,
                            i64 out, const float* cosines, const float* sines) {
  struct Head {
    i64 x;
    i64 out;
  };
  ForEachInRows(
      block, {0, task.heads}, count,
      [&](i64 n) {
        return Head{x + n * task.x.strides[2], out + n * task.out.strides[2]};
      },
      [&](const Head& head, i64 i) {
        const i64 low = task.interleaved ? 2 * (first + i) : first + i;
        const i64 high = task.interleaved ? low + 1 : low + task.half;
        const float a = LoadFloat(task.x.address, task.x.dtype, head.x + low * task.x.strides[3]);
        const float b = LoadFloat(task.x.address, task.x.dtype, head.x + high * task.x.strides[3]);
        StoreFloat(task.out.address, task.out.dtype, head.out + low * task.out.strides[3],
                   a * cosines[i] - b * sines[i]);
        StoreFloat(task.out.address, task.out.dtype, head.out + high * task.out.strides[3],
                   a * sines[i] + b * cosines[i]);
      });
}

}  // namespace

RESIDENT_OPERATOR(rope_freqs)(Block& block, const Args& args) {
  const auto out = args.tensor<float>(0);
  const i64 half = out.shape(1);
  const double plain_base = args.scalar<float>(1);
  const double alpha = args.scalar<float>(2);
  if (half == 1) {
    Refuse(block, 1);
    return;
  }
  if (out.size() == 0) return;
  const double dim = 2.0 * static_cast<double>(half);
  const double base = plain_base * Power(alpha, dim / (dim - 2.0));
  // Also if one is NaN. base - base is not 0 if it is infinite or NaN.
  if (!(plain_base > 0.0) || !(alpha > 0.0) || !(base > 0.0) || base - base != 0.0) {
    Refuse(block, 2);
    return;
  }
  double* const frequencies = block.memory<double>(0, kFrequencies);
  float* const angles = out.data();
  const Range positions = block.share(out.shape(0));
  for (i64 first = 0; first < half; first += kFrequencies) {
    const i64 count = AtMost(half - first, kFrequencies);
    block.for_each({0, count}, [&](i64 i) {
      frequencies[i] = Power(base, -2.0 * static_cast<double>(first + i) / dim);
    });
    block.barrier();
    ForEachInRows(
        block, positions, count, [](i64 pos) { return pos; },
        [=](i64 pos, i64 i) {
          angles[pos * half + first + i] =
              static_cast<float>(static_cast<double>(pos) * frequencies[i]);
        });
    block.barrier();
  }
}

RESIDENT_OPERATOR(rope)(Block& block, const Args& args) {
  const auto x = args.tensor<const Any>(0);
  const auto freqs = args.tensor<const float>(1);
  const i64 offset = args.scalar<i64>(3);
  const i32 layout = args.scalar<i32>(4);
  const i64 length = x.shape(1);
  const i64 half = freqs.shape(1);
  if (x.shape(3) != 2 * half) {
    Refuse(block, 1);
    return;
  }
  if (offset < 0 || offset > freqs.shape(0) - length) {
    Refuse(block, 2);
    return;
  }
  if (layout != 0 && layout != 1) {
    Refuse(block, 3);
    return;
  }
  if (x.size() == 0) return;

  auto& task = *block.memory<RopeTask>();
  float* const cosines = block.memory<float>(sizeof(RopeTask), 2 * kFrequencies);
  float* const sines = cosines + kFrequencies;
  if (block.thread() == 0) {
    task.x.Read(x);
    task.out.Read(args.tensor<const Any>(2));
    task.heads = x.shape(2);
    task.half = half;
    task.interleaved = layout == 0;
  }
  block.barrier();
  const bool dense = task.x.dtype == DType::kF32 && task.out.dtype == DType::kF32 &&
                     task.x.strides[3] == 1 && task.out.strides[3] == 1;
  const Range rows = block.share(x.shape(0) * length);
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const i64 b = row / length;
    const i64 s = row % length;
    const i64 from = b * task.x.strides[0] + s * task.x.strides[1];
    const i64 to = b * task.out.strides[0] + s * task.out.strides[1];
    RESIDENT_UNROLL(1)
    for (i64 first = 0; first < half; first += kFrequencies) {
      const i64 count = AtMost(half - first, kFrequencies);
      const float* const angles = freqs.data() + (offset + s) * half + first;
      block.for_each({0, count}, [&](i64 i) {
        const Rotation rotation = RotationBy(angles[i]);
        cosines[i] = rotation.cosine;
        sines[i] = rotation.sine;
      });
      block.barrier();
      if (!dense) {
        Rotate(block, task, first, count, from, to, cosines, sines);
      } else if (task.interleaved) {
        RotateDense<true>(block, task, first, count, from, to, cosines, sines);
      } else {
        RotateDense<false>(block, task, first, count, from, to, cosines, sines);
      }
      block.barrier();
    }
  }
}

// --- Attention ----------------------------------------------------------------------------------
//
// The queries that use the same keys, those of N / M heads at S positions, are the rows of a group.
// A block computes a tile of up to 16 rows of a group over the tiles of its keys in turn:
//
//   1. Scores: keys are brought to fast memory in slices of some elements of the head dimension,
//      transposed, so that adjacent threads have adjacent keys.
//   2. Weights: exp(score - largest score so far), and how much the largest score has grown.
//   3. Sums of values: each thread has columns of the values, for some rows, and, if there are few
//      columns and rows, only a part of the keys.

namespace {

constexpr i64 kMaxHeadDim = 256;

// Details of INVALID_ARGUMENT.
constexpr u16 kHeadDimTooLarge = 1;
constexpr u16 kHeadsDoNotDivide = 2;
constexpr u16 kBadKeyCount = 3;
constexpr u16 kBadCausal = 4;
constexpr u16 kBadMaskShape = 5;

// The weight of a key that is hidden, or whose score is -infinity, is -0, as is no exponential.
RESIDENT_DEVICE bool IsHidden(float weight) { return bit_cast<u32>(weight) == 0x80000000u; }

constexpr i32 kMaxTileRows = 16;

struct AttentionTask {
  Operand q;
  Operand k;
  Operand v;
  Operand mask;  // Strides of 0 where it broadcasts; address 0: no mask.
  Operand out;   // For parts: acc, without strides.
  u64 largest;   // Parts only.
  u64 sum;       // Parts only.
  i64 heads;
  i64 queries;
  i64 kv_heads;
  i64 keys;   // The first ones of each head, which are used.
  i64 parts;  // 0: the operator attention.
  i64 rows;   // Of a group.
  i64 tiles;  // Of a group.
  i64 items;  // All tiles of all parts.
  float scale;
  i32 depth;    // Elements of q and k.
  i32 columns;  // Elements of v.
  i32 causal;
  i32 tile_rows;  // 1, 4, 8 or 16.
  i32 tile_keys;
  i32 slice;     // Elements of keys that are in fast memory at once.
  u16 refusal;   // 0, or a detail.
  bool stream;   // StreamTile can compute the tiles.
  bool prefill;  // PrefillTile can, of item_rows rows.
  i32 item_rows;
};

// What the threads share about the rows of a tile.
struct TileRows {
  i64 query[kMaxTileRows];  // Offset in q.
  i64 mask[kMaxTileRows];   // Offset in the mask.
  i64 limit[kMaxTileRows];  // Keys from this one on are hidden.
  float largest[kMaxTileRows];
  float sum[kMaxTileRows];
  float growth[kMaxTileRows];  // exp(previous largest score - largest score).
};

// The block's fast memory.
constexpr u32 kTileRowsOffset = 512;
constexpr u32 kPartialOffset = kTileRowsOffset + 640;
constexpr u32 kScoresOffset = kPartialOffset + 2 * 4 * 256;
static_assert(sizeof(AttentionTask) <= kTileRowsOffset, "");
static_assert(sizeof(TileRows) <= 640, "");
static_assert(Block::kMaxThreads <= 256, "");

// scores[key * tile_rows + row], then queries[element * tile_rows + row], then
// keys[element * (tile_keys + 1) + key].
struct TileMemory {
  float* scores;
  float* queries;
  float* keys;

  RESIDENT_DEVICE TileMemory(const Block& block, const AttentionTask& task)
      : scores(block.memory<float>(kScoresOffset)),
        queries(scores + task.tile_rows * task.tile_keys),
        keys(queries + task.tile_rows * task.slice) {}
};
constexpr u32 TileBytes(u32 rows, u32 keys, u32 slice) {
  return 4 * (rows * keys + rows * slice + (keys + 1) * slice);
}
static_assert(kScoresOffset + TileBytes(1, 256, 16) <= resident::kBlockMemoryBytes, "");
static_assert(kScoresOffset + TileBytes(4, 256, 16) <= resident::kBlockMemoryBytes, "");
static_assert(kScoresOffset + TileBytes(8, 128, 16) <= resident::kBlockMemoryBytes, "");
static_assert(kScoresOffset + TileBytes(16, 64, 32) <= resident::kBlockMemoryBytes, "");

// Adjacent keys, or columns of values, of a thread: those of a host's vector registers.
template <i32 kRows>
inline constexpr i32 kLanes = Block::kMaxThreads > 1 ? 1 : (kRows == 1 ? 16 : 8);

// Calls f(T{}) with the type of elements.
template <typename F>
RESIDENT_DEVICE void VisitFloat(DType dtype, F f) {
  switch (dtype) {
    case DType::kF16:
      return f(resident::Half(0.0f));
    case DType::kBF16:
      return f(resident::BFloat16(0.0f));
    default:
      return f(float{});
  }
}

// Brings elements [d, d + slice) of the tile's queries to fast memory; what does not exist is 0.
RESIDENT_NOINLINE void StageQueries(const Block& block, const AttentionTask& task,
                                    const TileRows& rows, const TileMemory& memory, i64 row_count,
                                    i32 d) {
  const i32 slice = task.slice;
  RESIDENT_UNROLL(1)
  for (i32 i = static_cast<i32>(block.thread()); i < task.tile_rows * slice;
       i += static_cast<i32>(block.threads())) {
    const i32 row = i / slice;
    const i32 at = i % slice;
    float value = 0.0f;
    if (row < row_count && d + at < task.depth) {
      value =
          LoadFloat(task.q.address, task.q.dtype, rows.query[row] + (d + at) * task.q.strides[3]);
    }
    memory.queries[at * task.tile_rows + row] = value;
  }
}

// Brings elements [d, d + slice) of `count` keys to fast memory. `first`: offset of the first key.
template <typename T>
RESIDENT_NOINLINE void StageKeys(const Block& block, const AttentionTask& task, float* keys,
                                 i64 first, i32 count, i32 d) {
  const i32 slice = task.slice;
  const i32 threads = static_cast<i32>(block.threads());
  const i32 thread = static_cast<i32>(block.thread());
  const bool several = threads >= slice;  // Keys at once.
  const i32 key_step = several ? threads / slice : 1;
  const i32 step = several ? slice : threads;
  const i32 begin = several ? thread % slice : thread;
  const i32 depth = task.depth - d < slice ? task.depth - d : slice;
  const i32 pitch = task.tile_keys + 1;
  const i64 key_stride = task.k.strides[2];
  const i64 stride = task.k.strides[3];
  const T* const from = ElementAt<const T>(task.k.address, first + d * stride);
  RESIDENT_UNROLL(4)
  for (i32 key = several ? thread / slice : 0; key < count; key += key_step) {
    const T* const row = from + key * key_stride;
    RESIDENT_UNROLL(1)
    for (i32 at = begin; at < depth; at += step) {
      keys[at * pitch + key] = static_cast<float>(row[at * stride]);
    }
    RESIDENT_UNROLL(1)
    for (i32 at = begin; depth < slice && at < slice; at += step) {
      if (at >= depth) keys[at * pitch + key] = 0.0f;
    }
  }
}

// Adds the products of the slices of queries and keys to the scores, or sets these (`first`).
template <i32 kRows>
RESIDENT_DEVICE void AddProducts(const Block& block, const AttentionTask& task,
                                 const TileMemory& memory, i32 count, bool first) {
  constexpr i32 kKeys = kLanes<kRows>;
  const i32 tile_rows = kRows == 1 ? 1 : task.tile_rows;
  const i32 slice = task.slice;
  const i32 pitch = task.tile_keys + 1;
  const i32 key_units = (count + kKeys - 1) / kKeys;
  const i32 units = key_units * (tile_rows / kRows);
  RESIDENT_UNROLL(1)
  for (i32 unit = static_cast<i32>(block.thread()); unit < units;
       unit += static_cast<i32>(block.threads())) {
    const i32 key = unit % key_units * kKeys;
    const i32 row = unit / key_units * kRows;
    const float* q = memory.queries + row;
    const float* k = memory.keys + key;
    float sums[kRows][kKeys] = {};
    RESIDENT_UNROLL(4)
    for (i32 at = 0; at < slice; ++at) {
      for (i32 r = 0; r < kRows; ++r) {
        for (i32 l = 0; l < kKeys; ++l) sums[r][l] += q[r] * k[l];
      }
      q += tile_rows;
      k += pitch;
    }
    float* const scores = memory.scores + key * tile_rows + row;
    for (i32 r = 0; r < kRows; ++r) {
      for (i32 l = 0; l < kKeys; ++l) {
        float& score = scores[l * tile_rows + r];
        score = first ? sums[r][l] : score + sums[r][l];
      }
    }
  }
}

// The score of key `key` (`at` in the tile) for a row, from the product of both; -infinity: hidden.
RESIDENT_DEVICE float ScoreOf(const AttentionTask& task, const TileRows& rows, i32 row, i64 key,
                              float product) {
  if (key >= rows.limit[row]) return -math::infinity();
  float score = task.scale * product;
  if (task.mask.address != 0) {
    const float mask =
        LoadFloat(task.mask.address, task.mask.dtype, rows.mask[row] + key * task.mask.strides[3]);
    score = mask == -math::infinity() ? mask : score + mask;
  }
  return score;
}

// The score that others are compared with: exp(-infinity - -infinity) would be NaN.
RESIDENT_DEVICE float BaseOf(float largest) {
  return largest == -math::infinity() ? 0.0f : largest;
}

RESIDENT_DEVICE float WeightOf(float score, float base) {
  return score == -math::infinity() ? -0.0f : math::exp(score - base);
}

RESIDENT_DEVICE void UpdateRow(TileRows& rows, i32 row, float largest, float base, float sum) {
  const float growth = math::exp(rows.largest[row] - base);
  rows.growth[row] = growth;
  rows.sum[row] = rows.sum[row] * growth + sum;
  rows.largest[row] = largest;
}

// Replaces the products of a tile by weights, for one row.
RESIDENT_DEVICE void WeighOneRow(const Block& block, const AttentionTask& task, TileRows& rows,
                                 float* scores, i64 first, i32 count) {
  float largest = rows.largest[0];
  const i32 step = static_cast<i32>(block.threads());
  RESIDENT_UNROLL(1)
  for (i32 key = static_cast<i32>(block.thread()); key < count; key += step) {
    const float score = ScoreOf(task, rows, 0, first + key, scores[key]);
    scores[key] = score;
    largest = Larger(largest, score);
  }
  largest = block.reduce(largest, [](float a, float b) { return Larger(a, b); });
  const float base = BaseOf(largest);
  float sum = 0.0f;
  RESIDENT_UNROLL(1)
  for (i32 key = static_cast<i32>(block.thread()); key < count; key += step) {
    const float weight = WeightOf(scores[key], base);
    scores[key] = weight;
    sum += weight;
  }
  sum = block.reduce_sum(sum);
  if (block.thread() == 0) UpdateRow(rows, 0, largest, base, sum);
}

// The same for several rows. Adjacent threads have adjacent rows; each has every `parts`-th key.
RESIDENT_DEVICE void WeighRows(const Block& block, const AttentionTask& task, TileRows& rows,
                               float* scores, i64 first, i32 count) {
  float* const partial_largest = block.memory<float>(kPartialOffset);
  float* const partial_sum = partial_largest + 256;
  const i32 threads = static_cast<i32>(block.threads());
  const i32 thread = static_cast<i32>(block.thread());
  const i32 tile_rows = task.tile_rows;
  const i32 parts = threads >= tile_rows ? threads / tile_rows : 1;
  const i32 part = threads >= tile_rows ? thread / tile_rows : 0;
  const i32 first_row = thread % tile_rows;
  RESIDENT_UNROLL(1)
  for (i32 row = first_row; row < tile_rows; row += threads) {
    float largest = rows.largest[row];
    RESIDENT_UNROLL(1)
    for (i32 key = part; key < count; key += parts) {
      float& at = scores[key * tile_rows + row];
      at = ScoreOf(task, rows, row, first + key, at);
      largest = Larger(largest, at);
    }
    partial_largest[part * tile_rows + row] = largest;
  }
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i32 row = first_row; row < tile_rows; row += threads) {
    float largest = partial_largest[row];
    RESIDENT_UNROLL(4)
    for (i32 p = 1; p < parts; ++p) largest = Larger(largest, partial_largest[p * tile_rows + row]);
    const float base = BaseOf(largest);
    float sum = 0.0f;
    RESIDENT_UNROLL(1)
    for (i32 key = part; key < count; key += parts) {
      float& at = scores[key * tile_rows + row];
      at = WeightOf(at, base);
      sum += at;
    }
    partial_sum[part * tile_rows + row] = sum;
  }
  block.barrier();
  if (part != 0) return;
  RESIDENT_UNROLL(1)
  for (i32 row = first_row; row < tile_rows; row += threads) {
    float largest = partial_largest[row];
    float sum = partial_sum[row];
    RESIDENT_UNROLL(1)
    for (i32 p = 1; p < parts; ++p) {
      largest = Larger(largest, partial_largest[p * tile_rows + row]);
      sum += partial_sum[p * tile_rows + row];
    }
    UpdateRow(rows, row, largest, BaseOf(largest), sum);
  }
}

// A sum of values in which hidden keys have no part: 0 times infinity or NaN would be NaN.
template <typename T>
RESIDENT_NOINLINE float SumOfVisible(const float* weights, i32 weight_stride, const T* values,
                                     i64 value_stride, i32 count) {
  float sum = 0.0f;
  RESIDENT_UNROLL(1)
  for (i32 key = 0; key < count; ++key) {
    const float weight = weights[key * weight_stride];
    if (IsHidden(weight)) continue;
    sum += weight * static_cast<float>(values[key * value_stride]);
  }
  return sum;
}

// Adds weighted values of `count` keys to kRows rows and kColumns columns of `totals`, or sets
// these (`first`). REQUIRES: stride == 1 or kColumns == 1.
template <typename T, i32 kRows, i32 kColumns>
RESIDENT_DEVICE void AddValues(const float* weights, i32 tile_rows, const T* values,
                               i64 value_stride, i32 count, const float* growth, float* totals,
                               i32 pitch, bool first) {
  float sums[kRows][kColumns] = {};
  const float* w = weights;
  const T* v = values;
  RESIDENT_UNROLL(4)
  for (i32 key = 0; key < count; ++key) {
    float value[kColumns];
    for (i32 l = 0; l < kColumns; ++l) value[l] = static_cast<float>(v[l]);
    for (i32 r = 0; r < kRows; ++r) {
      for (i32 l = 0; l < kColumns; ++l) sums[r][l] += w[r] * value[l];
    }
    w += tile_rows;
    v += value_stride;
  }
  for (i32 r = 0; r < kRows; ++r) {
    for (i32 l = 0; l < kColumns; ++l) {
      float sum = sums[r][l];
      if (sum - sum != 0.0f)
        sum = SumOfVisible(weights + r, tile_rows, values + l, value_stride, count);
      float& total = totals[r * pitch + l];
      total = first ? sum : total * growth[r] + sum;
    }
  }
}

// Threads that share the columns and rows of the values, each with a part of a tile's keys.
RESIDENT_DEVICE i32 ValueParts(const Block& block, i32 units) {
  const i32 threads = static_cast<i32>(block.threads());
  return units == 0 || units >= threads ? 1 : threads / units;
}
template <i32 kRows>
RESIDENT_DEVICE i32 ValueUnits(const AttentionTask& task) {
  constexpr i32 kColumns = kLanes<kRows>;
  return (task.columns + kColumns - 1) / kColumns * (task.tile_rows / kRows);
}

// totals[part][row][column], in the block's scratch memory. `first`: offset of the first value.
template <typename T, i32 kRows>
RESIDENT_NOINLINE void AddTile(const Block& block, const AttentionTask& task, const TileRows& rows,
                               const float* scores, i64 first_value, i32 count, bool first) {
  constexpr i32 kColumns = kLanes<kRows>;
  const i32 tile_rows = kRows == 1 ? 1 : task.tile_rows;
  const i32 columns = task.columns;
  const i32 column_units = (columns + kColumns - 1) / kColumns;
  const i32 units = column_units * (tile_rows / kRows);
  const i32 parts = ValueParts(block, units);
  const i64 key_stride = task.v.strides[2];
  const i64 stride = task.v.strides[3];
  const T* const values = ElementAt<const T>(task.v.address, first_value);
  float* const totals = block.scratch<float>();
  RESIDENT_UNROLL(1)
  for (i32 i = static_cast<i32>(block.thread()); i < units * parts;
       i += static_cast<i32>(block.threads())) {
    const i32 part = i / units;
    const i32 column = i % column_units * kColumns;
    const i32 row = i % units / column_units * kRows;
    const i32 begin = count * part / parts;
    const i32 keys = count * (part + 1) / parts - begin;
    const float* const weights = scores + begin * tile_rows + row;
    const T* const from = values + begin * key_stride + column * stride;
    float* const to = totals + (part * tile_rows + row) * columns + column;
    if (kColumns == 1 || (stride == 1 && column + kColumns <= columns)) {
      AddValues<T, kRows, kColumns>(weights, tile_rows, from, key_stride, keys, rows.growth + row,
                                    to, columns, first);
    } else if constexpr (kColumns > 1) {
      for (i32 l = 0; l < kColumns && column + l < columns; ++l) {
        AddValues<T, kRows, 1>(weights, tile_rows, from + l * stride, key_stride, keys,
                               rows.growth + row, to + l, columns, first);
      }
    }
  }
}

// Writes the results of a tile: the values, or those of a part. `value_parts`: of the totals, 0 if
// the tile has no keys.
RESIDENT_NOINLINE void WriteTile(const Block& block, const AttentionTask& task,
                                 const TileRows& rows, i64 batch, i64 kv_head, i64 first_row,
                                 i64 row_count, i64 part, i32 value_parts) {
  const i32 columns = task.columns;
  const float* const totals = block.scratch<float>();
  const i64 shared = task.heads / task.kv_heads;
  struct Row {
    i32 index;
    float sum;
    i64 out;
  };
  ForEachInRows(
      block, {0, row_count}, columns,
      [&](i64 r) {
        const i64 query = (first_row + r) / shared;
        const i64 head = kv_head * shared + (first_row + r) % shared;
        const i64 out =
            task.parts > 0
                ? (((batch * task.heads + head) * task.queries + query) * task.parts + part) *
                      columns
                : batch * task.out.strides[0] + head * task.out.strides[1] +
                      query * task.out.strides[2];
        return Row{static_cast<i32>(r), rows.sum[r], out};
      },
      [&](const Row& row, i64 column) {
        float total = 0.0f;
        if (row.sum != 0.0f) {
          RESIDENT_UNROLL(1)
          for (i32 p = 0; p < value_parts; ++p) {
            total += totals[(p * task.tile_rows + row.index) * columns + column];
          }
          if (task.parts == 0) total /= row.sum;
        }
        const i64 stride = task.parts > 0 ? 1 : task.out.strides[3];
        StoreFloat(task.out.address, task.out.dtype, row.out + column * stride, total);
      });
  if (task.parts == 0) return;
  ForEach(block, row_count, [&](i64 r) {
    const i64 query = (first_row + r) / shared;
    const i64 head = kv_head * shared + (first_row + r) % shared;
    const i64 at = ((batch * task.heads + head) * task.queries + query) * task.parts + part;
    *ElementAt<float>(task.largest, at) = rows.largest[r];
    *ElementAt<float>(task.sum, at) = rows.sum[r];
  });
}

// Where part `part` of the keys begins.
RESIDENT_DEVICE i64 PartBegin(const AttentionTask& task, i64 part) {
  const i64 parts = task.parts > 0 ? task.parts : 1;
  return part * (task.keys / parts) + AtMost(part, task.keys % parts);
}

// `limit`, of rows that do not exist as well, is set for `count` rows.
RESIDENT_NOINLINE void StartRows(const Block& block, const AttentionTask& task, TileRows& rows,
                                 i64 batch, i64 kv_head, i64 first_row, i64 row_count, i64 count) {
  const i64 shared = task.heads / task.kv_heads;
  ForEach(block, count, [&](i64 r) {
    const i64 query = (first_row + r) / shared;
    const i64 head = kv_head * shared + (first_row + r) % shared;
    // Query s sees keys up to keys - S + s.
    const i64 visible =
        task.causal ? AtMost(task.keys - task.queries + query + 1, task.keys) : task.keys;
    rows.limit[r] = r < row_count ? visible : 0;
    rows.query[r] =
        batch * task.q.strides[0] + head * task.q.strides[1] + query * task.q.strides[2];
    rows.mask[r] =
        batch * task.mask.strides[0] + head * task.mask.strides[1] + query * task.mask.strides[2];
    rows.largest[r] = -math::infinity();
    rows.sum[r] = 0.0f;
  });
}

// A tile, and the part of the keys for which it is computed.
struct TileOfPart {
  i64 batch;
  i64 kv_head;
  i64 first_row;
  i64 row_count;
  i64 part;
};

RESIDENT_NOINLINE TileOfPart FindTile(const AttentionTask& task, i64 item) {
  const i64 tile = task.parts > 0 ? item / task.parts : item;
  const i64 group = tile / task.tiles;
  i64 index = tile % task.tiles;
  // The tiles that see the most keys are computed first, so that no block ends long after others.
  if (task.prefill) index = task.tiles - 1 - index;
  const i64 first_row = index * task.item_rows;
  return {group / task.kv_heads, group % task.kv_heads, first_row,
          AtMost(task.rows - first_row, task.item_rows), task.parts > 0 ? item % task.parts : 0};
}

RESIDENT_NOINLINE void AttendTile(const Block& block, const AttentionTask& task,
                                  const TileOfPart& tile) {
  const auto [batch, kv_head, first_row, row_count, part] = tile;
  TileRows& rows = *block.memory<TileRows>(kTileRowsOffset);
  const TileMemory memory(block, task);

  block.barrier();  // The previous tile has been written.
  StartRows(block, task, rows, batch, kv_head, first_row, row_count, task.tile_rows);
  block.barrier();

  const bool one_row = task.tile_rows == 1;
  const i64 begin = PartBegin(task, part);
  const i64 end = AtMost(PartBegin(task, part + 1), rows.limit[row_count - 1]);
  const i64 k = batch * task.k.strides[0] + kv_head * task.k.strides[1];
  const i64 v = batch * task.v.strides[0] + kv_head * task.v.strides[1];
  RESIDENT_UNROLL(1)
  for (i64 first = begin; first < end; first += task.tile_keys) {
    const i32 count = static_cast<i32>(AtMost(end - first, task.tile_keys));
    RESIDENT_UNROLL(1)
    for (i32 d = 0; d == 0 || d < task.depth; d += task.slice) {
      block.barrier();  // The previous slice, or the previous tile's weights, have been used.
      StageQueries(block, task, rows, memory, row_count, d);
      VisitFloat(task.k.dtype, [&](auto element) {
        StageKeys<decltype(element)>(block, task, memory.keys, k + first * task.k.strides[2], count,
                                     d);
      });
      block.barrier();
      if (one_row) {
        AddProducts<1>(block, task, memory, count, d == 0);
      } else {
        AddProducts<4>(block, task, memory, count, d == 0);
      }
    }
    block.barrier();
    if (one_row) {
      WeighOneRow(block, task, rows, memory.scores, first, count);
    } else {
      WeighRows(block, task, rows, memory.scores, first, count);
    }
    block.barrier();
    VisitFloat(task.v.dtype, [&](auto element) {
      using T = decltype(element);
      const i64 values = v + first * task.v.strides[2];
      if (one_row) {
        AddTile<T, 1>(block, task, rows, memory.scores, values, count, first == begin);
      } else {
        AddTile<T, 4>(block, task, rows, memory.scores, values, count, first == begin);
      }
    });
  }
  block.barrier();
  const i32 units = one_row ? ValueUnits<1>(task) : ValueUnits<4>(task);
  WriteTile(block, task, rows, batch, kv_head, first_row, row_count, part,
            begin < end ? ValueParts(block, units) : 0);
}

// --- Attention that is limited by the reading of keys and values --------------------------------
//
// Tiles of up to 16 rows of 16-bit elements, on tensor cores. The products are exact and are summed
// in float32, as above.
//
// A warp has every n-th step of 16 keys, where n is the number of the block's warps; the warps'
// results are merged at the end. A step is read in units of 64 elements of the 16 keys, then of
// their values. A warp always has two units on their way from device memory to its own part of the
// block's memory, which is what reaches the memory's bandwidth: 64 KiB for each SM with two blocks.
// A lane reads only the 16-byte chunks that it has copied itself, so that copies need no barrier.
//
//   Scores[key, row] = sum of keys[key, d] * queries[d, row]. A lane's chunk has 8 adjacent
//   elements of a key. As fragments these are other elements of the depth, but the same ones of
//   keys and of queries, whose sum has any order.
//
//   Totals[column, row] = sum of values[column, key] * weights[key, row]. A lane has chunks of four
//   keys, of which it makes pairs of keys for each of 8 columns. The weights, whose fragments are
//   those of the transposed scores, are the sum of two elements of 16 bits, so that they have at
//   least 16 bits of precision (in float16 only weights above 2^-22 have them).
//
// Sums over the keys are added outside of the tensor cores, which do not round to nearest.
//
// A hidden key has weight 0, and 0 times a value that is infinite or NaN is NaN. A tile with a
// result that is not finite is therefore computed again as above.

RESIDENT_DEVICE bool CanStream([[maybe_unused]] const AttentionTask& task) {
#if RESIDENT_TENSOR_CORES
  const DType dtype = task.k.dtype;
  if (dtype != DType::kF16 && dtype != DType::kBF16) return false;
  if (task.q.dtype != dtype || task.v.dtype != dtype) return false;
  u64 unaligned = task.k.address | task.v.address | static_cast<u64>(2 * task.depth) |
                  static_cast<u64>(2 * task.columns);
  RESIDENT_UNROLL(1)
  for (i32 d = 0; d < 3; ++d) {
    unaligned |= static_cast<u64>(2 * task.k.strides[d]) | static_cast<u64>(2 * task.v.strides[d]);
  }
  return unaligned % resident::kChunkBytes == 0 && task.depth > 0 && task.columns > 0 &&
         task.k.strides[3] == 1 && task.v.strides[3] == 1 && task.keys < (1 << 30) - 64;
#else
  return false;
#endif
}

#if RESIDENT_TENSOR_CORES

constexpr i32 kStreamKeys = 16;
constexpr i32 kUnitElements = 64;
constexpr u32 kUnitChunks = 4;  // Of each lane.
constexpr u32 kUnitBytes = kUnitChunks * resident::kLanesOfWarp * resident::kChunkBytes;
constexpr i32 kSetRows = 8;  // The rows of a fragment.
constexpr i32 kMaxWarps = Block::kMaxThreads / resident::kLanesOfWarp;

// The rows' results for each warp's keys.
struct WarpRows {
  float largest[kMaxWarps][kMaxTileRows];
  float sum[kMaxWarps][kMaxTileRows];
  i64 out[kMaxTileRows];  // Where the row begins in `out`.
};

// The block's fast memory: AttentionTask, TileRows, WarpRows, the queries, units. At the end each
// warp's units are its totals of 8 rows and 128 columns.
constexpr u32 kWarpRowsOffset = kTileRowsOffset + 640;
constexpr u32 kStreamQueriesOffset = kWarpRowsOffset + 1152;
constexpr u32 kStreamQueriesBytes = 2 * kMaxHeadDim * kSetRows;
constexpr u32 kUnitsOffset = kStreamQueriesOffset + kStreamQueriesBytes;
constexpr i32 kTotalColumns = 128;
static_assert(sizeof(WarpRows) <= 1152, "");
static_assert(2 * kUnitBytes == sizeof(float) * kSetRows * kTotalColumns, "");
static_assert(kUnitsOffset + 8 * 2 * kUnitBytes <= resident::kBlockMemoryBytes, "");

struct alignas(8) Pair {
  u32 words[2];
};

// Loads from the block's memory.
RESIDENT_DEVICE Quad LoadQuad(resident::MemoryAddress address) {
#if RESIDENT_GPU
  Quad quad;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(quad.words[0]), "=r"(quad.words[1]), "=r"(quad.words[2]), "=r"(quad.words[3])
               : "r"(address));
  return quad;
#else
  return *reinterpret_cast<const Quad*>(address);
#endif
}
RESIDENT_DEVICE Pair LoadPair(resident::MemoryAddress address) {
#if RESIDENT_GPU
  Pair pair;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(pair.words[0]), "=r"(pair.words[1])
               : "r"(address));
  return pair;
#else
  return *reinterpret_cast<const Pair*>(address);
#endif
}

// 2 to the power of x, for weights: an error of some units in the last place.
RESIDENT_DEVICE float PowerOfTwo(float x) {
#if RESIDENT_GPU
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return __builtin_exp2f(x);
#endif
}
RESIDENT_DEVICE float ExponentialOf(float difference) {
  return PowerOfTwo(difference * 1.44269504f);
}

RESIDENT_DEVICE float LargerNumber(float x, float y) {
#if RESIDENT_GPU
  return ::fmaxf(x, y);
#else
  return __builtin_fmaxf(x, y);
#endif
}

// Transposes an 8 x 8 matrix of 16-bit elements: lane l has row l / 4, columns 2 (l % 4) and
// 2 (l % 4) + 1, of the argument and of the result.
RESIDENT_DEVICE u32 Transpose8x8(u32 pair) {
#if RESIDENT_GPU
  u32 result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(pair));
  return result;
#else
  const u64 mine = pair;
  const auto* const all = resident::emulated::Exchange::All(&mine, 1);
  const u32 lane = resident::emulated::CurrentThread() % resident::kLanesOfWarp;
  const u32 row = lane / 4;
  const u32 column = lane % 4 * 2;
  const u64 low = all[column * 4 + row / 2][0] >> (row % 2 * 16);
  const u64 high = all[(column + 1) * 4 + row / 2][0] >> (row % 2 * 16);
  return static_cast<u32>((low & 0xffffu) | (high & 0xffffu) << 16);
#endif
}

// The value of another lane.
RESIDENT_DEVICE float Shuffle(float value, u32 lane) {
#if RESIDENT_GPU
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
#else
  const u64 mine = bit_cast<u32>(value);
  return bit_cast<float>(static_cast<u32>(resident::emulated::Exchange::All(&mine, 1)[lane][0]));
#endif
}

// Weights, which are at most 1, are multiplied by this before they are rounded to 16 bits: small
// float16 numbers have few bits.
template <typename T>
inline constexpr float kWeightScale = 1.0f;
template <>
inline constexpr float kWeightScale<resident::Half> = 16384.0f;

template <typename T>
RESIDENT_DEVICE float LowOf(u32 pair) {
  return T::Widen(static_cast<u16>(pair));
}
template <typename T>
RESIDENT_DEVICE float HighOf(u32 pair) {
  return T::Widen(static_cast<u16>(pair >> 16));
}

// Computes rows [first_row, first_row + 8 kSets) of a tile for keys [begin, end). False: a result
// is not finite. kBlocks: of 64 columns.
template <typename T, i32 kSets, i32 kBlocks>
RESIDENT_NOINLINE bool StreamRows(const Block& block, const TileOfPart& tile, i32 first_row,
                                  i32 begin, i32 end) {
  using resident::Accumulator;
  using resident::LeftFragment;
  using resident::MemoryAddress;
  using resident::RightFragment;

  const AttentionTask& task = *block.memory<AttentionTask>();
  TileRows& rows = *block.memory<TileRows>(kTileRowsOffset);
  const i32 thread = static_cast<i32>(block.thread());
  const i32 threads = static_cast<i32>(block.threads());
  const i32 lane = thread % 32;
  const i32 g = lane / 4;
  const i32 t = lane % 4;
  const i32 warp = thread / 32;
  const i32 step = threads / 32 * kStreamKeys;
  const i32 key_units = (task.depth + kUnitElements - 1) / kUnitElements;
  const i32 units = key_units + (task.columns + kUnitElements - 1) / kUnitElements;

  // The next unit to copy, and the lane's first elements in its step.
  i32 copied_key = begin + warp * kStreamKeys;
  i32 copied_unit = 0;
  u64 key_at =
      task.k.address +
      static_cast<u64>(2 * (tile.batch * task.k.strides[0] + tile.kv_head * task.k.strides[1] +
                            (copied_key + g) * task.k.strides[2] + t * 8));
  u64 value_at =
      task.v.address +
      static_cast<u64>(2 * (tile.batch * task.v.strides[0] + tile.kv_head * task.v.strides[1] +
                            (copied_key + 2 * t) * task.v.strides[2] + g * 8));
  const auto copy_unit = [&](MemoryAddress to) {
    if (copied_key < end) {
      const bool of_keys = copied_unit < key_units;
      const i32 unit = of_keys ? copied_unit : copied_unit - key_units;
      const u64 distance = static_cast<u64>(2 * (of_keys ? task.k.strides[2] : task.v.strides[2]));
      const u64 from = (of_keys ? key_at : value_at) + static_cast<u64>(unit * 2 * kUnitElements);
      // Keys g and g + 8 and two chunks of each, or four keys, of which each has one chunk.
      const u64 second = of_keys ? 8 * distance : distance;
      const u64 third = of_keys ? 64 : 8 * distance;
      const i32 keys = end - copied_key - (of_keys ? g : 2 * t);
      const i32 second_key = of_keys ? 8 : 1;
      const i32 third_key = of_keys ? 0 : 8;
      const i32 elements =
          (of_keys ? task.depth - t * 8 : task.columns - g * 8) - unit * kUnitElements;
      const u32 low = elements > 0 ? resident::kChunkBytes : 0;
      const u32 high = elements > (of_keys ? 32 : 0) ? resident::kChunkBytes : 0;
      resident::CopyAsync(to, from, keys > 0 ? low : 0);
      resident::CopyAsync(to + 512, from + second, keys > second_key ? low : 0);
      resident::CopyAsync(to + 1024, from + third, keys > third_key ? high : 0);
      resident::CopyAsync(to + 1536, from + second + third,
                          keys > second_key + third_key ? high : 0);
    }
    resident::CommitCopies();
    if (++copied_unit == units) {
      copied_unit = 0;
      copied_key += step;
      key_at += static_cast<u64>(2 * step * task.k.strides[2]);
      value_at += static_cast<u64>(2 * step * task.v.strides[2]);
    }
  };
  // The lane's chunks of the warp's two units, and those of the next unit to use.
  const MemoryAddress own_chunks = resident::AddressInMemory(
      block.memory<Quad>(kUnitsOffset + static_cast<u32>(warp) * 2 * kUnitBytes, 2 * 128) + lane);
  MemoryAddress chunks = own_chunks;
  // Starts the copy of the unit after the next one, in place of the unit that has been used.
  const auto replace_unit = [&] {
    copy_unit(chunks);
    chunks = chunks == own_chunks ? own_chunks + kUnitBytes : own_chunks;
  };
  copy_unit(own_chunks);
  copy_unit(own_chunks + kUnitBytes);

  // The queries as right fragments: queries[(chunk * kSets + set) * 32 + lane] has 8 elements.
  Quad* const queries = block.memory<Quad>(kStreamQueriesOffset, kStreamQueriesBytes / 16);
  const i32 query_words = key_units * 2 * kSets * 32 * 4;
  RESIDENT_UNROLL(2)
  for (i32 i = thread; i < query_words; i += threads) {
    const i32 row = first_row + i / 128 % kSets * kSetRows + i / 16 % 8;
    const i32 d = i / 128 / kSets * 32 + i / 4 % 4 * 8 + i % 4 * 2;
    u32 word = 0;
    if (row < tile.row_count && d < task.depth) {
      const i64 at = rows.query[row] + d * task.q.strides[3];
      const u32 low = *ElementAt<const u16>(task.q.address, at);
      word = low | u32{*ElementAt<const u16>(task.q.address, at + task.q.strides[3])} << 16;
    }
    queries[i / 4].words[i % 4] = word;
  }
  const MemoryAddress own_queries = resident::AddressInMemory(queries + lane);
  block.barrier();

  // Rows 2t and 2t + 1 of each set; the sums are those of the lane's keys.
  float largest[kSets][2];
  float sum[kSets][2] = {};
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    RESIDENT_UNROLL(4)
    for (i32 j = 0; j < 2; ++j) largest[set][j] = -math::infinity();
  }
  Accumulator totals[kSets][kBlocks][4] = {};
  const i32 visible_to_all = static_cast<i32>(AtMost(rows.limit[0], end));
  RESIDENT_UNROLL(1)
  for (i32 first = begin + warp * kStreamKeys; first < end; first += step) {
    Accumulator scores[kSets] = {};
    RESIDENT_UNROLL(1)
    for (i32 u = 0; u < key_units; ++u) {
      const MemoryAddress query_at = own_queries + static_cast<u32>(1024 * kSets * u);
      resident::WaitForCopies<1>();
      RESIDENT_UNROLL(4)
      for (i32 chunk = 0; chunk < 2; ++chunk) {
        const Quad low = LoadQuad(chunks + 1024 * chunk);
        const Quad high = LoadQuad(chunks + 1024 * chunk + 512);
        const LeftFragment a[2] = {{{low.words[0], high.words[0], low.words[1], high.words[1]}},
                                   {{low.words[2], high.words[2], low.words[3], high.words[3]}}};
        RESIDENT_UNROLL(4)
        for (i32 set = 0; set < kSets; ++set) {
          const Quad query = LoadQuad(query_at + 512 * (chunk * kSets + set));
          resident::MultiplyAdd<T>(scores[set], a[0],
                                   RightFragment{{query.words[0], query.words[1]}});
          resident::MultiplyAdd<T>(scores[set], a[1],
                                   RightFragment{{query.words[2], query.words[3]}});
        }
      }
      replace_unit();
    }

    const bool some_hidden = first + kStreamKeys > visible_to_all || task.mask.address != 0;
    RightFragment weights[kSets];
    RightFragment remainders[kSets];
    float growth[kSets][2];
    RESIDENT_UNROLL(4)
    for (i32 set = 0; set < kSets; ++set) {
      float(&score)[4] = scores[set].v;
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) score[i] *= task.scale;
      if (some_hidden) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) {
          const i32 row = first_row + set * kSetRows + 2 * t + i % 2;
          const i32 key = first + g + i / 2 * 8;
          if (key >= end || key >= rows.limit[row]) {
            score[i] = -math::infinity();
          } else if (task.mask.address != 0) {
            const float mask = LoadFloat(task.mask.address, task.mask.dtype,
                                         rows.mask[row] + key * task.mask.strides[3]);
            score[i] = mask == -math::infinity() ? mask : score[i] + mask;
          }
        }
      }
      float weight[4];
      RESIDENT_UNROLL(4)
      for (i32 j = 0; j < 2; ++j) {
        float top = LargerNumber(score[j], score[2 + j]);
        top = LargerNumber(top, resident::ShuffleXor(top, 4));
        top = LargerNumber(top, resident::ShuffleXor(top, 8));
        top = LargerNumber(top, resident::ShuffleXor(top, 16));
        top = LargerNumber(top, largest[set][j]);
        const float base = BaseOf(top);
        growth[set][j] = ExponentialOf(largest[set][j] - base);
        largest[set][j] = top;
        weight[j] = ExponentialOf(score[j] - base);
        weight[2 + j] = ExponentialOf(score[2 + j] - base);
        sum[set][j] = sum[set][j] * growth[set][j] + (weight[j] + weight[2 + j]);
      }
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) weight[i] *= kWeightScale<T>;
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 2; ++i) {
        const u32 pair = resident::Pack<T>(weight[2 * i], weight[2 * i + 1]);
        const u32 rest =
            resident::Pack<T>(weight[2 * i] - LowOf<T>(pair), weight[2 * i + 1] - HighOf<T>(pair));
        weights[set].v[i] = Transpose8x8(pair);
        remainders[set].v[i] = Transpose8x8(rest);
      }
    }

    RESIDENT_UNROLL(4)
    for (i32 b = 0; b < kBlocks; ++b) {
      if (b >= units - key_units) continue;
      Pair values[4];  // Two words of each of the four keys' chunks.
      resident::WaitForCopies<1>();
      RESIDENT_UNROLL(4)
      for (i32 i = 0; i < 4; ++i) {
        if (i % 2 == 0) {
          RESIDENT_UNROLL(4)
          for (i32 n = 0; n < 4; ++n) values[n] = LoadPair(chunks + 512 * n + 4 * i);
        }
        LeftFragment a;
        RESIDENT_UNROLL(4)
        for (i32 half = 0; half < 2; ++half) {
          const u32 x = values[2 * half].words[i % 2];
          const u32 y = values[2 * half + 1].words[i % 2];
          a.v[2 * half] = (x & 0xffffu) | y << 16;
          a.v[2 * half + 1] = x >> 16 | (y & 0xffff0000u);
        }
        RESIDENT_UNROLL(4)
        for (i32 set = 0; set < kSets; ++set) {
          Accumulator product = {};
          resident::MultiplyAdd<T>(product, a, weights[set]);
          resident::MultiplyAdd<T>(product, a, remainders[set]);
          float(&total)[4] = totals[set][b][i].v;
          RESIDENT_UNROLL(4)
          for (i32 e = 0; e < 4; ++e) {
            total[e] = total[e] * growth[set][e % 2] + product.v[e] * (1 / kWeightScale<T>);
          }
        }
      }
      replace_unit();
    }
  }
  resident::WaitForCopies<0>();

  // Merges the warps' results.
  WarpRows& results = *block.memory<WarpRows>(kWarpRowsOffset);
  const i32 warps = threads / 32;
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    RESIDENT_UNROLL(4)
    for (i32 j = 0; j < 2; ++j) {
      float all = sum[set][j];
      all += resident::ShuffleXor(all, 4);
      all += resident::ShuffleXor(all, 8);
      all += resident::ShuffleXor(all, 16);
      if (g != 0) continue;
      results.largest[warp][set * kSetRows + 2 * t + j] = largest[set][j];
      results.sum[warp][set * kSetRows + 2 * t + j] = all;
    }
  }
  block.barrier();
  const auto largest_of_row = [&](i32 r) {
    float top = results.largest[0][r];
    RESIDENT_UNROLL(1)
    for (i32 w = 1; w < warps; ++w) top = LargerNumber(top, results.largest[w][r]);
    return top;
  };
  u32 not_finite = 0;
  RESIDENT_UNROLL(1)
  for (i32 r = thread; r < kSets * kSetRows; r += threads) {
    const float top = largest_of_row(r);
    const float base = BaseOf(top);
    float all = 0.0f;
    RESIDENT_UNROLL(1)
    for (i32 w = 0; w < warps; ++w) {
      all += results.sum[w][r] * ExponentialOf(results.largest[w][r] - base);
    }
    const i32 row = first_row + r;
    rows.sum[row] = all;
    if (row >= tile.row_count) continue;
    const i64 shared = task.heads / task.kv_heads;
    const i64 query = (tile.first_row + row) / shared;
    const i64 head = tile.kv_head * shared + (tile.first_row + row) % shared;
    const i64 at =
        ((tile.batch * task.heads + head) * task.queries + query) * task.parts + tile.part;
    results.out[r] = task.parts > 0 ? at * task.columns
                                    : tile.batch * task.out.strides[0] +
                                          head * task.out.strides[1] + query * task.out.strides[2];
    if (all - all != 0.0f) not_finite = 1;
    if (task.parts == 0) continue;
    *ElementAt<float>(task.largest, at) = top;
    *ElementAt<float>(task.sum, at) = all;
  }
  const i64 out_stride = task.parts > 0 ? 1 : task.out.strides[3];
  float* const block_totals = block.memory<float>(kUnitsOffset);
  float* const own_totals = block_totals + warp * kSetRows * kTotalColumns;
  RESIDENT_UNROLL(4)
  for (i32 set = 0; set < kSets; ++set) {
    float factor[2];
    RESIDENT_UNROLL(4)
    for (i32 j = 0; j < 2; ++j) {
      factor[j] =
          ExponentialOf(largest[set][j] - BaseOf(largest_of_row(set * kSetRows + 2 * t + j)));
    }
    RESIDENT_UNROLL(4)
    for (i32 half = 0; half < kBlocks / 2; ++half) {
      block.barrier();  // The previous totals have been used.
      RESIDENT_UNROLL(4)
      for (i32 b = 0; b < 2; ++b) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) {
          const float(&total)[4] = totals[set][2 * half + b][i].v;
          RESIDENT_UNROLL(4)
          for (i32 e = 0; e < 4; ++e) {
            own_totals[(2 * t + e % 2) * kTotalColumns + b * kUnitElements + g * 8 + 2 * i +
                       e / 2] = total[e] * factor[e % 2];
          }
        }
      }
      block.barrier();
      RESIDENT_UNROLL(1)
      for (i32 i = thread; i < kSetRows * kTotalColumns; i += threads) {
        const i32 r = set * kSetRows + i / kTotalColumns;
        const i32 column = half * kTotalColumns + i % kTotalColumns;
        if (first_row + r >= tile.row_count || column >= task.columns) continue;
        const float row_sum = rows.sum[first_row + r];
        float all = 0.0f;
        if (row_sum != 0.0f) {
          RESIDENT_UNROLL(4)
          for (i32 w = 0; w < warps; ++w) all += block_totals[w * kSetRows * kTotalColumns + i];
          if (all - all != 0.0f) not_finite = 1;
          if (task.parts == 0) all /= row_sum;
        }
        StoreFloat(task.out.address, task.out.dtype, results.out[r] + column * out_stride, all);
      }
    }
  }
  return block.reduce(not_finite, [](u32 a, u32 b) { return a | b; }) == 0;
}

// Computes a tile. False: a result is not finite.
template <typename T>
RESIDENT_NOINLINE bool StreamTile(const Block& block, const TileOfPart& tile) {
  const AttentionTask& task = *block.memory<AttentionTask>();
  TileRows& rows = *block.memory<TileRows>(kTileRowsOffset);
  block.barrier();  // The previous tile has been written.
  StartRows(block, task, rows, tile.batch, tile.kv_head, tile.first_row, tile.row_count,
            kMaxTileRows);
  block.barrier();
  const i32 begin = static_cast<i32>(PartBegin(task, tile.part));
  i32 end = static_cast<i32>(PartBegin(task, tile.part + 1));
  if (rows.limit[tile.row_count - 1] < end) {
    end = rows.limit[tile.row_count - 1] < begin ? begin
                                                 : static_cast<i32>(rows.limit[tile.row_count - 1]);
  }
  if (task.depth <= 128 && task.columns <= 128) {
    if (tile.row_count <= kSetRows) return StreamRows<T, 1, 2>(block, tile, 0, begin, end);
    return StreamRows<T, 2, 2>(block, tile, 0, begin, end);
  }
  bool finite = StreamRows<T, 1, 4>(block, tile, 0, begin, end);
  if (tile.row_count > kSetRows) {
    finite = StreamRows<T, 1, 4>(block, tile, kSetRows, begin, end) && finite;
  }
  return finite;
}

// --- Attention of many rows of 16-bit elements --------------------------------------------------
//
// A block has tiles of 16 rows for each group of warps, whose queries remain in fast memory, and
// brings 32 keys and their values there at a time. A warp computes 16 rows for 16 keys at once:
// the scores become the weights, in registers, and these are the left operand of the product with
// the values. If there are enough warps, two of them share the rows, each with every second 16
// keys, and merge their results at the end.
//
// The keys of the next tile are copied during the product with the values, and the values during
// the product with the keys, so that each tile has two barriers.
//
// The weights are rounded to 16 bits, so that this is only for results of 16 bits. Results that are
// not finite are computed again, as above.

constexpr i32 kPrefillKeys = 32;
constexpr i32 kPrefillStep = 16;  // Keys of a warp at once.
constexpr i32 kPrefillDim = 128;  // Elements of queries and values, at most.
constexpr i32 kMaxPrefillRows = 64;

struct PrefillRows {
  i64 query[kMaxPrefillRows];  // Offset in q, in bytes.
  i64 out[kMaxPrefillRows];    // Offset in out, in elements.
  i32 limit[kMaxPrefillRows];  // Keys from this one on are hidden.
};

constexpr u32 kPrefillRowBytes = 2 * kPrefillDim;
constexpr u32 kPrefillRowsOffset = kTileRowsOffset + 640;
constexpr u32 kPrefillQueriesOffset = kPrefillRowsOffset + 1280;
constexpr u32 kPrefillKeysOffset = kPrefillQueriesOffset + kMaxPrefillRows * kPrefillRowBytes;
constexpr u32 kPrefillValuesOffset = kPrefillKeysOffset + kPrefillKeys * kPrefillRowBytes;
constexpr u32 kPrefillEnd = kPrefillValuesOffset + kPrefillKeys * kPrefillRowBytes;
static_assert(sizeof(PrefillRows) <= 1280 && kPrefillQueriesOffset % 128 == 0, "");
// The totals of the second warp of each pair, and its largest scores and sums, are merged there.
static_assert(kPrefillEnd - kPrefillQueriesOffset >= 4 * 16 * kPrefillDim * sizeof(float), "");
static_assert(kPrefillEnd + 4 * 4 * 32 * sizeof(float) <= resident::kBlockMemoryBytes, "");

// The warps that share 16 rows, and the sets of 16 rows of a block of so many threads.
RESIDENT_DEVICE i32 PrefillKeyGroups(i32 threads) { return threads / 32 % 2 == 0 ? 2 : 1; }
RESIDENT_DEVICE i32 PrefillRowGroups(i32 threads) {
  const i32 groups = threads / 32 / PrefillKeyGroups(threads);
  return groups < kMaxPrefillRows / 16 ? groups : kMaxPrefillRows / 16;
}

RESIDENT_DEVICE bool CanPrefill(const AttentionTask& task) {
  // Tensors of 16 bits, without a mask, of more rows than StreamTile computes at once.
  if (!task.stream || task.parts != 0 || task.mask.address != 0 || task.rows <= kMaxTileRows) {
    return false;
  }
  // The weighted values are added by tensor cores, which do not round to nearest.
  if (task.keys > (1 << 18)) return false;
  // The weights have the precision of k.
  if (task.out.dtype != DType::kBF16 &&
      (task.out.dtype != DType::kF16 || task.k.dtype != DType::kF16)) {
    return false;
  }
  u64 unaligned = task.q.address;
  RESIDENT_UNROLL(1)
  for (i32 d = 0; d < 3; ++d) unaligned |= static_cast<u64>(2 * task.q.strides[d]);
  return unaligned % resident::kChunkBytes == 0 && task.q.strides[3] == 1 && task.depth % 16 == 0 &&
         task.columns % 16 == 0 && task.depth <= kPrefillDim && task.columns <= kPrefillDim;
}

// The address of the chunks of elements 16 i and on, if `at` is that of the first ones.
RESIDENT_DEVICE resident::MemoryAddress StepAt(resident::MemoryAddress at, u32 i) {
  return (at ^ (32 * (i % 4))) + 128 * (i / 4);
}

// Whether the condition is true in any lane of the warp.
RESIDENT_DEVICE bool AnyLane(bool condition) {
#if RESIDENT_GPU
  return __any_sync(0xffffffffu, condition);
#else
  const u64 mine = condition;
  const auto* const all = resident::emulated::Exchange::All(&mine, 1);
  u64 any = 0;
  for (u32 lane = 0; lane < resident::kLanesOfWarp; ++lane) any |= all[lane][0];
  return any != 0;
#endif
}

// Computes the rows of `tile`, at most 16 for each row group. False: a result is not finite.
template <typename T>
RESIDENT_NOINLINE bool PrefillTile(const Block& block, const TileOfPart& tile) {
  using resident::Accumulator;
  using resident::LeftFragment;
  using resident::MemoryAddress;
  using resident::RightFragment;
  using resident::Swizzle;

  const AttentionTask& task = *block.memory<AttentionTask>();
  PrefillRows& rows = *block.memory<PrefillRows>(kPrefillRowsOffset);
  const i32 thread = static_cast<i32>(block.thread());
  const i32 threads = static_cast<i32>(block.threads());
  const i32 lane = thread % 32;
  const i32 warp = thread / 32;
  const i32 t = lane % 4;
  const i32 key_groups = PrefillKeyGroups(threads);
  const i32 key_group = warp % key_groups;
  const i32 row_group = warp / key_groups;
  const bool active = row_group < PrefillRowGroups(threads);
  const i32 row_count = static_cast<i32>(tile.row_count);

  block.barrier();  // The previous tile has been written.
  RESIDENT_UNROLL(1)
  for (i32 r = thread; r < kMaxPrefillRows; r += threads) {
    const i64 shared = task.heads / task.kv_heads;
    const i64 query = (tile.first_row + r) / shared;
    const i64 head = tile.kv_head * shared + (tile.first_row + r) % shared;
    const i64 visible =
        task.causal ? AtMost(task.keys - task.queries + query + 1, task.keys) : task.keys;
    rows.limit[r] = r < row_count && visible > 0 ? static_cast<i32>(visible) : 0;
    rows.query[r] =
        2 * (tile.batch * task.q.strides[0] + head * task.q.strides[1] + query * task.q.strides[2]);
    rows.out[r] =
        tile.batch * task.out.strides[0] + head * task.out.strides[1] + query * task.out.strides[2];
  }
  block.barrier();
  const i32 end = rows.limit[row_count - 1];

  // A thread copies one chunk of every (threads / 16)-th row.
  const i32 chunk = thread % 16;
  const MemoryAddress queries =
      resident::AddressInMemory(block.memory<u8>(kPrefillQueriesOffset, 64 * kPrefillRowBytes));
  const MemoryAddress keys = queries + kMaxPrefillRows * kPrefillRowBytes;
  const MemoryAddress values = keys + kPrefillKeys * kPrefillRowBytes;
  const auto copy_tile = [&](MemoryAddress to, const Operand& operand, i32 width, i32 first) {
    if (first < end && 8 * chunk < width) {
      const u64 from =
          operand.address + static_cast<u64>(2 * (tile.batch * operand.strides[0] +
                                                  tile.kv_head * operand.strides[1] + 8 * chunk));
      RESIDENT_UNROLL(1)
      for (i32 row = thread / 16; row < kPrefillKeys; row += threads / 16) {
        const u32 place = static_cast<u32>(row) * kPrefillRowBytes +
                          16 * Swizzle<16>(static_cast<u32>(row), static_cast<u32>(chunk));
        resident::CopyAsync(to + place,
                            from + static_cast<u64>(2 * i64{first + row} * operand.strides[2]),
                            first + row < end ? resident::kChunkBytes : 0);
      }
    }
    resident::CommitCopies();
  };
  if (8 * chunk < task.depth) {
    RESIDENT_UNROLL(1)
    for (i32 row = thread / 16; row < 16 * PrefillRowGroups(threads); row += threads / 16) {
      const u32 place = static_cast<u32>(row) * kPrefillRowBytes +
                        16 * Swizzle<16>(static_cast<u32>(row), static_cast<u32>(chunk));
      const bool there = row < row_count;
      resident::CopyAsync(
          queries + place,
          task.q.address + (there ? static_cast<u64>(rows.query[row] + 16 * chunk) : 0),
          there ? resident::kChunkBytes : 0);
    }
  }
  copy_tile(keys, task.k, task.depth, 0);
  copy_tile(values, task.v, task.columns, 0);

  // The lane's rows of chunks.
  const u32 l = static_cast<u32>(lane);
  const u32 query_row = 16 * static_cast<u32>(row_group) + resident::LeftRow(l);
  const MemoryAddress query_at =
      queries + query_row * kPrefillRowBytes + 16 * Swizzle<16>(query_row, resident::LeftChunk(l));
  const u32 key_place = resident::RightRow(l) * kPrefillRowBytes +
                        16 * Swizzle<16>(resident::RightRow(l), resident::RightChunk(l));
  const u32 value_place =
      resident::RightTransposedRow(l) * kPrefillRowBytes +
      16 * Swizzle<16>(resident::RightTransposedRow(l), resident::RightTransposedChunk(l));

  // Rows g and g + 8. The scores are multiplied by log2(e), so that weights are powers of two.
  const i32 row = 16 * (active ? row_group : 0) + lane / 4;
  const i32 limits[2] = {active ? rows.limit[row] : 0, active ? rows.limit[row + 8] : 0};
  const i32 warp_rows = row_count - 16 * row_group;
  // Keys that all of the warp's rows see, and that any of them sees.
  const i32 visible_to_all = active && warp_rows >= 16 ? rows.limit[16 * row_group] : 0;
  const i32 visible = !active || warp_rows <= 0
                          ? 0
                          : rows.limit[16 * row_group + (warp_rows < 16 ? warp_rows : 16) - 1];
  const float scale = task.scale * 1.44269504f;
  float largest[2] = {-math::infinity(), -math::infinity()};
  float sum[2] = {};
  Accumulator totals[kPrefillDim / 8] = {};
  resident::WaitForCopies<1>();
  block.barrier();
  RESIDENT_UNROLL(1)
  for (i32 first = 0; first < end; first += kPrefillKeys) {
    // With one key group, the warp has the tile's steps in turn.
    RESIDENT_UNROLL(1)
    for (i32 part = key_group; part < kPrefillKeys / kPrefillStep; part += key_groups) {
      const i32 first_key = first + part * kPrefillStep;
      const bool some = first_key < visible;
      LeftFragment weights;
      if (some) {
        Accumulator scores[2] = {};
        const MemoryAddress key_at =
            keys + static_cast<u32>(part * kPrefillStep) * kPrefillRowBytes + key_place;
        RESIDENT_UNROLL(4)
        for (u32 d = 0; d < static_cast<u32>(task.depth) / 16; ++d) {
          LeftFragment query;
          RightFragment key[2];
          resident::LoadLeft(query, StepAt(query_at, d));
          resident::LoadRight(key[0], key[1], StepAt(key_at, d));
          resident::MultiplyAdd<T>(scores[0], query, key[0]);
          resident::MultiplyAdd<T>(scores[1], query, key[1]);
        }
        RESIDENT_UNROLL(2)
        for (i32 n = 0; n < 2; ++n) {
          RESIDENT_UNROLL(4)
          for (i32 i = 0; i < 4; ++i) scores[n].v[i] *= scale;
        }
        if (first_key + kPrefillStep > visible_to_all) {
          RESIDENT_UNROLL(2)
          for (i32 n = 0; n < 2; ++n) {
            RESIDENT_UNROLL(4)
            for (i32 i = 0; i < 4; ++i) {
              if (first_key + 8 * n + 2 * t + i % 2 >= limits[i / 2]) {
                scores[n].v[i] = -math::infinity();
              }
            }
          }
        }
        float growth[2];
        RESIDENT_UNROLL(2)
        for (i32 j = 0; j < 2; ++j) {
          float top = LargerNumber(LargerNumber(scores[0].v[2 * j], scores[0].v[2 * j + 1]),
                                   LargerNumber(scores[1].v[2 * j], scores[1].v[2 * j + 1]));
          top = LargerNumber(top, resident::ShuffleXor(top, 1));
          top = LargerNumber(top, resident::ShuffleXor(top, 2));
          top = LargerNumber(top, largest[j]);
          const float base = BaseOf(top);
          growth[j] = PowerOfTwo(largest[j] - base);
          largest[j] = top;
          sum[j] *= growth[j];
          RESIDENT_UNROLL(2)
          for (i32 n = 0; n < 2; ++n) {
            RESIDENT_UNROLL(2)
            for (i32 i = 2 * j; i < 2 * j + 2; ++i) {
              // The scale is part of both the sum and the totals.
              scores[n].v[i] = PowerOfTwo(scores[n].v[i] - base) * kWeightScale<T>;
              sum[j] += scores[n].v[i];
            }
          }
        }
        weights = resident::ToLeft<T>(scores[0], scores[1]);
        if (AnyLane(growth[0] != 1.0f || growth[1] != 1.0f)) {
          RESIDENT_UNROLL(16)
          for (i32 n = 0; n < kPrefillDim / 8; ++n) {
            RESIDENT_UNROLL(4)
            for (i32 i = 0; i < 4; ++i) totals[n].v[i] *= growth[i / 2];
          }
        }
      }
      if (part == key_group) {
        resident::WaitForCopies<0>();
        block.barrier();  // The values have arrived.
      }
      if (part + key_groups >= kPrefillKeys / kPrefillStep) {
        if (key_groups == 1) block.barrier();  // The keys have been used.
        copy_tile(keys, task.k, task.depth, first + kPrefillKeys);
      }
      if (some) {
        const MemoryAddress value_at =
            values + static_cast<u32>(part * kPrefillStep) * kPrefillRowBytes + value_place;
        RESIDENT_UNROLL(8)
        for (u32 e = 0; e < kPrefillDim / 16; ++e) {
          if (16 * e >= static_cast<u32>(task.columns)) continue;
          RightFragment value[2];
          resident::LoadRightTransposed(value[0], value[1], StepAt(value_at, e));
          resident::MultiplyAdd<T>(totals[2 * e], weights, value[0]);
          resident::MultiplyAdd<T>(totals[2 * e + 1], weights, value[1]);
        }
      }
    }
    resident::WaitForCopies<0>();
    block.barrier();  // The next keys have arrived, and the values have been used.
    copy_tile(values, task.v, task.columns, first + kPrefillKeys);
  }
  resident::WaitForCopies<0>();

  RESIDENT_UNROLL(2)
  for (i32 j = 0; j < 2; ++j) {
    sum[j] += resident::ShuffleXor(sum[j], 1);
    sum[j] += resident::ShuffleXor(sum[j], 2);
  }
  if (key_groups == 2) {
    float* const other = block.memory<float>(kPrefillQueriesOffset) +
                         (active ? row_group : 0) * 16 * kPrefillDim + lane;
    float* const other_rows =
        block.memory<float>(kPrefillEnd) + (active ? row_group : 0) * 4 * 32 + lane;
    block.barrier();  // Queries, keys and values have been used.
    if (active && key_group == 1) {
      RESIDENT_UNROLL(2)
      for (i32 j = 0; j < 2; ++j) {
        other_rows[64 * j] = largest[j];
        other_rows[64 * j + 32] = sum[j];
      }
      RESIDENT_UNROLL(16)
      for (i32 n = 0; n < kPrefillDim / 8; ++n) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) other[32 * (4 * n + i)] = totals[n].v[i];
      }
    }
    block.barrier();
    if (active && key_group == 0) {
      float own_factor[2];
      float other_factor[2];
      RESIDENT_UNROLL(2)
      for (i32 j = 0; j < 2; ++j) {
        const float base = BaseOf(LargerNumber(largest[j], other_rows[64 * j]));
        own_factor[j] = PowerOfTwo(largest[j] - base);
        other_factor[j] = PowerOfTwo(other_rows[64 * j] - base);
        sum[j] = sum[j] * own_factor[j] + other_rows[64 * j + 32] * other_factor[j];
      }
      RESIDENT_UNROLL(16)
      for (i32 n = 0; n < kPrefillDim / 8; ++n) {
        RESIDENT_UNROLL(4)
        for (i32 i = 0; i < 4; ++i) {
          totals[n].v[i] =
              totals[n].v[i] * own_factor[i / 2] + other[32 * (4 * n + i)] * other_factor[i / 2];
        }
      }
    }
  }

  u32 not_finite = 0;
  if (active && key_group == 0) {
    const i64 stride = task.out.strides[3];
    RESIDENT_UNROLL(2)
    for (i32 j = 0; j < 2; ++j) {
      if (row + 8 * j >= row_count) continue;
      const i64 out = rows.out[row + 8 * j];
      const float inverse = sum[j] == 0.0f ? 0.0f : 1.0f / sum[j];
      RESIDENT_UNROLL(16)
      for (i32 n = 0; n < kPrefillDim / 8; ++n) {
        RESIDENT_UNROLL(2)
        for (i32 i = 0; i < 2; ++i) {
          const i32 column = 8 * n + 2 * t + i;
          if (column >= task.columns) continue;
          const float total = sum[j] == 0.0f ? 0.0f : totals[n].v[2 * j + i] * inverse;
          if (total - total != 0.0f) not_finite = 1;
          if (task.out.dtype == DType::kF16) {
            *ElementAt<resident::Half>(task.out.address, out + column * stride) =
                resident::Half(total);
          } else {
            *ElementAt<resident::BFloat16>(task.out.address, out + column * stride) =
                resident::BFloat16(total);
          }
        }
      }
    }
  }
  return block.reduce(not_finite, [](u32 a, u32 b) { return a | b; }) == 0;
}

// Computes the rows of an item.
template <typename T>
RESIDENT_NOINLINE void AttendOnTensorCores(const Block& block, const AttentionTask& task,
                                           const TileOfPart& rows) {
  if (task.prefill && PrefillTile<T>(block, rows)) return;
  RESIDENT_UNROLL(1)
  for (i64 first = 0; first < rows.row_count; first += kMaxTileRows) {
    const TileOfPart tile = {rows.batch, rows.kv_head, rows.first_row + first,
                             AtMost(rows.row_count - first, kMaxTileRows), rows.part};
    if (!StreamTile<T>(block, tile)) AttendTile(block, task, tile);
  }
}

#endif  // RESIDENT_TENSOR_CORES

// --- The task of attention ----------------------------------------------------------------------

// The mask's strides for [B, N, S, L], to which its shape broadcasts. False: it does not.
RESIDENT_DEVICE bool ReadMask(const Tensor<const Any>& mask, const i64 (&shape)[4],
                              Operand& operand) {
  operand.address = 0;
  RESIDENT_UNROLL(1)
  for (i32 d = 0; d < 4; ++d) operand.strides[d] = 0;
  if (mask.size() == 0) return true;
  if (mask.rank() > 4) return false;
  operand.address = reinterpret_cast<u64>(mask.data());
  operand.dtype = mask.dtype();
  const u32 missing = 4 - mask.rank();
  RESIDENT_UNROLL(1)
  for (u32 d = missing; d < 4; ++d) {
    const i64 extent = mask.shape(d - missing);
    if (extent != 1 && extent != shape[d]) return false;
    operand.strides[d] = extent == 1 ? 0 : mask.stride(d - missing);
  }
  return true;
}

// Fills `task`, of which the outputs are set. `scalars`: index of the argument `scale`.
RESIDENT_NOINLINE void ReadAttention(const Args& args, u32 scalars, i64 parts,
                                     [[maybe_unused]] u32 threads, AttentionTask& task) {
  const auto q = args.tensor<const Any>(0);
  const auto k = args.tensor<const Any>(1);
  const auto v = args.tensor<const Any>(2);
  const i64 batches = q.shape(0);
  const i64 length = k.shape(2);
  const i64 kv_len = args.scalar<i64>(scalars + 2);
  task.heads = q.shape(1);
  task.queries = q.shape(2);
  task.kv_heads = k.shape(1);
  task.keys = kv_len == -1 ? length : kv_len;
  task.parts = parts;
  task.scale = args.scalar<float>(scalars);
  task.causal = args.scalar<i32>(scalars + 1);
  task.items = 0;
  task.refusal = 0;
  if (q.shape(3) > kMaxHeadDim || v.shape(3) > kMaxHeadDim) {
    task.refusal = kHeadDimTooLarge;
  } else if (task.kv_heads == 0 ? task.heads != 0 : task.heads % task.kv_heads != 0) {
    task.refusal = kHeadsDoNotDivide;
  } else if (kv_len < -1 || kv_len > length) {
    task.refusal = kBadKeyCount;
  } else if (task.causal != 0 && task.causal != 1) {
    task.refusal = kBadCausal;
  } else if (!ReadMask(args.tensor<const Any>(3), {batches, task.heads, task.queries, length},
                       task.mask)) {
    task.refusal = kBadMaskShape;
  }
  if (task.refusal != 0 || task.heads == 0) return;
  task.q.Read(q);
  task.k.Read(k);
  task.v.Read(v);
  task.depth = static_cast<i32>(q.shape(3));
  task.columns = static_cast<i32>(v.shape(3));
  task.rows = task.queries * (task.heads / task.kv_heads);
  task.tile_rows = task.rows <= 1 ? 1 : task.rows <= 4 ? 4 : task.rows <= 8 ? 8 : 16;
  task.tile_keys = task.tile_rows <= 4 ? 256 : 1024 / task.tile_rows;
  task.slice = task.tile_rows == 16 ? 32 : 16;
  task.stream = CanStream(task);
  task.prefill = false;
  task.item_rows = task.tile_rows;
#if RESIDENT_TENSOR_CORES
  if (CanPrefill(task)) {
    task.prefill = true;
    task.item_rows = 16 * PrefillRowGroups(static_cast<i32>(threads));
  }
#endif
  task.tiles = (task.rows + task.item_rows - 1) / task.item_rows;
  task.items = batches * task.kv_heads * task.tiles * (parts > 0 ? parts : 1);
}

// Runs the task in the block's memory.
RESIDENT_DEVICE void Attend(Block& block, const AttentionTask& task) {
  if (task.refusal != 0) {
    Refuse(block, task.refusal);
    return;
  }
  const Range items = block.share(task.items);
  RESIDENT_UNROLL(1)
  for (i64 item = items.begin; item < items.end; ++item) {
    const TileOfPart tile = FindTile(task, item);
#if RESIDENT_TENSOR_CORES
    if (task.stream) {
      if (task.k.dtype == DType::kF16) {
        AttendOnTensorCores<resident::Half>(block, task, tile);
      } else {
        AttendOnTensorCores<resident::BFloat16>(block, task, tile);
      }
      continue;
    }
#endif
    AttendTile(block, task, tile);
  }
}

}  // namespace

RESIDENT_OPERATOR(attention)(Block& block, const Args& args) {
  auto& task = *block.memory<AttentionTask>();
  if (block.thread() == 0) {
    const auto out = args.tensor<const Any>(4);
    task.out.Read(out);
    ReadAttention(args, 5, 0, block.threads(), task);
    if (out.size() == 0) task.items = 0;
  }
  block.barrier();
  Attend(block, task);
}

RESIDENT_OPERATOR(attention_partial)(Block& block, const Args& args) {
  auto& task = *block.memory<AttentionTask>();
  if (block.thread() == 0) {
    const auto acc = args.tensor<const Any>(4);
    const auto largest = args.tensor<const Any>(5);
    task.out.address = reinterpret_cast<u64>(acc.data());
    task.out.dtype = DType::kF32;
    ReadAttention(args, 7, acc.shape(3), block.threads(), task);
    task.largest = reinterpret_cast<u64>(largest.data());
    task.sum = reinterpret_cast<u64>(args.tensor<const Any>(6).data());
    if (largest.size() == 0) task.items = 0;
  }
  block.barrier();
  Attend(block, task);
}

namespace {

#if RESIDENT_TENSOR_CORES

// The tensors of attention_combine.
struct CombineTask {
  const float* acc;
  const float* largest;
  const float* sums;
  u64 out;
  DType dtype;
  i64 parts;
  i64 columns;
};

// Merges the parts of rows: a warp has a row, a lane has every 32nd part, then every 32nd column.
RESIDENT_NOINLINE void CombineRows(const Block& block, const CombineTask& task, Range rows) {
  const i64 parts = task.parts;
  const i64 columns = task.columns;
  const i64 lane = resident::Lane(block);
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin + block.thread() / 32; row < rows.end; row += block.threads() / 32) {
    const float* const largest = task.largest + row * parts;
    const float* const sums = task.sums + row * parts;
    float top = -math::infinity();
    RESIDENT_UNROLL(1)
    for (i64 p = lane; p < parts; p += 32) {
      const float score = largest[p];
      if (sums[p] != 0.0f && score != -math::infinity()) top = Larger(top, score);
    }
    RESIDENT_UNROLL(1)
    for (u32 mask = 16; mask > 0; mask /= 2) top = Larger(top, resident::ShuffleXor(top, mask));
    const float base = BaseOf(top);
    // -0 for an empty part.
    const auto weight = [=](i64 p) {
      if (p >= parts || sums[p] == 0.0f || largest[p] == -math::infinity()) return -0.0f;
      return math::exp(largest[p] - base);
    };
    float sum = 0.0f;
    RESIDENT_UNROLL(1)
    for (i64 p = lane; p < parts; p += 32) {
      const float w = weight(p);
      if (!IsHidden(w)) sum += w * sums[p];
    }
    RESIDENT_UNROLL(1)
    for (u32 mask = 16; mask > 0; mask /= 2) sum += resident::ShuffleXor(sum, mask);

    constexpr i32 kColumns = 4;  // Of a lane at once.
    RESIDENT_UNROLL(1)
    for (i64 first = 0; first < columns; first += 32 * kColumns) {
      float totals[kColumns] = {};
      RESIDENT_UNROLL(1)
      for (i64 first_part = 0; first_part < parts; first_part += 32) {
        const float own_weight = weight(first_part + lane);
        const i32 count = static_cast<i32>(AtMost(parts - first_part, 32));
        const float* values = task.acc + (row * parts + first_part) * columns + first + lane;
        RESIDENT_UNROLL(4)
        for (i32 p = 0; p < count; ++p) {
          const float w = Shuffle(own_weight, static_cast<u32>(p));
          RESIDENT_UNROLL(4)
          for (i32 i = 0; i < kColumns; ++i) {
            const bool there = first + lane + 32 * i < columns && !IsHidden(w);
            totals[i] += w * (there ? values[32 * i] : 0.0f);
          }
          values += columns;
        }
      }
      RESIDENT_UNROLL(1)
      for (i32 i = 0; i < kColumns; ++i) {
        const i64 column = first + lane + 32 * i;
        if (column >= columns) break;
        float total = totals[0];
        if (i == 1) total = totals[1];
        if (i == 2) total = totals[2];
        if (i == 3) total = totals[3];
        StoreFloat(task.out, task.dtype, row * columns + column, sum == 0.0f ? 0.0f : total / sum);
      }
    }
  }
}

#endif  // RESIDENT_TENSOR_CORES

}  // namespace

RESIDENT_OPERATOR(attention_combine)(Block& block, const Args& args) {
  const auto acc = args.tensor<const float>(0);
  const auto out = args.tensor<const Any>(3);
  const float* const largest = args.tensor<const float>(1).data();
  const float* const sums = args.tensor<const float>(2).data();
  const u64 out_address = reinterpret_cast<u64>(out.data());
  const DType dtype = out.dtype();
  const i64 parts = acc.shape(3);
  const i64 columns = acc.shape(4);
  if (out.size() == 0) return;
#if RESIDENT_TENSOR_CORES
  CombineRows(block, {acc.data(), largest, sums, out_address, dtype, parts, columns},
              block.share(out.size() / columns));
#else
  // The weights of the first parts; those of more parts are computed again for each column.
  constexpr i64 kStored = 4096;
  float* const stored = block.memory<float>(0, kStored);
  const Range rows = block.share(out.size() / columns);
  const auto larger = [](float a, float b) { return Larger(a, b); };
  RESIDENT_UNROLL(1)
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const float* const row_largest = largest + row * parts;
    const float* const row_sums = sums + row * parts;
    const auto empty = [=](i64 p) {
      return row_sums[p] == 0.0f || row_largest[p] == -math::infinity();
    };
    float top = -math::infinity();
    ForEach(block, parts, [&](i64 p) {
      if (!empty(p)) top = Larger(top, row_largest[p]);
    });
    top = block.reduce(top, larger);
    const float base = BaseOf(top);
    const auto weight = [=](i64 p) { return empty(p) ? 0.0f : math::exp(row_largest[p] - base); };
    float sum = 0.0f;
    ForEach(block, parts, [&](i64 p) {
      const float w = weight(p);
      if (p < kStored) stored[p] = w;
      sum += empty(p) ? 0.0f : w * row_sums[p];
    });
    sum = block.reduce_sum(sum);  // The weights have been stored.
    const float* const values = acc.data() + row * parts * columns;
    ForEach(block, columns, [&](i64 column) {
      float total = 0.0f;
      RESIDENT_UNROLL(1)
      for (i64 p = 0; p < parts; ++p) {
        if (empty(p)) continue;
        total += (p < kStored ? stored[p] : weight(p)) * values[p * columns + column];
      }
      StoreFloat(out_address, dtype, row * columns + column, sum == 0.0f ? 0.0f : total / sum);
    });
    block.barrier();
  }
#endif
}
