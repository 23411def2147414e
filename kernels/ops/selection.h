// Selection: the largest elements of a row, in an order that does not depend on the number of
// threads: by value, and for equal values by index.
//
// All functions are (collective): all threads of the block work on one row. They use the beginning
// of the block's memory, up to kSelectionEnd.
#ifndef RESIDENT_KERNELS_OPS_SELECTION_H_
#define RESIDENT_KERNELS_OPS_SELECTION_H_

#include "kernels/ops/rows.h"

namespace resident {

inline constexpr u32 kDigits = 256;
inline constexpr u32 kSegments = 32;

struct SelectionMemory {
  u64 bins[kDigits];
  u32 digit;
  u64 above;
};
inline constexpr u32 kSelectionEnd = sizeof(SelectionMemory);

// Adds to a sum that the block's threads share. The sums are integers, so their order does not
// matter.
RESIDENT_DEVICE void AddShared(u64* at, u64 value) {
  if (Block::kMaxThreads == 1) {
    *at += value;
  } else {
    atomic_add(at, value);
  }
}

// (collective) The first index i of [0, count) at which weight(0) + ... + weight(i) is larger than
// the target. `target` is called with the sum of all weights, which its result must be below; the
// weights and their sum must be below 2^64.
template <typename W, typename G>
RESIDENT_DEVICE i64 FindWeight(const Block& block, i64 count, W weight, G target) {
  SelectionMemory& memory = *block.memory<SelectionMemory>();
  i64 begin = 0;
  u64 rest = 0;
  bool first = true;
  // Each round divides what remains into segments of equal sizes.
  RESIDENT_UNROLL(1)
  while (first || count > 1) {
    const i64 segment = (count + kSegments - 1) / kSegments;
    block.barrier();  // The reads of the previous round have finished.
    block.for_each({0, kSegments}, [&](i64 i) { memory.bins[i] = 0; });
    block.barrier();
    u32 at = 0;
    i64 end = segment;  // Of segment `at`.
    u64 sum = 0;
    RESIDENT_UNROLL(1)
    for (i64 i = block.thread(); i < count; i += block.threads()) {
      if (i >= end) {
        AddShared(&memory.bins[at], sum);
        sum = 0;
        while (i >= end) {
          ++at;
          end += segment;
        }
      }
      sum += weight(begin + i);
    }
    AddShared(&memory.bins[at], sum);
    block.barrier();
    if (first) {
      u64 total = 0;
      RESIDENT_UNROLL(1)
      for (u32 i = 0; i < kSegments; ++i) total += memory.bins[i];
      rest = target(total);
      first = false;
    }
    u32 found = 0;
    RESIDENT_UNROLL(1)
    for (; found + 1 < kSegments && memory.bins[found] <= rest; ++found) rest -= memory.bins[found];
    begin += found * segment;
    count = count - found * segment < segment ? count - found * segment : segment;
  }
  return begin;
}

// An element of the order: the one with this key, and `above` is the weight of all larger keys.
struct Threshold {
  u32 key;
  u64 above;
};

// (collective) The largest key at which the weight of all elements with this key or a larger one
// reaches the target, which is at least 1 and at most the sum of all weights.
template <typename K, typename W>
RESIDENT_DEVICE Threshold FindThreshold(const Block& block, i64 count, K key, W weight,
                                        u64 target) {
  SelectionMemory& memory = *block.memory<SelectionMemory>();
  Threshold result = {0, 0};
  // Digit by digit, from the most significant one.
  RESIDENT_UNROLL(1)
  for (i32 shift = 24; shift >= 0; shift -= 8) {
    block.barrier();  // The reads of the previous round have finished.
    block.for_each({0, kDigits}, [&](i64 i) { memory.bins[i] = 0; });
    block.barrier();
    const u64 high = u64{result.key} >> shift >> 8;  // The digits that are known.
    RESIDENT_UNROLL(1)
    for (i64 i = block.thread(); i < count; i += block.threads()) {
      const u32 k = key(i);
      if (u64{k} >> shift >> 8 != high) continue;
      AddShared(&memory.bins[k >> shift & (kDigits - 1)], weight(i));
    }
    block.barrier();
    if (block.thread() == 0) {
      u32 digit = kDigits - 1;
      u64 above = result.above;
      RESIDENT_UNROLL(1)
      for (; digit > 0 && above + memory.bins[digit] < target; --digit) {
        above += memory.bins[digit];
      }
      memory.digit = digit;
      memory.above = above;
    }
    block.barrier();
    result.key |= memory.digit << shift;
    result.above = memory.above;
  }
  return result;
}

// The elements of a row whose key is larger than `key`, and those with this key up to index `last`.
struct Selection {
  u32 key;
  i64 last;

  RESIDENT_DEVICE bool Has(u32 k, i64 i) const { return k > key || (k == key && i <= last); }
};

// (collective) The smallest prefix of the order whose weight reaches the target. Elements with
// equal keys must have equal weights.
template <typename K, typename W>
RESIDENT_DEVICE Selection Select(const Block& block, i64 count, K key, W weight, u64 target) {
  const Threshold threshold = FindThreshold(block, count, key, weight, target);
  const u64 missing = target - threshold.above;
  const i64 last = FindWeight(
      block, count, [&](i64 i) { return key(i) == threshold.key ? weight(i) : u64{0}; },
      [missing](u64) { return missing - 1; });
  return {threshold.key, last};
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_SELECTION_H_
