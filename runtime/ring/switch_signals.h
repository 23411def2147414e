// SwitchSignals: words in shared memory with which the front end and the engine coordinate
// a change of generation, so that the pause does not include the latency of an RPC.
//
//   front end                                     engine (in Engine::Switch)
//   calls Switch(n) ─────────────────────────────▶ Arm(n): is ready
//   sees armed(n); stops submitting; Hold(n) ────▶ sees held(n): polls without a pause
//   waits for the tasks in flight
//     drained: publishes the marker                kernel leaves; load; launch
//     sees ended(n); submits again  ◀───────────── End(n, generation)
//     not drained: Hold(0); submits again, tries
//     later, or cancels:  Withdraw(n) ───────────▶ sees withdrawn(n): Switch is CANCELLED
//
// The response of the call follows later, with the details.
//
// Invariants:
//   1. n increases by one with each change of one engine. Each word except `held` never
//      decreases.
//   2. After the marker the front end does not withdraw, and submits nothing until
//      ended(n).
//   3. End(n) follows a launch of the new generation, or of the previous one if the new
//      one could not be loaded. An engine that can launch neither does not end the change;
//      the call returns an error, and the engine is replaced.
//
// Thread safety: the members of each side may be called from one thread at a time.
//
// Memory ordering: what the engine wrote before Arm or End is visible to a front end that
// has seen armed() or ended(). What the front end wrote before Hold or Withdraw is visible
// to an engine that has seen held() or withdrawn().
#ifndef RESIDENT_RUNTIME_RING_SWITCH_SIGNALS_H_
#define RESIDENT_RUNTIME_RING_SWITCH_SIGNALS_H_

#include <atomic>
#include <cstdint>

#include "kernels/layout/ring_layout.h"

namespace resident {

class SwitchSignals {
 public:
  // `control` must outlive the object.
  explicit SwitchSignals(ControlBlock* control) : control_(control) {}

  // The engine's side.
  void Arm(uint64_t change) { Store(control_->switch_armed, change); }
  void End(uint64_t change, uint64_t generation) {
    Store(control_->generation, generation);
    Store(control_->switch_ended, change);
  }
  bool held(uint64_t change) const { return Load(control_->switch_held) == change; }
  bool withdrawn(uint64_t change) const { return Load(control_->switch_withdrawn) >= change; }

  // The front end's side.
  void Hold(uint64_t change) { Store(control_->switch_held, change); }
  void Withdraw(uint64_t change) { Store(control_->switch_withdrawn, change); }
  bool armed(uint64_t change) const { return Load(control_->switch_armed) >= change; }
  bool ended(uint64_t change) const { return Load(control_->switch_ended) >= change; }
  // The running generation. Valid once a change has ended.
  uint64_t generation() const { return Load(control_->generation); }

 private:
  static void Store(u64& word, uint64_t value) {
    std::atomic_ref<u64>(word).store(value, std::memory_order_release);
  }
  static uint64_t Load(u64& word) {
    return std::atomic_ref<u64>(word).load(std::memory_order_acquire);
  }

  ControlBlock* const control_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_RING_SWITCH_SIGNALS_H_
