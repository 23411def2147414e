// HeartbeatMonitor: checks whether a process still increments its heartbeat counter.
//
// Thread safety: none; used by the supervisor only.
#ifndef RESIDENT_RUNTIME_DEVICE_HEARTBEAT_MONITOR_H_
#define RESIDENT_RUNTIME_DEVICE_HEARTBEAT_MONITOR_H_

#include <chrono>
#include <cstdint>

#include "runtime/base/process/watched_time.h"

namespace resident {

class HeartbeatMonitor {
 public:
  using Clock = WatchedTime::Clock;

  // IsLate is called about once in `look_every`.
  HeartbeatMonitor(std::chrono::nanoseconds limit, std::chrono::nanoseconds look_every,
                   Clock::time_point now)
      : limit_(limit), time_(2 * look_every, now) {}

  // Whether the counter, whose value is now `beats`, has not changed for the limit.
  bool IsLate(uint64_t beats, Clock::time_point now) {
    const std::chrono::nanoseconds passed = time_.Look(now);
    if (beats != beats_) {
      beats_ = beats;
      last_beat_ = passed;
    }
    return passed - last_beat_ >= limit_;
  }

 private:
  const std::chrono::nanoseconds limit_;
  WatchedTime time_;
  uint64_t beats_ = 0;
  std::chrono::nanoseconds last_beat_{0};  // In the time of `time_`.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_HEARTBEAT_MONITOR_H_
