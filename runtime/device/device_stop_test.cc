// Tasks that are stopped while they run, by their time limit, a deadline or a cancellation: they
// end alone, and the engine and all other tasks continue.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "runtime/queue/batch.h"
#include "tests/support/lane_tests.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

constexpr auto kTimeLimit = static_cast<uint16_t>(StopReason::kTimeLimit);
constexpr auto kDeadline = static_cast<uint16_t>(StopReason::kDeadline);
constexpr auto kCancelled = static_cast<uint16_t>(StopReason::kCancelled);

DeviceOptions WithLimit(milliseconds limit) {
  DeviceOptions options = DeviceHarness::Options();
  options.task_time_limit = limit;
  // These tests must not pass because the engine was replaced.
  options.stop_grace = std::chrono::minutes(1);
  return options;
}

class DeviceStopTest : public ::testing::Test {
 protected:
  explicit DeviceStopTest(milliseconds limit = milliseconds(0))
      : harness_(WithLimit(limit)), pid_(harness_.engine_pid()), out_(harness_.MakeFloats(256)) {}

  ~DeviceStopTest() override {
    EXPECT_EQ(harness_.engine_pid(), pid_);
    const Floats counters = harness_.MakeFloats(100);
    EXPECT_EQ(harness_.Run(harness_.CountTasks(counters))->failed, 0u);
    for (uint32_t i = 0; i < counters.count; ++i) EXPECT_EQ(counters.host()[i], 1.0f);
  }

  DeviceQueue& queue() { return harness_.device().queue(); }

  TaskDescriptor Hang(uint32_t i = 0) const {
    return DeviceHarness::Task("test.until_stopped", 1, {out_.address(i)});
  }
  TaskDescriptor Count(uint32_t i) const {
    return DeviceHarness::Task("test.count", 1, {out_.address(i)});
  }
  std::shared_ptr<Batch> MakeBatch(std::vector<TaskDescriptor> tasks) {
    auto batch = harness_.MakeBatch(std::move(tasks));
    batch->keep_alive.push_back(out_.memory);
    return batch;
  }
  // A task whose chunks each take this long.
  std::shared_ptr<Batch> Wide(uint64_t chunks, std::chrono::nanoseconds time) {
    TaskDescriptor task{};
    task.operator_slot = OperatorSlot("test.spin");
    task.set_argument_count(2);
    task.set_chunks(chunks);
    Argument out{};
    out.tensor = {.address = out_.address(),
                  .dtype = DType::kF32,
                  .rank = 1,
                  .reserved = {},
                  .shape = {out_.count},
                  .strides = {1}};
    Argument ns{};
    ns.scalar_bits = static_cast<uint64_t>(time.count());
    auto batch = MakeBatch({task});
    batch->arguments = {out, ns};
    batch->arguments_per_task = 2;
    return batch;
  }
  // `count` tasks that hang, or that count if `hang` is not set.
  std::shared_ptr<Batch> Range(uint32_t count) {
    auto memory = harness_.device().session()->AllocateStaging(count * sizeof(RangeOutcome));
    EXPECT_TRUE(memory.ok()) << memory.status();
    auto* const outcomes = reinterpret_cast<RangeOutcome*>((*memory)->host);
    for (uint32_t i = 0; i < count; ++i) outcomes[i] = {};
    auto range = std::make_unique<TaskRange>();
    range->count = count;
    range->descriptor.operator_slot = OperatorSlot("test.until_stopped");
    range->descriptor.flags = kTaskCompact;
    range->descriptor.elements = 1;
    range->descriptor.outcomes = (*memory)->address;
    range->arguments.resize(1);
    range->columns = {
        {.base = out_.address(), .stride = sizeof(float), .values = 0, .reserved = 0}};
    range->values = {nullptr};
    range->outcomes = outcomes;
    auto batch = MakeBatch({});
    batch->range = std::move(range);
    batch->keep_alive.push_back(*memory);
    return batch;
  }
  bool AwaitRunning(uint32_t tasks = 1) {
    return Eventually([&] { return queue().RunningTasks().size() >= tasks; });
  }
  void Cancel(const Submission& submission) {
    submission.batch->cancelled = true;
    queue().NoteCancelled();
  }

  DeviceHarness harness_;
  const pid_t pid_;
  const Floats out_;
};

TEST_F(DeviceStopTest, ADeadlineStopsATaskThatRuns) {
  auto batch = MakeBatch({Hang(), Hang(1)});
  batch->deadline = Clock::now() + milliseconds(500);
  const auto ended = harness_.Run(std::move(batch));
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ended->status[i], TaskStatus::kDeadlineExceeded);
  }
  EXPECT_EQ(ended->detail[0], kDeadline);
  EXPECT_GT(out_.host()[0], 0.0f);  // It ran.
  EXPECT_GE(queue().counters().stopped[kDeadline], 1u);
}

TEST_F(DeviceStopTest, ACancellationStopsATaskThatRuns) {
  const Submission hang = harness_.Submit(MakeBatch({Hang()}));
  ASSERT_TRUE(AwaitRunning());
  Cancel(hang);
  ASSERT_TRUE(hang.Await());
  EXPECT_EQ(hang.batch->status[0], TaskStatus::kCancelled);
  EXPECT_EQ(hang.batch->detail[0], kCancelled);
  const DurationHistogram& stops = harness_.device().stop_duration();
  uint64_t counted = 0;
  for (int bucket = 0; bucket < DurationHistogram::kBuckets; ++bucket) {
    counted += stops.count(bucket);
  }
  EXPECT_EQ(counted, 1u);
  EXPECT_GT(stops.sum_ns(), 0u);
}

// One on the poller's block, and one on another.
TEST_F(DeviceStopTest, ACancellationStopsTasksForWhichAParkWaits) {
  const Submission first = harness_.Submit(MakeBatch({Hang(0)}));
  ASSERT_TRUE(AwaitRunning(1));
  const Submission second = harness_.Submit(MakeBatch({Hang(1)}));
  ASSERT_TRUE(AwaitRunning(2));
  std::thread park([&] { EXPECT_TRUE(harness_.device().Park().ok()); });
  for (const Submission& hang : {first, second}) {
    Cancel(hang);
    EXPECT_TRUE(hang.Await());
    EXPECT_EQ(hang.batch->status[0], TaskStatus::kCancelled);
    EXPECT_EQ(hang.batch->detail[0], kCancelled);
  }
  park.join();
  EXPECT_TRUE(harness_.device().Resume().ok());
}

TEST_F(DeviceStopTest, OnlyTheTaskThatIsCancelledIsStopped) {
  const Submission first = harness_.Submit(MakeBatch({Hang(0)}));
  ASSERT_TRUE(AwaitRunning(1));
  const Submission second = harness_.Submit(MakeBatch({Hang(1)}));
  ASSERT_TRUE(AwaitRunning(2));
  Cancel(second);
  ASSERT_TRUE(second.Await());
  EXPECT_EQ(second.batch->status[0], TaskStatus::kCancelled);
  EXPECT_EQ(*first.done, 0);
  EXPECT_EQ(queue().RunningTasks().size(), 1u);
  Cancel(first);
  ASSERT_TRUE(first.Await());
  EXPECT_EQ(first.batch->status[0], TaskStatus::kCancelled);
}

// The chunks of an operator that cannot be stopped are not started any more.
TEST_F(DeviceStopTest, AWideTaskEndsBetweenItsChunks) {
  const Submission wide = harness_.Submit(Wide(100'000, std::chrono::microseconds(100'000)));
  ASSERT_TRUE(AwaitRunning());
  Cancel(wide);
  ASSERT_TRUE(wide.Await());  // All chunks would take minutes.
  EXPECT_EQ(wide.batch->status[0], TaskStatus::kCancelled);
  EXPECT_EQ(wide.batch->detail[0], kCancelled);
}

TEST_F(DeviceStopTest, ADeadlineEndsAllTasksOfARange) {
  auto batch = Range(100);
  batch->deadline = Clock::now() + milliseconds(100);
  const auto ended = harness_.Run(std::move(batch));
  EXPECT_EQ(ended->failed, 100u);
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(ended->status[i], TaskStatus::kDeadlineExceeded) << "task " << i;
  }
}

TEST_F(DeviceStopTest, TasksBehindOneThatIsStoppedRunInTheSameBatch) {
  auto batch = MakeBatch({Count(0), Hang(1), Count(2)});
  batch->in_order = true;
  const Submission submission = harness_.Submit(std::move(batch));
  ASSERT_TRUE(Eventually([&] { return out_.host()[1] > 0; }));
  Cancel(submission);
  ASSERT_TRUE(submission.Await());
  EXPECT_EQ(submission.batch->status[0], TaskStatus::kOk);
  EXPECT_EQ(submission.batch->status[1], TaskStatus::kCancelled);
  EXPECT_EQ(submission.batch->detail[1], kCancelled);
  EXPECT_EQ(submission.batch->status[2], TaskStatus::kCancelled);
  EXPECT_EQ(submission.batch->detail[2], 0);  // It did not run.
  EXPECT_EQ(out_.host()[2], 0.0f);
}

// Whatever an operator overwrites of its block's state, later tasks of the block are right.
TEST_F(DeviceStopTest, StrayStoresToABlocksStateChangeNoOtherTask) {
  const TaskDescriptor stray = DeviceHarness::Task("test.stray_stores", 1, {out_.address()});
  const Floats counters = harness_.MakeFloats(2000);
  for (int round = 0; round < 5; ++round) {
    // More than there are workers, and one alone.
    const auto strays = harness_.Run(MakeBatch(std::vector<TaskDescriptor>(1000, stray)));
    EXPECT_EQ(strays->finished, 1000u);
    harness_.Run(MakeBatch({stray}));
    const auto counted = harness_.Run(harness_.CountTasks(counters));
    EXPECT_EQ(counted->failed, 0u) << counted->cause;
    for (uint32_t i = 0; i < counters.count; ++i) {
      ASSERT_EQ(counters.host()[i], static_cast<float>(round + 1)) << "task " << i;
    }
    auto wide = Wide(300, std::chrono::nanoseconds(1000));
    EXPECT_EQ(harness_.Run(std::move(wide))->failed, 0u);
  }
}

class TimeLimitTest : public DeviceStopTest {
 protected:
  TimeLimitTest() : DeviceStopTest(milliseconds(20)) {}
};

TEST_F(TimeLimitTest, ATaskThatExceedsItsLimitIsStopped) {
  const auto ended = harness_.Run(MakeBatch({Hang()}));
  EXPECT_EQ(ended->status[0], TaskStatus::kAborted);
  EXPECT_EQ(ended->detail[0], kTimeLimit);
  EXPECT_EQ(queue().counters().stopped[kTimeLimit], 1u);
}

TEST_F(TimeLimitTest, EachTaskOfARangeHasTheLimit) {
  const auto ended = harness_.Run(Range(30));
  EXPECT_EQ(ended->failed, 30u);
  for (uint32_t i = 0; i < 30; ++i) {
    EXPECT_EQ(ended->status[i], TaskStatus::kAborted) << "task " << i;
    EXPECT_EQ(ended->detail[i], kTimeLimit);
    EXPECT_GT(out_.host()[i], 0.0f);
  }
}

TEST_F(TimeLimitTest, AWideTaskOfAnOperatorThatCannotBeStoppedEndsBetweenItsChunks) {
  const auto ended = harness_.Run(Wide(100'000, std::chrono::microseconds(1000)));
  EXPECT_EQ(ended->status[0], TaskStatus::kAborted);
  EXPECT_EQ(ended->detail[0], kTimeLimit);
}

TEST_F(TimeLimitTest, ATaskBehindOneThatWasStoppedRuns) {
  auto batch = MakeBatch({Hang(0), Count(1)});
  batch->in_order = true;
  const auto ended = harness_.Run(std::move(batch));
  EXPECT_EQ(ended->status[0], TaskStatus::kAborted);
  EXPECT_EQ(ended->status[1], TaskStatus::kOk);
  EXPECT_EQ(out_.host()[1], 1.0f);
}

// Hangs one after the other and several at once, beside another client.
TEST_F(TimeLimitTest, ManyTasksAreStoppedBesideTasksThatAreNot) {
  const uint64_t rounds = testing::Scaled(20, "RESIDENT_TEST_STOP_SCALE");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> counted{0};
  std::thread other([&] {
    const Floats counters = harness_.MakeFloats(100);
    for (float n = 1; !stop; ++n) {
      const auto batch = harness_.Run(harness_.CountTasks(counters));
      EXPECT_EQ(batch->failed, 0u) << batch->cause;
      for (uint32_t i = 0; i < counters.count; ++i) ASSERT_EQ(counters.host()[i], n);
      counted += counters.count;
    }
  });
  for (uint64_t round = 0; round < rounds; ++round) {
    const bool cancels = round % 2 == 1;
    std::vector<TaskDescriptor> tasks;
    for (uint64_t i = 0; i <= round % 3; ++i) tasks.push_back(Hang(static_cast<uint32_t>(i)));
    const Submission hangs = harness_.Submit(MakeBatch(std::move(tasks)));
    if (cancels) Cancel(hangs);
    ASSERT_TRUE(hangs.Await());
    for (const TaskStatus status : hangs.batch->status) {
      if (cancels) {
        EXPECT_THAT(status, ::testing::AnyOf(TaskStatus::kCancelled, TaskStatus::kAborted));
      } else {
        EXPECT_EQ(status, TaskStatus::kAborted);
      }
    }
    ASSERT_EQ(harness_.engine_pid(), pid_);
  }
  stop = true;
  other.join();
  EXPECT_GT(counted, 0u);
}

}  // namespace
}  // namespace resident
