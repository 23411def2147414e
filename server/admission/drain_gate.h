// DrainGate: counts the tasks that the daemon has accepted and not yet answered, and refuses new
// ones once it drains.
//
//   open ──Close──▶ draining (permanently)
//
// Thread safety: all members may be called from any thread, those of an Entry by one thread at a
// time.
//
//   ASSIGN_OR_RETURN(entry_, gate.Enter(1));
#ifndef RESIDENT_SERVER_ADMISSION_DRAIN_GATE_H_
#define RESIDENT_SERVER_ADMISSION_DRAIN_GATE_H_

#include <cassert>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/base/errors/daemon_errors.h"

namespace resident {

class DrainGate {
 public:
  // Accepted tasks, which count as answered when this is cleared or destroyed. REQUIRES: the gate
  // outlives it.
  class Entry {
   public:
    Entry() = default;
    ~Entry() { Clear(); }
    Entry(Entry&& other) noexcept { *this = std::move(other); }
    Entry& operator=(Entry&& other) noexcept {
      if (this == &other) return *this;
      Clear();
      gate_ = std::exchange(other.gate_, nullptr);
      tasks_ = other.tasks_;
      return *this;
    }

    // Whether it has tasks that do not yet count as answered.
    bool entered() const { return gate_ != nullptr; }
    void Clear() {
      if (gate_ != nullptr) std::exchange(gate_, nullptr)->Leave(tasks_);
    }

   private:
    friend class DrainGate;
    Entry(DrainGate* gate, uint64_t tasks) : gate_(gate), tasks_(tasks) {}

    DrainGate* gate_ = nullptr;  // Null: none.
    uint64_t tasks_ = 0;
  };

  DrainGate() = default;
  // REQUIRES: no task is left.
  ~DrainGate() { assert(tasks_ == 0); }
  DrainGate(const DrainGate&) = delete;
  DrainGate& operator=(const DrainGate&) = delete;

  // Accepts `tasks` more. UNAVAILABLE: the daemon drains.
  absl::StatusOr<Entry> Enter(uint64_t tasks) {
    absl::MutexLock lock(&mu_);
    if (draining_) return errors::Draining();
    tasks_ += tasks;
    return Entry(this, tasks);
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
  void Leave(uint64_t tasks) {
    absl::MutexLock lock(&mu_);
    assert(tasks <= tasks_);
    tasks_ -= tasks;
  }
  bool Empty() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return tasks_ == 0; }

  mutable absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t tasks_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ADMISSION_DRAIN_GATE_H_
