// CompletionAlarm: lets a thread sleep until an engine completes something.
//
// After Set(), the CPU engine increments completion_event with each completion; Await()
// returns if it was incremented since Set() or the last Await(). A GPU does not increment it,
// so Await() needs a timeout. To wait for one task, use Batch::done.
//
// Thread safety: one thread at a time; the engine may complete tasks at any time.
//
// Memory ordering: a completion that did not increment the event because the engine saw no
// waiter was written before Set() returned (both sides access completion_waiters with
// sequential consistency), so a read of the ring after Set() finds it.
//
//   alarm.Set(ring);
//   if (nothing has completed) alarm.Await(timeout);
#ifndef RESIDENT_RUNTIME_QUEUE_COMPLETION_ALARM_H_
#define RESIDENT_RUNTIME_QUEUE_COMPLETION_ALARM_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "runtime/ring/doorbell.h"
#include "runtime/ring/host_ring.h"

namespace resident {

class CompletionAlarm {
 public:
  CompletionAlarm() = default;
  ~CompletionAlarm() { Clear(); }
  CompletionAlarm(const CompletionAlarm&) = delete;
  CompletionAlarm& operator=(const CompletionAlarm&) = delete;

  // Registers as a waiter for completions in `ring`. Null: the same as Clear().
  void Set(const std::shared_ptr<HostRing>& ring);
  void Clear();
  bool is_set() const { return ring_ != nullptr; }

  void Await(std::chrono::nanoseconds timeout);

 private:
  Doorbell bell() const { return Doorbell::ForCompletions(ring_->region().control()); }

  std::shared_ptr<HostRing> ring_;  // Keeps the region mapped.
  uint32_t seen_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_COMPLETION_ALARM_H_
