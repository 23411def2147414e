// RunTogether: several runs of one program on one thread, for as long as they take the same path.
//
// The instruction is then loaded, decoded and dispatched once for all of them, which is most of the
// work of an interpreter. Whatever is rare (an error, an end, a limit, runs that branch
// differently) is left to the caller, who continues each run by itself with Continue:
//
//   const Position position = RunTogether<kRuns>(code, registers, stack, max_cycles);
//   for (u32 k = 0; k < kRuns; ++k) {
//     outcome[k] = Continue(code, registers.of_run(k), stack.of_run(k), position, max_cycles);
//   }
//
// Thread safety: RunTogether accesses only its arguments.
#ifndef RESIDENT_KERNELS_FLUX_RUNS_TOGETHER_H_
#define RESIDENT_KERNELS_FLUX_RUNS_TOGETHER_H_

#include "kernels/flux/interpreter.h"

namespace resident::flux {

// Sixteen registers of each run, `kStride` words apart: [register][thread][run] on a GPU.
template <u32 kRuns, u32 kStride>
struct RegisterFiles {
  FastWords words;

  RESIDENT_HOST_DEVICE Several<kRuns> destination(u32 word) const { return load<8>(word); }
  RESIDENT_HOST_DEVICE Several<kRuns> first(u32 word) const { return load<16>(word); }
  RESIDENT_HOST_DEVICE Several<kRuns> second(u32 word) const { return load<24>(word); }
  RESIDENT_HOST_DEVICE void set_destination(u32 word, const Several<kRuns>& values) const {
    words.store_several(RegisterFile<kStride>::template Row<8>(word), values);
  }
  RESIDENT_HOST_DEVICE RegisterFile<kStride> of_run(u32 k) const { return {words + k}; }

 private:
  template <u32 kBit>
  RESIDENT_HOST_DEVICE Several<kRuns> load(u32 word) const {
    return words.load_several<kRuns>(RegisterFile<kStride>::template Row<kBit>(word));
  }
};

// kStackDepth values of each run: [depth][thread][run].
template <u32 kRuns, u32 kStride>
struct Stacks {
  i32* values;
  RESIDENT_HOST_DEVICE Several<kRuns> get(u32 i) const { return *at(i); }
  RESIDENT_HOST_DEVICE void set(u32 i, const Several<kRuns>& several) const { *at(i) = several; }
  RESIDENT_HOST_DEVICE Stack<kStride> of_run(u32 k) const { return {values + k}; }

 private:
  RESIDENT_HOST_DEVICE Several<kRuns>* at(u32 i) const {
    return reinterpret_cast<Several<kRuns>*>(values + Stack<kStride>::Address(i));
  }
};

// Runs a program from address 0 with the current contents of the registers. Returns where all runs
// are: nothing of the instruction there was executed yet.
template <u32 kRuns, typename Code, u32 kStride>
RESIDENT_HOST_DEVICE Position RunTogether(const Code& code,
                                          const RegisterFiles<kRuns, kStride>& registers,
                                          const Stacks<kRuns, kStride>& stacks, u32 max_cycles) {
  using Values = Several<kRuns>;
  // The number of runs whose value fulfils a condition.
  const auto count = [](const Values& values, auto condition) {
    u32 n = 0;
    RESIDENT_UNROLL(kRuns)
    for (u32 k = 0; k < kRuns; ++k) n += condition(static_cast<i32>(values.of[k])) ? 1 : 0;
    return n;
  };
  u32 pc = 0;
  u32 depth = 0;
  u32 left = max_cycles;
  for (; left != 0; --left) {
    const u32 word = code.word(pc);
    const u32 immediate = ImmediateIn(word);
    u32 target = pc + immediate;
    u32 taken = kRuns;
    switch (OperationOf(word)) {
#define RESIDENT_FLUX_CASE(operation, result)     \
  case Operation::operation: {                    \
    const Values first = registers.first(word);   \
    const Values second = registers.second(word); \
    Values d;                                     \
    RESIDENT_UNROLL(kRuns)                        \
    for (u32 k = 0; k < kRuns; ++k) {             \
      const u32 a = first.of[k];                  \
      const u32 b = second.of[k];                 \
      d.of[k] = static_cast<u32>(result);         \
    }                                             \
    registers.set_destination(word, d);           \
    pc += 4;                                      \
    continue;                                     \
  }
      RESIDENT_FLUX_ARITHMETIC(RESIDENT_FLUX_CASE)
#undef RESIDENT_FLUX_CASE

      case Operation::kDivide:
      case Operation::kRemainder: {
        const Values a = registers.first(word);
        const Values b = registers.second(word);
        if (count(b, [](i32 v) { return v == 0; }) != 0) return {pc, depth, left};
        const bool divide = OperationOf(word) == Operation::kDivide;
        Values d;
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) {
          const u32 quotient = Quotient(a.of[k], b.of[k]);
          d.of[k] = divide ? quotient : a.of[k] - quotient * b.of[k];
        }
        registers.set_destination(word, d);
        pc += 4;
        continue;
      }
      case Operation::kMove:
        registers.set_destination(word, registers.first(word));
        pc += 4;
        continue;
      case Operation::kMoveImmediate: {
        Values d;
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) d.of[k] = immediate;
        registers.set_destination(word, d);
        pc += LengthIn(word);
        continue;
      }
      case Operation::kAddImmediate: {
        Values d = registers.destination(word);
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) d.of[k] += immediate;
        registers.set_destination(word, d);
        pc += LengthIn(word);
        continue;
      }
      case Operation::kNot: {
        Values d = registers.destination(word);
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) d.of[k] = ~d.of[k];
        registers.set_destination(word, d);
        pc += 2;
        continue;
      }
      case Operation::kNeg: {
        Values d = registers.destination(word);
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) d.of[k] = 0 - d.of[k];
        registers.set_destination(word, d);
        pc += 2;
        continue;
      }

      case Operation::kPush:
        if (depth == kStackDepth) return {pc, depth, left};
        stacks.set(depth++, registers.destination(word));
        pc += 2;
        continue;
      case Operation::kPop:
        if (depth == 0) return {pc, depth, left};
        registers.set_destination(word, stacks.get(--depth));
        pc += 2;
        continue;

      case Operation::kJz:
        taken = count(registers.destination(word), [](i32 v) { return v == 0; });
        break;
      case Operation::kJnz:
        taken = count(registers.destination(word), [](i32 v) { return v != 0; });
        break;
      case Operation::kJlt:
        taken = count(registers.destination(word), [](i32 v) { return v < 0; });
        break;
      case Operation::kJgt:
        taken = count(registers.destination(word), [](i32 v) { return v > 0; });
        break;
      case Operation::kJump:
        break;
      case Operation::kLoop: {
        Values d = registers.destination(word);
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) --d.of[k];
        taken = count(d, [](i32 v) { return v > 0; });
        target = pc - (word >> 16);
        if (taken == 0) target = pc + 4;
        if ((taken != 0 && taken != kRuns) || target > code.length) return {pc, depth, left};
        registers.set_destination(word, d);
        pc = target;
        continue;
      }
      case Operation::kCall: {
        if (depth == kStackDepth || target > code.length) return {pc, depth, left};
        Values behind;
        RESIDENT_UNROLL(kRuns)
        for (u32 k = 0; k < kRuns; ++k) behind.of[k] = pc + 4;
        stacks.set(depth++, behind);
        pc = target;
        continue;
      }
      case Operation::kReturn: {
        if (depth == 0) return {pc, depth, left};
        const Values to = stacks.get(depth - 1);
        target = to.of[0];
        if (count(to, [&](i32 v) { return static_cast<u32>(v) == target; }) != kRuns) {
          return {pc, depth, left};
        }
        if (target > code.length) return {pc, depth, left};
        --depth;
        pc = target;
        continue;
      }

      default:  // The run ends here, or the program is at its end.
        return {pc, depth, left};
    }
    // A branch.
    if (taken == 0) target = pc + 4;
    if ((taken != 0 && taken != kRuns) || target > code.length) return {pc, depth, left};
    pc = target;
  }
  return {pc, depth, left};
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_RUNS_TOGETHER_H_
