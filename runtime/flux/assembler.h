// Translates assembly text to FLUX bytecode, and back (Disassemble).
//
//   absl::StatusOr<Bytecode> code = Assemble("  MOVI R0, 42\n  HALT\n");
//
// Syntax, line by line (docs/flux.md has a table of the instructions):
//
//   label:  MNEMONIC operand, operand   ; comment
//
//   * A line has any number of labels, then at most one instruction or directive.
//   * Mnemonics and registers (R0 to R15) are written in either case.
//   * A label is a letter or _ followed by letters, digits, _ or '.'; case matters. Its
//     value is the address of what follows, and it may be used before it is defined.
//     A label must not look like a register.
//   * A number is decimal or hexadecimal (0x2a), with an optional sign. A signed
//     operand also accepts its bit pattern in hexadecimal: MOVI R0, 0xff is MOVI R0, -1.
//   * The target of JZ, JNZ, JLT, JGT, JMP and CALL is a label, or a signed number of
//     bytes from the start of the instruction itself. The target of LOOP is a label at
//     or before it, or an unsigned number of bytes back from its start.
//   * .byte n, n, ...   emits these bytes (-128 to 255).
//   * Unused bytes of an instruction are 0.
//
// Errors: INVALID_ARGUMENT with line and column, e.g. "line 3, column 9: register 'R16'
// does not exist. Fix: use R0 to R15". Only the first error is reported.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_FLUX_ASSEMBLER_H_
#define RESIDENT_RUNTIME_FLUX_ASSEMBLER_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/flux/run.h"

namespace resident::flux {

absl::StatusOr<Bytecode> Assemble(std::string_view source);

// Translates FLUX bytecode to assembly text. The text assembles to the same bytes for any input.
//
//   std::string text = Disassemble(code);    // Assemble(text) == code
//
// The bytes are read from address 0, one instruction after the other. A branch to an
// instruction that is found in this way gets a label; other targets are written as
// distances. Bytes that an assembler would not produce (unknown opcodes, bad registers,
// an instruction truncated at the end, unused bytes that are not 0) are written as .byte,
// with a comment.
//
// Thread safety: may be called from any thread.
struct DisassemblerOptions {
  // Whether each line ends with a comment that contains its address and bytes.
  bool addresses = true;
};

std::string Disassemble(const Bytecode& code, const DisassemblerOptions& options = {});

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_ASSEMBLER_H_
