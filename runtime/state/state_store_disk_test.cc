// The store on a disk that is slow, or whose syncs fail.
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_store.h"
#include "runtime/state/state_store_for_test.h"

namespace resident {
namespace {

// A disk whose syncs fail, or take as long as the test likes.
class Disk {
 public:
  // For StateStore::Options::before_sync.
  absl::Status operator()(const std::string& path) {
    absl::MutexLock lock(&mu_);
    ++syncs_;
    if (path.ends_with("/journal")) ++journal_syncs_;
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !held_; };
    mu_.Await(absl::Condition(&free));
    for (const std::string& ending : failing_) {
      if (path.ends_with(ending)) return absl::UnavailableError("cannot sync. Fix: none");
    }
    return absl::OkStatus();
  }
  // Paths with these endings fail from now on; "": all.
  void Fail(std::vector<std::string> endings) {
    absl::MutexLock lock(&mu_);
    failing_ = std::move(endings);
  }
  void Hold(bool held) {
    absl::MutexLock lock(&mu_);
    held_ = held;
    syncs_ = journal_syncs_ = 0;
  }
  void AwaitSyncs(int count) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return syncs_ >= count; };
    mu_.Await(absl::Condition(&reached));
  }
  int journal_syncs() {
    absl::MutexLock lock(&mu_);
    return journal_syncs_;
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> failing_ ABSL_GUARDED_BY(mu_);
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  int syncs_ ABSL_GUARDED_BY(mu_) = 0;
  int journal_syncs_ ABSL_GUARDED_BY(mu_) = 0;
};

class StateStoreDiskTest : public StateStoreTest {
 protected:
  std::unique_ptr<StateStore> OpenOnDisk(uint64_t compact_bytes = 8u << 20) {
    return Open({.directory = folder_,
                 .compact_bytes = compact_bytes,
                 .log =
                     [this](const std::string& error) {
                       absl::MutexLock lock(&mu_);
                       errors_.push_back(error);
                     },
                 .before_sync = [this](const std::string& path) { return disk_(path); }});
  }
  size_t errors() {
    absl::MutexLock lock(&mu_);
    return errors_.size();
  }

  Disk disk_;
  absl::Mutex mu_;
  std::vector<std::string> errors_ ABSL_GUARDED_BY(mu_);
};

TEST_F(StateStoreDiskTest, AChangeIsShownOnceItIsOnDiskAndAppendsAndReadersDoNotWaitForThat) {
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
  // The disk is being waited for.
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).ok());
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
  threads.emplace_back(sync);
  threads.emplace_back(sync);
  EXPECT_EQ(store->revision(), before);
  EXPECT_TRUE(store->EventsAfter(before, 100)->empty());
  EXPECT_EQ(store->EventsBefore(0, "", 1)[0].revision, before);
  EXPECT_EQ(answered, 0);
  EXPECT_EQ(disk_.journal_syncs(), 1);
  {
    // What the first one waits for does not cover the two behind it.
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

TEST_F(StateStoreDiskTest, ASwitchIsSeenAndOthersAreMadeWhileItsSyncIsWaitedFor) {
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
    ASSERT_TRUE(registry->Stage(*std::move(reserved), std::nullopt, commit).ok());
    ASSERT_TRUE(registry->Activate("swish", 0, std::nullopt, false, commit).ok());
  }
  ASSERT_TRUE(store->Sync().ok());
  const uint64_t before = store->revision();

  disk_.Hold(true);
  ASSERT_TRUE(registry->Rollback("swish", std::nullopt, commit).ok());
  std::thread answer([&] { EXPECT_TRUE(store->Sync().ok()); });
  disk_.AwaitSyncs(1);
  EXPECT_EQ(registry->Resolve("swish", 0)->version->version, 1u);
  // Neither lock of a change is held meanwhile.
  ASSERT_TRUE(registry->Activate("swish", 2, std::nullopt, false, commit).ok());
  EXPECT_EQ(registry->Resolve("swish", 0)->version->version, 2u);
  EXPECT_EQ(store->revision(), before);
  disk_.Hold(false);
  answer.join();
  EXPECT_EQ(store->revision(), before + 1);
  ASSERT_TRUE(store->Sync().ok());
  EXPECT_EQ(store->revision(), before + 2);
}

TEST_F(StateStoreDiskTest, OneSyncAnswersAllThatWereAppendedBeforeIt) {
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
  // Hold forgot the first one's.
  EXPECT_EQ(disk_.journal_syncs(), 1);
}

TEST_F(StateStoreDiskTest, ASyncThatFailedIsMadeGoodByANewJournal) {
  auto store = OpenOnDisk();
  RunScript(*store, 4);
  disk_.Fail({"/journal"});
  ASSERT_TRUE(AppendAndSync(*store, SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
  EXPECT_EQ(errors(), 1u);
  disk_.Fail({});
  const auto scan = ScanJournal(JournalPath());
  EXPECT_EQ(scan->records.size(), 1u);
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  const std::string state = Describe(*store);
  store.reset();
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreDiskTest, AChangeThatIsNotOnDiskIsSaidToBeMadeAndTheNextIsRefusedUntilItIs) {
  auto store = OpenOnDisk();
  RunScript(*store, 4);
  const uint64_t before = store->revision();
  disk_.Fail({""});
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
  const absl::Status synced = store->Sync();
  EXPECT_EQ(synced.code(), absl::StatusCode::kInternal);
  EXPECT_NE(synced.message().find("a restart may come back without it"), std::string::npos);
  EXPECT_NE(synced.message().find("Fix: "), std::string::npos);
  EXPECT_EQ(store->revision(), before);
  const absl::Status refused =
      store->Append(SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("Fix: "), std::string::npos);
  EXPECT_FALSE(store->DropBuffer(7).ok());
  disk_.Fail({});
  ASSERT_TRUE(AppendAndSync(*store, SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).ok());
  // Both are there, and both were shown.
  EXPECT_EQ(store->EventsAfter(before, 100)->size(), 2u);
  const std::string state = Describe(*store);
  store.reset();
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreDiskTest, AJournalWhoseNewNameIsNotOnDiskIsNotReliedUpon) {
  auto store = OpenOnDisk(/*compact_bytes=*/200);
  disk_.Fail({folder_});
  absl::Status status;
  while (errors() == 0) {
    status = store->AppendEvent({.kind = EventKind::kRejected}).status();
    ASSERT_TRUE(status.ok()) << status;  // It was synced in the old one.
  }
  status = store->AppendEvent({.kind = EventKind::kRejected}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  disk_.Fail({});
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  const std::string state = Describe(*store);
  store.reset();
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreDiskTest, WhatIsAppendedWhileTheJournalIsWrittenAnewIsInTheNewOne) {
  auto store = OpenOnDisk(/*compact_bytes=*/200);
  RunScript(*store, 4);
  disk_.Hold(true);
  // The first sync is of the journal; a second one, of the draft, follows only if it is due.
  std::thread compacts([&] {
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .message = "x"}).ok());
    }
  });
  disk_.AwaitSyncs(1);
  disk_.Hold(false);
  for (int i = 0; i < 50; ++i) {
    const uint32_t to = i % 2 == 0 ? 2 : 1;
    ASSERT_TRUE(
        AppendAndSync(*store, SwitchChange(EventKind::kActivated, "swish", to, 3 - to), {}).ok());
  }
  compacts.join();
  const std::string state = Describe(*store);
  store.reset();
  store = Open();
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(Describe(*store), state);
}

// The machine went down while several records were on their way: a later one came to the disk,
// an earlier one did not.
TEST_F(StateStoreDiskTest, ALaterRecordWithoutAnEarlierOneIsATornEndIfNeitherWasSynced) {
  std::string before;
  uint64_t synced = 0;
  std::string bytes;
  {
    auto store = OpenOnDisk();
    RunScript(*store, 5);
    before = Describe(*store);
    synced = ReadWholeFile(JournalPath())->size();
    ASSERT_TRUE(store->Append(SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).ok());
    ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 2, 1), {}).ok());
    bytes = *ReadWholeFile(JournalPath());
  }
  for (size_t i = synced; i < synced + kRecordHeadBytes; ++i) bytes[i] = 0;
  ASSERT_TRUE(WriteWholeFile(JournalPath(), {bytes}).ok());
  {
    auto store = Open();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_EQ(Describe(*store), before);
    ASSERT_TRUE(
        AppendAndSync(*store, SwitchChange(EventKind::kRolledBack, "swish", 1, 2), {}).ok());
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  }
  // Of two that were synced one by one the first was damaged later.
  bytes = *ReadWholeFile(JournalPath());
  bytes[synced + 1] ^= 1;
  ASSERT_TRUE(WriteWholeFile(JournalPath(), {bytes}).ok());
  EXPECT_EQ(StateStore::Open({.directory = folder_}).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace resident
