// The reference interpreter: the specification (docs/flux.md) in the simplest form. It
// shares no code with the engines' interpreter, so that the two can be compared. It is
// slow; use it only in tests.
//
//   RunResult expected = RunReference(bytecode, options);
//
// Thread safety: a pure function.
#ifndef RESIDENT_TESTS_FLUX_REFERENCE_H_
#define RESIDENT_TESTS_FLUX_REFERENCE_H_

#include "runtime/flux/run.h"

namespace resident::flux {

// REQUIRES: options.max_cycles < 2^32.
RunResult RunReference(const Bytecode& bytecode, const RunOptions& options = {});

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_REFERENCE_H_
