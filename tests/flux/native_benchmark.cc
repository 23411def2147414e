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

// The inputs of the next kRuns runs: R1 is 0, or another number each time, up to kMaxInput, so that
// the processor cannot learn the branches of the runs.
class Inputs {
 public:
  explicit Inputs(bool varied) : varied_(varied), values_(kRuns) {}

  std::vector<RegisterValues>& Next() {
    for (RegisterValues& input : values_) {
      input = {};
      if (!varied_) continue;
      next_ = (next_ + kStep) % kMaxInput;
      input[1] = static_cast<int32_t>(next_ + 1);
    }
    return values_;
  }

 private:
  static constexpr uint32_t kMaxInput = 100'003;  // A prime: each number occurs once in a cycle.
  static constexpr uint32_t kStep = 40'503;

  const bool varied_;
  uint32_t next_ = 0;
  std::vector<RegisterValues> values_;
};

double InterpreterRate(const Bytecode& program, Inputs inputs) {
  HostBatch batch;
  batch.bytecode = program;
  batch.count = kRuns;
  batch.initial_width = 16;
  uint64_t instructions = 0;
  const auto start = Clock::now();
  do {
    batch.initial.clear();
    for (const RegisterValues& input : inputs.Next()) {
      batch.initial.insert(batch.initial.end(), input.begin(), input.end());
    }
    for (const uint32_t cycles : RunOnHost(batch).cycles) instructions += cycles;
  } while (Seconds(start) < 0.5);
  return static_cast<double>(instructions) / Seconds(start);
}

void Native(benchmark::State& state, const Bytecode& program, bool varied) {
  Inputs inputs(varied);
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
    std::vector<RegisterValues>& registers = inputs.Next();
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
