// Searches the PTX that NVRTC made for functions from which the compiler has dropped code, and for
// an operator that the kernel could not call.
//
// If a compiler wrongly treats code as unreachable, it ends the function where that code began,
// without a return. The assembler then adds a return, so that the machine code of the function
// looks complete: it returns without having done its work. The defect is visible in PTX only. So is
// whether the function of an operator keeps its caller's registers (RESIDENT_OPERATOR_ABI).
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_INSPECT_PTX_H_
#define RESIDENT_RUNTIME_COMPILE_INSPECT_PTX_H_

#include <string_view>

#include "absl/status/status.h"

namespace resident {

// INVALID_ARGUMENT: control can reach the end of a function, or the function of an operator is not
// one that RESIDENT_OPERATOR defines; the message names it.
absl::Status CheckPtxFunctions(std::string_view ptx);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_PTX_H_
