// This header computes attention_decode for the few keys of a short text: an item has one head of
// q, and the keys are one part (kKeysOfOnePart). AttendOnePositionBy computes the same.
//
// Here only few instructions depend on each other behind the wait for the inputs, because that is
// what a step of a decoder waits for:
//
//   * Before the wait each thread has its part of the first keys and values of the cache in
//     registers. A step before has written them (early_operators.h).
//   * As in AttendOnePositionBy, 8 or 16 lanes have a key of 64 or 128 elements, and a group of
//     these lanes has every n-th key, but up to kRowsAtOnce keys at a time, with one largest score
//     for all of them.
//   * Each thread rotates its own 8 elements of q. The angles' cosines and sines, which all threads
//     need, are the only thing that is brought to the block's memory before.
//   * The first group of lanes has the new key and value, which are appended but not read back.
//   * The results of the warps are merged behind the second and last barrier.
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_FEW_KEYS_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_FEW_KEYS_H_

#include "kernels/ops/attention_decode.h"
#include "kernels/ops/attention_one_position.h"
#include "kernels/ops/rotation.h"
#include "kernels/ops/warp.h"

namespace resident::attention {

#if RESIDENT_WARPS

// Keys that a group of lanes has in registers at the same time, with their values.
inline constexpr u32 kRowsAtOnce = 6;
// The sum of this for all warps is still finite.
inline constexpr float kLargestTotal = 4e37f;

template <u32 kDim>
struct FewKeysMemory {
  static constexpr u32 kLanesOfKey = kDim / kLaneElements;
  static constexpr u32 kWarps = Block::kMaxThreads / kWarpThreads;

  Rotation rotations[kDim / 2];
  // Of each warp: the weighted values, their largest score and the sum of the weights, and whether
  // one of these is not finite, or almost.
  Quad<float> totals[kWarps][2][kLanesOfKey];
  float largest[kWarps];
  float sums[kWarps];
  u32 unusable[kWarps];
};
static_assert(sizeof(FewKeysMemory<128>) <= kBlockMemoryBytes, "");

// Reads a run of a cache that another block may have written since this SM has read it: not from
// the L1 cache.
RESIDENT_DEVICE Bytes16 LoadWritten(u64 from) {
#if RESIDENT_GPU
  Bytes16 run;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(run.words[0]), "=r"(run.words[1]), "=r"(run.words[2]), "=r"(run.words[3])
               : "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))));
  return run;
#else
  return *reinterpret_cast<const Bytes16*>(from);
#endif
}

// RotationBy without a call, which would store the keys and values that are in registers to memory.
// NaN for angles above kLargestAngle, which is more than any position: then the item is computed
// again in another way.
RESIDENT_DEVICE Rotation RotationInline(float angle) {
  constexpr float kLargestAngle = 1e8f;
  const bool fits = angle <= kLargestAngle && angle >= -kLargestAngle;
  // The angle less n times half of pi.
  const double whole = fits ? static_cast<double>(angle) : 0.0;
  const i32 n = static_cast<i32>(whole * 0.63661977236758134 + (whole < 0.0 ? -0.5 : 0.5));
  const double quarters = static_cast<double>(n);
  const float rest = static_cast<float>(whole - quarters * 1.5707963267948966);
  const float square = rest * rest;
  float sine =
      rest +
      rest * square * (-1.6666654611e-1f + square * (8.3321608736e-3f - square * 1.9515295891e-4f));
  float cosine =
      1.0f - 0.5f * square +
      square * square * (4.16666457e-2f + square * (-1.38873162e-3f + square * 2.44331571e-5f));
  if (!fits) sine = cosine = math::nan();
  const bool swaps = (n & 1) != 0;
  const float first = swaps ? sine : cosine;
  const float second = swaps ? cosine : sine;
  return {((n + 1) & 2) != 0 ? -first : first, (n & 2) != 0 ? -second : second};
}

// A lane's 8 adjacent elements of a vector of float32.
struct LaneVector {
  float v[kLaneElements];

  static RESIDENT_DEVICE LaneVector Load(u64 address) {
    LaneVector vector;
    for (u32 half = 0; half < 2; ++half) {
      const Quad<float> quad = *ElementAt<const Quad<float>>(address, half);
      for (u32 i = 0; i < 4; ++i) vector.v[4 * half + i] = quad.v[i];
    }
    return vector;
  }
  static RESIDENT_DEVICE LaneVector Zeros() {
    LaneVector vector;
    for (float& element : vector.v) element = 0.0f;
    return vector;
  }

  // (warp) Rotates the vector whose elements a group of lanes has.
  template <u32 kDim>
  RESIDENT_DEVICE void Rotate(const Rotation* rotations, u32 lane_of_key, bool interleaved) {
    constexpr u32 kHalfLanes = kDim / kLaneElements / 2;
    LaneVector other;
    for (u32 i = 0; i < kLaneElements; ++i) {
      other.v[i] = interleaved ? v[i ^ 1] : ShuffleXor(v[i], kHalfLanes);
    }
    for (u32 i = 0; i < kLaneElements; ++i) {
      const PairOf at = PairOf::Element<kDim>(lane_of_key * kLaneElements + i, interleaved);
      const Rotation by = rotations[at.pair];
      const float turned = other.v[i] * by.sine;
      v[i] = at.high ? turned + v[i] * by.cosine : v[i] * by.cosine - turned;
    }
  }
  // As the cache has it.
  template <typename T>
  RESIDENT_DEVICE Bytes16 Rounded() const {
    Bytes16 run;
    for (u32 w = 0; w < 4; ++w) run.words[w] = Pack<T>(v[2 * w], v[2 * w + 1]);
    return run;
  }
};

// What a group of lanes knows of its keys so far: the largest score and the sum of the weights, in
// each lane, and the lane's elements of the weighted values.
struct OneHead {
  float largest;
  float sum;
  LaneVector total;
};

// (group of kLanes lanes) The score of a key.
template <typename T, u32 kLanes>
RESIDENT_DEVICE float ScoreOf(const Bytes16& key, const LaneVector& q) {
  float score = 0.0f;
  for (u32 i = 0; i < kLaneElements; ++i) score += ElementOf<T>(key, i) * q.v[i];
  RESIDENT_UNROLL(4)
  for (u32 mask = kLanes / 2; mask > 0; mask /= 2) score += ShuffleXor(score, mask);
  return score;
}

// The keys of a group that it has in registers.
template <typename T, u32 kLanes>
struct KeyRows {
  Bytes16 keys[kRowsAtOnce];
  Bytes16 values[kRowsAtOnce];

  // Requests the keys first, first + step and so on, those below `end`. The others are 0.
  RESIDENT_DEVICE void Load(u64 key, u64 value, u32 first, u32 step, u32 end, u32 key_bytes,
                            u32 value_bytes) {
    for (u32 i = 0; i < kRowsAtOnce; ++i) {
      keys[i] = values[i] = {{0, 0, 0, 0}};
      const u32 row = first + i * step;
      if (row >= end) continue;
      keys[i] = LoadWritten(key + u64{row} * key_bytes);
      values[i] = LoadWritten(value + u64{row} * value_bytes);
    }
  }

  // (group) Adds them.
  RESIDENT_DEVICE void AddTo(OneHead& head, const LaneVector& q, u32 first, u32 step,
                             u32 end) const {
    float scores[kRowsAtOnce];
    float largest = head.largest;
    for (u32 i = 0; i < kRowsAtOnce; ++i) {
      scores[i] = ScoreOf<T, kLanes>(keys[i], q);
      if (first + i * step >= end) scores[i] = -math::infinity();
      largest = Larger(largest, scores[i]);
    }
    const float base = BaseOf(largest);
    const float growth = ExponentialOf(head.largest - base);
    head.largest = largest;
    head.sum *= growth;
    for (float& element : head.total.v) element *= growth;
    for (u32 i = 0; i < kRowsAtOnce; ++i) {
      const float weight = ExponentialOf(scores[i] - base);
      head.sum += weight;
      for (u32 e = 0; e < kLaneElements; ++e) {
        head.total.v[e] += weight * ElementOf<T>(values[i], e);
      }
    }
  }
};

// (warp) Adds the new key, which the group has if `has`.
template <typename T, u32 kLanes>
RESIDENT_DEVICE void AddNewKey(OneHead& head, const LaneVector& q, const Bytes16& key,
                               const Bytes16& value, bool has) {
  const float score = ScoreOf<T, kLanes>(key, q);
  if (!has) return;
  const float largest = Larger(head.largest, score);
  const float base = BaseOf(largest);
  const float growth = ExponentialOf(head.largest - base);
  const float weight = ExponentialOf(score - base);
  head.largest = largest;
  head.sum = head.sum * growth + weight;
  for (u32 e = 0; e < kLaneElements; ++e) {
    head.total.v[e] = head.total.v[e] * growth + weight * ElementOf<T>(value, e);
  }
}

// (warp) Merges the groups of the warp, whose results the memory has then.
template <u32 kDim>
RESIDENT_DEVICE void MergeGroupsOf(FewKeysMemory<kDim>& memory, u32 warp, u32 lane,
                                   const OneHead& head) {
  constexpr u32 kLanes = FewKeysMemory<kDim>::kLanesOfKey;
  float top = head.largest;
  RESIDENT_UNROLL(4)
  for (u32 mask = kLanes; mask < kWarpThreads; mask *= 2) top = Larger(top, ShuffleXor(top, mask));
  // 0 for a group without keys, whose sums are 0 too.
  const float factor = ExponentialOf(head.largest - BaseOf(top));
  const auto merge = [&](float value) {
    value *= factor;
    RESIDENT_UNROLL(4)
    for (u32 mask = kLanes; mask < kWarpThreads; mask *= 2) value += ShuffleXor(value, mask);
    return value;
  };
  const float sum = merge(head.sum);
  bool usable = sum - sum == 0.0f;
  Quad<float> quads[2];
  for (u32 i = 0; i < kLaneElements; ++i) {
    const float total = merge(head.total.v[i]);
    usable = usable && total <= kLargestTotal && total >= -kLargestTotal;
    quads[i / 4].v[i % 4] = total;
  }
  const bool unusable = AnyLane(!usable);
  if (lane >= kLanes) return;
  for (u32 half = 0; half < 2; ++half) memory.totals[warp][half][lane] = quads[half];
  if (lane != 0) return;
  memory.largest[warp] = top;
  memory.sums[warp] = sum;
  memory.unusable[warp] = unusable ? 1 : 0;
}

// Writes the results of a head of q from those of the warps. False: one is not finite.
template <u32 kDim>
RESIDENT_DEVICE bool MergeWarpsOf(const Block& block, const Args& args,
                                  const FewKeysMemory<kDim>& memory, u32 parts, u32 head) {
  const u32 warps = block.threads() / kWarpThreads;
  u32 unusable = 0;
  float top = -math::infinity();
  RESIDENT_UNROLL(8)
  for (u32 w = 0; w < warps; ++w) {
    unusable |= memory.unusable[w];
    top = Larger(top, memory.largest[w]);
  }
  if (unusable != 0) return false;
  const TensorArgument& out = args.described(kDecodeOut);
  const float base = BaseOf(top);
  RESIDENT_UNROLL(1)
  for (u32 column = block.thread(); column < kDim; column += block.threads()) {
    float total = 0.0f;
    float sum = 0.0f;
    const u32 quad = column / 4;
    RESIDENT_UNROLL(8)
    for (u32 w = 0; w < warps; ++w) {
      const float factor = ExponentialOf(memory.largest[w] - base);
      total += factor * memory.totals[w][quad % 2][quad / 2].v[column % 4];
      sum += factor * memory.sums[w];
    }
    const i64 row = i64{head} * parts;
    StoreFloat(out.address, out.dtype, i64{head} * kDim + column, sum == 0.0f ? 0.0f : total / sum);
    *ElementAt<float>(args.described(kDecodeAcc).address, row * kDim + column) = total;
    if (column != 0) continue;
    *ElementAt<float>(args.described(kDecodeLargest).address, row) = top;
    *ElementAt<float>(args.described(kDecodeSum).address, row) = sum;
  }
  return true;
}

// Awaits the inputs, and computes an item. False: a result is not finite (see AttendOnePositionBy).
// No thread uses the block's memory before.
template <typename T, u32 kDim>
RESIDENT_DEVICE bool DecodeFewKeysBy(const Block& block, const Args& args, const DecodeItems& items,
                                     u32 item) {
  using Memory = FewKeysMemory<kDim>;
  constexpr u32 kLanes = Memory::kLanesOfKey;
  Memory& memory = *block.memory<Memory>();
  const TensorArgument& keys = args.described(kDecodeKeys);
  const TensorArgument& values = args.described(kDecodeValues);
  const u32 stored = static_cast<u32>(args.scalar<i64>(kDecodePos));  // Keys of the cache.
  const u32 lane_of_key = block.thread() % kLanes;
  const u32 group = block.thread() / kLanes;
  const u32 groups = block.threads() / kLanes;
  const u32 kv_head = item / items.parts;
  const u32 index = item - kv_head * items.parts;
  const u32 head = kv_head * items.shared + index;
  const auto first_run = [&](const TensorArgument& cache) {
    return cache.address +
           2 * (kv_head * static_cast<u64>(cache.strides[0]) + lane_of_key * kLaneElements);
  };
  const u64 key = first_run(keys);
  const u64 value = first_run(values);
  const u32 key_bytes = static_cast<u32>(2 * keys.strides[1]);
  const u32 value_bytes = static_cast<u32>(2 * values.strides[1]);
  KeyRows<T, kLanes> rows;
  rows.Load(key, value, group, groups, stored, key_bytes, value_bytes);
  if (!block.await_inputs()) return true;

  const TensorArgument& angles = args.described(kDecodeAngles);
  const bool rotates = angles.shape[0] != 0;
  const auto angle_of = [&](u32 pair) { return *ElementAt<const float>(angles.address, pair); };
  const auto vector_of = [&](u32 argument, u32 row) {
    const TensorArgument& x = args.described(argument);
    return LaneVector::Load(x.address + sizeof(float) * (row * static_cast<u64>(x.strides[0]) +
                                                         lane_of_key * kLaneElements));
  };
  constexpr u32 kPairs = kDim / 2;
  float angle = 0.0f;
  if (rotates && block.thread() < kPairs) angle = angle_of(block.thread());
  LaneVector q = vector_of(kDecodeQ, head);
  // Only the first warp's first group has them.
  const bool has_new = group == 0;
  LaneVector new_key = LaneVector::Zeros();
  LaneVector new_value = LaneVector::Zeros();
  if (has_new) {
    new_key = vector_of(kDecodeK, kv_head);
    new_value = vector_of(kDecodeV, kv_head);
  }
  if (index != 0) {
    ClearPart<kDim>(block,
                    {args.described(kDecodeAcc).address, args.described(kDecodeLargest).address,
                     args.described(kDecodeSum).address, items.shared, items.parts},
                    kv_head, index);
  }
  const bool interleaved = args.scalar<i32>(kDecodeLayout) == 0;
  if (rotates) {
    RESIDENT_UNROLL(1)
    for (u32 pair = block.thread(); pair < kPairs; pair += block.threads()) {
      if (pair != block.thread()) angle = angle_of(pair);
      memory.rotations[pair] = RotationInline(angle);
    }
    block.barrier();
    q.Rotate<kDim>(memory.rotations, lane_of_key, interleaved);
  }
  const float scale = args.scalar<float>(kDecodeScale);
  for (float& element : q.v) element *= scale;

  OneHead result = {-math::infinity(), 0.0f, LaneVector::Zeros()};
  // The lanes of a warp make the same number of steps.
  RESIDENT_UNROLL(1)
  for (u32 done = 0;;) {
    rows.AddTo(result, q, done + group, groups, stored);
    done += kRowsAtOnce * groups;
    if (done >= stored) break;
    rows.Load(key, value, done + group, groups, stored, key_bytes, value_bytes);
  }
  if (WarpOf(block) == 0) {
    if (rotates) new_key.Rotate<kDim>(memory.rotations, lane_of_key, interleaved);
    const Bytes16 rounded_key = new_key.template Rounded<T>();
    const Bytes16 rounded_value = new_value.template Rounded<T>();
    if (has_new && index == 0) {
      *reinterpret_cast<Bytes16*>(key + u64{stored} * key_bytes) = rounded_key;
      *reinterpret_cast<Bytes16*>(value + u64{stored} * value_bytes) = rounded_value;
    }
    AddNewKey<T, kLanes>(result, q, rounded_key, rounded_value, has_new);
  }
  MergeGroupsOf<kDim>(memory, WarpOf(block), LaneOf(block), result);
  block.barrier();
  return MergeWarpsOf<kDim>(block, args, memory, items.parts, head);
}

// Whether an item has this form. REQUIRES: CanDecodeAtOnce.
RESIDENT_DEVICE bool CanDecodeFewKeys(const Args& args, const DecodeItems& items) {
  const auto is_aligned = [&](u32 argument) {
    const TensorArgument& x = args.described(argument);
    return (x.address % sizeof(Quad<float>) == 0) & (x.strides[0] % 4 == 0);
  };
  return items.by_heads & is_aligned(kDecodeQ) & is_aligned(kDecodeK) & is_aligned(kDecodeV);
}
// REQUIRES: CanDecodeFewKeys.
RESIDENT_DEVICE bool DecodeFewKeys(const Block& block, const Args& args, const DecodeItems& items,
                                   u32 item) {
  const bool half = args.described(kDecodeKeys).dtype == DType::kF16;
  if (args.described(kDecodeQ).shape[1] == 64) {
    return half ? DecodeFewKeysBy<Half, 64>(block, args, items, item)
                : DecodeFewKeysBy<BFloat16, 64>(block, args, items, item);
  }
  return half ? DecodeFewKeysBy<Half, 128>(block, args, items, item)
              : DecodeFewKeysBy<BFloat16, 128>(block, args, items, item);
}

#endif  // RESIDENT_WARPS

}  // namespace resident::attention

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_FEW_KEYS_H_
