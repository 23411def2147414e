#include "runtime/state/state_check.h"

#include <stdlib.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"

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

  std::string JournalPath() const { return folder_ + "/journal"; }
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
  EXPECT_TRUE(absl::StrContains(contents, "1 retired, 2 active, 3 staged")) << contents;
  EXPECT_TRUE(absl::StrContains(contents, "durable buffer 7 'weights': 1000 bytes")) << contents;
  EXPECT_TRUE(Repair().repairs.empty());
}

TEST_F(StateCheckTest, AFolderThatIsInUseOrNoneIsRefused) {
  EXPECT_EQ(CheckState(folder_ + "/blobs").status().code(), absl::StatusCode::kNotFound);
  auto store = *StateStore::Open({.directory = folder_});
  EXPECT_EQ(CheckState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(RepairState(folder_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StateCheckTest, ADamagedRecordIsCutOffWithACopyAndWhatIsLostIsNamed) {
  const auto scan = *ScanJournal(JournalPath());
  const std::string before = *ReadWholeFile(JournalPath());
  const uint64_t offset = scan.records[5].offset;  // Activation of version 2.
  Flip(JournalPath(), offset + kRecordHeadBytes + 1);
  const std::string damaged = *ReadWholeFile(JournalPath());

  const StateReport found = Check();
  EXPECT_FALSE(found.starts);
  EXPECT_TRUE(absl::StrContains(Text(found.problems), absl::StrCat("offset ", offset)));
  EXPECT_TRUE(absl::StrContains(Text(found.problems), "4 good records behind it"))
      << Text(found.problems);
  EXPECT_EQ(*ReadWholeFile(JournalPath()), damaged);

  const StateReport repaired = Repair();
  const std::string repairs = Text(repaired.repairs);
  EXPECT_TRUE(absl::StrContains(repairs, "rollback of swish version 1")) << repairs;
  EXPECT_TRUE(absl::StrContains(repairs, "contents of durable buffer 7")) << repairs;
  std::string copy;
  const auto names = ListFiles(folder_);
  for (const std::string& name : *names) {
    if (absl::StrContains(name, "damaged")) copy = folder_ + "/" + name;
  }
  EXPECT_EQ(*ReadWholeFile(copy), damaged);
  // Behind what was good there is only that the buffer ends, whose contents of before were
  // removed when the next ones were written.
  EXPECT_EQ(ReadWholeFile(JournalPath())->substr(0, offset), before.substr(0, offset));
  EXPECT_EQ(ScanJournal(JournalPath())->records.size(), 6u);
  EXPECT_TRUE(absl::StrContains(repairs, "dropped durable buffer 7")) << repairs;
}

TEST_F(StateCheckTest, AFolderThatWasRepairedStartsAndIsGood) {
  Flip(JournalPath(), ScanJournal(JournalPath())->records[4].offset + 1);
  Repair();
  EXPECT_TRUE(StateStore::Open({.directory = folder_}).ok());
  const StateReport report = Check();
  EXPECT_TRUE(report.problems.empty()) << Text(report.problems);
}

TEST_F(StateCheckTest, ADamagedHeaderLosesEverythingButSaysSo) {
  Flip(JournalPath(), 3);
  EXPECT_FALSE(Check().starts);
  const StateReport repaired = Repair();
  EXPECT_TRUE(absl::StrContains(Text(repaired.repairs), "install of swish version 1"))
      << Text(repaired.repairs);
  auto store = StateStore::Open({.directory = folder_});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->operators().empty());
}

TEST_F(StateCheckTest, ADamagedSnapshotAloneIsNotTakenForATornEnd) {
  std::string state;
  {
    auto store = *StateStore::Open({.directory = folder_, .compact_bytes = 1});
    state = Describe(*store);
  }
  ASSERT_EQ(ScanJournal(JournalPath())->records.size(), 1u);
  Flip(JournalPath(), kJournalHeaderBytes + kRecordHeadBytes + 9);
  EXPECT_FALSE(Check().starts);
  EXPECT_EQ(StateStore::Open({.directory = folder_}).status().code(), absl::StatusCode::kDataLoss);
  // What it refers to is there still: with the bit put right, all is.
  Flip(JournalPath(), kJournalHeaderBytes + kRecordHeadBytes + 9);
  EXPECT_EQ(Describe(**StateStore::Open({.directory = folder_})), state);
  Flip(JournalPath(), kJournalHeaderBytes + kRecordHeadBytes + 9);
  EXPECT_TRUE(Repair().starts);
  EXPECT_TRUE(StateStore::Open({.directory = folder_}).ok());
}

TEST_F(StateCheckTest, ATornEndIsAProblemThatAStartMends) {
  std::string bytes = *ReadWholeFile(JournalPath());
  bytes.pop_back();
  ASSERT_TRUE(WriteWholeFile(JournalPath(), {bytes}).ok());
  const StateReport report = Check();
  EXPECT_TRUE(report.starts);
  EXPECT_TRUE(absl::StrContains(Text(report.problems), "which a start drops"))
      << Text(report.problems);
}

TEST_F(StateCheckTest, DamagedContentsAreFoundAndRemoved) {
  std::string blob;
  const auto names = ListFiles(folder_ + "/blobs");
  for (const std::string& name : *names) blob = name;
  Flip(folder_ + "/blobs/" + blob, 0);
  Flip(folder_ + "/buffers/7.2", 500);
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
