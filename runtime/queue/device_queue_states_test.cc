// The queue with a device and a time that the test controls step by step: what counts against a
// client's limits, and until when; parks while the ring is full; when a batch ends that waits.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/base/fake_time.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/manual_device.h"

namespace resident {
namespace {

constexpr ClientId kAlice = 1;
constexpr ClientId kBob = 2;
constexpr ClientId kCarol = 3;

class DeviceQueueStatesTest : public ::testing::Test {
 protected:
  struct Pending {
    std::shared_ptr<Batch> batch = std::make_shared<Batch>();
    absl::Notification done;
    void Wait() { done.WaitForNotification(); }
  };

  // A client may have 100 tasks queued. Each task has one argument.
  static constexpr uint64_t kMaxTasks = 100;
  static constexpr uint64_t kTaskBytes = sizeof(TaskDescriptor) + sizeof(Argument);
  static constexpr uint64_t kMaxBytes = 120 * kTaskBytes;

  DeviceQueueStatesTest()
      : queue_({.max_queued_tasks = kMaxTasks,
                .max_queued_bytes = kMaxBytes,
                .spin = std::chrono::microseconds(0),
                .time = &time_}) {
    queue_.AddClient(kAlice);
    queue_.AddClient(kBob);
    queue_.AddClient(kCarol);
    epoch_ = queue_.SetRing(device_.NewRing());
  }

  std::shared_ptr<Pending> NewBatch(uint64_t tasks, bool in_order = false) {
    auto pending = std::make_shared<Pending>();
    Batch& batch = *pending->batch;
    batch.epoch = epoch_;
    batch.in_order = in_order;
    batch.tasks.resize(tasks);
    batch.arguments_per_task = 1;
    batch.arguments.resize(tasks);
    batch.done = [p = pending.get()](Batch&) { p->done.Notify(); };
    all_.push_back(pending);
    return pending;
  }
  // A quantum of a graph whose two nodes call these operators.
  std::shared_ptr<Pending> NewGraph(uint32_t first_slot, uint32_t second_slot) {
    auto pending = NewBatch(1);
    Batch& batch = *pending->batch;
    batch.arguments_per_task = 0;
    batch.arguments.clear();
    batch.tasks[0].operator_slot = kGraphSlot;
    batch.tasks[0].flags = kTaskGraph;
    GraphNodes nodes;
    nodes.rows = std::make_shared<const std::vector<uint32_t>>(std::vector<uint32_t>{0, 1});
    nodes.slots = {first_slot, second_slot};
    nodes.worker_ns = 5'000'000;
    batch.graph = std::make_unique<const GraphNodes>(std::move(nodes));
    return pending;
  }
  absl::Status Enqueue(Pending& pending, ClientId client = kAlice) {
    return queue_.Enqueue(client, pending.batch);
  }
  // Enqueues an in-order batch of kMaxTasks; its first task is then in flight.
  std::shared_ptr<Pending> StartInOrderBatch() {
    auto pending = NewBatch(kMaxTasks, /*in_order=*/true);
    EXPECT_TRUE(Enqueue(*pending).ok());
    AwaitInFlight(1);
    return pending;
  }
  // Whether the batch is refused with an error that names the flag.
  ::testing::AssertionResult Refused(Pending& pending, const std::string& flag) {
    const absl::Status status = Enqueue(pending);
    if (status.code() == absl::StatusCode::kResourceExhausted &&
        status.message().find(flag) != std::string::npos) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << status;
  }
  // No task counts as queued any more, and the queue is idle.
  void ExpectNothingLeft() {
    EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, 0u);
    EXPECT_EQ(queue_.counters().queued_tasks, 0u);
    EXPECT_NE(queue_.idle_since(), Clock::time_point::max());
  }

  void AwaitInFlight(uint32_t tasks) {
    while (queue_.counters().in_flight != tasks) std::this_thread::yield();
  }
  void AwaitSubmissions(uint64_t tasks) {
    while (queue_.counters().next_sequence < tasks) std::this_thread::yield();
  }

  // Bob's tasks fill the ring, and more of them wait.
  void FillRing() {
    ASSERT_TRUE(Enqueue(*NewBatch(kMaxTasks), kBob).ok());
    AwaitInFlight(ManualDevice::kSlots);
  }
  // A batch with a timeout, which waits nowhere yet.
  std::shared_ptr<Pending> NewTimedBatch(uint64_t tasks, bool in_order = false) {
    auto pending = NewBatch(tasks, in_order);
    pending->batch->deadline = time_.Now() + kTimeout;
    return pending;
  }
  // The batch, which waits, does not end before its deadline, and it ends within one interval after
  // it. REQUIRES: a task of Carol waits too.
  void ExpectEndsAtItsDeadline(Pending& late) {
    const auto witness = NewBatch(1);
    constexpr std::chrono::nanoseconds kBefore{1};
    witness->batch->long_tasks = late.batch->long_tasks;
    witness->batch->deadline = late.batch->deadline - kBefore;
    ASSERT_TRUE(Enqueue(*witness, kCarol).ok());
    time_.Advance(late.batch->deadline - kBefore - time_.Now());
    // Then the queue has compared all deadlines with this time.
    ASSERT_TRUE(witness->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_FALSE(late.done.HasBeenNotified());
    time_.Advance(kBefore + DeviceQueue::kDeadlineCheckInterval);
    ASSERT_TRUE(late.done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(late.batch->status.back(), TaskStatus::kDeadlineExceeded);
  }

  static constexpr std::chrono::milliseconds kTimeout{200};

  FakeTime time_;
  ManualDevice device_;
  std::vector<std::shared_ptr<Pending>> all_;  // Outlive the queue.
  DeviceQueue queue_;
  uint64_t epoch_ = 0;
};

TEST_F(DeviceQueueStatesTest, TasksOfAnInOrderBatchCountUntilTheyAreInTheRing) {
  const auto ordered = StartInOrderBatch();
  EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, kMaxTasks - 1);
  EXPECT_EQ(queue_.counters().queued_tasks, kMaxTasks - 1);
  const auto two = NewBatch(2);
  ASSERT_TRUE(Refused(*two, "--max_queued_tasks"));
  EXPECT_TRUE(Enqueue(*NewBatch(10), kBob).ok());  // Another client has its own limit.
  AwaitSubmissions(11);
  for (uint64_t s = 1; s <= 10; ++s) device_.Complete(s);
  AwaitInFlight(1);
  device_.Complete(0);
  AwaitSubmissions(12);
  EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, kMaxTasks - 2);
  EXPECT_TRUE(Enqueue(*two).ok());
  AwaitSubmissions(14);
  device_.Complete(12);
  device_.Complete(13);
  two->Wait();
  EXPECT_EQ(queue_.idle_since(), Clock::time_point::max());
  for (uint64_t s = 11; s < kMaxTasks + 12; ++s) {
    AwaitSubmissions(s + 1);
    if (s != 12 && s != 13) device_.Complete(s);
  }
  ordered->Wait();
  EXPECT_EQ(ordered->batch->failed, 0u);
  ExpectNothingLeft();
}

TEST_F(DeviceQueueStatesTest, BytesOfAnInOrderBatchCountUntilItHasEnded) {
  const auto ordered = StartInOrderBatch();
  const auto more = NewBatch(30);
  for (uint64_t s = 0; s < kMaxTasks; ++s) {
    AwaitSubmissions(s + 1);
    // Before the last completion, only one task is left, but all of the batch's memory.
    if (s + 1 == kMaxTasks) {
      ASSERT_TRUE(Refused(*more, "--max_client_host_mib"));
    }
    device_.Complete(s);
  }
  ordered->Wait();
  ExpectNothingLeft();
  ASSERT_TRUE(Enqueue(*more).ok());
  AwaitInFlight(30);
  for (uint64_t s = kMaxTasks; s < kMaxTasks + 30; ++s) device_.Complete(s);
  more->Wait();
  ExpectNothingLeft();
}

TEST_F(DeviceQueueStatesTest, BytesOfABatchThatIsInTheRingCountUntilItHasEnded) {
  const auto batch = NewBatch(60), more = NewBatch(61);
  ASSERT_TRUE(Enqueue(*batch).ok());
  AwaitInFlight(60);
  EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, 0u);
  ASSERT_TRUE(Refused(*more, "--max_client_host_mib"));
  for (uint64_t s = 0; s < 60; ++s) device_.Complete(s);
  batch->Wait();
  EXPECT_TRUE(Enqueue(*more).ok());
}

// Of 32 workers, long tasks leave four free: another client's short task enters the ring at once.
TEST_F(DeviceQueueStatesTest, LongTasksOfTwoClientsDoNotDelayAShortTaskOfAThird) {
  const auto first = NewBatch(60), second = NewBatch(60), lone = NewBatch(1);
  first->batch->long_tasks = second->batch->long_tasks = true;
  ASSERT_TRUE(Enqueue(*first, kAlice).ok());
  AwaitInFlight(28);
  ASSERT_TRUE(Enqueue(*second, kBob).ok());
  ASSERT_TRUE(Enqueue(*lone, kCarol).ok());
  AwaitInFlight(29);
  EXPECT_EQ(queue_.client_counters(kCarol).queued_tasks, 0u);
  EXPECT_EQ(queue_.client_counters(kBob).queued_tasks, 60u);
  device_.Complete(28);
  lone->Wait();
  // A long task follows when another one has completed; the clients take turns.
  for (uint64_t s = 0; s < 121; ++s) {
    AwaitSubmissions(s + 1);
    if (s != 28) device_.Complete(s);
  }
  first->Wait();
  second->Wait();
  EXPECT_EQ(first->batch->failed + second->batch->failed, 0u);
  ExpectNothingLeft();
}

TEST_F(DeviceQueueStatesTest, LongTasksThatWaitStillEndAtTheirDeadline) {
  const auto first = NewBatch(40), late = NewTimedBatch(10);
  first->batch->long_tasks = late->batch->long_tasks = true;
  ASSERT_TRUE(Enqueue(*first, kAlice).ok());
  AwaitInFlight(28);
  ASSERT_TRUE(Enqueue(*late, kBob).ok());
  ExpectEndsAtItsDeadline(*late);
  EXPECT_EQ(late->batch->status[0], TaskStatus::kDeadlineExceeded);
}

TEST_F(DeviceQueueStatesTest, ABatchEndsAtItsDeadlineBehindAnotherClientsFullRing) {
  FillRing();
  const auto late = NewTimedBatch(10);
  ASSERT_TRUE(Enqueue(*late).ok());
  ExpectEndsAtItsDeadline(*late);
  EXPECT_EQ(late->batch->status[0], TaskStatus::kDeadlineExceeded);
}

TEST_F(DeviceQueueStatesTest, ABatchEndsAtItsDeadlineBehindABatchOfItsClient) {
  FillRing();
  const auto late = NewTimedBatch(10);
  ASSERT_TRUE(Enqueue(*late, kBob).ok());
  ExpectEndsAtItsDeadline(*late);
}

TEST_F(DeviceQueueStatesTest, AnInOrderBatchEndsAtItsDeadlineWhileItsNextTaskWaits) {
  const auto late = NewTimedBatch(3, /*in_order=*/true);
  ASSERT_TRUE(Enqueue(*late).ok());
  AwaitInFlight(1);
  FillRing();
  device_.Complete(0);
  AwaitSubmissions(ManualDevice::kSlots + 1);  // Bob's next task takes the place.
  ExpectEndsAtItsDeadline(*late);
  EXPECT_EQ(late->batch->status[0], TaskStatus::kOk);
  EXPECT_EQ(late->batch->status[1], TaskStatus::kDeadlineExceeded);
}

// A task in the ring cannot be withdrawn: its batch ends with it.
TEST_F(DeviceQueueStatesTest, AnInOrderBatchPastItsDeadlineEndsWithItsTaskInTheRing) {
  const auto late = NewTimedBatch(3, /*in_order=*/true);
  ASSERT_TRUE(Enqueue(*late).ok());
  AwaitInFlight(1);
  time_.Advance(kTimeout);
  EXPECT_FALSE(late->done.HasBeenNotified());
  device_.Complete(0);
  ASSERT_TRUE(late->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(late->batch->status[0], TaskStatus::kOk);
  EXPECT_EQ(late->batch->status[1], TaskStatus::kDeadlineExceeded);
  EXPECT_EQ(queue_.counters().next_sequence, 1u) << "a task was submitted after the deadline";
  ExpectNothingLeft();
}

TEST_F(DeviceQueueStatesTest, ABatchEndsAtItsDeadlineWhileTheDeviceIsParked) {
  ASSERT_TRUE(queue_.BeginPark().ok());
  const auto late = NewTimedBatch(10), ordered = NewTimedBatch(10, /*in_order=*/true);
  ASSERT_TRUE(Enqueue(*ordered).ok());
  ASSERT_TRUE(Enqueue(*late, kBob).ok());
  ExpectEndsAtItsDeadline(*late);
  ordered->Wait();
  EXPECT_EQ(ordered->batch->status[0], TaskStatus::kDeadlineExceeded);
}

TEST_F(DeviceQueueStatesTest, ABatchEndsAtItsDeadlineDuringAHold) {
  const auto ordered = NewTimedBatch(3, /*in_order=*/true), late = NewTimedBatch(10);
  ASSERT_TRUE(Enqueue(*ordered).ok());
  AwaitInFlight(1);
  ASSERT_TRUE(queue_.Hold().ok());
  device_.Complete(0);
  AwaitInFlight(0);
  ASSERT_TRUE(Enqueue(*late, kBob).ok());
  ExpectEndsAtItsDeadline(*late);
  ordered->Wait();
  EXPECT_EQ(ordered->batch->status[1], TaskStatus::kDeadlineExceeded);
}

// Each task that arrives wakes the dispatch loop, which then sleeps again.
TEST_F(DeviceQueueStatesTest, TasksThatArriveDoNotPostponeTheCheckOfDeadlines) {
  ASSERT_TRUE(queue_.BeginPark().ok());
  const auto late = NewBatch(1);
  late->batch->deadline = time_.Now() + std::chrono::milliseconds(1);
  const auto answer = late->batch->deadline + DeviceQueue::kDeadlineCheckInterval;
  ASSERT_TRUE(Enqueue(*late).ok());
  for (int ms = 1; ms < 20; ++ms) {
    time_.AwaitSleepers(1);
    time_.Advance(std::chrono::milliseconds(1));
    const uint64_t waits = time_.waits();
    ASSERT_TRUE(Enqueue(*NewBatch(1), kBob).ok());
    while (time_.waits() == waits) std::this_thread::yield();
  }
  time_.Advance(answer - time_.Now());
  ASSERT_TRUE(late->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(late->batch->status[0], TaskStatus::kDeadlineExceeded);
}

TEST_F(DeviceQueueStatesTest, LongTasksContinueAfterAHold) {
  const auto batch = NewBatch(40);
  batch->batch->long_tasks = true;
  ASSERT_TRUE(Enqueue(*batch, kAlice).ok());
  AwaitInFlight(28);
  ASSERT_TRUE(queue_.Hold().ok());
  for (uint64_t s = 0; s < 28; ++s) device_.Complete(s);
  AwaitInFlight(0);
  queue_.EndPark();
  AwaitInFlight(12);
  for (uint64_t s = 28; s < 40; ++s) device_.Complete(s);
  batch->Wait();
}

TEST_F(DeviceQueueStatesTest, TheTimeWithATaskIsCountedExactlyAndOnce) {
  const auto busy = [&] { return queue_.counters().busy; };
  EXPECT_EQ(busy().count(), 0);
  const Clock::time_point before = Clock::now();
  const auto batch = NewBatch(1);
  ASSERT_TRUE(Enqueue(*batch).ok());
  const Clock::time_point begun = Clock::now();
  AwaitInFlight(1);
  // While a task runs, the time goes on.
  const auto first = busy();
  EXPECT_LE(first, Clock::now() - before);
  while (busy() < first + std::chrono::milliseconds(2)) std::this_thread::yield();
  // A second task at the same time does not count again.
  const auto second = NewBatch(1);
  ASSERT_TRUE(Enqueue(*second, kBob).ok());
  AwaitInFlight(2);
  device_.Complete(0);
  batch->Wait();
  EXPECT_GE(busy(), first);
  const Clock::time_point ending = Clock::now();
  device_.Complete(1);
  second->Wait();
  const auto total = busy();
  EXPECT_GE(total, ending - begun);
  EXPECT_LE(total, Clock::now() - before);
  // Without a task the time stands still, also when an engine is lost and replaced.
  queue_.LoseRing("lost", {});
  queue_.SetRing(device_.NewRing());
  EXPECT_EQ(busy(), total);
}

TEST_F(DeviceQueueStatesTest, TheTimeWithATaskEndsWithTheEngine) {
  const auto batch = NewBatch(1);
  ASSERT_TRUE(Enqueue(*batch).ok());
  AwaitInFlight(1);
  queue_.LoseRing("lost", {});
  batch->Wait();
  const auto total = queue_.counters().busy;
  EXPECT_GT(total.count(), 0);
  EXPECT_EQ(queue_.counters().busy, total);
}

TEST_F(DeviceQueueStatesTest, ACancelledInOrderBatchNoLongerCounts) {
  const auto ordered = StartInOrderBatch();
  ordered->batch->cancelled = true;
  queue_.NoteCancelled();
  ASSERT_TRUE(
      Refused(*NewBatch(30), "--max_queued_tasks"));  // One of its tasks is still in flight.
  device_.Complete(0);
  ordered->Wait();
  ExpectNothingLeft();
  EXPECT_TRUE(Enqueue(*NewBatch(kMaxTasks)).ok());
}

TEST_F(DeviceQueueStatesTest, AnInOrderBatchThatIsSkippedDuringAHoldNoLongerCounts) {
  const auto ordered = StartInOrderBatch();
  ASSERT_TRUE(queue_.Hold().ok());
  device_.Complete(0);
  AwaitInFlight(0);
  EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, kMaxTasks - 1);
  EXPECT_EQ(queue_.idle_since(), Clock::time_point::max());
  ordered->batch->cancelled = true;
  queue_.NoteCancelled();
  ordered->Wait();
  ExpectNothingLeft();
  queue_.EndPark();
  EXPECT_TRUE(Enqueue(*NewBatch(kMaxTasks)).ok());
}

TEST_F(DeviceQueueStatesTest, ARemovedClientsInOrderBatchDoesNotCountForANewClientWithTheSameId) {
  const auto ordered = StartInOrderBatch();
  queue_.RemoveClient(kAlice);
  EXPECT_EQ(queue_.counters().queued_tasks, kMaxTasks - 1);
  queue_.AddClient(kAlice);
  const auto next = NewBatch(60);
  ASSERT_TRUE(Enqueue(*next).ok());
  AwaitInFlight(61);
  device_.Complete(0);
  ordered->Wait();
  EXPECT_EQ(queue_.counters().queued_tasks, 0u);
  ASSERT_TRUE(Refused(*NewBatch(61), "--max_client_host_mib"));  // Its own batch still counts.
  for (uint64_t s = 1; s <= 60; ++s) device_.Complete(s);
  next->Wait();
  ExpectNothingLeft();
}

TEST_F(DeviceQueueStatesTest, InOrderBatchesOfALostRingNoLongerCount) {
  const auto ordered = StartInOrderBatch();
  const auto ready = NewBatch(10, /*in_order=*/true);
  ASSERT_TRUE(Enqueue(*ready, kBob).ok());
  AwaitInFlight(2);
  ASSERT_TRUE(queue_.Hold().ok());
  device_.Complete(1);
  AwaitInFlight(1);
  EXPECT_EQ(queue_.counters().queued_tasks, kMaxTasks - 1 + 9);
  queue_.LoseRing("the engine was killed by signal 9", {});
  ordered->Wait();
  ready->Wait();
  ExpectNothingLeft();
  epoch_ = queue_.SetRing(device_.NewRing());
  EXPECT_TRUE(Enqueue(*NewBatch(kMaxTasks)).ok());
}

TEST_F(DeviceQueueStatesTest, AReadyInOrderBatchWaitsUntilItsClientIsServed) {
  // Two clients fill the ring with the first tasks of in-order batches.
  for (int i = 0; i < 32; ++i) {
    ASSERT_TRUE(Enqueue(*NewBatch(3, /*in_order=*/true), kAlice).ok());
    ASSERT_TRUE(Enqueue(*NewBatch(3, /*in_order=*/true), kCarol).ok());
  }
  AwaitInFlight(ManualDevice::kSlots);
  const auto lone = NewBatch(1);
  ASSERT_TRUE(Enqueue(*lone, kBob).ok());
  EXPECT_EQ(queue_.client_counters(kBob).queued_tasks, 1u);
  // One completion for each of the two busy clients.
  for (uint64_t s = 0; s < 2; ++s) {
    device_.Complete(s);
    AwaitSubmissions(ManualDevice::kSlots + s + 1);
  }
  EXPECT_EQ(queue_.client_counters(kBob).queued_tasks, 0u);
}

TEST_F(DeviceQueueStatesTest, AClientsInOrderBatchesDoNotStarveItsOtherBatches) {
  constexpr uint64_t kInOrder = 30;
  for (uint64_t i = 0; i < kInOrder; ++i) {
    ASSERT_TRUE(Enqueue(*NewBatch(3, /*in_order=*/true)).ok());
  }
  AwaitInFlight(kInOrder);
  ASSERT_TRUE(Enqueue(*NewBatch(ManualDevice::kSlots - kInOrder), kBob).ok());
  AwaitInFlight(ManualDevice::kSlots);
  const auto other = NewBatch(10);
  ASSERT_TRUE(Enqueue(*other).ok());
  // At least every second submitted task belongs to the other batch.
  for (uint64_t s = 0; s < 20; ++s) {
    device_.Complete(s);
    AwaitSubmissions(ManualDevice::kSlots + s + 1);
  }
  for (uint64_t s = 20; s < ManualDevice::kSlots + 20; ++s) device_.Complete(s);
  EXPECT_TRUE(other->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
}

// The dispatcher sleeps meanwhile: nothing wakes it for a task that its caller runs inline.
TEST_F(DeviceQueueStatesTest, ALoneTaskIsFinishedInlineOnTheCallersThread) {
  // SetRing has woken the dispatcher once: this is its second wait.
  while (time_.waits() < 2) std::this_thread::yield();
  for (uint64_t s = 0; s < 10; ++s) {
    const auto lone = NewBatch(1);
    std::thread::id finisher;
    lone->batch->done = [&finisher, p = lone.get()](Batch&) {
      finisher = std::this_thread::get_id();
      p->done.Notify();
    };
    device_.Complete(s);  // The device is that quick.
    ASSERT_TRUE(queue_.Enqueue(kAlice, lone->batch, std::chrono::seconds(60)).ok());
    lone->Wait();
    EXPECT_EQ(finisher, std::this_thread::get_id()) << s;
  }
  EXPECT_EQ(time_.waits(), 2u);
  ExpectNothingLeft();
}

// A breadcrumb's words are read one after the other, so its operator may be that of the next task.
TEST_F(DeviceQueueStatesTest, TheLimitOfARunningTaskIsThatOfItsOwnOperator) {
  constexpr uint32_t kOwn = 40, kNext = 41;
  const auto batch = NewBatch(1);
  batch->batch->tasks[0].operator_slot = kOwn;
  ASSERT_TRUE(Enqueue(*batch).ok());
  AwaitInFlight(1);
  device_.Run(/*worker=*/3, /*sequence=*/0, kNext);
  std::set<uint32_t> asked;
  std::vector<OverdueTask> overdue;
  for (int i = 0; i < 2; ++i) {  // The first call sees when the task began to run.
    overdue = queue_.FindOverdue([&](uint32_t slot) {
      asked.insert(slot);
      return std::chrono::nanoseconds(-1);
    });
  }
  EXPECT_EQ(asked, std::set<uint32_t>{kOwn});
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].operator_slot, kOwn);
  device_.Complete(0);
  batch->Wait();
}

// The limit of a graph is that of the node that a worker executes, and its time starts again with
// each node and each step.
TEST_F(DeviceQueueStatesTest, TheNodesOfAGraphAreWatchedOneByOne) {
  constexpr uint32_t kFirst = 40, kSecond = 42;
  const auto graph = NewGraph(kFirst, kSecond);
  ASSERT_TRUE(Enqueue(*graph).ok());
  AwaitInFlight(1);
  const auto find = [&](std::chrono::nanoseconds limit) {
    return queue_.FindOverdue([&](uint32_t slot) {
      return slot == kSecond ? limit : std::chrono::nanoseconds(std::chrono::hours(1));
    });
  };
  const auto at_once = std::chrono::nanoseconds(-1);
  device_.Run(/*worker=*/3, /*sequence=*/0, kFirst, PackGraphTask(0, 0));
  EXPECT_TRUE(find(at_once).empty());
  EXPECT_TRUE(find(at_once).empty());
  for (uint32_t step = 0; step < 3; ++step) {
    device_.Run(3, 0, kSecond, PackGraphTask(1, step));
    EXPECT_TRUE(find(at_once).empty());  // Seen for the first time.
  }
  const std::vector<OverdueTask> overdue = find(at_once);
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].operator_slot, kSecond);
  EXPECT_EQ(queue_.RunningSlots(), std::vector<uint32_t>{kSecond});
  device_.Complete(0);
  graph->Wait();
}

// A graph is suspected if one of its workers ran a suspected operator, and knows the node.
TEST_F(DeviceQueueStatesTest, TheSuspectOfAGraphIsTheNodeThatRan) {
  constexpr uint32_t kGood = 40, kBad = 42;
  const auto guilty = NewGraph(kGood, kBad);
  const auto bystander = NewGraph(kGood, kBad);
  ASSERT_TRUE(Enqueue(*guilty).ok());
  AwaitInFlight(1);
  ASSERT_TRUE(Enqueue(*bystander, kBob).ok());
  AwaitInFlight(2);
  device_.Run(/*worker=*/0, /*sequence=*/1, kGood, PackGraphTask(0, 5));
  device_.Run(/*worker=*/1, /*sequence=*/0, kGood, PackGraphTask(0, 7));
  device_.Run(/*worker=*/2, /*sequence=*/0, kBad, PackGraphTask(1, 7));
  queue_.LoseRing("it faulted", {kBad});
  guilty->Wait();
  bystander->Wait();
  EXPECT_EQ(guilty->batch->status[0], TaskStatus::kAborted);
  EXPECT_EQ(guilty->batch->suspect, PackGraphTask(1, 7));
  EXPECT_EQ(bystander->batch->status[0], TaskStatus::kUnavailable);
  EXPECT_EQ(bystander->batch->suspect, std::nullopt);
}

// No worker owns a graph, so that tasks behind more graphs than workers complete.
TEST_F(DeviceQueueStatesTest, TasksBehindManyGraphsAreFound) {
  constexpr uint32_t kGraphs = ManualDevice::kWorkers + 4;
  std::vector<std::shared_ptr<Pending>> graphs;
  for (uint32_t i = 0; i < kGraphs; ++i) {
    graphs.push_back(NewGraph(40, 42));
    ASSERT_TRUE(Enqueue(*graphs.back()).ok());
  }
  AwaitInFlight(kGraphs);
  const auto task = NewBatch(1);
  ASSERT_TRUE(Enqueue(*task, kBob).ok());
  AwaitInFlight(kGraphs + 1);
  device_.Complete(kGraphs);
  EXPECT_TRUE(task->done.WaitForNotificationWithTimeout(absl::Seconds(20)));
  for (uint32_t i = 0; i < kGraphs; ++i) device_.Complete(i);
  for (const auto& graph : graphs) graph->Wait();
}

// The owner of a parked engine would resume it without need.
TEST_F(DeviceQueueStatesTest, AQueueWhoseBatchesWereDroppedDoesNotCallForAResume) {
  std::atomic<int> calls = 0;
  {
    ManualDevice device;
    DeviceQueue queue({.max_queued_tasks = kMaxTasks, .max_queued_bytes = kMaxBytes});
    queue.AddClient(kAlice);
    const auto batch = NewBatch(1);
    batch->batch->epoch = queue.SetRing(device.NewRing());
    batch->batch->cancelled = true;
    ASSERT_TRUE(queue.BeginPark().ok());
    ASSERT_TRUE(queue.Enqueue(kAlice, batch->batch).ok());
    queue.NoteCancelled();
    batch->Wait();
    queue.OnWorkWhileParked([&] { ++calls; });
    queue.NoteCancelled();
    EXPECT_TRUE(queue.ParkIfDrained());  // Runs the dispatch loop once.
  }
  EXPECT_EQ(calls, 0);
}

TEST_F(DeviceQueueStatesTest, AParkWhileTheRingIsFullIsSubmittedBeforeQueuedTasks) {
  const auto batch = NewBatch(kMaxTasks);
  ASSERT_TRUE(Enqueue(*batch).ok());
  AwaitInFlight(ManualDevice::kSlots);
  ASSERT_TRUE(queue_.BeginPark().ok());
  EXPECT_EQ(queue_.BeginPark().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(queue_.Hold().code(), absl::StatusCode::kFailedPrecondition);
  const auto later = NewBatch(10);
  ASSERT_TRUE(Enqueue(*later, kBob).ok());
  device_.Complete(0);
  AwaitSubmissions(ManualDevice::kSlots + 1);  // The marker.
  for (uint64_t s = 1; s < ManualDevice::kSlots; ++s) device_.Complete(s);
  AwaitInFlight(0);
  EXPECT_EQ(queue_.counters().next_sequence, ManualDevice::kSlots + 1);
  EXPECT_EQ(queue_.counters().queued_tasks, kMaxTasks - ManualDevice::kSlots + 10);
  // The kernel has left, and has come back.
  queue_.EndPark();
  const uint64_t last = ManualDevice::kSlots + 1 + kMaxTasks - ManualDevice::kSlots + 10;
  AwaitSubmissions(last);
  for (uint64_t s = ManualDevice::kSlots + 1; s < last; ++s) device_.Complete(s);
  batch->Wait();
  later->Wait();
  ExpectNothingLeft();
}

TEST_F(DeviceQueueStatesTest, AParkThatWaitsForRoomEndsWithItsRing) {
  const auto batch = NewBatch(kMaxTasks);
  ASSERT_TRUE(Enqueue(*batch).ok());
  AwaitInFlight(ManualDevice::kSlots);
  ASSERT_TRUE(queue_.BeginPark().ok());
  queue_.LoseRing("the engine was killed by signal 9", {});
  batch->Wait();
  epoch_ = queue_.SetRing(device_.NewRing());
  const auto next = NewBatch(10);
  ASSERT_TRUE(Enqueue(*next).ok());
  AwaitInFlight(10);
  for (uint64_t s = 0; s < 10; ++s) device_.Complete(s);
  next->Wait();
  EXPECT_EQ(queue_.counters().next_sequence, 10u);
}

}  // namespace
}  // namespace resident
