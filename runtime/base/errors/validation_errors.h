// The findings of a validation, as errors of the install. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_VALIDATION_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_VALIDATION_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// Where a validation found something: "swish, example 2 (in 3 chunks; x [9], y [9]): ".
struct ValidationContext {
  const std::string& operator_name;
  size_t example;      // From 0; messages count from 1.
  bool generated;      // Whether it was made from the signature.
  std::string run;     // "checked build", "in 3 chunks".
  std::string shapes;  // Shapes of the tensors: "x [1000], out [1000]".
};

absl::Status ValidationUnavailable(const absl::Status& why);
// The version's code cannot be loaded, or ends the engine when it is loaded.
absl::Status ValidationLoad(const std::string& operator_name, const std::string& why);
// `cause`: how the engine ended, if known.
absl::Status ValidationFault(const ValidationContext& place, const std::string& cause);
absl::Status ValidationNeverReturned(const ValidationContext& place, int64_t limit_ms);
// The task reported a failure.
absl::Status ValidationTaskFailed(const ValidationContext& place, const std::string& status,
                                  uint32_t detail);
// `what`: the access that the checked build refused, such as "touched element 8 of 'y', which has
// 8 elements".
absl::Status ValidationOutOfBounds(const ValidationContext& place, const std::string& what);
// A byte outside of all tensors was written. `where`: "past the end of".
absl::Status ValidationRedZone(const ValidationContext& place, const std::string& parameter,
                               const std::string& where, uint64_t distance);
absl::Status ValidationInputWritten(const ValidationContext& place, const std::string& parameter,
                                    uint64_t element);
absl::Status ValidationUnwritten(const ValidationContext& place, const std::string& parameter,
                                 uint64_t first, uint64_t unwritten, uint64_t elements);

// The elements of an output that differ from the expected values.
struct ValidationDifference {
  const std::string& parameter;
  std::string against;  // "what the example expects", "the active version".
  uint64_t first;
  std::string got;
  std::string wanted;
  uint64_t differing;
  uint64_t elements;
  double max_error;
};
absl::Status ValidationDiffers(const ValidationContext& place,
                               const ValidationDifference& difference);
// The active version, whose outputs are the expected values, fails the example.
absl::Status ValidationNoReference(const ValidationContext& place, const absl::Status& why);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_VALIDATION_ERRORS_H_
