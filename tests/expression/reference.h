// Expressions and their float64 references, by the formulas of PyTorch's documentation:
// every function, and expressions of several functions.
//
// Thread safety: immutable.
#ifndef RESIDENT_TESTS_EXPRESSION_REFERENCE_H_
#define RESIDENT_TESTS_EXPRESSION_REFERENCE_H_

#include <functional>
#include <string>
#include <vector>

namespace resident::testing {

struct ExpressionCase {
  std::string text;
  int inputs;
  // Values of the scalars, which follow the output.
  std::vector<float> scalars;
  // `v`: inputs, then scalars.
  std::function<double(const double* v)> reference;
};

std::vector<ExpressionCase> ExpressionCases();

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_EXPRESSION_REFERENCE_H_
