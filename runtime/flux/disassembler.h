// FLUX bytecode to assembly text. The text assembles to the same bytes for any input.
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
#ifndef RESIDENT_RUNTIME_FLUX_DISASSEMBLER_H_
#define RESIDENT_RUNTIME_FLUX_DISASSEMBLER_H_

#include <string>

#include "runtime/flux/run.h"

namespace resident::flux {

struct DisassemblerOptions {
  // Whether each line ends with a comment that contains its address and bytes.
  bool addresses = true;
};

std::string Disassemble(const Bytecode& code, const DisassemblerOptions& options = {});

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_DISASSEMBLER_H_
