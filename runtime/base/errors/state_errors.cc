#include "runtime/base/errors/state_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status StateFolderInUse(const std::string& folder, int64_t pid) {
  return absl::FailedPreconditionError(
      StrCat("--state_dir=", folder, " is in use by another process",
             pid == 0 ? std::string() : StrCat(", pid ", pid),
             ". Fix: stop that one, or give this one a folder of its own"));
}

absl::Status JournalDamaged(const std::string& path, uint64_t offset, const std::string& what,
                            const std::string& folder) {
  return absl::DataLossError(StrCat(path, " is damaged at offset ", offset, ": ", what,
                                    ". Fix: look with `residentctl state check ", folder,
                                    "`; `residentctl state repair ", folder,
                                    "` keeps a copy and cuts off what cannot be read"));
}

absl::Status JournalNewer(const std::string& path, const std::string& what) {
  return absl::FailedPreconditionError(StrCat(path, " was written by a newer daemon: ", what,
                                              ". Fix: start that one, or use another "
                                              "--state_dir"));
}

absl::Status JournalBroken(const std::string& path, const std::string& why) {
  return absl::UnavailableError(StrCat("nothing can be added to ", path, ": ", why,
                                       ". What serves goes on, but no change is possible. Fix: "
                                       "make the disk that --state_dir is on work, and room on "
                                       "it; the next change then writes the file anew"));
}

absl::Status NotOnDisk(const std::string& path, const std::string& why) {
  return absl::InternalError(StrCat("it was done, but a restart may come back without it: ", path,
                                    " is not on disk: ", why,
                                    ". Fix: make the disk that --state_dir is on work, and room on "
                                    "it; the next change then writes the file anew"));
}

absl::Status RecordTooLarge(uint64_t bytes) {
  return absl::ResourceExhaustedError(StrCat("a record of ", bytes,
                                             " bytes is too large for the journal. Fix: remove "
                                             "operators that are not used"));
}

absl::Status RecordDoesNotFit(const std::string& what) {
  return absl::DataLossError(StrCat("a record does not fit those before it: ", what,
                                    ". Fix: `residentctl state check` on the state folder"));
}

absl::Status NoBlob(const std::string& sha256) {
  return absl::NotFoundError(StrCat("no contents with SHA-256 ", Quote(sha256),
                                    " are kept. Fix: `residentctl state check` says what is "
                                    "missing; install the version again"));
}

absl::Status DamagedFile(const std::string& path) {
  return absl::DataLossError(StrCat(path,
                                    " is missing, or does not have the contents that were "
                                    "written. Fix: `residentctl state check` says what it was of"));
}

absl::Status NoStateFolder(const std::string& folder) {
  return absl::NotFoundError(StrCat(folder,
                                    " has no journal. Fix: name the folder that a daemon "
                                    "was given as --state_dir"));
}

absl::Status EventsGone(uint64_t after, uint64_t first) {
  return absl::OutOfRangeError(StrCat("events after revision ", after,
                                      " are no longer kept; the oldest is ", first,
                                      ". Fix: list the operators, then watch from the newest "
                                      "revision on"));
}

}  // namespace resident::errors
