// Doorbell: wakes threads of another process that sleep because the ring has nothing for them.
//
//   waiter                                        ringer
//   const uint32_t seen = bell.BeginWait();       makes work visible
//   if (there is no work) bell.Wait(seen);        bell.Ring();
//   bell.EndWait();
//
// Invariant: a waiter that looks for work after BeginWait finds it, or is woken. Both sides are
// sequentially consistent: the waiter counts itself and then looks, the ringer makes work visible
// and then reads the count, so at least one of them sees the other. Where nobody waits, a ringer
// writes nothing.
//
// Thread safety: any thread of any process that has the region mapped. The control block outlives
// the object.
#ifndef RESIDENT_RUNTIME_RING_DOORBELL_H_
#define RESIDENT_RUNTIME_RING_DOORBELL_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "kernels/layout/ring_layout.h"

namespace resident {

class Doorbell {
 public:
  // Rung after publications; CPU workers wait. (A GPU's blocks poll.)
  static Doorbell ForWorkers(ControlBlock* control) {
    return Doorbell(&control->doorbell, &control->sleepers);
  }
  // Rung after completions by the CPU engine; the front end waits. (A GPU cannot ring: give the
  // wait a timeout.)
  static Doorbell ForCompletions(ControlBlock* control) {
    return Doorbell(&control->completion_event, &control->completion_waiters);
  }

  // Counts the caller as a waiter. Returns what Wait compares with.
  uint32_t BeginWait();
  // Sleeps until Ring, if it was not called since `seen` was read. Returns the new value. May
  // return early.
  uint32_t Wait(uint32_t seen, std::optional<std::chrono::nanoseconds> timeout = std::nullopt);
  void EndWait();

  // Wakes all waiters, if there are any.
  void Ring();

 private:
  Doorbell(u32* event, u32* waiters) : event_(event), waiters_(waiters) {}

  u32* event_;
  u32* waiters_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_RING_DOORBELL_H_
