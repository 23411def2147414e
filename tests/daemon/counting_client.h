// Work of another client, which a fault must not disturb.
//
// Thread safety: one thread; the work is done in another.
//
//   const CountingClient others(daemon);
//   ... something fails ...
//   EXPECT_TRUE(others.KeepsRunning());
//   EXPECT_EQ(others.interruptions(), 0u);
#ifndef RESIDENT_TESTS_DAEMON_COUNTING_CLIENT_H_
#define RESIDENT_TESTS_DAEMON_COUNTING_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <thread>

#include "tests/daemon/daemon.h"

namespace resident::testing {

// A client that runs counting tasks continuously, in its own thread, and checks each batch:
// a task that is OK has run exactly once, each other one at most once. A batch that is not
// OK counts as an interruption, after which it continues with a new session.
class CountingClient {
 public:
  // Returns once a batch was OK.
  explicit CountingClient(const Daemon& daemon);
  ~CountingClient();
  CountingClient(const CountingClient&) = delete;
  CountingClient& operator=(const CountingClient&) = delete;

  // Waits until two more batches were OK, so that the second began after this call.
  bool KeepsRunning() const;
  // Batches that were not OK.
  uint64_t interruptions() const { return interruptions_; }
  uint64_t batches() const { return batches_; }

 private:
  void CountUntilStopped();
  // Counts until it is interrupted or stopped.
  void CountInOneSession();

  const Daemon& daemon_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> batches_{0};
  std::atomic<uint64_t> interruptions_{0};
  std::thread thread_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_COUNTING_CLIENT_H_
