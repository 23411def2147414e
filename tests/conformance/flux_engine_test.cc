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
  std::vector<RunResult> Run(const std::vector<Case>& cases) {
    const int64_t count = static_cast<int64_t>(cases.size());
    Bytecode bytecode;
    std::vector<uint32_t> offsets = {0};
    std::vector<int32_t> initial;
    for (const Case& c : cases) {
      bytecode.insert(bytecode.end(), c.bytecode.begin(), c.bytecode.end());
      offsets.push_back(static_cast<uint32_t>(bytecode.size()));
      initial.insert(initial.end(), c.options.initial.begin(), c.options.initial.end());
    }
    if (bytecode.size() > code_.size) std::abort();  // The programs of a batch are far smaller.
    std::memcpy(code_.span.host, bytecode.data(), bytecode.size());
    std::memcpy(offsets_.span.host, offsets.data(), offsets.size() * 4);
    std::memcpy(initial_.span.host, initial.data(), initial.size() * 4);
    std::memset(registers_.span.host, 0xa5, count * 16 * 4);
    std::memset(errors_.span.host, 0xa5, count);
    std::memset(cycles_.span.host, 0xa5, count * 4);
    const RunOptions& options = cases[0].options;
    const Argument arguments[] = {
        DenseTensor(code_.span.address, DType::kU8, {static_cast<int64_t>(bytecode.size())}),
        DenseTensor(offsets_.span.address, DType::kU32, {count + 1}),
        DenseTensor(0, DType::kU32, {0}),
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
    ring_->Publish(sequence, ArgumentTask(OperatorSlot("flux.run"), kRunArguments,
                                          static_cast<uint32_t>((count + 255) / 256)));
    harness_.Ring();
    TaskCompletion completion{};
    while (ring_->Consume([&](uint64_t, const TaskCompletion& c) { completion = c; }) == 0) {
    }
    EXPECT_EQ(completion.status, CompletionStatus::kOk) << "detail " << completion.detail;
    std::vector<RunResult> results(cases.size());
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
    uint64_t size;
    EngineHarness::Span span;
  };

  EngineHarness harness_{{}};
  std::shared_ptr<HostRing> ring_ = harness_.NewRing();
  Area code_{harness_, uint64_t{8} << 20};
  Area offsets_{harness_, (kBatch + 1) * 4};
  Area initial_{harness_, kBatch * 16 * 4};
  Area registers_{harness_, kBatch * 16 * 4};
  Area errors_{harness_, kBatch};
  Area cycles_{harness_, kBatch * 4};
};

std::string Describe(const RunResult& result) {
  std::string text = "error " + std::to_string(result.error) + ", cycles " +
                     std::to_string(result.cycles) + ", registers";
  for (const int32_t value : result.registers) text += " " + std::to_string(value);
  return text;
}

TEST(FluxOnTheEngine, RandomProgramsAgreeWithTheReference) {
  FluxEngine engine;
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

}  // namespace
}  // namespace resident::flux
