// CheckExamples: checks before the compilation whether the examples of an install fit its
// signature and the validation's staging memory.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_CHECK_EXAMPLES_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_CHECK_EXAMPLES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/signature.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// INVALID_ARGUMENT: the message names the example (counted from 1) and the parameter.
absl::Status CheckExamples(const std::string& operator_name, const Signature& signature,
                           const std::vector<Example>& examples);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_CHECK_EXAMPLES_H_
