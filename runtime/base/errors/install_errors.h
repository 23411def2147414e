// Errors of installs, except those of their examples. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_INSTALL_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_INSTALL_ERRORS_H_

#include <chrono>
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
absl::Status InstallFileName(const std::string& name, const std::string& what);
absl::Status InstallUnexpectedFile(const std::string& name);
absl::Status InstallMissingFile(const std::string& name, size_t files);
absl::Status InstallTooManyFiles(uint64_t limit);
// `what`: "source" or "object".
absl::Status InstallTooManyBytes(const std::string& what, uint64_t bytes, uint64_t limit);
absl::Status InstallTooManyExamples(uint64_t limit);

absl::Status ExpressionSignature(const std::string& given, const std::string& derived);
absl::Status ObjectsNotAllowed();
absl::Status TaskTimeAboveLimit(std::chrono::milliseconds asked, std::chrono::milliseconds limit);
absl::Status InstallWithdrawn();
absl::Status CompileFolderFull(uint64_t limit_mib, uint64_t limit_entries);

// Errors of bytecode. `example` counts from 1; 0: the run without an example.
absl::Status BytecodeSize(size_t bytes, size_t limit);
absl::Status BytecodeExample(size_t example);
absl::Status BytecodeError(size_t example, uint32_t error, uint32_t cycles);
absl::Status BytecodeResult(size_t example, size_t reg, int32_t got, int32_t expected);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_INSTALL_ERRORS_H_
