// Warps: groups of 32 adjacent threads of a block, which exchange values without a barrier.
//
// In tests on the host a block has 32 threads, which are one warp (kernels/sdk/emulated_block.h).
#ifndef RESIDENT_KERNELS_OPS_WARP_H_
#define RESIDENT_KERNELS_OPS_WARP_H_

#include "kernels/sdk/block.h"

namespace resident {

inline constexpr u32 kWarpThreads = 32;

// The calling thread's warp, and its position in it.
RESIDENT_DEVICE u32 WarpOf(const Block& block) { return block.thread() / kWarpThreads; }
RESIDENT_DEVICE u32 LaneOf(const Block& block) { return block.thread() % kWarpThreads; }

// (collective) Combines one value of each of `size` adjacent lanes; all of them get the result.
// `f` is associative and commutative, and `size` a power of two of at most 32, on the host the
// number of threads. The order is fixed.
template <typename T, typename F>
RESIDENT_DEVICE T CombineLanes([[maybe_unused]] const Block& block, T value, F f,
                               [[maybe_unused]] u32 size = kWarpThreads) {
#if defined(__CUDA_ARCH__)
  RESIDENT_UNROLL(1)
  for (u32 delta = size / 2; delta > 0; delta /= 2) {
    value = f(value, __shfl_xor_sync(0xffffffffu, value, delta));
  }
  return value;
#else
  static_assert(Block::kMaxThreads <= kWarpThreads, "");
  return block.reduce(value, f);
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_WARP_H_
