// SmallTasks: a client that runs batches of small tasks at full speed. Each task adds 1 to a number
// of its own, in memory that the client shares with the daemon, so that a task that was lost or
// executed twice is visible. Batches have 1 to 1,024 tasks, so that some are lone tasks and others
// run as ranges.
//
// Thread safety: the constructor starts a thread. done() may be called from any thread, Finish
// once.
#ifndef RESIDENT_TESTS_SOAK_SMALL_TASKS_H_
#define RESIDENT_TESTS_SOAK_SMALL_TASKS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include "tests/daemon/client.h"
#include "tests/daemon/daemon.h"
#include "tests/soak/findings.h"
#include "tests/soak/timeline.h"

namespace resident::soak {

class SmallTasks {
 public:
  struct World {
    const testing::Daemon* daemon;
    const Timeline* timeline;
    Findings* findings;
  };

  // Runs tasks until Finish.
  SmallTasks(const World& world, uint64_t seed);
  void Finish();

  // Tasks that ended OK.
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // The longest time that a batch of one task took which no disturbance delayed.
  std::chrono::milliseconds slowest_lone_task() const {
    return std::chrono::milliseconds(slowest_lone_ms_.load(std::memory_order_relaxed));
  }

 private:
  void RunUntilStopped();
  // Until the memory is used up, or the client is stopped.
  void RunInOneSession();
  void Check(const testing::RunOutcome& outcome, const testing::Counters& counters, uint32_t first,
             uint32_t count, const Span& span);

  const World world_;
  std::mt19937_64 random_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> done_{0};
  std::atomic<int64_t> slowest_lone_ms_{0};
  std::thread thread_;  // Uses all members above.
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_SMALL_TASKS_H_
