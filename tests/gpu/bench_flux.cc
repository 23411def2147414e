#include "tests/gpu/bench_flux.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/flux/run_arguments.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/run.h"
#include "runtime/flux/translator.h"
#include "tests/flux/benchmark_programs.h"
#include "tests/flux/native_units.h"
#include "tests/flux/reference.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {
namespace {

using flux::Bytecode;

constexpr uint32_t kRuns = 1u << 20;
constexpr uint32_t kRegisters = 16;
constexpr uint64_t kAllRegisters = 0xfedcba9876543210;
constexpr uint64_t kMaxCycles = 1'000'000;
// Of one program; of several programs that are not in order; of programs in order.
constexpr uint32_t kRunsOfChunk = 1024;
constexpr uint32_t kMixedRunsOfChunk = 256;
constexpr uint32_t kOrderedRunsOfChunk = 1024;
// Runs that are compared with the reference, and the last one.
constexpr uint32_t kCheckedRuns = std::min(4096u, kRuns);
constexpr uint32_t kIndexedPrograms = 16;
constexpr uint8_t kPattern = 0xa5;

// A program that is measured interpreted and as native code, with one input for each run.
struct Program {
  const char* what;
  const char* native_what;
  const Bytecode* code;
  // Initial registers of a run.
  uint32_t width;
  void (*initial)(std::mt19937& random, int32_t* registers);
};

template <int32_t kMin, int32_t kMax>
int32_t Between(std::mt19937& random) {
  return std::uniform_int_distribution<int32_t>(kMin, kMax)(random);
}

const Program kPrograms[] = {
    {"FLUX, one program over 1 Mi inputs", "native FLUX, sum over 1 Mi inputs", &flux::kSumOfInput,
     2, [](std::mt19937&, int32_t* registers) { registers[1] = 1000; }},
    {"FLUX, calls of 6,001 over 1 Mi inputs", "native FLUX, calls of 6,001 over 1 Mi inputs",
     &flux::kCallsOfInput, 2, [](std::mt19937&, int32_t* registers) { registers[1] = 1000; }},
    {"FLUX, collatz over 1 Mi inputs to 100,000",
     "native FLUX, collatz over 1 Mi inputs to 100,000", &flux::kCollatzOfInput, 2,
     [](std::mt19937& random, int32_t* registers) { registers[1] = Between<1, 100'000>(random); }},
    {"FLUX, gcd with MOD over 1 Mi inputs", "native FLUX, gcd with MOD over 1 Mi inputs",
     &flux::kGcdOfInput, 3,
     [](std::mt19937& random, int32_t* registers) {
       registers[1] = static_cast<int32_t>(random());
       registers[2] = static_cast<int32_t>(random());
     }},
};

// The programs and inputs of kRuns runs.
struct Batch {
  std::string what;
  Bytecode bytecode;
  std::vector<uint32_t> offsets;
  std::vector<uint32_t> index;
  std::vector<int32_t> initial;  // As many for each run.
  uint32_t runs_of_chunk = kRunsOfChunk;

  uint32_t width() const { return static_cast<uint32_t>(initial.size() / kRuns); }
  flux::RunResult Reference(uint32_t run) const {
    flux::RunOptions options;
    std::copy_n(initial.begin() + run * width(), width(), options.initial.begin());
    options.max_cycles = kMaxCycles;
    if (offsets.empty()) return flux::RunReference(bytecode, options);
    const uint32_t program = index.empty() ? run : index[run];
    const Bytecode code(bytecode.begin() + offsets[program],
                        bytecode.begin() + offsets[program + 1]);
    return flux::RunReference(code, options);
  }
};

// All registers of all runs, run after run.
struct Results {
  std::vector<int32_t> registers = std::vector<int32_t>(kRegisters * kRuns);
  std::vector<uint8_t> errors = std::vector<uint8_t>(kRuns);
  std::vector<uint32_t> cycles = std::vector<uint32_t>(kRuns);

  bool operator==(const Results&) const = default;
};

struct Measured {
  double instructions_per_s = 0;
  Results results;
};

class FluxBench {
 public:
  FluxBench(DeviceTasks& device, BenchReport& report, int rounds)
      : device_(device), report_(report), rounds_(rounds) {}

  void Run(bool native) {
    // Those that are also measured as native code, with their inputs in device memory.
    std::vector<Interpreted> interpreted;
    for (const Program& program : kPrograms) {
      interpreted.push_back(Interpret(MakeBatch(program)));
      if (&program == &kPrograms[0]) {
        CheckSums(interpreted[0]);
        Uneven();
        DifferentPrograms();
      }
    }
    IndexedPrograms();
    for (size_t i = 0; native && i < interpreted.size(); ++i) {
      const Measured measured = Measure(interpreted[i].arguments, kRunsOfChunk, flux::NativeSlot(i),
                                        kPrograms[i].native_what);
      if (measured.results != interpreted[i].measured.results) {
        Fail(absl::StrCat(kPrograms[i].native_what, ": the results differ from the interpreter's"));
      }
      report_.Add(kPrograms[i].native_what, measured.instructions_per_s, "instr/s", "interpreter",
                  interpreted[i].measured.instructions_per_s);
    }
  }

 private:
  struct Interpreted {
    Batch batch;
    std::vector<Argument> arguments;
    Measured measured;
  };

  Batch MakeBatch(const Program& program) {
    Batch batch;
    batch.what = program.what;
    batch.bytecode = *program.code;
    batch.initial.assign(uint64_t{program.width} * kRuns, 0);
    for (uint32_t i = 0; i < kRuns; ++i) {
      program.initial(random_, &batch.initial[uint64_t{i} * program.width]);
    }
    return batch;
  }

  void Uneven() {
    Batch batch = MakeBatch(kPrograms[0]);
    batch.what += ", uneven";
    for (uint32_t i = 0; i < kRuns; ++i) batch.initial[2 * i + 1] = Between<900, 1000>(random_);
    CheckSums(Interpret(std::move(batch)));
  }

  void DifferentPrograms() {
    Batch batch = MakeLoops(kRuns, /*rounds=*/50);
    batch.what = "FLUX, 1 Mi different programs";
    batch.runs_of_chunk = kMixedRunsOfChunk;
    Interpret(std::move(batch));
  }

  void IndexedPrograms() {
    Batch batch = MakeLoops(kIndexedPrograms, /*rounds=*/200);
    for (uint32_t i = 0; i < kRuns; ++i) {
      batch.index.push_back(Between<0, kIndexedPrograms - 1>(random_));
    }
    batch.what = "FLUX, 1 Mi runs of 16 programs by index, at random";
    batch.runs_of_chunk = kMixedRunsOfChunk;
    const double at_random = Interpret(batch).measured.instructions_per_s;
    std::sort(batch.index.begin(), batch.index.end());
    batch.what = "FLUX, 1 Mi runs of 16 programs by index, sorted";
    batch.runs_of_chunk = kOrderedRunsOfChunk;
    Interpret(batch, "at random", at_random);
  }

  // Programs of random arithmetic on random registers, in a loop.
  Batch MakeLoops(uint32_t programs, int32_t rounds) {
    Batch batch;
    const auto any_register = [&] { return static_cast<uint8_t>(Between<2, 15>(random_)); };
    for (uint32_t p = 0; p < programs; ++p) {
      batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
      for (int k = 0; k < 8; ++k) {
        auto opcode = static_cast<uint8_t>(Between<0x20, 0x2f>(random_));
        if (opcode == 0x23 || opcode == 0x24) opcode = 0x20;  // No division by zero.
        for (const uint8_t byte : {opcode, any_register(), any_register(), any_register()}) {
          batch.bytecode.push_back(byte);
        }
      }
      constexpr uint8_t kEnd[] = {0x46, 1, 0x20, 0,  // LOOP R1, -32
                                  0x3a, 0, 2,    0,  // MOV R0, R2
                                  0x00};
      batch.bytecode.insert(batch.bytecode.end(), std::begin(kEnd), std::end(kEnd));
    }
    batch.offsets.push_back(static_cast<uint32_t>(batch.bytecode.size()));
    batch.initial.assign(uint64_t{kRegisters} * kRuns, 0);
    for (uint64_t i = 0; i < kRuns; ++i) {
      int32_t* const registers = &batch.initial[kRegisters * i];
      for (uint32_t r = 2; r < kRegisters; ++r) registers[r] = static_cast<int32_t>(random_());
      registers[1] = rounds;
    }
    return batch;
  }

  // Measures and checks the interpreter, and adds its figure, beside a baseline if there is one.
  Interpreted Interpret(Batch batch, const std::string& baseline = "", double baseline_value = 0) {
    std::vector<Argument> arguments = MakeArguments(batch);
    Measured measured =
        Measure(arguments, batch.runs_of_chunk, OperatorSlot("flux.run"), batch.what);
    Check(batch, measured.results);
    report_.Add(batch.what, measured.instructions_per_s, "instr/s", baseline, baseline_value);
    return {std::move(batch), std::move(arguments), std::move(measured)};
  }

  // The arguments of a task that returns R0 of each run, with the inputs in device memory.
  std::vector<Argument> MakeArguments(const Batch& batch) {
    const auto upload = [&](const auto& values, DType dtype) {
      const uint64_t bytes = values.size() * sizeof(values[0]);
      return DenseTensor(device_.Upload(values.data(), bytes), dtype,
                         {static_cast<int64_t>(values.size())});
    };
    std::vector<Argument> arguments(flux::kRunArguments);
    arguments[flux::kRunBytecode] = upload(batch.bytecode, DType::kU8);
    arguments[flux::kRunOffsets] = upload(batch.offsets, DType::kU32);
    arguments[flux::kRunIndex] = upload(batch.index, DType::kU32);
    arguments[flux::kRunInitial] = upload(batch.initial, DType::kI32);
    arguments[flux::kRunErrors] = DenseTensor(errors_, DType::kU8, {kRuns});
    arguments[flux::kRunCycles] = DenseTensor(cycles_, DType::kU32, {kRuns});
    arguments[flux::kRunCount] = Scalar(kRuns);
    arguments[flux::kRunInitialWidth] = Scalar(batch.width());
    arguments[flux::kRunInitialShared] = Scalar(0);
    arguments[flux::kRunMaxCycles] = Scalar(kMaxCycles);
    arguments[flux::kRunUnknownNop] = Scalar(0);
    SetWanted(arguments, 1);
    return arguments;
  }

  void SetWanted(std::vector<Argument>& arguments, uint32_t count) const {
    arguments[flux::kRunRegisters] = DenseTensor(registers_, DType::kI32, {int64_t{count} * kRuns});
    arguments[flux::kRunWanted] = Scalar(kAllRegisters);
    arguments[flux::kRunWantedCount] = Scalar(count);
  }

  // The median rate of tasks that return R0, and the results of one that returns all registers.
  Measured Measure(const std::vector<Argument>& arguments, uint32_t runs_of_chunk, uint32_t slot,
                   const std::string& what) {
    const TaskDescriptor task =
        ArgumentTask(slot, flux::kRunArguments, (kRuns + runs_of_chunk - 1) / runs_of_chunk);
    std::vector<double> seconds;
    for (int i = 0; i <= rounds_; ++i) {
      const auto start = std::chrono::steady_clock::now();
      device_.RunTask(task, arguments);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (i > 0) seconds.push_back(took.count());
    }
    Measured measured;
    Results& results = measured.results;
    const uint64_t register_bytes = results.registers.size() * 4;
    device_.Copy(registers_, pattern_, register_bytes);
    device_.Copy(errors_, pattern_, kRuns);
    device_.Copy(cycles_, pattern_, uint64_t{4} * kRuns);
    std::vector<Argument> all = arguments;
    SetWanted(all, kRegisters);
    device_.RunTask(task, all);
    device_.Download(results.registers.data(), registers_, register_bytes);
    device_.Download(results.errors.data(), errors_, kRuns);
    device_.Download(results.cycles.data(), cycles_, uint64_t{4} * kRuns);
    double instructions = 0;
    for (uint32_t i = 0; i < kRuns; ++i) {
      if (results.errors[i] != 0) {
        Fail(absl::StrCat("run ", i, " of ", what, " ended with error ", results.errors[i]));
      }
      instructions += results.cycles[i];
    }
    measured.instructions_per_s = instructions / Percentile(seconds, 0.5);
    return measured;
  }

  static void Check(const Batch& batch, const Results& results) {
    for (uint32_t k = 0; k <= kCheckedRuns; ++k) {
      const uint32_t i = std::min(k * (kRuns / kCheckedRuns), kRuns - 1);
      const flux::RunResult expected = batch.Reference(i);
      if (results.cycles[i] != expected.cycles || results.errors[i] != expected.error ||
          !std::equal(expected.registers.begin(), expected.registers.end(),
                      results.registers.begin() + uint64_t{kRegisters} * i)) {
        Fail(absl::StrCat("run ", i, " of ", batch.what, " is wrong"));
      }
    }
  }

  // All runs of kSumOfInput.
  static void CheckSums(const Interpreted& of) {
    for (uint64_t i = 0; i < kRuns; ++i) {
      uint32_t sum = 0;
      for (uint32_t k = static_cast<uint32_t>(of.batch.initial[2 * i + 1]); k > 0; --k) {
        sum += k * k;
      }
      if (static_cast<uint32_t>(of.measured.results.registers[kRegisters * i]) != sum) {
        Fail(absl::StrCat("run ", i, " of ", of.batch.what, " is wrong"));
      }
    }
  }

  DeviceTasks& device_;
  BenchReport& report_;
  const int rounds_;
  std::mt19937 random_{std::random_device{}()};
  // Outputs, in device memory, and what fills them before the task whose results are checked.
  const uint64_t registers_ = device_.Memory(uint64_t{4} * kRegisters * kRuns);
  const uint64_t errors_ = device_.Memory(kRuns);
  const uint64_t cycles_ = device_.Memory(uint64_t{4} * kRuns);
  const uint64_t pattern_ = [this] {
    const std::vector<uint8_t> pattern(uint64_t{4} * kRegisters * kRuns, kPattern);
    return device_.Upload(pattern.data(), pattern.size());
  }();
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Generation>> NativeFluxGeneration(
    const std::string& compile_target) {
  std::vector<std::string> sources;
  for (const Program& program : kPrograms) {
    const std::string_view code(reinterpret_cast<const char*>(program.code->data()),
                                program.code->size());
    ASSIGN_OR_RETURN(const flux::Translation translation,
                     flux::Translate(code, /*unknown_nop=*/false));
    sources.push_back(flux::NativeOperatorSource(flux::kNativeFunction, translation));
  }
  return flux::NativeGeneration(sources, compile_target);
}

void BenchFlux(DeviceTasks& device, BenchReport& report, int rounds, bool native) {
  FluxBench(device, report, rounds).Run(native);
}

}  // namespace resident::testing
