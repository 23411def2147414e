// The interpreter beside the reference on random programs, with the program's code in each form
// (words in a row, words in columns, bytes), and with several runs at a time.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/flux/interpreter.h"
#include "kernels/flux/runs_together.h"
#include "runtime/flux/assembler.h"
#include "tests/flux/program_runs.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

constexpr int kPrograms = 40'000;

u32 BytesAt(const Bytecode& program, u32 pc) {
  u32 bytes = 0xaaaaaaaa;  // Bytes behind the end have no effect.
  for (u32 i = 0; i < 4 && pc + i < program.size(); ++i) {
    bytes = (bytes & ~(0xffu << 8 * i)) | u32{program[pc + i]} << 8 * i;
  }
  return bytes;
}

// The registers and stacks of kRuns runs. Their address is a multiple of that of Several and of no
// larger power of two, so that an access which needs more is found by the sanitizers.
template <u32 kRuns>
class Machine {
 public:
  u32* registers() { return registers_.data() + kSkew; }
  i32* stack() { return stack_.data() + kSkew; }

  void Load(u32 run, const RunOptions& options) {
    for (u32 r = 0; r < kRegisters; ++r) {
      registers()[r * kRuns + run] = static_cast<u32>(options.initial[r]);
    }
  }
  RunResult Result(u32 run, Outcome outcome) {
    RunResult result;
    for (u32 r = 0; r < kRegisters; ++r) {
      result.registers[r] = static_cast<i32>(registers()[r * kRuns + run]);
    }
    result.error = outcome.error;
    result.cycles = outcome.cycles;
    return result;
  }

 private:
  static constexpr u32 kSkew = alignof(Several<kRuns>) / 4;
  alignas(64) std::array<u32, kRegisters * kRuns + kSkew> registers_;
  alignas(64) std::array<i32, kStackDepth * kRuns + kSkew> stack_;
};

template <typename Code>
RunResult RunWith(const Code& code, const RunOptions& options) {
  Machine<1> machine;
  machine.Load(0, options);
  const RegisterFile<1> registers{FastWords(machine.registers())};
  const Stack<1> stack{machine.stack()};
  return machine.Result(0, Execute(code, registers, stack, static_cast<u32>(options.max_cycles)));
}

std::vector<u32> DecodedRow(const Bytecode& program, bool unknown_nop) {
  const auto length = static_cast<u32>(program.size());
  std::vector<u32> words;
  for (u32 pc = 0; pc <= length; ++pc) {
    words.push_back(Prepare(Decode(BytesAt(program, pc), length - pc, unknown_nop)));
  }
  return words;
}

TEST(FluxCodeForms, AllGiveTheResultsOfTheReference) {
  RandomProgramGenerator generator(77);
  int on_demand = 0;
  for (int i = 0; i < kPrograms; ++i) {
    const RandomCase random = generator.NextForTranslation();
    const Bytecode& program = random.bytecode;
    const RunOptions& options = random.options;
    const auto length = static_cast<u32>(program.size());
    const RunResult expected = RunReference(program, options);

    const RawCode raw = {program.data(), length, options.unknown_nop};
    ASSERT_EQ(RunWith(raw, options), expected) << "bytes\n" << Disassemble(program);

    std::vector<u32> row = DecodedRow(program, options.unknown_nop);
    ASSERT_EQ(RunWith(RowCode<DeviceWords>{DeviceWords(row.data()), length}, options), expected)
        << "a row\n"
        << Disassemble(program);

    const u32 stride = 1 + generator.Below(5);
    std::vector<u32> column((length + 1) * stride, 0xdeadbeef);
    const DeviceWords words(column.data());
    DecodeColumn(words, stride, length, options.unknown_nop,
                 [&](u32 pc) { return BytesAt(program, pc); });
    const std::vector<u32> before = column;
    ASSERT_EQ(RunWith(ColumnCode<DeviceWords>{words, stride, raw}, options), expected)
        << "a column\n"
        << Disassemble(program);
    if (column != before) ++on_demand;
    for (u32 at = 0; at < column.size(); ++at) {
      if (at % stride != 0) {
        ASSERT_EQ(column[at], 0xdeadbeef);
      }
    }
  }
  // Enough programs branch into the middle of an instruction.
  EXPECT_GT(on_demand, kPrograms / 100);
}

// What happened to the runs of all programs.
struct Together {
  uint64_t cycles = 0;           // Of all runs.
  uint64_t cycles_together = 0;  // Those of them before the runs parted.
};

template <u32 kRuns>
void ExpectRunsTogetherEqualTheReference(uint64_t seed, Together* together) {
  RandomProgramGenerator generator(seed);
  for (int i = 0; i < kPrograms; ++i) {
    const RandomCase random = generator.NextForTranslation();
    const auto length = static_cast<u32>(random.bytecode.size());
    std::vector<u32> row = DecodedRow(random.bytecode, random.options.unknown_nop);
    const RowCode<FastWords> code = {FastWords(row.data()), length};
    const auto limit = static_cast<u32>(random.options.max_cycles);
    // Equal inputs, inputs that differ in one register, or arbitrary ones.
    std::vector<RunOptions> options(kRuns, random.options);
    const uint32_t kind = generator.Below(3);
    for (RunOptions& of_run : options) {
      int32_t& one = of_run.initial[generator.Below(16)];
      if (kind == 1) one = static_cast<int32_t>(static_cast<uint32_t>(one) + generator.Below(3));
      if (kind == 2) of_run.initial = generator.Next().options.initial;
    }

    Machine<kRuns> machine;
    for (u32 k = 0; k < kRuns; ++k) machine.Load(k, options[k]);
    const RegisterFiles<kRuns, kRuns> registers{FastWords(machine.registers())};
    const Stacks<kRuns, kRuns> stacks{machine.stack()};
    const Position position = RunTogether(code, registers, stacks, limit);
    together->cycles_together += kRuns * (limit - position.left);
    for (u32 k = 0; k < kRuns; ++k) {
      const Outcome outcome =
          Continue(code, registers.of_run(k), stacks.of_run(k), position, limit);
      together->cycles += outcome.cycles;
      const RunResult actual = machine.Result(k, outcome);
      const RunResult expected = RunReference(random.bytecode, options[k]);
      ASSERT_EQ(actual, expected) << "program " << i << ", run " << k << ", parted after "
                                  << limit - position.left << " of " << limit << " cycles\n"
                                  << Disassemble(random.bytecode)
                                  << "reference: " << Describe(expected)
                                  << "\ntogether:  " << Describe(actual);
    }
  }
  // Neither everything together nor everything by itself.
  EXPECT_GT(together->cycles_together, together->cycles / 4);
  EXPECT_LT(together->cycles_together, together->cycles - together->cycles / 10);
}

TEST(FluxRunsTogether, TwoRunsEqualTheReference) {
  Together together;
  ExpectRunsTogetherEqualTheReference<2>(78, &together);
}

TEST(FluxRunsTogether, EightRunsEqualTheReference) {
  Together together;
  ExpectRunsTogetherEqualTheReference<8>(79, &together);
}

}  // namespace
}  // namespace resident::flux
