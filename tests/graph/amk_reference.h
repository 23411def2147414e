// References of AMK's opcodes in float64. They follow AMK's description of each opcode and know
// nothing of the operators. Tensors are dense, row after row.
//
// Thread safety: functions without state.
//
//   const Reals expected = Product(x, w, /*k=*/16, bias);
#ifndef RESIDENT_TESTS_GRAPH_AMK_REFERENCE_H_
#define RESIDENT_TESTS_GRAPH_AMK_REFERENCE_H_

#include <cstddef>
#include <vector>

namespace resident::testing::amk {

using Reals = std::vector<double>;

template <typename F>
Reals Map(const Reals& x, F f) {
  Reals out;
  for (const double value : x) out.push_back(f(value));
  return out;
}

template <typename F>
Reals Map(const Reals& x, const Reals& y, F f) {
  Reals out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(f(x[i], y[i]));
  return out;
}

Reals Sum(const Reals& x, const Reals& y);
Reals SiluTimes(const Reals& gate, const Reals& up);

// x [rows, k] by the transposed w [n, k], and a bias [n], or none if it is empty.
Reals Product(const Reals& x, const Reals& w, size_t k, const Reals& bias = {});

// q [rows, columns], with a scale and a zero for each group of columns of each row.
Reals Dequantized(const Reals& q, const Reals& scales, const Reals& zeros, size_t columns,
                  size_t group);

// x [positions, heads, dim]: element i is rotated with element i + dim / 2.
Reals Rotated(const Reals& x, const Reals& positions, size_t dim, double theta);

struct Heads {
  size_t heads, kv_heads, dim;
  double scale;
};

// q [heads, dim], k and v [rows, kv_heads, dim]: the rows from `first` on, before `end`.
Reals Attend(const Heads& h, const Reals& q, const Reals& k, const Reals& v, size_t first,
             size_t end);

// Along the dimension in the middle of x [outer, n, inner].
Reals Softmax(const Reals& x, size_t n, size_t inner);

// Of each row: the first of its largest elements.
Reals Largest(const Reals& x, size_t columns);

Reals Slice(const Reals& x, size_t first, size_t count);

}  // namespace resident::testing::amk

#endif  // RESIDENT_TESTS_GRAPH_AMK_REFERENCE_H_
