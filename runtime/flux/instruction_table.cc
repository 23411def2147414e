#include "runtime/flux/instruction_table.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "kernels/flux/isa.h"

namespace resident::flux {
namespace {

constexpr auto kInstructions = std::to_array<Instruction>({
    {"HALT", kHalt, Operands::kNone},
    {"NOP", kNop, Operands::kNone},
    {"RET", kRet, Operands::kNone},
    {"INC", kInc, Operands::kRegister},
    {"DEC", kDec, Operands::kRegister},
    {"NOT", kNot, Operands::kRegister},
    {"NEG", kNeg, Operands::kRegister},
    {"PUSH", kPush, Operands::kRegister},
    {"POP", kPop, Operands::kRegister},
    {"STRIPCONF", kStripconf, Operands::kByte},
    {"MOVI", kMovi, Operands::kRegisterImm8},
    {"ADDI", kAddi, Operands::kRegisterImm8},
    {"SUBI", kSubi, Operands::kRegisterImm8},
    {"ADD", kAdd, Operands::kThreeRegisters},
    {"SUB", kSub, Operands::kThreeRegisters},
    {"MUL", kMul, Operands::kThreeRegisters},
    {"DIV", kDiv, Operands::kThreeRegisters},
    {"MOD", kMod, Operands::kThreeRegisters},
    {"AND", kAnd, Operands::kThreeRegisters},
    {"OR", kOr, Operands::kThreeRegisters},
    {"XOR", kXor, Operands::kThreeRegisters},
    {"SHL", kShl, Operands::kThreeRegisters},
    {"SHR", kShr, Operands::kThreeRegisters},
    {"MIN", kMin, Operands::kThreeRegisters},
    {"MAX", kMax, Operands::kThreeRegisters},
    {"CMP_EQ", kCmpEq, Operands::kThreeRegisters},
    {"CMP_LT", kCmpLt, Operands::kThreeRegisters},
    {"CMP_GT", kCmpGt, Operands::kThreeRegisters},
    {"CMP_NE", kCmpNe, Operands::kThreeRegisters},
    {"MOV", kMov, Operands::kTwoRegisters},
    {"JZ", kJz, Operands::kBranch8},
    {"JNZ", kJnz, Operands::kBranch8},
    {"JLT", kJlt, Operands::kBranch8},
    {"JGT", kJgt, Operands::kBranch8},
    {"MOVI16", kMovi16, Operands::kRegisterImm16},
    {"JMP", kJmp, Operands::kBranch16},
    {"LOOP", kLoop, Operands::kLoop},
    {"CALL", kCall, Operands::kBranch16},
    {"TELL", kTell, Operands::kNone},
    {"ASK", kAsk, Operands::kNone},
    {"BCAST", kBcast, Operands::kNone},
    {"RECV", kRecv, Operands::kNone},
});

constexpr std::array<std::string_view, kErrors> kErrorNames = {
    "none",           "division by zero", "stack overflow",   "stack underflow",
    "invalid opcode", "cycle limit",      "pc out of bounds", "agent messaging not supported",
    "bad register",
};

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::toupper(x) == std::toupper(y);
  });
}

}  // namespace

std::span<const Instruction> Instructions() { return kInstructions; }

const Instruction* FindInstruction(uint8_t opcode) {
  const auto it = std::find_if(kInstructions.begin(), kInstructions.end(),
                               [&](const Instruction& i) { return i.opcode == opcode; });
  return it == kInstructions.end() ? nullptr : &*it;
}

const Instruction* FindInstruction(std::string_view mnemonic) {
  const auto it =
      std::find_if(kInstructions.begin(), kInstructions.end(),
                   [&](const Instruction& i) { return EqualsIgnoringCase(i.mnemonic, mnemonic); });
  return it == kInstructions.end() ? nullptr : &*it;
}

uint32_t InstructionLength(uint8_t opcode) { return LengthOf(opcode); }

std::string_view ErrorName(uint32_t error) {
  return error < kErrorNames.size() ? kErrorNames[error] : "unknown error";
}

}  // namespace resident::flux
