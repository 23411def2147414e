// FLUX bytecode to assembly text that assembles to the same bytes, whatever they are.
//
//   std::string text = Disassemble(code);    // Assemble(text) == code
//
// The bytes are read from address 0 on, one instruction behind the other. A branch to
// an instruction found this way gets a label; any other target is a distance. What an
// assembler would not produce (unknown opcodes, bad registers, an instruction cut off
// by the end, meaningless bytes that are not 0) is written as .byte, with a comment.
//
// Thread safety: a pure function.
#ifndef RESIDENT_RUNTIME_FLUX_DISASSEMBLER_H_
#define RESIDENT_RUNTIME_FLUX_DISASSEMBLER_H_

#include <string>

#include "runtime/flux/run.h"

namespace resident::flux {

struct DisassemblerOptions {
  // Whether each line ends with a comment: its address and bytes.
  bool addresses = true;
};

std::string Disassemble(const Bytecode& code, const DisassemblerOptions& options = {});

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_DISASSEMBLER_H_
