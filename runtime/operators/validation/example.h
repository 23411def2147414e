// Example: inputs of an operator, with or without expected outputs; how examples are checked and
// made.
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/layout/task.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"

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

// Checks before the compilation whether the examples of an install fit its
// signature and the validation's staging memory.
// INVALID_ARGUMENT: the message names the example (counted from 1) and the parameter.
absl::Status CheckExamples(const std::string& operator_name, const Signature& signature,
                           const std::vector<Example>& examples);

// Generates examples from a signature, for an operator that was installed without any:
// small tensors of every size that is a hazard (0, 1, one that does not fill a block, one
// of several chunks), with the same inputs every time.
//
// Their outputs have no expected data. They find errors in memory accesses, not wrong
// results.
std::vector<Example> GenerateExamples(const Signature& signature, const SplitRule& split);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_H_
