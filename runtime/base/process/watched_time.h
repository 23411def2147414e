// WatchedTime: time as far as this process was running to see it pass.
//
// For limits on what another process does: a machine that was suspended, or a daemon that
// was stopped for a while, is not the other one's delay. Of a break between two looks that
// took longer than looks do, only so much counts.
//
// Thread safety: none; its owner's own.
//
//   WatchedTime time(milliseconds(200), now);
//   const nanoseconds since = time.Look(now);  // ... more looks ...
//   if (time.Look(now) - since > limit) ...
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_WATCHED_TIME_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_WATCHED_TIME_H_

#include <algorithm>
#include <chrono>

namespace resident {

class WatchedTime {
 public:
  using Clock = std::chrono::steady_clock;

  WatchedTime(std::chrono::nanoseconds most_for_one_look, Clock::time_point now)
      : most_for_one_look_(most_for_one_look), last_look_(now) {}

  // What counts from the beginning until now.
  std::chrono::nanoseconds Look(Clock::time_point now) {
    passed_ += std::min<std::chrono::nanoseconds>(now - last_look_, most_for_one_look_);
    last_look_ = now;
    return passed_;
  }

 private:
  const std::chrono::nanoseconds most_for_one_look_;
  Clock::time_point last_look_;
  std::chrono::nanoseconds passed_{0};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_WATCHED_TIME_H_
