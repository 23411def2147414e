#include "tests/graph/interpreter_operators.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace resident::testing {
namespace {

// Error of a float32 operation, relative to what is added or multiplied; twice what rounding makes.
constexpr double kRounding = 0x1p-22;
// Relative error of the functions below.
constexpr double kFunction = 0x1p-18;

class Call {
 public:
  Call(const std::map<std::string, Place>& places, const std::map<std::string, double>& scalars)
      : places_(places), scalars_(scalars) {}

  const Place& place(const std::string& name) const { return places_.at(name); }
  bool has(const std::string& name) const { return places_.count(name) > 0; }
  double scalar(const std::string& name, double otherwise) const {
    const auto found = scalars_.find(name);
    return found == scalars_.end() ? otherwise : found->second;
  }

  void Unary(const std::function<Number(Number)>& f) const {
    const Place& out = place("out");
    const Place x = place("x").BroadcastTo(out.shape);
    for (int64_t i = 0; i < out.size(); ++i) out.Store(i, f(x.Load(i)));
  }
  void Binary(const std::function<Number(Number, Number)>& f) const {
    const Place& out = place("out");
    const Place x = place("x").BroadcastTo(out.shape), y = place("y").BroadcastTo(out.shape);
    for (int64_t i = 0; i < out.size(); ++i) out.Store(i, f(x.Load(i), y.Load(i)));
  }
  void Constant(double value) const {
    const Place& out = place("out");
    for (int64_t i = 0; i < out.size(); ++i) out.Store(i, {value, 0});
  }

 private:
  const std::map<std::string, Place>& places_;
  const std::map<std::string, double>& scalars_;
};

// Adds the rounding of a result of that size, unless the inputs are exact.
Number Rounded(double value, double error, double size) {
  return {value, error == 0 ? 0 : error + kRounding * size};
}

Number Times(Number a, Number b) {
  const double error =
      std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error;
  return Rounded(a.value * b.value, error, std::fabs(a.value * b.value));
}

Number Plus(Number a, Number b) {
  return Rounded(a.value + b.value, a.error + b.error, std::fabs(a.value) + std::fabs(b.value));
}

void Copy(const Call& call) {
  const Place& out = call.place("out");
  const Place x = call.place("x").BroadcastTo(out.shape);
  for (int64_t i = 0; i < out.size(); ++i) {
    Number number = x.Load(i);
    if (!IsReal(out.dtype)) number.value = std::trunc(number.value);
    out.Store(i, number);
  }
}

// c[i, j] = alpha * sum of a[i, k] * b[k, j] + beta * c[i, j].
void Gemm(const Call& call) {
  const Place &a = call.place("a"), &b = call.place("b"), &c = call.place("c");
  const int64_t m = a.shape[0], k = a.shape[1], n = b.shape[1];
  const double alpha = call.scalar("alpha", 1), beta = call.scalar("beta", 0);
  std::vector<Number> results;
  for (int64_t i = 0; i < m * n; ++i) {
    Number sum;
    for (int64_t j = 0; j < k; ++j) {
      sum = Plus(sum, Times(a.Load(i / n * k + j), b.Load(j * n + i % n)));
    }
    Number result = Times({alpha, 0}, sum);
    if (beta != 0) result = Plus(result, Times({beta, 0}, c.Load(i)));
    results.push_back(result);
  }
  for (int64_t i = 0; i < m * n; ++i) c.Store(i, results[static_cast<size_t>(i)]);
}

void Gemv(const Call& call) {
  const Place &x = call.place("x"), &w = call.place("w"), &out = call.place("out");
  const int64_t n = w.shape[0], k = w.shape[1];
  // A row for all vectors, or one for each of them.
  const int64_t biases = call.has("bias") ? call.place("bias").size() : 0;
  for (int64_t i = 0; i < out.size(); ++i) {
    Number sum = biases != 0 ? call.place("bias").Load(i % biases) : Number{};
    for (int64_t j = 0; j < k; ++j) {
      sum = Plus(sum, Times(x.Load(i / n * k + j), w.Load(i % n * k + j)));
    }
    out.Store(i, sum);
  }
}

void Embedding(const Call& call) {
  const Place &ids = call.place("ids"), &table = call.place("table"), &out = call.place("out");
  const int64_t d = table.shape[1];
  for (int64_t i = 0; i < out.size(); ++i) {
    const auto row = static_cast<int64_t>(ids.Load(i / d).value);
    out.Store(i, table.Load(row * d + i % d));
  }
}

// new [B, N, S, D], cache [B, N, L, D].
void KvAppend(const Call& call) {
  const Place &rows = call.place("new"), &cache = call.place("cache");
  const auto pos = static_cast<int64_t>(call.scalar("pos", 0));
  const int64_t s = rows.shape[2], d = rows.shape[3], l = cache.shape[2];
  for (int64_t i = 0; i < rows.size(); ++i) {
    const int64_t head = i / (s * d), row = i / d % s;
    cache.Store((head * l + pos + row) * d + i % d, rows.Load(i));
  }
}

// Calls f(index in out, index in the reduced axes, element) for each element of x.
void Reduce(const Call& call, const std::function<void(int64_t, int64_t, Number)>& f) {
  const Place& x = call.place("x");
  const auto axes = static_cast<uint32_t>(call.scalar("axes", 0));
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t kept = 0, reduced = 0, kept_scale = 1, reduced_scale = 1, rest = i;
    for (size_t axis = x.shape.size(); axis-- > 0;) {
      const bool gone = (axes >> axis & 1) != 0;
      int64_t& at = gone ? reduced : kept;
      int64_t& scale = gone ? reduced_scale : kept_scale;
      at += rest % x.shape[axis] * scale;
      scale *= x.shape[axis];
      rest /= x.shape[axis];
    }
    f(kept, reduced, x.Load(i));
  }
}

void Sum(const Call& call) {
  const Place& out = call.place("out");
  std::vector<Number> sums(static_cast<size_t>(out.size()));
  Reduce(call, [&](int64_t at, int64_t, Number number) {
    sums[static_cast<size_t>(at)] = Plus(sums[static_cast<size_t>(at)], number);
  });
  for (int64_t i = 0; i < out.size(); ++i) out.Store(i, sums[static_cast<size_t>(i)]);
}

void Largest(const Call& call, bool index) {
  const Place& out = call.place("out");
  struct Best {
    int64_t index = -1;
    Number number;
  };
  std::vector<Best> best(static_cast<size_t>(out.size()));
  Reduce(call, [&](int64_t at, int64_t i, Number number) {
    Best& so_far = best[static_cast<size_t>(at)];
    if (so_far.index >= 0 && number.value <= so_far.number.value) return;
    so_far = {i, number};
  });
  for (int64_t i = 0; i < out.size(); ++i) {
    const Best& found = best[static_cast<size_t>(i)];
    out.Store(i, index ? Number{static_cast<double>(found.index), 0} : found.number);
  }
}

// The functions below may have a small error, also for exact inputs.
Number Inexact(double value, double error) {
  return {value, error + kFunction * (1 + std::fabs(value))};
}

void Softmax(const Call& call) {
  const Place &x = call.place("x"), &out = call.place("out");
  const int64_t columns = x.shape.back();
  for (int64_t row = 0; row < x.size() / columns; ++row) {
    double largest = -INFINITY, sum = 0, error = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const Number number = x.Load(row * columns + c);
      largest = std::max(largest, number.value);
      error = std::max(error, number.error);
    }
    for (int64_t c = 0; c < columns; ++c)
      sum += std::exp(x.Load(row * columns + c).value - largest);
    // The sum of the partial derivatives of each result is at most 1/2.
    for (int64_t c = 0; c < columns; ++c) {
      out.Store(row * columns + c,
                Inexact(std::exp(x.Load(row * columns + c).value - largest) / sum, error));
    }
  }
}

void RmsNorm(const Call& call) {
  const Place &x = call.place("x"), &w = call.place("w"), &out = call.place("out");
  const int64_t columns = x.shape.back();
  for (int64_t row = 0; row < x.size() / columns; ++row) {
    double squares = 0, error = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const Number number = x.Load(row * columns + c);
      squares += number.value * number.value;
      error = std::max(error, number.error);
    }
    const double n = static_cast<double>(columns);
    const double root = std::sqrt(squares / n + call.scalar("eps", 1e-6));
    for (int64_t c = 0; c < columns; ++c) {
      const Number scale = w.Load(c);
      const double normed = x.Load(row * columns + c).value / root;
      const double slope = std::fabs(scale.value) * (1 + std::sqrt(n)) / root;
      out.Store(row * columns + c,
                Inexact(normed * scale.value, slope * error + std::fabs(normed) * scale.error));
    }
  }
}

// q [1, 1, S, D], k [1, 1, L, D], v [1, 1, L, E]; exact inputs.
void Attention(const Call& call) {
  const Place &q = call.place("q"), &k = call.place("k"), &v = call.place("v");
  const Place& out = call.place("out");
  const int64_t d = q.shape[3], e = v.shape[3];
  const auto given = static_cast<int64_t>(call.scalar("kv_len", -1));
  const int64_t keys = given < 0 ? k.shape[2] : given;
  for (int64_t s = 0; s < q.shape[2]; ++s) {
    std::vector<double> weights;
    double largest = -INFINITY, sum = 0;
    for (int64_t row = 0; row < keys; ++row) {
      double score = 0;
      for (int64_t i = 0; i < d; ++i) score += q.Load(s * d + i).value * k.Load(row * d + i).value;
      weights.push_back(score * call.scalar("scale", 1));
      largest = std::max(largest, weights.back());
    }
    for (double& weight : weights) sum += weight = std::exp(weight - largest);
    for (int64_t column = 0; column < e; ++column) {
      double value = 0, size = 0;
      for (int64_t row = 0; row < keys; ++row) {
        const double element = v.Load(row * e + column).value;
        value += weights[static_cast<size_t>(row)] * element;
        size = std::max(size, std::fabs(element));
      }
      // Scores of some thousands have float32's error, and the exponential function makes a
      // relative error of it.
      out.Store(s * e + column, Inexact(keys == 0 ? 0 : value / sum, 0x1p-12 * size));
    }
  }
}

using Implementation = std::function<void(const Call&)>;
struct Operator {
  std::vector<std::string> parameters;
  Implementation execute;
};

Implementation Function(double (*f)(double), double slope) {
  return [f, slope](const Call& call) {
    call.Unary([&](Number x) { return Inexact(f(x.value), slope * x.error); });
  };
}

// The error of a choice between numbers is at most the larger one of theirs.
Implementation Choice(double (*f)(double, double)) {
  return [f](const Call& call) {
    call.Binary([&](Number x, Number y) {
      return Number{f(x.value, y.value), std::max(x.error, y.error)};
    });
  };
}

void AddScaled(const Call& call, double sign) {
  const double alpha = sign * call.scalar("alpha", 1);
  call.Binary([&](Number x, Number y) { return Plus(x, Times({alpha, 0}, y)); });
}

const std::map<std::string, Operator>& Operators() {
  static const auto* const operators = new std::map<std::string, Operator>{
      {"add", {{"x", "y", "out", "alpha"}, [](const Call& c) { AddScaled(c, 1); }}},
      {"sub", {{"x", "y", "out", "alpha"}, [](const Call& c) { AddScaled(c, -1); }}},
      {"mul", {{"x", "y", "out"}, [](const Call& c) { c.Binary(Times); }}},
      {"maximum", {{"x", "y", "out"}, Choice([](double x, double y) { return std::max(x, y); })}},
      {"minimum", {{"x", "y", "out"}, Choice([](double x, double y) { return std::min(x, y); })}},
      {"relu",
       {{"x", "out"},
        [](const Call& c) {
          c.Unary([](Number x) { return Number{std::max(x.value, 0.0), x.error}; });
        }}},
      {"neg",
       {{"x", "out"},
        [](const Call& c) { c.Unary([](Number x) {
                              return Number{-x.value, x.error};
                            }); }}},
      {"abs",
       {{"x", "out"},
        [](const Call& c) {
          c.Unary([](Number x) { return Number{std::fabs(x.value), x.error}; });
        }}},
      {"clamp",
       {{"x", "out", "lo", "hi"},
        [](const Call& c) {
          const double lo = c.scalar("lo", -INFINITY), hi = c.scalar("hi", INFINITY);
          c.Unary([&](Number x) { return Number{std::min(std::max(x.value, lo), hi), x.error}; });
        }}},
      {"copy", {{"x", "out"}, Copy}},
      {"fill", {{"out", "value"}, [](const Call& c) { c.Constant(c.scalar("value", 0)); }}},
      {"zero", {{"out"}, [](const Call& c) { c.Constant(0); }}},
      {"gemm", {{"a", "b", "c", "alpha", "beta"}, Gemm}},
      {"gemv", {{"x", "w", "bias", "out"}, Gemv}},
      {"embedding", {{"ids", "table", "out"}, Embedding}},
      {"kv_append", {{"new", "cache", "pos"}, KvAppend}},
      {"sum", {{"x", "out", "axes"}, Sum}},
      {"max", {{"x", "out", "axes"}, [](const Call& c) { Largest(c, false); }}},
      {"argmax", {{"x", "out", "axes"}, [](const Call& c) { Largest(c, true); }}},
      {"tanh", {{"x", "out"}, Function([](double x) { return std::tanh(x); }, 1)}},
      {"sigmoid", {{"x", "out"}, Function([](double x) { return 1 / (1 + std::exp(-x)); }, 0.25)}},
      {"silu", {{"x", "out"}, Function([](double x) { return x / (1 + std::exp(-x)); }, 1.1)}},
      {"softmax", {{"x", "out"}, Softmax}},
      {"rmsnorm", {{"x", "w", "out", "eps"}, RmsNorm}},
      {"attention", {{"q", "k", "v", "mask", "out", "scale", "causal", "kv_len"}, Attention}},
  };
  return *operators;
}

}  // namespace

const std::vector<std::string>& ParametersOf(const std::string& op) {
  static const std::vector<std::string>* const none = new std::vector<std::string>;
  const auto found = Operators().find(op);
  return found == Operators().end() ? *none : found->second.parameters;
}

void ExecuteOperator(const std::string& op, const std::map<std::string, Place>& places,
                     const std::map<std::string, double>& scalars) {
  Operators().at(op).execute(Call(places, scalars));
}

}  // namespace resident::testing
