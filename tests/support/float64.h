// Functions of operators in float64, as references of tests.
//
// They follow the definitions, not the operators' sources. Vectors are dense matrices, row after
// row; a row has as many elements as the parameters of the function, or `columns`.
//
// Thread safety: functions without state.
//
//   ExpectNear(out, RmsNorm(x.Values(), w.Values(), 1e-6));
#ifndef RESIDENT_TESTS_SUPPORT_FLOAT64_H_
#define RESIDENT_TESTS_SUPPORT_FLOAT64_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

namespace resident::testing {

inline double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
// 0 for -infinity.
inline double Silu(double x) { return std::isinf(x) && x < 0 ? 0 : x * Sigmoid(x); }
inline double GeluTanh(double x) {
  return x * Sigmoid(2 * std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x));
}

// `function` of each row: it gets the row and returns one.
template <typename F>
std::vector<double> ByRow(const std::vector<double>& x, size_t columns, F function) {
  std::vector<double> all;
  all.reserve(x.size());
  for (auto at = x.begin(); at != x.end(); at += static_cast<std::ptrdiff_t>(columns)) {
    const std::vector<double> row =
        function(std::vector<double>(at, at + static_cast<std::ptrdiff_t>(columns)));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

// Of one row. All elements are NaN if one is, or if the largest one is infinite.
inline std::vector<double> LogSoftmax(std::vector<double> row) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double largest = -kInfinity;
  for (const double v : row) largest = std::isnan(v) ? kInfinity : std::max(largest, v);
  double sum = 0;
  for (const double v : row) sum += std::exp(v - largest);
  const bool defined = std::isfinite(largest);
  for (double& v : row) v = defined ? v - largest - std::log(sum) : std::nan("");
  return row;
}

inline std::vector<double> Softmax(std::vector<double> row) {
  row = LogSoftmax(std::move(row));
  for (double& v : row) v = std::exp(v);
  return row;
}

inline std::vector<double> RmsNorm(const std::vector<double>& x, const std::vector<double>& w,
                                   double eps) {
  return ByRow(x, w.size(), [&](std::vector<double> row) {
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    const double root = std::sqrt(squares / static_cast<double>(row.size()) + eps);
    for (size_t c = 0; c < row.size(); ++c) row[c] = row[c] / root * w[c];
    return row;
  });
}

// `b`: the bias; empty: none.
inline std::vector<double> LayerNorm(const std::vector<double>& x, const std::vector<double>& w,
                                     const std::vector<double>& b, double eps) {
  return ByRow(x, w.size(), [&](std::vector<double> row) {
    const auto n = static_cast<double>(row.size());
    const double mean = std::accumulate(row.begin(), row.end(), 0.0) / n;
    for (double& v : row) v -= mean;
    const double squares = std::inner_product(row.begin(), row.end(), row.begin(), 0.0);
    const double root = std::sqrt(squares / n + eps);
    for (size_t c = 0; c < row.size(); ++c) {
      row[c] = row[c] / root * w[c] + (b.empty() ? 0 : b[c]);
    }
    return row;
  });
}

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_FLOAT64_H_
