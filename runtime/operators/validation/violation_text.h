// Describes the violation that the checked build of an operator reported.
//
//   "touched element 1024 of 'out', which has 1024 elements. Fix: ..."
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_VIOLATION_TEXT_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_VIOLATION_TEXT_H_

#include <string>

#include "kernels/sdk/checks.h"
#include "runtime/model/signature.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// `example` is what the operator was run on.
std::string ViolationText(const Violation& violation, const Signature& signature,
                          const Example& example);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_VIOLATION_TEXT_H_
