// Errors of calls of libresident_ops (library/resident_ops.h), besides those of signatures.
//
// INVALID_ARGUMENT, unless stated otherwise.
//
// Thread safety: functions without state.
#ifndef RESIDENT_LIBRARY_ERRORS_H_
#define RESIDENT_LIBRARY_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/errors.h"

namespace resident::errors {

// A parameter of a function that must not be null.
absl::Status NullParameter(const std::string& function, const std::string& parameter);
absl::Status UnknownLibraryOperator(const std::string& name, const std::string& nearest);
absl::Status CallArgumentCount(const std::string& operator_name, size_t got, size_t min_count,
                               size_t max_count, const std::string& names);
absl::Status CallArgumentKind(const ArgumentRef& place, int32_t got, const std::string& wanted);
absl::Status CallDType(const ArgumentRef& place, int32_t dtype, const std::string& accepted);
absl::Status CallRank(const ArgumentRef& place, int32_t rank, uint32_t limit);
absl::Status CallSize(const ArgumentRef& place, int32_t dim, int64_t size);
absl::Status CallReserved(const ArgumentRef& place, int32_t value);
absl::Status CallNullData(const ArgumentRef& place, const std::string& shape);
absl::Status CallMisaligned(const ArgumentRef& place, uint64_t address, uint32_t alignment);
absl::Status CallBeyondMemory(const ArgumentRef& place);
absl::Status CallStrided(const ArgumentRef& place, const std::string& shape,
                         const std::string& strides);
absl::Status CallScalarRange(const ArgumentRef& place, const std::string& value,
                             const std::string& dtype);
// `may_be_equal`: the operator accepts an output that is exactly an input.
absl::Status CallOverlap(const ArgumentRef& place, const std::string& other, bool may_be_equal);
absl::Status CallStreamOnCpu();
absl::Status NoSuchDevice(int32_t device);
// What an operator refused on the device. `detail`: of docs/operator_reference.md.
absl::Status OperatorRefused(const std::string& operator_name, uint64_t call, uint32_t detail);
// INTERNAL.
absl::Status OperatorFailed(const std::string& operator_name, uint64_t call, uint32_t status);

}  // namespace resident::errors

#endif  // RESIDENT_LIBRARY_ERRORS_H_
