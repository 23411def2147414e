// Errors of batches of FLUX programs. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_FLUX_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_FLUX_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status FluxOffsets(const std::string& what);
absl::Status FluxCount(uint64_t count, uint64_t programs);
absl::Status FluxIndex(uint64_t run, uint64_t program, uint64_t programs);
absl::Status FluxIndexLength(uint64_t got, uint64_t count);
absl::Status FluxInitial(uint64_t got, uint64_t width, uint64_t count);
absl::Status FluxInitialWidth(uint64_t width);
absl::Status FluxWanted(const std::string& what);
absl::Status FluxOperatorAndPrograms(const std::string& name);
absl::Status FluxVersionAlone(uint32_t version);
absl::Status FluxCycles(uint64_t cycles, uint64_t limit);
// `limit`: the cycles that a run may have on the device because of the time limit.
absl::Status FluxCyclesInTime(uint64_t cycles, uint64_t limit);
absl::Status FluxTooMuchWork(uint64_t runs, uint64_t cycles, uint64_t tasks, uint64_t limit);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_FLUX_ERRORS_H_
