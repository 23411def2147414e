// GenerationChange: one change of generation of an engine whose kernel is on the device,
// as the supervisor carries it out. The generation has been preloaded.
//
//                      ┌── did not drain: submission goes on ──┐
//                      ▼                                       │
//   arming ──armed──▶ waiting ──nothing runs long──▶ holding ──┴─drained──▶ parked ─┬▶ answering
//      │                │                                                          │     │
//      └────────────────┴─ deadline, or the engine refuses ─▶ withdrawing ─▶ done ◀─┼─────┘
//                                                                  └────────▶ lost ◀┘
//
// No Step lasts longer than kLongestStep, whatever the engine does: its supervisor has to notice
// meanwhile that the engine has stopped.
//
// A park marker in the ring cannot be taken back, and nothing may be submitted behind it.
// So that a task that runs long makes the change wait, and not the traffic, the marker is
// published only when nothing is in flight: submission is held back for a moment, and if
// what runs does not end within it, it goes on and the change tries again later. How long
// that moment may be grows with the time that the change has waited: an eighth of it, and
// kShortestHold at least, so that tasks of any length below an eighth of the deadline are
// got through. While a task is seen that has run for longer than the hold would be, there
// is no hold. Holds that fail are as far apart as eight of them are long. So the traffic
// loses at most about an eighth of the time while a change waits, in pieces of at most an
// eighth of the deadline.
//
// Thread safety: one thread, which calls Step until it does not say kWaiting.
#ifndef RESIDENT_RUNTIME_DEVICE_GENERATION_CHANGE_H_
#define RESIDENT_RUNTIME_DEVICE_GENERATION_CHANGE_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/engine_process.h"
#include "runtime/engine/engine.h"
#include "runtime/queue/device_queue.h"
#include "runtime/ring/switch_signals.h"

namespace resident {

class GenerationChange {
 public:
  enum class Progress : uint8_t {
    kWaiting,  // Call Step again at next_step().
    kDone,     // result() says how. The kernel is on the device, and tasks are submitted.
    kLost,     // The kernel has left and did not come back: the engine has to go.
  };

  static constexpr std::chrono::milliseconds kLongestStep{50};
  static constexpr std::chrono::milliseconds kShortestHold{2};
  static constexpr int kHoldShare = 8;

  // `change` is above the numbers of all former changes of this engine, `generation` the
  // number of what is preloaded. The queue outlives the object, and the engine its construction.
  GenerationChange(EngineProcess& engine, DeviceQueue& queue, uint64_t change, uint64_t generation,
                   std::chrono::milliseconds park_deadline);
  // Withdraws a change that is not done, without waiting for the engine: what is destroyed before
  // it is done belongs to an engine that is about to be ended.
  ~GenerationChange();
  GenerationChange(const GenerationChange&) = delete;
  GenerationChange& operator=(const GenerationChange&) = delete;

  // Once it has said something else than kWaiting, it says that again.
  Progress Step();
  Clock::time_point next_step() const { return next_step_; }

  // What came of it: OK, or the errors of DeviceControl::LoadGeneration; of a change that was
  // lost, what the engine said.
  const absl::Status& result() const { return result_; }
  // From the hold to the first submission after it; of a change that was parked for.
  std::chrono::nanoseconds pause() const { return pause_; }
  // What the engine took of it.
  const SwitchTimes& times() const { return times_; }

 private:
  enum class Phase : uint8_t {
    kWaiting,      // For the engine to stand ready, then for a moment to hold.
    kHolding,      // Nothing is submitted; what is in flight is waited for.
    kParked,       // From the marker to the kernel's return.
    kAnswering,    // The kernel is back; the answer to the call has the details.
    kWithdrawing,  // `result_` stands; the engine is to say that it does nothing more.
    kEnded,        // `end_` says how.
  };

  Progress StepWaiting();
  Progress StepHolding();
  Progress StepParked();
  Progress StepAnswering();
  Progress StepWithdrawing();
  // Gives up with this result.
  Progress Withdraw(absl::Status result);
  Progress End(Progress how, absl::Status result);
  // Goes on at once, once the supervisor has looked at the rest.
  Progress Yield();
  void Enter(Phase phase);
  // Nobody waits behind the hold any more; the next try comes later.
  void EndHold();
  absl::Status DeadlineError() const;

  DeviceQueue& queue_;
  SwitchSignals signals_;
  const uint64_t change_;
  const uint64_t generation_;
  const std::chrono::milliseconds park_deadline_;
  const Clock::time_point began_;
  Clock::time_point next_step_;
  Clock::time_point next_hold_;
  Clock::time_point hold_began_;
  std::chrono::nanoseconds hold_{0};  // How long the present hold may take.
  Phase phase_ = Phase::kWaiting;
  Clock::time_point phase_began_;
  Progress end_ = Progress::kWaiting;
  absl::Status result_;
  std::chrono::nanoseconds pause_{0};
  SwitchTimes times_;

  const std::unique_ptr<EngineCall> call_;  // To the engine; lasts as long as the change.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_GENERATION_CHANGE_H_
