// Tests the native code of installed FLUX programs in a real daemon: it follows an install, gives
// the interpreter's results, and the interpreter serves whenever it does not: before, after a
// fault, after an eviction, without a compiler. Batches that run meanwhile are answered once and
// correctly.
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/flux/assembler.h"
#include "tests/daemon/daemon.h"
#include "tests/flux/reference.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using client::FluxBatch;
using client::Installation;
using flux::Bytecode;
using ::testing::HasSubstr;

constexpr uint32_t kRuns = 500;

// R0 = the sum of i * i ^ i for i = R1 .. 1. A division fails if R5 is 0.
constexpr char kSum[] =
    "again: MUL R2, R1, R1\nXOR R2, R2, R1\nADD R0, R0, R2\nLOOP R1, again\nDIV R6, R4, R5\nHALT";
// Saves registers and calls itself, so that its stack is in memory.
constexpr char kRecursive[] =
    "CALL sub\nHALT\nsub: JLT R1, end\nPUSH R1\nADDI R1, -3\nCALL sub\nPOP R2\nADD R0, R0, R2\n"
    "end: RET";
// Has no result in closed form, which a compiler could compute instead.
constexpr char kForever[] = "again: MUL R0, R0, R0\nXOR R0, R0, R1\nINC R1\nJMP again";

Bytecode MustAssemble(std::string_view text) {
  auto code = flux::Assemble(std::string(text));
  EXPECT_TRUE(code.ok()) << code.status();
  return code.ok() ? *code : Bytecode();
}

Installation Program(const std::string& name, const Bytecode& code,
                     v1::InstallHeader::Native native = v1::InstallHeader::NATIVE_WAIT) {
  Installation installation =
      Installation::Bytecode(name, {reinterpret_cast<const char*>(code.data()), code.size()});
  installation.WaitFor(v1::VERSION_STATE_ACTIVE);
  installation.header().set_native(native);
  return installation;
}

class NativeFormsTest : public ::testing::Test {
 protected:
  explicit NativeFormsTest(const std::vector<std::string>& flags = {}) { Start(flags); }

  void Start(const std::vector<std::string>& flags) {
    operators_.reset();
    client_.reset();
    daemon_.reset();
    daemon_ = std::make_unique<Daemon>(flags);
    auto connected = client::Client::Connect(daemon_->address());
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    operators_ = std::make_unique<client::Operators>(*client_);
  }

  // Installs the program and returns the message of its state LOADED.
  std::string MustInstall(const Installation& installation) {
    std::string message;
    const auto installed = operators_->Install(installation, [&](const auto& progress) {
      message += progress.message();
      return true;
    });
    EXPECT_TRUE(installed.ok()) << installed.status();
    return message;
  }

  v1::NativeForm Native(const std::string& name, uint32_t version = 1) {
    const auto op = client_->DescribeOperator(name);
    EXPECT_TRUE(op.ok()) << op.status();
    if (!op.ok()) return {};
    for (const v1::OperatorVersion& candidate : op->versions()) {
      if (candidate.version() == version) return candidate.native();
    }
    return {};
  }
  // The value of the metric resident_flux_native_NAME.
  std::string Metric(const std::string& name) {
    const std::string page = daemon_->Metrics();
    const std::string line = absl::StrCat("\nresident_flux_native_", name, " ");
    const size_t at = page.find(line);
    if (at == std::string::npos) return "";
    const size_t value = at + line.size();
    return page.substr(value, page.find('\n', value) - value);
  }
  bool AwaitServes(const std::string& name, uint32_t version = 1) {
    return Eventually(
        [&] { return Native(name, version).state() == v1::NativeForm::STATE_SERVING; });
  }

  // Runs the operator on random inputs, and compares all results with the reference.
  void ExpectExact(const std::string& name, const Bytecode& code, uint64_t max_cycles = 5'000,
                   uint32_t version = 1) {
    std::vector<int32_t> inputs(kRuns * 16);
    for (int32_t& value : inputs) value = static_cast<int32_t>(random_() % 400) - 4;
    FluxBatch batch;
    batch.Operator(name).Inputs(inputs, 16).MaxCycles(max_cycles);
    batch.Wanted({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
    const auto result = client_->Run(batch);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->message().version(), version);
    ASSERT_EQ(result->registers().size(), inputs.size());
    for (uint32_t run = 0; run < kRuns; ++run) {
      flux::RunOptions options;
      options.max_cycles = max_cycles;
      std::copy_n(&inputs[run * 16], 16, options.initial.begin());
      const flux::RunResult expected = RunReference(code, options);
      flux::RunResult actual;
      std::copy_n(&result->registers()[run * 16], 16, actual.registers.begin());
      actual.error = result->flux_errors().empty() ? 0 : result->flux_errors()[run];
      actual.cycles = result->cycles()[run];
      ASSERT_EQ(actual, expected) << name << ", run " << run;
    }
  }

  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Operators> operators_;
  std::mt19937 random_{1};
};

TEST_F(NativeFormsTest, AnInstallCanWaitForItAndItsResultsAreExact) {
  for (const auto& [name, text] : {std::pair{"total", kSum}, {"recursive", kRecursive}}) {
    const Bytecode code = MustAssemble(text);
    EXPECT_EQ(MustInstall(Program(name, code)), "native code serves");
    EXPECT_EQ(Native(name).state(), v1::NativeForm::STATE_SERVING);
    for (const uint64_t limit : {0, 1, 17, 300, 5'000}) ExpectExact(name, code, limit);
  }
  EXPECT_EQ(Metric("forms"), "2");
  EXPECT_EQ(Metric("mismatch_total"), "0");
  // The first batch of each also ran on the interpreter.
  EXPECT_EQ(Metric("comparisons_total"), "2");
  EXPECT_EQ(Metric("quarantined_total"), "0");
}

TEST_F(NativeFormsTest, ItFollowsAnInstallAndBatchesAreExactThroughout) {
  const Bytecode code = MustAssemble(kSum);
  EXPECT_EQ(MustInstall(Program("total", code, v1::InstallHeader::NATIVE_UNSPECIFIED)), "");
  ExpectExact("total", code);
  while (Native("total").state() == v1::NativeForm::STATE_COMPILING) ExpectExact("total", code);
  EXPECT_EQ(Native("total").state(), v1::NativeForm::STATE_SERVING);
  ExpectExact("total", code);
}

TEST_F(NativeFormsTest, EachVersionHasItsOwn) {
  const Bytecode first = MustAssemble(kSum);
  const Bytecode second = MustAssemble(kRecursive);
  MustInstall(Program("op", first));
  MustInstall(Program("op", second));
  ExpectExact("op", second, 5'000, /*version=*/2);
  ASSERT_TRUE(operators_->Rollback("op").ok());
  EXPECT_EQ(Native("op", 1).state(), v1::NativeForm::STATE_SERVING);
  EXPECT_EQ(Native("op", 2).state(), v1::NativeForm::STATE_SERVING);
  ExpectExact("op", first, 5'000, /*version=*/1);
  ASSERT_TRUE(operators_->Activate("op").ok());
  ExpectExact("op", second, 5'000, /*version=*/2);
  ASSERT_TRUE(operators_->Remove("op").ok());
  EXPECT_TRUE(Eventually([&] { return Metric("forms") == "0"; }));
}

TEST_F(NativeFormsTest, ItServesOnlyTheMeaningOfUnknownOpcodesThatItWasMadeFor) {
  // JNZ R1, over the unknown opcode 0x30; INC R0.
  const Bytecode code = {0x3d, 1, 8, 0, 0x30, 0, 0, 0, 0x08, 0};
  Installation unknown = Program("unknown", code);
  unknown.Add(client::Example().Value(std::vector<int32_t>{0, 1}).Value(std::vector<int32_t>{1}));
  MustInstall(unknown);
  EXPECT_EQ(Native("unknown").state(), v1::NativeForm::STATE_SERVING);
  ExpectExact("unknown", code);
  FluxBatch batch;
  batch.Operator("unknown").Runs(1).UnknownOpcodeIsNop();
  const auto result = client_->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->registers()[0], 1);
  EXPECT_EQ(result->cycles()[0], 3u);
}

TEST_F(NativeFormsTest, WhatTheTranslatorRefusesIsInterpreted) {
  Bytecode code(2000, 0x08);  // 1,000 times INC R0.
  for (size_t i = 1; i < code.size(); i += 2) code[i] = 0;
  EXPECT_THAT(MustInstall(Program("long", code)),
              HasSubstr("the program has more than 1000 instructions that a run can reach"));
  EXPECT_EQ(Native("long").state(), v1::NativeForm::STATE_REFUSED);
  ExpectExact("long", code);
}

// Only on the CPU, where a signal that ends the engine counts as a fault of the tasks that run.
class NativeFormsOnTheCpuTest : public NativeFormsTest {};

TEST_F(NativeFormsOnTheCpuTest, AFaultTakesTheFormOutOfServiceAndNotTheProgram) {
  const Bytecode code = MustAssemble(kForever);
  MustInstall(Program("forever", code));
  MustInstall(Program("twin", code));
  const pid_t engine = daemon_->engine_pid();
  // Batches one after the other from several threads, so that one always runs.
  std::atomic<bool> done{false};
  std::atomic<int> aborted{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      while (!done) {
        FluxBatch batch;
        batch.Operator("forever").Runs(500).MaxCycles(1'000'000);
        const auto result = client_->Run(batch);
        if (!result.ok()) continue;
        for (const int status : result->message().status()) {
          aborted += status == v1::TASK_STATUS_ABORTED ? 1 : 0;
        }
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return daemon_->Device().ring().in_flight() > 1; }));
  kill(engine, SIGSEGV);
  EXPECT_TRUE(daemon_->AwaitAnotherEngine(engine));
  done = true;
  for (std::thread& caller : callers) caller.join();
  EXPECT_GT(aborted, 0);
  EXPECT_TRUE(
      Eventually([&] { return Native("forever").state() == v1::NativeForm::STATE_QUARANTINED; }));
  EXPECT_THAT(Native("forever").reason(), HasSubstr("running: forever version 1"));
  // Equal programs have the same code.
  EXPECT_EQ(Native("twin").state(), v1::NativeForm::STATE_QUARANTINED);
  ExpectExact("forever", code);
  const auto op = client_->DescribeOperator("forever");
  ASSERT_TRUE(op.ok());
  EXPECT_EQ(op->versions(0).state(), "active");
  EXPECT_EQ(Metric("quarantined_total"), "2");
  EXPECT_THAT(MustInstall(Program("again", code)), HasSubstr("it was quarantined before"));
  ExpectExact("again", code);
}

class NativeFormsOff : public NativeFormsTest {
 protected:
  NativeFormsOff() : NativeFormsTest({"--flux_native=off"}) {}
};

TEST_F(NativeFormsOff, TheInterpreterServes) {
  const Bytecode code = MustAssemble(kSum);
  EXPECT_EQ(MustInstall(Program("total", code)),
            "no native code: the daemon has --flux_native=off");
  EXPECT_EQ(Native("total").state(), v1::NativeForm::STATE_OFF);
  ExpectExact("total", code);
}

class FewNativeForms : public NativeFormsTest {
 protected:
  FewNativeForms() : NativeFormsTest({"--max_native_forms=2"}) {}
};

TEST_F(FewNativeForms, TheLeastRecentlyUsedOneMakesRoomAndReturnsWhenActivated) {
  const Bytecode code = MustAssemble(kSum);
  MustInstall(Program("a", code));
  MustInstall(Program("b", code));
  ExpectExact("a", code);
  MustInstall(Program("c", code));
  EXPECT_TRUE(Eventually([&] { return Native("b").state() == v1::NativeForm::STATE_EVICTED; }));
  for (const char* name : {"a", "b", "c"}) ExpectExact(name, code);
  // Another version of b serves; then the first one again.
  MustInstall(Program("b", MustAssemble(kRecursive), v1::InstallHeader::NATIVE_OFF));
  ASSERT_TRUE(operators_->Rollback("b").ok());
  EXPECT_TRUE(AwaitServes("b"));
  EXPECT_TRUE(Eventually([&] { return Native("a").state() == v1::NativeForm::STATE_EVICTED; }));
  for (const char* name : {"a", "b", "c"}) ExpectExact(name, code);
}

TEST_F(NativeFormsTest, ARestartMakesItAgain) {
  const TempFolder state("native_state");
  const std::vector<std::string> flags = {absl::StrCat("--state_dir=", state.path())};
  const Bytecode code = MustAssemble(kSum);
  Start(flags);
  MustInstall(Program("total", code));
  MustInstall(Program("plain", code, v1::InstallHeader::NATIVE_OFF));
  Start(flags);
  ExpectExact("total", code);
  EXPECT_TRUE(AwaitServes("total"));
  ExpectExact("total", code);
  EXPECT_EQ(Native("plain").state(), v1::NativeForm::STATE_OFF);
  ExpectExact("plain", code);
}

TEST_F(NativeFormsTest, BatchesAreExactWhileFormsComeAndGo) {
  const Bytecode code = MustAssemble(kSum);
  MustInstall(Program("total", code, v1::InstallHeader::NATIVE_OFF));
  std::atomic<bool> done{false};
  std::atomic<uint64_t> batches{0};
  std::thread changes([&] {
    client::Operators operators(*client_);
    // Until enough batches have run meanwhile.
    for (int i = 0; i < 4 || batches <= 10; ++i) {
      // The same program under another number: interpreted, then native, then replaced.
      EXPECT_TRUE(operators.Install(Program("total", code)).ok());
      EXPECT_TRUE(operators.Rollback("total").ok());
      EXPECT_TRUE(operators.Activate("total").ok());
    }
    done = true;
  });
  std::mt19937 random(7);
  while (!done) {
    const auto n = static_cast<int32_t>(random() % 1000 + 1);
    FluxBatch batch;
    const std::vector<int32_t> input = {0, n, 0, 0, 1, 1};
    batch.Operator("total").Inputs(input, 6).Runs(64).MaxCycles(10'000);
    const auto result = client_->Run(batch);
    ASSERT_TRUE(result.ok()) << result.status();
    uint32_t sum = 0;
    for (uint32_t i = static_cast<uint32_t>(n); i > 0; --i) sum += (i * i) ^ i;
    for (const int32_t value : result->registers()) ASSERT_EQ(static_cast<uint32_t>(value), sum);
    ++batches;
  }
  changes.join();
  EXPECT_GT(batches, 10u);
}

// Only where programs are compiled by the host's compiler.
TEST(NativeFormsOnTheCpu, WithoutACompilerTheInterpreterServes) {
  const Daemon daemon({"--host_compiler=/nonexistent/compiler"});
  const auto client = client::Client::Connect(daemon.address());
  ASSERT_TRUE(client.ok()) << client.status();
  client::Operators operators(**client);
  const Bytecode code = MustAssemble(kSum);
  std::string message;
  ASSERT_TRUE(operators
                  .Install(Program("total", code),
                           [&](const auto& progress) {
                             message += progress.message();
                             return true;
                           })
                  .ok());
  EXPECT_THAT(message, HasSubstr("there is no host compiler '/nonexistent/compiler'"));
  FluxBatch batch;
  batch.Operator("total").Runs(1).Inputs(std::vector<int32_t>{0, 2, 0, 0, 1, 1}, 6);
  const auto result = (*client)->Run(batch);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->registers()[0], 6);
}

}  // namespace
}  // namespace resident::testing
