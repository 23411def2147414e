// Lanes of a device's queue, with a device that the test controls: when the dispatch loop takes
// from them, whose turn it is, and when they fall asleep and are woken up.
#include "runtime/queue/lane_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/queue/device_queue.h"
#include "runtime/queue/manual_device.h"

namespace resident {
namespace {

constexpr ClientId kAlice = 1;
constexpr ClientId kBob = 2;

// A lane with a number of submissions that the test sets.
class FakeLane final : public LaneSource {
 public:
  explicit FakeLane(uint32_t operator_slot) : operator_slot_(operator_slot) {}

  bool Ready() const override { return left.load() > 0; }
  Visit Take(uint32_t max_tasks, uint64_t epoch) override {
    Visit visit;
    takes.fetch_add(1);
    if (pending_ != nullptr && pending_->submitted < pending_->count()) return visit;
    pending_ = nullptr;
    const uint32_t count = std::min<uint32_t>(max_tasks, left.load());
    if (count == 0) return visit;
    left.fetch_sub(count);
    visit.consumed = count;
    auto batch = std::make_shared<Batch>();
    batch->epoch = epoch;
    batch->tasks.resize(count);
    for (TaskDescriptor& task : batch->tasks) {
      task.operator_slot = static_cast<u16>(operator_slot_);
      task.flags = flags;
    }
    batch->done = [this](Batch& ended) {
      ended_tasks.fetch_add(ended.count());
      failed_tasks.fetch_add(ended.failed);
    };
    pending_ = batch;
    visit.batch = std::move(batch);
    return visit;
  }
  bool FallAsleep() override {
    asleep = true;
    return !Ready();
  }
  void WakeUp() override { asleep = false; }
  void Notify() override { notified.fetch_add(1); }

  std::atomic<uint32_t> left{0};
  std::atomic<uint32_t> ended_tasks{0};
  std::atomic<uint32_t> failed_tasks{0};
  std::atomic<uint32_t> takes{0};
  std::atomic<uint32_t> notified{0};
  std::atomic<bool> asleep{false};
  std::atomic<u8> flags{kTaskCompact};  // Of its tasks.

 private:
  const uint32_t operator_slot_;
  std::shared_ptr<Batch> pending_;  // Used with the queue's lock.
};

class LaneSourceTest : public ::testing::Test {
 protected:
  explicit LaneSourceTest(uint32_t max_hot_lanes = 16,
                          std::chrono::nanoseconds only_source_time = std::chrono::microseconds(10))
      : queue_({.lane_spin = std::chrono::milliseconds(1),
                .lane_spin_share = 1,
                .max_hot_lanes = max_hot_lanes,
                .only_source_time = only_source_time}) {
    queue_.AddClient(kAlice);
    queue_.AddClient(kBob);
    epoch_ = queue_.SetRing(device_.NewRing());
  }
  std::shared_ptr<FakeLane> NewLane(ClientId client = kAlice, uint32_t operator_slot = 1) {
    auto lane = std::make_shared<FakeLane>(operator_slot);
    queue_.AddLane(client, lane);
    lanes_.push_back(lane);
    return lane;
  }
  void Publish(FakeLane& lane, uint32_t count) {
    lane.left.fetch_add(count);
    if (lane.asleep) queue_.NoteLaneWork(&lane);
  }
  template <typename Condition>
  static void Await(const Condition& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::yield();
    }
  }
  // Completes whatever is in the ring until the condition holds.
  template <typename Condition>
  void CompleteUntil(const Condition& condition) {
    Await([&] {
      while (completed_ < queue_.counters().next_sequence) device_.Complete(completed_++);
      return condition();
    });
  }

  // Publishes a task, waits until it is in the ring, and returns the flags that it has there.
  u8 FlagsInRing(FakeLane& lane) {
    const uint64_t sequence = queue_.counters().next_sequence;
    Publish(lane, 1);
    Await([&] { return queue_.counters().next_sequence > sequence; });
    return device_.Submitted(sequence).flags;
  }
  // The same, and completes it. The next task finds an empty ring.
  u8 RunAndGetFlags(FakeLane& lane) {
    const uint32_t ended = lane.ended_tasks;
    const u8 flags = FlagsInRing(lane);
    CompleteUntil([&] { return lane.ended_tasks > ended; });
    return flags;
  }
  // Bob's batch of one task over gRPC.
  std::shared_ptr<std::atomic<bool>> EnqueueOne() {
    auto batch = std::make_shared<Batch>();
    auto done = std::make_shared<std::atomic<bool>>(false);
    batch->epoch = epoch_;
    batch->tasks.resize(1);
    batch->tasks[0].flags = kTaskCompact;
    batch->done = [done](Batch&) { *done = true; };
    EXPECT_TRUE(queue_.Enqueue(kBob, batch).ok());
    return done;
  }

  ManualDevice device_;
  std::vector<std::shared_ptr<FakeLane>> lanes_;
  DeviceQueue queue_;
  uint64_t epoch_ = 0;
  uint64_t completed_ = 0;
};

TEST_F(LaneSourceTest, WhatAHotLanePublishesIsTakenWithoutACall) {
  const auto lane = NewLane();
  lane->left = 10;
  CompleteUntil([&] { return lane->ended_tasks == 10; });
  EXPECT_EQ(lane->failed_tasks, 0u);
  EXPECT_EQ(queue_.client_counters(kAlice).completed_tasks, 10u);
  EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, 0u);
  Await([&] { return queue_.idle_since() != Clock::time_point::max(); });
}

TEST_F(LaneSourceTest, ALaneWithNothingFallsAsleepAndIsWokenUp) {
  const auto lane = NewLane();
  for (uint32_t i = 1; i <= 20; ++i) {
    Await([&] { return lane->asleep.load(); });
    Publish(*lane, 1);
    CompleteUntil([&] { return lane->ended_tasks == i; });
  }
  EXPECT_EQ(queue_.counters().lane_wakeups, 20u);
}

TEST_F(LaneSourceTest, ManyLanesOfAClientGetTheShareOfOneClient) {
  for (int i = 0; i < 8; ++i) NewLane(kAlice)->left = 1'000'000;
  const auto bob = NewLane(kBob);
  bob->left = 1'000'000;
  uint32_t of_bob = 0;
  CompleteUntil([&] { return (of_bob = bob->ended_tasks) >= 20'000; });
  uint32_t of_alice = 0;
  for (const auto& lane : lanes_) of_alice += lane->ended_tasks;
  of_alice -= of_bob;
  EXPECT_GT(of_alice, of_bob * 9 / 10);
  EXPECT_LT(of_alice, of_bob * 12 / 10);
}

class FewHotLanesTest : public LaneSourceTest {
 protected:
  FewHotLanesTest() : LaneSourceTest(/*max_hot_lanes=*/2) {}
};

TEST_F(FewHotLanesTest, LanesThatHaveNoPlaceTakeTurns) {
  for (int i = 0; i < 9; ++i) NewLane()->left = 1'000'000;
  CompleteUntil([&] {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->ended_tasks > 1000; });
  });
  for (const auto& lane : lanes_) lane->left = 0;
  CompleteUntil([&] {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->asleep.load(); });
  });
  // Those that were asleep wake up in turn, too.
  for (const auto& lane : lanes_) Publish(*lane, 3000);
  CompleteUntil([&] {
    return std::all_of(lanes_.begin(), lanes_.end(),
                       [](const auto& lane) { return lane->left == 0; });
  });
}

TEST_F(LaneSourceTest, AGrpcClientsBatchWaitsOneTurnOfALane) {
  const auto lane = NewLane(kAlice);
  lane->left = 1'000'000;
  CompleteUntil([&] { return lane->ended_tasks > 1000; });
  for (int i = 0; i < 50; ++i) {
    auto batch = std::make_shared<Batch>();
    batch->epoch = epoch_;
    batch->tasks.resize(1);
    batch->tasks[0].flags = kTaskCompact;
    // What the lane has been given when the batch ends: this thread notices the end later, because
    // it goes on completing tasks while the dispatch loop submits them.
    uint32_t ended = 0;
    std::atomic<bool> done{false};
    batch->done = [&](Batch&) {
      ended = lane->ended_tasks;
      done = true;
    };
    const uint32_t before = lane->ended_tasks;
    ASSERT_TRUE(queue_.Enqueue(kBob, batch).ok());
    CompleteUntil([&] { return done.load(); });
    // What is in the ring, and a turn of the lane.
    EXPECT_LT(ended - before, 2000u);
  }
}

TEST_F(LaneSourceTest, NothingIsTakenDuringAParkAndALanesWorkCallsForItsEnd) {
  const auto lane = NewLane();
  std::atomic<bool> called{false};
  queue_.OnWorkWhileParked([&] { called = true; });
  ASSERT_TRUE(queue_.BeginPark().ok());
  Await([&] { return lane->asleep.load(); });
  EXPECT_FALSE(called);
  Publish(*lane, 3);
  Await([&] { return called.load(); });
  EXPECT_EQ(lane->left, 3u);
  completed_ = 1;  // The park marker has a sequence number.
  queue_.EndPark();
  CompleteUntil([&] { return lane->ended_tasks == 3; });
}

TEST_F(LaneSourceTest, NothingIsTakenFromALaneThatWasRemoved) {
  const auto lane = NewLane();
  queue_.RemoveLane(lane.get());
  queue_.RemoveLane(lane.get());
  lane->left = 5;
  queue_.NoteLaneWork(lane.get());
  const auto other = NewLane();
  Publish(*other, 1);
  CompleteUntil([&] { return other->ended_tasks == 1; });
  EXPECT_EQ(lane->left, 5u);
}

TEST_F(LaneSourceTest, ATakenBatchEndsWithItsEngineAndTheRestWaitsForTheNext) {
  const auto lane = NewLane();
  lane->left = 1000;
  // The ring takes some of the first batch.
  Await([&] { return queue_.counters().in_flight > 0 && lane->left < 1000; });
  queue_.LoseRing("the engine ended", {});
  const uint32_t ended = lane->ended_tasks;
  EXPECT_GT(ended, 0u);
  EXPECT_EQ(lane->failed_tasks, ended);
  EXPECT_EQ(queue_.client_counters(kAlice).queued_tasks, 0u);
  Await([&] { return lane->asleep.load(); });  // Nobody polls for a device without an engine.
  completed_ = 0;
  queue_.SetRing(device_.NewRing());
  CompleteUntil([&] { return lane->ended_tasks == 1000; });
  EXPECT_EQ(lane->failed_tasks, ended);
}

TEST_F(LaneSourceTest, ARemovedClientsBatchIsCancelled) {
  const auto lane = NewLane(/*client=*/77);  // It has no queue.
  lane->left = 4;
  CompleteUntil([&] { return lane->ended_tasks == 4; });
  EXPECT_EQ(lane->failed_tasks, 4u);
}

constexpr u8 kSlow = kTaskCompact | kTaskSlowAnswer;

TEST_F(LaneSourceTest, ALoneTaskOfTheOnlySourceSaysThatTheAnswerIsSlow) {
  const auto lane = NewLane();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(RunAndGetFlags(*lane), kSlow);
  // Two at once.
  Publish(*lane, 2);
  CompleteUntil([&] { return lane->ended_tasks == 5; });
  EXPECT_EQ(device_.Submitted(3).flags, kTaskCompact);
  EXPECT_EQ(device_.Submitted(4).flags, kTaskCompact);
  // One while another one is in the ring.
  EXPECT_EQ(FlagsInRing(*lane), kSlow);
  EXPECT_EQ(FlagsInRing(*lane), kTaskCompact);
  CompleteUntil([&] { return lane->ended_tasks == 7; });
  // The poller does not run tasks of the other form itself.
  lane->flags = 0;
  EXPECT_EQ(RunAndGetFlags(*lane), 0);
  lane->flags = kTaskCompact | kTaskDeviceOutputs;
  EXPECT_EQ(RunAndGetFlags(*lane), kSlow | kTaskDeviceOutputs);
}

class OtherSourceLatelyTest : public LaneSourceTest {
 protected:
  OtherSourceLatelyTest() : LaneSourceTest(16, std::chrono::hours(1)) {}
};

TEST_F(OtherSourceLatelyTest, ATaskOfAnotherLaneDelaysNobodyByItsAnswer) {
  const auto lane = NewLane(kAlice), other = NewLane(kAlice, 2);
  EXPECT_EQ(RunAndGetFlags(*lane), kSlow);
  EXPECT_EQ(RunAndGetFlags(*lane), kSlow);
  EXPECT_EQ(RunAndGetFlags(*other), kTaskCompact);
  EXPECT_EQ(RunAndGetFlags(*lane), kTaskCompact);
  EXPECT_EQ(RunAndGetFlags(*lane), kTaskCompact);
}

TEST_F(OtherSourceLatelyTest, ATaskOfTheOnlyLaneBesideGrpcDelaysNobodyByItsAnswer) {
  const auto lane = NewLane();
  EXPECT_EQ(RunAndGetFlags(*lane), kSlow);
  const auto done = EnqueueOne();
  CompleteUntil([&] { return done->load(); });
  EXPECT_EQ(device_.Submitted(1).flags, kTaskCompact);
  EXPECT_EQ(RunAndGetFlags(*lane), kTaskCompact);
}

class OtherSourceEarlierTest : public LaneSourceTest {
 protected:
  OtherSourceEarlierTest() : LaneSourceTest(16, std::chrono::nanoseconds(0)) {}
};

TEST_F(OtherSourceEarlierTest, TheAnswerIsSlowAgainOnceTheOtherSourceHasNothing) {
  const auto lane = NewLane(), other = NewLane(kBob, 2);
  EXPECT_EQ(RunAndGetFlags(*other), kSlow);
  EXPECT_EQ(RunAndGetFlags(*lane), kSlow);
  const auto done = EnqueueOne();
  Await([&] { return queue_.counters().next_sequence == 3; });
  EXPECT_EQ(FlagsInRing(*lane), kTaskCompact);  // The other task is in the ring.
  CompleteUntil([&] { return done->load() && lane->ended_tasks == 2; });
  EXPECT_EQ(RunAndGetFlags(*lane), kSlow);
}

class LaneShareTest : public ::testing::Test {};

TEST_F(LaneShareTest, PollingInVainEndsWhenTheShareIsUsedUp) {
  ManualDevice device;
  DeviceQueue queue({.lane_spin = std::chrono::hours(1), .lane_spin_share = 0.1});
  queue.AddClient(kAlice);
  queue.SetRing(device.NewRing());
  const auto lane = std::make_shared<FakeLane>(1);
  queue.AddLane(kAlice, lane);
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!lane->asleep) ASSERT_LT(std::chrono::steady_clock::now(), until);
  EXPECT_GE(queue.counters().lane_polling, DeviceQueue::kLaneShareWindow / 10);
}

}  // namespace
}  // namespace resident
