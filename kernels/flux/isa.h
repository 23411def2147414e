// The FLUX instruction set: opcodes, instruction lengths, error codes, limits.
// docs/flux.md is the specification in words.
//
// Included by the interpreter on every target and by the host's tools. It includes
// no standard header, so that NVRTC can compile it.
//
// Thread safety: constants and pure functions.
#ifndef RESIDENT_KERNELS_FLUX_ISA_H_
#define RESIDENT_KERNELS_FLUX_ISA_H_

#include "kernels/layout/platform.h"

namespace resident::flux {

inline constexpr u32 kRegisters = 16;
// Values on the stack that PUSH, POP, CALL and RET share.
inline constexpr u32 kStackDepth = 256;
// Length of the longest program: addresses are int32, and the address after the last byte must fit.
inline constexpr u32 kMaxProgramBytes = 0x7ffffffeu;

enum Opcode : u8 {
  kHalt = 0x00,
  kNop = 0x01,
  kRet = 0x02,
  kInc = 0x08,
  kDec = 0x09,
  kNot = 0x0a,
  kNeg = 0x0b,
  kPush = 0x0c,
  kPop = 0x0d,
  kStripconf = 0x17,
  kMovi = 0x18,
  kAddi = 0x19,
  kSubi = 0x1a,
  kAdd = 0x20,
  kSub = 0x21,
  kMul = 0x22,
  kDiv = 0x23,
  kMod = 0x24,
  kAnd = 0x25,
  kOr = 0x26,
  kXor = 0x27,
  kShl = 0x28,
  kShr = 0x29,
  kMin = 0x2a,
  kMax = 0x2b,
  kCmpEq = 0x2c,
  kCmpLt = 0x2d,
  kCmpGt = 0x2e,
  kCmpNe = 0x2f,
  kMov = 0x3a,
  kJz = 0x3c,
  kJnz = 0x3d,
  kJlt = 0x3e,
  kJgt = 0x3f,
  kMovi16 = 0x40,
  kJmp = 0x43,
  kLoop = 0x46,
  kCall = 0x4a,
  kTell = 0x50,
  kAsk = 0x51,
  kBcast = 0x52,
  kRecv = 0x53,
};

// How a run ended.
enum Error : u8 {
  kErrorNone = 0,
  kErrorDivisionByZero = 1,
  kErrorStackOverflow = 2,
  kErrorStackUnderflow = 3,
  kErrorInvalidOpcode = 4,
  kErrorCycleLimit = 5,
  kErrorPcOutOfBounds = 6,
  kErrorAgentMessaging = 7,
  kErrorBadRegister = 8,
};
inline constexpr u32 kErrors = 9;

// Length of an instruction in bytes; defined for every opcode byte, including unknown ones.
RESIDENT_HOST_DEVICE constexpr u32 LengthOf(u32 opcode) {
  if (opcode < 0x08) return 1;
  if (opcode < 0x18) return 2;
  if (opcode < 0x20) return 3;
  if (opcode < 0x50) return 4;
  return 1;
}

// The register operands of an instruction are in bytes 1, 2 and 3.
RESIDENT_HOST_DEVICE constexpr bool HasThreeRegisters(u32 opcode) {
  return opcode >= kAdd && opcode <= kCmpNe;
}
RESIDENT_HOST_DEVICE constexpr bool HasTwoRegisters(u32 opcode) {
  return HasThreeRegisters(opcode) || opcode == kMov;
}

namespace internal {

// One bit for each opcode of a set: `low` for 00 to 3F, `high` for 40 to 7F.
struct OpcodeSet {
  u64 low;
  u64 high;
  RESIDENT_HOST_DEVICE constexpr bool Has(u32 opcode) const {
    return opcode < 0x80 && (((opcode < 0x40 ? low : high) >> (opcode & 63)) & 1) != 0;
  }
};

RESIDENT_HOST_DEVICE constexpr u64 Bits(u32 first, u32 last) {
  return (~0ull >> (63 - ((last - first) & 63))) << (first & 63);
}

// Instructions whose byte 1 is a register.
inline constexpr u64 kDestinationLow =
    Bits(kInc, kPop) | Bits(kMovi, kSubi) | Bits(kAdd, kCmpNe) | Bits(kMov, kMov) | Bits(kJz, kJgt);
inline constexpr u64 kDestinationHigh = Bits(kMovi16, kMovi16) | Bits(kLoop, kLoop);
inline constexpr u64 kValidLow = kDestinationLow | Bits(kHalt, kRet) | Bits(kStripconf, kStripconf);
inline constexpr u64 kValidHigh =
    kDestinationHigh | Bits(kJmp, kJmp) | Bits(kCall, kCall) | Bits(kTell, kRecv);

}  // namespace internal

RESIDENT_HOST_DEVICE constexpr bool HasRegister(u32 opcode) {
  return internal::OpcodeSet{internal::kDestinationLow, internal::kDestinationHigh}.Has(opcode);
}
RESIDENT_HOST_DEVICE constexpr bool IsValid(u32 opcode) {
  return internal::OpcodeSet{internal::kValidLow, internal::kValidHigh}.Has(opcode);
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_ISA_H_
