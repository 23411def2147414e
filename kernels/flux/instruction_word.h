// This header encodes a FLUX instruction as one word: checked (Decode), and in the form that the
// interpreter executes (Prepare).
//
//   checked     bits 0-7 opcode or DecodedOperation | 8-15 rd | 16-23 rs or imm8 | 24-31 rt;
//               imm16 is in bits 16-31
//   executable  bits 0-7 Operation | 8-11 rd | 12-15 length | 16-19 rs | 24-27 rt;
//               or a signed immediate in bits 16-31 (unsigned for kLoop)
//
// Decoding performs all checks that do not depend on the run: truncated instructions, unknown
// opcodes, bad registers. Preparing makes one operation of several instructions (INC, DEC, ADDI and
// SUBI are kAddImmediate) and gives the operations adjacent numbers, so that a compiler makes a
// jump table of a switch.
//
// Thread safety: pure functions.
#ifndef RESIDENT_KERNELS_FLUX_INSTRUCTION_WORD_H_
#define RESIDENT_KERNELS_FLUX_INSTRUCTION_WORD_H_

#include "kernels/flux/isa.h"
#include "kernels/layout/platform.h"

namespace resident::flux {

// Operations of decoded words that are not opcodes. Bits 16-31 are the error.
enum DecodedOperation : u8 {
  // Ends the run; counts as a cycle.
  kStopOperation = 0x54,
  // Ends the run before an instruction; does not count as a cycle.
  kEndOperation = 0x55,
};

// Returns the checked word of an instruction. `bytes` are the four bytes at its address,
// the first one in the lowest bits; bytes past the program's end are ignored. `remaining`
// is the number of bytes from its address to the end of the program.
RESIDENT_HOST_DEVICE u32 Decode(u32 bytes, u32 remaining, bool unknown_nop) {
  const u32 opcode = bytes & 0xff;
  const u32 length = LengthOf(opcode);
  if (remaining == 0) return kEndOperation | kErrorNone << 16;
  if (length > remaining) return kEndOperation | kErrorPcOutOfBounds << 16;
  if (!IsValid(opcode)) {
    // A no-op is decoded as a jump to the next instruction.
    return unknown_nop ? kJmp | length << 16 : kStopOperation | kErrorInvalidOpcode << 16;
  }
  u32 registers = HasRegister(opcode) ? 0xf000u : 0;
  if (HasTwoRegisters(opcode)) registers |= 0xf00000u;
  if (HasThreeRegisters(opcode)) registers |= 0xf0000000u;
  if ((bytes & registers) != 0) return kStopOperation | kErrorBadRegister << 16;
  if (opcode >= kTell) return kStopOperation | kErrorAgentMessaging << 16;
  if (opcode == kNop || opcode == kStripconf) return kJmp | length << 16;
  // An instruction without a register uses R0, which is then written back unchanged.
  return HasRegister(opcode) ? bytes : bytes & 0xffff00ffu;
}

// What an executable word does. The length of the instruction is in bits 12-15 of the words of
// kMoveImmediate and kAddImmediate; it is 2 for kNot, kNeg, kPush and kPop, 1 for kReturn and 4 for
// the others.
enum class Operation : u8 {
  kEnd,   // Ends the run before an instruction, with the error in bits 16-31; no cycle.
  kStop,  // Ends the run, with the error in bits 16-31.
  kHalt,
  kMoveImmediate,
  kAddImmediate,
  kMove,
  kNot,
  kNeg,
  kJz,
  kJnz,
  kJlt,
  kJgt,
  kJump,
  kLoop,
  kPush,
  kPop,
  kCall,
  kReturn,
  kDivide,
  kRemainder,
  kUndecoded,  // Only in a ColumnCode: the word is made when it is executed.
  // The three-register instructions other than DIV and MOD, with the numbers of their opcodes: one
  // bit tells them from the others.
  kAdd = flux::kAdd,
  kSub = flux::kSub,
  kMul = flux::kMul,
  kAnd = flux::kAnd,
  kOr = flux::kOr,
  kXor = flux::kXor,
  kShl = flux::kShl,
  kShr = flux::kShr,
  kMin = flux::kMin,
  kMax = flux::kMax,
  kCmpEq = flux::kCmpEq,
  kCmpLt = flux::kCmpLt,
  kCmpGt = flux::kCmpGt,
  kCmpNe = flux::kCmpNe,
};
// The bit of an executable word that arithmetic operations have, and no others.
inline constexpr u32 kArithmeticBit = 0x20;

// The parts of an executable word.
RESIDENT_HOST_DEVICE constexpr Operation OperationOf(u32 word) {
  return static_cast<Operation>(word & 0xff);
}
RESIDENT_HOST_DEVICE constexpr u32 LengthIn(u32 word) { return (word >> 12) & 15; }
RESIDENT_HOST_DEVICE constexpr u32 ImmediateIn(u32 word) {
  return static_cast<u32>(static_cast<i32>(word) >> 16);
}

// Returns the executable word of a checked word.
RESIDENT_HOST_DEVICE u32 Prepare(u32 checked) {
  const u32 opcode = checked & 0xff;
  const bool arithmetic = HasThreeRegisters(opcode) && opcode != kDiv && opcode != kMod;
  if (arithmetic) return checked | LengthOf(kAdd) << 12;
  const u32 imm8 = static_cast<u32>(static_cast<i32>(static_cast<i8>(checked >> 16)));
  Operation operation = Operation::kEnd;
  u32 immediate = checked >> 16;
  switch (opcode) {
    case kEndOperation:
      return static_cast<u32>(Operation::kEnd) | (checked & 0xffff0000u);
    case kStopOperation:
      return static_cast<u32>(Operation::kStop) | (checked & 0xffff0000u);
    case kHalt:
      operation = Operation::kHalt;
      break;
    case kRet:
      operation = Operation::kReturn;
      break;
    case kInc:
      operation = Operation::kAddImmediate;
      immediate = 1;
      break;
    case kDec:
      operation = Operation::kAddImmediate;
      immediate = 0u - 1;
      break;
    case kAddi:
      operation = Operation::kAddImmediate;
      immediate = imm8;
      break;
    case kSubi:
      operation = Operation::kAddImmediate;
      immediate = 0 - imm8;
      break;
    case kMovi:
      operation = Operation::kMoveImmediate;
      immediate = imm8;
      break;
    case kMovi16:
      operation = Operation::kMoveImmediate;
      break;
    case kNot:
      operation = Operation::kNot;
      break;
    case kNeg:
      operation = Operation::kNeg;
      break;
    case kPush:
      operation = Operation::kPush;
      break;
    case kPop:
      operation = Operation::kPop;
      break;
    case kDiv:
      operation = Operation::kDivide;
      break;
    case kMod:
      operation = Operation::kRemainder;
      break;
    case kMov:
      operation = Operation::kMove;
      break;
    case kJz:
    case kJnz:
    case kJlt:
    case kJgt:
      operation = static_cast<Operation>(static_cast<u32>(Operation::kJz) + opcode - kJz);
      immediate = imm8;
      break;
    case kJmp:
      operation = Operation::kJump;
      break;
    case kLoop:
      operation = Operation::kLoop;
      break;
    case kCall:
      operation = Operation::kCall;
      break;
    default:  // Checked words have no other opcodes.
      break;
  }
  return static_cast<u32>(operation) | (checked & 0x0f00) | LengthOf(opcode) << 12 |
         immediate << 16;
}

// The arithmetic operations, each with its result for the operands a and b, which are u32:
// RESIDENT_FLUX_ARITHMETIC(CASE) expands CASE(operation, result) for each.
#define RESIDENT_FLUX_ARITHMETIC(CASE)                          \
  CASE(kAdd, a + b)                                             \
  CASE(kSub, a - b)                                             \
  CASE(kMul, a* b)                                              \
  CASE(kAnd, a& b)                                              \
  CASE(kOr, a | b)                                              \
  CASE(kXor, a ^ b)                                             \
  CASE(kShl, a << (b & 31))                                     \
  CASE(kShr, static_cast<i32>(a) >> (b & 31))                   \
  CASE(kMin, static_cast<i32>(a) < static_cast<i32>(b) ? a : b) \
  CASE(kMax, static_cast<i32>(a) > static_cast<i32>(b) ? a : b) \
  CASE(kCmpEq, a == b)                                          \
  CASE(kCmpLt, static_cast<i32>(a) < static_cast<i32>(b))       \
  CASE(kCmpGt, static_cast<i32>(a) > static_cast<i32>(b))       \
  CASE(kCmpNe, a != b)

// DIV and MOD of operands whose divisor is not 0. The quotient of INT_MIN and -1 wraps to INT_MIN;
// the division itself would trap on a CPU.
RESIDENT_HOST_DEVICE u32 Quotient(u32 a, u32 b) {
  return b == 0xffffffffu ? 0 - a : static_cast<u32>(static_cast<i32>(a) / static_cast<i32>(b));
}
RESIDENT_HOST_DEVICE u32 Remainder(u32 a, u32 b) {
  return b == 0xffffffffu ? 0 : static_cast<u32>(static_cast<i32>(a) % static_cast<i32>(b));
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_INSTRUCTION_WORD_H_
