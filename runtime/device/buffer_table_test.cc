#include "runtime/device/buffer_table.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"
#include "runtime/state/test_disk.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

constexpr ClientId kAlice = 1;
constexpr ClientId kBob = 2;

// BufferTable::Restore for a FakeSession, whose memory is in this process.
absl::Status CopyBack(EngineSession&, const DeviceMemory& memory, uint64_t bytes,
                      const BufferTable::Fill& fill) {
  return fill(0, {reinterpret_cast<uint8_t*>(memory.address), bytes});
}

absl::Status RestoreNothing(EngineSession&, const DeviceMemory&, uint64_t,
                            const BufferTable::Fill&) {
  return absl::OkStatus();
}

class BufferTableTest : public ::testing::Test {
 protected:
  BufferTableTest() : session_(1, 1 << 20, 1 << 20) {
    limits_.max_buffers = 4;
    table_ = std::make_unique<BufferTable>(limits_);
    table_->AddOwner(kAlice);
    table_->AddOwner(kBob);
  }

  uint64_t MustAllocate(ClientId owner, bool durable = false, Shape shape = {16}) {
    auto buffer = table_->Allocate({.shape = shape, .durable = durable}, owner, session_);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.ok() ? (*buffer)->id : 0;
  }
  std::unique_ptr<DurableWrite> StartWrite(uint64_t id, DurableCopy::Kind kind) {
    auto write = table_->StartWrite(kind, kAlice, **table_->Find(kAlice, id));
    EXPECT_TRUE(write.ok()) << write.status();
    return write.ok() ? *std::move(write) : nullptr;
  }
  // A whole upload of `bytes` bytes at the beginning of the buffer.
  void MustUpload(uint64_t id, uint8_t fill, size_t bytes) {
    const auto write = StartWrite(id, DurableCopy::Kind::kUpload);
    const std::vector<uint8_t> data(bytes, fill);
    ASSERT_TRUE(write->Add(0, data).ok());
    ASSERT_TRUE(write->Commit().ok());
  }
  std::vector<uint8_t> Contents(uint64_t id) {
    return (*table_->Find(kAlice, id))->host_copy->Contents();
  }
  absl::StatusCode AllocateCode(const BufferSpec& spec) {
    return table_->Allocate(spec, kAlice, session_).status().code();
  }

  Limits limits_;
  FakeSession session_;
  std::unique_ptr<BufferTable> table_;
};

TEST_F(BufferTableTest, AnotherSessionsBufferIsNotFound) {
  const uint64_t id = MustAllocate(kAlice);
  EXPECT_TRUE(table_->Find(kAlice, id).ok());
  EXPECT_EQ(table_->Find(kBob, id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_->Free(kBob, id).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(table_->List(kBob).empty());
}

TEST_F(BufferTableTest, DurableBuffersCanBeUsedByAllSessionsAndOutliveTheirOwn) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  const uint64_t other = MustAllocate(kAlice);
  table_->RemoveOwner(kAlice);
  EXPECT_TRUE(table_->Find(kBob, id).ok());
  EXPECT_EQ(table_->Find(kBob, other).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(session_.memory_used_bytes(), 64u);
  EXPECT_TRUE(table_->Free(kBob, id).ok());
  EXPECT_EQ(session_.memory_used_bytes(), 0u);
}

TEST_F(BufferTableTest, FreedMemoryStaysWhileABatchHoldsIt) {
  const uint64_t id = MustAllocate(kAlice);
  BufferTable::FoundBuffers found;
  KeptAlive hold;
  ASSERT_TRUE(table_->FindAll(kAlice, {id, id, id}, found, hold).ok());
  EXPECT_EQ(found.size(), 3u);
  EXPECT_EQ(hold.size(), 1u);
  ASSERT_TRUE(table_->Free(kAlice, id).ok());
  EXPECT_EQ(session_.memory_used_bytes(), 64u);
  hold.clear();
  EXPECT_EQ(session_.memory_used_bytes(), 0u);
}

TEST_F(BufferTableTest, FreedIdIsNeverUsedAgain) {
  const uint64_t id = MustAllocate(kAlice);
  ASSERT_TRUE(table_->Free(kAlice, id).ok());
  EXPECT_EQ(table_->Free(kAlice, id).code(), absl::StatusCode::kNotFound);
  EXPECT_NE(MustAllocate(kAlice), id);
}

TEST_F(BufferTableTest, LimitErrorsNameTheirFlag) {
  for (int i = 0; i < 4; ++i) MustAllocate(kAlice);
  const absl::Status status = table_->Allocate({.shape = {1}}, kAlice, session_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("--max_buffers"), std::string::npos);
  MustAllocate(kBob);  // Each client has its own limit.
}

TEST_F(BufferTableTest, FailedAllocationsDoNotUseUpTheLimit) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(AllocateCode({.shape = {1 << 30}}), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(table_->usage(kAlice).buffers, 0u);
  EXPECT_EQ(table_->usage(kAlice).bytes, 0u);
  MustAllocate(kAlice);
}

TEST_F(BufferTableTest, BadTypesAreRefused) {
  EXPECT_EQ(AllocateCode({.dtype = DType::kInvalid}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AllocateCode({.shape = {0}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AllocateCode({.shape = {1, 1, 1, 1, 1, 1, 1, 1, 1}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AllocateCode({.shape = {int64_t{1} << 61}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(AllocateCode({.shape = {1}, .name = std::string(129, 'x')}),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(BufferTableTest, ClientMemoryLimitCountsAllBuffersOfTheClient) {
  limits_.max_client_memory_mib = 1;
  BufferTable table(limits_);
  FakeSession big(1, 16 << 20, 0);
  table.AddOwner(kAlice);
  EXPECT_TRUE(table.Allocate({.shape = {200'000}}, kAlice, big).ok());
  const absl::Status status = table.Allocate({.shape = {200'000}}, kAlice, big).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("--max_client_memory_mib"), std::string::npos);
}

TEST_F(BufferTableTest, CopiesOfDurableBuffersAreLimitedByClientAndInTotal) {
  limits_.max_client_host_mib = 1;
  limits_.max_host_mib = 2;
  limits_.max_buffers = 16;
  BufferTable table(limits_);
  FakeSession big(1, 64 << 20, 0);
  table.AddOwner(kAlice);
  table.AddOwner(kBob);
  const BufferSpec spec{.shape = {200'000}, .durable = true};
  const auto held = table.Allocate(spec, kAlice, big);
  ASSERT_TRUE(held.ok());
  const absl::Status own = table.Allocate(spec, kAlice, big).status();
  EXPECT_EQ(own.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(own.message().find("--max_client_host_mib"), std::string::npos) << own;
  EXPECT_EQ(table.usage(kAlice).buffers, 1u);
  EXPECT_TRUE(table.Allocate({.shape = {200'000}}, kAlice, big).ok());  // Has no copy.
  EXPECT_TRUE(table.Allocate(spec, kBob, big).ok());
  // Copies outlive their session; then they count only towards the total limit.
  table.RemoveOwner(kAlice);
  table.RemoveOwner(kBob);
  table.AddOwner(kAlice);
  const absl::Status all = table.Allocate(spec, kAlice, big).status();
  EXPECT_NE(all.message().find("--max_host_mib"), std::string::npos) << all;
  ASSERT_TRUE(table.Free(kAlice, (*held)->id).ok());
  EXPECT_FALSE(table.Allocate(spec, kAlice, big).ok());  // A batch still uses it.
}

TEST_F(BufferTableTest, SharedMemoryIsMappedOnlyWithinTheLimitAndOnlyWhatIsCounted) {
  limits_.max_client_memory_mib = 1;
  BufferTable table(limits_);
  table.AddOwner(kAlice);
  uint64_t mapped = 0;
  FakeSession session(1, 1 << 20, 1 << 20);
  const auto map = [&](EngineSession&, uint64_t bytes) {
    mapped += bytes;
    return std::make_shared<const DeviceMemory>();
  };
  EXPECT_EQ(
      table.Adopt({.shape = {300'000}}, kAlice, session, Buffer::Place::kHost, map).status().code(),
      absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(mapped, 0u);
  EXPECT_TRUE(table.Adopt({.shape = {200'000}}, kAlice, session, Buffer::Place::kHost, map).ok());
  EXPECT_EQ(mapped, table.usage(kAlice).bytes);
  const auto fails = [](EngineSession&,
                        uint64_t) -> absl::StatusOr<std::shared_ptr<const DeviceMemory>> {
    return absl::UnavailableError("gone");
  };
  EXPECT_EQ(
      table.Adopt({.shape = {1}}, kAlice, session, Buffer::Place::kHost, fails).status().code(),
      absl::StatusCode::kUnavailable);
  EXPECT_EQ(table.usage(kAlice).buffers, 1u);
}

TEST_F(BufferTableTest, AllocationForASessionThatEndedLeaksNothing) {
  table_->RemoveOwner(kAlice);
  EXPECT_EQ(AllocateCode({.shape = {16}}), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(session_.memory_used_bytes(), 0u);
}

TEST_F(BufferTableTest, RestartRestoresDurableBuffersAndLosesTheOthersWithTheCause) {
  const uint64_t durable = MustAllocate(kAlice, /*durable=*/true);
  const uint64_t plain = MustAllocate(kAlice);
  MustUpload(durable, 7, 64);

  FakeSession next(2, 1 << 20, 1 << 20);
  table_->OnRestart(0, next, "killed", CopyBack);
  const auto restored = *table_->Find(kAlice, durable);
  ASSERT_NE(restored->memory, nullptr);
  EXPECT_EQ(restored->epoch, 2u);
  EXPECT_EQ(*reinterpret_cast<const uint8_t*>(restored->memory->address + 63), 7);
  const auto lost = *table_->Find(kAlice, plain);
  EXPECT_EQ(lost->memory, nullptr);
  EXPECT_EQ(lost->lost_cause, "killed");
  EXPECT_EQ(session_.memory_used_bytes(), 0u);
  EXPECT_TRUE(table_->Free(kAlice, plain).ok());
}

TEST_F(BufferTableTest, RestartMapsSharedMemoryIntoTheNewEngine) {
  std::vector<uint64_t> epochs;
  bool fails = false;
  const auto map = [&](EngineSession& session,
                       uint64_t) -> absl::StatusOr<std::shared_ptr<const DeviceMemory>> {
    if (fails) return absl::InvalidArgumentError("the object is smaller now");
    epochs.push_back(session.epoch());
    return std::make_shared<const DeviceMemory>();
  };
  const auto buffer = table_->Adopt({.shape = {16}}, kAlice, session_, Buffer::Place::kHost, map);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  EXPECT_EQ((*buffer)->place, Buffer::Place::kHost);

  FakeSession second(2, 1 << 20, 1 << 20), third(3, 1 << 20, 1 << 20);
  table_->OnRestart(0, second, "killed", RestoreNothing);
  EXPECT_EQ(epochs, (std::vector<uint64_t>{1, 2}));
  const auto moved = *table_->Find(kAlice, (*buffer)->id);
  EXPECT_NE(moved->memory, nullptr);
  EXPECT_EQ(moved->epoch, 2u);

  fails = true;
  table_->OnRestart(0, third, "killed", RestoreNothing);
  const auto lost = *table_->Find(kAlice, (*buffer)->id);
  EXPECT_EQ(lost->memory, nullptr);
  EXPECT_NE(lost->lost_cause.find("smaller now"), std::string::npos) << lost->lost_cause;
  EXPECT_TRUE(table_->Free(kAlice, lost->id).ok());
}

TEST_F(BufferTableTest, BufferThatCannotBeRestoredIsLostWithTheReason) {
  const uint64_t durable = MustAllocate(kAlice, /*durable=*/true);
  FakeSession small(2, 8, 0);
  table_->OnRestart(0, small, "killed", RestoreNothing);
  const auto lost = *table_->Find(kAlice, durable);
  EXPECT_EQ(lost->memory, nullptr);
  EXPECT_NE(lost->lost_cause.find("could not be restored"), std::string::npos);
}

// A session whose engine is replaced after the allocation and before the entry in the table.
class ReplacedSession : public FakeSession {
 public:
  ReplacedSession(BufferTable* table, EngineSession* next)
      : FakeSession(1, 1 << 20, 1 << 20), table_(table), next_(next) {}
  absl::StatusOr<std::shared_ptr<const DeviceMemory>> AllocateMemory(uint64_t bytes) override {
    auto memory = FakeSession::AllocateMemory(bytes);
    table_->OnRestart(0, *next_, "killed", RestoreNothing);
    return memory;
  }

 private:
  BufferTable* const table_;
  EngineSession* const next_;
};

TEST_F(BufferTableTest, ABufferAllocatedWhileItsEngineIsReplacedIsRefusedNotLostForGood) {
  FakeSession next(2, 1 << 20, 1 << 20);
  ReplacedSession replaced(table_.get(), &next);
  const absl::Status status = table_->Allocate({.shape = {16}}, kAlice, replaced).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(table_->usage(kAlice).buffers, 0u);
  EXPECT_EQ(replaced.memory_used_bytes(), 0u);
  // The client tries again after this error.
  EXPECT_TRUE(table_->Allocate({.shape = {16}}, kAlice, next).ok());
  // Shared memory that was mapped into the old engine.
  const auto map = [](EngineSession&, uint64_t) { return std::make_shared<const DeviceMemory>(); };
  EXPECT_EQ(
      table_->Adopt({.shape = {16}}, kAlice, session_, Buffer::Place::kHost, map).status().code(),
      absl::StatusCode::kUnavailable);
}

TEST_F(BufferTableTest, AllocationOnANewerEngineThanTheLastRestartIsAccepted) {
  FakeSession second(2, 1 << 20, 1 << 20), third(3, 1 << 20, 1 << 20);
  table_->OnRestart(0, second, "killed", RestoreNothing);
  EXPECT_TRUE(table_->Allocate({.shape = {16}}, kAlice, third).ok());
  EXPECT_TRUE(table_->Allocate({.shape = {16}, .device = 1}, kAlice, session_).ok());
}

// The device has copied all pieces of an upload, but its engine ends before the upload is
// committed.
TEST_F(BufferTableTest, AnUploadWhoseEngineEndedBeforeItsCommitIsRefusedAndChangesNothing) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  MustUpload(id, 1, 64);
  const auto late = StartWrite(id, DurableCopy::Kind::kUpload);
  const std::vector<uint8_t> data(64, 2);
  ASSERT_TRUE(late->Add(0, data).ok());
  FakeSession next(2, 1 << 20, 1 << 20);
  table_->OnRestart(0, next, "killed", CopyBack);
  for (const absl::Status& status : {late->Add(0, data), late->Commit()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find("Fix: "), std::string::npos) << status;
  }
  // The device and the copy have the same contents, and the next upload succeeds.
  const auto restored = *table_->Find(kAlice, id);
  EXPECT_EQ(*reinterpret_cast<const uint8_t*>(restored->memory->address), 1);
  EXPECT_EQ(Contents(id), std::vector<uint8_t>(64, 1));
  MustUpload(id, 3, 64);
  EXPECT_EQ(Contents(id), std::vector<uint8_t>(64, 3));
}

TEST_F(BufferTableTest, PiecesForAnEarlierEngineDoNotWaitForTheRestoreAndAreRefused) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  const auto late = StartWrite(id, DurableCopy::Kind::kUpload);
  const std::vector<uint8_t> data(64, 2);
  absl::Status added, started;
  FakeSession next(2, 1 << 20, 1 << 20);
  table_->OnRestart(
      0, next, "killed",
      [&](EngineSession& session, const DeviceMemory& memory, uint64_t bytes,
          const BufferTable::Fill& fill) {
        // The restore waits for the device here; if the thread had to wait too, it would not end.
        std::thread([&] {
          added = late->Add(0, data);
          started =
              table_->StartWrite(DurableCopy::Kind::kUpload, kAlice, **table_->Find(kAlice, id))
                  .status();
        }).join();
        return CopyBack(session, memory, bytes, fill);
      });
  EXPECT_EQ(added.code(), absl::StatusCode::kUnavailable) << added;
  EXPECT_EQ(started.code(), absl::StatusCode::kUnavailable) << started;
  EXPECT_EQ(Contents(id), std::vector<uint8_t>(64, 0));
}

TEST_F(BufferTableTest, AnAbortedWriteChangesNothing) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  MustUpload(id, 1, 64);
  const std::vector<uint8_t> half(32, 2);
  for (const auto kind : {DurableCopy::Kind::kPersist, DurableCopy::Kind::kUpload}) {
    const auto broken = StartWrite(id, kind);
    ASSERT_TRUE(broken->Add(0, half).ok());
    EXPECT_GT(table_->copies_bytes(), 64u);
  }
  EXPECT_EQ(table_->copies_bytes(), 64u);
  MustUpload(id, 3, 4);
  std::vector<uint8_t> expected(64, 1);
  std::fill(expected.begin(), expected.begin() + 4, 3);
  EXPECT_EQ(Contents(id), expected);
}

TEST_F(BufferTableTest, APersistDuringWhichAnUploadRanIsRefused) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  const std::vector<uint8_t> data(64, 9);
  auto persist = StartWrite(id, DurableCopy::Kind::kPersist);
  ASSERT_TRUE(persist->Add(0, data).ok());
  MustUpload(id, 1, 64);
  EXPECT_EQ(persist->Commit().code(), absl::StatusCode::kAborted);
  {
    const auto upload = StartWrite(id, DurableCopy::Kind::kUpload);
    const absl::Status refused =
        table_->StartWrite(DurableCopy::Kind::kPersist, kAlice, **table_->Find(kAlice, id))
            .status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kAborted) << refused;
    EXPECT_NE(refused.message().find("Fix: "), std::string::npos) << refused;
  }
  EXPECT_EQ(Contents(id), std::vector<uint8_t>(64, 1));
  persist = StartWrite(id, DurableCopy::Kind::kPersist);
  ASSERT_TRUE(persist->Add(0, data).ok());
  ASSERT_TRUE(persist->Commit().ok());
  EXPECT_EQ(Contents(id), data);
}

TEST_F(BufferTableTest, UnfinishedWritesAreLimitedLikeCopies) {
  limits_.max_client_host_mib = 1;
  table_ = std::make_unique<BufferTable>(limits_);
  table_->AddOwner(kAlice);
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true, {200'000});
  const std::vector<uint8_t> data(800'000, 1);
  const auto first = StartWrite(id, DurableCopy::Kind::kUpload);
  ASSERT_TRUE(first->Add(0, data).ok());
  const auto second = StartWrite(id, DurableCopy::Kind::kUpload);
  const absl::Status refused = second->Add(0, data);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_NE(refused.message().find("--max_client_host_mib"), std::string::npos) << refused;
  ASSERT_TRUE(first->Commit().ok());
  EXPECT_TRUE(second->Add(0, data).ok());
}

TEST_F(BufferTableTest, ALateRestoreDoesNotReplaceThatOfANewerEngine) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  const uint64_t plain = MustAllocate(kAlice);
  MustUpload(id, 1, 64);
  FakeSession second(2, 1 << 20, 1 << 20), third(3, 1 << 20, 1 << 20);
  // While the second engine's restore waits for the device, that engine ends; the third one's
  // restore runs to its end and an upload follows.
  table_->OnRestart(0, second, "second",
                    [&](EngineSession& session, const DeviceMemory& memory, uint64_t bytes,
                        const BufferTable::Fill& fill) {
                      std::thread([&] {
                        table_->OnRestart(0, third, "third", CopyBack);
                        MustUpload(id, 5, 64);
                      }).join();
                      (void)CopyBack(session, memory, bytes, fill);
                      return absl::OkStatus();
                    });
  const auto now = *table_->Find(kAlice, id);
  EXPECT_EQ(now->epoch, 3u);
  EXPECT_NE(now->memory, nullptr);
  EXPECT_EQ((*table_->Find(kAlice, plain))->lost_cause, "third");
  EXPECT_EQ(second.memory_used_bytes(), 0u);
  EXPECT_EQ(Contents(id), std::vector<uint8_t>(64, 5));
  // A late call for an earlier engine.
  table_->OnRestart(0, second, "second", CopyBack);
  EXPECT_EQ((*table_->Find(kAlice, id))->epoch, 3u);
}

class DurableBuffersTest : public BufferTableTest {
 protected:
  DurableBuffersTest() {
    disk_.hook = [this](const TestDisk::Step& step) {
      if (step.kind != TestDisk::Step::Kind::kSync) return SQLITE_OK;
      absl::MutexLock lock(&disk_mu_);
      waits_for_disk_ = true;
      const auto free = [this] { return !disk_held_; };
      disk_mu_.Await(absl::Condition(&free));
      return disk_fails_ ? SQLITE_IOERR_FSYNC : SQLITE_OK;
    };
    Restart();
  }
  ~DurableBuffersTest() override {
    table_.reset();
    state_.reset();
  }

  // As if the daemon was killed and started again.
  void Restart() {
    table_.reset();
    state_.reset();
    auto state = StateStore::Open({.directory = folder_, .vfs = TestDisk::kName});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    table_ = std::make_unique<BufferTable>(limits_);
    warnings_ = table_->Load(state_.get());
    table_->AddOwner(kAlice);
    table_->AddOwner(kBob);
  }
  void RestoreTo(EngineSession& session) { table_->OnRestart(0, session, "restarted", CopyBack); }

  // Starts a thread that saves the buffer. When this returns, the thread waits for the disk.
  std::thread SaveAndHoldTheDisk(uint64_t id) {
    absl::MutexLock lock(&disk_mu_);
    disk_held_ = true;
    waits_for_disk_ = false;
    std::thread saves([this, id] { EXPECT_TRUE(table_->Save(**table_->Find(kAlice, id)).ok()); });
    disk_mu_.Await(absl::Condition(&waits_for_disk_));
    return saves;
  }
  void ReleaseTheDisk() {
    absl::MutexLock lock(&disk_mu_);
    disk_held_ = false;
  }

  // Starts a thread that does this. When this returns, the thread sleeps: it waits for a lock.
  static std::thread StartAndAwaitSleep(std::function<void()> work) {
    std::promise<pid_t> started;
    std::future<pid_t> id = started.get_future();
    std::thread thread([work = std::move(work), started = std::move(started)]() mutable {
      started.set_value(gettid());
      work();
    });
    const std::string path = absl::StrCat("/proc/self/task/", id.get(), "/stat");
    EXPECT_TRUE(testing::Eventually([&] {
      std::ifstream file(path);
      std::string line;
      std::getline(file, line);
      return line.find(") S ") != std::string::npos;
    })) << "the thread does not wait";
    return thread;
  }

  const testing::TempFolder temp_{"buffers"};
  const std::string& folder_ = temp_.path();
  TestDisk disk_;
  absl::Mutex disk_mu_;
  bool disk_held_ = false;
  bool waits_for_disk_ = false;
  bool disk_fails_ = false;
  std::unique_ptr<StateStore> state_;
  std::vector<std::string> warnings_;
};

TEST_F(DurableBuffersTest, ARestartRestoresIdNameShapeAndContents) {
  auto made =
      table_->Allocate({.dtype = DType::kI32, .shape = {4, 2}, .durable = true, .name = "weights"},
                       kAlice, session_);
  ASSERT_TRUE(made.ok()) << made.status();
  const uint64_t id = (*made)->id;
  MustUpload(id, 7, 32);
  ASSERT_TRUE(table_->Save(**made).ok());
  const uint64_t plain = MustAllocate(kAlice);
  Restart();
  EXPECT_TRUE(warnings_.empty());
  const auto waiting = *table_->Find(kBob, id);
  EXPECT_EQ(waiting->memory, nullptr);
  EXPECT_FALSE(waiting->lost_cause.empty());
  FakeSession session(1, 1 << 20, 1 << 20);
  RestoreTo(session);
  const auto restored = *table_->Find(kBob, id);
  ASSERT_NE(restored->memory, nullptr);
  EXPECT_EQ(restored->name, "weights");
  EXPECT_EQ(restored->shape, (Shape{4, 2}));
  EXPECT_EQ(restored->dtype, DType::kI32);
  EXPECT_EQ(*reinterpret_cast<const uint8_t*>(restored->memory->address + 31), 7);
  EXPECT_FALSE(table_->Find(kAlice, plain).ok());
  // Ids of durable buffers are not reused.
  EXPECT_GT((*table_->Allocate({.shape = {1}}, kAlice, session))->id, id);
}

// Otherwise a save that began later, with later contents, could write first.
TEST_F(DurableBuffersTest, ASaveReadsTheContentsWhenItMayWrite) {
  const uint64_t other = MustAllocate(kAlice, /*durable=*/true);
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  MustUpload(id, 1, 64);
  std::thread blocker = SaveAndHoldTheDisk(other);
  std::thread waits =
      StartAndAwaitSleep([&] { EXPECT_TRUE(table_->Save(**table_->Find(kAlice, id)).ok()); });
  MustUpload(id, 2, 64);
  ReleaseTheDisk();
  blocker.join();
  waits.join();
  EXPECT_EQ(*state_->ReadBuffer(id), std::string(64, 2));
}

// Otherwise the creation on disk could overwrite what another session has uploaded.
TEST_F(DurableBuffersTest, ABufferIsNotSavedBeforeItsCreationIsOnDisk) {
  const uint64_t other = MustAllocate(kAlice, /*durable=*/true);
  std::thread blocker = SaveAndHoldTheDisk(other);
  std::thread makes = StartAndAwaitSleep([&] { MustAllocate(kAlice, /*durable=*/true); });
  EXPECT_EQ(table_->List(kBob).size(), 1u);
  ReleaseTheDisk();
  blocker.join();
  makes.join();
  EXPECT_EQ(table_->List(kBob).size(), 2u);
}

TEST_F(DurableBuffersTest, ABufferThatWasNeverWrittenIsRestoredAsZeros) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  Restart();
  FakeSession session(1, 1 << 20, 1 << 20);
  RestoreTo(session);
  const auto restored = *table_->Find(kAlice, id);
  ASSERT_NE(restored->memory, nullptr);
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(restored->memory->address), 0u);
}

TEST_F(DurableBuffersTest, AFreedBufferIsNotRestoredEvenIfItIsSavedAfterwards) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  const auto buffer = *table_->Find(kAlice, id);
  ASSERT_TRUE(table_->Save(*buffer).ok());
  ASSERT_TRUE(table_->Free(kBob, id).ok());
  ASSERT_TRUE(table_->Save(*buffer).ok());  // An upload that ends late.
  Restart();
  EXPECT_FALSE(table_->Find(kAlice, id).ok());
  // Its id is not reused either.
  EXPECT_GT(MustAllocate(kAlice), id);
}

TEST_F(DurableBuffersTest, ABufferThatCannotBeStoredIsNotCreated) {
  disk_fails_ = true;
  const absl::Status refused =
      table_->Allocate({.shape = {16}, .durable = true}, kAlice, session_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal) << refused;
  EXPECT_NE(refused.message().find("disk I/O error"), std::string::npos) << refused;
  // No client has its id, although it could not be dropped from the disk either.
  EXPECT_TRUE(table_->List(kBob).empty());
  EXPECT_EQ(session_.memory_used_bytes(), 0u);
  EXPECT_EQ(table_->copies_bytes(), 0u);
  EXPECT_EQ(table_->usage(kAlice).buffers, 0u);
  EXPECT_EQ(table_->usage(kAlice).bytes, 0u);
  disk_fails_ = false;
  for (uint64_t i = 0; i < limits_.max_buffers; ++i) MustAllocate(kAlice, /*durable=*/true);
}

TEST_F(DurableBuffersTest, DamagedContentsAreNotRestoredAndReported) {
  const uint64_t id = MustAllocate(kAlice, /*durable=*/true);
  ASSERT_TRUE(table_->Save(**table_->Find(kAlice, id)).ok());
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/buffers")) {
    std::filesystem::resize_file(file, 10);
  }
  Restart();
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(absl::StrCat("durable buffer ", id)), std::string::npos);
  EXPECT_FALSE(table_->Find(kAlice, id).ok());
}

TEST_F(BufferTableTest, ConcurrentShortSessionsLeaveNothing) {
  limits_.max_buffers = 1000;
  BufferTable table(limits_);
  FakeSession session(1, 1 << 20, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        const ClientId client = 100 + t * 1000 + round;
        table.AddOwner(client);
        auto a = table.Allocate({.shape = {4}}, client, session);
        auto b = table.Allocate({.shape = {4}}, client, session);
        if (a.ok()) (void)table.Free(client, (*a)->id);
        table.RemoveOwner(client);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(session.memory_used_bytes(), 0u);
  EXPECT_EQ(table.CountOn(0), 0u);
}

}  // namespace
}  // namespace resident
