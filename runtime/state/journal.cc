#include "runtime/state/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/state_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/state/crash_point.h"
#include "runtime/state/crc32c.h"
#include "runtime/state/files.h"

namespace resident {
namespace {

constexpr char kMagic[] = "RSDJRNL1";
constexpr size_t kMagicBytes = 8;

void PutU32(std::string& bytes, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(value >> shift));
}

uint32_t GetU32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= uint32_t{static_cast<uint8_t>(bytes[at + i])} << (8 * i);
  return value;
}

std::string Header() {
  std::string header(kMagic, kMagicBytes);
  PutU32(header, kJournalFormat);
  PutU32(header, Crc32c(header));
  return header;
}

std::string Frame(std::string_view payload) {
  std::string frame;
  frame.reserve(kRecordHeadBytes + payload.size());
  PutU32(frame, static_cast<uint32_t>(payload.size()));
  PutU32(frame, kStateRecordType);
  PutU32(frame, Crc32c(payload));
  PutU32(frame, Crc32c(frame));
  frame.append(payload);
  return frame;
}

enum class Frames { kGood, kBadHead, kShort, kBadPayload };

// What begins at `at`.
Frames Look(std::string_view bytes, uint64_t at) {
  if (bytes.size() - at < kRecordHeadBytes) return Frames::kShort;
  if (Crc32c(bytes.substr(at, 12)) != GetU32(bytes, at + 12)) return Frames::kBadHead;
  const uint32_t length = GetU32(bytes, at);
  if (length > kMaxRecordBytes) return Frames::kBadHead;
  if (bytes.size() - at - kRecordHeadBytes < length) return Frames::kShort;
  const uint32_t crc = Crc32c(bytes.substr(at + kRecordHeadBytes, length));
  return crc == GetU32(bytes, at + 8) ? Frames::kGood : Frames::kBadPayload;
}

// Good records that begin at or behind `from`, wherever. A run of zeros is not one: the
// checksum of an all-zero head is not zero.
std::vector<JournalScan::Record> FindRecords(std::string_view bytes, uint64_t from) {
  std::vector<JournalScan::Record> found;
  for (uint64_t at = from; at + kRecordHeadBytes <= bytes.size();) {
    if (Look(bytes, at) == Frames::kGood) {
      const uint32_t length = GetU32(bytes, at);
      found.push_back({at, std::string(bytes.substr(at + kRecordHeadBytes, length))});
      at += kRecordHeadBytes + length;
    } else {
      ++at;
    }
  }
  return found;
}

}  // namespace

JournalScan ScanJournalBytes(std::string_view bytes) {
  JournalScan scan;
  scan.file_bytes = bytes.size();
  const std::string header = Header();
  if (bytes.size() < kJournalHeaderBytes) {
    // A journal comes to its name whole, so not even a crash leaves this.
    scan.end = JournalScan::End::kNotAJournal;
    scan.what = absl::StrCat("it has ", bytes.size(), " bytes, less than a header");
    return scan;
  }
  if (bytes.substr(0, kMagicBytes) != std::string_view(kMagic, kMagicBytes) ||
      Crc32c(bytes.substr(0, 12)) != GetU32(bytes, 12)) {
    scan.end = JournalScan::End::kNotAJournal;
    scan.what = "its header is damaged, or it is no journal";
    scan.behind = FindRecords(bytes, kJournalHeaderBytes);
    return scan;
  }
  if (GetU32(bytes, kMagicBytes) != kJournalFormat) {
    scan.end = JournalScan::End::kNewer;
    scan.what = absl::StrCat("its format is ", GetU32(bytes, kMagicBytes),
                             ", and this daemon's is ", kJournalFormat);
    return scan;
  }
  uint64_t at = kJournalHeaderBytes;
  while (at < bytes.size()) {
    const Frames found = Look(bytes, at);
    if (found != Frames::kGood) {
      scan.behind = FindRecords(bytes, at + 1);
      // The first record came by rename, with the file: no crash leaves half of it.
      scan.end = scan.behind.empty() && !scan.records.empty() ? JournalScan::End::kTorn
                                                              : JournalScan::End::kDamaged;
      scan.what = found == Frames::kShort ? "a record is longer than what is left of the file"
                  : found == Frames::kBadPayload ? "a record's contents do not have its checksum"
                                                 : "a record's head does not have its checksum";
      break;
    }
    if (GetU32(bytes, at + 4) != kStateRecordType) {
      scan.end = JournalScan::End::kNewer;
      scan.what = absl::StrCat("a record has type ", GetU32(bytes, at + 4),
                               ", which this daemon does not know");
      break;
    }
    const uint32_t length = GetU32(bytes, at);
    scan.records.push_back({at, std::string(bytes.substr(at + kRecordHeadBytes, length))});
    at += kRecordHeadBytes + length;
  }
  scan.good_bytes = at;
  return scan;
}

absl::StatusOr<JournalScan> ScanJournal(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  return ScanJournalBytes(bytes);
}

std::string MakeJournal(const std::vector<std::string>& payloads) {
  std::string bytes = Header();
  for (const std::string& payload : payloads) bytes.append(Frame(payload));
  return bytes;
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Open(const std::string& path,
                                                                   uint64_t good_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path);
  auto writer = std::unique_ptr<JournalWriter>(new JournalWriter(path, "", fd, good_bytes));
  if (ftruncate(fd, static_cast<off_t>(good_bytes)) != 0 || fdatasync(fd) != 0 ||
      lseek(fd, 0, SEEK_END) < 0) {
    return FileError("cut off the torn end of", path);
  }
  writer->synced_bytes_ = good_bytes;
  return writer;
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Draft(
    const std::string& path, const std::vector<std::string>& payloads, uint64_t most_record_bytes) {
  // A scan would take a larger one for damage, and the records before are gone by then.
  for (const std::string& payload : payloads) {
    if (payload.size() > most_record_bytes) return errors::RecordTooLarge(payload.size());
  }
  const std::string bytes = MakeJournal(payloads);
  const std::string draft = path + kDraftEnding;
  CrashPoint();
  // It is appended to by this descriptor later: nothing is left to fail after the rename.
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("write", draft);
  auto writer = std::unique_ptr<JournalWriter>(new JournalWriter(path, draft, fd, bytes.size()));
  RETURN_IF_ERROR(WriteAll(fd, bytes, draft));
  CrashPoint();
  RETURN_IF_ERROR(writer->Sync());
  return writer;
}

absl::Status JournalWriter::TakePlace() {
  if (rename(draft_.c_str(), path_.c_str()) != 0) return FileError("rename", draft_);
  draft_.clear();
  CrashPoint();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<JournalWriter>> JournalWriter::Replace(
    const std::string& path, const std::vector<std::string>& payloads) {
  absl::StatusOr<std::unique_ptr<JournalWriter>> made = Draft(path, payloads);
  if (!made.ok()) return made;
  absl::Status status = (*made)->TakePlace();
  if (status.ok()) status = SyncFolder(path.substr(0, path.rfind('/')));
  if (!status.ok()) return status;
  return made;
}

JournalWriter::~JournalWriter() {
  close(fd_);
  if (!draft_.empty()) unlink(draft_.c_str());
}

absl::Status JournalWriter::Append(std::string_view payload) {
  if (!broken_.ok()) return broken_;
  if (payload.size() > kMaxRecordBytes) return errors::RecordTooLarge(payload.size());
  const std::string frame = Frame(payload);
  CrashPoint();
  // In two parts, so that a test can kill the process between them.
  const size_t half = frame.size() / 2;
  absl::Status status = WriteAll(fd_, std::string_view(frame).substr(0, half), path_);
  CrashPoint();
  if (status.ok()) status = WriteAll(fd_, std::string_view(frame).substr(half), path_);
  CrashPoint();
  if (!status.ok()) {
    // The file as it was: else the half record would damage what comes behind it.
    if (ftruncate(fd_, static_cast<off_t>(bytes())) != 0 || lseek(fd_, 0, SEEK_END) < 0) {
      broken_ = errors::JournalBroken(path_, std::string(status.message()));
    }
    return status;
  }
  bytes_ += frame.size();
  return absl::OkStatus();
}

absl::Status JournalWriter::Sync() {
  const uint64_t appended = bytes();
  if (fdatasync(fd_) != 0) return FileError("sync", path_);
  synced_bytes_.store(appended, std::memory_order_relaxed);
  CrashPoint();
  return absl::OkStatus();
}

}  // namespace resident
