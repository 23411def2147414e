// GenerationChange: one change of generation of an engine whose kernel is on the device,
// as the supervisor carries it out. The generation has been staged.
//
//                     ┌────────────── did not drain: submission goes on ──────────┐
//                     ▼                                                           │
//   arming ──armed──▶ waiting ──nothing runs long──▶ holding ──drained──▶ parked ─┼─▶ done
//      │                │                                                         │
//      └────────────────┴── deadline, or the engine refuses: failed               └─▶ lost
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

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

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

  static constexpr std::chrono::milliseconds kShortestHold{2};
  static constexpr int kHoldShare = 8;

  // `change` is above the numbers of all former changes of this engine, `generation` the
  // number of what is staged. Both references outlive the object.
  GenerationChange(EngineProcess& engine, DeviceQueue& queue, uint64_t change, uint64_t generation,
                   std::chrono::milliseconds park_deadline);
  // Withdraws a change that is not done and waits for the engine's answer; an engine that
  // gives none is killed, since the device is done with it then.
  ~GenerationChange();
  GenerationChange(const GenerationChange&) = delete;
  GenerationChange& operator=(const GenerationChange&) = delete;

  Progress Step();
  Clock::time_point next_step() const { return next_step_; }

  // What came of it: OK, or the errors of Device::LoadGeneration; of a change that was
  // lost, what the engine said.
  const absl::Status& result() const { return result_; }
  // From the hold to the first submission after it; of a change that was parked for.
  std::chrono::nanoseconds pause() const { return pause_; }
  // What the engine took of it.
  const SwitchTimes& times() const { return times_; }

 private:
  void CallEngine();
  Progress Finish(absl::Status result);
  // Stops submitting and waits for what is in flight; whether the marker is published.
  bool HoldAndPark(std::chrono::nanoseconds most);
  // From the marker to the kernel's return.
  Progress AwaitKernel();
  absl::Status DeadlineError() const;

  EngineProcess& engine_;
  DeviceQueue& queue_;
  SwitchSignals signals_;
  const uint64_t change_;
  const uint64_t generation_;
  const std::chrono::milliseconds park_deadline_;
  const Clock::time_point began_;
  Clock::time_point next_step_;
  Clock::time_point next_hold_;
  Clock::time_point hold_began_;
  absl::Status result_;
  std::chrono::nanoseconds pause_{0};
  SwitchTimes times_;

  // The call to the engine, which lasts as long as the change.
  std::thread call_;
  std::atomic<bool> answered_{false};
  absl::StatusOr<SwitchTimes> answer_;  // Written by `call_` before `answered_`.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_GENERATION_CHANGE_H_
