#include "runtime/ring/host_ring.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/graph/graph_task.h"
#include "runtime/ring/slot_codec.h"

namespace resident {
namespace {

constexpr uint32_t kSlots = 64;
constexpr uint32_t kWorkers = 4;

// A ring whose tasks end when the test says so.
class HostRingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto region = SharedRegion::Create(kSlots, /*staging_bytes=*/1 << 20);
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = std::move(*region);
    ring_.emplace(region_, kWorkers);
  }

  uint64_t Publish(u8 flags) {
    const uint64_t sequence = *ring_->Reserve();
    TaskDescriptor task{};
    task.flags = flags;
    ring_->Publish(sequence, task);
    return sequence;
  }
  std::vector<uint64_t> PublishTasks(uint32_t count) {
    std::vector<uint64_t> tasks;
    for (uint32_t i = 0; i < count; ++i) tasks.push_back(Publish(kTaskCompact));
    return tasks;
  }
  void End(uint64_t sequence) {
    WriteSlot(region_->completions()[sequence % kSlots], TaskCompletion{}, sequence);
  }
  std::vector<uint64_t> Consume(uint32_t max_uncompleted = UINT32_MAX) {
    std::vector<uint64_t> ended;
    ring_->Consume([&](uint64_t sequence, const TaskCompletion&) { ended.push_back(sequence); },
                   UINT32_MAX, max_uncompleted);
    return ended;
  }

  std::shared_ptr<SharedRegion> region_;
  std::optional<HostRing> ring_;
};

TEST_F(HostRingTest, AScanEndsAtAsManyTasksAsItIsAsked) {
  const std::vector<uint64_t> tasks = PublishTasks(4);
  End(tasks[0]);
  End(tasks[2]);
  EXPECT_EQ(Consume(1), (std::vector<uint64_t>{tasks[0]}));
  EXPECT_EQ(Consume(1), std::vector<uint64_t>());
  EXPECT_EQ(Consume(2), (std::vector<uint64_t>{tasks[2]}));
  EXPECT_EQ(ring_->in_flight(), 2u);
}

// A graph takes milliseconds. The tasks behind it are found while it runs, without reading the
// slots of more of them that have not ended.
TEST_F(HostRingTest, AGraphDoesNotEndAScan) {
  const uint64_t graphs[] = {Publish(kTaskGraph), Publish(kTaskGraph)};
  const std::vector<uint64_t> tasks = PublishTasks(4);
  End(tasks[0]);
  End(tasks[2]);
  EXPECT_EQ(Consume(1), (std::vector<uint64_t>{tasks[0]}));
  EXPECT_EQ(Consume(1), std::vector<uint64_t>());
  End(graphs[1]);
  EXPECT_EQ(Consume(1), (std::vector<uint64_t>{graphs[1]}));
  EXPECT_EQ(Consume(), (std::vector<uint64_t>{tasks[2]}));
}

// The engine of a GPU waits for it without being counted among the sleepers.
TEST_F(HostRingTest, EachGraphChangesTheDoorbellAndTasksDoNot) {
  const uint32_t before = region_->control()->doorbell;
  PublishTasks(3);
  EXPECT_EQ(region_->control()->doorbell, before);
  Publish(kTaskGraph);
  Publish(kTaskGraph);
  EXPECT_EQ(region_->control()->doorbell, before + 2);
}

TEST_F(HostRingTest, ATaskInTheSlotOfAnEarlierGraphEndsAScan) {
  End(Publish(kTaskGraph));
  Consume();
  for (uint32_t i = 1; i < kSlots; ++i) {
    End(Publish(kTaskCompact));
    Consume();
  }
  ASSERT_EQ(Publish(kTaskCompact), kSlots);
  const uint64_t behind = Publish(kTaskCompact);
  End(behind);
  EXPECT_EQ(Consume(1), std::vector<uint64_t>());
  EXPECT_EQ(Consume(2), (std::vector<uint64_t>{behind}));
}

// Tasks start in their order on the workers, so that none has ended behind as many that have not.
TEST_F(HostRingTest, NoMoreTasksAreReadThanCanHaveBegun) {
  Publish(kTaskGraph);
  const std::vector<uint64_t> tasks = PublishTasks(kWorkers + 1);
  End(tasks[kWorkers]);
  EXPECT_EQ(Consume(), std::vector<uint64_t>());
  End(tasks[0]);
  EXPECT_EQ(Consume(), (std::vector<uint64_t>{tasks[0], tasks[kWorkers]}));
}

}  // namespace
}  // namespace resident
