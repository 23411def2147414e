// RestartPolicy: decides when an engine that ended may be started again.
//
// The first restart is immediate; later ones wait 100 ms, doubled each time up to 5 s.
// After the fifth failure within a minute there is no restart. Failures older than a minute are
// forgotten, and the waits start over.
//
// Thread safety: none; used by the supervisor only.
#ifndef RESIDENT_RUNTIME_DEVICE_RESTART_POLICY_H_
#define RESIDENT_RUNTIME_DEVICE_RESTART_POLICY_H_

#include <chrono>
#include <deque>
#include <optional>

namespace resident {

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

  // As if there had been no failure.
  void Forget() { failures_.clear(); }

 private:
  std::deque<Clock::time_point> failures_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_RESTART_POLICY_H_
