// Memory of the interpreter: bytes, and for each element the bound of its error.
//
// Thread safety: plain values.
//
//   Place place{&memory, v1::DTYPE_BF16, {2, 3}, {6, 2}, 0};
//   place.Store(1, {0.5, 0});
//   place.Load(1).value;
#ifndef RESIDENT_TESTS_GRAPH_INTERPRETER_MEMORY_H_
#define RESIDENT_TESTS_GRAPH_INTERPRETER_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "resident/v1/types.pb.h"

namespace resident::testing {

int64_t ElementBytes(v1::DType dtype);
bool IsReal(v1::DType dtype);
// Of an element in little-endian bytes.
double DecodeNumber(v1::DType dtype, const char* bytes);
// Rounds to the nearest value, ties to even; an integer must be in the range of its type.
void EncodeNumber(v1::DType dtype, double value, char* bytes);
// Distance between two neighbours of the type near the value.
double Spacing(v1::DType dtype, double value);

struct Number {
  double value = 0;
  double error = 0;
};

struct Memory {
  std::string bytes;
  // By byte, of the element that begins there.
  std::vector<double> errors;

  // Without a value: reading it gives NaN, or -1.
  void Reset(int64_t size) {
    bytes.assign(static_cast<size_t>(size), '\xff');
    errors.assign(static_cast<size_t>(size), 0);
  }
};

// A tensor or a view during a step.
struct Place {
  Memory* memory = nullptr;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<int64_t> shape;
  // Bytes.
  std::vector<int64_t> strides;
  int64_t offset = 0;

  int64_t size() const {
    int64_t product = 1;
    for (const int64_t dim : shape) product *= dim;
    return product;
  }
  // The byte of element i in row-major order.
  int64_t At(int64_t i) const {
    int64_t at = offset;
    for (size_t d = shape.size(); d-- > 0;) {
      at += i % shape[d] * strides[d];
      i /= shape[d];
    }
    return at;
  }
  Number Load(int64_t i) const {
    const auto at = static_cast<size_t>(At(i));
    return {DecodeNumber(dtype, memory->bytes.data() + at), memory->errors[at]};
  }
  // A value with an error may be rounded to a neighbour.
  void Store(int64_t i, Number number) const {
    const auto at = static_cast<size_t>(At(i));
    EncodeNumber(dtype, number.value, memory->bytes.data() + at);
    memory->errors[at] = number.error == 0 ? 0 : number.error + Spacing(dtype, number.value);
  }
  // As PyTorch broadcasts it to a shape.
  Place BroadcastTo(const std::vector<int64_t>& to) const {
    Place place = *this;
    place.shape = to;
    place.strides.assign(to.size(), 0);
    const size_t skipped = to.size() - shape.size();
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d] == to[skipped + d]) place.strides[skipped + d] = strides[d];
    }
    return place;
  }
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_INTERPRETER_MEMORY_H_
