#include "runtime/state/state_store.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/base/limits.h"
#include "runtime/base/utf8.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/sqlite.h"
#include "runtime/state/state_store_for_test.h"

namespace resident {
namespace {

TEST_F(StateStoreTest, ARestartRestoresEverything) {
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

TEST_F(StateStoreTest, AFolderKeepsTheIdOfItsDaemon) {
  const std::string id = Open()->node_id();
  EXPECT_EQ(id.size(), 36u);
  {
    auto store = Open();
    EXPECT_EQ(store->node_id(), id);
    RunScript(*store);
  }
  EXPECT_EQ(Open()->node_id(), id);
  EXPECT_NE(Open(StateStore::Options{})->node_id(), Open(StateStore::Options{})->node_id());
}

TEST_F(StateStoreTest, AFolderOfAnOlderDaemonGetsAnId) {
  { Open(); }
  ASSERT_TRUE(StateDatabase::Create(folder_, StateModel()).ok());
  const std::string id = Open()->node_id();
  EXPECT_EQ(id.size(), 36u);
  EXPECT_EQ(Open()->node_id(), id);
}

TEST_F(StateStoreTest, ALabelBelongsToOneVersionInASlot) {
  auto store = Open();
  RunScript(*store, 9);
  const StoredOperator op = store->operators()[0];
  EXPECT_EQ(op.versions[0].label, "");  // Retired.
  EXPECT_EQ(op.versions[1].label, "");  // Version 3 took it.
  EXPECT_EQ(op.versions[2].label, "newest");
}

TEST_F(StateStoreTest, TheStateMatchesTheChangesOfTheRegistry) {
  auto store = Open();
  RunScript(*store, 9);  // Three installs; 2 serves, 3 is loaded, 1 is retired.
  ASSERT_EQ(store->operators().size(), 1u);
  const StoredOperator op = store->operators()[0];
  ASSERT_EQ(op.versions.size(), 3u);
  EXPECT_EQ(op.versions[0].state, VersionState::kRetired);
  EXPECT_FALSE(op.versions[0].in_slot);
  EXPECT_EQ(op.versions[1].state, VersionState::kActive);
  EXPECT_EQ(op.versions[2].state, VersionState::kLoaded);
  EXPECT_EQ(op.versions[2].slot, 103u);
  EXPECT_EQ(op.versions[2].spec.task_time_limit.count(), 250);
  EXPECT_EQ(op.revision, store->revision());
  // The retired version has a separate event before that of the install.
  const auto events = store->EventsBefore(0, "", 2);
  EXPECT_EQ(events[0].kind, EventKind::kInstalled);
  EXPECT_EQ(events[1].kind, EventKind::kRetired);
  EXPECT_EQ(events[1].version, 1u);
  EXPECT_EQ(events[0].revision, events[1].revision + 1);
}

TEST_F(StateStoreTest, WithoutAFolderEverythingWorksInMemoryWithAWarning) {
  auto store = Open(StateStore::Options{});
  EXPECT_TRUE(store->in_memory());
  ASSERT_EQ(store->warnings().size(), 1u);
  EXPECT_NE(store->warnings()[0].find("no --state_dir"), std::string::npos);
  RunScript(*store);
  EXPECT_EQ(store->operators().size(), 1u);
  // It is not stored, because only a restart would read it.
  EXPECT_EQ(store->GetBlob(*store->PutBlob("text")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StateStoreTest, ASecondDaemonGetsAnErrorWithThePidOfTheFirst) {
  auto store = Open();
  const absl::Status second = StateStore::Open({.directory = folder_}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(second.message().find(absl::StrCat("pid ", getpid())), std::string::npos) << second;
  store.reset();
  EXPECT_NE(Open(), nullptr);
}

TEST_F(StateStoreTest, AnUnfinishedLastTransactionIsDroppedWithAWarning) {
  auto store = Open();
  RunScript(*store, 2);
  const std::string before = Describe(*store);
  const uint64_t before_last = ReadWholeFile(LogPath())->size();
  ASSERT_TRUE(MakeScript()[2](*store).ok());
  const uint64_t end = ReadWholeFile(LogPath())->size();
  LeaveAsKilled(std::move(store));
  const std::string killed = folder_;
  for (uint64_t bytes = before_last + 1; bytes < end; bytes += 997) {
    SCOPED_TRACE(absl::StrCat(bytes, " of ", before_last, " to ", end));
    folder_ = MakeTemp();
    std::filesystem::copy(killed, folder_, std::filesystem::copy_options::recursive);
    std::filesystem::resize_file(LogPath(), bytes);
    store = Open();
    ASSERT_NE(store, nullptr);
    ASSERT_EQ(store->warnings().size(), 1u);
    EXPECT_NE(store->warnings()[0].find(LogPath()), std::string::npos) << store->warnings()[0];
    EXPECT_EQ(Describe(*store), before);
    store.reset();
    EXPECT_TRUE(Open()->warnings().empty());
    std::filesystem::remove_all(folder_);
  }
  folder_ = killed;
}

// When a machine goes down, any pages of the last transaction may have been written.
TEST_F(StateStoreTest, ALaterPageWithoutAnEarlierOneIsAnUnfinishedTransaction) {
  auto store = Open();
  RunScript(*store, 4);
  const std::string before = Describe(*store);
  const uint64_t before_last = ReadWholeFile(LogPath())->size();
  ASSERT_TRUE(MakeScript()[4](*store).ok());
  LeaveAsKilled(std::move(store));
  std::string log = *ReadWholeFile(LogPath());
  std::fill(log.begin() + static_cast<int64_t>(before_last),
            log.begin() + static_cast<int64_t>(before_last) + 4096, '\0');
  ASSERT_TRUE(WriteWholeFile(LogPath(), {log}).ok());
  store = Open();
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->warnings().size(), 1u);
  EXPECT_EQ(Describe(*store), before);
}

// SQLite itself would drop the later transactions without an error.
TEST_F(StateStoreTest, ADamagedTransactionThatOthersFollowStopsTheStart) {
  auto store = Open();
  RunScript(*store, 3);
  const uint64_t damaged = ReadWholeFile(LogPath())->size();
  ASSERT_TRUE(MakeScript()[3](*store).ok());
  ASSERT_TRUE(MakeScript()[4](*store).ok());
  const std::string state = Describe(*store);
  LeaveAsKilled(std::move(store));
  for (const uint64_t byte : {uint64_t{5}, damaged + 17, damaged + 1000}) {
    SCOPED_TRACE(byte);
    Flip(LogPath(), byte);
    const std::string log = *ReadWholeFile(LogPath());
    const absl::Status status = StateStore::Open({.directory = folder_}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    for (const std::string& part : {LogPath(), absl::StrCat("residentctl state check ", folder_),
                                    std::string("residentctl state repair")}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << part << " in " << status;
    }
    // The failed start has changed nothing: with the bit corrected, everything is restored.
    EXPECT_EQ(*ReadWholeFile(LogPath()), log);
    Flip(LogPath(), byte);
  }
  EXPECT_EQ(Describe(*Open()), state);
}

TEST_F(StateStoreTest, AFlippedBitOfTheDatabaseStopsTheStartOrChangesNothing) {
  std::string state;
  {
    auto store = Open();
    RunScript(*store);
    state = Describe(*store);
  }
  const std::string good = *ReadWholeFile(DatabasePath());
  int refused = 0;
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const uint64_t byte = random() % good.size();
    SCOPED_TRACE(byte);
    Flip(DatabasePath(), byte);
    auto store = StateStore::Open({.directory = folder_});
    if (store.ok()) {
      EXPECT_EQ(Describe(**store), state);
    } else {
      ++refused;
      EXPECT_NE(store.status().message().find("Fix: "), std::string::npos) << store.status();
    }
    if (store.ok()) store->reset();
    ASSERT_TRUE(WriteWholeFile(DatabasePath(), {good}).ok());
  }
  EXPECT_GT(refused, 20);
}

TEST_F(StateStoreTest, ATruncatedDatabaseStopsTheStart) {
  {
    auto store = Open();
    RunScript(*store);
  }
  const std::string good = *ReadWholeFile(DatabasePath());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{50}, uint64_t{4096}, good.size() - 4096}) {
    SCOPED_TRACE(bytes);
    ASSERT_TRUE(WriteWholeFile(DatabasePath(), {good.substr(0, bytes)}).ok());
    const absl::Status status = StateStore::Open({.directory = folder_}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find(DatabasePath()), std::string::npos) << status;
    EXPECT_EQ(ReadWholeFile(DatabasePath())->size(), bytes);
  }
}

TEST_F(StateStoreTest, ADatabaseWithAnUnknownTableIsRefused) {
  Open();
  {
    const auto db = Sqlite::Open(DatabasePath(), {});
    ASSERT_TRUE((*db)
                    ->Execute("CREATE TABLE more (x); CREATE TRIGGER t AFTER INSERT ON events "
                              "BEGIN DELETE FROM operators; END")
                    .ok());
    ASSERT_TRUE((*db)->Checkpoint().ok());
  }
  EXPECT_EQ(StateStore::Open({.directory = folder_}).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StateStoreTest, AnotherFormatIsRefusedAndNotChanged) {
  Open();
  {
    const auto db = Sqlite::Open(DatabasePath(), {});
    ASSERT_TRUE((*db)->Execute("PRAGMA user_version = 7").ok());
    ASSERT_TRUE((*db)->Checkpoint().ok());
  }
  const std::string newer = *ReadWholeFile(DatabasePath());
  absl::Status status = StateStore::Open({.directory = folder_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("has version 7, and this daemon uses version 1"),
            std::string::npos)
      << status;
  EXPECT_EQ(*ReadWholeFile(DatabasePath()), newer);

  const std::string older = MakeTemp();
  ASSERT_TRUE(WriteWholeFile(older + "/journal", {"RSDJRNL1"}).ok());
  status = StateStore::Open({.directory = older}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_NE(status.message().find("older version"), std::string::npos) << status;
  EXPECT_NE(status.message().find("Fix: "), std::string::npos) << status;
  EXPECT_FALSE(std::filesystem::exists(older + "/state.db"));
  std::filesystem::remove_all(older);
}

TEST_F(StateStoreTest, AfterAnUnfinishedTransactionNothingIsCollectedUntilTheNextStart) {
  auto store = Open();
  RunScript(*store, 3);
  const auto blobs = *ListFiles(folder_ + "/blobs");
  LeaveAsKilled(std::move(store));
  // The transaction of the buffer is truncated, so that nothing refers to its contents any more.
  std::filesystem::resize_file(LogPath(), std::filesystem::file_size(LogPath()) - 1);
  const std::string orphan(64, 'a');
  ASSERT_TRUE(WriteWholeFile(folder_ + "/blobs/" + orphan, {"of a truncated change"}).ok());
  {
    store = Open();
    EXPECT_EQ(store->warnings().size(), 1u);
    EXPECT_EQ(ListFiles(folder_ + "/buffers")->size(), 1u);
    EXPECT_EQ(ListFiles(folder_ + "/blobs")->size(), blobs.size() + 1);
    store.reset();
  }
  Open();
  EXPECT_TRUE(ListFiles(folder_ + "/buffers")->empty());
  EXPECT_EQ(*ListFiles(folder_ + "/blobs"), blobs);
}

TEST_F(StateStoreTest, AStartThatFindsNoDatabaseRemovesNothing) {
  std::string state;
  {
    auto store = Open();
    RunScript(*store, 3);
    state = Describe(*store);
  }
  const std::string database = *ReadWholeFile(DatabasePath());
  ASSERT_TRUE(RemoveFile(DatabasePath()).ok());
  EXPECT_TRUE(Open()->operators().empty());
  // The database had been moved away by mistake.
  ASSERT_TRUE(WriteWholeFile(DatabasePath(), {database}).ok());
  EXPECT_EQ(Describe(*Open()), state);
}

// SQLite itself would remove the log, and the last changes with it.
TEST_F(StateStoreTest, ALogWithoutItsDatabaseStopsTheStartAndIsKept) {
  auto store = Open();
  RunScript(*store, 3);
  const std::string state = Describe(*store);
  LeaveAsKilled(std::move(store));
  const std::string database = *ReadWholeFile(DatabasePath());
  ASSERT_TRUE(RemoveFile(DatabasePath()).ok());
  EXPECT_EQ(StateStore::Open({.directory = folder_}).status().code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(WriteWholeFile(DatabasePath(), {database}).ok());
  EXPECT_EQ(Describe(*Open()), state);
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
  auto store = Open();
  ASSERT_NE(store, nullptr);
  const std::vector<OperatorEvent> events = store->EventsBefore(0, "", 2);
  for (const std::string& kept : {events[0].message, events[1].message, events[1].actor,
                                  store->operators()[0].versions[1].quarantine_reason}) {
    EXPECT_EQ(kept.size(), kMaxEventTextBytes);
    EXPECT_EQ(kept.substr(0, 2), "\xffx");
  }
}

TEST_F(StateStoreTest, TextsOfEventsAreShortenedToWholeCharacters) {
  auto store = Open();
  for (int shift = 0; shift < 2; ++shift) {
    std::string text(shift, 'x');
    while (text.size() <= kMaxEventTextBytes) text += "\u00e9";
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .message = text}).ok());
    const std::string kept = store->EventsBefore(0, "", 1)[0].message;
    EXPECT_TRUE(ToUtf8(kept) == kept);
    EXPECT_EQ(kept.substr(kept.size() - 3), "...");
    EXPECT_GE(kept.size(), kMaxEventTextBytes - 1);
  }
}

TEST_F(StateStoreTest, ARemovedNameIsListedOnce) {
  {
    auto store = Open();
    RunScript(*store);  // Its last steps remove version 3 and install version 4.
    RegistryChange removal;
    removal.kind = EventKind::kRemoved;
    removal.name = "swish";
    ASSERT_TRUE(AppendAndSync(*store, removal, {}).ok());
  }
  const std::vector<StoredRemoval> removed = Open()->removed();
  ASSERT_EQ(removed.size(), 1u);
  EXPECT_EQ(removed[0].last_version, 4u);
}

// The oldest entry of a full list also covers the names that the list does not have any more.
TEST(StateModelTest, TheNumbersOfDroppedNamesStayUsedWhenTheOldestNameIsRemovedAgain) {
  StateModel model;
  const auto remove = [&](const std::string& name, uint32_t version) {
    model.operators[name].last_version = version;
    RegistryChange removal;
    removal.kind = EventKind::kRemoved;
    removal.name = name;
    model.Apply(removal, {});
  };
  remove("dropped", 90);
  for (uint32_t i = 0; i <= kMaxRemovedNames; ++i) remove(absl::StrCat("name", i), 1);
  ASSERT_EQ(model.removed.size(), kMaxRemovedNames + 1);
  EXPECT_EQ(model.removed.front().last_version, 90u);
  remove("name0", 2);
  EXPECT_EQ(model.removed.size(), kMaxRemovedNames + 1);
  EXPECT_EQ(model.removed.front().name, "name1");
  EXPECT_EQ(model.removed.front().last_version, 90u);
  EXPECT_EQ(model.removed.back().last_version, 2u);
}

TEST_F(StateStoreTest, AnInconsistentChangeIsRefused) {
  auto store = Open();
  RunScript(*store, 2);
  const std::string before = Describe(*store);
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
  ASSERT_TRUE(store->Sync().ok());
  store.reset();
  EXPECT_EQ(Describe(*Open()), before);
}

// If a daemon could not restore a version (its contents were damaged), its slots differ from the
// state. The state then follows the changes of the registry.
TEST_F(StateStoreTest, AVersionThatWasNotRestoredLosesItsSlot) {
  auto store = Open();
  RunScript(*store, 5);  // 2 is active, 1 is the previous one; 2 is not restored.
  ASSERT_TRUE(store->Append(SwitchChange(EventKind::kActivated, "swish", 1, 0), {}).ok());
  const StoredOperator op = store->operators()[0];
  EXPECT_EQ(op.versions[0].state, VersionState::kActive);
  EXPECT_EQ(op.versions[1].state, VersionState::kRetired);
  EXPECT_FALSE(op.versions[1].in_slot);
}

// The registry quarantined version 2, but the record could not be written; then comes the next
// change.
TEST_F(StateStoreTest, AQuarantineThatWasNeverWrittenDoesNotLeaveTwoActiveVersions) {
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

TEST_F(StateStoreTest, GraphsAreRestoredWithTheirHoldersAndContent) {
  const std::string content = "a serialized graph", other = "another one";
  std::string id, other_id;
  {
    auto store = Open();
    id = *store->PutBlob(content);
    other_id = *store->PutBlob(other);
    ASSERT_TRUE(store->PutGraph({id, {{"alice", 17}}}, content).ok());
    ASSERT_TRUE(store->PutGraph({id, {{"alice", 17}, {"bob", 18}}}, content).ok());
    ASSERT_TRUE(store->PutGraph({other_id, {{"bob", 19}}}, other).ok());
    ASSERT_TRUE(store->DropGraph(other_id).ok());
    ASSERT_TRUE(store->DropGraph(std::string(64, '0')).ok());
  }
  // The first start keeps what was used recently; the second one has collected the rest.
  Open().reset();
  const auto store = Open();
  ASSERT_EQ(store->graphs().size(), 1u);
  const StoredGraph graph = store->graphs()[0];
  EXPECT_EQ(graph.id, id);
  ASSERT_EQ(graph.holders.size(), 2u);
  EXPECT_EQ(graph.holders[0].name, "alice");
  EXPECT_EQ(graph.holders[1].name, "bob");
  EXPECT_EQ(graph.holders[1].loaded_ms, 18);
  EXPECT_EQ(*store->GetBlob(id), content);
  EXPECT_FALSE(store->GetBlob(other_id).ok());
}

TEST_F(StateStoreTest, ACheckpointKeepsTheStateAndRemovesUnusedBlobs) {
  std::string before;
  {
    auto store = Open({.directory = folder_, .checkpoint_bytes = kScriptCheckpointBytes});
    RunScript(*store);
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .operator_name = "x"}).ok());
      EXPECT_LT(ReadWholeFile(LogPath())->size(), 2 * kScriptCheckpointBytes);
    }
    before = Describe(*store);
    LeaveAsKilled(std::move(store));
  }
  EXPECT_EQ(Describe(*Open()), before);
  // Only the source of version 4 is left, because the other versions were removed.
  EXPECT_EQ(ListFiles(folder_ + "/blobs")->size(), 1u);
  EXPECT_EQ(ListFiles(folder_ + "/buffers")->size(), 1u);
}

TEST_F(StateStoreTest, WritesOfDurableBuffersAloneDoNotLetTheLogGrow) {
  std::string before;
  {
    auto store = Open({.directory = folder_, .checkpoint_bytes = kScriptCheckpointBytes});
    const std::vector<uint8_t> contents(10, 'b');
    for (uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(
          store->PutBuffer({.id = 1 + i % 3, .dtype = 7, .shape = {10}, .size_bytes = 10}, contents)
              .ok());
      ASSERT_LT(ReadWholeFile(LogPath())->size(), 2 * kScriptCheckpointBytes);
    }
    for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(store->DropBuffer(id).ok());
    before = Describe(*store);
    LeaveAsKilled(std::move(store));
  }
  EXPECT_EQ(Describe(*Open()), before);
}

TEST_F(StateStoreTest, ContentsThatTwoBuffersShareAreKeptUntilBothChange) {
  auto store = Open();
  const std::vector<uint8_t> same(10, 's'), other(10, 'o');
  for (const uint64_t id : {1, 2}) {
    ASSERT_TRUE(
        store->PutBuffer({.id = id, .dtype = 7, .shape = {10}, .size_bytes = 10}, same).ok());
  }
  ASSERT_TRUE(store->PutBuffer({.id = 1, .dtype = 7, .shape = {10}, .size_bytes = 10}, other).ok());
  EXPECT_EQ(*store->ReadBuffer(2), std::string(10, 's'));
  EXPECT_EQ(ListFiles(folder_ + "/buffers")->size(), 2u);
  ASSERT_TRUE(store->DropBuffer(2).ok());
  EXPECT_EQ(*store->ReadBuffer(1), std::string(10, 'o'));
  EXPECT_EQ(ListFiles(folder_ + "/buffers")->size(), 1u);
}

TEST_F(StateStoreTest, OldEventsAreDroppedAndReadingThemIsAnError) {
  auto store = Open({.directory = folder_, .max_events = 10});
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

TEST_F(StateStoreTest, ADamagedBlobOrBufferIsNotReturned) {
  auto store = Open();
  RunScript(*store, 3);
  const std::string sha256 = *store->PutBlob("some source");
  Flip(folder_ + "/blobs/" + sha256, 3);
  Flip(absl::StrCat(folder_, "/buffers/", ListFiles(folder_ + "/buffers")->front()), 3);
  EXPECT_EQ(store->GetBlob(sha256).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store->ReadBuffer(7).status().code(), absl::StatusCode::kDataLoss);
  // Putting it again replaces the damaged file.
  ASSERT_TRUE(store->PutBlob("some source").ok());
  EXPECT_EQ(*store->GetBlob(sha256), "some source");
  EXPECT_EQ(store->GetBlob("../lock").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StateStoreTest, ABlobThatWasJustPutIsNotCollected) {
  auto store = Open({.directory = folder_, .checkpoint_bytes = 200});
  const std::string sha256 = *store->PutBlob("for a version that is being compiled");
  ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected, .operator_name = "x"}).ok());
  EXPECT_EQ(ReadWholeFile(LogPath())->size(), 0u);
  EXPECT_TRUE(store->GetBlob(sha256).ok());
}

TEST_F(StateStoreTest, TheSubscriberIsCalledAfterEachEventUntilItUnsubscribes) {
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
    auto store = Open({.directory = folder_, .checkpoint_bytes = 20'000});
    absl::Mutex mu;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 25; ++i) {
          const auto revision = store->AppendEvent({.kind = EventKind::kRejected});
          ASSERT_TRUE(revision.ok());
          ASSERT_TRUE(store->PutBlob(absl::StrCat(t, " ", i)).ok());
          const std::vector<uint8_t> contents(10, static_cast<uint8_t>(i));
          ASSERT_TRUE(store
                          ->PutBuffer({.id = static_cast<uint64_t>(t + 1),
                                       .dtype = 7,
                                       .shape = {10},
                                       .size_bytes = 10},
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
