// Looks at the PTX that NVRTC made, for code that the compiler has dropped.
//
// A compiler that takes code for unreachable by mistake ends a function where that code began,
// without a return. The assembler after it adds one, so that the machine code of such a
// function looks complete: it returns without having done its work. Only the PTX shows it.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_COMPILE_INSPECT_PTX_H_
#define RESIDENT_RUNTIME_COMPILE_INSPECT_PTX_H_

#include <string_view>

#include "absl/status/status.h"

namespace resident {

// INVALID_ARGUMENT: control can reach the end of a function; names the function.
absl::Status CheckPtxFunctionsReturn(std::string_view ptx);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_INSPECT_PTX_H_
