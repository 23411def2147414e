#include "runtime/state/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

std::string WithoutFix(const absl::Status& status) {
  return std::string(status.message().substr(0, status.message().find(". Fix:")));
}

absl::Status UnknownBuffer(uint64_t id) {
  return absl::NotFoundError(StrCat("no buffer ", id,
                                    " in this session. Fix: name a buffer that "
                                    "this session allocated and has not freed, or a durable one "
                                    "(Buffers.List); send the session's id as metadata "
                                    "\"resident-session\""));
}

absl::Status StateFolderInUse(const std::string& folder, int64_t pid) {
  return absl::FailedPreconditionError(StrCat("--state_dir=", folder,
                                              " is in use by another process",
                                              pid == 0 ? std::string() : StrCat(", pid ", pid),
                                              ". Fix: stop that process, or use another folder"));
}

absl::Status DatabaseDamaged(const std::string& path, const std::string& what) {
  const std::string folder = path.substr(0, path.rfind('/'));
  return absl::DataLossError(StrCat(
      path, " is damaged: ", what, ". Fix: run `residentctl state check ", folder,
      "`; `residentctl state repair ", folder, "` keeps a copy and drops what cannot be read"));
}

absl::Status DatabaseMissing(const std::string& path, const std::string& log) {
  return absl::DataLossError(StrCat(path, " is missing, but its log ", log,
                                    " exists. Fix: restore the file; if it is lost, move the log "
                                    "away, and the daemon starts without state"));
}

absl::Status DatabaseUnavailable(const std::string& path, const std::string& why, bool full) {
  return absl::UnavailableError(
      StrCat("cannot use ", path, ": ", why, ". Fix: ",
             full ? "free space on the disk of --state_dir"
                  : "make --state_dir a folder that the daemon may read and write, on a disk that "
                    "works"));
}

absl::Status OtherStateVersion(const std::string& folder, const std::string& version,
                               int own_version) {
  return absl::FailedPreconditionError(StrCat(
      "the state folder ", folder, " has version ", version, ", and this daemon uses version ",
      own_version, ". Fix: start the daemon that wrote it, or use another --state_dir"));
}

absl::Status OlderStateFolder(const std::string& folder) {
  return absl::FailedPreconditionError(
      StrCat("the state folder ", folder,
             " was written by an older version (it has a journal), and this daemon does not read "
             "that format. Fix: start the older version, or use another --state_dir and install "
             "the operators again"));
}

absl::Status ChangesRefused(const std::string& why) {
  return absl::UnavailableError(
      StrCat("no change can be written to the disk: ", why,
             ". The daemon continues to serve, but nothing can be "
             "changed. Fix: repair the disk of --state_dir, or free space "
             "on it; then try again"));
}

absl::Status NotOnDisk(const std::string& why) {
  return absl::InternalError(StrCat("the change was made, but a restart may lose it: ", why,
                                    ". Fix: repair the disk of --state_dir, or free space on it; "
                                    "the next change then writes this one too"));
}

absl::Status RowNotSaved(const std::string& what, const std::string& why) {
  return absl::InternalError(
      StrCat(what, " was not saved: ", why,
             ". Until the next change succeeds, a crash may restore the new or the previous "
             "contents. Fix: repair the disk of --state_dir, or free space on it; then try again"));
}

absl::Status InconsistentRecord(const std::string& what) {
  return absl::DataLossError(StrCat("a record contradicts the records before it: ", what,
                                    ". Fix: run `residentctl state check` on the state folder"));
}

absl::Status NoBlob(const std::string& sha256) {
  return absl::NotFoundError(StrCat("no contents with SHA-256 ", Quote(sha256),
                                    " are stored. Fix: see `residentctl state check` for what is "
                                    "missing; install the version again"));
}

absl::Status DamagedFile(const std::string& path) {
  return absl::DataLossError(StrCat(path,
                                    " is missing, or does not have the contents that were "
                                    "written. Fix: see `residentctl state check` for its use"));
}

absl::Status NoStateFolder(const std::string& folder) {
  return absl::NotFoundError(StrCat(folder,
                                    " has no database. Fix: name the folder of a daemon's "
                                    "--state_dir"));
}

absl::Status EventsGone(uint64_t after, uint64_t first) {
  return absl::OutOfRangeError(StrCat("events after revision ", after,
                                      " are no longer kept; the oldest is ", first,
                                      ". Fix: list the operators, then watch from the newest "
                                      "revision on"));
}

}  // namespace resident::errors
