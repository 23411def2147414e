// Assembly text to FLUX bytecode.
//
//   absl::StatusOr<Bytecode> code = Assemble("  MOVI R0, 42\n  HALT\n");
//
// Syntax, line by line (docs/flux.md has a table of the instructions):
//
//   label:  MNEMONIC operand, operand   ; comment
//
//   * A line has any number of labels, then at most one instruction or directive.
//   * Mnemonics and registers (R0 to R15) are written in either case.
//   * A label is a letter or _ followed by letters, digits, _ or '.'; case matters. It
//     stands for the address of what follows, and may be used before it is defined.
//     A register's name is no label.
//   * A number is decimal or hexadecimal (0x2a), with an optional sign. A signed
//     operand also takes its bit pattern in hexadecimal: MOVI R0, 0xff is MOVI R0, -1.
//   * The target of JZ, JNZ, JLT, JGT, JMP and CALL is a label, or a signed number of
//     bytes from the start of the instruction itself. The target of LOOP is a label at
//     or before it, or an unsigned number of bytes back from its start.
//   * .byte n, n, ...   places bytes as they are (-128 to 255).
//   * Bytes of an instruction that have no meaning are 0.
//
// Errors: InvalidArgument with line and column, e.g. "line 3, column 9: register R16
// does not exist. Fix: use R0 to R15". The first error is reported.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_FLUX_ASSEMBLER_H_
#define RESIDENT_RUNTIME_FLUX_ASSEMBLER_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/flux/run.h"

namespace resident::flux {

absl::StatusOr<Bytecode> Assemble(std::string_view source);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_ASSEMBLER_H_
