// DrainGate: counts the tasks that the daemon has accepted and not yet answered, and refuses new
// ones once it drains.
//
//   open ──Close──▶ draining (permanently)
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_ADMISSION_DRAIN_GATE_H_
#define RESIDENT_SERVER_ADMISSION_DRAIN_GATE_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace resident {

class DrainGate {
 public:
  // Accepts `tasks` more and returns true, unless the daemon drains. Leave(tasks) must follow once
  // they are answered.
  bool Enter(uint64_t tasks) {
    absl::MutexLock lock(&mu_);
    if (draining_) return false;
    tasks_ += tasks;
    return true;
  }
  void Leave(uint64_t tasks) {
    absl::MutexLock lock(&mu_);
    tasks_ -= tasks;
  }

  void Close() {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  bool draining() const {
    absl::ReaderMutexLock lock(&mu_);
    return draining_;
  }

  // Waits until no task is left, at most until `deadline`. Returns the number of tasks left.
  uint64_t AwaitEmpty(absl::Time deadline) const {
    absl::ReaderMutexLock lock(&mu_);
    mu_.AwaitWithDeadline(absl::Condition(this, &DrainGate::Empty), deadline);
    return tasks_;
  }

 private:
  bool Empty() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return tasks_ == 0; }

  mutable absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t tasks_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ADMISSION_DRAIN_GATE_H_
