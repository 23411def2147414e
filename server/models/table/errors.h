// Errors of the names and versions of models.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_MODELS_TABLE_ERRORS_H_
#define RESIDENT_SERVER_MODELS_TABLE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NoSuchModel(const std::string& name);
// `active` 0: there is none.
absl::Status NoSuchModelVersion(const std::string& name, uint32_t version, uint32_t active);
absl::Status NoActiveModelVersion(const std::string& name);
absl::Status NoPreviousModelVersion(const std::string& name);
absl::Status ModelSharePercent(double percent);
absl::Status ModelVersionIsActive(const std::string& name, uint32_t version);
absl::Status StaleModelRevision(const std::string& name, uint64_t expected, uint64_t revision);
absl::Status TooManyModels(size_t limit);
absl::Status TooManyModelVersions(const std::string& name, size_t limit);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_MODELS_TABLE_ERRORS_H_
