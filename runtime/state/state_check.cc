#include "runtime/state/state_check.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/errors/state_errors.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/version_state.h"
#include "runtime/state/blob_store.h"
#include "runtime/state/buffer_files.h"
#include "runtime/state/files.h"
#include "runtime/state/journal.h"
#include "runtime/state/state_lock.h"
#include "runtime/state/state_model.h"
#include "runtime/state/state_scan.h"

namespace resident {
namespace {

// As the daemon's default, so that what it would still list is counted.
constexpr size_t kEventsLookedAt = 10'000;
constexpr uint64_t kMostLostShown = 20;

std::string WithoutFix(const absl::Status& status) {
  return std::string(status.message().substr(0, status.message().find(". Fix:")));
}

std::string Plural(uint64_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// A folder that is looked at, with what was found so far.
struct Look {
  std::string folder;
  std::string bytes;  // The journal.
  JournalScan scan;
  StateModel model{kEventsLookedAt};
  // Where the journal must be cut off; its size if nowhere.
  uint64_t good_bytes = 0;
  StateReport report;

  std::string JournalPath() const { return folder + "/journal"; }
};

std::string Summary(const internal::StateRecord& record) {
  if (record.has_change()) {
    const internal::StoredChange& change = record.change();
    static const std::map<EventKind, std::string> kVerbs = {
        {EventKind::kInstalled, "install"},   {EventKind::kActivated, "activation"},
        {EventKind::kRolledBack, "rollback"}, {EventKind::kRemoved, "removal"},
        {EventKind::kPromoted, "trial"},      {EventKind::kQuarantined, "quarantine"},
        {EventKind::kRetired, "retirement"}};
    const auto verb = kVerbs.find(static_cast<EventKind>(change.kind()));
    return absl::StrCat(verb == kVerbs.end() ? "change" : verb->second, " of ", change.name(),
                        " version ", change.version(), ", revision ", change.revision());
  }
  if (record.has_buffer()) return absl::StrCat("contents of durable buffer ", record.buffer().id());
  if (record.what_case() == internal::StateRecord::kBufferFreed) {
    return absl::StrCat("end of durable buffer ", record.buffer_freed());
  }
  if (record.has_snapshot()) return "a snapshot of everything before it";
  return record.events_size() == 0 ? "an empty record"
                                   : absl::StrCat("event ", record.events(0).revision());
}

// Reads the journal into the model, as far as it is good.
absl::Status ReadJournal(Look& look) {
  absl::StatusOr<std::string> bytes = ReadWholeFile(look.JournalPath());
  if (absl::IsNotFound(bytes.status())) return errors::NoStateFolder(look.folder);
  if (!bytes.ok()) return bytes.status();
  look.bytes = *std::move(bytes);
  look.scan = ScanStateBytes(look.bytes);
  look.good_bytes = look.scan.good_bytes;
  uint64_t good = 0;
  for (const JournalScan::Record& record : look.scan.records) {
    internal::StateRecord parsed;
    const absl::Status fits = parsed.ParseFromString(record.payload)
                                  ? look.model.Check(parsed)
                                  : errors::RecordDoesNotFit("its contents are not a record");
    if (!fits.ok()) {
      look.good_bytes = record.offset;
      const uint64_t lost = look.scan.records.size() - good + look.scan.behind.size();
      look.report.problems.push_back(absl::StrCat(look.JournalPath(), ", offset ", record.offset,
                                                  ": ", WithoutFix(fits), "; ",
                                                  Plural(lost, "record"), " from there on"));
      look.report.starts = false;
      break;
    }
    look.model.Apply(parsed);
    ++good;
  }
  const std::string where =
      absl::StrCat(look.JournalPath(), ", offset ", look.scan.good_bytes, ": ", look.scan.what);
  switch (look.scan.end) {
    case JournalScan::End::kClean:
      break;
    case JournalScan::End::kTorn:
      look.report.problems.push_back(
          absl::StrCat(where, "; it is the end, which was torn when a daemon was killed: ",
                       look.scan.file_bytes - look.scan.good_bytes, " bytes, which a start drops"));
      break;
    case JournalScan::End::kDamaged:
    case JournalScan::End::kNotAJournal:
      look.report.problems.push_back(
          absl::StrCat(where, "; ", Plural(look.scan.behind.size(), "good record"), " behind it"));
      look.report.starts = false;
      break;
    case JournalScan::End::kNewer:
      return errors::JournalNewer(look.JournalPath(), look.scan.what);
  }
  look.report.contents.push_back(
      absl::StrCat("journal: ", look.scan.file_bytes, " bytes, ", Plural(good, "good record"),
                   ", revision ", look.model.revision(), ", generation ", look.model.generation()));
  return absl::OkStatus();
}

void ListOperators(Look& look) {
  for (const StoredOperator& op : look.model.operators()) {
    std::vector<std::string> versions;
    for (const StoredVersion& version : op.versions) {
      versions.push_back(absl::StrCat(version.version, " ", VersionStateName(version.state)));
    }
    look.report.contents.push_back(absl::StrCat("operator ", op.name, ": revision ", op.revision,
                                                ", ", absl::StrJoin(versions, ", ")));
  }
}

// Blobs that versions refer to, and those that are damaged. Returns the damaged files.
std::vector<std::string> CheckBlobs(Look& look) {
  std::vector<std::string> damaged;
  const std::string folder = look.folder + "/blobs";
  const absl::StatusOr<std::vector<std::string>> names = ListFiles(folder);
  uint64_t good = 0;
  if (names.ok()) {
    for (const std::string& name : *names) {
      const absl::StatusOr<std::string> bytes = ReadWholeFile(folder + "/" + name);
      if (bytes.ok() && Sha256Hex(*bytes) == name) {
        ++good;
      } else {
        damaged.push_back(folder + "/" + name);
      }
    }
  }
  look.report.contents.push_back(absl::StrCat("contents: ", Plural(good, "good file")));
  const std::set<std::string> bad(damaged.begin(), damaged.end());
  for (const std::string& path : damaged) {
    look.report.problems.push_back(
        absl::StrCat(path, path.ends_with(kDraftEnding)
                               ? " was left half written by a daemon that was killed; a start "
                                 "removes it"
                               : " does not have the contents that its name says"));
  }
  for (const StoredOperator& op : look.model.operators()) {
    for (const StoredVersion& version : op.versions) {
      for (const auto& [name, sha256] : version.content.blobs) {
        const std::string path = folder + "/" + sha256;
        if (!bad.contains(path) && access(path.c_str(), R_OK) == 0) continue;
        look.report.problems.push_back(absl::StrCat(
            "operator ", op.name, " version ", version.version, ": its ", name, " (", path,
            ") cannot be read; what is compiled already still runs, if the "
            "compile cache has it"));
      }
    }
  }
  return damaged;
}

// Durable buffers whose contents are damaged.
std::vector<uint64_t> CheckBuffers(Look& look) {
  std::vector<uint64_t> damaged;
  const absl::StatusOr<std::unique_ptr<BufferFiles>> files =
      BufferFiles::Open(look.folder + "/buffers");
  for (const auto& [id, buffer] : look.model.buffers()) {
    const std::string name = buffer.name().empty() ? "" : absl::StrCat(" '", buffer.name(), "'");
    if (buffer.sequence() == 0) {
      look.report.contents.push_back(absl::StrCat("durable buffer ", id, name, ": ",
                                                  buffer.size_bytes(), " bytes, all zeros"));
      continue;
    }
    const auto bytes = files.ok() ? (*files)->Read(id, buffer.sequence(), buffer.size_bytes(),
                                                   buffer.contents_crc())
                                  : absl::StatusOr<std::string>(files.status());
    if (bytes.ok()) {
      look.report.contents.push_back(
          absl::StrCat("durable buffer ", id, name, ": ", buffer.size_bytes(), " bytes"));
      continue;
    }
    damaged.push_back(id);
    look.report.problems.push_back(
        absl::StrCat("durable buffer ", id, name, ": ", WithoutFix(bytes.status())));
  }
  return damaged;
}

// The records that are cut off, as far as they can be told.
void SayWhatIsLost(Look& look) {
  std::vector<std::string> lost;
  uint64_t shown = 0;
  const auto note = [&](const JournalScan::Record& record) {
    internal::StateRecord parsed;
    if (++shown <= kMostLostShown && parsed.ParseFromString(record.payload)) {
      lost.push_back(Summary(parsed));
    }
  };
  for (const JournalScan::Record& record : look.scan.records) {
    if (record.offset >= look.good_bytes) note(record);
  }
  for (const JournalScan::Record& record : look.scan.behind) note(record);
  look.report.repairs.push_back(absl::StrCat(
      "cut off ", look.bytes.size() - look.good_bytes, " bytes of ", look.JournalPath(),
      " from offset ", look.good_bytes, " on",
      lost.empty() ? std::string(": one record that cannot be read")
                   : absl::StrCat(". Lost, beside what cannot be read: ", absl::StrJoin(lost, "; "),
                                  shown > kMostLostShown
                                      ? absl::StrCat("; and ", shown - kMostLostShown, " more")
                                      : "")));
}

absl::Status RepairJournal(Look& look) {
  const bool whole = look.good_bytes == look.bytes.size();
  if (whole) return absl::OkStatus();
  const int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  std::string copy = absl::StrCat(look.JournalPath(), ".damaged-", now);
  for (int n = 1; access(copy.c_str(), F_OK) == 0; ++n) {
    copy = absl::StrCat(look.JournalPath(), ".damaged-", now, "-", n);
  }
  RETURN_IF_ERROR(WriteWholeFile(copy, {look.bytes}));
  look.report.repairs.push_back(absl::StrCat("kept the damaged journal as ", copy));
  SayWhatIsLost(look);
  // A journal whose header or first record is damaged has nothing good at all.
  const std::string good = look.good_bytes <= kJournalHeaderBytes
                               ? MakeJournal({EmptyState()})
                               : look.bytes.substr(0, look.good_bytes);
  return WriteWholeFile(look.JournalPath(), {good});
}

absl::Status DropBuffers(Look& look, const std::vector<uint64_t>& damaged) {
  if (damaged.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const JournalScan scan, ScanJournal(look.JournalPath()));
  ASSIGN_OR_RETURN(const auto writer, JournalWriter::Open(look.JournalPath(), scan.good_bytes));
  for (const uint64_t id : damaged) {
    internal::StateRecord record;
    record.set_buffer_freed(id);
    absl::Status written = writer->Append(record.SerializeAsString());
    if (written.ok()) written = writer->Sync();
    if (!written.ok()) return written;
    look.report.repairs.push_back(
        absl::StrCat("dropped durable buffer ", id, ", whose contents are lost"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StateReport> LookAt(const std::string& folder, bool repair) {
  if (access((folder + "/journal").c_str(), F_OK) != 0) return errors::NoStateFolder(folder);
  ASSIGN_OR_RETURN(const std::unique_ptr<StateLock> lock, StateLock::Take(folder));
  Look look;
  look.folder = folder;
  absl::Status status = ReadJournal(look);
  if (!status.ok()) return status;
  ListOperators(look);
  const std::vector<std::string> blobs = CheckBlobs(look);
  const std::vector<uint64_t> buffers = CheckBuffers(look);
  if (!repair) return std::move(look.report);

  status = RepairJournal(look);
  if (status.ok()) status = DropBuffers(look, buffers);
  for (const std::string& path : blobs) {
    if (!status.ok()) break;
    status = RemoveFile(path);
    look.report.repairs.push_back(absl::StrCat("removed ", path));
  }
  if (!status.ok()) return status;
  look.report.starts = true;
  return std::move(look.report);
}

}  // namespace

absl::StatusOr<StateReport> CheckState(const std::string& folder) {
  return LookAt(folder, /*repair=*/false);
}

absl::StatusOr<StateReport> RepairState(const std::string& folder) {
  return LookAt(folder, /*repair=*/true);
}

}  // namespace resident
