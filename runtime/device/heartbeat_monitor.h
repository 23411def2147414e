// HeartbeatMonitor: whether a process's heart still beats, from looks at its counter.
//
// Time counts against the process only as far as this one was running too: a machine
// that was suspended, or a front end that was stopped for a while, does not make every
// engine look dead.
//
// Thread safety: none; the supervisor's own.
#ifndef RESIDENT_RUNTIME_DEVICE_HEARTBEAT_MONITOR_H_
#define RESIDENT_RUNTIME_DEVICE_HEARTBEAT_MONITOR_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace resident {

class HeartbeatMonitor {
 public:
  using Clock = std::chrono::steady_clock;

  // Looks come about every `look_every`.
  HeartbeatMonitor(std::chrono::nanoseconds limit, std::chrono::nanoseconds look_every,
                   Clock::time_point now)
      : limit_(limit), most_for_one_look_(2 * look_every), last_look_(now) {}

  // Whether the counter, which reads `beats` now, has stood still for the limit.
  bool IsLate(uint64_t beats, Clock::time_point now) {
    const auto since_look =
        std::min<std::chrono::nanoseconds>(now - last_look_, most_for_one_look_);
    last_look_ = now;
    if (beats != beats_) {
      beats_ = beats;
      silent_ = {};
      return false;
    }
    silent_ += since_look;
    return silent_ >= limit_;
  }

  std::chrono::nanoseconds silent() const { return silent_; }

 private:
  const std::chrono::nanoseconds limit_;
  const std::chrono::nanoseconds most_for_one_look_;
  Clock::time_point last_look_;
  uint64_t beats_ = 0;
  std::chrono::nanoseconds silent_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_HEARTBEAT_MONITOR_H_
