// What a supervisor decides about its engine: whether its heartbeat has stopped, and when an engine
// that ended is started again.
#ifndef RESIDENT_RUNTIME_DEVICE_SUPERVISION_H_
#define RESIDENT_RUNTIME_DEVICE_SUPERVISION_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>

#include "runtime/base/process/watched_time.h"

namespace resident {

// HeartbeatMonitor: checks whether a process still increments its heartbeat counter.
//
// Thread safety: none; used by the supervisor only.
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

// RestartPolicy: decides when an engine that ended may be started again.
//
// The first restart is immediate; later ones wait 100 ms, doubled each time up to 5 s.
// After the fifth failure within a minute there is no restart. Failures older than a minute are
// forgotten, and the waits start over.
//
// Thread safety: none; used by the supervisor only.
class RestartPolicy {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr int kMaxFailures = 5;
  static constexpr std::chrono::seconds kWindow{60};
  static constexpr std::chrono::milliseconds kFirstWait{100};
  static constexpr std::chrono::milliseconds kLongestWait{5'000};

  // Records a failure. Returns how long to wait before the next start; nullopt: it must not be
  // started again.
  std::optional<std::chrono::milliseconds> OnFailure(Clock::time_point now);

  // Whether a failure now would be followed by another start.
  bool AllowsRestart(Clock::time_point now) const;

  // Forgets all failures.
  void Forget() { failures_.clear(); }

 private:
  std::deque<Clock::time_point> failures_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_SUPERVISION_H_
