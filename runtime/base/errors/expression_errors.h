// The error of an expression that cannot be parsed. The rules in argument_errors.h apply.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_EXPRESSION_ERRORS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_EXPRESSION_ERRORS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace resident::errors {

// `what`: the problem at bytes [position, position + width) of the expression. `fix` may be
// empty.
absl::Status BadExpression(std::string_view text, size_t position, size_t width,
                           const std::string& what, const std::string& fix);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_EXPRESSION_ERRORS_H_
