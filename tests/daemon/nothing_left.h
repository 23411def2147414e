// What a fault, or work, must leave behind: nothing, and a daemon that serves.
//
// Thread safety: one thread.
//
//   const Baseline before(daemon);
//   {
//     ... clients come, something goes wrong ...
//   }
//   ExpectNothingLeft(daemon, before);
#ifndef RESIDENT_TESTS_DAEMON_NOTHING_LEFT_H_
#define RESIDENT_TESTS_DAEMON_NOTHING_LEFT_H_

#include <cstddef>
#include <cstdint>

#include "tests/daemon/daemon.h"

namespace resident::testing {

// What an idle daemon without clients holds.
struct Baseline {
  // Has some work done, so that what is made at its first use is there, and waits until the
  // daemon is idle. REQUIRES: no client is left.
  explicit Baseline(const Daemon& daemon);

  size_t threads = 0;
  size_t descriptors = 0;
  uint64_t buffers = 0;
  uint64_t memory_used_bytes = 0;
};

// Waits until the daemon is idle again and holds no more than then: threads, descriptors,
// processes, buffers, and no staging memory at all. REQUIRES: no client is left.
void ExpectNothingLeft(const Daemon& daemon, const Baseline& before);

// A batch of tasks on the first device is run, each task once.
void ExpectServes(const Daemon& daemon);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_NOTHING_LEFT_H_
