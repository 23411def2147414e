#include "runtime/state/journal.h"

#include <stdlib.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/state/crc32c.h"
#include "runtime/state/files.h"

namespace resident {
namespace {

std::vector<std::string> Payloads() { return {"first", std::string(100, '\0'), "", "the last"}; }

TEST(Crc32cTest, IsTheOneThatOthersCompute) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c("6789", Crc32c("12345")), 0xe3069283u);
}

TEST(JournalTest, WhatWasWrittenIsReadAgain) {
  const JournalScan scan = ScanJournalBytes(MakeJournal(Payloads()));
  EXPECT_EQ(scan.end, JournalScan::End::kClean);
  EXPECT_EQ(scan.good_bytes, scan.file_bytes);
  ASSERT_EQ(scan.records.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(scan.records[i].payload, Payloads()[i]);
}

TEST(JournalTest, ATornLastRecordIsToldFromADamagedOneAtEveryByte) {
  const std::string whole = MakeJournal(Payloads());
  const uint64_t last = ScanJournalBytes(whole).records.back().offset;
  for (uint64_t bytes = last; bytes < whole.size(); ++bytes) {
    // The file ends in the record, or the rest of it never came to the disk.
    for (const bool zeros : {false, true}) {
      std::string torn = whole.substr(0, bytes);
      if (zeros) torn.resize(whole.size(), '\0');
      if (torn == whole) continue;
      const JournalScan scan = ScanJournalBytes(torn);
      EXPECT_EQ(scan.end,
                bytes == last && !zeros ? JournalScan::End::kClean : JournalScan::End::kTorn)
          << bytes;
      EXPECT_EQ(scan.records.size(), 3u) << bytes;
      EXPECT_EQ(scan.good_bytes, last) << bytes;
    }
  }
}

TEST(JournalTest, EveryFlippedBitIsNoticedAndCutsNothingGoodOff) {
  const std::string whole = MakeJournal(Payloads());
  const JournalScan clean = ScanJournalBytes(whole);
  for (uint64_t byte = 0; byte < whole.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      const JournalScan scan = ScanJournalBytes(flipped);
      if (byte < kJournalHeaderBytes) {
        EXPECT_EQ(scan.end, JournalScan::End::kNotAJournal) << byte;
        continue;
      }
      // Which record it is in; all before it are good, and what is behind is not dropped.
      size_t in = 0;
      while (in + 1 < clean.records.size() && clean.records[in + 1].offset <= byte) ++in;
      EXPECT_EQ(scan.records.size(), in) << byte;
      EXPECT_EQ(scan.good_bytes, clean.records[in].offset) << byte;
      const bool last = in + 1 == clean.records.size();
      EXPECT_EQ(scan.end, last ? JournalScan::End::kTorn : JournalScan::End::kDamaged) << byte;
      EXPECT_EQ(scan.behind.size(), clean.records.size() - in - 1) << byte;
    }
  }
}

TEST(JournalTest, AFirstRecordThatIsNotGoodIsDamage) {
  const std::string whole = MakeJournal({"a snapshot"});
  for (uint64_t bytes = kJournalHeaderBytes + 1; bytes < whole.size(); ++bytes) {
    const JournalScan scan = ScanJournalBytes(whole.substr(0, bytes));
    EXPECT_EQ(scan.end, JournalScan::End::kDamaged) << bytes;
    EXPECT_EQ(scan.good_bytes, kJournalHeaderBytes) << bytes;
  }
}

TEST(JournalTest, AFileOfSomethingElseIsNotTakenForAJournal) {
  EXPECT_EQ(ScanJournalBytes("").end, JournalScan::End::kNotAJournal);
  EXPECT_EQ(ScanJournalBytes(std::string(4096, 'x')).end, JournalScan::End::kNotAJournal);
}

class JournalFileTest : public testing::Test {
 protected:
  JournalFileTest() {
    folder_ = testing::TempDir() + "/journal.XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/journal";
  }
  ~JournalFileTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  std::string path_;
};

TEST_F(JournalFileTest, AppendsGoOnBehindATornRecordThatWasCutOff) {
  std::string bytes = MakeJournal({"one", "two"});
  const uint64_t good = ScanJournalBytes(bytes).records[1].offset;
  bytes.pop_back();
  ASSERT_TRUE(WriteWholeFile(path_, {bytes}).ok());
  const auto scan = ScanJournal(path_);
  ASSERT_TRUE(scan.ok());
  ASSERT_EQ(scan->good_bytes, good);
  {
    auto writer = JournalWriter::Open(path_, scan->good_bytes);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append("three").ok());
  }
  const auto again = ScanJournal(path_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->end, JournalScan::End::kClean);
  ASSERT_EQ(again->records.size(), 2u);
  EXPECT_EQ(again->records[1].payload, "three");
}

TEST_F(JournalFileTest, AJournalThatIsReplacedIsWholeOrTheOldOne) {
  ASSERT_TRUE(JournalWriter::Replace(path_, {"one", "two"}).ok());
  auto writer = JournalWriter::Replace(path_, {"both"});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append("more").ok());
  const auto scan = ScanJournal(path_);
  ASSERT_EQ(scan->records.size(), 2u);
  EXPECT_EQ(scan->records[0].payload, "both");
  EXPECT_EQ(scan->file_bytes, (*writer)->bytes());
}

TEST_F(JournalFileTest, ARecordThatAScanWouldNotTakeReplacesNothing) {
  ASSERT_TRUE(JournalWriter::Replace(path_, {"one"}).ok());
  EXPECT_EQ(JournalWriter::Replace(path_, {std::string(kMaxRecordBytes + 1, 'x')}).status().code(),
            absl::StatusCode::kResourceExhausted);
  const auto scan = ScanJournal(path_);
  ASSERT_EQ(scan->records.size(), 1u);
  EXPECT_EQ(scan->records[0].payload, "one");
}

}  // namespace
}  // namespace resident
