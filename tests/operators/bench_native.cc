#include "tests/operators/bench_native.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "runtime/flux/assembler.h"
#include "tests/daemon/daemon.h"
#include "tests/support/bench_report.h"

namespace resident::testing {
namespace {

using client::FluxBatch;
using client::Installation;
using Clock = std::chrono::steady_clock;

constexpr uint32_t kRunsOnGpu = 1 << 20;
constexpr uint32_t kRunsOnCpu = 8'192;
constexpr int kRepetitions = 15;  // Batches of each form.

struct Program {
  std::string name;
  std::string text;
  // Initial R0, R1 and R2 of a run; `shared`: all runs start as run 0 does.
  std::array<int32_t, 3> (*initial)(uint32_t run);
  bool shared;
  uint64_t max_cycles;
};

std::array<int32_t, 3> Thousand(uint32_t) { return {0, 1'000, 0}; }
std::array<int32_t, 3> FiveThousand(uint32_t) { return {0, 5'000, 0}; }
std::array<int32_t, 3> ToHundredThousand(uint32_t run) {
  return {0, static_cast<int32_t>(run % 100'000) + 1, 0};
}
// Two numbers without a common divisor are frequent, and the algorithm takes about 20 steps.
std::array<int32_t, 3> TwoLarge(uint32_t run) {
  return {0, static_cast<int32_t>(run * 2654435761u >> 2 | 1),
          static_cast<int32_t>(run * 2246822519u >> 2 | 1)};
}

constexpr char kSum[] =
    "again: MUL R2, R1, R1\nXOR R2, R2, R1\nADD R0, R0, R2\nLOOP R1, again\nHALT";
constexpr char kCalls[] =
    "again: CALL sub\nLOOP R1, again\nHALT\nsub: PUSH R1\nADDI R0, 3\nPOP R2\nRET";
constexpr char kCollatz[] =
    "MOVI R3, 1\nMOVI R4, 3\nagain: AND R2, R1, R3\nJZ R2, even\nMUL R1, R1, R4\nINC R1\nJMP next\n"
    "even: SHR R1, R1, R3\nnext: INC R0\nSUB R5, R1, R3\nJNZ R5, again\nHALT";
constexpr char kGcd[] = "again: MOD R3, R1, R2\nMOV R1, R2\nMOV R2, R3\nJNZ R2, again\nMOV R0, R1";

const Program kPrograms[] = {
    {"sum of 4,001", kSum, Thousand, true, 5'000},
    {"calls of 6,001", kCalls, Thousand, true, 7'000},
    {"collatz, inputs to 100,000", kCollatz, ToHundredThousand, false, 5'000},
    {"gcd with MOD", kGcd, TwoLarge, false, 1'000},
};
const Program kLong = {"sum of 20,001", kSum, FiveThousand, true, 21'000};

class Bench {
 public:
  Bench()
      : daemon_({"--park_after=0", "--staging_mib=64"}),
        client_(Must(client::Client::Connect(daemon_.address()), "connect")),
        operators_(*client_) {
    runs_ = daemon_.Device().engine() == "cpu" ? kRunsOnCpu : kRunsOnGpu;
  }

  int Run(const std::string& out) {
    int number = 0;
    for (const Program& program : kPrograms) Device(program, absl::StrCat("program_", number++));
    Client(kLong, "long_program");
    for (const int instructions : {10, 300}) Ready(instructions);
    report_.Write(out, {{"device", daemon_.Device().name()}, {"runs", runs_}});
    return 0;
  }

 private:
  struct Measured {
    std::vector<double> device_s;
    std::vector<double> client_s;
    double instructions = 0;
  };

  std::string Install(const std::string& name, const flux::Bytecode& code,
                      v1::InstallHeader::Native native) {
    Installation installation =
        Installation::Bytecode(name, {reinterpret_cast<const char*>(code.data()), code.size()});
    installation.WaitFor(v1::VERSION_STATE_ACTIVE);
    installation.header().set_native(native);
    std::string message;
    Must(operators_.Install(installation,
                            [&](const v1::InstallResponse& progress) {
                              message += progress.message();
                              return true;
                            }),
         "install");
    return message;
  }

  FluxBatch MakeBatch(const Program& program, const std::string& name) const {
    std::vector<int32_t> inputs;
    for (uint32_t run = 0; run < (program.shared ? 1 : runs_); ++run) {
      const std::array<int32_t, 3> initial = program.initial(run);
      inputs.insert(inputs.end(), initial.begin(), initial.end());
    }
    FluxBatch batch;
    batch.Operator(name).Inputs(inputs, 3).Runs(runs_).MaxCycles(program.max_cycles);
    return batch;
  }

  client::Result Once(FluxBatch& batch, Measured* measured) {
    const auto began = Clock::now();
    client::Result result = Must(client_->Run(batch), "run");
    measured->client_s.push_back(std::chrono::duration<double>(Clock::now() - began).count());
    if (!result.ok()) Fail("a batch failed");
    double device_ns = 0;
    for (const uint32_t ns : result.message().device_ns()) device_ns += ns;
    measured->device_s.push_back(device_ns * 1e-9);
    measured->instructions = 0;
    for (const uint32_t cycles : result.cycles()) measured->instructions += cycles;
    return result;
  }

  // Runs both forms alternately.
  std::pair<Measured, Measured> Both(const Program& program, const std::string& name) {
    const flux::Bytecode code = Must(flux::Assemble(program.text), "assemble");
    const std::string note = Install(name, code, v1::InstallHeader::NATIVE_WAIT);
    if (note != "native code serves") Fail(note);
    Install(name + "_interpreted", code, v1::InstallHeader::NATIVE_OFF);
    FluxBatch native = MakeBatch(program, name);
    FluxBatch interpreted = MakeBatch(program, name + "_interpreted");
    std::pair<Measured, Measured> measured;
    for (int i = 0; i <= kRepetitions; ++i) {
      const client::Result a = Once(native, &measured.first);
      const client::Result b = Once(interpreted, &measured.second);
      if (!std::ranges::equal(a.registers(), b.registers()) ||
          !std::ranges::equal(a.cycles(), b.cycles()) ||
          !std::ranges::equal(a.flux_errors(), b.flux_errors())) {
        Fail("the results differ");
      }
      if (i == 0) measured = {};  // The first one warms up.
    }
    return measured;
  }

  void Device(const Program& program, const std::string& name) {
    const auto [native, interpreted] = Both(program, name);
    report_.Add(absl::StrCat("native, ", program.name, ", device"),
                native.instructions / Percentile(native.device_s, 0.5), "instr/s", "interpreter",
                interpreted.instructions / Percentile(interpreted.device_s, 0.5));
  }

  void Client(const Program& program, const std::string& name) {
    const auto [native, interpreted] = Both(program, name);
    report_.Add(absl::StrCat("native, ", program.name, ", client"),
                native.instructions / Percentile(native.client_s, 0.5), "instr/s", "interpreter",
                interpreted.instructions / Percentile(interpreted.client_s, 0.5));
  }

  // A program with a branch in every fourth instruction, and different in each call.
  flux::Bytecode MakeProgram(int instructions) {
    flux::Bytecode code;
    const auto byte = [&](uint32_t below) { return static_cast<uint8_t>(random_() % below); };
    for (int i = 0; i < instructions - 1; ++i) {
      if (i % 4 == 3 && i < instructions - 3) {
        code.insert(code.end(), {static_cast<uint8_t>(0x3c + byte(4)), byte(16), 8, 0});
      } else {
        const uint8_t arithmetic[] = {0x20, 0x21, 0x22, 0x25, 0x26, 0x27, 0x28, 0x29};
        code.insert(code.end(), {arithmetic[byte(8)], byte(16), byte(16), byte(16)});
      }
    }
    code.push_back(0x00);
    return code;
  }

  void Ready(int instructions) {
    std::vector<double> native_ms;
    std::vector<double> interpreted_ms;
    for (int i = 0; i < 7; ++i) {
      const flux::Bytecode code = MakeProgram(instructions);
      const std::string name = absl::StrCat("ready_", instructions, "_", i);
      const auto began = Clock::now();
      const std::string note = Install(name, code, v1::InstallHeader::NATIVE_WAIT);
      const auto native = Clock::now();
      Install(name + "_interpreted", code, v1::InstallHeader::NATIVE_OFF);
      const auto interpreted = Clock::now();
      if (note != "native code serves") Fail(note);
      native_ms.push_back(std::chrono::duration<double, std::milli>(native - began).count());
      interpreted_ms.push_back(
          std::chrono::duration<double, std::milli>(interpreted - native).count());
    }
    report_.Add(absl::StrCat("install until native code serves, ", instructions, " instructions"),
                Percentile(native_ms, 0.5), "ms", "until the interpreter serves",
                Percentile(interpreted_ms, 0.5));
  }

  const Daemon daemon_;
  const std::unique_ptr<client::Client> client_;
  client::Operators operators_;
  uint32_t runs_ = 0;
  std::mt19937 random_{std::random_device()()};
  BenchReport report_;
};

}  // namespace

int BenchNative(const std::string& out) { return Bench().Run(out); }

}  // namespace resident::testing
