// The FLUX virtual machine: one source for GPU threads and CPU workers.
//
// A program is *decoded* first: each byte address gets one word, for the instruction
// that starts there, so that a jump to any address works. Decoding also performs all
// checks that do not depend on the run: truncated instructions, unknown opcodes, bad
// registers. The loop then needs one load for each instruction, one switch, and one
// comparison that detects all bad addresses. A decoded program of n bytes has n + 1
// words: the last one ends the run.
//
//   word    bits 0-7 operation | 8-15 rd | 16-23 rs or imm8 | 24-31 rt
//           imm16 is in bits 16-31
//
// The caller chooses where a program, its registers and its stack are (DecodedCode,
// RawCode, RegisterFile and Stack below are the usual choices):
//
//   Outcome o = Execute(DecodedCode{words, length}, registers, stack, max_cycles);
//
// Structure of the loop: operands are loaded before the switch and the destination is
// written after it, so that lanes of a warp with different instructions execute both
// together and diverge only in the operation itself.
//
// Thread safety: Execute accesses only its arguments.
//
// Invariants:
//   1. pc <= length at the top of the loop, so a word exists for it.
//   2. depth <= kStackDepth.
//   3. Register indices are below 16: decoding checks them, and they are masked for
//      instructions that have none.
#ifndef RESIDENT_KERNELS_FLUX_INTERPRETER_H_
#define RESIDENT_KERNELS_FLUX_INTERPRETER_H_

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

// The result of Execute.
struct Outcome {
  u32 error;   // flux::Error
  u32 cycles;  // Instructions executed.
};

// Returns the decoded word of an instruction. `bytes` are the four bytes at its address,
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

// Words in a block's fast memory. On a GPU this is shared memory, and it is accessed with
// its own instructions, because an access through a generic pointer first has to determine
// the kind of memory. All accesses to a word must use this class.
class FastWords {
 public:
  RESIDENT_HOST_DEVICE explicit FastWords(u32* words)
#if defined(__CUDA_ARCH__)
      : words_(static_cast<u32>(__cvta_generic_to_shared(words))){}
#else
      : words_(words) {
  }
#endif
        RESIDENT_HOST_DEVICE u32 load(u32 i) const {
#if defined(__CUDA_ARCH__)
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(words_ + 4 * i));
    return value;
#else
    return words_[i];
#endif
  }
  RESIDENT_HOST_DEVICE void store(u32 i, u32 value) const {
#if defined(__CUDA_ARCH__)
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(words_ + 4 * i), "r"(value));
#else
    words_[i] = value;
#endif
  }
  RESIDENT_HOST_DEVICE FastWords operator+(u32 i) const {
    FastWords moved = *this;
#if defined(__CUDA_ARCH__)
    moved.words_ += 4 * i;
#else
    moved.words_ += i;
#endif
    return moved;
  }

 private:
#if defined(__CUDA_ARCH__)
  u32 words_;
#else
  u32* words_;
#endif
};

// The same for device memory.
class DeviceWords {
 public:
  RESIDENT_HOST_DEVICE explicit DeviceWords(u32* words) : words_(words) {}
  RESIDENT_HOST_DEVICE u32 load(u32 i) const { return words_[i]; }
  RESIDENT_HOST_DEVICE void store(u32 i, u32 value) const { words_[i] = value; }
  RESIDENT_HOST_DEVICE DeviceWords operator+(u32 i) const { return DeviceWords(words_ + i); }

 private:
  u32* words_;
};

// A decoded program: length + 1 words.
template <typename Words>
struct DecodedCode {
  Words words;
  u32 length;
  RESIDENT_HOST_DEVICE u32 word(u32 pc) const { return words.load(pc); }
};

// A program as bytes: each instruction is decoded when it is executed. Slower, but needs no
// memory.
struct RawCode {
  const u8* bytes;
  u32 length;
  bool unknown_nop;
  RESIDENT_HOST_DEVICE u32 word(u32 pc) const {
    const u32 remaining = length - pc;
    u32 value = 0;
    for (u32 i = 0; i < 4 && i < remaining; ++i) value |= static_cast<u32>(bytes[pc + i]) << 8 * i;
    return Decode(value, remaining, unknown_nop);
  }
};

// Sixteen registers, `kStride` words apart: [register][thread] on a GPU, so that the
// threads of a warp have no bank conflicts in shared memory.
template <u32 kStride>
struct RegisterFile {
  FastWords words;
  RESIDENT_HOST_DEVICE i32 get(u32 r) const { return static_cast<i32>(words.load(r * kStride)); }
  RESIDENT_HOST_DEVICE void set(u32 r, i32 value) const {
    words.store(r * kStride, static_cast<u32>(value));
  }
};

// kStackDepth values, `kStride` words apart: [depth][thread].
template <u32 kStride>
struct Stack {
  i32* values;
  RESIDENT_HOST_DEVICE i32 get(u32 i) const { return values[i * kStride]; }
  RESIDENT_HOST_DEVICE void set(u32 i, i32 value) const { values[i * kStride] = value; }
};

// Result of a three-register instruction other than DIV and MOD: computes all of them and
// selects one. On a GPU, lanes that execute different programs then do not diverge, and
// there is no chain of branches if all execute the same program.
RESIDENT_HOST_DEVICE i32 SelectArithmetic(u32 opcode, i32 a, i32 b) {
  const u32 ua = static_cast<u32>(a);  // Unsigned, so that arithmetic wraps.
  const u32 ub = static_cast<u32>(b);
  const bool bit0 = (opcode & 1) != 0;
  const bool bit1 = (opcode & 2) != 0;
  const bool bit2 = (opcode & 4) != 0;
  const bool bit3 = (opcode & 8) != 0;
  const u32 add_sub = ua + (bit0 ? 0 - ub : ub);
  const u32 or_xor = bit0 ? ua ^ ub : ua | ub;
  const u32 shl_shr = bit0 ? static_cast<u32>(a >> (ub & 31)) : ua << (ub & 31);
  const u32 min_max = (a < b) != bit0 ? ua : ub;
  const u32 eq_lt = bit0 ? a < b : a == b;
  const u32 gt_ne = bit0 ? a != b : a > b;
  const u32 from_20 = bit1 ? ua * ub : add_sub;
  const u32 from_24 = bit1 ? or_xor : ua & ub;
  const u32 from_28 = bit1 ? min_max : shl_shr;
  const u32 from_2c = bit1 ? gt_ne : eq_lt;
  const u32 below_28 = bit2 ? from_24 : from_20;
  const u32 above_28 = bit2 ? from_2c : from_28;
  return static_cast<i32>(bit3 ? above_28 : below_28);
}

// Where a run is between two instructions.
struct Position {
  u32 pc;
  u32 depth;  // Values on the stack.
  u32 left;   // Cycles until the limit.
};

// Continues a run at a position with the current contents of the registers and the stack.
// REQUIRES: position.pc <= code.length, position.depth <= kStackDepth.
template <typename Code, typename Registers, typename Stack>
RESIDENT_HOST_DEVICE Outcome Continue(const Code& code, const Registers& registers,
                                      const Stack& stack, Position position, u32 max_cycles) {
  // An address that no program has: the check of the address ends the loop.
  constexpr u32 kNowhere = 0xffffffffu;
  u32 pc = position.pc;
  u32 depth = position.depth;
  u32 left = position.left;
  u32 error = kErrorPcOutOfBounds;
  while (left != 0) {
    const u32 word = code.word(pc);
    --left;
    const u32 rd = (word >> 8) & 15;
    i32 d = registers.get(rd);
    const i32 a = registers.get((word >> 16) & 15);
    const i32 b = registers.get((word >> 24) & 15);
    // Unsigned, so that arithmetic wraps.
    const u32 ud = static_cast<u32>(d);
    const u32 ua = static_cast<u32>(a);
    const u32 ub = static_cast<u32>(b);
    const i32 imm8 = static_cast<i8>(word >> 16);
    const i32 imm16 = static_cast<i32>(word) >> 16;
    u32 next = pc + 4;
    switch (static_cast<u8>(word)) {
      case kHalt:
        error = kErrorNone;
        next = kNowhere;
        break;
      case kStopOperation:
        error = static_cast<u32>(imm16);
        next = kNowhere;
        break;
      case kEndOperation:
        ++left;
        error = static_cast<u32>(imm16);
        next = kNowhere;
        break;

      case kInc:
        d = static_cast<i32>(ud + 1);
        next = pc + 2;
        break;
      case kDec:
        d = static_cast<i32>(ud - 1);
        next = pc + 2;
        break;
      case kNot:
        d = ~d;
        next = pc + 2;
        break;
      case kNeg:
        d = static_cast<i32>(0 - ud);
        next = pc + 2;
        break;
      case kMovi:
        d = imm8;
        next = pc + 3;
        break;
      case kAddi:
        d = static_cast<i32>(ud + static_cast<u32>(imm8));
        next = pc + 3;
        break;
      case kSubi:
        d = static_cast<i32>(ud - static_cast<u32>(imm8));
        next = pc + 3;
        break;
      case kMovi16:
        d = imm16;
        break;
      case kMov:
        d = a;
        break;

      case kDiv:
      case kMod: {
        if (b == 0) {
          error = kErrorDivisionByZero;
          next = kNowhere;
          break;
        }
        // INT_MIN / -1 wraps to INT_MIN; the division itself would trap on a CPU.
        const u32 quotient = b == -1 ? 0 - ua : static_cast<u32>(a / (b == -1 ? 1 : b));
        const u32 remainder = ua - quotient * ub;
        d = static_cast<i32>((word & 0xff) == kDiv ? quotient : remainder);
        break;
      }
#if defined(__CUDA_ARCH__)
      case kAdd:
      case kSub:
      case kMul:
      case kAnd:
      case kOr:
      case kXor:
      case kShl:
      case kShr:
      case kMin:
      case kMax:
      case kCmpEq:
      case kCmpLt:
      case kCmpGt:
      case kCmpNe:
        d = SelectArithmetic(word & 0xff, a, b);
        break;
#else
      // On a CPU, branch prediction makes the direct computation faster.
      case kAdd:
        d = static_cast<i32>(ua + ub);
        break;
      case kSub:
        d = static_cast<i32>(ua - ub);
        break;
      case kMul:
        d = static_cast<i32>(ua * ub);
        break;
      case kAnd:
        d = a & b;
        break;
      case kOr:
        d = a | b;
        break;
      case kXor:
        d = a ^ b;
        break;
      case kShl:
        d = static_cast<i32>(ua << (ub & 31));
        break;
      case kShr:
        d = a >> (ub & 31);
        break;
      case kMin:
        d = a < b ? a : b;
        break;
      case kMax:
        d = a > b ? a : b;
        break;
      case kCmpEq:
        d = a == b;
        break;
      case kCmpLt:
        d = a < b;
        break;
      case kCmpGt:
        d = a > b;
        break;
      case kCmpNe:
        d = a != b;
        break;
#endif

      case kPush:
        next = pc + 2;
        if (depth == kStackDepth) {
          error = kErrorStackOverflow;
          next = kNowhere;
          break;
        }
        stack.set(depth++, d);
        break;
      case kPop:
        next = pc + 2;
        if (depth == 0) {
          error = kErrorStackUnderflow;
          next = kNowhere;
          break;
        }
        d = stack.get(--depth);
        break;
      case kCall:
        if (depth == kStackDepth) {
          error = kErrorStackOverflow;
          next = kNowhere;
          break;
        }
        stack.set(depth++, static_cast<i32>(next));
        next = pc + static_cast<u32>(imm16);
        break;
      case kRet:
        if (depth == 0) {
          error = kErrorStackUnderflow;
          next = kNowhere;
          break;
        }
        next = static_cast<u32>(stack.get(--depth));
        break;

      case kJz:
        if (d == 0) next = pc + static_cast<u32>(imm8);
        break;
      case kJnz:
        if (d != 0) next = pc + static_cast<u32>(imm8);
        break;
      case kJlt:
        if (d < 0) next = pc + static_cast<u32>(imm8);
        break;
      case kJgt:
        if (d > 0) next = pc + static_cast<u32>(imm8);
        break;
      case kJmp:
        next = pc + static_cast<u32>(imm16);
        break;
      case kLoop:
        d = static_cast<i32>(ud - 1);
        if (d > 0) next = pc - (word >> 16);
        break;

      default:
        // Decoded words have no other operations.
        next = kNowhere;
        break;
    }
    registers.set(rd, d);
    if (next > code.length) return {error, max_cycles - left};
    pc = next;
  }
  // A run that reaches its end together with the limit is complete.
  return {pc == code.length ? kErrorNone : kErrorCycleLimit, max_cycles};
}

// Runs a program from address 0 with the current contents of the registers.
template <typename Code, typename Registers, typename Stack>
RESIDENT_HOST_DEVICE Outcome Execute(const Code& code, const Registers& registers,
                                     const Stack& stack, u32 max_cycles) {
  return Continue(code, registers, stack, {0, 0, max_cycles}, max_cycles);
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_INTERPRETER_H_
