// Turns off Abseil's search for deadlocks, for programs whose threads acquire many mutexes.
//
//   int main() { resident::DisableDeadlockSearch(); ... }
#ifndef RESIDENT_RUNTIME_BASE_MUTEX_CHECKS_H_
#define RESIDENT_RUNTIME_BASE_MUTEX_CHECKS_H_

#include "absl/synchronization/mutex.h"

namespace resident {

// Debian's Abseil is compiled with assertions: each mutex that is acquired is looked up in a graph
// of the order of acquisitions, under one lock of all threads. On 16 cores a daemon without the
// search takes 1.27 to 1.45 times as many batches of 1,024 tasks (bench_daemon). Builds with
// assertions, such as those of the sanitizers, keep it. Called before threads are started.
inline void DisableDeadlockSearch() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_MUTEX_CHECKS_H_
