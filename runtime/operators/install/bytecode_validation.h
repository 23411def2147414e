// TryBytecode: runs a FLUX program on its examples, on the calling thread. This is safe:
// the program is data, and its interpreter checks every access.
//
// An example has two values: the initial registers, i32[W], and the expected final values
// of registers 0 to K - 1, i32[K]; W and K are 1 to 16. Without examples the program is run
// once, with all registers 0, and must not meet an invalid opcode or register.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_BYTECODE_VALIDATION_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_BYTECODE_VALIDATION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// INVALID_ARGUMENT: the message names the example, the register, and its actual and
// expected value.
absl::Status TryBytecode(const std::string& program, const std::vector<Example>& examples);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_BYTECODE_VALIDATION_H_
