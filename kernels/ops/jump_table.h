// The CPU engine's jump table: the function in each operator slot.
//
// Built-in operator i is in slot 2 * i, and the next slot is its standby slot; the test
// operators follow the built-in ones. The GPU's table (kernels/resident) is generated
// from the same list.
#ifndef RESIDENT_KERNELS_OPS_JUMP_TABLE_H_
#define RESIDENT_KERNELS_OPS_JUMP_TABLE_H_

#include "kernels/sdk/operator.h"

namespace resident {

// Returns the function of `slot`; null for an empty slot.
OperatorFunction FindBuiltinFunction(u32 slot, bool test_operators);

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_JUMP_TABLE_H_
