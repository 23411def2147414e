// Errors of the state folder and of its contents.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_STATE_ERRORS_H_
#define RESIDENT_RUNTIME_STATE_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// The message of an error without its "Fix: ...", to become a part of another one.
std::string WithoutFix(const absl::Status& status);

absl::Status UnknownBuffer(uint64_t id);

// `pid` 0: unknown.
absl::Status StateFolderInUse(const std::string& folder, int64_t pid);
absl::Status DatabaseDamaged(const std::string& path, const std::string& what);
// There is the log of a database, but not the database.
absl::Status DatabaseMissing(const std::string& path, const std::string& log);
absl::Status DatabaseUnavailable(const std::string& path, const std::string& why, bool full);
absl::Status OtherStateVersion(const std::string& folder, const std::string& version,
                               int own_version);
absl::Status OlderStateFolder(const std::string& folder);
absl::Status ChangesRefused(const std::string& why);
// A change was made but may not be durable.
absl::Status NotOnDisk(const std::string& why);
// A buffer or a graph (`what`) was not written, but its new contents may exist after a restart.
absl::Status RowNotSaved(const std::string& what, const std::string& why);
absl::Status InconsistentRecord(const std::string& what);
absl::Status NoBlob(const std::string& sha256);
absl::Status DamagedFile(const std::string& path);
absl::Status NoStateFolder(const std::string& folder);
absl::Status EventsGone(uint64_t after, uint64_t first);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_STATE_ERRORS_H_
