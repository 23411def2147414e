// FLUX on one core: instructions per second of the engines' interpreter, with the plain
// reference interpreter as the baseline.
//
//   bazel run //tests/flux:interpreter_benchmark
//
// "instr/s" counts FLUX instructions. "x_reference" is the ratio to the reference
// interpreter on the same program, measured in the same run.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/flux/host_operator.h"
#include "tests/flux/benchmark_programs.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

double ReferenceRate(const Bytecode& program) {
  uint64_t instructions = 0;
  const auto start = std::chrono::steady_clock::now();
  std::chrono::duration<double> elapsed{};
  do {
    instructions += RunReference(program).cycles;
    elapsed = std::chrono::steady_clock::now() - start;
  } while (elapsed.count() < 0.2);
  return static_cast<double>(instructions) / elapsed.count();
}

// Runs the batch repeatedly, and reports its rate and the reference's.
void Measure(benchmark::State& state, const HostBatch& batch, double reference) {
  uint64_t instructions = 0;
  const auto start = std::chrono::steady_clock::now();
  for (auto _ : state) {
    const HostResults results = RunOnHost(batch);
    for (const uint32_t cycles : results.cycles) instructions += cycles;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double rate = static_cast<double>(instructions) / elapsed.count();
  state.counters["instr/s"] = rate;
  state.counters["reference/s"] = reference;
  state.counters["x_reference"] = rate / reference;
}

// One program over 1,024 inputs.
void OneProgram(benchmark::State& state, const Bytecode& program) {
  const double reference = ReferenceRate(program);
  HostBatch batch;
  batch.bytecode = program;
  batch.count = 1024;
  Measure(state, batch, reference);
}

// One run at a time.
void OneRun(benchmark::State& state, const Bytecode& program) {
  const double reference = ReferenceRate(program);
  HostBatch batch;
  batch.bytecode = program;
  batch.count = 1;
  Measure(state, batch, reference);
}

// One program whose branches depend on its 1,024 inputs, which are all different.
void VariedInputs(benchmark::State& state) {
  HostBatch batch;
  batch.bytecode = kCollatzOfInput;
  batch.count = 1024;
  batch.initial_width = 2;
  for (int32_t i = 0; i < 1024; ++i) batch.initial.insert(batch.initial.end(), {0, 90 + i});
  Measure(state, batch, ReferenceRate(kCollatz));
}

// 1,024 different programs, each run once for about 100 instructions: each must be decoded
// first.
void ManyPrograms(benchmark::State& state) {
  HostBatch batch;
  batch.offsets.push_back(0);
  for (uint32_t p = 0; p < 1024; ++p) {
    Bytecode program = kSum;
    program[2] = static_cast<uint8_t>(20 + p % 10);
    program[3] = 0;
    batch.bytecode.insert(batch.bytecode.end(), program.begin(), program.end());
    batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
  }
  batch.count = 1024;
  Measure(state, batch, ReferenceRate(kSum));
}

BENCHMARK_CAPTURE(OneProgram, sum, kSum);
BENCHMARK_CAPTURE(OneProgram, collatz, kCollatz);
BENCHMARK_CAPTURE(OneProgram, calls, kCalls);
BENCHMARK_CAPTURE(OneRun, sum, kSum);
BENCHMARK_CAPTURE(OneRun, collatz, kCollatz);
BENCHMARK_CAPTURE(OneRun, calls, kCalls);
BENCHMARK(VariedInputs);
BENCHMARK(ManyPrograms);

}  // namespace
}  // namespace resident::flux

BENCHMARK_MAIN();
