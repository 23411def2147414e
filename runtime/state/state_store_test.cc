#include "runtime/state/state_store.h"

#include <filesystem>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/base/limits.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_store_for_test.h"

namespace resident {
namespace {

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

}  // namespace
}  // namespace resident
