#include "tests/expression/matches.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace resident::testing {
namespace {

// Limit of the norm of the error relative to the norm of the reference.
double Tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-6 : dtype == DType::kF16 ? 2e-3 : 1e-2;
}

}  // namespace

::testing::AssertionResult Matches(const ExpressionCase& test, std::vector<Operand>& operands) {
  Operand& out = operands.back();
  const size_t inputs = operands.size() - 1;
  std::vector<double> values(inputs);
  values.insert(values.end(), test.scalars.begin(), test.scalars.end());
  const double tolerance = Tolerance(out.dtype());
  double error = 0, norm = 0;
  for (int64_t i = 0; i < out.size(); ++i) {
    for (size_t k = 0; k < inputs; ++k) values[k] = operands[k].At(i, out.shape());
    const double want = test.reference(values.data());
    const double rounded = Rounded(out.dtype(), want);
    const double got = out.At(i);
    const auto failure = [&] {
      auto result = ::testing::AssertionFailure()
                    << test.text << ", element " << i << " is " << got << " for " << want << " of";
      for (const double value : values) result << " " << value;
      return result;
    };
    if (out.Poisoned(i)) return failure() << ": not written";
    if (!std::isfinite(rounded)) {
      if (std::isnan(rounded) ? !std::isnan(got) : got != rounded) return failure();
      continue;
    }
    if (!std::isfinite(got)) return failure();
    error += (got - want) * (got - want);
    norm += want * want;
    // Small elements must also be correct among large ones; if terms cancel, the error is
    // relative to them.
    double terms = std::fabs(want);
    for (const double value : values) {
      if (std::isfinite(value)) terms = std::max(terms, std::fabs(value));
    }
    if (std::fabs(got - want) > 10 * tolerance * terms + 1e-7) return failure();
  }
  // The sum of few elements may cancel completely.
  if (out.size() >= 256 && norm > 0 && std::sqrt(error / norm) >= tolerance) {
    return ::testing::AssertionFailure()
           << test.text << ": relative error " << std::sqrt(error / norm);
  }
  if (out.Written() != out.size()) {
    return ::testing::AssertionFailure() << test.text << ": wrote outside of the tensor";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace resident::testing
