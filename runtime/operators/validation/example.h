// Example: inputs of an operator, with the outputs that they must give or without any.
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_

#include <string>
#include <vector>

#include "kernels/layout/task.h"
#include "runtime/model/signature.h"

namespace resident {

struct ExampleValue {
  DType dtype = DType::kF32;
  Shape shape;
  // Dense elements, little-endian, row-major. A scalar's value is one element. Of an
  // output: what is expected, or empty. Of an inout: what it holds at first, followed by
  // what is expected, if that is said of the outputs.
  std::string data;
};

struct Example {
  // One for each parameter of the signature, in its order; scalars at the end that have
  // a default may be left out.
  std::vector<ExampleValue> values;
  // |out - expected| <= absolute + relative * |expected|. Both 0: the dtype's default.
  double relative_tolerance = 0;
  double absolute_tolerance = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_
