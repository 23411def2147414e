// The emulated block itself: what it finds in code that breaks the rules of a block.
#include "kernels/sdk/emulated_block.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <numeric>

namespace resident::emulated {
namespace {

constexpr unsigned kThreads = RESIDENT_EMULATED_THREADS;

struct Counted {
  ~Counted() { ++destroyed.at(CurrentThread()); }
  unsigned value = 0;
  static inline std::array<unsigned, kThreads> destroyed{};
};

TEST(EmulatedBlockTest, ThreadsSeeWhatOthersWroteBeforeABarrier) {
  std::array<unsigned, kThreads> values;
  for (unsigned round = 0; round < 100; ++round) {
    values.fill(0);
    RunBlock(kThreads, [&] {
      const unsigned thread = CurrentThread();
      for (unsigned shift = 1; shift < 10; ++shift) {
        values[thread] = thread * shift;
        Barrier();
        const unsigned other = (thread + shift) % kThreads;
        EXPECT_EQ(values[other], other * shift);
        Barrier();
      }
    });
  }
}

TEST(EmulatedBlockTest, AWarpWaitsForItsOwnThreadsOnly) {
  std::array<unsigned, kThreads> values{};
  RunBlock(kThreads, [&] {
    const unsigned thread = CurrentThread();
    const unsigned warp = thread / kWarpThreads;
    for (unsigned i = 0; i < warp; ++i) {  // Each warp another number of times.
      values[thread] += 1;
      WarpBarrier();
      EXPECT_EQ(values[warp * kWarpThreads + (thread + 1) % kWarpThreads], i + 1);
      WarpBarrier();
    }
  });
}

// A smaller block than the one before, and then a larger one.
TEST(EmulatedBlockTest, BlocksOfAnySize) {
  for (const unsigned threads : {kThreads, 1u, 33u, 64u, kThreads}) {
    unsigned sum = 0;
    std::array<unsigned, kThreads> values{};
    RunBlock(threads, [&] {
      values[CurrentThread()] = CurrentThread();
      Barrier();
      if (CurrentThread() == 0) sum = std::accumulate(values.begin(), values.end(), 0u);
    });
    EXPECT_EQ(sum, threads * (threads - 1) / 2);
  }
}

TEST(EmulatedBlockTest, LocalObjectsLiveUntilTheirThreadReturns) {
  for (unsigned block = 1; block <= 3; ++block) {
    RunBlock(kThreads, [&] {
      EXPECT_EQ(State::threads.Local<Counted>().value, 0u);
      State::threads.Local<Counted>().value = CurrentThread();
      Barrier();
      EXPECT_EQ(State::threads.Local<Counted>().value, CurrentThread());
    });
    for (const unsigned destroyed : Counted::destroyed) EXPECT_EQ(destroyed, block);
  }
}

TEST(EmulatedBlockDeathTest, ABarrierThatAThreadDoesNotReachIsReported) {
  EXPECT_DEATH(RunBlock(kThreads,
                        [] {
                          if (CurrentThread() != 7) Barrier();
                        }),
               "waits at a barrier that others will not reach");
}

// Each thread reads what its neighbour writes in the same step. Returns how many read too early.
unsigned RunWithoutBarrier() {
  std::array<unsigned, kThreads> values{};
  std::array<unsigned, kThreads> early{};
  RunBlock(kThreads, [&] {
    const unsigned thread = CurrentThread();
    values[thread] = 1;
    early[thread] = values[(thread + 1) % kThreads] == 0;
  });
  return std::accumulate(early.begin(), early.end(), 0u);
}

#if RESIDENT_THREAD_SANITIZER

// What a thread has read is overwritten when the barrier before is reached by its warp only.
void RunWithoutSecondBarrier() {
  std::array<unsigned, kThreads> values{};
  RunBlock(kThreads, [&] {
    const unsigned thread = CurrentThread();
    for (unsigned round = 0; round < 4; ++round) {
      values[thread] = round;
      Barrier();
      if (values[(thread + 1) % kThreads] > round + 1) std::abort();
      WarpBarrier();
    }
  });
}

// ThreadSanitizer ends a process with a status of its own if it has reported anything.
TEST(EmulatedBlockDeathTest, AMissingBarrierIsReported) {
  EXPECT_EXIT((RunWithoutBarrier(), std::exit(0)), ::testing::ExitedWithCode(66), "data race");
}
TEST(EmulatedBlockDeathTest, AMissingSecondBarrierIsReported) {
  EXPECT_EXIT((RunWithoutSecondBarrier(), std::exit(0)), ::testing::ExitedWithCode(66),
              "data race");
}

#else

// Threads run in an order that is not that of their numbers, nor its reverse.
TEST(EmulatedBlockTest, AMissingBarrierGivesWrongResults) {
  const unsigned early = RunWithoutBarrier();
  EXPECT_GT(early, kThreads / 8);
  EXPECT_LT(early, kThreads - kThreads / 8);
}

#endif

}  // namespace
}  // namespace resident::emulated
