// The jump table of the first generation: the built-in and the test operators; and the limits of
// tasks.
#include "kernels/layout/ring_layout.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/sdk/operator.h"

#define RESIDENT_OPERATOR_ROW(family, symbol, ...) RESIDENT_OPERATOR_ENTRY(symbol);
#include "kernels/ops/builtin_operators.inc"
#define RESIDENT_OPERATOR_ROW(family, symbol, ...) RESIDENT_OPERATOR_ENTRY(symbol);
#include "kernels/ops/test_operators.inc"

namespace resident {

extern __constant__ OperatorFunction kJumpTable[kMaxOperatorSlots];
// Each operator has two slots; the first one contains the first version.
__constant__ OperatorFunction kJumpTable[kMaxOperatorSlots] = {
#define RESIDENT_OPERATOR_ROW(family, symbol, ...) &RESIDENT_OPERATOR_SYMBOL(symbol), nullptr,
#include "kernels/ops/builtin_operators.inc"
#define RESIDENT_OPERATOR_ROW(family, symbol, ...) &RESIDENT_OPERATOR_SYMBOL(symbol), nullptr,
#include "kernels/ops/test_operators.inc"
};

// The engine writes it with each generation.
extern __constant__ u32 kTaskLimits[kMaxOperatorSlots];
__constant__ u32 kTaskLimits[kMaxOperatorSlots] = {};

}  // namespace resident
