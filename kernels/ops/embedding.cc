// Of the family "attention": embeddings, and the cache of keys and values. They copy rows.
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/operator.h"

namespace resident {
namespace {

// Where a row begins in its tensors, in elements.
struct RowCopy {
  i64 from;
  i64 to;
};

RESIDENT_NOINLINE RowCopy OffsetsAt(const IndexMap<2>& map, i64 row) {
  i64 offsets[2];
  map.Offsets(row, offsets);
  return {offsets[0], offsets[1]};
}

// The rows of an embedding, or of an append.
struct RowIndex {
  const IndexMap<2>* map;  // Offsets of an append's rows; null: an embedding.
  i64 first;               // Of an append: added to `to`.
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
RESIDENT_NOINLINE void CopyRows(Block block, Range rows, i64 columns, const RowOperand& from,
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
  if (from.stride == 1 && to.stride == 1 && unaligned % sizeof(Bytes16) == 0) {
    CopyWords<Bytes16>(block, rows, columns, from, to, bytes == 4 ? 2 : 3, index);
  } else if (bytes == 4) {
    CopyWords<u32>(block, rows, columns, from, to, 0, index);
  } else {
    CopyWords<u16>(block, rows, columns, from, to, 0, index);
  }
}

#if RESIDENT_WARPS

// Four adjacent elements of any of the types.
RESIDENT_DEVICE Quad<float> LoadQuadOf(u64 address, DType dtype, i64 offset) {
  Quad<float> quad;
  VisitFloat(dtype, [&](auto element) {
    using T = decltype(element);
    const Quad<T> stored = *reinterpret_cast<const Quad<T>*>(ElementAt<const T>(address, offset));
    for (i32 k = 0; k < 4; ++k) quad.v[k] = stored.v[k];
  });
  return quad;
}
RESIDENT_DEVICE void StoreQuadOf(u64 address, DType dtype, i64 offset, const Quad<float>& quad) {
  VisitFloat(dtype, [&](auto element) {
    using T = decltype(element);
    Quad<T> rounded;
    for (i32 k = 0; k < 4; ++k) rounded.v[k] = T(quad.v[k]);
    *reinterpret_cast<Quad<T>*>(ElementAt<T>(address, offset)) = rounded;
  });
}

// Appends rows of one batch, four elements at a time, from one type to another: those of a
// decoding step, which take as long as the instructions in front of the first load. False: the
// tensors have another form.
RESIDENT_NOINLINE bool AppendQuads(Block block, Args args, i64 pos) {
  if (!kReadsDirectly) return false;
  const TensorArgument& from = args.described(0);
  const TensorArgument& to = args.described(1);
  const u32 length = static_cast<u32>(from.shape[2]);
  const u32 quads = static_cast<u32>(from.shape[3] / 4);  // Of a row.
  const i64 rows = from.shape[1] * from.shape[2];
  u64 odd = static_cast<u64>(from.shape[3]);
  for (u32 d = 1; d < 3; ++d) odd |= static_cast<u64>(from.strides[d] | to.strides[d]);
  const u64 from_quad = from.dtype == DType::kF32 ? 16 : 8;
  const u64 to_quad = to.dtype == DType::kF32 ? 16 : 8;
  const bool fits = (from.dtype != to.dtype) & (from.shape[0] == 1) & (from.strides[3] == 1) &
                    (to.strides[3] == 1) & (odd % 4 == 0) & (from.address % from_quad == 0) &
                    (to.address % to_quad == 0) & (rows * from.shape[3] < (i64{1} << 31)) &
                    (rows > 0) & (from.shape[3] > 0);
  if (!fits) return false;
  const Range share = block.share(rows);
  const u32 end = static_cast<u32>(share.end) * quads;
  if (!block.await_inputs()) return true;
  RESIDENT_UNROLL(1)
  for (u32 i = static_cast<u32>(share.begin) * quads + block.thread(); i < end;
       i += block.threads()) {
    const u32 row = i / quads;
    const i64 column = 4 * (i - row * quads);
    const u32 head = length == 1 ? row : row / length;
    const i64 s = row - head * length;
    const Quad<float> quad =
        LoadQuadOf(from.address, from.dtype, head * from.strides[1] + s * from.strides[2] + column);
    StoreQuadOf(to.address, to.dtype, head * to.strides[1] + (pos + s) * to.strides[2] + column,
                quad);
  }
  return true;
}

// The same for a single row that is dense, of which a thread requests several quads before it
// stores the first of them. False: it has another form.
RESIDENT_NOINLINE bool CopyRowByQuads(Block block, i64 columns, const RowOperand& from,
                                      const RowOperand& to) {
  constexpr u32 kQuads = 4;
  const u64 from_quad = from.dtype == DType::kF32 ? 16 : 8;
  const u64 to_quad = to.dtype == DType::kF32 ? 16 : 8;
  const bool fits = (columns % 4 == 0) & (columns >> 31 == 0) & (from.address % from_quad == 0) &
                    (to.address % to_quad == 0);
  if (!fits) return false;
  const u32 quads = static_cast<u32>(columns / 4);
  RESIDENT_UNROLL(1)
  for (u32 first = block.thread(); first < quads; first += kQuads * block.threads()) {
    Quad<float> row[kQuads];
    for (u32 q = 0; q < kQuads; ++q) {
      const u32 at = first + q * block.threads();
      if (at < quads) row[q] = LoadQuadOf(from.address, from.dtype, i64{4} * at);
    }
    for (u32 q = 0; q < kQuads; ++q) {
      const u32 at = first + q * block.threads();
      if (at < quads) StoreQuadOf(to.address, to.dtype, i64{4} * at, row[q]);
    }
  }
  return true;
}

#endif  // RESIDENT_WARPS

}  // namespace

// The beginning of a decoding step: its token, and the row of the table that has this number.
RESIDENT_OPERATOR(take_token)(Block& block, const Args& args) {
  const auto prompt = args.tensor<const i64>(0);
  const auto token = args.tensor<i64>(1);
  const auto table = args.tensor<const Any>(2);
  const auto out = args.tensor<const Any>(3);
  const i64 pos = args.scalar<i64>(4);
  const i64 length = args.scalar<i64>(5);
  if (pos < 0 || length > prompt.size()) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }
  const bool prompted = pos < length;
  const i64 id = prompted ? prompt.data()[pos] : token.data()[0];
  if (id < 0 || id >= table.shape(0)) {
    block.fail(CompletionStatus::kInvalidArgument, 2);
    return;
  }
  if (prompted && block.thread() == 0) token.data()[0] = id;
  const i64 columns = table.shape(1);
  const RowOperand to = {AddressOf(out), out.dtype(), 1};
#if RESIDENT_WARPS
  const u64 row_bytes = static_cast<u64>(columns) * SizeOf(table.dtype());
  const RowOperand row = {AddressOf(table) + static_cast<u64>(id) * row_bytes, table.dtype(), 1};
  if (CopyRowByQuads(block, columns, row, to)) return;
#endif
  ForEach(block, columns, [&](i64 c) {
    StoreFloat(to.address, to.dtype, c,
               LoadFloat(AddressOf(table), table.dtype(), id * columns + c));
  });
}

RESIDENT_OPERATOR(embedding)(Block& block, const Args& args) {
  const auto ids = args.tensor<const Any>(0);
  const auto table = args.tensor<const Any>(1);
  const auto out = args.tensor<const Any>(2);
  const i64 count = ids.size();
  const i64 vocabulary = table.shape(0);
  const i64 columns = table.shape(1);
  const RowIndex index = {nullptr, 0, AddressOf(ids), ids.dtype() == DType::kI32, columns};

  // Every chunk that writes checks all ids, so that no chunk writes if one is out of range. With at
  // most one such chunk for each column, all chunks together read no more ids than they write
  // elements.
  const i64 chunks = Smallest(block.chunk_count(), columns > 1 ? columns : 1);
  if (block.chunk() >= chunks) return;
  u32 outside = 0;
  block.for_each({0, count}, [&](i64 i) {
    const i64 value = index.Id(i);
    outside |= value < 0 || value >= vocabulary ? 1 : 0;
  });
  outside = block.reduce(outside, [](u32 a, u32 b) { return a | b; });
  if (outside != 0) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }

  const i64 base = count / chunks;
  const i64 more = count % chunks;
  const i64 begin = block.chunk() * base + Smallest(block.chunk(), more);
  const Range rows = {begin, begin + base + (block.chunk() < more ? 1 : 0)};
  CopyRows(block, rows, columns, {AddressOf(table), table.dtype(), 1},
           {AddressOf(out), out.dtype(), 1}, 0, index);
}

RESIDENT_OPERATOR(kv_append)(Block& block, const Args& args) {
  const auto from = args.tensor<const Any>(0);
  const auto cache = args.tensor<const Any>(1);
  const i64 pos = args.scalar<i64>(2);
  const i64 length = from.shape(2);
  if (pos < 0 || pos > cache.shape(2) - length) {
    block.fail(CompletionStatus::kInvalidArgument, 1);
    return;
  }
#if RESIDENT_WARPS
  if (AppendQuads(block, args, pos)) return;
#endif
  if (!block.await_inputs()) return;
  // The rows of `from`, and the strides of the cache.
  struct Rows {
    const Tensor<const Any>& shape_of;
    const Tensor<const Any>& strides_of;
    RESIDENT_DEVICE u32 rank() const { return 3; }
    RESIDENT_DEVICE i64 shape(u32 d) const { return shape_of.shape(d); }
    RESIDENT_DEVICE i64 stride(u32 d) const { return strides_of.stride(d); }
  };
  auto& map = *block.memory<IndexMap<2>>();
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
           {AddressOf(from), from.dtype(), from.stride(3)},
           {AddressOf(cache), cache.dtype(), cache.stride(3)}, distances * static_cast<u64>(bytes),
           {&map, first, 0, false, 0});
}

}  // namespace resident
