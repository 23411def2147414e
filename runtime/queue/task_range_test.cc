// Ranges with a real engine in this process: a range equals its tasks one by one. As for
// device_queue_test.cc, RESIDENT_TEST_ENGINE selects the engine.
#include "runtime/queue/task_range.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "runtime/queue/device_queue.h"
#include "runtime/queue/operator_stats.h"
#include "tests/support/engine_harness.h"
#include "tests/support/queue_test.h"

namespace resident {
namespace {

using testing::Bits;
using testing::CompactTask;
using testing::DenseTensor;
using testing::EngineHarness;
using testing::OperatorSlot;
using testing::Scalar;

class TaskRangeTest : public testing::QueueTest {
 protected:
  static void SetUpTestSuite() {
    EngineHarness::Options options;
    options.staging_bytes = uint64_t{128} << 20;
    StartEngine(options);
  }

  std::shared_ptr<Pending> Run(std::shared_ptr<Pending> pending, ClientId client = 1) {
    Start(pending, client);
    pending->Wait();
    return pending;
  }
  void Start(const std::shared_ptr<Pending>& pending, ClientId client = 1) {
    Prepare(*pending);
    ASSERT_TRUE(queue_.Enqueue(client, pending->batch).ok());
  }

  // A column of `count` values in staging memory.
  struct Column {
    RangeColumn column{};
    const uint64_t* values = nullptr;
  };
  Column Progression(uint64_t base, uint64_t stride) const {
    return {{.base = base, .stride = stride, .values = 0, .reserved = 0}, nullptr};
  }
  Column Values(const std::vector<uint64_t>& values) const {
    const auto memory = harness_->Staging(values.size() * sizeof(uint64_t));
    std::memcpy(memory.host, values.data(), values.size() * sizeof(uint64_t));
    Column column = Progression(0, 0);
    column.column.values = memory.address;
    column.values = memory.as<uint64_t>();
    return column;
  }

  // A range of tasks in compact form, with tensors of n elements.
  std::shared_ptr<Pending> CompactRange(const char* name, uint32_t count, uint64_t n,
                                        const std::vector<Column>& columns, bool times = false) {
    auto pending =
        MakeRange(name, count, std::vector<Argument>(columns.size(), Scalar(0)), columns, times);
    auto range = std::make_unique<TaskRange>(*pending->batch->range);
    range->descriptor.flags = kTaskCompact;
    range->descriptor.elements = n;
    pending->batch->range = std::move(range);
    return pending;
  }

  // A range of tasks whose arguments are like these.
  std::shared_ptr<Pending> MakeRange(const char* name, uint32_t count,
                                     const std::vector<Argument>& arguments,
                                     const std::vector<Column>& columns, bool times = false) {
    auto range = std::make_unique<TaskRange>();
    range->count = count;
    range->descriptor.operator_slot = static_cast<u16>(OperatorSlot(name));
    range->descriptor.options = times ? u32{kRangeTimes} : 0;
    const auto outcomes = harness_->Staging(count * sizeof(RangeOutcome));
    std::memset(outcomes.host, 0, count * sizeof(RangeOutcome));
    range->descriptor.outcomes = outcomes.address;
    range->outcomes = outcomes.as<RangeOutcome>();
    range->arguments = arguments;
    for (const Column& column : columns) {
      range->columns.push_back(column.column);
      range->values.push_back(column.values);
    }
    auto pending = std::make_shared<Pending>();
    pending->batch->range = std::move(range);
    return pending;
  }

  // The tasks of a range, one by one.
  static std::shared_ptr<Pending> OneByOne(const TaskRange& range) {
    auto pending = std::make_shared<Pending>();
    std::vector<Argument> arguments;
    for (uint32_t i = 0; i < range.count; ++i) {
      pending->batch->tasks.push_back(range.Describe(i, &arguments));
      pending->batch->arguments_per_task = static_cast<uint32_t>(arguments.size());
      pending->batch->arguments.insert(pending->batch->arguments.end(), arguments.begin(),
                                       arguments.end());
    }
    return pending;
  }

  std::mt19937_64 random_{std::random_device{}()};
};

constexpr uint32_t kPoison = 0xf1f2f3f4;

TEST_F(TaskRangeTest, EqualsItsCompactTasksBitForBit) {
  for (const uint32_t n : {1u, 33u, 64u, 257u}) {
    for (const uint32_t count : {1u, 2u, 31u, 33u, 256u, 3001u}) {
      const uint64_t bytes = uint64_t{count} * n * sizeof(float);
      auto x = harness_->Staging(bytes), y = harness_->Staging(bytes);
      auto out = harness_->Staging(bytes), expected = harness_->Staging(bytes);
      for (uint64_t i = 0; i < uint64_t{count} * n; ++i) {
        x.as<uint32_t>()[i] = 0x3f000000 | static_cast<uint32_t>(random_() >> 41);
        y.as<uint32_t>()[i] = 0x3f000000 | static_cast<uint32_t>(random_() >> 41);
        out.as<uint32_t>()[i] = expected.as<uint32_t>()[i] = kPoison;
      }
      // x in any order, y backwards, and another factor for each task.
      std::vector<uint64_t> order, factors;
      for (uint32_t i = 0; i < count; ++i) {
        order.push_back(x.address + (random_() % count) * n * sizeof(float));
        factors.push_back(Bits(static_cast<float>(random_() % 100)));
      }
      const uint64_t row = n * sizeof(float);
      const std::vector<Column> inputs = {Values(order),
                                          Progression(y.address + (count - 1) * row, -row)};
      std::vector<Column> columns = inputs;
      columns.push_back(Progression(out.address, row));
      columns.push_back(Values(factors));
      const auto range = Run(CompactRange("add", count, n, columns));
      columns[2] = Progression(expected.address, row);
      const auto tasks = Run(OneByOne(*CompactRange("add", count, n, columns)->batch->range));
      EXPECT_EQ(range->batch->failed, 0u);
      EXPECT_EQ(range->batch->finished, count);
      EXPECT_EQ(tasks->batch->failed, 0u);
      ASSERT_EQ(std::memcmp(out.host, expected.host, bytes), 0) << n << " x " << count;
    }
  }
}

TEST_F(TaskRangeTest, EqualsItsTasksWithArgumentBlocks) {
  constexpr int64_t kRows = 3, kColumns = 37;
  constexpr uint32_t kCount = 1500;
  constexpr uint64_t kBytes = kRows * kColumns * sizeof(uint16_t);
  auto x = harness_->Staging(kCount * kBytes);
  auto out = harness_->Staging(kCount * kBytes), expected = harness_->Staging(kCount * kBytes);
  for (uint64_t i = 0; i < kCount * kRows * kColumns; ++i) {
    x.as<uint16_t>()[i] = static_cast<uint16_t>(0x3800 | random_() % 1024);
    out.as<uint16_t>()[i] = expected.as<uint16_t>()[i] = 0x7bad;
  }
  const std::vector<Argument> arguments = {DenseTensor(0, DType::kF16, {kRows, kColumns}),
                                           DenseTensor(0, DType::kF16, {kRows, kColumns})};
  const Column from = Progression(x.address, kBytes);
  const auto range =
      Run(MakeRange("softmax", kCount, arguments, {from, Progression(out.address, kBytes)}));
  const auto tasks = Run(OneByOne(
      *MakeRange("softmax", kCount, arguments, {from, Progression(expected.address, kBytes)})
           ->batch->range));
  EXPECT_EQ(range->batch->failed, 0u);
  EXPECT_EQ(tasks->batch->failed, 0u);
  EXPECT_EQ(std::memcmp(out.host, expected.host, kCount * kBytes), 0);
}

TEST_F(TaskRangeTest, EveryTaskRunsExactlyOnce) {
  constexpr uint32_t kCount = 300'000;
  auto cells = harness_->Staging(kCount * sizeof(float));
  std::memset(cells.host, 0, kCount * sizeof(float));
  OperatorStats stats("test.count", 1);
  auto range = CompactRange("test.count", kCount, 1, {Progression(cells.address, sizeof(float))});
  range->batch->stats = &stats;
  Run(range);
  EXPECT_EQ(range->batch->failed, 0u);
  EXPECT_TRUE(range->batch->status.empty());
  EXPECT_TRUE(range->batch->device_ns.empty());
  EXPECT_GT(range->batch->range_ns, 0u);
  EXPECT_EQ(std::count(cells.as<float>(), cells.as<float>() + kCount, 1.0f), kCount);
  EXPECT_EQ(stats.tasks(0), kCount);
  uint64_t observed = 0;
  for (int b = 0; b < DurationHistogram::kBuckets; ++b) observed += stats.device.count(b);
  EXPECT_EQ(observed, kCount);
}

TEST_F(TaskRangeTest, ManyClientsRangesAndTasksAllComplete) {
  constexpr uint32_t kCount = 5000;
  auto cells = harness_->Staging(kCount * sizeof(float));
  std::memset(cells.host, 0, kCount * sizeof(float));
  const Column column = Progression(cells.address, sizeof(float));
  std::vector<std::shared_ptr<Pending>> all;
  for (int i = 0; i < 20; ++i) {
    auto pending = CompactRange("test.count", kCount, 1, {column});
    all.push_back(i % 3 == 2 ? OneByOne(*pending->batch->range) : pending);
    Start(all.back(), i % 2 == 0 ? 1 : 2);
  }
  for (const auto& pending : all) pending->Wait();
  EXPECT_EQ(std::count(cells.as<float>(), cells.as<float>() + kCount, 20.0f), kCount);
}

TEST_F(TaskRangeTest, EachFailedTaskHasItsStatusAndDetail) {
  constexpr uint32_t kCount = 2000;
  auto out = harness_->Staging(64);
  // The tasks refuse with their own number; 0 is a refusal too.
  auto range =
      CompactRange("test.refuse", kCount, 1, {Progression(out.address, 0), Progression(0, 3)});
  Run(range);
  EXPECT_EQ(range->batch->failed, kCount);
  ASSERT_EQ(range->batch->status.size(), kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(range->batch->status[i], TaskStatus::kInvalidArgument) << i;
    ASSERT_EQ(range->batch->detail[i], 3 * i) << i;
  }
}

TEST_F(TaskRangeTest, AnEmptyOperatorSlotIsAnErrorOfEachTask) {
  auto range = CompactRange("test.refuse", 300, 1, {});
  auto changed = std::make_unique<TaskRange>(*range->batch->range);
  changed->descriptor.operator_slot = kMaxOperatorSlots - 1;
  range->batch->range = std::move(changed);
  Run(range);
  EXPECT_EQ(range->batch->failed, 300u);
  for (const TaskStatus status : range->batch->status) EXPECT_EQ(status, TaskStatus::kInternal);
}

TEST_F(TaskRangeTest, TheTimesOfTasksAreMeasuredOnRequest) {
  auto out = harness_->Staging(4096);
  constexpr uint32_t kCount = 300;
  std::vector<uint64_t> durations;
  for (uint32_t i = 0; i < kCount; ++i) durations.push_back(i % 2 == 0 ? 1'000 : 200'000);
  const auto range = Run(CompactRange(
      "test.spin", kCount, 1, {Progression(out.address, 0), Values(durations)}, /*times=*/true));
  ASSERT_EQ(range->batch->device_ns.size(), kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    // The clock of a GPU advances in steps.
    EXPECT_GE(range->batch->device_ns[i] + 2'000, durations[i]) << i;
  }
}

TEST_F(TaskRangeTest, CancellationSkipsWhatIsNotInTheRing) {
  auto out = harness_->Staging(64);
  constexpr uint32_t kCount = 100'000;
  auto range = CompactRange("test.spin", kCount, 1,
                            {Progression(out.address, 0), Progression(1'000'000, 0)});
  Start(range);
  while (queue_.counters().in_flight == 0) std::this_thread::yield();
  range->batch->cancelled = true;
  queue_.NoteCancelled();
  range->done.WaitForNotification();  // All its tasks would take 100 s of the workers' time.
  const auto& status = range->batch->status;
  EXPECT_EQ(range->batch->finished, kCount);
  EXPECT_GT(std::count(status.begin(), status.end(), TaskStatus::kCancelled), kCount / 2);
  EXPECT_GT(std::count(status.begin(), status.end(), TaskStatus::kOk), 0);
}

TEST_F(TaskRangeTest, ALoneTaskOvertakesAnotherClientsRange) {
  auto out = harness_->Staging(64);
  const uint32_t workers = harness_->info().workers;
  auto range = CompactRange("test.spin", 20'000 * workers, 1,
                            {Progression(out.address, 0), Progression(100'000, 0)});
  Start(range);
  while (queue_.counters().in_flight == 0) std::this_thread::yield();
  auto lone = CompactRange("test.count", 1, 1, {Progression(out.address, 0)});
  Run(lone, 2);
  EXPECT_FALSE(range->done.HasBeenNotified());
  EXPECT_GT(queue_.client_counters(1).queued_tasks, 15'000 * workers);
  range->batch->cancelled = true;
  queue_.NoteCancelled();
  range->done.WaitForNotification();
}

TEST_F(TaskRangeTest, TasksOfARangeAreNotOverdueTogether) {
  auto out = harness_->Staging(64);
  const uint32_t workers = harness_->info().workers;
  // After many quick tasks, workers claim several at a time: 4 of the first 16 for each of them.
  queue_.ForgetEstimate(OperatorSlot("test.spin"));
  Run(CompactRange("test.spin", 3000, 1, {Progression(out.address, 0), Progression(500, 0)}));
  // A claim takes 0.8 s, and each of its tasks 0.2 s, or some times that on a busy machine.
  constexpr auto kOverdue = std::chrono::milliseconds(700);
  auto range = CompactRange("test.spin", 16 * workers, 1,
                            {Progression(out.address, 0), Progression(200'000'000, 0)});
  Start(range);
  while (!range->done.HasBeenNotified()) {
    for (const OverdueTask& task : queue_.FindOverdue(kOverdue)) {
      EXPECT_LT(task.running, kOverdue) << "overdue";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST_F(TaskRangeTest, AnOverdueTaskOfARangeIsFoundWithItsArguments) {
  auto out = harness_->Staging(64);
  constexpr uint64_t kLong = 1'000'000'000;
  std::vector<uint64_t> durations(10, 1'000);
  durations[7] = kLong;
  queue_.ForgetEstimate(OperatorSlot("test.spin"));
  auto range = CompactRange("test.spin", 10, 1, {Progression(out.address, 0), Values(durations)});
  Start(range);
  std::vector<OverdueTask> overdue;
  std::vector<RunningTask> running;
  // On a busy machine a short task can be overdue, too, and one that no worker has begun yet.
  const auto only_the_long_one = [&] {
    return overdue.size() == 1 && overdue[0].operator_slot != kNoOperatorSlot &&
           running.size() == 1 && running[0].task.compact_argument(1) == kLong;
  };
  while (!only_the_long_one() && !range->done.HasBeenNotified()) {
    overdue = queue_.FindOverdue(std::chrono::milliseconds(20));
    running = queue_.RunningTasks();
    std::this_thread::yield();
  }
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].operator_slot, OperatorSlot("test.spin"));
  ASSERT_EQ(running.size(), 1u);
  EXPECT_EQ(running[0].task.elements(), 1u);
  EXPECT_EQ(running[0].task.compact_argument(0), out.address);
  EXPECT_EQ(running[0].task.compact_argument(1), kLong);
  range->done.WaitForNotification();
}

TEST_F(TaskRangeTest, ALostRingEndsThePiecesInItAndTheRest) {
  // No engine uses this ring: submitted pieces stay in it.
  std::shared_ptr<SharedRegion> region = *SharedRegion::Create(64, 4096);
  DeviceQueue queue{DeviceQueue::Options{}};
  queue.AddClient(1);
  const uint64_t epoch = queue.SetRing(std::make_shared<HostRing>(region, 32));
  auto range = CompactRange("test.count", 10'000, 1, {Progression(0, 4)});
  range->batch->epoch = epoch;
  range->batch->done = [p = range.get()](Batch&) { p->done.Notify(); };
  ASSERT_TRUE(queue.Enqueue(1, range->batch).ok());
  while (queue.counters().in_flight < 2) std::this_thread::yield();
  queue.LoseRing("the engine was killed by signal 9", {OperatorSlot("test.count")});
  range->done.WaitForNotification();
  const auto& status = range->batch->status;
  ASSERT_EQ(status.size(), 10'000u);
  // Two tasks for each worker, because no duration is known.
  EXPECT_EQ(std::count(status.begin(), status.end(), TaskStatus::kAborted), 64);
  EXPECT_EQ(std::count(status.begin(), status.end(), TaskStatus::kUnavailable), 10'000 - 64);
  EXPECT_EQ(range->batch->failed, 10'000u);
}

}  // namespace
}  // namespace resident
