// FLUX on one core: instructions per second of native code (runtime/flux/translator.h), with the
// engines' interpreter as the baseline.
//
//   bazel run //tests/flux:native_benchmark
//
// "instr/s" counts FLUX instructions of native code. "x_interpreter" is the ratio to the
// interpreter on the same program and inputs, measured in the same run. "compile_ms" is the time of
// the host's compiler for the program, with the options of installed operators.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <vector>

#include "runtime/flux/host_operator.h"
#include "tests/flux/benchmark_programs.h"
#include "tests/flux/native_programs.h"

namespace resident::flux {
namespace {

constexpr size_t kRuns = 1024;
constexpr uint64_t kMaxCycles = 1'000'000;

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double InterpreterRate(const Bytecode& program, const std::vector<RegisterValues>& inputs) {
  HostBatch batch;
  batch.bytecode = program;
  batch.count = kRuns;
  batch.initial_width = 16;
  for (const RegisterValues& input : inputs) {
    batch.initial.insert(batch.initial.end(), input.begin(), input.end());
  }
  uint64_t instructions = 0;
  const auto start = Clock::now();
  do {
    for (const uint32_t cycles : RunOnHost(batch).cycles) instructions += cycles;
  } while (Seconds(start) < 0.5);
  return static_cast<double>(instructions) / Seconds(start);
}

void Native(benchmark::State& state, const Bytecode& program, bool varied) {
  std::vector<RegisterValues> inputs(kRuns);
  for (size_t i = 0; i < kRuns; ++i) inputs[i][1] = varied ? static_cast<int32_t>(i * 97 + 1) : 0;
  const auto compiling = Clock::now();
  const auto native = NativePrograms::Compile({{program, /*unknown_nop=*/false}}, "-O3");
  const double compile_s = Seconds(compiling);
  if (!native.ok()) {
    state.SkipWithError(native.status().ToString().c_str());
    return;
  }
  const double interpreter = InterpreterRate(program, inputs);
  uint64_t instructions = 0;
  const auto start = Clock::now();
  for (auto _ : state) {
    std::vector<RegisterValues> registers = inputs;
    instructions += (*native)->RunAll(0, registers, kMaxCycles);
    benchmark::DoNotOptimize(registers.data());
  }
  const double rate = static_cast<double>(instructions) / Seconds(start);
  state.counters["instr/s"] = rate;
  state.counters["interpreter/s"] = interpreter;
  state.counters["x_interpreter"] = rate / interpreter;
  state.counters["compile_ms"] = compile_s * 1e3;
}

BENCHMARK_CAPTURE(Native, sum, kSum, false);
BENCHMARK_CAPTURE(Native, collatz, kCollatz, false);
BENCHMARK_CAPTURE(Native, collatz_of_varied_inputs, kCollatzOfInput, true);
BENCHMARK_CAPTURE(Native, calls, kCalls, false);

}  // namespace
}  // namespace resident::flux

BENCHMARK_MAIN();
