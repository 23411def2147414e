// Compares elements with expected elements, by type and within a tolerance.
//
//   |got - expected| <= absolute + relative * |expected|
//
// NaN equals NaN, an infinity equals itself, and zeros of both signs are equal. Integers
// are compared without loss, and exactly unless a tolerance is given.
//
// Thread safety: pure functions.
//
//   Comparison c = Compare(DType::kF32, got, expected, count, DefaultTolerance(DType::kF32));
//   if (c.differing != 0) ... c.first, c.got, c.expected
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_COMPARE_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_COMPARE_H_

#include <cstdint>
#include <string>

#include "kernels/layout/task.h"
#include "kernels/sdk/checks.h"
#include "runtime/model/signature.h"
#include "runtime/operators/validation/example.h"

namespace resident {

struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

// Relative and absolute: f32 1e-5, f16 2e-3, bf16 1e-2, f64 1e-12; integers exactly.
Tolerance DefaultTolerance(DType dtype);

struct Comparison {
  uint64_t differing = 0;
  // Describes the first element that differs.
  uint64_t first = 0;
  std::string got;
  std::string expected;
  // The largest |got - expected|; infinity if one of them is not finite.
  double max_error = 0;
};

// Reads `count` dense elements of each; alignment is not required.
Comparison Compare(DType dtype, const void* got, const void* expected, uint64_t count,
                   const Tolerance& tolerance);

// The element as a number, for messages: "0.1", "nan", "-7".
std::string ElementText(DType dtype, const void* element);

// Describes the violation that the checked build of an operator reported.
//
//   "touched element 1024 of 'out', which has 1024 elements. Fix: ..."

// `example` is what the operator was run on.
std::string ViolationText(const Violation& violation, const Signature& signature,
                          const Example& example);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_COMPARE_H_
