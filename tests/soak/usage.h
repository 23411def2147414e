// Usage: what a daemon's process uses, before and after a soak.
//
// Thread safety: functions without state.
//
//   const Usage before = MeasureUsage(daemon);
//   ... the soak ...
//   if (!AwaitUsage(daemon, before, &after)) ...
#ifndef RESIDENT_TESTS_SOAK_USAGE_H_
#define RESIDENT_TESTS_SOAK_USAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/daemon/daemon.h"

namespace resident::soak {

struct Usage {
  size_t descriptors = 0;
  // What each refers to, such as "5 anon_inode:[eventfd]"; of a TCP connection that has ended,
  // which the daemon has not closed, with "ended". Empty: they are not visible.
  std::vector<std::string> links;
  std::string left_over;  // Leftover processes; empty if there are none.
  uint64_t memory_bytes = 0;
};

Usage MeasureUsage(const testing::Daemon& daemon);
// "31 descriptors, 120 MiB".
std::string Text(const Usage& usage);
// The descriptors of `after` that `before` does not have, as a list.
std::string NewDescriptors(const Usage& before, const Usage& after);

// Waits until the compilers of the first install are idle and nothing else is left of it. Returns
// false, and describes in `why` what is, if that takes too long.
bool AwaitIdleCompilers(const testing::Daemon& daemon, std::string* why);

// Waits until the daemon uses no more than before, except for some memory in its caches. `after`:
// what it uses in the end.
bool AwaitUsage(const testing::Daemon& daemon, const Usage& before, Usage* after);

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_USAGE_H_
