#include "runtime/state/state_store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/limits.h"
#include "runtime/registry/registry.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"

namespace resident {
namespace {

constexpr char kScriptArgument[] = "--run_script";

class StateStoreTest : public testing::Test {
 protected:
  StateStoreTest() { folder_ = MakeTemp(); }
  ~StateStoreTest() override { std::filesystem::remove_all(folder_); }

  // In memory where there is such a folder: what is asked is what is there after a kill,
  // and that does not depend on the disk, which only makes it slow.
  static std::string MakeTemp() {
    std::string folder =
        (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir()) + "/state_test.XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }
  std::unique_ptr<StateStore> Open() { return Open({.directory = folder_}); }
  static std::unique_ptr<StateStore> Open(const StateStore::Options& options) {
    auto store = StateStore::Open(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  // The first `steps` of the script.
  void RunScript(StateStore& store, size_t steps = SIZE_MAX) {
    const std::vector<ScriptStep> script = MakeScript();
    for (size_t i = 0; i < std::min(steps, script.size()); ++i) {
      const absl::Status done = script[i](store);
      ASSERT_TRUE(done.ok()) << done << " in step " << i;
    }
  }
  std::string JournalPath() const { return folder_ + "/journal"; }

  std::string folder_;
};

TEST_F(StateStoreTest, ARestartBringsEverythingBack) {
  std::string before;
  const std::vector<ScriptStep> script = MakeScript();
  for (size_t i = 0; i < script.size(); ++i) {
    auto store = Open();
    EXPECT_EQ(i == 0 ? "" : before, i == 0 ? "" : Describe(*store)) << i;
    ASSERT_TRUE(script[i](*store).ok());
    before = Describe(*store);
  }
  EXPECT_EQ(Describe(*Open()), before);
}

TEST_F(StateStoreTest, TheStateIsWhatTheRegistryDid) {
  auto store = Open();
  RunScript(*store, 9);  // Three installs; 2 serves, 3 is staged, 1 is retired.
  ASSERT_EQ(store->operators().size(), 1u);
  const StoredOperator op = store->operators()[0];
  ASSERT_EQ(op.versions.size(), 3u);
  EXPECT_EQ(op.versions[0].state, VersionState::kRetired);
  EXPECT_FALSE(op.versions[0].in_slot);
  EXPECT_EQ(op.versions[1].state, VersionState::kActive);
  EXPECT_EQ(op.versions[2].state, VersionState::kStaged);
  EXPECT_EQ(op.versions[2].slot, 103u);
  EXPECT_EQ(op.versions[2].spec.task_time_limit.count(), 250);
  EXPECT_EQ(op.revision, store->revision());
  // The retired version has an event of its own, before that of the install.
  const auto events = store->EventsBefore(0, "", 2);
  EXPECT_EQ(events[0].kind, EventKind::kInstalled);
  EXPECT_EQ(events[1].kind, EventKind::kRetired);
  EXPECT_EQ(events[1].version, 1u);
  EXPECT_EQ(events[0].revision, events[1].revision + 1);
}

TEST_F(StateStoreTest, WithoutAFolderEverythingWorksInMemoryAndSaysSo) {
  auto store = Open(StateStore::Options{});
  EXPECT_TRUE(store->in_memory());
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("no --state_dir"), std::string::npos);
  RunScript(*store);
  EXPECT_EQ(store->operators().size(), 1u);
  // Nothing would ever read it again: it is not kept.
  EXPECT_EQ(store->GetBlob(*store->PutBlob("text")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StateStoreTest, ASecondDaemonIsToldWhoHasTheFolder) {
  auto store = Open();
  const absl::Status second = StateStore::Open({.directory = folder_}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find(absl::StrCat("pid ", getpid())), std::string::npos) << second;
  store.reset();
  EXPECT_NE(Open(), nullptr);
}

TEST_F(StateStoreTest, ATornLastRecordIsDroppedWithAWarning) {
  std::vector<std::string> states;
  uint64_t before_last = 0;
  {
    auto store = Open();
    RunScript(*store, 2);
    states.push_back(Describe(*store));
    before_last = ReadWholeFile(JournalPath())->size();
    RunScript(*store, 0);
    ASSERT_TRUE(MakeScript()[2](*store).ok());
  }
  const std::string whole = *ReadWholeFile(JournalPath());
  for (uint64_t bytes = before_last + 1; bytes < whole.size(); ++bytes) {
    ASSERT_TRUE(WriteWholeFile(JournalPath(), {std::string_view(whole).substr(0, bytes)}).ok());
    auto store = Open();
    ASSERT_NE(store, nullptr);
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find(absl::StrCat("offset ", before_last)), std::string::npos);
    EXPECT_EQ(Describe(*store), states[0]);
  }
  EXPECT_TRUE(Open()->warnings().empty());  // It was cut off.
}

TEST_F(StateStoreTest, AfterATornEndNothingIsCollectedUntilTheNextStart) {
  {
    auto store = Open();
    RunScript(*store, 3);
  }
  const std::string whole = *ReadWholeFile(JournalPath());
  const auto blobs = *ListFiles(folder_ + "/blobs");
  // The record of the buffer's contents is torn, so that nothing refers to them any more.
  ASSERT_TRUE(
      WriteWholeFile(JournalPath(), {std::string_view(whole).substr(0, whole.size() - 1)}).ok());
  const std::string orphan(64, 'a');
  ASSERT_TRUE(WriteWholeFile(folder_ + "/blobs/" + orphan, {"of a record that is cut off"}).ok());
  {
    auto store = Open({.directory = folder_, .compact_bytes = 1});
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_EQ(ListFiles(folder_ + "/buffers")->size(), 1u);
    EXPECT_EQ(ListFiles(folder_ + "/blobs")->size(), blobs.size() + 1);
  }
  Open();
  EXPECT_TRUE(ListFiles(folder_ + "/buffers")->empty());
  EXPECT_EQ(*ListFiles(folder_ + "/blobs"), blobs);
}

TEST_F(StateStoreTest, AStartThatFindsNoJournalRemovesNothing) {
  std::string state;
  {
    auto store = Open();
    RunScript(*store, 3);
    state = Describe(*store);
  }
  const std::string journal = *ReadWholeFile(JournalPath());
  ASSERT_TRUE(RemoveFile(JournalPath()).ok());
  EXPECT_TRUE(Open()->operators().empty());
  // It had been moved away by mistake.
  ASSERT_TRUE(WriteWholeFile(JournalPath(), {journal}).ok());
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreTest, ASnapshotThatNoStartWouldTakeIsNotWritten) {
  std::vector<std::string> errors;
  std::string before;
  {
    auto store = Open({.directory = folder_,
                       .compact_bytes = 500,
                       .most_record_bytes = 800,
                       .log = [&](const std::string& error) { errors.push_back(error); }});
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .operator_name = "x"}).ok());
    }
    before = Describe(*store);
  }
  ASSERT_FALSE(errors.empty());
  EXPECT_LT(errors.size(), 10u);  // Not with every record again.
  EXPECT_NE(errors.back().find("too large for the journal"), std::string::npos) << errors.back();
  auto store = Open();
  EXPECT_TRUE(store->warnings().empty());
  EXPECT_EQ(Describe(*store), before);
}

TEST_F(StateStoreTest, TextsOfEventsAreShortenedAndNeedNotBeUtf8) {
  const std::string text = "\xff" + std::string(1 << 20, 'x');
  {
    auto store = Open();
    RunScript(*store, 5);
    RegistryChange quarantine = SwitchChange(EventKind::kQuarantined, "swish", 1, 2);
    quarantine.version = 2;
    quarantine.reason = text;
    ASSERT_TRUE(AppendAndSync(*store, quarantine, {.actor = text, .message = text}).ok());
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .message = text}).ok());
  }
  EXPECT_LT(ReadWholeFile(JournalPath())->size(), 10 * kMaxEventTextBytes);
  auto store = Open();
  ASSERT_NE(store, nullptr);
  const std::vector<OperatorEvent> events = store->EventsBefore(0, "", 2);
  for (const std::string& kept : {events[0].message, events[1].message, events[1].actor,
                                  store->operators()[0].versions[1].quarantine_reason}) {
    EXPECT_EQ(kept.size(), kMaxEventTextBytes);
    EXPECT_EQ(kept.substr(0, 2), "\xffx");
  }
}

TEST_F(StateStoreTest, ADamagedRecordStopsTheStartAndSaysWhereAndWhatToDo) {
  {
    auto store = Open();
    RunScript(*store);
  }
  std::string bytes = *ReadWholeFile(JournalPath());
  const uint64_t second = ScanJournalBytes(bytes).records[1].offset;
  bytes[second + kRecordHeadBytes + 2] ^= 1;
  ASSERT_TRUE(WriteWholeFile(JournalPath(), {bytes}).ok());
  const absl::Status status = StateStore::Open({.directory = folder_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  for (const std::string& part : {JournalPath(), absl::StrCat("offset ", second),
                                  absl::StrCat("residentctl state check ", folder_),
                                  std::string("residentctl state repair")}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
  }
  // Nothing was changed by looking.
  EXPECT_EQ(*ReadWholeFile(JournalPath()), bytes);
}

TEST_F(StateStoreTest, ARecordThatDoesNotFitIsRefusedBeforeItIsOnDisk) {
  auto store = Open();
  RunScript(*store, 2);
  const std::string before = *ReadWholeFile(JournalPath());
  EXPECT_EQ(store->Append(SwitchChange(EventKind::kActivated, "other", 1, 0), {}).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->Append(SwitchChange(EventKind::kActivated, "swish", 9, 1), {}).status().code(),
            absl::StatusCode::kDataLoss);
  VersionSpec spec;
  EXPECT_EQ(store
                ->Append(InstallChange("new", 1, 0, &spec),
                         {.content = {.blobs = {{"file/a", std::string(64, 'a')}}}})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(*ReadWholeFile(JournalPath()), before);
}

// A daemon that could not bring a version back (its contents were damaged) has another idea
// of what is in the slots than the journal; the journal follows it.
TEST_F(StateStoreTest, AVersionThatDidNotComeBackDoesNotKeepItsPlace) {
  auto store = Open();
  RunScript(*store, 5);  // 2 is active, 1 is the previous one; 2 does not come back.
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 1, 0), {}).ok());
  const StoredOperator op = store->operators()[0];
  EXPECT_EQ(op.versions[0].state, VersionState::kActive);
  EXPECT_EQ(op.versions[1].state, VersionState::kRetired);
  EXPECT_FALSE(op.versions[1].in_slot);
}

// The registry quarantined version 2, whose record the disk refused; then the next change.
TEST_F(StateStoreTest, AQuarantineThatWasNeverWrittenDoesNotPutTwoVersionsInOnePlace) {
  VersionSpec spec;
  RegistryChange install = InstallChange("swish", 3, 1, &spec);
  install.retired = {2};
  RegistryChange retire = SwitchChange(EventKind::kRetired, "swish", 1, 1);
  retire.version = 2;
  retire.standby_version = 0;
  retire.retired = {2};
  for (const RegistryChange& next :
       {install, retire, SwitchChange(EventKind::kActivated, "swish", 2, 1)}) {
    SCOPED_TRACE(static_cast<int>(next.kind));
    const std::string folder = MakeTemp();
    {
      auto store = Open({.directory = folder});
      RunScript(*store, 5);  // 2 is active, 1 is the previous one.
      ASSERT_TRUE(store->Append(next, {}).ok());
    }
    const auto ops = Open({.directory = folder})->operators();
    ASSERT_EQ(ops.size(), 1u);
    for (const StoredVersion& version : ops[0].versions) {
      const bool active = version.version == next.active_version;
      EXPECT_EQ(version.state == VersionState::kActive, active) << version.version;
      EXPECT_EQ(version.in_slot, active || version.version == next.standby_version)
          << version.version;
    }
    std::filesystem::remove_all(folder);
  }
}

TEST_F(StateStoreTest, CompactionKeepsWhatCountsAndForgetsTheRest) {
  std::string before;
  {
    auto store = Open({.directory = folder_, .compact_bytes = kScriptCompactBytes});
    RunScript(*store);
    for (int i = 0; i < 500; ++i) {
      ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .operator_name = "x"}).ok());
    }
    before = Describe(*store);
  }
  EXPECT_EQ(Describe(*Open()), before);
  const auto scan = ScanJournal(JournalPath());
  EXPECT_LT(scan->records.size(), 450u);
  // Version 4's source alone is left, now that the others were removed.
  auto store = Open();
  EXPECT_EQ(ListFiles(folder_ + "/blobs")->size(), 1u);
  EXPECT_EQ(ListFiles(folder_ + "/buffers")->size(), 1u);
}

TEST_F(StateStoreTest, OldEventsAreForgottenAndWhoAsksForThemIsTold) {
  auto store = Open({.directory = folder_, .most_events = 10});
  for (int i = 0; i < 25; ++i) {
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .operator_name = "x"}).ok());
  }
  EXPECT_EQ(store->revision(), 25u);
  EXPECT_EQ(store->EventsAfter(14, 100).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store->EventsAfter(15, 100)->size(), 10u);
  EXPECT_EQ(store->EventsAfter(15, 3)->size(), 3u);
  EXPECT_EQ(store->EventsAfter(15, 3)->front().revision, 16u);
  EXPECT_TRUE(store->EventsAfter(25, 100)->empty());
  EXPECT_TRUE(store->EventsAfter(1000, 100)->empty());
  EXPECT_EQ(store->EventsBefore(20, "", 3)[0].revision, 19u);
  EXPECT_TRUE(store->EventsBefore(0, "y", 3).empty());
}

TEST_F(StateStoreTest, ADamagedBlobOrBufferIsNotGivenOut) {
  auto store = Open();
  RunScript(*store, 3);
  const std::string sha256 = *store->PutBlob("some source");
  for (const std::string& path : {folder_ + "/blobs/" + sha256, folder_ + "/buffers/7.1"}) {
    std::string bytes = *ReadWholeFile(path);
    bytes[3] ^= 4;
    ASSERT_TRUE(WriteWholeFile(path, {bytes}).ok());
  }
  EXPECT_EQ(store->GetBlob(sha256).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->ReadBuffer(7).status().code(), absl::StatusCode::kDataLoss);
  // Putting it again makes it good.
  ASSERT_TRUE(store->PutBlob("some source").ok());
  EXPECT_EQ(*store->GetBlob(sha256), "some source");
  EXPECT_EQ(store->GetBlob("../lock").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StateStoreTest, ABlobThatWasJustPutOutlivesACompaction) {
  auto store = Open({.directory = folder_, .compact_bytes = 200});
  const std::string sha256 = *store->PutBlob("for a version that is being compiled");
  while (ScanJournal(JournalPath())->records.size() != 1 || store->revision() < 2) {
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .operator_name = "x"}).ok());
  }
  EXPECT_TRUE(store->GetBlob(sha256).ok());
}

TEST_F(StateStoreTest, WakesAfterEachEventUntilUnsubscribed) {
  auto store = Open();
  std::atomic<int> woken{0};
  const uint64_t token = store->Subscribe([&] { ++woken; });
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  EXPECT_EQ(woken, 1);
  store->Unsubscribe(token);
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
  EXPECT_EQ(woken, 1);
}

TEST_F(StateStoreTest, ManyWritersGetRevisionsWithoutGaps) {
  std::set<uint64_t> revisions;
  {
    auto store = Open({.directory = folder_, .compact_bytes = 2000});
    absl::Mutex mu;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 25; ++i) {
          const auto revision = store->AppendEvent({.kind = EventKind::kRejected});
          ASSERT_TRUE(revision.ok());
          ASSERT_TRUE(store->PutBlob(absl::StrCat(t, " ", i)).ok());
          const std::vector<uint8_t> contents(10, static_cast<uint8_t>(i));
          ASSERT_TRUE(
              store
                  ->PutBuffer({.id = static_cast<uint64_t>(t + 1), .shape = {10}, .size_bytes = 10},
                              contents)
                  .ok());
          (void)store->EventsBefore(0, "", 5);
          absl::MutexLock lock(&mu);
          EXPECT_TRUE(revisions.insert(*revision).second);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(revisions.size(), 100u);
  EXPECT_EQ(*revisions.rbegin(), 100u);
  auto store = Open();
  EXPECT_EQ(store->revision(), 100u);
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(*store->ReadBuffer(id), std::string(10, 24));
}

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

// The file that the journal is in, and its bytes: all of them on disk once a step is done.
struct JournalFile {
  ino_t inode = 0;
  off_t bytes = 0;
  bool syncing = false;  // Not a step that is done: one's sync begins.
};

JournalFile FindJournal(const std::string& folder) {
  struct stat found = {};
  (void)stat((folder + "/journal").c_str(), &found);
  return {found.st_ino, found.st_size, false};
}

struct Crash {
  int done = 0;      // Steps that it said were done; -1: it came to the end of the script.
  JournalFile then;  // When it said so last.
};

// Runs the script in a process that is killed at the given crash point.
Crash RunAndCrash(const std::string& folder, int crash_point) {
  int pipe_fds[2];
  EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  const std::string point = absl::StrCat("RESIDENTD_CRASH_POINT=", crash_point);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    const char* const arguments[] = {"state_store_test", kScriptArgument, folder.c_str(), nullptr};
    const char* const environment[] = {point.c_str(), nullptr};
    execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
    _exit(127);
  }
  close(pipe_fds[1]);
  Crash crash;
  JournalFile said;
  while (read(pipe_fds[0], &said, sizeof(said)) == sizeof(said)) {
    crash.then.syncing = said.syncing;
    if (said.syncing) continue;
    ++crash.done;
    crash.then = said;
  }
  close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) {
    EXPECT_EQ(WEXITSTATUS(status), 0);
    crash.done = -1;
    return crash;
  }
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  return crash;
}

// As the test below, and the machine goes down too: what was written and not yet synced is
// gone, or its half is.
TEST_F(StateStoreTest, WhatWasNotSyncedMayBeLostAndNothingElse) {
  std::vector<std::string> states;
  {
    auto store = Open({.directory = folder_, .compact_bytes = kScriptCompactBytes});
    states.push_back(Describe(*store));
    for (const ScriptStep& step : MakeScript()) {
      ASSERT_TRUE(step(*store).ok());
      states.push_back(Describe(*store));
    }
  }
  int lost = 0;
  for (int point = 1;; ++point) {
    const std::string folder = MakeTemp();
    const Crash crash = RunAndCrash(folder, point);
    if (crash.done < 0) break;
    const JournalFile now = FindJournal(folder);
    // Behind a compaction the snapshot is synced, and all that was done is in it.
    if (crash.done > 0 && !crash.then.syncing && now.inode == crash.then.inode &&
        now.bytes > crash.then.bytes) {
      const std::string path = folder + "/journal";
      for (const off_t bytes : {(crash.then.bytes + now.bytes) / 2, crash.then.bytes}) {
        SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", bytes, " of ", now.bytes));
        ASSERT_EQ(truncate(path.c_str(), bytes), 0);
        auto store = Open({.directory = folder});
        ASSERT_NE(store, nullptr);
        EXPECT_EQ(Describe(*store), states[crash.done]);
        ++lost;
      }
    }
    std::filesystem::remove_all(folder);
  }
  EXPECT_GT(lost, 2 * static_cast<int>(MakeScript().size()));
}

TEST_F(StateStoreTest, KilledAtAnyStepOfAnyWriteAStartFindsTheStateBeforeOrAfter) {
  // What the store holds after each step.
  std::vector<std::string> states;
  {
    auto store = Open({.directory = folder_, .compact_bytes = kScriptCompactBytes});
    states.push_back(Describe(*store));
    for (const ScriptStep& step : MakeScript()) {
      ASSERT_TRUE(step(*store).ok());
      states.push_back(Describe(*store));
    }
  }
  int points = 0;
  for (int point = 1;; ++point) {
    const std::string folder = MakeTemp();
    const Crash crash = RunAndCrash(folder, point);
    const int done = crash.done;
    if (done < 0) break;
    ++points;
    SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", done, " steps done"));
    auto store = Open({.directory = folder, .compact_bytes = kScriptCompactBytes});
    ASSERT_NE(store, nullptr);
    const std::string found = Describe(*store);
    // A step that was under way happened or did not; one that was done is there.
    if (found != states[done]) {
      ASSERT_LT(static_cast<size_t>(done) + 1, states.size());
      ASSERT_EQ(found, states[done + 1]);
    }
    // And all goes on from there.
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
    const uint64_t revision = store->revision();
    store.reset();
    store = Open({.directory = folder});
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_EQ(store->revision(), revision);
    for (const std::string sub : {"", "/blobs", "/buffers"}) {
      const auto names = ListFiles(folder + sub);
      ASSERT_TRUE(names.ok());
      for (const std::string& name : *names) {
        EXPECT_EQ(name.find(kDraftEnding), std::string::npos) << sub << "/" << name;
      }
    }
    store.reset();
    std::filesystem::remove_all(folder);
  }
  // Every step of the script has several.
  EXPECT_GT(points, static_cast<int>(3 * MakeScript().size()));
}

}  // namespace

// The child of RunAndCrash: the journal to stdout for each step that is done.
int RunScriptIn(const std::string& folder) {
  const auto say = [](JournalFile file) {
    return write(STDOUT_FILENO, &file, sizeof(file)) == sizeof(file);
  };
  const auto before_sync = [&](const std::string& path) {
    if (path.ends_with("/journal")) say({.syncing = true});
    return absl::OkStatus();
  };
  auto store = StateStore::Open(
      {.directory = folder, .compact_bytes = kScriptCompactBytes, .before_sync = before_sync});
  if (!store.ok()) return 2;
  for (const ScriptStep& step : MakeScript()) {
    if (!step(**store).ok()) return 3;
    if (!say(FindJournal(folder))) return 4;
  }
  return 0;
}

}  // namespace resident

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == resident::kScriptArgument) {
    return resident::RunScriptIn(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
