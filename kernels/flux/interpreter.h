// This header is the FLUX virtual machine: one source for GPU threads and CPU workers.
//
// A program is *decoded* first: each byte address gets one executable word
// (instruction_word.h), for the instruction that starts there, so that a jump to any address
// works. The loop then needs one load for each instruction, one dispatch, and one comparison for a
// branch that leaves the code. A decoded program of n bytes has n + 1 words: the last one ends the
// run.
//
// The caller chooses where a program, its registers and its stack are (RowCode, ColumnCode,
// RawCode, RegisterFile and Stack below):
//
//   Outcome o = Execute(RowCode{words, length}, registers, stack, max_cycles);
//
// On a GPU all arithmetic operations are one path through the loop, in which each is computed and
// one is selected: lanes of a warp that execute different programs then do not diverge. Everything
// else is computed inside its case of the switch only.
//
// runs_together.h executes several runs of one program at a time, for as long as they take the same
// path.
//
// Thread safety: Execute accesses only its arguments.
//
// Invariants:
//   1. pc <= length at the top of the loop, so a word exists for it.
//   2. depth <= kStackDepth.
//   3. Register numbers are below 16: decoding checks them, and they are masked.
#ifndef RESIDENT_KERNELS_FLUX_INTERPRETER_H_
#define RESIDENT_KERNELS_FLUX_INTERPRETER_H_

#include "kernels/flux/instruction_word.h"
#include "kernels/flux/word_memory.h"

namespace resident::flux {

// The result of Execute.
struct Outcome {
  u32 error;   // flux::Error
  u32 cycles;  // Instructions executed.
};

// A decoded program: length + 1 adjacent words.
template <typename Words>
struct RowCode {
  static constexpr bool kDecodesOnDemand = false;
  Words words;
  u32 length;
  RESIDENT_HOST_DEVICE u32 word(u32 pc) const { return words.load(pc); }
};

// A program as bytes: each instruction is decoded when it is executed. Slower, but needs no
// memory.
struct RawCode {
  static constexpr bool kDecodesOnDemand = false;
  const u8* bytes;
  u32 length;
  bool unknown_nop;
  RESIDENT_HOST_DEVICE u32 word(u32 pc) const {
    const u32 remaining = length - pc;
    u32 value = 0;
    for (u32 i = 0; i < 4 && i < remaining; ++i) value |= static_cast<u32>(bytes[pc + i]) << 8 * i;
    return Prepare(Decode(value, remaining, unknown_nop));
  }
};

// A decoded program with `stride` words between adjacent addresses: [address][thread] on a GPU, so
// that the threads of a warp access adjacent words while they are at the same address. Only the
// instructions that follow each other from address 0 are decoded at first (DecodeColumn). The
// others, which lie inside of these and which programs rarely branch to, are decoded when they are
// executed.
template <typename Words>
struct ColumnCode {
  static constexpr bool kDecodesOnDemand = true;
  Words words;
  u32 stride;
  RawCode raw;
  u32 length = raw.length;
  RESIDENT_HOST_DEVICE u32 word(u32 pc) const { return words.load(pc * stride); }
  RESIDENT_HOST_DEVICE void DecodeAt(u32 pc) const { words.store(pc * stride, raw.word(pc)); }
};

// Decodes a program of `length` bytes for a ColumnCode. `bytes_at(pc)` returns the four bytes at an
// address, of which those past the end of the program may have any value.
template <typename Words, typename BytesAt>
RESIDENT_HOST_DEVICE void DecodeColumn(Words words, u32 stride, u32 length, bool unknown_nop,
                                       BytesAt bytes_at) {
  u32 behind = 0;  // The end of the last decoded instruction.
  for (u32 pc = 0; pc <= length; ++pc) {
    u32 word = static_cast<u32>(Operation::kUndecoded);
    if (pc == behind) {
      const u32 bytes = pc == length ? 0 : bytes_at(pc);
      word = Prepare(Decode(bytes, length - pc, unknown_nop));
      behind = pc + LengthOf(bytes & 0xff);
    }
    words.store(pc * stride, word);
  }
}

// Sixteen registers, `kStride` words apart: [register][thread] on a GPU, so that the
// threads of a warp have no bank conflicts in shared memory. A register is named by the executable
// word and the position of its number in it.
template <u32 kStride>
struct RegisterFile {
  FastWords words;

  RESIDENT_HOST_DEVICE u32 destination(u32 word) const { return words.load(Row<8>(word)); }
  RESIDENT_HOST_DEVICE u32 first(u32 word) const { return words.load(Row<16>(word)); }
  RESIDENT_HOST_DEVICE u32 second(u32 word) const { return words.load(Row<24>(word)); }
  RESIDENT_HOST_DEVICE void set_destination(u32 word, u32 value) const {
    words.store(Row<8>(word), value);
  }

  // The register with a number.
  RESIDENT_HOST_DEVICE i32 get(u32 r) const { return static_cast<i32>(words.load(r * kStride)); }
  RESIDENT_HOST_DEVICE void set(u32 r, i32 value) const {
    words.store(r * kStride, static_cast<u32>(value));
  }

  template <u32 kBit>
  RESIDENT_HOST_DEVICE static u32 Row(u32 word) {
    return ((word >> kBit) & 15) * kStride;
  }
};

// kStackDepth values, `kStride` words apart: [depth][thread].
template <u32 kStride>
struct Stack {
  i32* values;
  RESIDENT_HOST_DEVICE i32 get(u32 i) const { return values[Address(i)]; }
  RESIDENT_HOST_DEVICE void set(u32 i, i32 value) const { values[Address(i)] = value; }

  // Keeps a GPU's compiler from computing the address in every iteration of the interpreter's loop.
  RESIDENT_HOST_DEVICE static u32 Address(u32 i) {
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(i));
#endif
    return i * kStride;
  }
};

// Result of an arithmetic operation: computes all of them and selects one.
RESIDENT_HOST_DEVICE u32 SelectArithmetic(u32 word, u32 ua, u32 ub) {
  const i32 a = static_cast<i32>(ua);
  const i32 b = static_cast<i32>(ub);
  const bool bit0 = (word & 1) != 0;
  const bool bit1 = (word & 2) != 0;
  const bool bit2 = (word & 4) != 0;
  const bool bit3 = (word & 8) != 0;
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
  return bit3 ? above_28 : below_28;
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
  u32 pc = position.pc;
  u32 depth = position.depth;
  u32 left = position.left;
  const auto end = [&](u32 error) { return Outcome{error, max_cycles - left}; };
  while (left != 0) {
    const u32 word = code.word(pc);
    --left;
#if defined(__CUDA_ARCH__)
    if ((word & kArithmeticBit) != 0) {
      registers.set_destination(
          word, SelectArithmetic(word, registers.first(word), registers.second(word)));
      pc += 4;
      continue;
    }
#endif
    u32 next;
    switch (OperationOf(word)) {
      case Operation::kEnd:
        ++left;
        return end(word >> 16);
      case Operation::kStop:
        return end(word >> 16);
      case Operation::kHalt:
        return end(kErrorNone);

      case Operation::kMoveImmediate:
        registers.set_destination(word, ImmediateIn(word));
        pc += LengthIn(word);
        continue;
      case Operation::kAddImmediate:
        registers.set_destination(word, registers.destination(word) + ImmediateIn(word));
        pc += LengthIn(word);
        continue;
      case Operation::kMove:
        registers.set_destination(word, registers.first(word));
        pc += 4;
        continue;
      case Operation::kNot:
        registers.set_destination(word, ~registers.destination(word));
        pc += 2;
        continue;
      case Operation::kNeg:
        registers.set_destination(word, 0 - registers.destination(word));
        pc += 2;
        continue;

      case Operation::kDivide:
      case Operation::kRemainder: {
        const u32 a = registers.first(word);
        const u32 b = registers.second(word);
        if (b == 0) return end(kErrorDivisionByZero);
        const u32 quotient = Quotient(a, b);
        registers.set_destination(
            word, OperationOf(word) == Operation::kDivide ? quotient : a - quotient * b);
        pc += 4;
        continue;
      }
#if !defined(__CUDA_ARCH__)
      // On a CPU, branch prediction makes the direct computation faster.
#define RESIDENT_FLUX_CASE(operation, result)                  \
  case Operation::operation: {                                 \
    const u32 a = registers.first(word);                       \
    const u32 b = registers.second(word);                      \
    registers.set_destination(word, static_cast<u32>(result)); \
    pc += 4;                                                   \
    continue;                                                  \
  }
        RESIDENT_FLUX_ARITHMETIC(RESIDENT_FLUX_CASE)
#undef RESIDENT_FLUX_CASE
#endif

      case Operation::kPush:
        if (depth == kStackDepth) return end(kErrorStackOverflow);
        stack.set(depth++, static_cast<i32>(registers.destination(word)));
        pc += 2;
        continue;
      case Operation::kPop:
        if (depth == 0) return end(kErrorStackUnderflow);
        registers.set_destination(word, static_cast<u32>(stack.get(--depth)));
        pc += 2;
        continue;
      case Operation::kCall:
        if (depth == kStackDepth) return end(kErrorStackOverflow);
        stack.set(depth++, static_cast<i32>(pc + 4));
        next = pc + ImmediateIn(word);
        break;
      case Operation::kReturn:
        if (depth == 0) return end(kErrorStackUnderflow);
        next = static_cast<u32>(stack.get(--depth));
        break;

      case Operation::kJz:
        next = pc + (registers.destination(word) == 0 ? ImmediateIn(word) : 4);
        break;
      case Operation::kJnz:
        next = pc + (registers.destination(word) != 0 ? ImmediateIn(word) : 4);
        break;
      case Operation::kJlt:
        next = pc + (static_cast<i32>(registers.destination(word)) < 0 ? ImmediateIn(word) : 4);
        break;
      case Operation::kJgt:
        next = pc + (static_cast<i32>(registers.destination(word)) > 0 ? ImmediateIn(word) : 4);
        break;
      case Operation::kJump:
        next = pc + ImmediateIn(word);
        break;
      case Operation::kLoop: {
        const u32 d = registers.destination(word) - 1;
        registers.set_destination(word, d);
        next = static_cast<i32>(d) > 0 ? pc - (word >> 16) : pc + 4;
        break;
      }

      default:
        // Executable words have no other operations than kUndecoded.
        ++left;
        if constexpr (!Code::kDecodesOnDemand) return end(kErrorInvalidOpcode);
        if constexpr (Code::kDecodesOnDemand) code.DecodeAt(pc);
        continue;
    }
    if (next > code.length) return end(kErrorPcOutOfBounds);
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
