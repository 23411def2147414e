#include "runtime/base/time_source.h"

#include "absl/time/time.h"

namespace resident {
namespace {

class SteadyTime final : public TimeSource {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }

  void Await(absl::Mutex& mu, const absl::Condition& condition, TimePoint until) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (until == TimePoint::max()) {
      mu.Await(condition);
    } else {
      mu.AwaitWithTimeout(condition, absl::FromChrono(until - Now()));
    }
  }
};

}  // namespace

TimeSource& TimeSource::Steady() {
  static SteadyTime steady;
  return steady;
}

}  // namespace resident
