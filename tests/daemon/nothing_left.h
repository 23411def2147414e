// Checks that a fault, or work, leaves no resources in use and that the daemon serves.
//
// Thread safety: one thread.
//
//   const Baseline before(daemon);
//   {
//     ... clients connect, a fault occurs ...
//   }
//   ExpectNothingLeft(daemon, before);
#ifndef RESIDENT_TESTS_DAEMON_NOTHING_LEFT_H_
#define RESIDENT_TESTS_DAEMON_NOTHING_LEFT_H_

#include <cstddef>
#include <cstdint>

#include "tests/daemon/daemon.h"

namespace resident::testing {

// The resources of an idle daemon without clients.
struct Baseline {
  // Runs some tasks, so that objects that are created on first use exist, and waits until
  // the daemon is idle. REQUIRES: there are no clients.
  explicit Baseline(const Daemon& daemon);

  size_t threads = 0;
  size_t descriptors = 0;
  uint64_t buffers = 0;
  uint64_t memory_used_bytes = 0;
};

// Waits until the daemon is idle again and uses no more than before: threads, descriptors,
// processes, buffers, and no staging memory. REQUIRES: there are no clients.
void ExpectNothingLeft(const Daemon& daemon, const Baseline& before);

// Runs a batch of tasks on the first device and checks that each ran once.
void ExpectServes(const Daemon& daemon);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_NOTHING_LEFT_H_
