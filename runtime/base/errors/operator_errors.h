// Errors of naming, calling and changing operators. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_OPERATOR_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_OPERATOR_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// `nearest` may be empty.
absl::Status UnknownOperator(const std::string& name, const std::string& nearest);
// `active` 0: there is no active version.
absl::Status UnknownVersion(const std::string& name, uint32_t version, uint32_t active);
absl::Status InternalOperator(const std::string& name);

absl::Status BadOperatorName(const std::string& name);
absl::Status BuiltinName(const std::string& name);
absl::Status BuiltinOperator(const std::string& name);
absl::Status CalledWithTasks(const std::string& name);     // The operator is bytecode.
absl::Status CalledWithPrograms(const std::string& name);  // The operator is native.
// `standby` 0: there is none; `quarantine_reason` empty: it is not quarantined.
absl::Status NoActiveVersion(const std::string& name, uint32_t standby,
                             const std::string& quarantine_reason);
absl::Status VersionQuarantined(const std::string& name, uint32_t version,
                                const std::string& reason);
absl::Status StaleRevision(const std::string& name, uint64_t expected, uint64_t revision);
absl::Status OtherKind(const std::string& name, bool bytecode);
absl::Status OtherSignature(const std::string& name, const std::string& signature,
                            const std::string& installed);
absl::Status OnTrial(const std::string& name, uint32_t version);
absl::Status TooManyOperators(uint64_t limit, bool bytecode);
absl::Status NoFreeSlot(uint64_t slots);
absl::Status AlreadyActive(const std::string& name, uint32_t version);
// `version` 0: the standby version, whatever its number; `active` 0: there is no active version.
absl::Status NoStandby(const std::string& name, uint32_t version, uint32_t active);
absl::Status NotInSlot(const std::string& name, uint32_t version, uint32_t standby);
absl::Status NoPrevious(const std::string& name, uint32_t standby);
absl::Status NoActiveVersionToCompare(const std::string& name, uint32_t standby);
absl::Status DuplicateVersionRole(const std::string& name, uint32_t version);

absl::Status PromoteShare(const std::string& field, double percent);
absl::Status BakeThreshold(const std::string& field, double value, const std::string& range);
absl::Status BakeTime(uint64_t time_ms, uint64_t limit_ms);
absl::Status TooManyAuditEvents(uint64_t count, uint64_t limit);
absl::Status RemovedButRunning(const std::string& name);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_OPERATOR_ERRORS_H_
