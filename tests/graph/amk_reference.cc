#include "tests/graph/amk_reference.h"

#include <algorithm>
#include <cmath>

#include "tests/support/float64.h"

namespace resident::testing::amk {

Reals Sum(const Reals& x, const Reals& y) {
  return Map(x, y, [](double a, double b) { return a + b; });
}

Reals SiluTimes(const Reals& gate, const Reals& up) {
  return Map(gate, up, [](double g, double u) { return Silu(g) * u; });
}

Reals Product(const Reals& x, const Reals& w, size_t k, const Reals& bias) {
  Reals out;
  for (size_t row = 0; row < x.size(); row += k) {
    for (size_t n = 0; n < w.size() / k; ++n) {
      double sum = bias.empty() ? 0 : bias[n];
      for (size_t i = 0; i < k; ++i) sum += x[row + i] * w[n * k + i];
      out.push_back(sum);
    }
  }
  return out;
}

Reals Dequantized(const Reals& q, const Reals& scales, const Reals& zeros, size_t columns,
                  size_t group) {
  const size_t groups = (columns + group - 1) / group;
  Reals out;
  for (size_t i = 0; i < q.size(); ++i) {
    const size_t g = i / columns * groups + i % columns / group;
    out.push_back((q[i] - zeros[g]) * scales[g]);
  }
  return out;
}

Reals Rotated(const Reals& x, const Reals& positions, size_t dim, double theta) {
  const size_t half = dim / 2;
  const size_t row = x.size() / positions.size();
  Reals out(x.size());
  for (size_t at = 0; at < x.size(); at += dim) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = positions[at / row] *
                           std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
      const double a = x[at + i], b = x[at + half + i];
      out[at + i] = a * std::cos(angle) - b * std::sin(angle);
      out[at + half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return out;
}

Reals Attend(const Heads& h, const Reals& q, const Reals& k, const Reals& v, size_t first,
             size_t end) {
  Reals out;
  for (size_t head = 0; head < h.heads; ++head) {
    const size_t kv_head = head / (h.heads / h.kv_heads);
    Reals sums(h.dim, 0);
    double total = 0;
    for (size_t row = first; row < end; ++row) {
      const size_t at = (row * h.kv_heads + kv_head) * h.dim;
      double score = 0;
      for (size_t d = 0; d < h.dim; ++d) score += q[head * h.dim + d] * k[at + d];
      const double weight = std::exp(score * h.scale);
      total += weight;
      for (size_t d = 0; d < h.dim; ++d) sums[d] += weight * v[at + d];
    }
    for (const double sum : sums) out.push_back(sum / total);
  }
  return out;
}

Reals Softmax(const Reals& x, size_t n, size_t inner) {
  Reals out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t first = i / (n * inner) * n * inner + i % inner;
    double total = 0;
    for (size_t j = 0; j < n; ++j) total += std::exp(x[first + j * inner]);
    out[i] = std::exp(x[i]) / total;
  }
  return out;
}

Reals Largest(const Reals& x, size_t columns) {
  Reals out;
  for (auto row = x.begin(); row != x.end(); row += static_cast<ptrdiff_t>(columns)) {
    out.push_back(
        static_cast<double>(std::max_element(row, row + static_cast<ptrdiff_t>(columns)) - row));
  }
  return out;
}

Reals Slice(const Reals& x, size_t first, size_t count) {
  const auto begin = x.begin() + static_cast<ptrdiff_t>(first);
  return {begin, begin + static_cast<ptrdiff_t>(count)};
}

}  // namespace resident::testing::amk
