// Errors of the examples of an install. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_EXAMPLE_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_EXAMPLE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/base/errors/argument_errors.h"

namespace resident::errors {

// Examples and their values are counted from 0 here and from 1 in messages.
absl::Status ExampleTolerance(size_t example);
absl::Status ExampleTooManyValues(size_t example, size_t values, size_t limit);
absl::Status ExampleDType(size_t example, size_t value, int dtype);
absl::Status ExampleRank(size_t example, size_t value, size_t rank, size_t limit);
absl::Status ExampleTooLarge(size_t example, size_t value, uint64_t limit);
absl::Status ExampleSize(size_t example, size_t value, uint64_t got, uint64_t wanted);

absl::Status TooManyExamples(uint64_t count, uint64_t limit);
// Returns `why` with the example's number (from 0; messages count from 1) as a prefix.
absl::Status InExample(size_t example, const absl::Status& why);
// `takes`: "12 bytes", "0 or 12 bytes (the expected values)".
absl::Status ExampleData(const ArgumentRef& place, uint64_t got, const std::string& takes);
absl::Status ExampleScalarShape(const ArgumentRef& place, const std::string& shape);
absl::Status ExampleExpectations(const std::string& with, const std::string& without);
absl::Status ExampleTolerance(double relative, double absolute);
absl::Status ExampleTooLarge(uint64_t bytes, uint64_t limit);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_EXAMPLE_ERRORS_H_
