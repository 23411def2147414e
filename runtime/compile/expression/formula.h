// Formula: an expression as a list of operations on the results of earlier operations, with the
// parameters that it declares and uses.
//
// Invariants:
//   1. An operation's operands are indices smaller than its own.
//   2. Operands have the types that the operation takes; the result is a number.
//   3. inputs are in the order of the list before "->", or of their first use; scalars in that of
//      their declaration. With such a list some of them may be used by no operation.
//
// Thread safety: plain data.
#ifndef RESIDENT_RUNTIME_COMPILE_EXPRESSION_FORMULA_H_
#define RESIDENT_RUNTIME_COMPILE_EXPRESSION_FORMULA_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace resident::expression {

// A function that an expression may call: one of kernels/sdk/math.h.
struct Function {
  // Also the name in resident::math.
  std::string_view name;
  // "x, slope = 0.01".
  std::string_view parameters;
  // The smallest and the largest number of arguments; those between the two have defaults.
  size_t min_arguments;
  size_t max_arguments;
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

struct Operation {
  enum class Kind : uint8_t {
    kNumber,    // `number`; may be infinite or NaN.
    kInput,     // Input `parameter`.
    kScalar,    // Scalar `parameter`.
    kOperator,  // `symbol` of one or two operands: + - * / < <= > >= == != && || !.
    kChoice,    // operands[0] ? operands[1] : operands[2].
    kCall,      // `function` of the operands.
  };
  Kind kind = Kind::kNumber;
  // Whether the result is a boolean and not a number.
  bool boolean = false;
  float number = 0;
  size_t parameter = 0;
  std::string_view symbol;
  const Function* function = nullptr;
  std::vector<size_t> operands;
};

struct Input {
  std::string name;
  std::vector<std::string> dtypes;
};

struct ScalarParameter {
  std::string name;
  std::optional<float> default_value;
};

struct Formula {
  std::vector<Operation> operations;
  size_t result = 0;  // Index of the operation whose result is that of the formula.
  std::vector<Input> inputs;
  std::vector<std::string> output_dtypes;
  std::vector<ScalarParameter> scalars;
};

// INVALID_ARGUMENT: see Generate.
absl::StatusOr<Formula> Parse(std::string_view text);

}  // namespace resident::expression

#endif  // RESIDENT_RUNTIME_COMPILE_EXPRESSION_FORMULA_H_
