// Compares the engines' interpreter with the reference on random programs: single programs,
// and batches of many programs. A program with a difference is shrunk and printed as
// assembly.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/flux/assembler.h"
#include "runtime/flux/host_operator.h"
#include "tests/flux/program_runs.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

constexpr int kPrograms = 200'000;

std::string Report(const Bytecode& code, const RunOptions& options) {
  const Bytecode small = Shrink(code, [&](const Bytecode& candidate) {
    return !(RunOnHost(candidate, options) == RunReference(candidate, options));
  });
  std::string text = "max_cycles " + std::to_string(options.max_cycles) +
                     (options.unknown_nop ? ", unknown opcodes are no-ops" : "") + ", initial";
  for (const int32_t value : options.initial) text += " " + std::to_string(value);
  return text + "\n" + Disassemble(small) + "reference: " + Describe(RunReference(small, options)) +
         "\noperator:  " + Describe(RunOnHost(small, options)) + "\n";
}

TEST(FluxDifferential, OneByOne) {
  RandomProgramGenerator generator(20240601);
  std::vector<int> errors(9);
  for (int i = 0; i < kPrograms; ++i) {
    const RandomCase random = generator.Next();
    const RunResult expected = RunReference(random.bytecode, random.options);
    ++errors[expected.error];
    ASSERT_EQ(RunOnHost(random.bytecode, random.options), expected)
        << "program " << i << ", shrunk: " << Report(random.bytecode, random.options);
  }
  // The generator must produce every kind of end.
  for (size_t error = 0; error < errors.size(); ++error) {
    EXPECT_GT(errors[error], 0) << "no program ended with error " << error;
  }
}

TEST(FluxDifferential, AsBatches) {
  RandomProgramGenerator generator(42);
  for (int b = 0; b < 300; ++b) {
    HostBatch batch;
    batch.offsets = {0};
    batch.wanted.clear();
    for (uint32_t r = 0; r < 16; ++r) batch.wanted.push_back(15 - r);
    batch.initial_width = 16;
    batch.max_cycles = generator.Below(1000);
    batch.unknown_nop = generator.Below(2) == 0;
    batch.chunks = 1 + generator.Below(5);
    std::vector<Bytecode> programs;
    // One program over many inputs, programs selected by index, or one program for each run.
    const bool one = b % 3 == 0;
    const bool indexed = b % 3 == 1;
    const uint32_t count = one ? 1 : 1 + generator.Below(300);
    for (uint32_t p = 0; p < count; ++p) {
      const RandomCase random = generator.Next();
      programs.push_back(random.bytecode);
      batch.bytecode.insert(batch.bytecode.end(), random.bytecode.begin(), random.bytecode.end());
      batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
    }
    batch.count = one || indexed ? 1 + generator.Below(500) : count;
    std::vector<RunOptions> options;
    for (int64_t i = 0; i < batch.count; ++i) {
      if (indexed) batch.index.push_back(generator.Below(count));
      // Half of the runs have the same input as the run before.
      options.push_back(i > 0 && generator.Below(2) == 0 ? options.back()
                                                         : generator.Next().options);
      batch.initial.insert(batch.initial.end(), options.back().initial.begin(),
                           options.back().initial.end());
      options.back().max_cycles = batch.max_cycles;
      options.back().unknown_nop = batch.unknown_nop;
    }
    const HostResults results = RunOnHost(batch);
    ASSERT_EQ(results.status, CompletionStatus::kOk);
    for (int64_t i = 0; i < batch.count; ++i) {
      const Bytecode& program = programs[one ? 0 : indexed ? batch.index[i] : i];
      const RunResult expected = RunReference(program, options[i]);
      RunResult actual;
      for (size_t r = 0; r < 16; ++r) actual.registers[15 - r] = results.registers[i * 16 + r];
      actual.error = results.errors[i];
      actual.cycles = results.cycles[i];
      ASSERT_EQ(actual, expected) << "batch " << b << ", run " << i << "\n"
                                  << Disassemble(program) << Describe(actual) << "\n"
                                  << Describe(expected);
    }
  }
}

// Tests the shrinker itself: it reduces a long program to the one relevant instruction.
TEST(FluxShrink, KeepsTheRelevantInstruction) {
  RandomProgramGenerator generator(3);
  Bytecode code;
  while (code.size() < 400) {
    const Bytecode more = generator.Next().bytecode;
    code.insert(code.end(), more.begin(), more.end());
  }
  code.insert(code.begin() + 123, {0xee, 0xdd});
  const Bytecode small = Shrink(code, [](const Bytecode& candidate) {
    for (size_t i = 0; i + 1 < candidate.size(); ++i) {
      if (candidate[i] == 0xee && candidate[i + 1] == 0xdd) return true;
    }
    return false;
  });
  EXPECT_EQ(small, (Bytecode{0xee, 0xdd}));
}

}  // namespace
}  // namespace resident::flux
