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
//             as the file is (Replace)
//
// Invariants:
//   1. What was appended before a record that is good is good, or was damaged later.
//   2. An Append that failed leaves the file as it was, or the writer refuses all others.
//
// Thread safety: ScanJournal is a function; a JournalWriter belongs to one thread.
//
//   ASSIGN_OR_RETURN(JournalScan scan, ScanJournal(path));
//   ASSIGN_OR_RETURN(auto writer, JournalWriter::Open(path, scan.good_bytes));
//   RETURN_IF_ERROR(writer->Append(payload));
#ifndef RESIDENT_RUNTIME_STATE_JOURNAL_H_
#define RESIDENT_RUNTIME_STATE_JOURNAL_H_

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
  // A new one with these payloads, in place of one that is there, whole or not at all.
  // RESOURCE_EXHAUSTED: one is larger than `most_record_bytes`.
  // REQUIRES: there is one at least (a first record that is not whole is damage).
  static absl::StatusOr<std::unique_ptr<JournalWriter>> Replace(
      const std::string& path, const std::vector<std::string>& payloads,
      uint64_t most_record_bytes = kMaxRecordBytes);
  ~JournalWriter();

  // On disk once it returned OK.
  absl::Status Append(std::string_view payload);
  uint64_t bytes() const { return bytes_; }

 private:
  JournalWriter(std::string path, int fd, uint64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  const std::string path_;
  const int fd_;
  uint64_t bytes_;
  absl::Status broken_;  // Why nothing is appended any more.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_JOURNAL_H_
