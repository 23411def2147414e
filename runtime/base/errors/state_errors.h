// Errors of the state folder and of what is in it (as argument_errors.h).
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_STATE_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_STATE_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// `pid` 0: not known.
absl::Status StateFolderInUse(const std::string& folder, int64_t pid);
absl::Status JournalDamaged(const std::string& path, uint64_t offset, const std::string& what,
                            const std::string& folder);
absl::Status JournalNewer(const std::string& path, const std::string& what);
absl::Status JournalBroken(const std::string& path, const std::string& why);
// A change that was made and may not be durable.
absl::Status NotOnDisk(const std::string& path, const std::string& why);
absl::Status RecordTooLarge(uint64_t bytes);
absl::Status RecordDoesNotFit(const std::string& what);
absl::Status NoBlob(const std::string& sha256);
absl::Status DamagedFile(const std::string& path);
absl::Status NoStateFolder(const std::string& folder);
absl::Status EventsGone(uint64_t after, uint64_t first);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_STATE_ERRORS_H_
