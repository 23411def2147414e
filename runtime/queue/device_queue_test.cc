// The queue and the ring with a real engine in this process. RESIDENT_TEST_ENGINE selects it.
#include "runtime/queue/device_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "runtime/queue/operator_stats.h"
#include "tests/support/engine_harness.h"
#include "tests/support/eventually.h"
#include "tests/support/queue_test.h"

namespace resident {
namespace {

using testing::ArgumentTask;
using testing::Bits;
using testing::CompactTask;
using testing::DenseTensor;
using testing::EngineHarness;
using testing::Eventually;
using testing::OperatorSlot;
using testing::Scalar;

class DeviceQueueTest : public testing::QueueTest {
 protected:
  static void SetUpTestSuite() { StartEngine({}); }

  // `count` tasks that each add 1 to one shared counter.
  std::shared_ptr<Pending> CountBatch(uint64_t counter, int count) {
    auto pending = NewBatch();
    for (int i = 0; i < count; ++i) {
      pending->batch->tasks.push_back(CompactTask(OperatorSlot("test.count"), 1, {counter}));
    }
    return pending;
  }

  std::shared_ptr<Pending> SpinBatch(uint64_t out, int count, int64_t ns) {
    auto pending = NewBatch();
    for (int i = 0; i < count; ++i) {
      pending->batch->tasks.push_back(
          CompactTask(OperatorSlot("test.spin"), 1, {out, static_cast<uint64_t>(ns)}));
    }
    return pending;
  }
};

TEST_F(DeviceQueueTest, LoneTaskReturnsItsResult) {
  constexpr int kN = 1000;
  auto x = harness_->Staging(kN * 4), y = harness_->Staging(kN * 4),
       out = harness_->Staging(kN * 4);
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  for (int i = 0; i < kN; ++i) {
    x.as<float>()[i] = normal(random);
    y.as<float>()[i] = normal(random);
    out.as<float>()[i] = -7e30f;
  }
  auto pending = NewBatch();
  pending->batch->tasks.push_back(
      CompactTask(OperatorSlot("add"), kN, {x.address, y.address, out.address, Bits(2.5)}));
  ASSERT_TRUE(queue_.Enqueue(1, pending->batch).ok());
  pending->Wait();
  EXPECT_EQ(pending->batch->status[0], TaskStatus::kOk);
  EXPECT_GT(pending->batch->device_ns[0], 0u);
  for (int i = 0; i < kN; ++i) {
    // A GPU rounds once (fused multiply-add), a CPU may round twice.
    EXPECT_NEAR(out.as<float>()[i], x.as<float>()[i] + 2.5 * y.as<float>()[i], 2e-6);
  }
}

// device_queue_states_test checks on which thread.
TEST_F(DeviceQueueTest, LoneTasksThatAreFinishedInlineReturnTheirResults) {
  auto out = harness_->Staging(4096);
  for (int i = 0; i < 200; ++i) {
    auto pending = NewBatch();
    pending->batch->tasks.push_back(
        CompactTask(OperatorSlot("fill"), 16, {out.address, Bits(double{1} * i)}));
    ASSERT_TRUE(queue_.Enqueue(1, pending->batch, std::chrono::seconds(1)).ok());
    pending->Wait();
    EXPECT_EQ(out.as<float>()[15], static_cast<float>(i));
  }
}

TEST_F(DeviceQueueTest, EveryTaskRunsExactlyOnceAcrossManyLapsOfTheRing) {
  auto counter = harness_->Staging(4);
  *counter.as<float>() = 0;
  constexpr int kBatches = 20, kTasks = 1500;  // The ring has 1,024 slots.
  std::vector<std::shared_ptr<Pending>> all;
  for (int b = 0; b < kBatches; ++b) {
    all.push_back(CountBatch(counter.address, kTasks));
    ASSERT_TRUE(queue_.Enqueue(1 + b % 2, all.back()->batch).ok());
  }
  for (auto& pending : all) {
    pending->Wait();
    EXPECT_EQ(pending->batch->failed, 0u);
  }
  EXPECT_EQ(*counter.as<float>(), float{kBatches} * kTasks);
}

TEST_F(DeviceQueueTest, ALongTasksSlotIsSkippedInTheNextLapsOfTheRing) {
  auto counter = harness_->Staging(4), out = harness_->Staging(4);
  *counter.as<float>() = 0;
  auto slow = SpinBatch(out.address, 1, 2'000'000'000);
  ASSERT_TRUE(queue_.Enqueue(1, slow->batch).ok());
  constexpr int kTasks = 5000;  // About five laps while it runs.
  auto quick = CountBatch(counter.address, kTasks);
  ASSERT_TRUE(queue_.Enqueue(2, quick->batch).ok());
  quick->Wait();
  EXPECT_EQ(*counter.as<float>(), float{kTasks});
  if (harness_->info().workers > 1) {
    EXPECT_FALSE(slow->done.HasBeenNotified()) << "the quick tasks waited for the slow one";
  }
  slow->Wait();
  EXPECT_EQ(slow->batch->status[0], TaskStatus::kOk);
}

TEST_F(DeviceQueueTest, WideTaskIsSplitAndEveryElementIsWritten) {
  constexpr int64_t kN = 300'001;
  auto x = harness_->Staging(kN * 4), out = harness_->Staging(kN * 4);
  for (int64_t i = 0; i < kN; ++i) {
    x.as<float>()[i] = static_cast<float>(i % 1000) - 500;
    out.as<float>()[i] = 9e30f;
  }
  auto pending = NewBatch();
  Batch& batch = *pending->batch;
  batch.tasks.push_back(ArgumentTask(OperatorSlot("scale"), 3, 37));
  batch.arguments_per_task = 3;
  batch.arguments = {DenseTensor(x.address, DType::kF32, {kN}),
                     DenseTensor(out.address, DType::kF32, {kN}), Scalar(Bits(3.0f))};
  ASSERT_TRUE(queue_.Enqueue(1, pending->batch).ok());
  pending->Wait();
  EXPECT_EQ(batch.status[0], TaskStatus::kOk);
  for (int64_t i = 0; i < kN; ++i) ASSERT_EQ(out.as<float>()[i], 3 * x.as<float>()[i]) << i;
}

TEST_F(DeviceQueueTest, ManyWideTasksAtOnceAllComplete) {
  constexpr int64_t kN = 40'000;
  constexpr int kTasks = 300;
  auto x = harness_->Staging(kN * 4);
  const uint64_t scratch = harness_->Memory(kTasks * kN * 4);
  auto sums = harness_->Staging(kTasks * 4);
  for (int64_t i = 0; i < kN; ++i) x.as<float>()[i] = 1.0f;
  auto copies = NewBatch();
  copies->batch->arguments_per_task = 2;
  auto rows = NewBatch();
  rows->batch->arguments_per_task = 2;
  for (int t = 0; t < kTasks; ++t) {
    copies->batch->tasks.push_back(ArgumentTask(OperatorSlot("copy"), 2, 5));
    copies->batch->arguments.push_back(DenseTensor(x.address, DType::kF32, {kN}));
    copies->batch->arguments.push_back(DenseTensor(scratch + t * kN * 4, DType::kF32, {kN}));
    rows->batch->tasks.push_back(ArgumentTask(OperatorSlot("sum_rows"), 2, 1));
    rows->batch->arguments.push_back(DenseTensor(scratch + t * kN * 4, DType::kF32, {1, kN}));
    rows->batch->arguments.push_back(DenseTensor(sums.address + t * 4, DType::kF32, {1}));
  }
  ASSERT_TRUE(queue_.Enqueue(1, copies->batch).ok());
  copies->Wait();
  ASSERT_TRUE(queue_.Enqueue(1, rows->batch).ok());
  rows->Wait();
  for (int t = 0; t < kTasks; ++t) EXPECT_EQ(sums.as<float>()[t], float{kN}) << t;
}

TEST_F(DeviceQueueTest, InOrderBatchRunsItsTasksOneAfterTheOther) {
  constexpr int kSteps = 500;
  auto cell = harness_->Staging(4);
  *cell.as<float>() = 0;
  auto pending = NewBatch();
  pending->batch->in_order = true;
  // x -> x + 1 in place: if tasks ran concurrently, steps would be lost.
  auto one = harness_->Staging(4);
  *one.as<float>() = 1;
  for (int i = 0; i < kSteps; ++i) {
    pending->batch->tasks.push_back(
        CompactTask(OperatorSlot("add"), 1, {cell.address, one.address, cell.address, Bits(1.0)}));
  }
  ASSERT_TRUE(queue_.Enqueue(1, pending->batch).ok());
  pending->Wait();
  EXPECT_EQ(pending->batch->failed, 0u);
  EXPECT_EQ(*cell.as<float>(), float{kSteps});
}

TEST_F(DeviceQueueTest, LoneTaskOvertakesAnotherClientsQueue) {
  auto out = harness_->Staging(64);
  const int many = 40 * static_cast<int>(harness_->info().workers);
  auto big = SpinBatch(out.address, many * 40, 4'000'000);
  ASSERT_TRUE(queue_.Enqueue(1, big->batch).ok());
  auto lone = SpinBatch(out.address, 1, 1000);
  ASSERT_TRUE(queue_.Enqueue(2, lone->batch).ok());
  lone->Wait();
  EXPECT_FALSE(big->done.HasBeenNotified());
  EXPECT_GT(queue_.client_counters(1).queued_tasks, uint64_t(many) * 10);
  big->batch->cancelled = true;
  queue_.NoteCancelled();
  big->Wait();
}

TEST_F(DeviceQueueTest, SlowTasksAfterAFloodOfQuickOnesDoNotFillTheRing) {
  auto out = harness_->Staging(64), counter = harness_->Staging(4);
  const uint32_t workers = harness_->info().workers;
  auto quick = CountBatch(counter.address, 50'000);
  auto slow = SpinBatch(out.address, 20 * workers + 2000, 5'000'000);
  ASSERT_TRUE(queue_.Enqueue(1, quick->batch).ok());
  ASSERT_TRUE(queue_.Enqueue(1, slow->batch).ok());
  quick->Wait();
  while (queue_.counters().in_flight == 0) std::this_thread::yield();
  auto lone = CountBatch(counter.address, 1);
  ASSERT_TRUE(queue_.Enqueue(2, lone->batch).ok());
  // The lone task waits behind enough tasks to keep the workers busy, but not more.
  uint32_t max_in_flight = 0;
  while (!lone->done.HasBeenNotified()) {
    max_in_flight = std::max(max_in_flight, queue_.counters().in_flight);
    std::this_thread::yield();
  }
  EXPECT_LE(max_in_flight, 2 * workers);
  EXPECT_FALSE(slow->done.HasBeenNotified());
  slow->batch->cancelled = true;
  queue_.NoteCancelled();
  slow->Wait();
}

TEST_F(DeviceQueueTest, ManyInOrderBatchesOfSlowTasksDoNotFillTheRing) {
  auto out = harness_->Staging(64);
  const uint32_t workers = harness_->info().workers;
  std::vector<std::shared_ptr<Pending>> all;
  for (uint32_t b = 0; b < 3 * workers; ++b) {
    all.push_back(SpinBatch(out.address, 3, 1'000'000));
    all.back()->batch->in_order = true;
    ASSERT_TRUE(queue_.Enqueue(1, all.back()->batch).ok());
  }
  uint32_t max_in_flight = 0;
  while (!all.back()->done.HasBeenNotified()) {
    max_in_flight = std::max(max_in_flight, queue_.counters().in_flight);
    std::this_thread::yield();
  }
  EXPECT_LE(max_in_flight, 2 * workers);
  for (auto& pending : all) pending->Wait();
}

TEST_F(DeviceQueueTest, CancelledBatchSkipsWhatIsNotInTheRing) {
  auto out = harness_->Staging(64);
  auto big = SpinBatch(out.address, 100'000, 1'000'000);
  ASSERT_TRUE(queue_.Enqueue(1, big->batch).ok());
  big->batch->cancelled = true;
  queue_.NoteCancelled();
  big->Wait();
  const auto& status = big->batch->status;
  EXPECT_GT(std::count(status.begin(), status.end(), TaskStatus::kCancelled), 50'000);
}

TEST_F(DeviceQueueTest, ExpiredDeadlineSkipsTheBatch) {
  auto out = harness_->Staging(64);
  auto late = SpinBatch(out.address, 10, 1000);
  late->batch->deadline = Clock::now() - std::chrono::milliseconds(1);
  ASSERT_TRUE(queue_.Enqueue(1, late->batch).ok());
  late->Wait();
  for (TaskStatus status : late->batch->status) EXPECT_EQ(status, TaskStatus::kDeadlineExceeded);
  EXPECT_NE(late->batch->cause.find("Fix:"), std::string::npos);
}

TEST_F(DeviceQueueTest, ABatchIsRefusedWithoutARing) {
  DeviceQueue::Options options;
  options.max_queued_tasks = 1000;
  DeviceQueue small(options);
  // There is no ring yet.
  small.AddClient(1);
  auto early = NewBatch();
  early->batch->tasks.push_back(TaskDescriptor{});
  EXPECT_EQ(small.Enqueue(1, early->batch).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DeviceQueueTest, ATaskRefusedByItsOperatorReturnsTheDetail) {
  auto out = harness_->Staging(64);
  auto pending = NewBatch();
  pending->batch->tasks.push_back(CompactTask(OperatorSlot("test.refuse"), 1, {out.address, 77}));
  ASSERT_TRUE(queue_.Enqueue(1, pending->batch).ok());
  pending->Wait();
  EXPECT_EQ(pending->batch->status[0], TaskStatus::kInvalidArgument);
  EXPECT_EQ(pending->batch->detail[0], 77);
}

TEST_F(DeviceQueueTest, EmptyOperatorSlotIsAnErrorAndNotACrash) {
  auto pending = NewBatch();
  pending->batch->tasks.push_back(CompactTask(kMaxOperatorSlots - 1, 1, {0}));
  ASSERT_TRUE(queue_.Enqueue(1, pending->batch).ok());
  pending->Wait();
  EXPECT_EQ(pending->batch->status[0], TaskStatus::kInternal);
}

TEST_F(DeviceQueueTest, HoldKeepsTasksBackUntilItEnds) {
  auto out = harness_->Staging(64);
  auto counter = harness_->Staging(4);
  *counter.as<float>() = 0;
  // An in-order batch with one task in flight and one queued, unless this thread has to wait until
  // they have ended; another client's batch is queued during the hold.
  auto spinning = SpinBatch(out.address, 2, 20'000'000);
  spinning->batch->in_order = true;
  ASSERT_TRUE(queue_.Enqueue(1, spinning->batch).ok());
  ASSERT_TRUE(Eventually([&] { return queue_.client_counters(1).queued_tasks < 2; }));
  ASSERT_TRUE(queue_.Hold().ok());
  EXPECT_EQ(queue_.Hold().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(queue_.BeginPark().code(), absl::StatusCode::kFailedPrecondition);
  auto held = CountBatch(counter.address, 10);
  ASSERT_TRUE(queue_.Enqueue(2, held->batch).ok());
  while (queue_.counters().in_flight != 0) std::this_thread::yield();
  EXPECT_EQ(*counter.as<float>(), 0.0f);
  queue_.EndPark();  // Cancels the hold: nothing was parked.
  held->Wait();
  spinning->Wait();
  EXPECT_EQ(*counter.as<float>(), 10.0f);
  EXPECT_EQ(spinning->batch->failed, 0u);

  // With nothing in flight the marker is published, and the kernel leaves.
  ASSERT_TRUE(queue_.Hold().ok());
  while (!queue_.ParkIfDrained()) std::this_thread::yield();
  ASSERT_TRUE(harness_->engine().AwaitPark(std::chrono::seconds(60)).ok());
  ASSERT_TRUE(harness_->engine().Resume().ok());
  queue_.EndPark();
  auto after = CountBatch(counter.address, 10);
  ASSERT_TRUE(queue_.Enqueue(1, after->batch).ok());
  after->Wait();
  EXPECT_EQ(*counter.as<float>(), 20.0f);
}

TEST_F(DeviceQueueTest, ParksUnderLoadNeitherLoseNorRepeatTasks) {
  auto counter = harness_->Staging(4);
  *counter.as<float>() = 0;
  constexpr int kParks = 20, kTasks = 2000;
  int submitted = 0;
  std::vector<std::shared_ptr<Pending>> all;
  for (int p = 0; p < kParks; ++p) {
    for (int b = 0; b < 3; ++b) {
      all.push_back(CountBatch(counter.address, kTasks));
      ASSERT_TRUE(queue_.Enqueue(1 + b % 2, all.back()->batch).ok());
      submitted += kTasks;
    }
    ASSERT_TRUE(queue_.BeginPark().ok());
    ASSERT_TRUE(harness_->engine().AwaitPark(std::chrono::seconds(60)).ok());
    ASSERT_TRUE(harness_->engine().Resume().ok());
    queue_.EndPark();
  }
  for (auto& pending : all) {
    pending->Wait();
    EXPECT_EQ(pending->batch->failed, 0u);
  }
  EXPECT_EQ(*counter.as<float>(), static_cast<float>(submitted));
}

// A ring that is full most of the time.
class SmallRingTest : public DeviceQueueTest {
 protected:
  static void SetUpTestSuite() { harness_ = new EngineHarness({.ring_slots = 64, .engine = {}}); }
};

TEST_F(SmallRingTest, ParksAreNotDelayedWhileClientsKeepTheRingFull) {
  auto out = harness_->Staging(64);
  const auto finish = [](Pending& pending) {
    pending.Wait();
    EXPECT_EQ(pending.batch->failed, 0u);
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> feeders;
  for (ClientId client : {1, 2, 1}) {
    feeders.emplace_back([&, client] {
      std::deque<std::shared_ptr<Pending>> ahead;
      while (!stop) {
        ahead.push_back(SpinBatch(out.address, 500, 1000));
        EXPECT_TRUE(queue_.Enqueue(client, ahead.back()->batch).ok());
        if (ahead.size() < 4) continue;
        finish(*ahead.front());
        ahead.pop_front();
      }
      for (const auto& pending : ahead) finish(*pending);
    });
  }
  for (int p = 0; p < 20; ++p) {
    while (queue_.counters().in_flight < 64) std::this_thread::yield();
    const absl::Status parked = queue_.BeginPark();
    EXPECT_TRUE(parked.ok()) << "park " << p << ": " << parked;
    if (!parked.ok()) break;
    EXPECT_TRUE(harness_->engine().AwaitPark(std::chrono::seconds(60)).ok());
    EXPECT_TRUE(harness_->engine().Resume().ok());
    queue_.EndPark();
  }
  stop = true;
  for (std::thread& feeder : feeders) feeder.join();
}

TEST_F(DeviceQueueTest, ParksWithoutATaskInBetweenDoNotFillTheRing) {
  // More parks than the ring has slots: each park takes a slot and completes no task.
  for (uint32_t p = 0; p < harness_->region()->layout().slots + 10; ++p) {
    ASSERT_TRUE(queue_.BeginPark().ok()) << "park " << p;
    ASSERT_TRUE(harness_->engine().AwaitPark(std::chrono::seconds(60)).ok());
    ASSERT_TRUE(harness_->engine().Resume().ok());
    queue_.EndPark();
  }
  auto counter = harness_->Staging(4);
  *counter.as<float>() = 0;
  auto after = CountBatch(counter.address, 100);
  ASSERT_TRUE(queue_.Enqueue(1, after->batch).ok());
  after->Wait();
  EXPECT_EQ(*counter.as<float>(), 100.0f);
}

TEST_F(DeviceQueueTest, WorkThatArrivesWhileParkedCallsTheCallbackOnce) {
  ASSERT_TRUE(queue_.BeginPark().ok());
  ASSERT_TRUE(harness_->engine().AwaitPark(std::chrono::seconds(60)).ok());
  std::atomic<int> calls{0};
  absl::Notification called;
  queue_.OnWorkWhileParked([&] {
    if (++calls == 1) called.Notify();
  });
  auto out = harness_->Staging(64);
  auto a = SpinBatch(out.address, 1, 10), b = SpinBatch(out.address, 1, 10);
  ASSERT_TRUE(queue_.Enqueue(1, a->batch).ok());
  called.WaitForNotification();
  ASSERT_TRUE(queue_.Enqueue(2, b->batch).ok());
  // A deadline that passes while parked ends its batch.
  auto late = SpinBatch(out.address, 1, 10);
  late->batch->deadline = Clock::now() + std::chrono::milliseconds(1);
  ASSERT_TRUE(queue_.Enqueue(2, late->batch).ok());
  late->Wait();
  EXPECT_EQ(late->batch->status[0], TaskStatus::kDeadlineExceeded);
  EXPECT_FALSE(a->done.HasBeenNotified());
  ASSERT_TRUE(harness_->engine().Resume().ok());
  queue_.EndPark();
  a->Wait();
  b->Wait();
  EXPECT_EQ(calls, 1);
}

TEST_F(DeviceQueueTest, ALostRingEndsEveryTask) {
  // No engine uses this ring: submitted tasks stay in it.
  auto region = SharedRegion::Create(64, 4096);
  ASSERT_TRUE(region.ok());
  DeviceQueue queue{DeviceQueue::Options{}};
  queue.AddClient(1);
  const uint64_t epoch = queue.SetRing(
      std::make_shared<HostRing>(std::shared_ptr<SharedRegion>(std::move(*region)), 32));
  auto batch = CountBatch(0, 1000);
  batch->batch->epoch = epoch;
  auto ordered = CountBatch(0, 10);
  ordered->batch->epoch = epoch;
  ordered->batch->in_order = true;
  ASSERT_TRUE(queue.Enqueue(1, ordered->batch).ok());
  ASSERT_TRUE(queue.Enqueue(1, batch->batch).ok());
  while (queue.counters().in_flight < 64) std::this_thread::yield();
  queue.LoseRing("the engine was killed by signal 9", {OperatorSlot("test.count")});
  batch->Wait();
  ordered->Wait();
  const auto& status = batch->batch->status;
  EXPECT_EQ(std::count(status.begin(), status.end(), TaskStatus::kAborted), 63);
  EXPECT_EQ(std::count(status.begin(), status.end(), TaskStatus::kUnavailable), 1000 - 63);
  // The cause of tasks that may have run is not overwritten by that of tasks that did not.
  EXPECT_NE(batch->batch->cause.find("suspect"), std::string::npos) << batch->batch->cause;
  EXPECT_EQ(ordered->batch->status[0], TaskStatus::kAborted);
  EXPECT_EQ(ordered->batch->status[9], TaskStatus::kUnavailable);
  auto after = CountBatch(0, 1);
  after->batch->epoch = epoch;
  const absl::Status refused = queue.Enqueue(1, after->batch);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("signal 9"), absl::string_view::npos);
}

TEST_F(DeviceQueueTest, OverdueTaskIsFoundWithItsOperator) {
  auto out = harness_->Staging(64);
  // One after the other, so that one is running whenever this thread looks.
  auto slow = SpinBatch(out.address, 100, 200'000'000);
  slow->batch->in_order = true;
  ASSERT_TRUE(queue_.Enqueue(1, slow->batch).ok());
  std::vector<OverdueTask> overdue;
  while (overdue.empty() && !slow->done.HasBeenNotified()) {
    overdue = queue_.FindOverdue(std::chrono::milliseconds(20));
    // Its operator is not known until a worker has begun it.
    std::erase_if(overdue,
                  [](const OverdueTask& task) { return task.operator_slot == kNoOperatorSlot; });
    std::this_thread::yield();
  }
  ASSERT_EQ(overdue.size(), 1u);
  EXPECT_EQ(overdue[0].operator_slot, OperatorSlot("test.spin"));
  slow->batch->cancelled = true;
  queue_.NoteCancelled();
  slow->Wait();
  EXPECT_TRUE(queue_.FindOverdue(std::chrono::milliseconds(20)).empty());
}

TEST_F(DeviceQueueTest, RemovedClientsInOrderBatchEndsToo) {
  auto out = harness_->Staging(64);
  auto ordered = SpinBatch(out.address, 100'000, 1'000'000);
  ordered->batch->in_order = true;
  ASSERT_TRUE(queue_.Enqueue(1, ordered->batch).ok());
  while (queue_.counters().in_flight == 0) std::this_thread::yield();
  queue_.RemoveClient(1);
  ordered->Wait();  // All its tasks would take 100 s.
  EXPECT_EQ(ordered->batch->status.back(), TaskStatus::kCancelled);
}

TEST_F(DeviceQueueTest, AQueuedBatchEndsAtItsDeadlineWhileTheRingIsFullOfSlowTasks) {
  auto out = harness_->Staging(64);
  // The workers are busy until these are cancelled: the other client's tasks find little room.
  const uint32_t workers = harness_->info().workers;
  const uint32_t tasks = 1000 * workers;
  auto slow = SpinBatch(out.address, static_cast<int>(tasks), 40'000'000);
  ASSERT_TRUE(queue_.Enqueue(1, slow->batch).ok());
  ASSERT_TRUE(
      Eventually([&] { return queue_.client_counters(1).queued_tasks <= tasks - workers; }));
  auto late = SpinBatch(out.address, 5000, 10);
  late->batch->deadline = Clock::now() + std::chrono::milliseconds(30);
  ASSERT_TRUE(queue_.Enqueue(2, late->batch).ok());
  late->Wait();
  EXPECT_EQ(late->batch->status.back(), TaskStatus::kDeadlineExceeded);
  EXPECT_FALSE(slow->done.HasBeenNotified());
  slow->batch->cancelled = true;
  queue_.NoteCancelled();
  slow->Wait();
}

TEST_F(DeviceQueueTest, AQueuedBatchEndsAtItsDeadlineWhileTasksKeepCompleting) {
  auto out = harness_->Staging(64);
  auto flood = SpinBatch(out.address, 1'000'000, 2'000);
  auto late = SpinBatch(out.address, 1, 10);
  uint64_t queued = 0;  // Of the flood, when the late batch ends.
  late->batch->done = [&](Batch&) {
    queued = queue_.client_counters(1).queued_tasks;
    late->done.Notify();
  };
  // Both are queued before a task runs.
  ASSERT_TRUE(queue_.Hold().ok());
  ASSERT_TRUE(queue_.Enqueue(1, flood->batch).ok());
  late->batch->deadline = Clock::now() + std::chrono::milliseconds(30);
  ASSERT_TRUE(queue_.Enqueue(1, late->batch).ok());
  queue_.EndPark();
  late->Wait();
  EXPECT_EQ(late->batch->status[0], TaskStatus::kDeadlineExceeded);
  EXPECT_GT(queued, 0u);
  flood->batch->cancelled = true;
  queue_.NoteCancelled();
  flood->Wait();
}

TEST_F(DeviceQueueTest, RemovedClientsQueueIsDroppedAndOtherClientsAreServed) {
  auto out = harness_->Staging(64), counter = harness_->Staging(4);
  *counter.as<float>() = 0;
  auto big = SpinBatch(out.address, 50'000, 1'000'000);
  ASSERT_TRUE(queue_.Enqueue(1, big->batch).ok());
  queue_.RemoveClient(1);
  big->Wait();
  auto other = CountBatch(counter.address, 100);
  ASSERT_TRUE(queue_.Enqueue(2, other->batch).ok());
  other->Wait();
  EXPECT_EQ(*counter.as<float>(), 100.0f);
  EXPECT_EQ(queue_.Enqueue(1, CountBatch(counter.address, 1)->batch).code(),
            absl::StatusCode::kNotFound);
}

TEST_F(DeviceQueueTest, StatisticsCountEveryTaskOnce) {
  OperatorStats stats("test.count", 1);
  auto counter = harness_->Staging(4);
  auto batch = CountBatch(counter.address, 777);
  batch->batch->stats = &stats;
  ASSERT_TRUE(queue_.Enqueue(1, batch->batch).ok());
  batch->Wait();
  EXPECT_EQ(stats.tasks(0), 777u);
  uint64_t observed = 0;
  for (int b = 0; b < DurationHistogram::kBuckets; ++b) observed += stats.device.count(b);
  EXPECT_EQ(observed, 777u);
}

}  // namespace
}  // namespace resident
