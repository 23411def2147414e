// TryBytecode: runs a FLUX program on its examples, on the calling thread. A program
// cannot do harm: it is data, and its interpreter checks what it does.
//
// An example has two values: the initial registers, i32[W], and what registers 0 to K - 1
// must hold at the end, i32[K]; W and K are 1 to 16. Without examples it is run once, from
// registers that are 0, and must not meet an opcode or a register that does not exist.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_BYTECODE_VALIDATION_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_BYTECODE_VALIDATION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// INVALID_ARGUMENT: which example, which register, what it held and what it should have.
absl::Status TryBytecode(const std::string& program, const std::vector<Example>& examples);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_BYTECODE_VALIDATION_H_
