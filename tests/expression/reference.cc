#include "tests/expression/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tests/support/float64.h"

namespace resident::testing {
namespace {

double Maximum(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }
double Minimum(double a, double b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }
double Clamp(double x, double lo, double hi) { return Minimum(Maximum(x, lo), hi); }
double Gelu(double x) { return 0.5 * x * std::erfc(-x / std::numbers::sqrt2); }
double Softplus(double x, double beta, double threshold) {
  return x * beta > threshold ? x : std::log1p(std::exp(x * beta)) / beta;
}
double Elu(double x, double alpha, double scale, double input_scale) {
  return x <= 0 ? scale * alpha * std::expm1(input_scale * x) : scale * x;
}

using V = const double*;

}  // namespace

std::vector<ExpressionCase> ExpressionCases() {
  return {
      {"x", 1, {}, [](V v) { return v[0]; }},
      {"x + y", 2, {}, [](V v) { return v[0] + v[1]; }},
      {"x - y", 2, {}, [](V v) { return v[0] - v[1]; }},
      {"x * y", 2, {}, [](V v) { return v[0] * v[1]; }},
      {"x / y", 2, {}, [](V v) { return v[0] / v[1]; }},
      {"-x", 1, {}, [](V v) { return -v[0]; }},
      {"abs(x)", 1, {}, [](V v) { return std::fabs(v[0]); }},
      {"ceil(x)", 1, {}, [](V v) { return std::ceil(v[0]); }},
      {"clamp(x, lo, hi) where lo: scalar, hi: scalar",
       1,
       {-1, 2},
       [](V v) { return Clamp(v[0], v[1], v[2]); }},
      {"clamp(x, y, 1)", 2, {}, [](V v) { return Clamp(v[0], v[1], 1); }},
      {"cos(x)", 1, {}, [](V v) { return std::cos(v[0]); }},
      {"elu(x)", 1, {}, [](V v) { return Elu(v[0], 1, 1, 1); }},
      {"elu(x, 0.5, 2, 1.5)", 1, {}, [](V v) { return Elu(v[0], 0.5, 2, 1.5); }},
      {"erf(x)", 1, {}, [](V v) { return std::erf(v[0]); }},
      {"exp(x)", 1, {}, [](V v) { return std::exp(v[0]); }},
      {"expm1(x)", 1, {}, [](V v) { return std::expm1(v[0]); }},
      {"floor(x)", 1, {}, [](V v) { return std::floor(v[0]); }},
      {"fma(x, y, z)", 3, {}, [](V v) { return std::fma(v[0], v[1], v[2]); }},
      {"gelu(x)", 1, {}, [](V v) { return Gelu(v[0]); }},
      {"gelu_tanh(x)", 1, {}, [](V v) { return GeluTanh(v[0]); }},
      {"hardsigmoid(x)", 1, {}, [](V v) { return Clamp(v[0] / 6 + 0.5, 0, 1); }},
      {"hardswish(x)", 1, {}, [](V v) { return v[0] * Clamp(v[0] + 3, 0, 6) / 6; }},
      {"hardtanh(x)", 1, {}, [](V v) { return Clamp(v[0], -1, 1); }},
      {"hardtanh(x, -2, 0.5)", 1, {}, [](V v) { return Clamp(v[0], -2, 0.5); }},
      {"leaky_relu(x)", 1, {}, [](V v) { return v[0] > 0 ? v[0] : 0.01 * v[0]; }},
      {"leaky_relu(x, s) where s: scalar",
       1,
       {0.25f},
       [](V v) { return v[0] > 0 ? v[0] : v[1] * v[0]; }},
      {"log(x)", 1, {}, [](V v) { return std::log(v[0]); }},
      {"log1p(x)", 1, {}, [](V v) { return std::log1p(v[0]); }},
      {"maximum(x, y)", 2, {}, [](V v) { return Maximum(v[0], v[1]); }},
      {"minimum(x, y)", 2, {}, [](V v) { return Minimum(v[0], v[1]); }},
      {"neg(x)", 1, {}, [](V v) { return -v[0]; }},
      {"pow(x, y)", 2, {}, [](V v) { return std::pow(v[0], v[1]); }},
      {"pow(x, 2)", 1, {}, [](V v) { return v[0] * v[0]; }},
      {"relu(x)", 1, {}, [](V v) { return Maximum(v[0], 0); }},
      {"round(x)", 1, {}, [](V v) { return std::nearbyint(v[0]); }},
      {"rsqrt(x)", 1, {}, [](V v) { return 1 / std::sqrt(v[0]); }},
      {"select(x > y, x, z)", 3, {}, [](V v) { return v[0] > v[1] ? v[0] : v[2]; }},
      {"sigmoid(x)", 1, {}, [](V v) { return Sigmoid(v[0]); }},
      {"silu(x)", 1, {}, [](V v) { return Silu(v[0]); }},
      {"silu_mul(gate, up)", 2, {}, [](V v) { return Silu(v[0]) * v[1]; }},
      {"sin(x)", 1, {}, [](V v) { return std::sin(v[0]); }},
      {"softplus(x)", 1, {}, [](V v) { return Softplus(v[0], 1, 20); }},
      {"softplus(x, 2, 3)", 1, {}, [](V v) { return Softplus(v[0], 2, 3); }},
      {"sqrt(x)", 1, {}, [](V v) { return std::sqrt(v[0]); }},
      {"tanh(x)", 1, {}, [](V v) { return std::tanh(v[0]); }},
      {"trunc(x)", 1, {}, [](V v) { return std::trunc(v[0]); }},
      // Expressions of several operations.
      {"x * sigmoid(x)", 1, {}, [](V v) { return v[0] * Sigmoid(v[0]); }},
      {"a * x + y where a: scalar f32 = 1", 2, {0.75f}, [](V v) { return v[2] * v[0] + v[1]; }},
      {"x > limit ? limit : x where limit: scalar",
       1,
       {0.75f},
       [](V v) { return v[0] > v[1] ? v[1] : v[0]; }},
      {"x < 0 && y < 0 || !(x == x) ? -1 : x >= y ? 1 : 2",
       2,
       {},
       [](V v) {
         return (v[0] < 0 && v[1] < 0) || v[0] != v[0] ? -1.0 : v[0] >= v[1] ? 1.0 : 2.0;
       }},
      {"value where value: scalar", 0, {3.25f}, [](V v) { return v[0]; }},
      {"pi * 2", 0, {}, [](V) { return std::numbers::pi * 2; }},
      {"x == 0 ? inf : y != y ? nan : -inf",
       2,
       {},
       [](V v) { return v[0] == 0      ? INFINITY
                        : v[1] != v[1] ? NAN
                                       : -INFINITY; }},
      {"a + b + c + d + f + g + h + i + j + k + l + m",
       12,
       {},
       [](V v) {
         double sum = 0;
         for (int i = 0; i < 12; ++i) sum += v[i];
         return sum;
       }},
  };
}

}  // namespace resident::testing
