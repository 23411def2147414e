// Mnemonics and operands of the FLUX instructions, for tools that read or write them.
//
// Thread safety: immutable data.
#ifndef RESIDENT_RUNTIME_FLUX_INSTRUCTION_TABLE_H_
#define RESIDENT_RUNTIME_FLUX_INSTRUCTION_TABLE_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace resident::flux {

// The bytes after the opcode. "x" is an unused byte.
enum class Operands : uint8_t {
  kNone,            //
  kByte,            // n           a number that is not a register
  kRegister,        // rd
  kRegisterImm8,    // rd i8
  kRegisterImm16,   // rd lo hi    signed
  kTwoRegisters,    // rd rs x
  kThreeRegisters,  // rd rs rt
  kBranch8,         // rd i8 x     target relative to the instruction
  kBranch16,        // x lo hi     target relative to the instruction, signed
  kLoop,            // rd lo hi    distance back from the instruction, unsigned
};

struct Instruction {
  std::string_view mnemonic;
  uint8_t opcode;
  Operands operands;
};

// All instructions, sorted by opcode.
std::span<const Instruction> Instructions();

// nullptr: there is no such instruction. Mnemonics are compared case-insensitively.
const Instruction* FindInstruction(uint8_t opcode);
const Instruction* FindInstruction(std::string_view mnemonic);

// Length in bytes of the instruction with this opcode.
uint32_t InstructionLength(uint8_t opcode);

// The meaning of an error code, e.g. "division by zero".
std::string_view ErrorName(uint32_t error);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_INSTRUCTION_TABLE_H_
