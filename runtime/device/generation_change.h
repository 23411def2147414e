// GenerationChange: one change of generation of an engine whose kernel is on the device,
// executed by the supervisor. The generation has been preloaded.
//
//                      ┌── did not drain: submission resumes ──┐
//                      ▼                                       │
//   arming ──armed──▶ waiting ──nothing runs long──▶ holding ──┴─drained──▶ parked ─┬▶ answering
//      │                │                                                          │     │
//      └────────────────┴─ deadline, or the engine refuses ─▶ withdrawing ─▶ done ◀─┼─────┘
//                                                                  └────────▶ lost ◀┘
//
// No Step takes longer than kLongestStep, whatever the engine does, so that the supervisor can
// notice between steps that the engine has stopped.
//
// A park marker in the ring cannot be withdrawn, and nothing may be submitted after it.
// Therefore the marker is published only when nothing is in flight, so that a long task delays
// the change and not other tasks. The change holds submission for a short time. If the running
// tasks do not end within it, submission continues and the change tries again later. A hold may
// take an eighth of the time that the change has waited, and at least kShortestHold; so the
// change succeeds with tasks of any length below an eighth of the deadline. While a task has
// already run for longer than the hold would take, there is no hold. After a failed hold, the
// next one begins eight times its length later. So submission is stopped for at most about an
// eighth of the time while a change waits, in pieces of at most an eighth of the deadline.
//
// Thread safety: one thread, which calls Step until it does not return kWaiting.
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
    kDone,     // See result(). The kernel is on the device, and tasks are submitted.
    kLost,     // The kernel has returned and was not launched: the engine must be terminated.
  };

  static constexpr std::chrono::milliseconds kLongestStep{50};
  static constexpr std::chrono::milliseconds kShortestHold{2};
  static constexpr int kHoldShare = 8;

  // `change` is above the numbers of all earlier changes of this engine; `generation` is the
  // number of the preloaded generation. The queue outlives the object; the engine is used only in
  // the constructor.
  GenerationChange(EngineProcess& engine, DeviceQueue& queue, uint64_t change, uint64_t generation,
                   std::chrono::milliseconds park_deadline);
  // Withdraws a change that is not done, without waiting for the engine, because then the engine is
  // about to be terminated.
  ~GenerationChange();
  GenerationChange(const GenerationChange&) = delete;
  GenerationChange& operator=(const GenerationChange&) = delete;

  // After it has returned another value than kWaiting, it always returns that value.
  Progress Step();
  Clock::time_point next_step() const { return next_step_; }

  // The result: OK, or the errors of DeviceControl::LoadGeneration; after kLost the engine's error.
  const absl::Status& result() const { return result_; }
  // Time from the hold to the first submission after it; 0 if the kernel was not parked.
  std::chrono::nanoseconds pause() const { return pause_; }
  // The engine's part of it.
  const SwitchTimes& times() const { return times_; }

 private:
  enum class Phase : uint8_t {
    kWaiting,      // Waits until the engine is ready, then until a hold may begin.
    kHolding,      // Nothing is submitted; waits for tasks in flight.
    kParked,       // From the marker until the kernel runs again.
    kAnswering,    // The kernel runs; waits for the response to the call.
    kWithdrawing,  // `result_` is final; waits for the response to the call.
    kEnded,        // See `end_`.
  };

  Progress StepWaiting();
  Progress StepHolding();
  Progress StepParked();
  Progress StepAnswering();
  Progress StepWithdrawing();
  // Gives up with this result.
  Progress Withdraw(absl::Status result);
  Progress End(Progress how, absl::Status result);
  // Returns to the supervisor, which calls Step again at once.
  Progress Yield();
  void Enter(Phase phase);
  // Ends the hold, so that submission continues.
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
  std::chrono::nanoseconds hold_{0};  // How long the current hold may take.
  Phase phase_ = Phase::kWaiting;
  Clock::time_point phase_began_;
  Progress end_ = Progress::kWaiting;
  absl::Status result_;
  std::chrono::nanoseconds pause_{0};
  SwitchTimes times_;

  const std::unique_ptr<EngineCall> call_;  // The Switch call, which lasts as long as the change.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_GENERATION_CHANGE_H_
