// Warps: groups of 32 adjacent threads of a block, which exchange values without a barrier.
//
// All threads of a warp must call a function marked (warp) together. In tests of several threads on
// the host (RESIDENT_EMULATED_THREADS) these functions exchange their values between those threads.
// The CPU engine, whose blocks have one thread, has no warps: RESIDENT_WARPS is 0.
#ifndef RESIDENT_KERNELS_OPS_WARP_H_
#define RESIDENT_KERNELS_OPS_WARP_H_

#include "kernels/sdk/block.h"
#include "kernels/sdk/half.h"

#if RESIDENT_GPU || defined(RESIDENT_EMULATED_THREADS)
#define RESIDENT_WARPS 1
#else
#define RESIDENT_WARPS 0
#endif

namespace resident {

inline constexpr u32 kWarpThreads = 32;

// The calling thread's warp, and its lane: its position in the warp.
RESIDENT_DEVICE u32 WarpOf(const Block& block) { return block.thread() / kWarpThreads; }
RESIDENT_DEVICE u32 LaneOf(const Block& block) { return block.thread() % kWarpThreads; }

#if RESIDENT_WARPS

#if !RESIDENT_GPU
namespace emulated {

// What the lanes of a warp exchange. Two buffers in turn: a thread that has passed the barrier of
// one exchange may write for the next one while others still read.
struct Exchange {
  static constexpr unsigned kWords = 8;
  static constexpr unsigned kWarps = (RESIDENT_EMULATED_THREADS + kWarpThreads - 1) / kWarpThreads;
  static_assert(RESIDENT_EMULATED_THREADS % kWarpThreads == 0, "a warp needs all of its threads");
  static inline u64 words[kWarps][2][kWarpThreads][kWords];
  // Which buffer the calling thread uses next.
  struct Turn {
    unsigned buffer = 0;
  };

  // Publishes the calling lane's words, and returns those of all lanes.
  static const u64 (*All(const u64* mine, unsigned count))[kWords] {
    const unsigned thread = CurrentThread();
    Turn& turn = State::threads.Local<Turn>();
    auto* const buffer = words[thread / kWarpThreads][turn.buffer];
    turn.buffer ^= 1;
    for (unsigned i = 0; i < count; ++i) buffer[thread % kWarpThreads][i] = mine[i];
    WarpBarrier();
    return buffer;
  }

  // The value of a lane, each of which passes its own.
  template <typename T>
  static T Of(u32 lane, const T& value) {
    static_assert(sizeof(T) <= sizeof(u64), "");
    u64 mine = 0;
    __builtin_memcpy(&mine, &value, sizeof(T));
    T other;
    __builtin_memcpy(&other, &All(&mine, 1)[lane][0], sizeof(T));
    return other;
  }
};

}  // namespace emulated
#endif

// (warp) Waits for the warp. What its threads wrote before is visible to all of them.
RESIDENT_DEVICE void SynchronizeWarp() {
#if RESIDENT_GPU
  __syncwarp();
#else
  emulated::WarpBarrier();
#endif
}

// (warp) The value of a lane. T: at most 8 bytes.
template <typename T>
RESIDENT_DEVICE T Shuffle(T value, u32 lane) {
#if RESIDENT_GPU
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
#else
  return emulated::Exchange::Of(lane, value);
#endif
}

// (warp) The value of the lane whose number differs in the bits of `mask`. T: at most 8 bytes.
template <typename T>
RESIDENT_DEVICE T ShuffleXor(T value, u32 mask) {
#if RESIDENT_GPU
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
#else
  return emulated::Exchange::Of((emulated::CurrentThread() % kWarpThreads) ^ mask, value);
#endif
}

// (warp) Whether the condition is true in any lane.
RESIDENT_DEVICE bool AnyLane(bool condition) {
#if RESIDENT_GPU
  return __any_sync(0xffffffffu, condition);
#else
  const u64 mine = condition;
  const auto* const all = emulated::Exchange::All(&mine, 1);
  u64 any = 0;
  for (u32 lane = 0; lane < kWarpThreads; ++lane) any |= all[lane][0];
  return any != 0;
#endif
}

// (warp) Combines one value of each of `size` adjacent lanes, a power of two; all of them get the
// result. `f` is associative and commutative. The order is fixed.
template <typename T, typename F>
RESIDENT_DEVICE T CombineLanes(T value, F f, u32 size = kWarpThreads) {
  RESIDENT_UNROLL(1)
  for (u32 mask = size / 2; mask > 0; mask /= 2) value = f(value, ShuffleXor(value, mask));
  return value;
}

#endif  // RESIDENT_WARPS

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_WARP_H_
