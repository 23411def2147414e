// Doorbell: wakes threads, also of another process, that sleep because the ring has no work for
// them.
//
//   waiter                                        ringer
//   const uint32_t seen = bell.BeginWait();       makes work visible
//   if (there is no work) bell.Wait(seen);        bell.Ring();
//   bell.EndWait();
//
// Invariant: a waiter that checks for work after BeginWait finds it, or is woken. Both sides use
// sequential consistency: the waiter increments the number of waiters and then checks for work;
// the ringer makes work visible and then reads that number. So at least one of them sees the
// other. Without waiters, a ringer writes nothing.
//
// Thread safety: any thread of any process that has the region mapped. The control block must
// outlive the object.
#ifndef RESIDENT_RUNTIME_RING_DOORBELL_H_
#define RESIDENT_RUNTIME_RING_DOORBELL_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "kernels/layout/ring_layout.h"

namespace resident {

class Doorbell {
 public:
  // Rung by the front end after publications; CPU workers wait. (The blocks of a GPU poll.)
  static Doorbell ForWorkers(ControlBlock* control) {
    return Doorbell(&control->doorbell, &control->sleepers);
  }
  // Rung by the CPU engine after completions; the front end waits. (A GPU cannot ring it, so the
  // wait needs a timeout.)
  static Doorbell ForCompletions(ControlBlock* control) {
    return Doorbell(&control->completion_event, &control->completion_waiters);
  }

  // Registers the caller as a waiter. Returns the value to pass to Wait.
  uint32_t BeginWait();
  // Sleeps until Ring is called, unless it was called since `seen` was read. Returns the new
  // value. May return early.
  uint32_t Wait(uint32_t seen, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  void EndWait();

  // Wakes all waiters, if there are any.
  void Ring();
  // The same, and wakes also those who sleep on the event without BeginWait, so that Ring does not
  // wake them: a GPU's engine sleeps so until there is a quantum of a graph.
  void RingForAll();

 private:
  Doorbell(u32* event, u32* waiters) : event_(event), waiters_(waiters) {}

  u32* event_;
  u32* waiters_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_RING_DOORBELL_H_
