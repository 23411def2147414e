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
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

// R0 = sum of i * i ^ i over i = R1 .. 1: arithmetic in a loop.
const Bytecode kSum = {0x40, 1, 0xe8, 3,         // MOVI16 R1, 1000
                       0x22, 2, 1,    1,         // MUL R2, R1, R1
                       0x27, 2, 2,    1,         // XOR R2, R2, R1
                       0x20, 0, 0,    2,         // ADD R0, R0, R2
                       0x46, 1, 12,   0, 0x00};  // LOOP R1, 12; HALT

// Collatz steps of R1: branches that depend on the data.
const Bytecode kCollatz = {0x18, 3, 1,        //  0 MOVI R3, 1
                           0x18, 4, 3,        //  3 MOVI R4, 3
                           0x40, 1, 97,   0,  //  6 MOVI16 R1, 97
                           0x25, 2, 1,    3,  // 10 AND R2, R1, R3
                           0x3c, 2, 14,   0,  // 14 JZ R2, 28
                           0x22, 1, 1,    4,  // 18 MUL R1, R1, R4
                           0x08, 1,           // 22 INC R1
                           0x43, 0, 8,    0,  // 24 JMP 32
                           0x29, 1, 1,    3,  // 28 SHR R1, R1, R3
                           0x08, 0,           // 32 INC R0
                           0x21, 5, 1,    3,  // 34 SUB R5, R1, R3
                           0x3d, 5, 0xe4, 0,  // 38 JNZ R5, 10
                           0x00};

// Calls a subroutine 1,000 times: the stack.
const Bytecode kCalls = {0x40, 1, 0xe8, 3,  //  0 MOVI16 R1, 1000
                         0x4a, 0, 9,    0,  //  4 CALL 13
                         0x46, 1, 4,    0,  //  8 LOOP R1, 4
                         0x00,              // 12 HALT
                         0x0c, 1,           // 13 PUSH R1
                         0x19, 0, 3,        // 15 ADDI R0, 3
                         0x0d, 2,           // 18 POP R2
                         0x02};             // 20 RET

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
BENCHMARK(ManyPrograms);

}  // namespace
}  // namespace resident::flux

BENCHMARK_MAIN();
