#include "runtime/base/fake_time.h"

#include <chrono>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

// A thread that waits for a condition, or until a time.
class Waiter {
 public:
  Waiter(TimeSource& time, TimeSource::TimePoint until)
      : thread_([this, &time, until] {
          absl::MutexLock lock(&mu_);
          time.Await(mu_, absl::Condition(&wake_), until);
          over_.Notify();
        }) {}
  ~Waiter() { thread_.join(); }

  void Wake() {
    absl::MutexLock lock(&mu_);
    wake_ = true;
  }
  bool over() const { return over_.HasBeenNotified(); }
  void AwaitEnd() { over_.WaitForNotification(); }

 private:
  absl::Mutex mu_;
  bool wake_ ABSL_GUARDED_BY(mu_) = false;
  absl::Notification over_;
  std::thread thread_;
};

TEST(FakeTimeTest, AWaitEndsOnceItsTimeHasCome) {
  FakeTime time;
  const auto start = time.Now();
  Waiter first(time, start + milliseconds(1)), second(time, start + milliseconds(2));
  time.AwaitSleepers(2);
  time.Advance(milliseconds(1));
  first.AwaitEnd();
  EXPECT_FALSE(second.over());
  EXPECT_EQ(time.Now(), start + milliseconds(1));
  time.Advance(milliseconds(1));
  second.AwaitEnd();
}

TEST(FakeTimeTest, AWaitEndsOnceItsConditionIsTrue) {
  FakeTime time;
  Waiter waiter(time, TimeSource::TimePoint::max());
  time.Advance(std::chrono::hours(1));
  EXPECT_FALSE(waiter.over());
  waiter.Wake();
  waiter.AwaitEnd();
}

TEST(SteadyTimeTest, AWaitEndsAtItsTimeOrWithItsCondition) {
  TimeSource& time = TimeSource::Steady();
  const auto until = time.Now() + milliseconds(1);
  Waiter(time, until).AwaitEnd();
  EXPECT_GE(time.Now(), until);
  Waiter waiter(time, TimeSource::TimePoint::max());
  waiter.Wake();
  waiter.AwaitEnd();
}

}  // namespace
}  // namespace resident
