#include "runtime/queue/ring_backlog.h"

#include <gtest/gtest.h>

#include <memory>

namespace resident {
namespace {

constexpr uint32_t kQuick = 3, kSlow = 8, kWorkers = 4;
constexpr uint32_t kQuickNs = 1'000, kSlowNs = 5'000'000;

class RingBacklogTest : public ::testing::Test {
 protected:
  RingBacklogTest() { backlog_->Start(kWorkers); }

  // Adds, completes and observes one task of the slot.
  void Complete(uint32_t slot, uint32_t duration_ns) {
    backlog_->Add({slot, 1});
    backlog_->Remove({slot, 1});
    backlog_->Observe(slot, duration_ns);
  }

  // Adds tasks of the slot while there is room; returns how many.
  uint32_t Fill(uint32_t slot) {
    uint32_t count = 0;
    for (; backlog_->HasRoom(); ++count) backlog_->Add({slot, 1});
    return count;
  }

  std::unique_ptr<RingBacklog> backlog_ = std::make_unique<RingBacklog>();
};

TEST_F(RingBacklogTest, UnknownTasksOnlyKeepTheWorkersBusy) {
  EXPECT_EQ(Fill(kSlow), 2 * kWorkers);
}

TEST_F(RingBacklogTest, QuickTasksFillTheTargetDelay) {
  Complete(kQuick, kQuickNs);
  EXPECT_EQ(Fill(kQuick), RingBacklog::kTargetRingDelay.count() * kWorkers / kQuickNs);
}

TEST_F(RingBacklogTest, QuickTasksOfOneOperatorDoNotChangeTheEstimateOfAnother) {
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kQuickNs);
  EXPECT_EQ(Fill(kSlow), 2 * kWorkers);
}

TEST_F(RingBacklogTest, ANewSlowAverageAppliesAtOnceToTheTasksInTheRing) {
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kQuickNs);
  for (int i = 0; i < 200; ++i) backlog_->Add({kQuick, 1});
  EXPECT_TRUE(backlog_->HasRoom());
  backlog_->Remove({kQuick, 1});
  backlog_->Observe(kQuick, kSlowNs);
  EXPECT_FALSE(backlog_->HasRoom());
}

TEST_F(RingBacklogTest, EstimateFollowsTheTasks) {
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kSlowNs);
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kQuickNs);
  backlog_->Add({kQuick, 1});
  EXPECT_NEAR(backlog_->backlog_ns(), kQuickNs, 16);
}

TEST_F(RingBacklogTest, WideTaskCountsForEveryBlockThatMayWorkOnIt) {
  TaskDescriptor task{};
  EXPECT_EQ(backlog_->CountBlocks(task), 1u);
  task.words[1] = 3;
  EXPECT_EQ(backlog_->CountBlocks(task), 3u);
  task.words[1] = 300;
  EXPECT_EQ(backlog_->CountBlocks(task), kWorkers);
  task.flags = kTaskCompact;  // words[1] is an argument.
  EXPECT_EQ(backlog_->CountBlocks(task), 1u);

  backlog_->Add({kSlow, kWorkers});
  EXPECT_TRUE(backlog_->HasRoom());
  backlog_->Add({kSlow, kWorkers});
  EXPECT_FALSE(backlog_->HasRoom());
}

TEST_F(RingBacklogTest, ForgottenSlotIsUnknownAgainWithItsTasksInTheRing) {
  Complete(kQuick, kQuickNs);
  for (int i = 0; i < 100; ++i) backlog_->Add({kQuick, 1});
  EXPECT_TRUE(backlog_->HasRoom());
  backlog_->Forget(kQuick);
  EXPECT_FALSE(backlog_->HasRoom());
  for (int i = 0; i < 100; ++i) backlog_->Remove({kQuick, 1});
  EXPECT_EQ(backlog_->backlog_ns(), 0u);
  Complete(kQuick, kSlowNs);  // The first duration becomes the average.
  backlog_->Add({kQuick, 1});
  EXPECT_EQ(backlog_->backlog_ns(), kSlowNs);
}

TEST_F(RingBacklogTest, ANewRingKeepsEstimatesAndHasNoTasks) {
  Complete(kQuick, kQuickNs);
  Fill(kQuick);
  backlog_->Start(2 * kWorkers);
  EXPECT_EQ(backlog_->backlog_ns(), 0u);
  EXPECT_EQ(Fill(kQuick), RingBacklog::kTargetRingDelay.count() * 2 * kWorkers / kQuickNs);
}

TEST_F(RingBacklogTest, ATaskWithABoundCountsWithThatBoundInAdditionToTheAverage) {
  constexpr uint64_t kBoundNs = 300'000'000;
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kQuickNs);
  uint32_t count = 0;
  for (; backlog_->HasRoom(); ++count) backlog_->Add({kQuick, 1, kBoundNs});
  EXPECT_EQ(count, 2 * kWorkers);
  EXPECT_EQ(backlog_->backlog_ns(), count * (kBoundNs + kQuickNs));
  for (; count > 0; --count) backlog_->Remove({kQuick, 1, kBoundNs});
  EXPECT_EQ(backlog_->backlog_ns(), 0u);
  // With a short bound, the target delay limits the number of tasks.
  for (; backlog_->HasRoom(); ++count) backlog_->Add({kQuick, 1, kQuickNs});
  EXPECT_EQ(count, RingBacklog::kTargetRingDelay.count() * kWorkers / (2 * kQuickNs));
}

TEST_F(RingBacklogTest, ASlotWhoseDurationsVaryWidelyIsUnknownForItsNextTasks) {
  constexpr uint32_t kLongNs = 2 * RingBacklog::kLongTask.count();
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kQuickNs);
  EXPECT_GT(Fill(kQuick), 1000u);
  backlog_->Clear();
  Complete(kQuick, kLongNs);
  // The average is short again long before the next tasks are estimated by it.
  for (int i = 0; i < 1000; ++i) Complete(kQuick, kQuickNs);
  EXPECT_EQ(Fill(kQuick), 2 * kWorkers);
  backlog_->Clear();
  for (uint32_t i = 0; i < RingBacklog::kVaryingTasks; ++i) Complete(kQuick, kQuickNs);
  EXPECT_GT(Fill(kQuick), 1000u);
}

TEST_F(RingBacklogTest, OnlyOneLongTaskForEachWorkerFits) {
  constexpr uint32_t kLongNs = RingBacklog::kMaxBusy.count();
  Complete(kSlow, kLongNs);
  EXPECT_EQ(Fill(kSlow), kWorkers);
}

TEST_F(RingBacklogTest, LongTasksLeaveOneWorkerInEightFree) {
  backlog_->Start(32);
  Complete(kQuick, kQuickNs);
  const RingBacklog::Task long_task{.slot = kSlow, .long_task = true};
  uint32_t count = 0;
  for (; backlog_->HasRoomFor(long_task); ++count) backlog_->Add(long_task);
  EXPECT_EQ(count, 28u);
  // Neither tasks of the same operator that are not long nor others are affected.
  EXPECT_TRUE(backlog_->HasRoomFor({.slot = kSlow}));
  EXPECT_TRUE(backlog_->HasRoomFor({.slot = kQuick}));
  backlog_->Remove(long_task);
  EXPECT_TRUE(backlog_->HasRoomFor(long_task));
  backlog_->Clear();
  EXPECT_TRUE(backlog_->HasRoomFor({.slot = kSlow, .blocks = 28, .long_task = true}));
}

TEST_F(RingBacklogTest, ASlotWithALongAverageCountsAsLongAndALaterShortOneDoesNot) {
  constexpr uint32_t kLongNs = 2 * RingBacklog::kLongForOthers.count();
  backlog_->Start(32);
  Complete(kSlow, kLongNs);
  uint32_t count = 0;
  for (; backlog_->HasRoomFor({kSlow}); ++count) backlog_->Add({kSlow});
  EXPECT_EQ(count, 28u);
  EXPECT_TRUE(backlog_->HasRoomFor({kQuick}));
  // Long tasks of another slot are limited together with them.
  EXPECT_FALSE(backlog_->HasRoomFor({.slot = kQuick, .long_task = true}));
  for (int i = 0; i < 1000; ++i) backlog_->Observe(kSlow, kSlowNs);
  EXPECT_TRUE(backlog_->HasRoomFor({kSlow}));
}

TEST_F(RingBacklogTest, OneLongTaskIsTakenHoweverWideItIs) {
  backlog_->Start(32);
  const RingBacklog::Task wide{.slot = kSlow, .blocks = 32, .long_task = true};
  EXPECT_TRUE(backlog_->HasRoomFor(wide));
  backlog_->Add(wide);
  EXPECT_FALSE(backlog_->HasRoomFor(wide));
  EXPECT_TRUE(backlog_->HasRoomFor({.slot = kQuick}));
}

TEST_F(RingBacklogTest, FewWorkersHaveNoReserve) {
  backlog_->Start(7);
  const RingBacklog::Task long_task{.slot = kSlow, .long_task = true};
  uint32_t count = 0;
  for (; backlog_->HasRoomFor(long_task); ++count) backlog_->Add(long_task);
  EXPECT_EQ(count, 7u);
}

TEST_F(RingBacklogTest, SlotsThatNoDeviceHasAreNotOutOfBounds) {
  Complete(UINT16_MAX, kQuickNs);
  EXPECT_EQ(backlog_->blocks(), 0u);
}

}  // namespace
}  // namespace resident
