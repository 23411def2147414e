#include "runtime/ring/doorbell.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace resident {
namespace {

TEST(DoorbellTest, RingWritesNothingWithoutWaiters) {
  ControlBlock control{};
  Doorbell::ForWorkers(&control).Ring();
  Doorbell::ForCompletions(&control).Ring();
  EXPECT_EQ(control.doorbell, 0u);
  EXPECT_EQ(control.completion_event, 0u);
}

TEST(DoorbellTest, ARingBetweenTheCheckAndTheSleepEndsTheSleep) {
  ControlBlock control{};
  Doorbell bell = Doorbell::ForWorkers(&control);
  const uint32_t seen = bell.BeginWait();
  bell.Ring();
  EXPECT_NE(bell.Wait(seen), seen);  // If it slept, no thread would wake it.
  bell.EndWait();
  EXPECT_EQ(control.sleepers, 0u);
}

TEST(DoorbellTest, AWaitEndsAtItsTimeout) {
  ControlBlock control{};
  Doorbell bell = Doorbell::ForCompletions(&control);
  const uint32_t seen = bell.BeginWait();
  EXPECT_EQ(bell.Wait(seen, std::chrono::milliseconds(1)), seen);
  bell.EndWait();
}

// Each side waits for the other's step: a lost wake-up would hang the test.
TEST(DoorbellTest, NoWakeUpIsLost) {
  ControlBlock control{};
  std::atomic<int> step{0};
  constexpr int kSteps = 20'000;
  const auto run_steps = [&](Doorbell mine, Doorbell other, int parity) {
    for (int next = parity; next < kSteps; next += 2) {
      while (step.load() != next) {
        const uint32_t seen = mine.BeginWait();
        if (step.load() != next) mine.Wait(seen);
        mine.EndWait();
      }
      step.store(next + 1);
      other.Ring();
    }
  };
  std::thread thread(run_steps, Doorbell::ForWorkers(&control), Doorbell::ForCompletions(&control),
                     0);
  run_steps(Doorbell::ForCompletions(&control), Doorbell::ForWorkers(&control), 1);
  thread.join();
  EXPECT_EQ(step.load(), kSteps);
}

}  // namespace
}  // namespace resident
