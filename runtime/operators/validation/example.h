// Example: inputs of an operator, with or without expected outputs.
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
  // Dense elements, little-endian, row-major. A scalar's value is one element. For an
  // output: the expected data, or empty. For an inout: the initial data, followed by the
  // expected data if the outputs have any.
  std::string data;
};

struct Example {
  // One for each parameter of the signature, in its order; trailing scalars with a default
  // may be omitted.
  std::vector<ExampleValue> values;
  // |out - expected| <= absolute + relative * |expected|. Both 0: the dtype's default.
  double relative_tolerance = 0;
  double absolute_tolerance = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_
