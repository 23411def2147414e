// A lane without a daemon: the test is the client, the dispatch loop and the device, so that it
// decides what has ended when the lane is looked at. tests/integration/lanes_test.cc has the checks
// of submissions, tests/fuzz/fuzz_lane.cc the client that rewrites its memory.
#include "server/lanes/lane.h"

#include <sys/mman.h>

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/fake_device.h"
#include "runtime/queue/batch_outcome.h"

namespace resident {
namespace {

constexpr ClientId kClient = 1;
constexpr uint64_t kDataBytes = 64 << 10;
constexpr uint64_t kStaging = 1 << 20;

class LaneTest : public ::testing::Test {
 protected:
  LaneTest() {
    buffers_.AddOwner(kClient);
    admission_.AddDevice(kStaging);
    admission_.Start([this](std::function<void()> work) { posted_.push_back(std::move(work)); });
  }
  ~LaneTest() override {
    for (const auto& batch : std::exchange(running_, {})) End(batch);
    lane_->Close();
    RunPosted();
    if (base_ != nullptr) munmap(base_, lane_bytes(slots_, kDataBytes));
    lane_.reset();
    bindings_.reset();
    // Nothing is left of ranges.
    EXPECT_EQ(identity_->tasks_in_flight(), 0u);
    EXPECT_EQ(admission_.staging_used(0), 0u);
    admission_.Stop();
  }

  // A lane with two calls of `add` and the buffer 0 of 64 floats.
  void Open(uint32_t slots) {
    slots_ = slots;
    Lane::Options options;
    options.slots = slots;
    options.data_bytes = kDataBytes;
    auto lane = Lane::Create(
        options,
        {.registry = *registry_,
         .gate = gate_,
         .counters = counters_,
         .admission = admission_,
         .accounts = accounts_,
         .standing_tasks = [this] { return uint64_t{slots_}; },
         .post = [this](std::function<void()> work) { posted_.push_back(std::move(work)); },
         .note_work = [this](const Lane&) { ++woken_; },
         .refuse = [](const Lane&, const absl::Status&) { FAIL(); },
         .note_await = [this](const Lane&) { ++awaited_; }},
        {});
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
    Bind(std::make_shared<FakeSession>(/*epoch=*/1, 1 << 20, kStaging));
    const UniqueFd memory = lane_->TakeMemory();
    base_ = static_cast<uint8_t*>(mmap(nullptr, lane_bytes(slots, kDataBytes),
                                       PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0));
    ASSERT_NE(base_, MAP_FAILED);
    page_ = reinterpret_cast<lane_daemon_page*>(base_ + kLanePageBytes);
  }

  void Bind(const std::shared_ptr<FakeSession>& session) {
    epoch_ = session->epoch();
    auto bindings = std::make_shared<LaneBindings>();
    bindings->session = session;
    BufferSpec spec;
    spec.shape = {64};
    const auto buffer = buffers_.Allocate(spec, kClient, *session);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    bindings->buffers.push_back(MakeBound(*buffer, session->epoch()));
    v1::PrepareLaneRequest request;
    request.mutable_tasks()->set_operator_("add");
    request.mutable_tasks()->set_count(1);
    for (uint32_t a = 0; a < 3; ++a) {
      v1::BufferColumn& column = *request.mutable_tasks()->add_arguments()->mutable_buffer();
      column.add_buffer_ids((*buffer)->id);
      column.add_shape(4);
      request.add_words()->mutable_place()->set_argument(a);
    }
    for (int call = 0; call < 2; ++call) {
      auto prepared = PreparedCall::Prepare(
          {.registry = *registry_, .buffers = buffers_, .client = kClient, .session = session},
          request);
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      bindings->calls.push_back(*prepared);
    }
    Needs blocks;
    blocks.session = session;
    const uint32_t tasks = std::min(slots_, kMaxLaneRange);
    blocks.staging_bytes = RangeBlocks::Bytes(tasks, 3);
    auto ticket = admission_.TryAcquire(accounts_, blocks);
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    bindings->blocks = std::make_shared<RangeBlocks>(*std::move(ticket), tasks, 3);
    lane_->SetBindings(bindings);
    bindings_ = std::move(bindings);
  }

  // The client. Words of a task are places in buffer 0.
  uint64_t Submit(uint8_t kind, uint16_t call, std::vector<uint64_t> words = {},
                  uint8_t flags = 0) {
    auto* const slot = reinterpret_cast<lane_slot*>(base_ + lane_slots_offset()) + next_ % slots_;
    for (size_t w = 0; w < words.size(); ++w) {
      __atomic_store_n(&slot->words[w], words[w], __ATOMIC_RELAXED);
    }
    __atomic_store_n(&slot->head, lane_slot_head(next_, call, kind, flags), __ATOMIC_RELEASE);
    return next_++;
  }
  void SubmitTasks(uint32_t count, uint16_t call = 0) {
    for (uint32_t i = 0; i < count; ++i) Submit(kLaneTask, call, {0, 16, 4 * (i % 32)});
  }
  // A range of tasks that are all the same.
  uint64_t SubmitRange(uint64_t count) { return Submit(kLaneRange, 0, {count, 0}); }
  void CancelBelow(uint64_t sequence) {
    __atomic_store_n(&reinterpret_cast<lane_client_page*>(base_)->cancel_below, sequence,
                     __ATOMIC_RELEASE);
  }
  // -1: it has not ended.
  int StatusOf(uint64_t sequence) const {
    const auto* const from =
        reinterpret_cast<lane_completion*>(base_ + lane_completions_offset(slots_)) +
        sequence % slots_;
    const uint64_t head = __atomic_load_n(&from->head, __ATOMIC_ACQUIRE);
    return lane_head_stamp(head) == lane_stamp(sequence) ? static_cast<uint8_t>(head >> 32) : -1;
  }

  // The dispatch loop: what it takes is in the ring at once, unless `keep` says that it waits.
  std::shared_ptr<LaneBatch> Take(bool keep = false) {
    visit_ = lane_->Take(256, epoch_);
    auto batch = std::static_pointer_cast<LaneBatch>(std::exchange(visit_.batch, nullptr));
    if (batch == nullptr) return nullptr;
    PrepareOutcomes(*batch);
    batch->enqueued_at = Clock::now();
    if (!keep) batch->submitted = batch->count();
    running_.push_back(batch);
    return batch;
  }
  // The device: all tasks end with this status.
  void End(const std::shared_ptr<LaneBatch>& batch, TaskStatus status = TaskStatus::kOk) {
    std::erase(running_, batch);
    if (status != TaskStatus::kOk) {
      PrepareFailures(*batch);
      batch->status.assign(batch->count(), status);
      batch->failed = batch->count();
    }
    batch->submitted = batch->finished = batch->count();
    batch->done(*batch);
  }
  // The other threads.
  void RunPosted() {
    while (!posted_.empty()) {
      const std::function<void()> work = std::move(posted_.front());
      posted_.pop_front();
      work();
    }
  }

  const std::unique_ptr<Registry> registry_ = *Registry::Create({.devices = 1});
  BufferTable buffers_{Limits{}};
  DrainGate gate_;
  Admission admission_{Limits{}, &gate_, TimeSource::Steady()};
  const std::shared_ptr<Account> identity_ = std::make_shared<Account>("test", Rights{});
  const std::shared_ptr<ClientAccounts> accounts_ = std::make_shared<ClientAccounts>(identity_, 1);
  LaneCounters counters_;
  std::deque<std::function<void()>> posted_;
  std::shared_ptr<const LaneBindings> bindings_;
  std::shared_ptr<Lane> lane_;
  uint8_t* base_ = nullptr;
  lane_daemon_page* page_ = nullptr;
  LaneSource::Visit visit_;  // The last one, without its batch.
  std::vector<std::shared_ptr<LaneBatch>> running_;
  uint32_t slots_ = 0;
  uint64_t epoch_ = 0;
  uint64_t next_ = 0;
  int woken_ = 0;
  int awaited_ = 0;
};

TEST_F(LaneTest, ManySubmissionsWaitWhileAllBlocksAreInUse) {
  Open(4096);
  SubmitTasks(1500);
  const auto first = Take();
  const auto second = Take();
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(first->range->count, kMaxLaneJoined);
  EXPECT_EQ(second->range->count, kMaxLaneJoined);
  EXPECT_EQ(Take(), nullptr);
  EXPECT_EQ(visit_.consumed, 0u);
  // It need not be polled: the end of a range wakes it up.
  EXPECT_TRUE(lane_->FallAsleep());
  EXPECT_EQ(woken_, 0);
  End(first);
  EXPECT_EQ(woken_, 1);
  lane_->WakeUp();
  const auto third = Take();
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(third->range->count, 476u);
  EXPECT_EQ(counters_.joined.load(), 1500u);
}

TEST_F(LaneTest, AJoinedRangeIsCancelledOnlyAsAWhole) {
  Open(1024);
  SubmitTasks(600);
  const auto batch = Take(/*keep=*/true);
  ASSERT_NE(batch->range, nullptr);
  CancelBelow(batch->count() - 1);
  EXPECT_EQ(Take(), nullptr);
  EXPECT_FALSE(batch->cancelled);
  CancelBelow(batch->count());
  EXPECT_EQ(Take(), nullptr);
  EXPECT_TRUE(visit_.cancelled);
  EXPECT_TRUE(batch->cancelled);
}

TEST_F(LaneTest, FewSubmissionsOrThoseOfSeveralCallsAreNotJoined) {
  Open(1024);
  SubmitTasks(255);
  EXPECT_EQ(Take()->range, nullptr);
  SubmitTasks(100);
  SubmitTasks(1, /*call=*/1);
  SubmitTasks(200);
  const auto batch = Take();
  EXPECT_EQ(batch->range, nullptr);
  EXPECT_EQ(batch->tasks.size(), 100u);
  EXPECT_EQ(batch->tasks[7].compact_argument(2), bindings_->buffers[0].address + 28);
  EXPECT_EQ(Take()->count(), 1u);
  EXPECT_EQ(Take()->count(), 200u);
}

// What follows it begins after everything before it.
TEST_F(LaneTest, AnAfterAllThatIsRefusedWaitsAsOthersDo) {
  constexpr uint16_t kNoCall = 7;
  for (const uint8_t kind : {kLaneTask, kLaneRange}) {
    if (lane_ == nullptr) Open(64);
    SubmitTasks(1);
    const auto first = Take();
    ASSERT_NE(first, nullptr);
    const uint64_t refused = Submit(kind, kNoCall, {1, 0}, kLaneAfterAll);
    SubmitTasks(1);
    EXPECT_EQ(Take(), nullptr);
    EXPECT_EQ(StatusOf(refused), -1);
    End(first);
    auto later = Take();
    if (later == nullptr) later = Take();
    EXPECT_EQ(StatusOf(refused), kLaneRefused);
    ASSERT_NE(later, nullptr);
    End(later);
  }
}

TEST_F(LaneTest, ARangeWaitsUntilTheLanesSlotsSufficeForItsTasks) {
  Open(512);
  SubmitTasks(200);
  const auto tasks = Take();
  const uint64_t range = SubmitRange(400);
  EXPECT_EQ(Take(), nullptr);
  EXPECT_TRUE(posted_.empty());
  End(tasks);
  const auto batch = Take();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->count(), 400u);
  // What follows has the rest of the slots.
  SubmitTasks(200);
  EXPECT_EQ(Take()->count(), 112u);
  End(batch);
  EXPECT_EQ(StatusOf(range), kLaneOk);
}

TEST_F(LaneTest, ALargeRangeIsReadByAnotherThreadAndAgainForAnotherEngine) {
  Open(256);
  const uint64_t range = SubmitRange(3000);
  EXPECT_EQ(Take(), nullptr);
  ASSERT_EQ(posted_.size(), 1u);
  EXPECT_TRUE(lane_->FallAsleep());
  RunPosted();
  EXPECT_EQ(woken_, 1);
  EXPECT_EQ(identity_->tasks_in_flight(), 3000u);
  // The engine has ended meanwhile.
  Bind(std::make_shared<FakeSession>(/*epoch=*/2, 1 << 20, kStaging));
  EXPECT_EQ(Take(), nullptr);
  RunPosted();
  const auto batch = Take();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->epoch, 2u);
  EXPECT_EQ(batch->range->columns[0].base, bindings_->buffers[0].address);
  End(batch, TaskStatus::kUnavailable);
  EXPECT_EQ(StatusOf(range), kLaneUnavailable);
}

TEST_F(LaneTest, ALargeRangeIsCancelledWhileAnotherThreadReadsIt) {
  Open(256);
  for (const bool read : {false, true}) {
    const uint64_t range = SubmitRange(3000);
    EXPECT_EQ(Take(), nullptr);
    if (read) RunPosted();
    CancelBelow(next_);
    EXPECT_EQ(Take(), nullptr);
    EXPECT_EQ(StatusOf(range), kLaneCancelled);
    RunPosted();
    EXPECT_EQ(identity_->tasks_in_flight(), 0u);
  }
  SubmitTasks(1);
  EXPECT_EQ(Take()->count(), 1u);
}

TEST_F(LaneTest, ADrainEndsWhatWasNotReadAndSignalsFire) {
  Open(256);
  const uint64_t range = SubmitRange(3000);
  EXPECT_EQ(Take(), nullptr);
  const uint64_t task = Submit(kLaneTask, 0, {0, 0, 0});
  Submit(kLaneSignal, 0, {4, 17});
  lane_->BeginDrain();
  EXPECT_EQ(Take(), nullptr);
  EXPECT_EQ(StatusOf(range), kLaneUnavailable);
  EXPECT_EQ(StatusOf(task), kLaneUnavailable);
  EXPECT_EQ(page_->stream[4], 17u);
  EXPECT_EQ(page_->stream_failed[4], 2u);
}

TEST_F(LaneTest, AnAwaitThatIsNotReachedDoesNotKeepTheLaneAwake) {
  Open(256);
  const uint64_t await = Submit(kLaneAwait, 0, {5, 3});
  EXPECT_EQ(Take(), nullptr);
  EXPECT_FALSE(lane_->Ready());
  EXPECT_TRUE(lane_->FallAsleep());
  EXPECT_EQ(awaited_, 1);
  auto* const client = reinterpret_cast<lane_client_page*>(base_);
  __atomic_store_n(&client->stream[5], uint64_t{3}, __ATOMIC_RELEASE);
  EXPECT_TRUE(lane_->Ready());
  EXPECT_FALSE(lane_->FallAsleep());
  EXPECT_EQ(Take(), nullptr);
  EXPECT_EQ(StatusOf(await), kLaneOk);
}

TEST_F(LaneTest, ASignalCountsOnlyTheFailuresBeforeIt) {
  Open(256);
  SubmitTasks(1, 0);
  const auto before = Take();
  const uint64_t signal = Submit(kLaneSignal, 0, {9, 1});
  SubmitTasks(3, 1);
  const auto after = Take();
  ASSERT_NE(after, nullptr);  // A signal does not hold up what follows.
  End(after, TaskStatus::kInternal);
  EXPECT_EQ(page_->stream[9], 0u);
  End(before);
  EXPECT_EQ(page_->stream[9], 1u);
  EXPECT_EQ(page_->stream_failed[9], 0u);
  EXPECT_EQ(StatusOf(signal), kLaneOk);
  Submit(kLaneSignal, 0, {9, 2});
  EXPECT_EQ(Take(), nullptr);
  EXPECT_EQ(page_->stream[9], 2u);
  EXPECT_EQ(page_->stream_failed[9], 3u);
  EXPECT_EQ(page_->completed, next_);
}

TEST_F(LaneTest, NoSignalFiresAfterTheLaneWasClosed) {
  Open(256);
  SubmitTasks(1);
  const auto batch = Take();
  Submit(kLaneSignal, 0, {9, 1});
  EXPECT_EQ(Take(), nullptr);
  lane_->Close();
  End(batch);
  EXPECT_EQ(page_->stream[9], 0u);
}

}  // namespace
}  // namespace resident
