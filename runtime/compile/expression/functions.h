// The functions that an expression may call: those of kernels/sdk/math.h.
//
// Thread safety: immutable.
#ifndef RESIDENT_RUNTIME_COMPILE_EXPRESSION_FUNCTIONS_H_
#define RESIDENT_RUNTIME_COMPILE_EXPRESSION_FUNCTIONS_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace resident::expression {

struct Function {
  // Also the name in resident::math.
  std::string_view name;
  // "x, slope = 0.01".
  std::string_view parameters;
  // The least and the most arguments; those between the two have defaults.
  size_t least;
  size_t most;
  // The approximate number of instructions.
  int cost;
  // Whether the first argument is a comparison.
  bool conditional = false;
};

// All functions, sorted by name.
absl::Span<const Function> Functions();

// Returns null if there is none.
const Function* FindFunction(std::string_view name);

// What to write in place of a function that expressions do not have: the formula of a well-known
// one, the operator of a reduction, or the function whose name is similar.
std::string InPlaceOfFunction(std::string_view name);

}  // namespace resident::expression

#endif  // RESIDENT_RUNTIME_COMPILE_EXPRESSION_FUNCTIONS_H_
