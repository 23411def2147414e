// attention_decode: what a layer of a decoding step does between two products: rotates the queries
// and the new key (rope), appends that key and its value to the cache (kv_append), and attends to
// all keys so far (attention_partial, attention_combine). In a graph these would be four nodes,
// each of which takes longer to hand over than to compute.
//
// An item is a head of keys with one of its parts. Few keys are divided into fewer parts than there
// could be; the others are empty. The item that has the last key, the new one, appends it. The
// parts of a head that are not empty count their arrivals in `arrived`; the last one combines them,
// in their order, so that the result does not depend on who is last, and sets the count to 0 for
// the next task. That takes longer than to read some hundred keys: these are one part, and items of
// empty parts have heads of q in their place, if there are enough of them.
//
//   DecodeFewKeys        (attention_few_keys.h)      the same as the next one, but for items of one
//                                                    head of q
//   AttendOnePositionBy  (attention_one_position.h)  16-bit keys and values of 64 or 128 elements
//   DecodeItem           (attention.cc)              any tensors
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_DECODE_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_DECODE_H_

#include "kernels/ops/attention_combine.h"
#include "kernels/ops/attention_one_position.h"
#include "kernels/ops/attention_task.h"
#include "kernels/ops/rotation.h"
#include "kernels/sdk/atomic.h"

namespace resident::attention {

// The operator's arguments, in their order.
enum DecodeArgument : u32 {
  kDecodeQ,
  kDecodeK,
  kDecodeV,
  kDecodeAngles,
  kDecodeKeys,
  kDecodeValues,
  kDecodeAcc,
  kDecodeLargest,
  kDecodeSum,
  kDecodeArrived,
  kDecodeOut,
  kDecodePos,
  kDecodeScale,
  kDecodeLayout,
};

// Details of INVALID_ARGUMENT.
constexpr u16 kDecodeHeadDimTooLarge = 1;
constexpr u16 kDecodeHeadsDoNotDivide = 2;
constexpr u16 kDecodeBadPosition = 3;
constexpr u16 kDecodeBadLayout = 4;
constexpr u16 kDecodeBadAngles = 5;
constexpr u16 kDecodeBadParts = 6;
constexpr u16 kDecodeTooManyHeads = 7;
constexpr u16 kDecodeBadArrivals = 8;

// A part more for each 32 keys: the groups of a block then have one each. For AttendOnePositionBy,
// up to kKeysOfOnePart keys are one part.
constexpr i64 kKeysOfPart = 32;
constexpr i64 kKeysOfOnePart = 512;

// Elements of the heads of q that share a head of k: the general form has them in scratch memory,
// behind the sums of AttendTile.
constexpr u64 kDecodeQueriesAt = kScratchBytes / 2;
constexpr i64 kMaxSharedElements = (kScratchBytes - kDecodeQueriesAt) / sizeof(float);

// How the work is divided into items.
struct DecodeItems {
  u32 parts;      // Of a head of keys: all,
  u32 used;       // and those that have keys, the first ones.
  u32 shared;     // Heads of q that share a head of keys.
  bool by_heads;  // There is one part, and item p of a head of keys has the p-th of these heads.

  // Items of a head of keys that compute something, the first ones.
  RESIDENT_DEVICE u32 Active() const { return by_heads ? shared : used; }
};
// `at_once`: for AttendOnePositionBy; the general form has as many parts as there can be. REQUIRES:
// the shapes are not refused.
RESIDENT_DEVICE DecodeItems DivideDecode(const Args& args, bool at_once) {
  const i64 parts = args.tensor<const Any>(kDecodeAcc).shape(1);
  const i64 pos = args.scalar<i64>(kDecodePos);
  const i64 shared = Quotient(args.tensor<const Any>(kDecodeQ).shape(0),
                              args.tensor<const Any>(kDecodeKeys).shape(0));
  const i64 used = at_once && pos < kKeysOfOnePart
                       ? 1
                       : Smallest(Quotient(pos + kKeysOfPart, kKeysOfPart), parts);
  return {static_cast<u32>(parts), static_cast<u32>(used), static_cast<u32>(shared),
          at_once && used == 1 && shared <= parts};
}

// 0, or the detail with which the task is refused. Scalars and shapes only.
RESIDENT_DEVICE u16 RefuseDecode(const Args& args) {
  const auto q = args.tensor<const Any>(kDecodeQ);
  const auto keys = args.tensor<const Any>(kDecodeKeys);
  const i64 heads = q.shape(0);
  const i64 dim = q.shape(1);
  const i64 kv_heads = keys.shape(0);
  const i64 pos = args.scalar<i64>(kDecodePos);
  const i32 layout = args.scalar<i32>(kDecodeLayout);
  const i64 angles = args.tensor<const Any>(kDecodeAngles).size();
  if (dim > kMaxHeadDim) return kDecodeHeadDimTooLarge;
  if (heads == 0 || kv_heads == 0 || Quotient(heads, kv_heads) * kv_heads != heads) {
    return kDecodeHeadsDoNotDivide;
  }
  if (pos < 0 || pos >= keys.shape(1)) return kDecodeBadPosition;
  if (layout != 0 && layout != 1) return kDecodeBadLayout;
  if (angles != 0 && 2 * angles != dim) return kDecodeBadAngles;
  const i64 parts = args.tensor<const Any>(kDecodeAcc).shape(1);
  if (parts == 0 || parts >> 31 != 0) return kDecodeBadParts;
  if (Quotient(heads, kv_heads) * dim > kMaxSharedElements) return kDecodeTooManyHeads;
  return 0;
}

// Writes the results of an item whose part is empty.
RESIDENT_DEVICE void ClearItem(const Block& block, const Args& args, const DecodeItems& items,
                               i64 item) {
  const Tensor<float> acc = args.tensor<float>(kDecodeAcc);
  const i64 dim = acc.shape(2);
  const i64 kv_head = Quotient(item, items.parts);
  const i64 part = item - kv_head * items.parts;
  const i64 first_row = kv_head * items.shared * items.parts + part;
  float* const largest = args.tensor<float>(kDecodeLargest).data() + first_row;
  float* const sums = args.tensor<float>(kDecodeSum).data() + first_row;
  float* const values = acc.data() + first_row * dim;
  RESIDENT_UNROLL(1)
  for (i64 h = 0; h < items.shared; ++h) {
    const i64 row = h * items.parts;
    block.for_each({0, dim}, [=](i64 d) { values[row * dim + d] = 0.0f; });
    if (block.thread() != 0) continue;
    largest[row] = -math::infinity();
    sums[row] = 0.0f;
  }
}

// (collective, behind a barrier that follows the item's stores) Calls combine(task, rows) for the
// results of the item, or, if there are several parts and this one is the last to have finished,
// for those of its head of keys.
template <typename F>
RESIDENT_DEVICE void FinishItem(const Block& block, const Args& args, const DecodeItems& items,
                                i64 item, F combine) {
  const auto acc = args.tensor<const float>(kDecodeAcc);
  const i64 kv_head = Quotient(item, items.parts);
  Range rows = {kv_head * items.shared, (kv_head + 1) * items.shared};
  if (items.by_heads) {
    rows.begin += item - kv_head * items.parts;
    rows.end = rows.begin + 1;
  } else if (items.used > 1) {
    u32 last = 0;
    if (block.thread() == 0) {
      i32* const arrived = args.tensor<i32>(kDecodeArrived).data() + kv_head;
      const i32 before = atomic_arrive(arrived);
      if (before < 0 || static_cast<u32>(before) >= items.used) {
        block.fail(CompletionStatus::kInvalidArgument, kDecodeBadArrivals);
      }
      last = static_cast<u32>(before) + 1 == items.used ? 1 : 0;
      if (last != 0) *arrived = 0;
    }
    last = block.reduce(last, [](u32 a, u32 b) { return a | b; });
    if (last == 0) return;
  }
  const auto out = args.tensor<const Any>(kDecodeOut);
  combine(CombineTask{acc.data(), args.tensor<const float>(kDecodeLargest).data(),
                      args.tensor<const float>(kDecodeSum).data(), AddressOf(out), out.dtype(),
                      items.used, items.parts, acc.shape(2)},
          rows);
}

// --- The general form ---------------------------------------------------------------------------

// (collective) Rotates the queries of a head of keys into scratch memory, as float32, and appends
// the new key and value if it is asked to.
RESIDENT_NOINLINE void RotateAndAppend(Block block, Args args, i64 kv_head, bool appends) {
  const auto q = args.tensor<const Any>(kDecodeQ);
  const auto angles = args.tensor<const float>(kDecodeAngles);
  const auto keys = args.tensor<const Any>(kDecodeKeys);
  const i64 dim = q.shape(1);
  const i64 shared = Quotient(q.shape(0), keys.shape(0));
  const i64 pos = args.scalar<i64>(kDecodePos);
  const bool interleaved = args.scalar<i32>(kDecodeLayout) == 0;
  const bool rotates = angles.size() != 0;
  const i64 half = dim / 2;
  // Element d of the head at `offset`.
  const auto rotated = [&](const Tensor<const Any>& from, i64 offset, i64 d) {
    const u64 address = AddressOf(from);
    const i64 stride = from.stride(1);
    const float own = LoadFloat(address, from.dtype(), offset + d * stride);
    if (!rotates) return own;
    const i64 pair = interleaved ? d / 2 : d % half;
    const bool high = interleaved ? d % 2 != 0 : d >= half;
    const i64 at = interleaved ? d ^ 1 : high ? d - half : d + half;
    const float other = LoadFloat(address, from.dtype(), offset + at * stride);
    const Rotation by = RotationBy(angles.data()[pair]);
    const float turned = other * by.sine;
    return high ? turned + own * by.cosine : own * by.cosine - turned;
  };
  float* const queries = block.scratch<float>(kDecodeQueriesAt);
  ForEachInRows(
      block, {0, shared}, dim, [](i64 h) { return h; },
      [&](i64 h, i64 d) {
        queries[h * dim + d] = rotated(q, (kv_head * shared + h) * q.stride(0), d);
      });
  if (!appends) return;
  const auto k = args.tensor<const Any>(kDecodeK);
  const auto v = args.tensor<const Any>(kDecodeV);
  const auto values = args.tensor<const Any>(kDecodeValues);
  ForEach(block, dim, [&](i64 d) {
    StoreFloat(AddressOf(keys), keys.dtype(),
               kv_head * keys.stride(0) + pos * keys.stride(1) + d * keys.stride(2),
               rotated(k, kv_head * k.stride(0), d));
    StoreFloat(AddressOf(values), values.dtype(),
               kv_head * values.stride(0) + pos * values.stride(1) + d * values.stride(2),
               LoadFloat(AddressOf(v), v.dtype(), kv_head * v.stride(0) + d * v.stride(1)));
  });
}

// (one thread) The attention of a head of keys as a task of attention_partial, but for PlanTiles.
RESIDENT_NOINLINE void ReadDecodeHead(Block block, Args args, i64 kv_head, u32 used_parts,
                                      AttentionTask& task) {
  const auto q = args.tensor<const Any>(kDecodeQ);
  const auto acc = args.tensor<const Any>(kDecodeAcc);
  task.batches = task.queries = 1;
  task.heads = q.shape(0);
  task.keys = args.scalar<i64>(kDecodePos) + 1;
  task.parts = acc.shape(1);
  task.used_parts = used_parts;
  task.scale = args.scalar<float>(kDecodeScale);
  task.causal = 0;
  task.depth = task.columns = static_cast<i32>(q.shape(1));
  task.refusal = 0;
  const auto read = [&](u32 i, Operand& operand) {
    const auto cache = args.tensor<const Any>(i);
    task.kv_heads = cache.shape(0);
    operand = {
        AddressOf(cache), {0, cache.stride(0), cache.stride(1), cache.stride(2)}, cache.dtype()};
  };
  read(kDecodeKeys, task.k);
  read(kDecodeValues, task.v);
  // The scratch memory has the heads of the item's head of keys only.
  const i64 first = kv_head * Quotient(task.heads, task.kv_heads);
  task.q = {reinterpret_cast<u64>(block.scratch<float>(kDecodeQueriesAt)) -
                static_cast<u64>(first * task.depth) * sizeof(float),
            {0, task.depth, 0, 1},
            DType::kF32};
  task.mask = {0, {0, 0, 0, 0}, DType::kF32};
  task.out = {AddressOf(acc), {0, 0, 0, 0}, DType::kF32};
  task.largest = AddressOf(args.tensor<const Any>(kDecodeLargest));
  task.sum = AddressOf(args.tensor<const Any>(kDecodeSum));
}

// --- 16-bit keys and values ---------------------------------------------------------------------

#if RESIDENT_WARPS

// Whether the operands have the form of AttendOnePositionBy, and need not be refused.
RESIDENT_DEVICE bool CanDecodeAtOnce(const Block& block, const Args& args) {
  if (!kReadsDirectly) return false;
  const TensorArgument& q = args.described(kDecodeQ);
  const TensorArgument& k = args.described(kDecodeK);
  const TensorArgument& v = args.described(kDecodeV);
  const TensorArgument& keys = args.described(kDecodeKeys);
  const TensorArgument& values = args.described(kDecodeValues);
  const i64 dim = q.shape[1];
  const i64 heads = q.shape[0];
  const i64 kv_heads = keys.shape[0];
  const TensorArgument& rotation = args.described(kDecodeAngles);
  const i64 angles = rotation.shape[0];
  const i64 parts = args.described(kDecodeAcc).shape[1];
  const i64 pos = args.scalar<i64>(kDecodePos);
  const i32 layout = args.scalar<i32>(kDecodeLayout);
  const auto has_runs = [](const TensorArgument& cache) {
    return (cache.strides[2] == 1) & ((cache.strides[0] | cache.strides[1]) % kLaneElements == 0) &
           (cache.strides[1] >= 0) & (cache.strides[1] >> 22 == 0) &
           (cache.address % sizeof(Bytes16) == 0);
  };
  const auto is_vector = [](const TensorArgument& x) {
    return (x.dtype == DType::kF32) & (x.strides[1] == 1);
  };
  const u64 large = static_cast<u64>(heads | kv_heads | keys.shape[1] | parts);
  const bool fits = (dim == 64 || dim == 128) & is_vector(q) & is_vector(k) & is_vector(v) &
                    (keys.dtype == values.dtype) & (keys.dtype != DType::kF32) & has_runs(keys) &
                    has_runs(values) & (rotation.rank == 1) & (angles == 0 || 2 * angles == dim) &
                    (layout == 0 || layout == 1) & (pos >= 0) & (pos < keys.shape[1]) &
                    (large >> 30 == 0) & (kv_heads > 0) & (parts > 0) &
                    (block.threads() >= kWarpThreads);
  if (!fits || kv_heads * parts >> 31 != 0 || pos >= kMaxKeys * parts) return false;
  const u32 shared = static_cast<u32>(heads) / static_cast<u32>(kv_heads);
  return i64{shared} * kv_heads == heads && shared > 0 && i64{shared} * dim <= kMaxSharedElements;
}

// (one thread) Elements are not read. REQUIRES: CanDecodeAtOnce.
RESIDENT_DEVICE void ReadPosition(const Args& args, const DecodeItems& items, PositionTask& task) {
  const TensorArgument& q = args.described(kDecodeQ);
  const TensorArgument& k = args.described(kDecodeK);
  const TensorArgument& v = args.described(kDecodeV);
  const TensorArgument& angles = args.described(kDecodeAngles);
  const TensorArgument& keys = args.described(kDecodeKeys);
  const TensorArgument& values = args.described(kDecodeValues);
  task.q = q.address;
  task.k = keys.address;
  task.v = values.address;
  task.out = args.described(kDecodeAcc).address;
  task.largest = args.described(kDecodeLargest).address;
  task.sum = args.described(kDecodeSum).address;
  task.decoded = args.described(kDecodeOut).address;
  task.out_dtype = args.described(kDecodeOut).dtype;
  task.q_strides[0] = task.k_strides[0] = task.v_strides[0] = 0;
  task.q_strides[1] = q.strides[0];
  for (u32 d = 0; d < 2; ++d) {
    task.k_strides[d + 1] = keys.strides[d];
    task.v_strides[d + 1] = values.strides[d];
  }
  task.q_dtype = DType::kF32;
  task.heads = static_cast<u32>(q.shape[0]);
  task.kv_heads = static_cast<u32>(keys.shape[0]);
  task.shared_heads = items.shared;
  task.keys = static_cast<u32>(args.scalar<i64>(kDecodePos)) + 1;
  task.parts = items.parts;
  task.used_parts = items.used;
  task.by_heads = items.by_heads;
  task.scale = args.scalar<float>(kDecodeScale);
  task.added = {k.address,    v.address,    angles.shape[0] == 0 ? 0 : angles.address,
                k.strides[0], v.strides[0], args.scalar<i32>(kDecodeLayout) == 0};
}

// Awaits the inputs, and computes an item of the task in the block's memory. False: a result is not
// finite (see AttendOnePositionBy). kHeads as there.
template <typename T, u32 kDim, u32 kHeads>
RESIDENT_DEVICE bool DecodeAtOnceBy(const Block& block, const Args& args, u32 item) {
  const auto finish = [&](u32) {
    // From memory: while keys are added, there are no registers for them.
    const PositionTask& task = *block.memory<PositionTask>();
    if (task.used_parts == 1) return;  // The results are complete.
    const DecodeItems items = {task.parts, task.used_parts, task.shared_heads, task.by_heads};
    FinishItem(block, args, items, item, [&](const CombineTask& combined, const Range& rows) {
      CombineRowsBy<kDim / kWarpThreads, u32>(block, combined, rows);
    });
  };
  return AttendOnePositionBy<T, kDim, /*kDecode=*/true, kHeads>(
             block, item, item + 1, [&] { return block.await_inputs(); }, finish) != item;
}
template <u32 kHeads>
RESIDENT_DEVICE bool DecodeAtOnce(const Block& block, const Args& args, u32 item) {
  const bool half = args.described(kDecodeKeys).dtype == DType::kF16;
  if (args.described(kDecodeQ).shape[1] == 64) {
    return half ? DecodeAtOnceBy<Half, 64, kHeads>(block, args, item)
                : DecodeAtOnceBy<BFloat16, 64, kHeads>(block, args, item);
  }
  return half ? DecodeAtOnceBy<Half, 128, kHeads>(block, args, item)
              : DecodeAtOnceBy<BFloat16, 128, kHeads>(block, args, item);
}

#endif  // RESIDENT_WARPS

}  // namespace resident::attention

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_DECODE_H_
