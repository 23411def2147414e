// FakeTime: a TimeSource whose time a test sets. It stands still until the test advances it.
//
// Thread safety: all members may be called from any thread. While Advance runs, no object whose
// thread waits in Await may be destroyed.
//
//   FakeTime time;
//   Admission admission(limits, &gate, time);
//   time.AwaitSleepers(1);                  // Its thread waits for a later time.
//   time.Advance(Admission::kPollInterval); // The thread wakes.
#ifndef RESIDENT_RUNTIME_BASE_FAKE_TIME_H_
#define RESIDENT_RUNTIME_BASE_FAKE_TIME_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/time_source.h"

namespace resident {

class FakeTime final : public TimeSource {
 public:
  TimePoint Now() const override { return now_.load(); }

  void Await(absl::Mutex& mu, const absl::Condition& condition, TimePoint until) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    std::list<Sleeper> one{{&mu, until}};
    const auto sleeper = one.begin();
    {
      absl::MutexLock lock(&mu_);
      sleepers_.splice(sleepers_.end(), one);
      waits_.fetch_add(1);
    }
    const auto over = [&] { return condition.Eval() || Now() >= until; };
    mu.Await(absl::Condition(&over));
    absl::MutexLock lock(&mu_);
    one.splice(one.end(), sleepers_, sleeper);
  }

  // Adds to the time, and wakes the threads that wait for a time that has come.
  void Advance(std::chrono::nanoseconds by)
      ABSL_LOCKS_EXCLUDED(mu_) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::vector<absl::Mutex*> held;
    {
      absl::MutexLock lock(&mu_);
      now_.store(now_.load() + by);
      for (const Sleeper& sleeper : sleepers_) held.push_back(sleeper.mu);
    }
    // A mutex evaluates the conditions of its waiters when it is released.
    for (absl::Mutex* const mu : held) {
      mu->Lock();
      mu->Unlock();
    }
  }

  // How many waits have begun. When it rises, a thread that was woken waits again.
  uint64_t waits() const { return waits_.load(); }

  // Waits until this many threads wait for a time after Now(). After Advance, they have then done
  // what they do at the present time.
  void AwaitSleepers(size_t threads) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto asleep = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return static_cast<size_t>(
                 std::count_if(sleepers_.begin(), sleepers_.end(), [&](const Sleeper& sleeper) {
                   return sleeper.until > Now() && sleeper.until != TimePoint::max();
                 })) >= threads;
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&asleep));
  }

 private:
  struct Sleeper {
    absl::Mutex* mu;
    TimePoint until;
  };

  std::atomic<TimePoint> now_{TimePoint(std::chrono::hours(1))};
  std::atomic<uint64_t> waits_{0};
  absl::Mutex mu_;
  std::list<Sleeper> sleepers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_FAKE_TIME_H_
