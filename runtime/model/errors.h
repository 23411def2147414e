// Errors of signatures, and of arguments that do not match them.
//
// Errors of one argument also have a reason for programs (runtime/base/errors/reason.h).
//
//   return errors::ArgumentStrided({op.name, index, parameter.name});
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_MODEL_ERRORS_H_
#define RESIDENT_RUNTIME_MODEL_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// An argument of an operator. ArgumentText returns "argument 2 'y' of add".
struct ArgumentRef {
  const std::string& operator_name;
  size_t index;  // From 0; messages count from 1.
  const std::string& parameter;
};
std::string ArgumentText(const ArgumentRef& place);
absl::Status BadSignature(const std::string& text, size_t position, const std::string& what);
absl::Status BadSplit(const std::string& text, const std::string& what);
absl::Status BadCost(const std::string& text, const std::string& what);
// `names`: the names of all `max_count` parameters; the first `min_count` are required.
absl::Status ArgumentCount(const std::string& operator_name, size_t got, size_t min_count,
                           size_t max_count, const std::string& names);
// `is`: "an input"; `takes`: "a buffer column or an inline column".
absl::Status ArgumentKind(const ArgumentRef& place, const std::string& is, const std::string& got,
                          const std::string& takes);
absl::Status ArgumentDType(const ArgumentRef& place, const std::string& got,
                           const std::string& taken);
absl::Status ArgumentRank(const ArgumentRef& place, const std::string& shape, uint32_t min_rank,
                          uint32_t max_rank);
absl::Status ArgumentFixedDim(const ArgumentRef& place, const std::string& shape, size_t dim,
                              int64_t wanted);
absl::Status ArgumentShape(const ArgumentRef& place, const std::string& shape,
                           const std::string& variable, const std::string& bound,
                           const std::string& binder);
absl::Status ArgumentBroadcast(const ArgumentRef& place, const std::string& shape,
                               const std::string& variable, const std::string& bound,
                               const std::string& binder);
// `variable`: the dimension of the output that no tensor of the request has, such as "N" or "*S".
absl::Status OutputShapeUnknown(const ArgumentRef& place, const std::string& variable);
absl::Status ArgumentStrided(const ArgumentRef& place);
absl::Status ShapeTooLarge(const ArgumentRef& place);

absl::Status StrideTooLarge(const ArgumentRef& place, size_t dim, int64_t stride);
absl::Status NegativeStride(const ArgumentRef& place, size_t dim, int64_t stride);
absl::Status OverlappingStrides(const ArgumentRef& place, const std::string& shape,
                                const std::string& strides);
// A returned column with both a shape and infer_shape.
absl::Status OutputShapeTwice(const ArgumentRef& place);
absl::Status ShapeOfScalar(const ArgumentRef& place);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_MODEL_ERRORS_H_
