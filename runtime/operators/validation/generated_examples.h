// Examples made from a signature, for an operator that came without any: small tensors
// of every size that has a hazard (0, 1, one that fills no block, one of several chunks),
// with inputs that are the same every time.
//
// Nothing is expected of their outputs. They find what an operator does to memory, not
// whether its results are right.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_GENERATED_EXAMPLES_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_GENERATED_EXAMPLES_H_

#include <vector>

#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "runtime/operators/validation/example.h"

namespace resident {

std::vector<Example> GenerateExamples(const Signature& signature, const SplitRule& split);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_GENERATED_EXAMPLES_H_
