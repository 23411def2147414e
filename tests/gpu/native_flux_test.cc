// Random FLUX programs as native code on a real engine, beside the reference interpreter: at many
// limits of cycles, and in tasks whose runs differ, so that the lanes of a warp diverge.
// RESIDENT_TEST_ENGINE selects the engine. The programs are compiled in this process.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/flux/isa.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/translator.h"
#include "tests/flux/engine_runs.h"
#include "tests/flux/native_units.h"
#include "tests/flux/program_runs.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"
#include "tests/support/engine_harness.h"

namespace resident::flux {
namespace {

using resident::testing::EngineHarness;

constexpr size_t kPrograms = 2'000;
// The module of such a unit has up to 0.7 MiB; a unit may have 1 MiB of machine code.
constexpr size_t kProgramsOfUnit = 25;
// More than a block has threads, and the last warp is partial.
constexpr size_t kRunsOfTask = 300;
constexpr uint64_t kMaxBytecode = 64 << 10;
constexpr int kMaxReports = 3;

struct Program {
  RandomCase random;
  Translation translation;
};

std::vector<Program> MakePrograms(RandomProgramGenerator& generator) {
  std::vector<Program> programs;
  while (programs.size() < kPrograms) {
    RandomCase random = generator.NextForTranslation();
    const Bytecode& code = random.bytecode;
    auto translation =
        Translate(std::string_view(reinterpret_cast<const char*>(code.data()), code.size()),
                  random.options.unknown_nop);
    EXPECT_TRUE(translation.ok()) << translation.status() << "\n" << Disassemble(code);
    if (!translation.ok()) return programs;
    programs.push_back({std::move(random), *std::move(translation)});
  }
  return programs;
}

// Sources with kProgramsOfUnit programs each.
std::vector<std::string> Sources(const std::vector<Program>& programs) {
  std::vector<std::string> sources;
  std::vector<Translation> unit;
  for (const Program& program : programs) {
    unit.push_back(program.translation);
    if (unit.size() < kProgramsOfUnit) continue;
    sources.push_back(ManyProgramsSource(unit));
    unit.clear();
  }
  return sources;
}

class Comparison {
 public:
  Comparison(EngineHarness& harness, uint64_t seed)
      : engine_(harness, kRunsOfTask, kMaxBytecode), seed_(seed) {}

  // Performs the runs of program `number` as one task. They have one limit.
  void Compare(const Program& program, size_t number, const std::vector<RunOptions>& runs) {
    const Bytecode& code = program.random.bytecode;
    HostBatch batch;
    batch.bytecode = code;
    batch.offsets = {0, static_cast<uint32_t>(code.size())};
    // Selects the program of the unit.
    batch.bytecode.push_back(static_cast<uint8_t>(number % kProgramsOfUnit));
    const std::vector<RunResult> results =
        engine_.Run(batch, runs, NativeSlot(number / kProgramsOfUnit));
    for (size_t k = 0; k < runs.size(); ++k) {
      const RunResult expected = RunReference(code, runs[k]);
      ++errors_[expected.error];
      if (results[k] == expected) continue;
      ++reports_;
      ADD_FAILURE() << "seed " << seed_ << ", program " << number << ", run " << k << " of "
                    << runs.size() << ", max_cycles " << runs[k].max_cycles
                    << (runs[k].unknown_nop ? ", unknown opcodes are no-ops" : "") << "\n"
                    << Disassemble(code) << "initial registers " << Describe(runs[k].initial)
                    << "\nreference: " << Describe(expected)
                    << "\nengine:    " << Describe(results[k]);
      return;  // The task's other runs would show the same.
    }
  }

  bool enough() const { return reports_ >= kMaxReports; }
  const std::vector<uint64_t>& errors() const { return errors_; }

 private:
  EngineRuns engine_;
  const uint64_t seed_;
  std::vector<uint64_t> errors_ = std::vector<uint64_t>(kErrors);
  int reports_ = 0;
};

TEST(NativeFluxOnTheGpu, RandomProgramsAgreeWithTheReference) {
  static_assert(kPrograms % kProgramsOfUnit == 0 && kProgramsOfUnit <= 256);
  const uint64_t seed = std::random_device{}();
  RandomProgramGenerator generator(seed);
  const std::vector<Program> programs = MakePrograms(generator);
  ASSERT_EQ(programs.size(), kPrograms) << "seed " << seed;
  EngineHarness::Options options;
  options.engine.start_parked = true;
  EngineHarness harness(options);
  const auto generation = NativeGeneration(Sources(programs), harness.info().traits.compile_target);
  ASSERT_TRUE(generation.ok()) << "seed " << seed << ": " << generation.status();
  harness.Launch(*generation);

  Comparison comparison(harness, seed);
  size_t known_stack = 0;
  for (size_t i = 0; i < programs.size(); ++i) {
    const RandomCase& random = programs[i].random;
    for (const RunOptions& run : MakeRuns(random, generator)) {
      comparison.Compare(programs[i], i, {run});
      if (comparison.enough()) return;
    }
    RunOptions first = random.options;
    if (generator.Below(2) == 0) first.max_cycles = 3000;
    comparison.Compare(programs[i], i, RunsOfTask(first, kRunsOfTask, generator));
    if (comparison.enough()) return;
    known_stack += programs[i].translation.form == FlowGraph::Form::kKnownStack;
  }
  for (size_t error = 0; error < comparison.errors().size(); ++error) {
    EXPECT_GT(comparison.errors()[error], 0u) << "no run ended with error " << error;
  }
  EXPECT_GT(known_stack, 0u);
  EXPECT_LT(known_stack, kPrograms);
}

}  // namespace
}  // namespace resident::flux
