// CompletionAlarm: lets a thread sleep until an engine completes something.
//
// From Set() on, the CPU engine raises completion_event with each completion; Await()
// returns if it was raised since Set() or the last Await(). A GPU raises nothing: give the
// wait a bound. Not for waiting for one task: see Batch::done.
//
// Thread safety: one thread at a time; the engine on the other side at any time.
//
// Memory ordering: a completion that raised nothing because it saw no waiter was written
// before Set() returned (both sides are sequentially consistent about completion_waiters),
// so that a look at the ring after Set() finds it.
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

  // Asks for the alarms of a ring; of none if it is null.
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
