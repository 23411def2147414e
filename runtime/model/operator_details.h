// Explains the details with which built-in operators refuse a task on the device. The operators
// themselves have only numbers (kernels/ops); docs/operator_reference.md explains them with the
// rest.
//
// Thread safety: immutable.
#ifndef RESIDENT_RUNTIME_MODEL_OPERATOR_DETAILS_H_
#define RESIDENT_RUNTIME_MODEL_OPERATOR_DETAILS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace resident::errors {

// "an id is not a row of the table (detail 1). Fix: ..."; for an operator that is not built in,
// where its detail is explained.
std::string DetailText(std::string_view operator_name, uint32_t detail);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_MODEL_OPERATOR_DETAILS_H_
