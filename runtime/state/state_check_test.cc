#include "runtime/state/state_check.h"

#include <stdlib.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/sqlite.h"

namespace resident {
namespace {

class StateCheckTest : public testing::Test {
 protected:
  StateCheckTest() {
    folder_ = testing::TempDir() + "/check.XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    auto store = *StateStore::Open({.directory = folder_});
    const std::vector<ScriptStep> script = MakeScript();
    for (size_t i = 0; i < 9; ++i) EXPECT_TRUE(script[i](*store).ok());
  }
  ~StateCheckTest() override { std::filesystem::remove_all(folder_); }

  std::string DatabasePath() const { return folder_ + "/state.db"; }
  void Flip(const std::string& path, uint64_t byte) {
    std::string bytes = *ReadWholeFile(path);
    bytes[byte] ^= 16;
    ASSERT_TRUE(WriteWholeFile(path, {bytes}).ok());
  }
  static std::string Text(const std::vector<std::string>& lines) {
    return absl::StrJoin(lines, "\n");
  }
  StateReport Check() {
    auto report = CheckState(folder_);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : StateReport();
  }
  StateReport Repair() {
    auto report = RepairState(folder_);
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *report : StateReport();
  }

  std::string folder_;
};

TEST_F(StateCheckTest, AGoodFolderIsListed) {
  const StateReport report = Check();
  EXPECT_TRUE(report.starts);
  EXPECT_TRUE(report.problems.empty()) << Text(report.problems);
  const std::string contents = Text(report.contents);
  EXPECT_TRUE(absl::StrContains(contents, "operator swish: revision")) << contents;
  EXPECT_TRUE(absl::StrContains(contents, "1 retired, 2 active, 3 loaded")) << contents;
  EXPECT_TRUE(absl::StrContains(contents, "durable buffer 7 'weights': 1000 bytes")) << contents;
  EXPECT_TRUE(Repair().repairs.empty());
}

TEST_F(StateCheckTest, AFolderThatIsInUseOrIsNotAStateFolderIsRefused) {
  EXPECT_EQ(CheckState(folder_ + "/blobs").status().code(), absl::StatusCode::kNotFound);
  auto store = *StateStore::Open({.directory = folder_});
  EXPECT_EQ(CheckState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RepairState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Only the operator's row is damaged.
TEST_F(StateCheckTest, ADamagedRowIsDroppedAndReportedAndACopyIsKept) {
  const uint64_t byte = ReadWholeFile(DatabasePath())->find("in f32[*S]");
  ASSERT_NE(byte, std::string::npos);
  Flip(DatabasePath(), byte);
  const std::string damaged = *ReadWholeFile(DatabasePath());

  const StateReport found = Check();
  EXPECT_FALSE(found.starts);
  EXPECT_TRUE(absl::StrContains(Text(found.problems), "row 'swish' of table operators"))
      << Text(found.problems);
  EXPECT_EQ(*ReadWholeFile(DatabasePath()), damaged);
  EXPECT_EQ(StateStore::Open({.directory = folder_}).status().code(), absl::StatusCode::kDataLoss);

  const StateReport repaired = Repair();
  EXPECT_TRUE(repaired.starts);
  std::string copy;
  const auto names = ListFiles(folder_);
  for (const std::string& name : *names) {
    if (absl::StrContains(name, "damaged")) copy = folder_ + "/" + name;
  }
  EXPECT_EQ(*ReadWholeFile(copy), damaged);
  EXPECT_TRUE(absl::StrContains(Text(repaired.repairs), copy)) << Text(repaired.repairs);
  const StateReport good = Check();
  EXPECT_TRUE(good.problems.empty()) << Text(good.problems);
  // The other records exist, and the next revision follows the last one.
  auto store = *StateStore::Open({.directory = folder_});
  EXPECT_TRUE(store->operators().empty());
  EXPECT_EQ(*store->ReadBuffer(7), std::string(1000, 'b'));
  EXPECT_EQ(store->EventsBefore(0, "", 1)[0].kind, EventKind::kInstalled);
  const uint64_t before = store->revision();
  EXPECT_EQ(*store->AppendEvent({.kind = EventKind::kRejected}), before + 1);
}

// The last changes are only in the log.
TEST_F(StateCheckTest, ADamagedLogIsReportedAndChangesBeforeTheDamageAreKept) {
  const std::string killed = testing::TempDir() + "/killed";
  uint64_t second = 0;
  {
    auto store = *StateStore::Open({.directory = folder_});
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
    second = ReadWholeFile(folder_ + "/state.db-wal")->size();
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
    }
    std::filesystem::copy(folder_, killed, std::filesystem::copy_options::recursive);
  }
  std::filesystem::remove_all(folder_);
  folder_ = killed;
  Flip(folder_ + "/state.db-wal", second + 500);
  const std::string log = *ReadWholeFile(folder_ + "/state.db-wal");
  const StateReport found = Check();
  EXPECT_FALSE(found.starts);
  EXPECT_TRUE(absl::StrContains(Text(found.problems), absl::StrCat("offset ", second)))
      << Text(found.problems);
  EXPECT_EQ(*ReadWholeFile(folder_ + "/state.db-wal"), log);
  EXPECT_TRUE(Repair().starts);
  EXPECT_TRUE(Check().problems.empty());
  auto store = *StateStore::Open({.directory = folder_});
  EXPECT_EQ(store->operators().size(), 1u);
  EXPECT_EQ(store->EventsBefore(0, "", 1)[0].kind, EventKind::kRejected);
}

TEST_F(StateCheckTest, AnUnreadableDatabaseIsKeptAndReplacedByAnEmptyOne) {
  for (const std::string& contents : {std::string(), std::string(9000, 'x')}) {
    SCOPED_TRACE(contents.size());
    ASSERT_TRUE(WriteWholeFile(DatabasePath(), {contents}).ok());
    EXPECT_FALSE(Check().starts);
    EXPECT_TRUE(Repair().starts);
    auto store = StateStore::Open({.directory = folder_});
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE((*store)->operators().empty());
  }
}

TEST_F(StateCheckTest, AnUnfinishedTransactionIsReportedAndAStartDropsIt) {
  const std::string killed = testing::TempDir() + "/unfinished";
  {
    auto store = *StateStore::Open({.directory = folder_});
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
    std::filesystem::copy(folder_, killed, std::filesystem::copy_options::recursive);
  }
  std::filesystem::remove_all(folder_);
  folder_ = killed;
  const std::string log = folder_ + "/state.db-wal";
  std::filesystem::resize_file(log, std::filesystem::file_size(log) - 1);
  const StateReport report = Check();
  EXPECT_TRUE(report.starts);
  EXPECT_TRUE(absl::StrContains(Text(report.problems), "A start drops them"))
      << Text(report.problems);
  EXPECT_TRUE(StateStore::Open({.directory = folder_}).ok());
  EXPECT_TRUE(Check().problems.empty());
}

TEST_F(StateCheckTest, AnUnknownFormatIsNotRepaired) {
  {
    const auto db = Sqlite::Open(DatabasePath(), {});
    ASSERT_TRUE((*db)->Execute("PRAGMA user_version = 7").ok());
    ASSERT_TRUE((*db)->Checkpoint().ok());
  }
  EXPECT_EQ(CheckState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RepairState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(RemoveFile(DatabasePath()).ok());
  ASSERT_TRUE(RemoveFile(folder_ + "/state.db-wal").ok());
  ASSERT_TRUE(WriteWholeFile(folder_ + "/journal", {"RSDJRNL1"}).ok());
  EXPECT_EQ(CheckState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StateCheckTest, AGraphWithDamagedContentIsDropped) {
  std::string good, bad;
  {
    auto store = *StateStore::Open({.directory = folder_});
    good = *store->PutBlob("good graph");
    bad = *store->PutBlob("bad graph");
    ASSERT_TRUE(store->PutGraph({good, {{"alice", 1}}}, "good graph").ok());
    ASSERT_TRUE(store->PutGraph({bad, {{"alice", 2}}}, "bad graph").ok());
  }
  EXPECT_TRUE(absl::StrContains(Text(Check().contents), "2 loaded graphs"));
  Flip(folder_ + "/blobs/" + bad, 3);
  const std::string problems = Text(Check().problems);
  EXPECT_TRUE(absl::StrContains(problems, absl::StrCat("loaded graph: ", folder_, "/blobs/", bad)))
      << problems;
  EXPECT_TRUE(absl::StrContains(Text(Repair().repairs), "dropped loaded graph " + bad));
  EXPECT_TRUE(Check().problems.empty());
  auto store = *StateStore::Open({.directory = folder_});
  ASSERT_EQ(store->graphs().size(), 1u);
  EXPECT_EQ(store->graphs()[0].id, good);
}

TEST_F(StateCheckTest, DamagedContentsAreFoundAndRemoved) {
  const std::string blob = ListFiles(folder_ + "/blobs")->back();
  Flip(folder_ + "/blobs/" + blob, 0);
  Flip(folder_ + "/buffers/" + ListFiles(folder_ + "/buffers")->front(), 500);
  const StateReport found = Check();
  EXPECT_TRUE(found.starts);
  EXPECT_TRUE(absl::StrContains(Text(found.problems), "its file/swish.cc")) << Text(found.problems);
  EXPECT_TRUE(absl::StrContains(Text(found.problems), "durable buffer 7 'weights'"))
      << Text(found.problems);
  const StateReport repaired = Repair();
  EXPECT_TRUE(absl::StrContains(Text(repaired.repairs), blob)) << Text(repaired.repairs);
  auto store = *StateStore::Open({.directory = folder_});
  EXPECT_TRUE(store->buffers().empty());
  EXPECT_EQ(store->operators().size(), 1u);
}

}  // namespace
}  // namespace resident
