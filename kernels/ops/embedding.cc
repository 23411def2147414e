// Of the family "attention": embeddings, and the cache of keys and values. Both copy rows.
#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/numbers.h"
#include "kernels/sdk/operator.h"

using resident::AddressOf;
using resident::Any;
using resident::Args;
using resident::Block;
using resident::Bytes16;
using resident::CompletionStatus;
using resident::DType;
using resident::ElementAt;
using resident::ForEachInRows;
using resident::i32;
using resident::i64;
using resident::LoadFloat;
using resident::Range;
using resident::Smallest;
using resident::StoreFloat;
using resident::Tensor;
using resident::u16;
using resident::u32;
using resident::u64;

namespace {

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
  if (from.stride == 1 && to.stride == 1 && unaligned % sizeof(Bytes16) == 0) {
    CopyWords<Bytes16>(block, rows, columns, from, to, bytes == 4 ? 2 : 3, index);
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
           {AddressOf(from), from.dtype(), from.stride(3)},
           {AddressOf(cache), cache.dtype(), cache.stride(3)}, distances * static_cast<u64>(bytes),
           {&map, first, 0, false, 0});
}
