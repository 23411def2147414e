// Blocks of several threads on the host, for tests of operators: the code that a GPU's threads
// share runs with threads, barriers and shared memory, also under ThreadSanitizer. The threads are
// contexts of the calling one (emulated_threads.h).
//
//   emulated::RunBlock(threads, [&] { function(state); });
//
// Thread safety: one block at a time in a process.
#ifndef RESIDENT_KERNELS_SDK_EMULATED_BLOCK_H_
#define RESIDENT_KERNELS_SDK_EMULATED_BLOCK_H_

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/sdk/emulated_threads.h"

namespace resident::emulated {

inline constexpr unsigned kWarpThreads = 32;

using BlockThreads = Threads<RESIDENT_EMULATED_THREADS>;

struct State {
  static inline BlockThreads threads;
  static inline BlockThreads::Group block;
  static inline std::vector<BlockThreads::Group> warps;
  // Called in the first Block::await_inputs() of each block, when all threads have come; returns
  // its result. Null: the inputs are ready.
  static inline std::function<bool()> await_inputs;
  static inline bool awaited = false;
  static inline bool inputs_ready = true;
};

inline unsigned CurrentThread() { return State::threads.current(); }
inline void Barrier() { State::threads.Wait(State::block); }
// Waits for the threads of the calling thread's warp.
inline void WarpBarrier() { State::threads.Wait(State::warps[CurrentThread() / kWarpThreads]); }

inline bool AwaitInputs() {
  if (!State::await_inputs) return true;
  Barrier();
  if (CurrentThread() == 0 && !State::awaited) {
    State::inputs_ready = State::await_inputs();
    State::awaited = true;
  }
  Barrier();
  return State::inputs_ready;
}

// What the threads of a reduction exchange. (A GPU's threads first combine their values in warps.)
struct ReduceMemory {
  static inline unsigned long long words[RESIDENT_EMULATED_THREADS];
};

// Calls `run` in each of the block's threads, and returns when all have returned. `threads`: at
// most RESIDENT_EMULATED_THREADS. Aborts if a thread waits for one that has returned.
inline void RunBlock(unsigned threads, const std::function<void()>& run) {
  State::block = {0, threads};
  State::warps.clear();
  State::awaited = false;
  for (unsigned first = 0; first < threads; first += kWarpThreads) {
    State::warps.push_back({first, std::min(kWarpThreads, threads - first)});
  }
  State::threads.Run(threads, run);
}

}  // namespace resident::emulated

#endif  // RESIDENT_KERNELS_SDK_EMULATED_BLOCK_H_
