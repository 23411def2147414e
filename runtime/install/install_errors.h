// The errors of installs and switches that a client can meet (as runtime/errors.h).
#ifndef RESIDENT_RUNTIME_INSTALL_INSTALL_ERRORS_H_
#define RESIDENT_RUNTIME_INSTALL_INSTALL_ERRORS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status ExpressionSignature(const std::string& given, const std::string& derived);
absl::Status ObjectsNotAllowed();
absl::Status TaskTimeAboveLimit(std::chrono::milliseconds asked, std::chrono::milliseconds limit);
absl::Status InstallWithdrawn();
absl::Status RemovedButRunning(const std::string& name);

// Of bytecode. Examples count from 1; 0: the run without one.
absl::Status BytecodeSize(size_t bytes, size_t limit);
absl::Status BytecodeExample(size_t example);
absl::Status BytecodeError(size_t example, uint32_t error, uint32_t cycles);
absl::Status BytecodeResult(size_t example, size_t reg, int32_t got, int32_t expected);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_INSTALL_INSTALL_ERRORS_H_
