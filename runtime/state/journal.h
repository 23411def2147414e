// Journal: the file of records that all durable state is read from.
//
//   file    = "RSDJRNL1" format:u32 crc:u32 record*
//   record  = length:u32 type:u32 payload_crc:u32 head_crc:u32 payload[length]
//
// Little-endian. crc and head_crc are CRC-32C of the bytes before them in the head;
// payload_crc is that of the payload. The payload of type 1 is an internal.StateRecord
// (proto/resident/internal/state.proto); a type that is not known makes the file one of a
// newer daemon.
//
// The head has a checksum of its own so that a flipped bit in a length is not taken for a
// torn end, which would drop all records behind it without a word:
//
//   torn      the bad record is the last thing in the file: no whole record with a good
//             head and payload begins anywhere behind it. What a crash leaves. (So does
//             damage to the very last record; it cannot be told from a crash.)
//   damaged   there are good records behind it, or it is the first, which is there as soon
//             as the file is (Replace). (If those behind it say that it was not yet on disk
//             when they were written, it is torn all the same: state_scan.h.)
//
// Invariants:
//   1. What was appended before a record that is good is good, or was damaged later.
//   2. An Append that failed leaves the file as it was, or the writer refuses all others.
//
// Thread safety: ScanJournal is a function. Append and Sync of a JournalWriter may run at
// once, each in one thread at a time; nothing else may.
//
//   ASSIGN_OR_RETURN(JournalScan scan, ScanJournal(path));
//   ASSIGN_OR_RETURN(auto writer, JournalWriter::Open(path, scan.good_bytes));
//   RETURN_IF_ERROR(writer->Append(payload));
//   RETURN_IF_ERROR(writer->Sync());  // Of all that were appended before.
#ifndef RESIDENT_RUNTIME_STATE_JOURNAL_H_
#define RESIDENT_RUNTIME_STATE_JOURNAL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

inline constexpr uint32_t kJournalFormat = 1;
inline constexpr uint64_t kJournalHeaderBytes = 16;
inline constexpr uint64_t kRecordHeadBytes = 16;
inline constexpr uint32_t kStateRecordType = 1;
inline constexpr uint32_t kMaxRecordBytes = 256u << 20;

struct JournalScan {
  enum class End {
    kClean,
    kTorn,
    kDamaged,
    kNotAJournal,  // Its header is damaged, or it is something else.
    kNewer,        // Of a daemon that is newer than this one.
  };
  struct Record {
    uint64_t offset = 0;  // Of its head.
    std::string payload;
  };

  // Up to the first that is not good.
  std::vector<Record> records;
  End end = End::kClean;
  // Where the good records end; where what is wrong begins.
  uint64_t good_bytes = 0;
  uint64_t file_bytes = 0;
  // Good records behind the one that is not.
  std::vector<Record> behind;
  std::string what;  // What is wrong; empty if nothing is.
};

// NOT_FOUND: there is no such file. UNAVAILABLE: it cannot be read.
absl::StatusOr<JournalScan> ScanJournal(const std::string& path);
// The same for a file's bytes.
JournalScan ScanJournalBytes(std::string_view bytes);

// A whole journal of these payloads.
std::string MakeJournal(const std::vector<std::string>& payloads);

class JournalWriter {
 public:
  // A journal that is there, cut off at `good_bytes`.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Open(const std::string& path,
                                                             uint64_t good_bytes);
  // A new one with these payloads, on disk under another name beside `path`, until
  // TakePlace; the destructor removes it if it did not.
  // RESOURCE_EXHAUSTED: a payload is larger than `most_record_bytes`.
  // REQUIRES: there is one at least (a first record that is not whole is damage).
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Draft(
      const std::string& path, const std::vector<std::string>& payloads,
      uint64_t most_record_bytes = kMaxRecordBytes);
  // Puts a draft in the place of the journal that is there, if one is. After an error
  // nothing has changed. A crash may bring the old one back until the folder is synced.
  absl::Status TakePlace();
  // Draft, TakePlace, and the folder.
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Replace(
      const std::string& path, const std::vector<std::string>& payloads);
  ~JournalWriter();

  absl::Status Append(std::string_view payload);
  // What was appended before is on disk once it returned OK. After an error it is not known
  // which of it is, and asking again would not tell (the kernel reports it once): only a new
  // journal helps.
  absl::Status Sync();
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Of them, what is known to be on disk.
  uint64_t synced_bytes() const { return synced_bytes_.load(std::memory_order_relaxed); }
  // Why nothing can be appended any more.
  const absl::Status& broken() const { return broken_; }

 private:
  JournalWriter(std::string path, std::string draft, int fd, uint64_t bytes)
      : path_(std::move(path)), draft_(std::move(draft)), fd_(fd), bytes_(bytes) {}

  const std::string path_;
  std::string draft_;  // Its name until TakePlace.
  const int fd_;
  std::atomic<uint64_t> bytes_;
  std::atomic<uint64_t> synced_bytes_{0};
  absl::Status broken_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_JOURNAL_H_
