// Blocks of several threads on the host, for tests of operators: the code that a GPU's threads
// share runs with real threads, barriers and shared memory, also under ThreadSanitizer.
//
//   emulated::RunBlock(threads, [&] { function(state); });
//
// Thread safety: one block at a time in a process.
#ifndef RESIDENT_KERNELS_SDK_EMULATED_BLOCK_H_
#define RESIDENT_KERNELS_SDK_EMULATED_BLOCK_H_

#include <algorithm>
#include <barrier>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace resident::emulated {

inline constexpr unsigned kWarpThreads = 32;

struct State {
  thread_local static inline unsigned thread = 0;
  static inline std::unique_ptr<std::barrier<>> barrier;
  static inline std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
  // Called in the first Block::await_inputs() of each block, when all threads have come; returns
  // its result. Null: the inputs are ready.
  static inline std::function<bool()> await_inputs;
  static inline bool awaited = false;
  static inline bool inputs_ready = true;
};

inline unsigned CurrentThread() { return State::thread; }
inline void Barrier() { State::barrier->arrive_and_wait(); }
// Waits for the threads of the calling thread's warp.
inline void WarpBarrier() { State::warp_barriers[State::thread / kWarpThreads]->arrive_and_wait(); }

inline bool AwaitInputs() {
  if (!State::await_inputs) return true;
  Barrier();
  if (State::thread == 0 && !State::awaited) {
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

// Calls `run` in each of the block's threads, and returns when all have returned.
inline void RunBlock(unsigned threads, const std::function<void()>& run) {
  State::barrier = std::make_unique<std::barrier<>>(threads);
  State::warp_barriers.clear();
  State::awaited = false;
  for (unsigned first = 0; first < threads; first += kWarpThreads) {
    State::warp_barriers.push_back(
        std::make_unique<std::barrier<>>(std::min(kWarpThreads, threads - first)));
  }
  std::vector<std::thread> all;
  for (unsigned thread = 0; thread < threads; ++thread) {
    all.emplace_back([thread, &run] {
      State::thread = thread;
      run();
    });
  }
  for (std::thread& thread : all) thread.join();
}

}  // namespace resident::emulated

#endif  // RESIDENT_KERNELS_SDK_EMULATED_BLOCK_H_
