// The jump table of the first generation: the built-in and the test operators.
#include "kernels/layout/ring_layout.h"
#include "kernels/ops/builtin.h"
#include "kernels/sdk/operator.h"

#define DECLARE(symbol, name, summary, signature, split) \
  RESIDENT_OPERATOR(symbol)(resident::Block&, const resident::Args&);
RESIDENT_BUILTIN_OPERATORS(DECLARE)
RESIDENT_TEST_OPERATORS(DECLARE)
#undef DECLARE

namespace resident {

// Each operator has two slots; the first one contains the first version.
#define SLOTS(symbol, name, summary, signature, split) &RESIDENT_OPERATOR_SYMBOL(symbol), nullptr,
extern __constant__ OperatorFunction kJumpTable[kMaxOperatorSlots];
__constant__ OperatorFunction kJumpTable[kMaxOperatorSlots] = {RESIDENT_BUILTIN_OPERATORS(SLOTS)
                                                                   RESIDENT_TEST_OPERATORS(SLOTS)};
#undef SLOTS

}  // namespace resident
