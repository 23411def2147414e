// Generates examples from a signature, for an operator that was installed without any:
// small tensors of every size that is a hazard (0, 1, one that does not fill a block, one
// of several chunks), with the same inputs every time.
//
// Their outputs have no expected data. They find errors in memory accesses, not wrong
// results.
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
