// Matches: compares an expression's output with its float64 reference, to the accuracy of
// the output's type. Infinity and NaN must be where the reference has them; every element
// must be written, and nothing else.
//
// Thread safety: a function without state.
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
