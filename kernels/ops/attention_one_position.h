// This header computes attention of one position, as in a decoding step, with keys and values of
// 16-bit elements.
//
// An item is a head of keys, or one of its parts, with the heads of q that share it, up to four at
// a time. The keys are distributed over the groups of lanes of all warps: a lane has 8 elements of
// a key and of its value, so that 8 or 16 lanes have a whole key of 64 or 128 elements, and a group
// has four keys in each step. Their 16 scores, of four keys and four heads, are added and exchanged
// in such a way that a lane gets one score, or two: it then computes the weight of this score, of
// which all lanes need a copy. Each group has its own largest scores, sums and weighted values,
// which are merged once at the end: those of a warp by exchanges between its lanes, then those of
// the warps. The products are added in float32.
//
// For attention_decode (attention_decode.h) it also rotates the queries, and appends the new key,
// which is not read back, to the cache. If there are few keys and blocks enough, an item of it has
// one head of q: then a block computes one of the heads that share the keys, and waits for no
// other.
//
// It needs few instructions in front of the first load and behind the last one, which is what short
// caches are limited by. Items of more than kMaxKeys keys, of which there usually are fewer than
// blocks, are left to StreamTiles. A batch of 8 with 8 heads of 8,192 keys in bfloat16, in 4 parts,
// with attention_combine, reads 0.71 of the rate of a copy on an H100 in the same run.
// attention.cc has other forms.
#ifndef RESIDENT_KERNELS_OPS_ATTENTION_ONE_POSITION_H_
#define RESIDENT_KERNELS_OPS_ATTENTION_ONE_POSITION_H_

#include "kernels/ops/attention_task.h"
#include "kernels/ops/rotation.h"
#include "kernels/ops/tensor_cores.h"
#include "kernels/ops/warp.h"

namespace resident::attention {

#if RESIDENT_WARPS

// The key and the value that attention_decode appends, and the angles by which it rotates the key
// and the queries. All three are float32.
struct NewPosition {
  u64 key;
  u64 value;
  u64 angles;      // 0: nothing is rotated.
  i64 key_stride;  // Of heads.
  i64 value_stride;
  bool interleaved;
};

struct PositionTask {
  u64 q;
  u64 k;
  u64 v;
  u64 out;      // For parts: acc.
  u64 decoded;  // attention_decode only: where the results are, if there is one part.
  u64 largest;
  u64 sum;
  i64 q_strides[2];  // Of batches and heads, as all of these.
  i64 k_strides[3];  // And of keys.
  i64 v_strides[3];
  i64 out_strides[3];  // And of columns; not for parts.
  DType q_dtype;
  DType out_dtype;
  u32 heads;
  u32 kv_heads;
  u32 shared_heads;  // Heads of q for each head of k.
  u32 keys;
  u32 parts;       // 0: the operator attention.
  u32 used_parts;  // Those that have keys, or 1; the first ones.
  bool by_heads;   // attention_decode only: see DecodeItems.
  float scale;
  NewPosition added;  // attention_decode only. Its key is the last one.
};

inline constexpr u32 kHeadsAtOnce = 4;
// Elements of a lane.
inline constexpr u32 kLaneElements = 8;
// Keys of an item, at most.
inline constexpr i64 kMaxKeys = 2048;

// Keys of a group in a step, and those of attention_decode with several heads, which needs more
// registers.
inline constexpr u32 kKeysAtOnce = 4;
inline constexpr u32 kDecodedKeysAtOnce = 2;

// The block's memory: the task in front of it.
inline constexpr u32 kPositionOffset = 256;
static_assert(sizeof(PositionTask) <= kPositionOffset, "");

template <u32 kDim>
struct PositionMemory {
  static constexpr u32 kLanesOfKey = kDim / kLaneElements;
  static constexpr u32 kGroupsOfWarp = kWarpThreads / kLanesOfKey;
  static constexpr u32 kWarps = Block::kMaxThreads / kWarpThreads;

  // Quads of elements: those of a head that lanes have as their first ones, then the second ones.
  Quad<float> queries[kHeadsAtOnce][2][kLanesOfKey];
  // What attention_decode rotates by, for each pair, and what it appends, as it is stored.
  Rotation rotations[kDim / 2];
  Bytes16 new_key[kLanesOfKey];
  Bytes16 new_value[kLanesOfKey];
  // Of each warp.
  float largest[kWarps][kHeadsAtOnce];
  float sums[kWarps][kHeadsAtOnce];
  // The runs of keys and of values of its next step, and then, in their place, its weighted values.
  union OfWarp {
    Bytes16 runs[2][kKeysAtOnce][kWarpThreads];
    Quad<float> totals[kHeadsAtOnce][2][kLanesOfKey];
  };
  OfWarp of_warp[kWarps];
};
static_assert(kPositionOffset + sizeof(PositionMemory<64>) <= kBlockMemoryBytes, "");
static_assert(kPositionOffset + sizeof(PositionMemory<128>) <= kBlockMemoryBytes, "");

// How the scores of a step, of kHeads heads for each of kKeys keys, are distributed over the kLanes
// lanes of a group. A lane has kScores of them, or kCopies lanes have the same one.
template <u32 kLanes, u32 kHeads, u32 kKeys>
struct ScoresOfLanes {
  static constexpr u32 kAll = kHeads * kKeys;  // Score h * kKeys + j: of head h and key j.
  static constexpr u32 kScores = kAll > kLanes ? kAll / kLanes : 1;
  static constexpr u32 kCopies = kAll > kLanes ? 1 : kLanes / kAll;
  static constexpr u32 kLanesOfHead = kLanes / kHeads;

  // The key of a lane's score.
  static RESIDENT_DEVICE u32 KeyOf(u32 lane, u32 score) {
    return lane % kLanesOfHead / kCopies * kScores + score;
  }
  // The first lane that has this score, as its score j % kScores.
  static RESIDENT_DEVICE u32 LaneOf(u32 h, u32 j) {
    return h * kLanesOfHead + j / kScores * kCopies;
  }

  // (group) Combines the values of the lanes that have different scores of a head.
  template <typename F>
  static RESIDENT_DEVICE float CombineHead(float value, F f) {
    RESIDENT_UNROLL(4)
    for (u32 mask = kLanesOfHead / 2; mask >= kCopies && mask > 0; mask /= 2) {
      value = f(value, ShuffleXor(value, mask));
    }
    return value;
  }
};

// What a group knows of its keys so far: the largest score and the sum of the weights of the head
// whose scores the lane has, where a lane has the weights of its own scores only, and the weighted
// values of all heads.
template <u32 kHeads>
struct GroupRows {
  float largest;
  float sum;
  float total[kHeads][kLaneElements];
};

// The lane's elements of the keys of a step, or of their values. What does not exist is 0.
template <u32 kKeys>
struct StepRuns {
  Bytes16 runs[kKeys];
};

// The keys, or the values, of a group. The keys of a step are `groups` positions from each other.
// While a step is used, the next one is on its way to the lane's part of the block's memory:
// registers for it would be too many, and its way to the L2 cache only would be requested twice.
template <u32 kKeys>
struct RunsOfGroup {
  u64 at;      // Of the next step's first key.
  u32 stride;  // Bytes between two keys of a step.
  MemoryAddress place;

  // Requests the next step. `left`: keys that exist from its first one on.
  RESIDENT_DEVICE void Start(u32 left, u32 groups) {
    for (u32 j = 0; j < kKeys; ++j) {
      CopyAsync(place + j * kPlaceBytes, at + u64{j} * stride,
                left > j * groups ? sizeof(Bytes16) : 0);
    }
    CommitCopies();
    at += u64{kKeys} * stride;
  }
  // The step that was requested, if one other request was made behind it.
  RESIDENT_DEVICE StepRuns<kKeys> Take() const {
    WaitForCopies<1>();
    StepRuns<kKeys> step;
    for (u32 j = 0; j < kKeys; ++j) step.runs[j] = Load16(place + j * kPlaceBytes);
    return step;
  }
  // How many keys exist from the step behind one on of which `left` exist.
  static RESIDENT_DEVICE u32 KeysBehind(u32 left, u32 groups) {
    return left > kKeys * groups ? left - kKeys * groups : 0;
  }

 private:
  static constexpr u32 kPlaceBytes = kWarpThreads * sizeof(Bytes16);
};

template <typename T>
RESIDENT_DEVICE float ElementOf(const Bytes16& run, u32 i) {
  return T::Widen(static_cast<u16>(run.words[i / 2] >> (i % 2 * 16)));
}

// (group of kLanes lanes) Adds each of kCount values over the lanes. Lane l gets the sums of the
// values from l * kCount / kLanes on, as the first ones of `values`.
template <u32 kLanes, u32 kCount>
RESIDENT_DEVICE void AddOverLanes(u32 lane_of_key, float (&values)[kCount]) {
  u32 count = kCount;
  RESIDENT_UNROLL(4)
  for (u32 mask = kLanes / 2; mask > 0; mask /= 2) {
    if (count == 1) {
      values[0] += ShuffleXor(values[0], mask);
      continue;
    }
    count /= 2;
    const bool upper = (lane_of_key & mask) != 0;
    for (u32 i = 0; i < count; ++i) {
      const float sent = upper ? values[i] : values[i + count];
      const float kept = upper ? values[i + count] : values[i];
      values[i] = kept + ShuffleXor(sent, mask);
    }
  }
}

// (group) Adds the keys of a step, of which `left` exist if the group's keys are `groups` positions
// from each other. load_values() returns their values, and is called when the keys are no longer
// needed.
template <typename T, u32 kDim, u32 kHeads, u32 kKeys, typename F>
RESIDENT_DEVICE void AddKeys(const PositionMemory<kDim>& memory, u32 lane,
                             const StepRuns<kKeys>& keys, F load_values, u32 left, u32 groups,
                             GroupRows<kHeads>& rows) {
  constexpr u32 kLanes = PositionMemory<kDim>::kLanesOfKey;
  using Scores = ScoresOfLanes<kLanes, kHeads, kKeys>;
  const u32 lane_of_key = lane % kLanes;
  const u32 first_lane = lane - lane_of_key;
  // Pair by pair: the elements of all keys as floats would be too many for the registers.
  struct alignas(8) Pair {
    float v[2];
  };
  float scores[Scores::kAll] = {};
  for (u32 pair = 0; pair < kLaneElements / 2; ++pair) {
    Pair queries[kHeads];
    for (u32 h = 0; h < kHeads; ++h) {
      const Quad<float>& quad = memory.queries[h][pair / 2][lane_of_key];
      queries[h] = reinterpret_cast<const Pair*>(&quad)[pair % 2];
    }
    for (u32 j = 0; j < kKeys; ++j) {
      for (u32 i = 0; i < 2; ++i) {
        const float element = ElementOf<T>(keys.runs[j], 2 * pair + i);
        for (u32 h = 0; h < kHeads; ++h) {
          scores[h * kKeys + j] += element * queries[h].v[i];
        }
      }
    }
  }
  const StepRuns<kKeys> values = load_values();
  AddOverLanes<kLanes>(lane_of_key, scores);

  float largest = rows.largest;
  for (u32 s = 0; s < Scores::kScores; ++s) {
    if (Scores::KeyOf(lane_of_key, s) * groups >= left) scores[s] = -math::infinity();
    largest = Larger(largest, scores[s]);
  }
  largest = Scores::CombineHead(largest, [](float a, float b) { return Larger(a, b); });
  const float base = BaseOf(largest);
  const float growth = ExponentialOf(rows.largest - base);
  rows.largest = largest;
  rows.sum *= growth;
  float weights[Scores::kScores];
  for (u32 s = 0; s < Scores::kScores; ++s) {
    weights[s] = ExponentialOf(scores[s] - base);
    rows.sum += weights[s];
  }

  float growths[kHeads];
  float all_weights[kHeads][kKeys];
  for (u32 h = 0; h < kHeads; ++h) {
    growths[h] = Shuffle(growth, first_lane + Scores::LaneOf(h, 0));
    for (u32 j = 0; j < kKeys; ++j) {
      all_weights[h][j] = Shuffle(weights[j % Scores::kScores], first_lane + Scores::LaneOf(h, j));
    }
  }
  for (u32 i = 0; i < kLaneElements; ++i) {
    float elements[kKeys];
    for (u32 j = 0; j < kKeys; ++j) elements[j] = ElementOf<T>(values.runs[j], i);
    for (u32 h = 0; h < kHeads; ++h) {
      float total = rows.total[h][i] * growths[h];
      for (u32 j = 0; j < kKeys; ++j) total += all_weights[h][j] * elements[j];
      rows.total[h][i] = total;
    }
  }
}

// Merges the groups of a warp, whose results the memory has then.
template <u32 kDim, u32 kHeads, u32 kKeys>
RESIDENT_DEVICE void MergeGroups(PositionMemory<kDim>& memory, u32 warp, u32 lane,
                                 const GroupRows<kHeads>& rows) {
  constexpr u32 kLanes = PositionMemory<kDim>::kLanesOfKey;
  using Scores = ScoresOfLanes<kLanes, kHeads, kKeys>;
  // Of all scores of the lane's head.
  const float sums = Scores::CombineHead(rows.sum, [](float a, float b) { return a + b; });
  for (u32 h = 0; h < kHeads; ++h) {
    const u32 lane_of_head = lane / kLanes * kLanes + Scores::LaneOf(h, 0);
    const float largest = Shuffle(rows.largest, lane_of_head);
    float top = largest;
    RESIDENT_UNROLL(4)
    for (u32 mask = kLanes; mask < kWarpThreads; mask *= 2)
      top = Larger(top, ShuffleXor(top, mask));
    // 0 for a group without keys, whose sums are 0 too.
    const float factor = ExponentialOf(largest - BaseOf(top));
    const auto merge = [&](float value) {
      value *= factor;
      RESIDENT_UNROLL(4)
      for (u32 mask = kLanes; mask < kWarpThreads; mask *= 2) value += ShuffleXor(value, mask);
      return value;
    };
    const float sum = merge(Shuffle(sums, lane_of_head));
    Quad<float> quads[2];
    for (u32 i = 0; i < kLaneElements; ++i) quads[i / 4].v[i % 4] = merge(rows.total[h][i]);
    if (lane >= kLanes) continue;
    for (u32 half = 0; half < 2; ++half) memory.of_warp[warp].totals[h][half][lane] = quads[half];
    if (lane != 0) continue;
    memory.largest[warp][h] = top;
    memory.sums[warp][h] = sum;
  }
}

// Writes the merged results of `count` heads from `head` on. False: one is not finite.
template <u32 kDim, bool kDecode>
RESIDENT_DEVICE bool MergeWarps(const Block& block, const PositionTask& task,
                                const PositionMemory<kDim>& memory, u32 warps, u32 batch, u32 head,
                                u32 count, u32 part) {
  // All lanes of a warp have elements of the same head. One of kLanes lanes has the factor of a
  // warp.
  constexpr u32 kLanes = 8;
  static_assert(PositionMemory<kDim>::kWarps <= kLanes, "");
  bool finite = true;
  const u32 own = LaneOf(block) % kLanes;
  RESIDENT_UNROLL(1)
  for (u32 i = block.thread(); i < count * kDim; i += block.threads()) {
    const u32 h = i / kDim;
    const u32 column = i % kDim;
    const float largest = own < warps ? memory.largest[own][h] : -math::infinity();
    const float top = CombineLanes(
        largest, [](float a, float b) { return Larger(a, b); }, kLanes);
    const float factor = ExponentialOf(largest - BaseOf(top));
    const float own_sum = own < warps ? factor * memory.sums[own][h] : 0.0f;
    const float sum = CombineLanes(
        own_sum, [](float a, float b) { return a + b; }, kLanes);
    float total = 0.0f;
    const u32 quad = column / 4;
    RESIDENT_UNROLL(4)
    for (u32 w = 0; w < warps; ++w) {
      total += Shuffle(factor, w) * memory.of_warp[w].totals[h][quad % 2][quad / 2].v[column % 4];
    }
    finite = finite && total - total == 0.0f && sum - sum == 0.0f;
    const i64 row = i64{batch} * task.heads + head + h;
    if (task.parts > 0) {
      const i64 at = row * task.parts + part;
      *ElementAt<float>(task.out, at * kDim + column) = total;
      if (kDecode && task.used_parts == 1) {
        StoreFloat(task.decoded, task.out_dtype, row * kDim + column,
                   sum == 0.0f ? 0.0f : total / sum);
      }
      if (column != 0) continue;
      *ElementAt<float>(task.largest, at) = top;
      *ElementAt<float>(task.sum, at) = sum;
    } else {
      StoreFloat(task.out, task.out_dtype,
                 batch * task.out_strides[0] + (head + h) * task.out_strides[1] +
                     column * task.out_strides[2],
                 sum == 0.0f ? 0.0f : total / sum);
    }
  }
  return finite;
}

// Where the results of parts are.
struct PartResults {
  u64 out;
  u64 largest;
  u64 sum;
  u32 shared_heads;
  u32 parts;
};
// Writes the results of an empty part.
template <u32 kDim>
RESIDENT_DEVICE void ClearPart(const Block& block, const PartResults& results, u32 kv_head,
                               u32 part) {
  const i64 first = i64{kv_head} * results.shared_heads * results.parts + part;
  RESIDENT_UNROLL(1)
  for (u32 i = block.thread(); i < results.shared_heads * kDim; i += block.threads()) {
    const u32 column = i % kDim;
    const i64 at = first + i64{i / kDim} * results.parts;
    *ElementAt<float>(results.out, at * kDim + column) = 0.0f;
    if (column != 0) continue;
    *ElementAt<float>(results.largest, at) = -math::infinity();
    *ElementAt<float>(results.sum, at) = 0.0f;
  }
}

// Which pair of a rotation element d of a vector belongs to, and the other element of the pair.
struct PairOf {
  u32 pair;
  u32 other;
  bool high;  // Whether d is the second one.

  template <u32 kDim>
  static RESIDENT_DEVICE PairOf Element(u32 d, bool interleaved) {
    constexpr u32 kHalf = kDim / 2;
    if (interleaved) return {d / 2, d ^ 1, d % 2 != 0};
    return {d % kHalf, d ^ kHalf, d >= kHalf};
  }
};

// What attention_decode brings to the memory for an item: the queries of some heads and, if the
// item has it, the new key with its value, one row after the other.
template <typename T, u32 kDim, u32 kHeads>
struct NewRows {
  static constexpr u32 kKeyRow = kHeads;
  static constexpr u32 kValueRow = kKeyRow + 1;
  // Elements that a thread requests at the same time, and the other ones of their pairs.
  static constexpr u32 kAtOnce = 2;

  const PositionTask& task;
  u32 kv_head;
  u32 head;   // The first one,
  u32 heads;  // and their number.
  bool has_new;
  float own[kAtOnce];
  float other[kAtOnce];

  RESIDENT_DEVICE u32 Elements() const { return (has_new ? kValueRow + 1 : kHeads) * kDim; }

  // Requests elements `first`, `first` + threads and so on.
  RESIDENT_DEVICE void Load(u32 first, u32 threads) {
    for (u32 e = 0; e < kAtOnce; ++e) {
      const u32 i = first + e * threads;
      const u32 row = i / kDim;
      const u32 d = i % kDim;
      own[e] = other[e] = 0.0f;
      if (i >= Elements() || (row >= heads && row < kKeyRow)) continue;
      const NewPosition& added = task.added;
      const u64 vector = row == kKeyRow ? added.key : row == kValueRow ? added.value : task.q;
      const i64 offset = row == kKeyRow     ? kv_head * added.key_stride
                         : row == kValueRow ? kv_head * added.value_stride
                                            : (head + row) * task.q_strides[1];
      const float* const from = ElementAt<const float>(vector, offset);
      own[e] = from[d];
      other[e] = from[PairOf::Element<kDim>(d, added.interleaved).other];
    }
  }

  // Rotates what was requested, and stores it to the memory; `appends`: the new key and value to
  // the cache as well.
  RESIDENT_DEVICE void Store(PositionMemory<kDim>& memory, u32 first, u32 threads,
                             bool appends) const {
    const NewPosition& added = task.added;
    for (u32 e = 0; e < kAtOnce; ++e) {
      const u32 i = first + e * threads;
      if (i >= Elements()) continue;
      const u32 row = i / kDim;
      const u32 d = i % kDim;
      float value = own[e];
      if (added.angles != 0 && row != kValueRow) {
        const PairOf at = PairOf::Element<kDim>(d, added.interleaved);
        const Rotation by = memory.rotations[at.pair];
        const float turned = other[e] * by.sine;
        value = at.high ? turned + own[e] * by.cosine : own[e] * by.cosine - turned;
      }
      if (row < kKeyRow) {
        memory.queries[row][d / 4 % 2][d / kLaneElements].v[d % 4] = value * task.scale;
        continue;
      }
      const T rounded = T(value);
      const bool is_key = row == kKeyRow;
      reinterpret_cast<T*>(is_key ? memory.new_key : memory.new_value)[d] = rounded;
      if (!appends) continue;
      const i64* const strides = is_key ? task.k_strides : task.v_strides;
      *ElementAt<T>(is_key ? task.k : task.v,
                    kv_head * strides[1] + i64{task.keys - 1} * strides[2] + d) = rounded;
    }
  }
};

// Computes items, and ends behind one of which a result is not finite: a key with score -infinity
// has no part in the sum of values, and here an infinite value of it would have. Returns this item,
// or `end_item`. await() is called before the first element is read; if it returns false, nothing
// is computed. kDecode: of attention_decode; end(item) is called behind each item. kHeads: how many
// heads of an item are computed at a time.
template <typename T, u32 kDim, bool kDecode, u32 kHeads, typename Await, typename End>
RESIDENT_DEVICE u32 AttendOnePositionBy(const Block& block, u32 first_item, u32 end_item,
                                        Await await, End end) {
  using Memory = PositionMemory<kDim>;
  constexpr u32 kKeys = kDecode && kHeads > 1 ? kDecodedKeysAtOnce : kKeysAtOnce;
  using Runs = RunsOfGroup<kKeys>;
  const PositionTask& task = *block.memory<PositionTask>();
  Memory& memory = *block.memory<Memory>(kPositionOffset);
  const u32 lane_of_key = block.thread() % Memory::kLanesOfKey;
  const u32 group = block.thread() / Memory::kLanesOfKey;
  const u32 groups = block.threads() / Memory::kLanesOfKey;
  const u32 parts = task.parts > 0 ? task.parts : 1;
  const bool by_heads = kDecode && task.by_heads;
  RESIDENT_UNROLL(1)
  for (u32 item = first_item; item < end_item; ++item) {
    bool finite = true;
    const u32 all_heads = item / parts;
    const u32 index = item - all_heads * parts;
    const u32 part = by_heads ? 0 : index;
    // Of those that share the head of keys.
    const u32 first_head = by_heads ? index : 0;
    const u32 end_head = by_heads ? index + 1 : task.shared_heads;
    const u32 batch = all_heads / task.kv_heads;
    const u32 kv_head = all_heads - batch * task.kv_heads;
    const u32 size = task.keys / task.used_parts;
    const u32 larger = task.keys - size * task.used_parts;  // Parts that have one more.
    const u32 begin = part * size + (part < larger ? part : larger);
    const u32 count = size + (part < larger ? 1 : 0);
    // The last key is new: its copy in the block's memory is used.
    const bool has_new = kDecode && count > 0 && begin + count == task.keys;
    const u32 all_warps = block.threads() / kWarpThreads;
    u32 warps = (count + Memory::kGroupsOfWarp - 1) / Memory::kGroupsOfWarp;
    warps = warps < all_warps ? warps : all_warps;
    RESIDENT_UNROLL(1)
    for (u32 first = first_head; first < end_head; first += kHeads) {
      const u32 head = kv_head * task.shared_heads + first;
      const u32 heads = end_head - first < kHeads ? end_head - first : kHeads;
      // Keys from the group's first one of a step on.
      u32 left = count > group ? count - group : 0;
      // Those of them that the cache has already.
      const auto stored = [&](u32 keys) { return has_new && keys > 0 ? keys - 1 : keys; };
      const auto runs_of = [&](u64 address, const i64(&strides)[3], u32 which) {
        const i64 offset = batch * strides[0] + kv_head * strides[1] +
                           (begin + group) * strides[2] + lane_of_key * kLaneElements;
        return Runs{address + 2 * static_cast<u64>(offset),
                    static_cast<u32>(2 * groups * strides[2]),
                    AddressInMemory(&memory.of_warp[WarpOf(block)].runs[which][0][LaneOf(block)])};
      };
      Runs keys = runs_of(task.k, task.k_strides, 0);
      Runs values = runs_of(task.v, task.v_strides, 1);
      const bool is_first = item == first_item && first == first_head;
      if (is_first && !await()) return end_item;
      if (first != first_head) block.barrier();  // The totals of the heads before have been used.
      const bool rotates = kDecode && is_first && task.added.angles != 0;
      const auto angle_of = [&](u32 i) {
        return *ElementAt<const float>(task.added.angles, i % (kDim / 2));
      };
      float angle = 0.0f;
      if (rotates && block.thread() < kDim) angle = angle_of(block.thread());
      keys.Start(stored(left), groups);
      values.Start(stored(left), groups);
      [[maybe_unused]] NewRows<T, kDim, kHeads> rows_of_item{task,    kv_head, head, heads,
                                                             has_new, {},      {}};
      if constexpr (kDecode) {
        rows_of_item.Load(block.thread(), block.threads());
        if (by_heads && index != 0) {
          ClearPart<kDim>(block, {task.out, task.largest, task.sum, task.shared_heads, task.parts},
                          kv_head, index);
        }
        if (rotates) {
          RESIDENT_UNROLL(1)
          for (u32 i = block.thread(); i < kDim; i += block.threads()) {
            if (i != block.thread()) angle = angle_of(i);
            Rotation& rotation = memory.rotations[i % (kDim / 2)];
            if (i < kDim / 2) {
              rotation.cosine = CosineOf(angle);
            } else {
              rotation.sine = SineOf(angle);
            }
          }
        }
        block.barrier();
        RESIDENT_UNROLL(1)
        for (u32 at = block.thread();;) {
          rows_of_item.Store(memory, at, block.threads(), /*appends=*/first == 0);
          at += rows_of_item.kAtOnce * block.threads();
          if (at >= rows_of_item.Elements()) break;
          rows_of_item.Load(at, block.threads());
        }
      } else {
        RESIDENT_UNROLL(1)
        for (u32 i = block.thread(); i < kHeads * kDim; i += block.threads()) {
          const u32 h = i / kDim;
          const u32 d = i % kDim;
          float value = 0.0f;
          if (h < heads) {
            value = LoadFloat(task.q, task.q_dtype,
                              batch * task.q_strides[0] + (head + h) * task.q_strides[1] + d);
          }
          memory.queries[h][d / 4 % 2][d / kLaneElements].v[d % 4] = value * task.scale;
        }
      }
      block.barrier();
      GroupRows<kHeads> rows;
      rows.largest = -math::infinity();
      rows.sum = 0.0f;
      for (auto& total : rows.total) {
        for (float& element : total) element = 0.0f;
      }
      // The lanes of a warp make the same number of steps.
      RESIDENT_UNROLL(1)
      for (u32 done = WarpOf(block) * Memory::kGroupsOfWarp; done < count; done += kKeys * groups) {
        const u32 behind = Runs::KeysBehind(left, groups);
        const auto take = [&](Runs& runs, const Bytes16* new_run) {
          StepRuns<kKeys> step = runs.Take();
          runs.Start(stored(behind), groups);
          if (has_new) {
            for (u32 j = 0; j < kKeys; ++j) {
              if (left == j * groups + 1) step.runs[j] = new_run[lane_of_key];
            }
          }
          return step;
        };
        AddKeys<T, kDim, kHeads, kKeys>(
            memory, LaneOf(block), take(keys, memory.new_key),
            [&] { return take(values, memory.new_value); }, left, groups, rows);
        left = behind;
      }
      WaitForCopies<0>();
      if (WarpOf(block) < warps) {
        MergeGroups<kDim, kHeads, kKeys>(memory, WarpOf(block), LaneOf(block), rows);
      }
      block.barrier();
      finite =
          MergeWarps<kDim, kDecode>(block, task, memory, warps, batch, head, heads, part) && finite;
    }
    if (block.reduce(u32{finite}, [](u32 a, u32 b) { return a & b; }) == 0) return item;
    end(item);
  }
  return end_item;
}
template <typename T, u32 kDim>
RESIDENT_NOINLINE u32 AttendOnePositionBy(Block block, u32 first_item, u32 end_item) {
  return AttendOnePositionBy<T, kDim, /*kDecode=*/false, kHeadsAtOnce>(
      block, first_item, end_item, [] { return true; }, [](u32) {});
}

// Whether keys, or values, can be read in runs of 8 elements.
RESIDENT_DEVICE bool HasRuns(const TensorArgument& tensor) {
  const u64 distances = static_cast<u64>(tensor.strides[0] | tensor.strides[1] | tensor.strides[2]);
  return (tensor.strides[3] == 1) & (distances % kLaneElements == 0) &
         (tensor.address % sizeof(Bytes16) == 0);
}

// The items of a chunk.
struct PositionItems {
  u32 begin;
  u32 end;
};

// Whether the operands of attention, or with kPartial of attention_partial, have this form, and
// need not be refused; then sets the chunk's items, which are those of the other forms.
template <bool kPartial>
RESIDENT_DEVICE bool FindPositionItems(const Block& block, const Args& args, PositionItems& items) {
  if (!kReadsDirectly) return false;
  constexpr u32 kScalars = kPartial ? 7 : 5;
  const TensorArgument& q = args.described(0);
  const TensorArgument& k = args.described(1);
  const TensorArgument& v = args.described(2);
  const TensorArgument& mask = args.described(3);
  const i64 dim = q.shape[3];
  const i64 length = k.shape[2];
  const i64 kv_len = args.scalar<i64>(kScalars + 2);
  const i32 causal = args.scalar<i32>(kScalars + 1);
  const i64 keys = kv_len == -1 ? length : kv_len;
  const u64 large = static_cast<u64>(q.shape[0] | q.shape[1] | k.shape[1] | length);
  const bool fits = (q.shape[2] == 1) & (dim == 64 || dim == 128) & (v.shape[3] == dim) &
                    (q.strides[3] == 1) & (k.dtype == v.dtype) & (k.dtype != DType::kF32) &
                    HasRuns(k) & HasRuns(v) & (mask.rank == 1) & (mask.shape[0] == 0) &
                    (causal == 0 || causal == 1) & (keys >= 0) & (keys <= length) &
                    (large >> 30 == 0) & (k.strides[2] >= 0) & (v.strides[2] >= 0) &
                    ((k.strides[2] | v.strides[2]) >> 22 == 0) & (k.shape[1] > 0) &
                    (block.threads() >= kWarpThreads);
  if (!fits) return false;
  const u32 heads = static_cast<u32>(q.shape[1]);
  const u32 kv_heads = static_cast<u32>(k.shape[1]);
  const u32 shared_heads = heads / kv_heads;
  // The other forms have the same items for up to one tile of rows, and so can compute one again.
  if (shared_heads * kv_heads != heads || shared_heads == 0 || shared_heads > kMaxTileRows) {
    return false;
  }
  const i64 parts = kPartial ? args.described(4).shape[3] : 0;
  const i64 all = q.shape[0] * k.shape[1] * (kPartial ? parts : 1);
  if ((kPartial && parts == 0) || (parts | all) >> 31 != 0) return false;
  if (keys > kMaxKeys * (kPartial ? parts : 1)) return false;
  const Range share = block.share(all);
  items = {static_cast<u32>(share.begin), static_cast<u32>(share.end)};
  return true;
}

// (collective) Computes items from `first` on: see AttendOnePositionBy. REQUIRES:
// FindPositionItems.
template <bool kPartial>
RESIDENT_DEVICE u32 AttendOnePosition(const Block& block, const Args& args, u32 first, u32 end) {
  constexpr u32 kScalars = kPartial ? 7 : 5;
  const TensorArgument& q = args.described(0);
  const TensorArgument& k = args.described(1);
  const TensorArgument& v = args.described(2);
  if (block.thread() == 0) {
    const TensorArgument& out = args.described(4);
    const i64 kv_len = args.scalar<i64>(kScalars + 2);
    PositionTask& task = *block.memory<PositionTask>();
    task.q = q.address;
    task.k = k.address;
    task.v = v.address;
    task.out = out.address;
    task.largest = kPartial ? args.described(5).address : 0;
    task.sum = kPartial ? args.described(6).address : 0;
    for (u32 d = 0; d < 3; ++d) {
      if (d < 2) task.q_strides[d] = q.strides[d];
      task.k_strides[d] = k.strides[d];
      task.v_strides[d] = v.strides[d];
      task.out_strides[d] = out.strides[d < 2 ? d : 3];
    }
    task.q_dtype = q.dtype;
    task.out_dtype = out.dtype;
    task.heads = static_cast<u32>(q.shape[1]);
    task.kv_heads = static_cast<u32>(k.shape[1]);
    task.shared_heads = task.heads / task.kv_heads;
    task.keys = static_cast<u32>(kv_len == -1 ? k.shape[2] : kv_len);
    task.parts = kPartial ? static_cast<u32>(out.shape[3]) : 0;
    task.used_parts = kPartial ? task.parts : 1;
    task.scale = args.scalar<float>(kScalars);
  }
  if (!block.await_inputs()) return end;
  block.barrier();
  const bool half = k.dtype == DType::kF16;
  if (q.shape[3] == 64) {
    return half ? AttendOnePositionBy<Half, 64>(block, first, end)
                : AttendOnePositionBy<BFloat16, 64>(block, first, end);
  }
  return half ? AttendOnePositionBy<Half, 128>(block, first, end)
              : AttendOnePositionBy<BFloat16, 128>(block, first, end);
}

#endif  // RESIDENT_WARPS

}  // namespace resident::attention

#endif  // RESIDENT_KERNELS_OPS_ATTENTION_ONE_POSITION_H_
