// SupervisedDevice::Watched: the supervisor's state of the engine that it watches. Included by the
// sources of SupervisedDevice only.
#ifndef RESIDENT_RUNTIME_DEVICE_SUPERVISED_WATCHED_H_
#define RESIDENT_RUNTIME_DEVICE_SUPERVISED_WATCHED_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/device/generation_change.h"
#include "runtime/device/next_engine.h"
#include "runtime/device/supervised_device.h"
#include "runtime/device/supervision.h"

namespace resident {

// Interval of checks of the heartbeat and of overdue tasks.
inline constexpr std::chrono::milliseconds kTick{50};
// The longest interval while nothing is in flight, because an idle device's wake-ups cost processor
// time. Nothing wakes the supervisor when work arrives, so it may notice a task this much later,
// and enforce its time limit this much later.
inline constexpr std::chrono::milliseconds kIdleTick{500};
// Interval of checks whether the tasks in flight have ended during a park.
inline constexpr std::chrono::milliseconds kHoldPoll{2};
// A process usually ends within this time after it began to, and then its exit status is known. A
// process with a GPU takes longer; the supervisor does not wait for it if nothing is in flight.
inline constexpr std::chrono::milliseconds kExitGrace{10};
// Interval of checks of an engine that ends.
inline constexpr std::chrono::milliseconds kExitPoll{1};

struct SupervisedDevice::Watched {
  EngineProcess& engine;
  HeartbeatMonitor heart;
  Clock::time_point next_tick;
  Parking parking = Parking::kRunning;
  std::unique_ptr<GenerationChange> change;  // Set while a change is in progress.
  uint64_t changes = 0;                      // Number of this engine's last change.
  // When a change ended with UNAVAILABLE, which suggests that the engine has ended.
  std::optional<Clock::time_point> change_over = std::nullopt;
  Clock::time_point resident_since;
  Clock::time_point park_began;
  // Since when nothing has been in flight during a park.
  std::optional<Clock::time_point> park_idle_since;
  // Whether the next step is due now and not at the next tick.
  bool step_at_once = false;
  // The call to the engine for the current step of parking, or for a load while parked; null: none
  // is in progress.
  std::unique_ptr<EngineCall> call = nullptr;
  Clock::time_point call_began = {};

  // When the process was found to be ending. That can take long; its kernel may still run for a
  // short time and complete tasks in flight.
  std::optional<Clock::time_point> died = std::nullopt;

  // A call has failed, probably because the engine is ending. If its end is detected before
  // `until`, that reason is reported instead, because it is more precise.
  struct FailedCall {
    const char* name;
    absl::Status status;
    Clock::time_point until;
  };
  std::optional<FailedCall> failed = std::nullopt;

  void Fail(const char* name, absl::Status status) {
    failed = FailedCall{name, std::move(status), Clock::now() + kEngineEndLimit};
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SUPERVISED_WATCHED_H_
