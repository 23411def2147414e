// Runs random FLUX programs through the ring of a real engine and compares registers,
// errors and cycles with the reference interpreter. RESIDENT_TEST_ENGINE selects the
// engine. A program with a difference is shrunk, on the engine, and printed as assembly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/flux/run_arguments.h"
#include "runtime/flux/disassembler.h"
#include "runtime/flux/host_operator.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"
#include "tests/support/engine_harness.h"

namespace resident::flux {
namespace {

using resident::testing::ArgumentTask;
using resident::testing::DenseTensor;
using resident::testing::EngineHarness;
using resident::testing::OperatorSlot;
using resident::testing::Scalar;

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

  // The runs of a batch's programs, one for each element of `runs`; the batch has the bytecode,
  // offsets, index and chunks.
  std::vector<RunResult> Run(const HostBatch& batch, const std::vector<RunOptions>& runs) {
    const auto count = static_cast<int64_t>(runs.size());
    const auto size = [](const auto& values) { return static_cast<int64_t>(values.size()); };
    std::vector<int32_t> initial;
    for (const RunOptions& run : runs) {
      initial.insert(initial.end(), run.initial.begin(), run.initial.end());
    }
    code_.Set(batch.bytecode);
    offsets_.Set(batch.offsets);
    index_.Set(batch.index);
    initial_.Set(initial);
    registers_.Poison();
    errors_.Poison();
    cycles_.Poison();
    const RunOptions& options = runs[0];
    const Argument arguments[] = {
        DenseTensor(code_.span.address, DType::kU8, {size(batch.bytecode)}),
        DenseTensor(offsets_.span.address, DType::kU32, {size(batch.offsets)}),
        DenseTensor(index_.span.address, DType::kU32, {size(batch.index)}),
        DenseTensor(initial_.span.address, DType::kI32, {count * 16}),
        DenseTensor(registers_.span.address, DType::kI32, {count * 16}),
        DenseTensor(errors_.span.address, DType::kU8, {count}),
        DenseTensor(cycles_.span.address, DType::kU32, {count}),
        Scalar(count),
        Scalar(16),
        Scalar(0),
        Scalar(0xfedcba9876543210),
        Scalar(16),
        Scalar(options.max_cycles),
        Scalar(options.unknown_nop),
    };
    const uint64_t sequence = *ring_->Reserve();
    std::copy(std::begin(arguments), std::end(arguments), ring_->arguments(sequence)->arguments);
    ring_->Publish(sequence, ArgumentTask(OperatorSlot("flux.run"), kRunArguments, batch.chunks));
    harness_.Ring();
    TaskCompletion completion{};
    while (ring_->Consume([&](uint64_t, const TaskCompletion& c) { completion = c; }) == 0) {
    }
    EXPECT_EQ(completion.status, CompletionStatus::kOk) << "detail " << completion.detail;
    std::vector<RunResult> results(runs.size());
    for (int64_t i = 0; i < count; ++i) {
      for (int r = 0; r < 16; ++r) {
        results[i].registers[r] = registers_.span.as<int32_t>()[i * 16 + r];
      }
      results[i].error = errors_.span.as<uint8_t>()[i];
      results[i].cycles = cycles_.span.as<uint32_t>()[i];
    }
    return results;
  }

  RunResult RunOne(const Bytecode& bytecode, const RunOptions& options) {
    return Run({{bytecode, options}})[0];
  }

 private:
  struct Area {
    Area(EngineHarness& harness, uint64_t bytes) : size(bytes), span(harness.Staging(bytes)) {}
    template <typename T>
    void Set(const std::vector<T>& values) {
      const uint64_t bytes = values.size() * sizeof(T);
      if (bytes > size) std::abort();  // The batches are far smaller.
      if (bytes != 0) std::memcpy(span.host, values.data(), bytes);
    }
    void Poison() { std::memset(span.host, 0xa5, size); }
    uint64_t size;
    EngineHarness::Span span;
  };

  EngineHarness harness_{{}};
  std::shared_ptr<HostRing> ring_ = harness_.NewRing();
  Area code_{harness_, uint64_t{8} << 20};
  Area offsets_{harness_, (kBatch + 1) * 4};
  Area index_{harness_, kBatch * 4};
  Area initial_{harness_, kBatch * 16 * 4};
  Area registers_{harness_, kBatch * 16 * 4};
  Area errors_{harness_, kBatch};
  Area cycles_{harness_, kBatch * 4};
};

// One engine for all tests: on a GPU the kernel of the first one keeps running.
FluxEngine& SharedEngine() {
  static FluxEngine* const engine = new FluxEngine;
  return *engine;
}

std::string Describe(const RunResult& result) {
  std::string text = "error " + std::to_string(result.error) + ", cycles " +
                     std::to_string(result.cycles) + ", registers";
  for (const int32_t value : result.registers) text += " " + std::to_string(value);
  return text;
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
             << "\nengine:    " << Describe(engine.RunOne(small, options));
    }
  }
  for (size_t error = 0; error < errors.size(); ++error) {
    EXPECT_GT(errors[error], 0) << "no program ended with error " << error;
  }
}

// The inputs of several runs of one program: equal to those of the run before, different in one
// register, or arbitrary, so that some runs take the same path for long.
std::vector<RunOptions> RandomRuns(RandomProgramGenerator& generator, const RunOptions& options,
                                   uint32_t count) {
  std::vector<RunOptions> runs = {options};
  const uint32_t kind = generator.Below(4);
  while (runs.size() < count) {
    RunOptions run = runs.back();
    int32_t& one = run.initial[generator.Below(16)];
    if (kind == 1) one = static_cast<int32_t>(static_cast<uint32_t>(one) + generator.Below(3));
    if (kind >= 2 && generator.Below(kind == 2 ? 1 : 8) == 0) {
      run.initial = generator.Next().options.initial;
    }
    runs.push_back(run);
  }
  return runs;
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
        RandomRuns(generator, random.options, 1 + generator.Below(1'300));
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
        RandomRuns(generator, generator.Next().options, 1 + generator.Below(kBatch));
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
