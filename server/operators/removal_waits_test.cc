#include "server/operators/removal_waits.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace resident {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// One wait, and how it ended.
struct Wait {
  std::shared_ptr<absl::Notification> drained = std::make_shared<absl::Notification>();
  std::shared_ptr<absl::Notification> ended = std::make_shared<absl::Notification>();
  std::atomic<bool> cancelled = false;
  absl::Status status;

  void Add(RemovalWaits& waits, Clock::time_point deadline) {
    waits.Add({"region",
               {drained},
               deadline,
               [this] { return cancelled.load(); },
               [this](const absl::Status& end) {
                 status = end;
                 ended->Notify();
               }});
  }
};

TEST(RemovalWaitsTest, ADeadlineEndsItsWaitAndNoOther) {
  Wait late;
  Wait other;
  RemovalWaits waits;
  other.Add(waits, Clock::now() + hours(1));
  const Clock::time_point deadline = Clock::now() + milliseconds(50);
  late.Add(waits, deadline);
  late.ended->WaitForNotification();
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(other.ended->HasBeenNotified());
  other.drained->Notify();
  other.ended->WaitForNotification();
  EXPECT_TRUE(other.status.ok()) << other.status;
}

TEST(RemovalWaitsTest, ACallerThatHasGoneEndsItsWait) {
  Wait wait;
  RemovalWaits waits;
  wait.Add(waits, Clock::now() + hours(1));
  wait.cancelled = true;
  wait.ended->WaitForNotification();
  EXPECT_EQ(wait.status.code(), absl::StatusCode::kCancelled);
}

TEST(RemovalWaitsTest, TheEndOfTheDaemonEndsAllWaits) {
  Wait first;
  Wait second;
  {
    RemovalWaits waits;
    first.Add(waits, Clock::now() + hours(1));
    second.Add(waits, Clock::now() + hours(1));
  }
  ASSERT_TRUE(first.ended->HasBeenNotified() && second.ended->HasBeenNotified());
  EXPECT_EQ(first.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.status.code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace resident
