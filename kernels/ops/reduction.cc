// The family "reduction".
//
// The general operators reduce the axes of a bit mask. Each output is the reduction of `count`
// elements, which are in the row-major order of the reduced axes. One of three forms is used:
//
//   rows   The elements of an output are adjacent: a team of threads for each output (rows.h).
//   parts  The same, for few outputs of many elements: several blocks for each output
//          (long_rows.h).
//   tiles  Any strides: a thread has kTile outputs, and some of the elements of each. Adjacent
//          threads read adjacent elements, whether these belong to one output or to several.
#include "kernels/ops/groups.h"
#include "kernels/ops/largest_index.h"
#include "kernels/ops/long_rows.h"
#include "kernels/ops/rows.h"

namespace resident {
namespace {

// Details of INVALID_ARGUMENT.
constexpr u16 kBadAxes = 1;
constexpr u16 kBadShape = 2;
constexpr u16 kNoElements = 3;

// --- Reducers -----------------------------------------------------------------------------------
//
//   Value          The reduction of some of an output's elements.
//   Row            (collective) The reduction of value(0) to value(count - 1) by a team.
//   Tile<K>        The reductions of K outputs: Add element k of each; Flush after at most
//                  kAdditions of them, and before `values` is read.
//   Merge          The Value of the elements of both.
//   Load           The value of an element, for Row and Tile.
//   Finish         The element of the output, from the Value of all its `count` elements.
//
// For long rows:
//
//   Part           What is kept of a part of a row, in at most 8 bytes.
//   PartOf         (collective) As Row, by all threads.
//   FromPart       The Value of a part whose first element has the index `begin`.
//   None           The Value of no elements.
//
// By several threads, where a Value needs no index (kGroups): Absent is the element that changes
// nothing, Add adds a group of values (groups.h) to a Value.

// sum and mean.
struct Sum {
  using Value = double;
  using Part = double;
  static constexpr bool kGroups = true;
  bool mean;

  template <typename F>
  RESIDENT_DEVICE Value Row(const Block& block, const Team& team, i64 count, F value) const {
    return resident::Sum(block, team, count, value);
  }
  template <i32 K>
  struct Tile {
    float partial[K] = {};
    Value values[K] = {};

    RESIDENT_DEVICE void Add(const float (&v)[K], i64) {
      for (i32 j = 0; j < K; ++j) partial[j] += v[j];
    }
    RESIDENT_DEVICE void Flush() {
      for (i32 j = 0; j < K; ++j) {
        values[j] += static_cast<double>(partial[j]);
        partial[j] = 0;
      }
    }
  };
  static RESIDENT_DEVICE Value Merge(Value a, Value b) { return a + b; }
  RESIDENT_DEVICE float Finish(Value sum, i64 count) const {
    return static_cast<float>(mean ? sum / static_cast<double>(count) : sum);
  }
  RESIDENT_DEVICE float Load(float x) const { return x; }

  template <typename F>
  RESIDENT_DEVICE Part PartOf(const Block& block, const Team& all, i64 count, F value) const {
    return Row(block, all, count, value);
  }
  static RESIDENT_DEVICE Value FromPart(Part part, i64) { return part; }
  static RESIDENT_DEVICE Value None() { return 0; }
#if RESIDENT_WARPS
  RESIDENT_DEVICE float Absent() const { return 0; }
  template <u32 kCount>
  RESIDENT_DEVICE void Add(const float (&v)[kCount], Value& value) const {
    static_assert(kCount <= kAdditions, "");
    value += static_cast<double>(SumOfValues(v));
  }
#endif
};

// max, and min as the negative maximum of -x.
struct Extreme {
  using Value = float;
  using Part = float;
  static constexpr bool kGroups = true;
  float sign;  // 1 or -1.

  static RESIDENT_DEVICE Value Merge(Value a, Value b) { return LargerOf(a, b); }
  template <typename F>
  RESIDENT_DEVICE Value Row(const Block& block, const Team& team, i64 count, F value) const {
    return Largest(block, team, count, value);
  }
  template <i32 K>
  struct Tile {
    Value values[K];

    RESIDENT_DEVICE Tile() {
      for (i32 j = 0; j < K; ++j) values[j] = -math::infinity();
    }
    RESIDENT_DEVICE void Add(const float (&v)[K], i64) {
      for (i32 j = 0; j < K; ++j) values[j] = Merge(values[j], v[j]);
    }
    RESIDENT_DEVICE void Flush() {}
  };
  RESIDENT_DEVICE float Finish(Value value, i64) const { return sign * value; }
  RESIDENT_DEVICE float Load(float x) const { return sign * x; }

  template <typename F>
  RESIDENT_DEVICE Part PartOf(const Block& block, const Team& all, i64 count, F value) const {
    return Row(block, all, count, value);
  }
  static RESIDENT_DEVICE Value FromPart(Part part, i64) { return part; }
  static RESIDENT_DEVICE Value None() { return -math::infinity(); }
#if RESIDENT_WARPS
  RESIDENT_DEVICE float Absent() const { return sign * None(); }
  template <u32 kCount>
  RESIDENT_DEVICE void Add(const float (&v)[kCount], Value& value) const {
    float signed_values[kCount];
    for (u32 i = 0; i < kCount; ++i) signed_values[i] = sign * v[i];
    value = Merge(value, LargestOfValues(signed_values));
  }
#endif
};

struct IndexOfLargest {
  // No element has key 0.
  struct Value {
    u32 key;
    i64 index;
  };
  // That of largest_index.h: it has less than 2^32 elements.
  using Part = u64;
  static constexpr bool kGroups = false;

  static RESIDENT_DEVICE Value Merge(const Value& a, const Value& b) {
    return b.key > a.key || (b.key == a.key && b.index < a.index) ? b : a;
  }
  template <typename F>
  RESIDENT_DEVICE Value Row(const Block& block, const Team& team, i64 count, F value) const {
    return {1, IndexOf(block, team, count, value, Largest(block, team, count, value))};
  }
  template <i32 K>
  struct Tile {
    Value values[K] = {};

    RESIDENT_DEVICE void Add(const float (&v)[K], i64 k) {
      for (i32 j = 0; j < K; ++j) {
        const u32 key = OrderedKey(v[j]);
        if (key > values[j].key) values[j] = {key, k};
      }
    }
    RESIDENT_DEVICE void Flush() {}
  };
  RESIDENT_DEVICE i64 Finish(const Value& value, i64) const { return value.index; }
  RESIDENT_DEVICE float Load(float x) const { return x; }

  template <typename F>
  RESIDENT_DEVICE Part PartOf(const Block& block, const Team& all, i64 count, F value) const {
    const float largest = Largest(block, all, count, value);
    const i64 index = IndexOf(block, all, count, value, largest);
    return MakePart(OrderedKey(largest), static_cast<u32>(index));
  }
  static RESIDENT_DEVICE Value FromPart(Part part, i64 begin) {
    return {KeyOfPart(part), begin + i64{IndexOfPart(part)}};
  }
  static RESIDENT_DEVICE Value None() { return {0, 0}; }

 private:
  // (collective) The first index of the largest value, or of NaN if that is NaN.
  template <typename F>
  static RESIDENT_DEVICE i64 IndexOf(const Block& block, const Team& team, i64 count, F value,
                                     float largest) {
    i64 index = team.rank;
    RESIDENT_UNROLL(4)
    for (; index < count; index += team.size) {
      const float v = value(index);
      if (v == largest || v != v) break;
    }
    return Combine(block, team, index, [](i64 a, i64 b) { return a < b ? a : b; });
  }
};

// --- The forms ----------------------------------------------------------------------------------

// Some dimensions of a tensor, for an IndexMap.
struct SubView {
  u32 dims = 0;
  i64 shapes[kMaxRank];
  i64 strides[kMaxRank];

  RESIDENT_DEVICE void Add(i64 shape, i64 stride) {
    shapes[dims] = shape;
    strides[dims] = stride;
    ++dims;
  }
  RESIDENT_DEVICE u32 rank() const { return dims; }
  RESIDENT_DEVICE i64 shape(u32 d) const { return shapes[d]; }
  RESIDENT_DEVICE i64 stride(u32 d) const { return strides[d]; }
};

RESIDENT_NOINLINE i64 Offset(const IndexMap<1>& map, i64 i) {
  i64 offsets[1];
  map.Offsets(i, offsets);
  return offsets[0];
}

// Of a task, in the block's memory.
struct Plan {
  // The offsets in x of the outputs, and those of the elements of one output.
  IndexMap<1> outputs;
  IndexMap<1> elements;
  SubView kept;
  SubView reduced;
  u16 detail;  // 0, or that of a refusal.

  RESIDENT_DEVICE void Read(const Tensor<const Any>& x, const Tensor<Any>& out, u32 axes) {
    kept.dims = reduced.dims = 0;
    detail = axes >> x.rank() == 0 ? u16{0} : kBadAxes;
    const bool keeps_dims = out.rank() == x.rank();
    u32 at = 0;  // Dimension of `out`.
    RESIDENT_UNROLL(1)
    for (u32 d = 0; d < x.rank() && detail == 0; ++d) {
      const bool is_reduced = axes >> d & 1;
      (is_reduced ? reduced : kept).Add(x.shape(d), x.stride(d));
      if (is_reduced && !keeps_dims) continue;
      if (at >= out.rank() || out.shape(at) != (is_reduced ? 1 : x.shape(d))) detail = kBadShape;
      ++at;
    }
    if (detail == 0 && at != out.rank()) detail = kBadShape;
    Finish(outputs, kept);
    Finish(elements, reduced);
  }

 private:
  static RESIDENT_DEVICE void Finish(IndexMap<1>& map, const SubView& view) {
    map.Start(view);
    map.Add(0, view);
    map.Finish();
  }
};

// For Tile: the outputs of each thread, and the bytes of block memory in front of the Values.
constexpr i32 kTile = Block::kMaxThreads == 1 ? 16 : 4;
constexpr u32 kValuesAt = 1024;
static_assert(sizeof(Plan) <= 1024, "");
static_assert(kValuesAt + 16 * kTile * Block::kMaxThreads <= kBlockMemoryBytes, "");

RESIDENT_DEVICE void StoreResult(const Tensor<Any>& out, i64 i, float value) {
  StoreFloat(AddressOf(out), out.dtype(), i, value);
}
RESIDENT_DEVICE void StoreResult(const Tensor<Any>& out, i64 i, i64 value) {
  out.as<i64>().data()[i] = value;
}

// Calls row(team, offset, count) for each output of the chunk: the Value of the elements of x from
// `offset` on, of which a team without an output has none.
template <typename R, typename F>
RESIDENT_DEVICE void ReduceRows(const Block& block, const Plan& plan, const R& reducer,
                                const Tensor<Any>& out, F row) {
  const i64 count = plan.elements.size();
  const Team team(block, count, plan.outputs.size());
  const Range range = block.share(plan.outputs.size());
  RESIDENT_UNROLL(1)
  for (i64 first = range.begin; first < range.end; first += team.count) {
    const i64 i = first + team.index;
    const bool active = i < range.end;
    const i64 offset = active ? Offset(plan.outputs, i) : 0;
    const auto value = row(team, offset, active ? count : 0);
    if (active && team.rank == 0) StoreResult(out, i, reducer.Finish(value, count));
  }
}

#if RESIDENT_WARPS

// (collective) The Value of data[0] to data[count - 1], by a team.
template <typename R, typename T>
RESIDENT_DEVICE typename R::Value ReduceGroups(const Block& block, const Team& team,
                                               const R& reducer, const T* data, i64 count) {
  typename R::Value value = R::None();
  ForEachValue(team, data, count, reducer.Absent(), [&](const auto& v) { reducer.Add(v, value); });
  return Combine(block, team, value, [](auto a, auto b) { return R::Merge(a, b); });
}

template <typename R, typename T>
RESIDENT_NOINLINE void ReduceRowsOf(Block block, const Plan& plan, const R& of_task, const T* x,
                                    const Tensor<Any>& out) {
  const R reducer = of_task;
  ReduceRows(block, plan, reducer, out, [&](const Team& team, i64 offset, i64 count) {
    return ReduceGroups(block, team, reducer, x + offset, count);
  });
}

#endif  // RESIDENT_WARPS

// A row of at least this many elements is cut into parts of at least kMinPart. The split rule
// gives a task of one such row two chunks; they may be more than the parts.
constexpr i64 kLongRow = 128 << 10;
constexpr i64 kMinPart = 16 << 10;

// (collective) The Part of x[offset] to x[offset + count - 1].
template <typename R, typename T>
RESIDENT_NOINLINE typename R::Part ReducePart(Block block, const R& of_task, const T* x, i64 offset,
                                              i64 count) {
  const R reducer = of_task;
  const Team all(block, count, /*rows=*/1);
#if RESIDENT_WARPS
  if constexpr (R::kGroups) {
    return ReduceGroups(block, all, reducer, x + offset, count);
  }
#endif
  return reducer.PartOf(block, all, count,
                        [&](i64 k) { return reducer.Load(static_cast<float>(x[offset + k])); });
}

// Reduces rows that are cut into parts: row r begins at element begin(r) of x, and store(r, result)
// is called for it by one thread.
template <typename R, typename B, typename S>
RESIDENT_DEVICE void ReduceParts(const Block& block, const LongRows& cut, i64 rows,
                                 const R& reducer, u64 x, DType dtype, B begin, S store) {
  using Part = typename R::Part;
  const PartValues<Part, kValuesAt> values(block, cut, rows, 2);
  const Range own = values.OfChunk(block.chunk(), block.chunk_count());
  ForEachPart(cut, own, [&](i64 p, i64 row, i64 index) {
    const Range columns = cut.ColumnsOf(index);
    const i64 offset = begin(row) + columns.begin;
    Part part{};
    VisitFloat(dtype, [&](auto element) {
      const auto* const data = ElementAt<const decltype(element)>(x, 0);
      part = ReducePart(block, reducer, data, offset, columns.size());
    });
    if (block.thread() == 0) values[p] = part;
  });
  if (!values.shared) {
    block.barrier();
  } else if (!block.arrive()) {
    return;
  }
  const u32 lanes = block.threads() < 32 ? block.threads() : 32;
  RESIDENT_UNROLL(1)
  for (i64 row = values.rows.begin + block.thread() / lanes; row < values.rows.end;
       row += block.threads() / lanes) {
    const i64 first = cut.FirstOfRow(row);
    const auto value = CombineParts(
        block, cut.of_row, R::None(),
        [&](i64 p) { return R::FromPart(values[first + p], p * cut.width); },
        [](const auto& a, const auto& b) { return R::Merge(a, b); });
    if (block.thread() % lanes == 0) store(row, reducer.Finish(value, cut.columns));
  }
}

// False: the rows are not long, or too many.
template <typename R>
RESIDENT_NOINLINE bool ReduceLongRows(Block block, const Plan& plan, const R& of_task,
                                      const Tensor<const Any>& x, const Tensor<Any>& out) {
  const i64 outputs = plan.outputs.size();
  const LongRows cut = CutRows(outputs, plan.elements.size(), kLongRow, kMinPart, kMaxParts);
  if (!cut.any()) return false;
  const R reducer = of_task;
  ReduceParts(
      block, cut, outputs, reducer, AddressOf(x), x.dtype(),
      [&](i64 row) { return Offset(plan.outputs, row); },
      [&](i64 row, auto result) { StoreResult(out, row, result); });
  return true;
}

// How the threads of a block are distributed over the outputs (lanes) and over the elements of each
// (groups).
struct Lanes {
  u32 lanes;
  u32 groups;
  u32 lane;
  u32 group;

  RESIDENT_DEVICE Lanes(const Block& block, const Plan& plan, bool by_output) {
    if (Block::kMaxThreads == 1) {  // Known at compile time.
      lanes = groups = 1;
      lane = group = 0;
    } else if (by_output) {
      lanes = block.threads();
      const i64 outputs = plan.outputs.size();
      while (lanes % 2 == 0 && lanes > block.threads() / 32 && lanes * i64{kTile} > outputs) {
        lanes /= 2;
      }
      groups = block.threads() / lanes;
      lane = block.thread() % lanes;
      group = block.thread() / lanes;
    } else {
      const Team team(block, plan.elements.size(), plan.outputs.size());
      lanes = team.count;
      groups = team.size;
      lane = team.index;
      group = team.rank;
    }
  }
};

// (collective) Outputs first to first + lanes * K - 1, as far as they are below `end`.
template <typename R, i32 K>
RESIDENT_DEVICE void ReduceTile(const Block& block, const Plan& plan, const R& reducer,
                                const Lanes& threads, i64 first, i64 end, u64 x, DType dtype,
                                const Tensor<Any>& out) {
  const i64 count = plan.elements.size();
  const i64 lanes = threads.lanes;
  i64 offsets[K];
  bool adjacent = dtype == DType::kF32;
  for (i32 j = 0; j < K; ++j) {
    const i64 i = first + j * lanes + threads.lane;
    offsets[j] = Offset(plan.outputs, i < end ? i : end - 1);
    adjacent = adjacent && offsets[j] == offsets[0] + j * lanes;
  }
  const bool even = plan.elements.rank() <= 1;
  const i64 stride = even && count > 1 ? Offset(plan.elements, 1) : 0;
  typename R::template Tile<K> tile;
  i64 k = threads.group;
  RESIDENT_UNROLL(1)
  while (k < count) {
    float v[K];
    if (adjacent) {
      RESIDENT_UNROLL(1)
      for (i32 n = 0; n < kAdditions && k < count; ++n, k += threads.groups) {
        const i64 offset = even ? k * stride : Offset(plan.elements, k);
        const float* const from = ElementAt<const float>(x, offsets[0] + offset);
        for (i32 j = 0; j < K; ++j) v[j] = reducer.Load(from[j * lanes]);
        tile.Add(v, k);
      }
    } else {
      RESIDENT_UNROLL(1)
      for (i32 n = 0; n < kAdditions && k < count; ++n, k += threads.groups) {
        const i64 offset = even ? k * stride : Offset(plan.elements, k);
        for (i32 j = 0; j < K; ++j) {
          v[j] = reducer.Load(LoadFloat(x, dtype, offsets[j] + offset));
        }
        tile.Add(v, k);
      }
    }
    tile.Flush();
  }
  if (threads.groups == 1) {
    for (i32 j = 0; j < K; ++j) {
      const i64 i = first + j * lanes + threads.lane;
      if (i < end) StoreResult(out, i, reducer.Finish(tile.values[j], count));
    }
    return;
  }
  using Value = typename R::Value;
  Value* const values = block.memory<Value>(kValuesAt, K * Block::kMaxThreads);
  const u32 width = threads.lanes * K;
  block.barrier();  // The reads of the previous tile have finished.
  for (i32 j = 0; j < K; ++j) {
    values[threads.group * width + j * threads.lanes + threads.lane] = tile.values[j];
  }
  block.barrier();
  RESIDENT_UNROLL(1)
  for (u32 i = block.thread(); i < width && first + i < end; i += block.threads()) {
    Value value = values[i];
    RESIDENT_UNROLL(4)
    for (u32 g = 1; g < threads.groups; ++g) value = R::Merge(value, values[g * width + i]);
    StoreResult(out, first + i, reducer.Finish(value, count));
  }
}

template <typename R>
RESIDENT_NOINLINE void ReduceTiles(Block block, const Plan& plan, const R& reducer, bool by_output,
                                   const Tensor<const Any>& x, const Tensor<Any>& out) {
  const Lanes threads(block, plan, by_output);
  // A share of adjacent outputs begins at a multiple of the 32 bytes that a GPU reads at once.
  const Range range = block.share(plan.outputs.size(), by_output ? 8 : 1);
  const u64 address = AddressOf(x);
  i64 first = range.begin;
  RESIDENT_UNROLL(1)
  for (; first + threads.lanes * kTile <= range.end; first += threads.lanes * kTile) {
    ReduceTile<R, kTile>(block, plan, reducer, threads, first, range.end, address, x.dtype(), out);
  }
  RESIDENT_UNROLL(1)
  for (; first < range.end; first += threads.lanes) {
    ReduceTile<R, 1>(block, plan, reducer, threads, first, range.end, address, x.dtype(), out);
  }
}

// The task's plan, or null: there is nothing to do, or the task has failed.
RESIDENT_NOINLINE const Plan* ReadPlan(Block block, Args args, bool needs_elements) {
  Plan& plan = *block.memory<Plan>();
  if (block.thread() == 0) {
    plan.Read(args.tensor<const Any>(0), args.tensor<Any>(1), args.scalar<u32>(2));
    if (plan.detail == 0 && needs_elements && plan.outputs.size() > 0 &&
        plan.elements.size() == 0) {
      plan.detail = kNoElements;
    }
    if (plan.detail != 0) block.fail(CompletionStatus::kInvalidArgument, plan.detail);
  }
  block.barrier();
  return plan.detail == 0 && plan.outputs.size() > 0 ? &plan : nullptr;
}

// The distance between the first two elements of the map.
RESIDENT_DEVICE i64 Distance(const IndexMap<1>& map) {
  const i64 distance = map.size() > 1 ? Offset(map, 1) : 0;
  return distance < 0 ? -distance : distance;
}

template <typename R>
RESIDENT_NOINLINE void Reduce(Block block, Args args, R reducer, bool needs_elements) {
  const Plan* const plan = ReadPlan(block, args, needs_elements);
  if (plan == nullptr) return;
  const auto x = args.tensor<const Any>(0);
  const auto out = args.tensor<Any>(1);
  if (plan->elements.size() < 2 || !plan->elements.dense()) {
    const bool by_output =
        Distance(plan->outputs) < Distance(plan->elements) || plan->elements.size() < 2;
    return ReduceTiles<R>(block, *plan, reducer, by_output, x, out);
  }
  if (plan->elements.size() >= kLongRow && ReduceLongRows<R>(block, *plan, reducer, x, out)) return;
#if RESIDENT_WARPS
  if constexpr (R::kGroups) {
    return VisitFloat(x.dtype(), [&](auto element) {
      const auto* const data = ElementAt<const decltype(element)>(AddressOf(x), 0);
      ReduceRowsOf(block, *plan, reducer, data, out);
    });
  }
#endif
  const auto reduce = [&](const auto& elements) {
    ReduceRows(block, *plan, reducer, out, [&](const Team& team, i64 offset, i64 count) {
      return reducer.Row(block, team, count,
                         [&](i64 k) { return reducer.Load(elements.Load(offset + k)); });
    });
  };
  if (x.dtype() == DType::kF32) {
    reduce(Elements</*kFloat32=*/true>(x));
  } else {
    reduce(Elements</*kFloat32=*/false>(x));
  }
}

// sum_rows. False: the rows are not long, or too many.
RESIDENT_NOINLINE bool SumLongRows(Block block, Args args) {
  const Tensor<const float> x = args.tensor<const float>(0);
  const Tensor<float> out = args.tensor<float>(1);
  const LongRows cut = CutRows(x.shape(0), x.shape(1), kLongRow, kMinPart, kMaxParts);
  if (!cut.any()) return false;
  ReduceParts(
      block, cut, x.shape(0), Sum{/*mean=*/false}, AddressOf(x), DType::kF32,
      [&](i64 row) { return row * cut.columns; },
      [&](i64 row, float sum) { out.data()[row] = sum; });
  return true;
}

// --- argmax of one row --------------------------------------------------------------------------

#if RESIDENT_WARPS

RESIDENT_DEVICE void StoreIndex(const Block& block, u64 out, u64 part) {
  if (block.thread() != 0) return;
  *ElementAt<i64>(out, 0) = IndexOfPart(part);
}

// The same as IndexOfLargestOfAll, if the chunks share memory: each has a share of the row.
RESIDENT_NOINLINE void IndexOfLargestOfLongRow(Block block, u64 x, u64 out, u32 size) {
  u64* const parts = block.task_memory<u64>(0, kMaxParts);
  const u32 count = static_cast<u32>(Smallest(block.chunk_count(), kMaxParts));
  const u32 chunk = static_cast<u32>(block.chunk());
  if (chunk < count) {
    constexpr u32 kStep = kPartStep;
    const u32 width = (size / count + kStep) / kStep * kStep;
    const u64 begin = u64{chunk} * width < size ? chunk * width : size;
    const u64 end = begin + width < size ? begin + width : size;
    const u64 part = block.reduce(
        begin == end ? 0
                     : LargestOfThread(block, x, static_cast<u32>(begin), static_cast<u32>(end)),
        LargerPart);
    if (block.thread() == 0) parts[chunk] = part;
  }
  if (!block.arrive()) return;
  u64 part = 0;
  RESIDENT_UNROLL(1)
  for (u32 p = block.thread(); p < count; p += block.threads()) part = LargerPart(part, parts[p]);
  StoreIndex(block, out, block.reduce(part, LargerPart));
}

// argmax of all elements of a dense float32 tensor, such as a model's logits. False: the tensors
// have another form.
RESIDENT_NOINLINE bool IndexOfLargestOfAll(Block block, Args args) {
  if (!kReadsDirectly || args.compact()) return false;
  const TensorArgument& x = args.described(0);
  const TensorArgument& out = args.described(1);
  const u32 axes = args.scalar<u32>(2);
  if (x.rank != 2 || out.rank != 1 || (axes != 1 && axes != 2)) return false;
  const u32 reduced = axes - 1;  // The dimension.
  const i64 size = x.shape[reduced];
  const bool fits = (out.shape[0] == 1) & (x.shape[1 - reduced] == 1) & (x.strides[reduced] == 1) &
                    (x.dtype == DType::kF32) & (x.address % sizeof(Quad<float>) == 0);
  if (!fits || size < 1 || size >> 31 != 0) return false;
  if (size >= kLongRow && block.task_memory<u64>() != nullptr) {
    IndexOfLargestOfLongRow(block, x.address, out.address, static_cast<u32>(size));
    return true;
  }
  if (block.chunk() != 0) return true;  // There is one output.
  const u64 mine = LargestOfThread(block, x.address, 0, static_cast<u32>(size));
  StoreIndex(block, out.address, block.reduce(mine, LargerPart));
  return true;
}

#endif  // RESIDENT_WARPS

}  // namespace

RESIDENT_OPERATOR(sum)(Block& block, const Args& args) {
  Reduce(block, args, Sum{/*mean=*/false}, /*needs_elements=*/false);
}
RESIDENT_OPERATOR(mean)(Block& block, const Args& args) {
  Reduce(block, args, Sum{/*mean=*/true}, /*needs_elements=*/false);
}
RESIDENT_OPERATOR(max)(Block& block, const Args& args) {
  Reduce(block, args, Extreme{1}, /*needs_elements=*/true);
}
RESIDENT_OPERATOR(min)(Block& block, const Args& args) {
  Reduce(block, args, Extreme{-1}, /*needs_elements=*/true);
}
RESIDENT_OPERATOR(argmax)(Block& block, const Args& args) {
#if RESIDENT_WARPS
  if (IndexOfLargestOfAll(block, args)) return;
#endif
  Reduce(block, args, IndexOfLargest{}, /*needs_elements=*/true);
}

RESIDENT_OPERATOR(sum_rows)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  const i64 columns = x.shape(1);
  if (columns >= kLongRow && SumLongRows(block, args)) return;
  const Range rows = block.share(out.size());
  for (i64 row = rows.begin; row < rows.end; ++row) {
    const float* from = x.data() + row * columns;
    // Several partial sums make the additions independent. The error grows with the
    // logarithm of a row's length instead of its length.
    constexpr int kPartials = 8;
    float partial[kPartials] = {};
    const i64 step = i64{block.threads()} * kPartials;
    i64 base = 0;
    for (; base + step <= columns; base += step) {
      for (int p = 0; p < kPartials; ++p) {
        partial[p] += from[base + p * block.threads() + block.thread()];
      }
    }
    for (i64 i = base + block.thread(); i < columns; i += block.threads()) partial[0] += from[i];
    for (int width = kPartials / 2; width > 0; width /= 2) {
      for (int p = 0; p < width; ++p) partial[p] += partial[p + width];
    }
    const float sum = block.reduce_sum(partial[0]);
    if (block.thread() == 0) out[row] = sum;
  }
}

}  // namespace resident
