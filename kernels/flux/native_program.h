// RunNativeProgram: the body of an operator that was generated from one FLUX program
// (runtime/flux/translator.h). The operator has the arguments of flux_run (run_arguments.h) and
// gives the same results: registers, errors and cycles.
//
// The generated struct:
//
//   struct Program {
//     static constexpr u32 kBytes = 21;                 // Length of the program.
//     static constexpr UnknownOpcodes kUnknownOpcodes = UnknownOpcodes::kNone;
//     static constexpr bool kLeaves = false;            // It may leave a run to the interpreter.
//     template <typename Code, typename Registers, typename Stack>
//     RESIDENT_HOST_DEVICE static Outcome Run(const Code& code, const Registers& registers,
//                                             const Stack& stack, u32 max_cycles);
//   };
//
// Run does what Execute does with the program's code. It uses `stack` only if the program's stack
// does not fit into variables, and `code` only for a run that it leaves to the interpreter, because
// a RET took an address that is no known return address. Such a program is decoded to fast memory,
// as flux_run does, so that a run that was left is not slower than an interpreted one.
#ifndef RESIDENT_KERNELS_FLUX_NATIVE_PROGRAM_H_
#define RESIDENT_KERNELS_FLUX_NATIVE_PROGRAM_H_

#include "kernels/flux/run_task.h"

namespace resident::flux {

// The unknown opcodes that a run can reach. If there are any, the program was translated for one
// meaning of them (kRunUnknownNop).
enum class UnknownOpcodes : u8 { kNone, kAreErrors, kAreNoOps };

// Fails the task if its programs are not the one that was translated. Returns its bytes.
template <typename Program>
RESIDENT_HOST_DEVICE bool FindNativeProgram(const Block& block, const Args& args,
                                            const Programs& programs, RawCode* code) {
  Text text;
  if (!programs.FindText(block, 0, &text)) return false;
  const bool unknown_nop = args.scalar<i64>(kRunUnknownNop) != 0;
  *code = {programs.bytes(text.begin), text.length, unknown_nop};
  u32 bad = kRunArguments;
  if (programs.indexed())
    bad = kRunIndex;
  else if (programs.size() != 1)
    bad = kRunOffsets;
  else if (text.length != Program::kBytes)
    bad = kRunBytecode;
  else if (Program::kUnknownOpcodes != UnknownOpcodes::kNone &&
           (Program::kUnknownOpcodes == UnknownOpcodes::kAreNoOps) != unknown_nop)
    bad = kRunUnknownNop;
  if (bad == kRunArguments) return true;
  block.fail(CompletionStatus::kInvalidArgument, static_cast<u16>(bad));
  return false;
}

// Decodes the program to fast memory, if it may leave runs to the interpreter. (collective)
template <typename Program>
RESIDENT_HOST_DEVICE RowCode<FastWords> DecodeNativeProgram(const Block& block,
                                                            const RawCode& code) {
  if constexpr (!Program::kLeaves) return {FastWords(block.memory<u32>()), 0};
  static_assert(!Program::kLeaves || Program::kBytes < kFastWords, "");
  const FastWords words(block.memory<u32>(kRegisterBytes, Program::kBytes + 1));
  for (u32 pc = block.thread(); pc <= Program::kBytes; pc += block.threads()) {
    words.store(pc, code.word(pc));
  }
  block.barrier();
  return {words, Program::kBytes};
}

template <typename Program>
RESIDENT_HOST_DEVICE void RunNativeProgram(Block& block, const Args& args) {
  const Programs programs(args);
  RawCode raw;
  if (!CheckArguments(block, args, programs)) return;
  if (!FindNativeProgram<Program>(block, args, programs, &raw)) return;
  const RowCode<FastWords> code = DecodeNativeProgram<Program>(block, raw);
  const u32 limit = static_cast<u32>(args.scalar<i64>(kRunMaxCycles));
  const Range range = block.share(args.scalar<i64>(kRunCount), kLanes);
  const LaneGroup group(block);
  const FastWords registers = FastWords(block.memory<u32>()) + group.group * kLanes;
  for (i64 begin = range.begin + group.group * kLanes; begin < range.end;
       begin += block.threads()) {
    const i64 rest = range.end - begin;
    const u32 n = rest < kLanes ? static_cast<u32>(rest) : kLanes;
    LoadInitial(args, group, registers, begin, n);
    group.sync();
    if (group.lane < n) {
      const Outcome outcome = Program::Run(code, RegistersOf(block), StackOf(block), limit);
      StoreOutcome(args, begin + group.lane, outcome);
    }
    group.sync();
    StoreWanted(args, group, registers, begin, n);
    group.sync();
  }
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_NATIVE_PROGRAM_H_
