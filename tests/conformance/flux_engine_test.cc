// Runs random FLUX programs through the ring of a real engine and compares registers,
// errors and cycles with the reference interpreter. RESIDENT_TEST_ENGINE selects the
// engine. A program with a difference is shrunk, on the engine, and printed as assembly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/flux/isa.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/host_operator.h"
#include "tests/flux/engine_runs.h"
#include "tests/flux/program_runs.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"
#include "tests/support/engine_harness.h"

namespace resident::flux {
namespace {

using resident::testing::EngineHarness;

constexpr int kPrograms = 100'000;
constexpr int kBatch = 2'000;

// All cases of one batch have the same cycle limit and the same treatment of unknown
// opcodes.
struct Case {
  Bytecode bytecode;
  RunOptions options;
};

class FluxEngine {
 public:
  // Each case is a run with its own program.
  std::vector<RunResult> Run(const std::vector<Case>& cases) {
    std::vector<RunOptions> runs;
    HostBatch batch;
    batch.offsets = {0};
    for (const Case& c : cases) {
      batch.bytecode.insert(batch.bytecode.end(), c.bytecode.begin(), c.bytecode.end());
      batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
      runs.push_back(c.options);
    }
    batch.chunks = static_cast<uint32_t>((cases.size() + 255) / 256);
    return Run(batch, runs);
  }

  std::vector<RunResult> Run(const HostBatch& batch, const std::vector<RunOptions>& runs) {
    return engine_.Run(batch, runs);
  }

  // As one of many programs, so that it is placed as in a large batch.
  RunResult RunOne(const Bytecode& bytecode, const RunOptions& options) {
    return Run(std::vector<Case>(64, {bytecode, options}))[0];
  }

 private:
  EngineHarness harness_{{}};
  EngineRuns engine_{harness_, kBatch, uint64_t{8} << 20};
};

// One engine for all tests: on a GPU the kernel of the first one keeps running.
FluxEngine& SharedEngine() {
  static FluxEngine* const engine = new FluxEngine;
  return *engine;
}

TEST(FluxOnTheEngine, RandomProgramsAgreeWithTheReference) {
  FluxEngine& engine = SharedEngine();
  const uint64_t seed = std::random_device{}();
  RandomProgramGenerator generator(seed);
  std::vector<int> errors(9);
  for (int done = 0; done < kPrograms; done += kBatch) {
    const uint64_t max_cycles = generator.Below(2000);
    const bool unknown_nop = generator.Below(4) == 0;
    std::vector<Case> cases;
    for (int i = 0; i < kBatch; ++i) {
      RandomCase random = generator.Next();
      random.options.max_cycles = max_cycles;
      random.options.unknown_nop = unknown_nop;
      cases.push_back({random.bytecode, random.options});
    }
    const std::vector<RunResult> results = engine.Run(cases);
    for (int i = 0; i < kBatch; ++i) {
      const RunResult expected = RunReference(cases[i].bytecode, cases[i].options);
      ++errors[expected.error];
      if (results[i] == expected) continue;
      const RunOptions& options = cases[i].options;
      const Bytecode small = Shrink(cases[i].bytecode, [&](const Bytecode& candidate) {
        return !(engine.RunOne(candidate, options) == RunReference(candidate, options));
      });
      FAIL() << "seed " << seed << ", program " << done + i << ", shrunk:\n"
             << Disassemble(small) << "reference: " << Describe(RunReference(small, options))
             << "\nengine:    " << Describe(engine.RunOne(small, options))
             << "\nin the batch, program:\n"
             << Disassemble(cases[i].bytecode) << "reference: " << Describe(expected)
             << "\nengine:    " << Describe(results[i]);
    }
  }
  for (size_t error = 0; error < errors.size(); ++error) {
    EXPECT_GT(errors[error], 0) << "no program ended with error " << error;
  }
}

// Programs of which only some of a warp's lanes can be staged, or none, among small ones.
TEST(FluxOnTheEngine, LargeProgramsAmongSmallOnesAgreeWithTheReference) {
  FluxEngine& engine = SharedEngine();
  const uint64_t seed = std::random_device{}();
  RandomProgramGenerator generator(seed);
  for (const size_t bytes : {250u, 600u, 1'500u, 2'500u, 6'400u, 7'000u, 20'000u, 60'000u}) {
    for (const uint32_t one_in : {1u, 8u, 200u}) {
      std::vector<Case> cases(bytes < 10'000 ? 300 : 60);
      for (Case& c : cases) {
        const RandomCase random = generator.NextForTranslation();
        // No-ops, then the program: its branches are relative.
        if (generator.Below(one_in) == 0) c.bytecode.assign(bytes, kNop);
        c.bytecode.insert(c.bytecode.end(), random.bytecode.begin(), random.bytecode.end());
        c.options = random.options;
        c.options.max_cycles = bytes + 500;
        c.options.unknown_nop = false;
      }
      const std::vector<RunResult> results = engine.Run(cases);
      for (size_t i = 0; i < cases.size(); ++i) {
        const RunResult expected = RunReference(cases[i].bytecode, cases[i].options);
        ASSERT_EQ(results[i], expected)
            << "seed " << seed << ", one program in " << one_in << " with " << bytes
            << " bytes more, program " << i << " of " << cases[i].bytecode.size() << " bytes\n"
            << "reference: " << Describe(expected) << "\nengine:    " << Describe(results[i]);
      }
    }
  }
}

TEST(FluxOnTheEngine, OneProgramOverManyInputsAgreesWithTheReference) {
  FluxEngine& engine = SharedEngine();
  const uint64_t seed = std::random_device{}();
  RandomProgramGenerator generator(seed);
  for (int i = 0; i < 2'000; ++i) {
    const RandomCase random = generator.NextForTranslation();
    HostBatch batch;
    batch.bytecode = random.bytecode;
    // Some chunks have more runs than a block has threads, and not a multiple of them.
    batch.chunks = 1 + generator.Below(2);
    const std::vector<RunOptions> runs =
        RunsOfTask(random.options, 1 + generator.Below(1'300), generator);
    const std::vector<RunResult> results = engine.Run(batch, runs);
    for (size_t k = 0; k < runs.size(); ++k) {
      const RunResult expected = RunReference(random.bytecode, runs[k]);
      ASSERT_EQ(results[k], expected)
          << "seed " << seed << ", program " << i << ", run " << k << " of " << runs.size()
          << ", max_cycles " << runs[k].max_cycles << "\n"
          << Disassemble(random.bytecode) << "reference: " << Describe(expected)
          << "\nengine:    " << Describe(results[k]);
    }
  }
}

TEST(FluxOnTheEngine, ProgramsSelectedByIndexAgreeWithTheReference) {
  FluxEngine& engine = SharedEngine();
  const uint64_t seed = std::random_device{}();
  RandomProgramGenerator generator(seed);
  for (int i = 0; i < 200; ++i) {
    HostBatch batch;
    batch.offsets = {0};
    batch.chunks = 1 + generator.Below(3);
    std::vector<Bytecode> programs(1 + generator.Below(i % 2 == 0 ? 8 : 400));
    for (Bytecode& program : programs) {
      program = generator.NextForTranslation().bytecode;
      batch.bytecode.insert(batch.bytecode.end(), program.begin(), program.end());
      batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
    }
    const std::vector<RunOptions> runs =
        RunsOfTask(generator.Next().options, 1 + generator.Below(kBatch), generator);
    for (size_t k = 0; k < runs.size(); ++k) {
      batch.index.push_back(generator.Below(static_cast<uint32_t>(programs.size())));
    }
    if (generator.Below(2) == 0) std::sort(batch.index.begin(), batch.index.end());
    const std::vector<RunResult> results = engine.Run(batch, runs);
    for (size_t k = 0; k < runs.size(); ++k) {
      const Bytecode& program = programs[batch.index[k]];
      const RunResult expected = RunReference(program, runs[k]);
      ASSERT_EQ(results[k], expected)
          << "seed " << seed << ", batch " << i << ", run " << k << " of " << runs.size() << "\n"
          << Disassemble(program) << "reference: " << Describe(expected)
          << "\nengine:    " << Describe(results[k]);
    }
  }
}

}  // namespace
}  // namespace resident::flux
