// Matches: whether an expression's output is what its float64 reference says, to the
// accuracy of the output's type, with infinity and NaN where the reference has them and
// nowhere else, every element written and nothing beside them.
//
// Thread safety: a function without state of its own.
#ifndef RESIDENT_TESTS_EXPRESSION_MATCHES_H_
#define RESIDENT_TESTS_EXPRESSION_MATCHES_H_

#include <vector>

#include "gtest/gtest.h"
#include "tests/expression/operand.h"
#include "tests/expression/reference.h"

namespace resident::testing {

// `operands`: inputs, then the output.
::testing::AssertionResult Matches(const ExpressionCase& test, std::vector<Operand>& operands);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_EXPRESSION_MATCHES_H_
