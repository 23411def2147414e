// The store on a disk that is slow, full, or whose syncs fail.
#include <sqlite3.h>

#include <atomic>
#include <climits>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_store.h"
#include "runtime/state/state_store_for_test.h"
#include "runtime/state/test_disk.h"

namespace resident {
namespace {

using Step = TestDisk::Step;

// A disk that fails, or whose syncs wait until the test continues them.
class Disk {
 public:
  Disk() {
    disk_.hook = [this](const Step& step) { return OnStep(step); };
  }
  // The next `times` steps of this kind fail with this SQLite code.
  void Fail(Step::Kind kind, int code, int times = INT_MAX) {
    absl::MutexLock lock(&mu_);
    failing_ = kind;
    code_ = code;
    times_ = times;
  }
  void FailSyncs(int times = INT_MAX) { Fail(Step::Kind::kSync, SQLITE_IOERR_FSYNC, times); }
  void Recover() { FailSyncs(0); }
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
    syncs_ = 0;
  }
  void AwaitSyncs(int count) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return syncs_ >= count; };
    mu_.Await(absl::Condition(&reached));
  }
  int syncs() {
    absl::MutexLock lock(&mu_);
    return syncs_;
  }

 private:
  int OnStep(const Step& step) {
    absl::MutexLock lock(&mu_);
    if (step.phase != Step::Phase::kBefore) return SQLITE_OK;
    if (step.kind == Step::Kind::kSync) {
      ++syncs_;
      const auto not_held = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !held_; };
      mu_.Await(absl::Condition(&not_held));
    }
    if (step.kind != failing_ || times_ == 0) return SQLITE_OK;
    --times_;
    return code_;
  }

  TestDisk disk_;
  absl::Mutex mu_;
  Step::Kind failing_ ABSL_GUARDED_BY(mu_) = Step::Kind::kSync;
  int code_ ABSL_GUARDED_BY(mu_) = SQLITE_OK;
  int times_ ABSL_GUARDED_BY(mu_) = 0;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int syncs_ ABSL_GUARDED_BY(mu_) = 0;
};

class StateStoreDiskTest : public StateStoreTest {
 protected:
  std::unique_ptr<StateStore> OpenOnDisk(uint64_t checkpoint_bytes = 8u << 20) {
    return Open({.directory = folder_,
                 .checkpoint_bytes = checkpoint_bytes,
                 .log =
                     [this](const std::string& error) {
                       absl::MutexLock lock(&mu_);
                       errors_.push_back(error);
                     },
                 .vfs = TestDisk::kName});
  }
  size_t errors() {
    absl::MutexLock lock(&mu_);
    return errors_.size();
  }

  Disk disk_;
  absl::Mutex mu_;
  std::vector<std::string> errors_ ABSL_GUARDED_BY(mu_);
};

TEST_F(StateStoreDiskTest, AChangeIsVisibleWhenItIsOnDiskAndAppendsAndReadersDoNotWaitForTheDisk) {
  auto store = OpenOnDisk();
  RunScript(*store, 4);
  const uint64_t before = store->revision();
  disk_.Hold(true);
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  const auto sync = [&] {
    EXPECT_TRUE(store->Sync().ok());
    ++answered;
  };
  threads.emplace_back(sync);
  disk_.AwaitSyncs(1);
  // The sync waits for the disk now.
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).ok());
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
  threads.emplace_back(sync);
  threads.emplace_back(sync);
  EXPECT_EQ(store->revision(), before);
  EXPECT_TRUE(store->EventsAfter(before, 100)->empty());
  EXPECT_EQ(store->EventsBefore(0, "", 1)[0].revision, before);
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(disk_.syncs(), 1);
  {
    // The running transaction does not include the two later changes.
    disk_.Hold(false);
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(answered, 3);
  EXPECT_EQ(store->revision(), before + 3);
  EXPECT_EQ(store->EventsAfter(before, 100)->size(), 3u);
  const std::string state = Describe(*store);
  store.reset();
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreDiskTest, ASwitchTakesEffectAndOthersFollowWhileItsSyncWaits) {
  auto store = OpenOnDisk();
  auto registry = *Registry::Create({});
  const Registry::Commit commit = [&](const RegistryChange& change) {
    return store->Append(change, {.actor = "alice"});
  };
  VersionSpec spec;
  spec.signature = "x: in f32[*S], out: out f32[*S]";
  spec.split = "out 4096";
  for (int i = 0; i < 2; ++i) {
    auto reserved = registry->Reserve("swish", spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry->Load(*std::move(reserved), std::nullopt, commit).ok());
    ASSERT_TRUE(registry->Activate("swish", 0, std::nullopt, false, commit).ok());
  }
  ASSERT_TRUE(store->Sync().ok());
  const uint64_t before = store->revision();

  disk_.Hold(true);
  ASSERT_TRUE(registry->Rollback("swish", std::nullopt, commit).ok());
  std::thread answer([&] { EXPECT_TRUE(store->Sync().ok()); });
  disk_.AwaitSyncs(1);
  EXPECT_EQ(registry->Resolve("swish", 0)->version->version, 1u);
  // The locks of a change are not held meanwhile.
  ASSERT_TRUE(registry->Activate("swish", 2, std::nullopt, false, commit).ok());
  EXPECT_EQ(registry->Resolve("swish", 0)->version->version, 2u);
  EXPECT_EQ(store->revision(), before);
  disk_.Hold(false);
  answer.join();
  EXPECT_EQ(store->revision(), before + 1);
  ASSERT_TRUE(store->Sync().ok());
  EXPECT_EQ(store->revision(), before + 2);
}

TEST_F(StateStoreDiskTest, OneSyncWritesAllChangesThatWereAppendedBeforeIt) {
  auto store = OpenOnDisk();
  RunScript(*store, 4);
  disk_.Hold(true);
  std::thread first([&] { EXPECT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok()); });
  disk_.AwaitSyncs(1);
  for (int i = 0; i < 20; ++i) {
    const uint32_t to = i % 2 == 0 ? 2 : 1;
    ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", to, 3 - to), {}).ok());
  }
  std::vector<std::thread> others;
  for (int i = 0; i < 20; ++i) others.emplace_back([&] { EXPECT_TRUE(store->Sync().ok()); });
  disk_.Hold(false);
  first.join();
  for (std::thread& other : others) other.join();
  // Hold has reset the count, so the first sync is not included.
  EXPECT_EQ(disk_.syncs(), 1);
}

TEST_F(StateStoreDiskTest, ATransactionThatFailsOnceIsRetriedAtOnce) {
  auto store = OpenOnDisk();
  RunScript(*store, 4);
  disk_.FailSyncs(1);
  ASSERT_TRUE(AppendAndSync(*store, SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
  EXPECT_EQ(errors(), 1u);
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  const std::string state = Describe(*store);
  LeaveAsKilled(std::move(store));
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreDiskTest, AChangeThatIsNotOnDiskReturnsAnErrorAndTheNextIsRefusedUntilItIs) {
  struct Failure {
    Step::Kind kind;
    int code;
  };
  for (const Failure& failure :
       {Failure{Step::Kind::kSync, SQLITE_IOERR_FSYNC}, Failure{Step::Kind::kWrite, SQLITE_FULL},
        Failure{Step::Kind::kWrite, SQLITE_IOERR_WRITE}}) {
    SCOPED_TRACE(failure.code);
    std::filesystem::remove_all(folder_);
    auto store = OpenOnDisk();
    RunScript(*store, 4);
    const uint64_t before = store->revision();
    disk_.Fail(failure.kind, failure.code);
    ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
    const absl::Status synced = store->Sync();
    EXPECT_EQ(synced.code(), absl::StatusCode::kInternal);
    EXPECT_NE(synced.message().find("a restart may lose it"), std::string::npos);
    EXPECT_NE(synced.message().find("Fix: "), std::string::npos);
    EXPECT_EQ(synced.message().find(folder_), std::string::npos) << synced;
    EXPECT_EQ(store->revision(), before);
    const absl::Status refused =
        store->Append(SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(refused.message().find("Fix: "), std::string::npos);
    EXPECT_EQ(refused.message().find(folder_), std::string::npos) << refused;
    EXPECT_EQ(store->DropBuffer(7).code(), absl::StatusCode::kUnavailable);
    disk_.Recover();
    ASSERT_TRUE(
        AppendAndSync(*store, SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).ok());
    // Both changes were made, and both are visible.
    EXPECT_EQ(store->EventsAfter(before, 100)->size(), 2u);
    const std::string state = Describe(*store);
    LeaveAsKilled(std::move(store));
    EXPECT_EQ(Describe(*Open()), state);
  }
}

// Every caller may see the errors, and where the daemon keeps its files is not for every caller.
TEST_F(StateStoreDiskTest, ErrorsOfFilesDoNotContainThePathOfTheFolder) {
  auto store = OpenOnDisk();
  const std::string kept = *store->PutBlob("kept");
  for (const char* folder : {"blobs", "buffers"}) {
    ASSERT_GT(std::filesystem::remove_all(std::filesystem::path(folder_) / folder), 0u);
  }
  const std::vector<uint8_t> contents(10, 'n');
  const std::vector<absl::Status> errors = {
      store->PutBlob("new").status(), store->GetBlob(kept).status(),
      store->PutBuffer({.id = 9, .dtype = 7, .shape = {10}, .size_bytes = 10}, contents),
      store->PutGraph({.id = "g"}, "content")};
  for (const absl::Status& error : errors) {
    EXPECT_FALSE(error.ok());
    EXPECT_EQ(error.message().find(folder_), std::string::npos) << error;
    EXPECT_NE(error.message().find("Fix: "), std::string::npos) << error;
  }
}

// The records of the refused buffer may already be in the log. In any case, a restart must not list
// the buffer when the disk works again.
TEST_F(StateStoreDiskTest, ARefusedDurableBufferIsNotRestoredWhenTheDiskWorksAgain) {
  const StoredBuffer buffer = {.id = 9, .dtype = 7, .shape = {10}, .size_bytes = 10};
  const std::vector<uint8_t> contents(10, 'n');
  for (const bool another_change : {true, false}) {
    SCOPED_TRACE(another_change);
    std::filesystem::remove_all(folder_);
    auto store = OpenOnDisk();
    RunScript(*store, 3);
    const std::string before = Describe(*store);
    disk_.FailSyncs();
    EXPECT_EQ(store->PutBuffer(buffer, contents).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(store->PutBuffer(buffer, contents).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(Describe(*store), before);
    disk_.Recover();
    if (another_change) {
      ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
      const std::string state = Describe(*store);
      LeaveAsKilled(std::move(store));
      EXPECT_EQ(Describe(*Open()), state);
    } else {
      store.reset();
      EXPECT_EQ(Describe(*Open()), before);
    }
    for (const StoredBuffer& found : Open()->buffers()) EXPECT_NE(found.id, 9u);
  }
}

// Failed transactions leave frames in the log after those of the next transaction.
TEST_F(StateStoreDiskTest, FramesOfFailedTransactionsAreNotMistakenForDamage) {
  auto store = OpenOnDisk();
  RunScript(*store, 4);
  disk_.FailSyncs();
  // Each transaction is smaller than the previous one.
  for (const size_t text_bytes : {4000, 2000, 1}) {
    const std::string name(text_bytes, 'n');
    EXPECT_FALSE(
        store->PutBuffer({.id = 9, .name = name, .dtype = 7, .shape = {1}, .size_bytes = 1}, {})
            .ok());
    disk_.FailSyncs(1);
    EXPECT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
    disk_.FailSyncs();
  }
  EXPECT_FALSE(
      store
          ->PutBuffer({.id = 9, .name = std::string(400'000, 'n'), .dtype = 7, .size_bytes = 1}, {})
          .ok());
  EXPECT_FALSE(store->DropBuffer(9).ok());
  EXPECT_FALSE(store->DropBuffer(7).ok());
  disk_.Recover();
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  const std::string state = Describe(*store);
  LeaveAsKilled(std::move(store));
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(Describe(*store), state);
}

// The store is killed before the disk works again. The buffer must not have a mix of both contents.
TEST_F(StateStoreDiskTest, AFailedWriteOfABufferLeavesTheOldContentsOrTheNew) {
  auto store = OpenOnDisk();
  RunScript(*store, 3);
  disk_.FailSyncs();
  const std::vector<uint8_t> contents(1000, 'n');
  EXPECT_EQ(
      store->PutBuffer({.id = 7, .dtype = 7, .shape = {1000}, .size_bytes = 1000}, contents).code(),
      absl::StatusCode::kInternal);
  EXPECT_EQ(*store->ReadBuffer(7), std::string(1000, 'a'));
  LeaveAsKilled(std::move(store));
  disk_.Recover();
  const std::string found = *Open()->ReadBuffer(7);
  EXPECT_TRUE(found == std::string(1000, 'a') || found == std::string(1000, 'n')) << found;
}

TEST_F(StateStoreDiskTest, ALogThatCannotBeCopiedIntoTheDatabaseKeepsTheChanges) {
  auto store = OpenOnDisk(/*checkpoint_bytes=*/20'000);
  RunScript(*store, 4);
  disk_.Fail(Step::Kind::kTruncate, SQLITE_IOERR_TRUNCATE);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  }
  EXPECT_GT(errors(), 0u);
  EXPECT_LT(errors(), 20u);  // The checkpoint is not tried again with every change.
  const std::string state = Describe(*store);
  LeaveAsKilled(std::move(store));
  disk_.Recover();
  EXPECT_EQ(Describe(*Open()), state);
}

}  // namespace
}  // namespace resident
