// The index of the largest element of a row, by the threads and the chunks that share the row.
//
// A *part* is what one of them found: the key of its largest element in the upper half, and the
// index in the row with all bits inverted in the lower half. So the larger part of two is the one
// with the larger element, and of equal elements the one with the lower index; NaN is above all
// numbers. 0 is the part of no elements.
//
//   const u64 part = block.reduce(LargestOfThread(block, x, begin, end), LargerPart);
//   const u32 index = IndexOfPart(part);
#ifndef RESIDENT_KERNELS_OPS_LARGEST_INDEX_H_
#define RESIDENT_KERNELS_OPS_LARGEST_INDEX_H_

#include "kernels/ops/rows.h"

namespace resident {

RESIDENT_DEVICE u64 MakePart(u32 key, u32 index) { return u64{key} << 32 | ~index; }
RESIDENT_DEVICE u32 KeyOfPart(u64 part) { return static_cast<u32>(part >> 32); }
RESIDENT_DEVICE u32 IndexOfPart(u64 part) { return ~static_cast<u32>(part); }
RESIDENT_DEVICE u64 LargerPart(u64 a, u64 b) { return a > b ? a : b; }

// Elements that a thread requests at once, in quads.
inline constexpr u32 kQuadsAtOnce = 8;

// The part of the calling thread's elements among [begin, end) of a row of float32 at x, with
// indices in the row. Most elements are not above the largest one so far, which is seen for
// kQuadsAtOnce quads at a time. `begin` is a multiple of 4, and x one of 16.
RESIDENT_DEVICE u64 LargestOfThread(const Block& block, u64 x, u32 begin, u32 end) {
  const u32 quads = end / 4;
  const Quad<float>* const from = ElementAt<const Quad<float>>(x, 0);
  const u32 step = kQuadsAtOnce * block.threads();
  u32 best = 0;  // Key of the largest element so far; no element has key 0.
  u32 index = 0;
  float largest = -math::infinity();
  const auto look = [&](float v, u32 i) {
    const u32 key = OrderedKey(v);
    if (key <= best) return;
    best = key;
    index = i;
    largest = v;
  };
  u32 first = begin / 4 + block.thread();
  RESIDENT_UNROLL(1)
  for (; first + (kQuadsAtOnce - 1) * block.threads() < quads; first += step) {
    Quad<float> v[kQuadsAtOnce];
    for (u32 q = 0; q < kQuadsAtOnce; ++q) v[q] = from[first + q * block.threads()];
    float top = v[0].v[0];
    for (u32 q = 0; q < kQuadsAtOnce; ++q) {
      for (u32 i = 0; i < 4; ++i) top = LargerOf(top, v[q].v[i]);
    }
    // Also if one of them is NaN, or the largest one is.
    if (top <= largest && best != 0) continue;
    for (u32 q = 0; q < kQuadsAtOnce; ++q) {
      for (u32 i = 0; i < 4; ++i) look(v[q].v[i], 4 * (first + q * block.threads()) + i);
    }
  }
  RESIDENT_UNROLL(1)
  for (; first < quads; first += block.threads()) {
    const Quad<float> v = from[first];
    for (u32 i = 0; i < 4; ++i) look(v.v[i], 4 * first + i);
  }
  // At most 3 elements; a block may have fewer threads.
  RESIDENT_UNROLL(1)
  for (u32 i = 4 * quads + block.thread(); i < end; i += block.threads()) {
    look(*ElementAt<const float>(x, i), i);
  }
  return best == 0 ? 0 : MakePart(best, index);
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_LARGEST_INDEX_H_
