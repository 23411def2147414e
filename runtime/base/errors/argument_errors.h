// Errors of signatures, and of arguments that do not fit them.
//
// All of runtime/base/errors: one named function for each error that a client can meet.
// Every message says what was wrong, with the values, and ends with "Fix: ..." and
// what to do. Text that a client sent is quoted, shortened and made printable.
//
//   return errors::ArgumentStrided({op.name, index, parameter.name});
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_ARGUMENT_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_ARGUMENT_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// Which argument of which operator; ArgumentText: "argument 2 'y' of add".
struct ArgumentPlace {
  const std::string& operator_name;
  size_t index;  // From 0; messages count from 1.
  const std::string& parameter;
};

std::string ArgumentText(const ArgumentPlace& place);

absl::Status BadSignature(const std::string& text, size_t position, const std::string& what);
absl::Status BadSplit(const std::string& text, const std::string& what);
// `names` of all `most` parameters, of which `least` are required.
absl::Status ArgumentCount(const std::string& operator_name, size_t got, size_t least, size_t most,
                           const std::string& names);
// `is`: "an input"; `takes`: "a buffer column or an inline column".
absl::Status ArgumentKind(const ArgumentPlace& place, const std::string& is, const std::string& got,
                          const std::string& takes);
absl::Status ArgumentDType(const ArgumentPlace& place, const std::string& got,
                           const std::string& taken);
absl::Status ArgumentRank(const ArgumentPlace& place, const std::string& shape, uint32_t min_rank,
                          uint32_t max_rank);
absl::Status ArgumentFixedDim(const ArgumentPlace& place, const std::string& shape, size_t dim,
                              int64_t wanted);
absl::Status ArgumentShape(const ArgumentPlace& place, const std::string& shape,
                           const std::string& variable, const std::string& bound,
                           const std::string& binder);
absl::Status ArgumentBroadcast(const ArgumentPlace& place, const std::string& shape,
                               const std::string& variable, const std::string& bound,
                               const std::string& binder);
absl::Status ArgumentStrided(const ArgumentPlace& place);
absl::Status ShapeTooLarge(const ArgumentPlace& place);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_ARGUMENT_ERRORS_H_
