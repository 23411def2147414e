// Mnemonics and operands of the FLUX instructions, for tools that read or write them.
//
// Thread safety: immutable data.
#ifndef RESIDENT_RUNTIME_FLUX_INSTRUCTION_TABLE_H_
#define RESIDENT_RUNTIME_FLUX_INSTRUCTION_TABLE_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace resident::flux {

// What stands in the bytes behind the opcode. "x" is a byte without a meaning.
enum class Operands : uint8_t {
  kNone,            //
  kByte,            // n           a number that is no register
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

// All instructions, by opcode.
std::span<const Instruction> Instructions();

// nullptr when there is none. Mnemonics are compared without regard to case.
const Instruction* FindInstruction(uint8_t opcode);
const Instruction* FindInstruction(std::string_view mnemonic);

// Bytes of the instruction with this opcode byte.
uint32_t InstructionLength(uint8_t opcode);

// What an error code means, e.g. "division by zero".
std::string_view ErrorName(uint32_t error);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_INSTRUCTION_TABLE_H_
