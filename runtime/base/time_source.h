// TimeSource: the time that deadlines are compared with, and waits until such a time. It is for
// classes whose own threads wait for deadlines; a test gives them a FakeTime (fake_time.h). A class
// without a thread takes the time as an argument instead (`now`).
//
// Thread safety: all members may be called from any thread.
//
//   absl::MutexLock lock(&mu_);
//   time.Await(mu_, absl::Condition(&wake_), time.Now() + kPollInterval);
#ifndef RESIDENT_RUNTIME_BASE_TIME_SOURCE_H_
#define RESIDENT_RUNTIME_BASE_TIME_SOURCE_H_

#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {

// The present time of the steady clock, in nanoseconds.
inline uint64_t SteadyNs() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

class TimeSource {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual ~TimeSource() = default;

  virtual TimePoint Now() const = 0;

  // Waits until the condition is true or the time is `until`; TimePoint::max(): without a limit.
  // Releases `mu` while it waits.
  virtual void Await(absl::Mutex& mu, const absl::Condition& condition, TimePoint until)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;

  // The steady clock of this machine.
  static TimeSource& Steady();
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_TIME_SOURCE_H_
