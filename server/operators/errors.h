// Errors of messages of Operators.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_OPERATORS_ERRORS_H_
#define RESIDENT_SERVER_OPERATORS_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status InstallHeaderNotSent(uint64_t limit_ms);
absl::Status InstallNoHeader();
absl::Status InstallSecondHeader();
absl::Status InstallEmptyMessage();
absl::Status InstallNoName();
absl::Status InstallNoKind();
// `field`: a field of InstallHeader.
absl::Status InstallTextTooLong(const std::string& field, size_t bytes, size_t limit);
absl::Status InstallNotSent(uint64_t limit_ms);
absl::Status InstallUnexpectedFile(const std::string& name);
absl::Status InstallTooManyFiles(uint64_t limit);
// `what`: "source" or "object".
absl::Status InstallTooManyBytes(const std::string& what, uint64_t bytes, uint64_t limit);
absl::Status InstallTooManyExamples(uint64_t limit);
absl::Status InstallConfined();
absl::Status InstallIsolatedBytecode();

absl::Status BakeThreshold(const std::string& field, double value, const std::string& range);
absl::Status BakeTime(uint64_t time_ms, uint64_t limit_ms);
absl::Status TooManyAuditEvents(uint64_t count, uint64_t limit);

absl::Status BadPlan(const std::string& plan);
absl::Status BadSet(const std::string& set);
absl::Status HolderTooLong(size_t bytes, size_t limit);
absl::Status ClaimTtl(uint64_t ttl_ms, uint64_t low_ms, uint64_t high_ms);
absl::Status TooManyClaimedNames(size_t names, size_t limit);
absl::Status BadClaimedName(const std::string& name);

absl::Status RemovedButRunning(const std::string& name);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_OPERATORS_ERRORS_H_
