// SupervisedDevice::Watched: what the supervisor's thread knows of the engine that it
// watches. For the sources of SupervisedDevice alone.
#ifndef RESIDENT_RUNTIME_DEVICE_SUPERVISED_WATCHED_H_
#define RESIDENT_RUNTIME_DEVICE_SUPERVISED_WATCHED_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/device/generation_change.h"
#include "runtime/device/heartbeat_monitor.h"
#include "runtime/device/next_engine.h"
#include "runtime/device/supervised_device.h"

namespace resident {

// Between looks at the heartbeat and at overdue tasks.
inline constexpr std::chrono::milliseconds kTick{50};
// The same at most while nothing is in flight: what an idle device costs is its wakes. Nothing
// calls the supervisor when work arrives, so a task that comes in a rest is first seen this
// much later, and ended for its time limit as much later.
inline constexpr std::chrono::milliseconds kRestTick{500};
// A process that ends is mostly gone within this time, and then it is known how it ended. A GPU's
// takes longer, and is not waited for if nothing is in flight.
inline constexpr std::chrono::milliseconds kExitGrace{10};
// Between looks at an engine that ends.
inline constexpr std::chrono::milliseconds kDeathLook{1};

struct SupervisedDevice::Watched {
  EngineProcess& engine;
  HeartbeatMonitor heart;
  Clock::time_point next_tick;
  Parking parking = Parking::kRunning;
  std::unique_ptr<GenerationChange> change;  // While one is under way.
  uint64_t changes = 0;                      // Numbers of this engine's.
  // Since when a change is over that failed as if the engine had ended.
  std::optional<Clock::time_point> change_over = std::nullopt;
  Clock::time_point resident_since;
  Clock::time_point park_began;
  // Since when a park has had nothing in flight to wait for.
  std::optional<Clock::time_point> park_idle_since;
  // The next step of parking is due now, not at the next tick.
  bool step_at_once = false;
  // The call to the engine that the present step of parking, or the load while parked, is about;
  // null: none is under way.
  std::unique_ptr<EngineCall> call = nullptr;
  Clock::time_point call_began = {};

  // When the process was seen to end. It may take the system long to take it back; its kernel may
  // run on for a moment, and ends what is in flight.
  std::optional<Clock::time_point> died = std::nullopt;

  // A call has failed, most likely because the engine is ending: who sees it end until then knows
  // better why.
  struct FailedCall {
    const char* name;
    absl::Status status;
    Clock::time_point until;
  };
  std::optional<FailedCall> failed = std::nullopt;

  void Fail(const char* name, absl::Status status) {
    failed = FailedCall{name, std::move(status), Clock::now() + kEndLimit};
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SUPERVISED_WATCHED_H_
