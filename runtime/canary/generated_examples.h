// Examples made from a signature, for an operator that came without any: small tensors
// of every size that has a hazard (0, 1, one that fills no block, one of several chunks),
// with inputs that are the same every time.
//
// Nothing is expected of their outputs. They find what an operator does to memory, not
// whether its results are right.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_CANARY_GENERATED_EXAMPLES_H_
#define RESIDENT_RUNTIME_CANARY_GENERATED_EXAMPLES_H_

#include <vector>

#include "runtime/canary/example.h"
#include "runtime/registry/signature.h"
#include "runtime/registry/split_rule.h"

namespace resident {

std::vector<Example> GenerateExamples(const Signature& signature, const SplitRule& split);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_CANARY_GENERATED_EXAMPLES_H_
