// WatchedTime: elapsed time with each gap capped, so that a suspended machine does not count.
//
// For limits on what another process does: while the machine is suspended, or this daemon is
// stopped, the other process is not late. At most `max_gap` of the time between two calls of
// Look counts.
//
// Thread safety: none; one thread at a time.
//
//   WatchedTime time(milliseconds(200), now);
//   const nanoseconds since = time.Look(now);  // ... more calls of Look ...
//   if (time.Look(now) - since > limit) ...
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_WATCHED_TIME_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_WATCHED_TIME_H_

#include <algorithm>
#include <chrono>

namespace resident {

class WatchedTime {
 public:
  using Clock = std::chrono::steady_clock;

  WatchedTime(std::chrono::nanoseconds max_gap, Clock::time_point now)
      : max_gap_(max_gap), last_look_(now) {}

  // Returns the time that counts since construction.
  std::chrono::nanoseconds Look(Clock::time_point now) {
    elapsed_ += std::min<std::chrono::nanoseconds>(now - last_look_, max_gap_);
    last_look_ = now;
    return elapsed_;
  }

 private:
  const std::chrono::nanoseconds max_gap_;
  Clock::time_point last_look_;
  std::chrono::nanoseconds elapsed_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_WATCHED_TIME_H_
