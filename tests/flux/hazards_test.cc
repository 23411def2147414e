// Hazards of the instruction set, one test each: decisions where its sources are incomplete
// or contradictory, and errors of other implementations. Each is run through the reference
// interpreter and the operator; at the end, all of them as native code.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "runtime/flux/assembler.h"
#include "runtime/flux/host_operator.h"
#include "tests/flux/native_programs.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

constexpr int32_t kMinInt = std::numeric_limits<int32_t>::min();

// What the tests have run, for the last one.
struct Case {
  Bytecode code;
  RunOptions options;
};
std::vector<Case>& Cases() {
  static auto* const cases = new std::vector<Case>;
  return *cases;
}

// Runs both interpreters and returns their result, which must be equal.
RunResult RunBytes(const Bytecode& code, const RunOptions& options = {}) {
  const RunResult reference = RunReference(code, options);
  const RunResult engine = RunOnHost(code, options);
  EXPECT_EQ(engine.registers, reference.registers);
  EXPECT_EQ(engine.error, reference.error);
  EXPECT_EQ(engine.cycles, reference.cycles);
  Cases().push_back({code, options});
  return reference;
}

RunResult RunText(const std::string& text, const RunOptions& options = {}) {
  const auto code = Assemble(text);
  EXPECT_TRUE(code.ok()) << code.status();
  return code.ok() ? RunBytes(*code, options) : RunResult{};
}

TEST(FluxHazards, EndOfCodeWithoutHaltIsNotAnError) {
  const RunResult result = RunText("INC R0");
  EXPECT_EQ(result.error, 0u);
  EXPECT_EQ(result.cycles, 1u);
  EXPECT_EQ(result.registers[0], 1);
}

TEST(FluxHazards, EmptyProgramIsNotAnError) {
  const RunResult result = RunBytes({});
  EXPECT_EQ(result.error, 0u);
  EXPECT_EQ(result.cycles, 0u);
}

TEST(FluxHazards, BranchBeforeTheStartIsOutOfBounds) {
  EXPECT_EQ(RunText("JMP -1").error, 6u);
  EXPECT_EQ(RunText("LOOP R0, 1", {.initial = {5}}).error, 6u);
}

TEST(FluxHazards, BranchPastTheEndIsOutOfBoundsAndToTheEndIsNot) {
  EXPECT_EQ(RunText("JMP +5").error, 6u);
  EXPECT_EQ(RunText("JMP +4").error, 0u);
}

TEST(FluxHazards, ReturnOutOfBounds) {
  EXPECT_EQ(RunText("PUSH R0\nRET", {.initial = {4}}).error, 6u);
  EXPECT_EQ(RunText("PUSH R0\nRET", {.initial = {kMinInt}}).error, 6u);
  EXPECT_EQ(RunText("PUSH R0\nRET", {.initial = {3}}).error, 0u);
}

TEST(FluxHazards, BranchOffsetIsRelativeToTheBranchItself) {
  const RunResult result = RunText("JZ R0, +7\nMOVI R1, 1\nHALT");
  EXPECT_EQ(result.registers[1], 0);
  EXPECT_EQ(result.cycles, 2u);
}

TEST(FluxHazards, CycleLimitIsThatOfTheBatch) {
  const std::string forever = "again: JMP again";
  EXPECT_EQ(RunText(forever, {.max_cycles = 7}).cycles, 7u);
  EXPECT_EQ(RunText(forever, {.max_cycles = 7}).error, 5u);
  EXPECT_EQ(RunText(forever).cycles, 1'000'000u);
  EXPECT_EQ(RunText(forever, {.max_cycles = 2'500'000}).cycles, 2'500'000u);
}

TEST(FluxHazards, HaltAsTheLastInstructionOfTheLimitIsNotAnError) {
  EXPECT_EQ(RunText("NOP\nHALT", {.max_cycles = 2}).error, 0u);
  EXPECT_EQ(RunText("NOP\nHALT", {.max_cycles = 1}).error, 5u);
}

TEST(FluxHazards, EndOfCodeAtTheLimitIsNotAnError) {
  EXPECT_EQ(RunText("NOP\nNOP", {.max_cycles = 2}).error, 0u);
}

TEST(FluxHazards, CycleLimitIsCheckedBeforeATruncatedInstruction) {
  const Bytecode code = {0x01, 0x20, 0, 0};  // NOP, and the beginning of ADD.
  const RunResult at_the_limit = RunBytes(code, {.max_cycles = 1});
  EXPECT_EQ(at_the_limit.error, 5u);
  EXPECT_EQ(at_the_limit.cycles, 1u);
  const RunResult beyond = RunBytes(code, {.max_cycles = 2});
  EXPECT_EQ(beyond.error, 6u);
  EXPECT_EQ(beyond.cycles, 1u);
}

TEST(FluxHazards, BranchOutOfBoundsIsReportedEvenAtTheCycleLimit) {
  for (const char* text : {"NOP\nJMP +100", "NOP\nJMP -100", "NOP\nLOOP R0, 100"}) {
    const RunResult result = RunText(text, {.initial = {5}, .max_cycles = 2});
    EXPECT_EQ(result.error, 6u) << text;
    EXPECT_EQ(result.cycles, 2u) << text;
  }
}

TEST(FluxHazards, BranchThatIsNotTakenMayHaveAnyTarget) {
  for (const char* text : {"JZ R0, +100", "JZ R0, -100", "JNZ R1, +100", "JLT R0, -100"}) {
    const RunResult result = RunText(text, {.initial = {5}});
    EXPECT_EQ(result.error, 0u) << text;
    EXPECT_EQ(result.cycles, 1u) << text;
  }
  // LOOP jumps back until the counter reaches 0.
  EXPECT_EQ(RunText("LOOP R0, 100", {.initial = {1}}).error, 0u);
}

TEST(FluxHazards, UnknownOpcodesKeepTheirLengthAsNoOps) {
  for (int opcode = 0; opcode < 256; ++opcode) {
    const bool known = opcode <= 0x02 || (opcode >= 0x08 && opcode <= 0x0d) || opcode == 0x17 ||
                       (opcode >= 0x18 && opcode <= 0x1a) || (opcode >= 0x20 && opcode <= 0x2f) ||
                       opcode == 0x3a || (opcode >= 0x3c && opcode <= 0x40) || opcode == 0x43 ||
                       opcode == 0x46 || opcode == 0x4a || (opcode >= 0x50 && opcode <= 0x53);
    if (known) continue;
    const size_t length = opcode < 0x08   ? 1
                          : opcode < 0x18 ? 2
                          : opcode < 0x20 ? 3
                          : opcode < 0x50 ? 4
                                          : 1;
    Bytecode code(length, 0xff);
    code[0] = static_cast<uint8_t>(opcode);
    code.insert(code.end(), {0x08, 0x00});
    const RunResult skipped = RunBytes(code, {.unknown_nop = true});
    EXPECT_EQ(skipped.error, 0u) << opcode;
    EXPECT_EQ(skipped.cycles, 2u) << opcode;
    EXPECT_EQ(skipped.registers[0], 1) << opcode;
    const RunResult refused = RunBytes(code);
    EXPECT_EQ(refused.error, 4u) << opcode;
    EXPECT_EQ(refused.cycles, 1u) << opcode;
  }
}

TEST(FluxHazards, OpcodesFromD0OnHaveLengthOne) {
  for (int opcode = 0xd0; opcode < 0x100; ++opcode) {
    const Bytecode code = {static_cast<uint8_t>(opcode), 0x08, 0x00, 0x00};
    EXPECT_EQ(RunBytes(code, {.unknown_nop = true}).registers[0], 1) << opcode;
  }
}

TEST(FluxHazards, AgentOpcodesFailEvenIfUnknownOpcodesAreNoOps) {
  for (const char* text : {"TELL", "ASK", "BCAST", "RECV"}) {
    EXPECT_EQ(RunText(text, {.unknown_nop = true}).error, 7u) << text;
    EXPECT_EQ(RunText(text).error, 7u) << text;
  }
}

TEST(FluxHazards, TruncatedInstructionCountsNoCycle) {
  for (const Bytecode& code : {Bytecode{0x20, 0, 0}, Bytecode{0x18, 0}, Bytecode{0x08},
                               Bytecode{0x30, 0, 0}, Bytecode{0x0d}}) {
    const RunResult result = RunBytes(code);
    EXPECT_EQ(result.error, 6u);
    EXPECT_EQ(result.cycles, 0u);
  }
}

TEST(FluxHazards, RegistersAreCheckedBeforeAnythingElse) {
  EXPECT_EQ(RunBytes({0x23, 0, 0, 16}).error, 8u);    // Not division by zero.
  EXPECT_EQ(RunBytes({0x0d, 16}).error, 8u);          // Not stack underflow.
  EXPECT_EQ(RunBytes({0x3d, 16, 100, 0}).error, 8u);  // Not out of bounds.
}

TEST(FluxHazards, UnusedBytesAreIgnored) {
  EXPECT_EQ(RunBytes({0x43, 0xff, 4, 0}).error, 0u);  // JMP
  EXPECT_EQ(RunBytes({0x4a, 0xff, 4, 0}).error, 0u);  // CALL
  EXPECT_EQ(RunBytes({0x3a, 1, 0, 0xff}).error, 0u);  // MOV
  EXPECT_EQ(RunBytes({0x3c, 0, 4, 0xff}).error, 0u);  // JZ
  EXPECT_EQ(RunBytes({0x17, 0xff}).error, 0u);        // STRIPCONF
}

TEST(FluxHazards, FailingInstructionsCountAndDoNotChangeRegisters) {
  const RunOptions options = {.initial = {7, 8}};
  const RunResult result = RunText("DIV R1, R0, R2", options);
  EXPECT_EQ(result.error, 1u);
  EXPECT_EQ(result.cycles, 1u);
  EXPECT_EQ(result.registers, options.initial);
}

TEST(FluxHazards, DivisionOfTheLeastValueByMinusOneDoesNotTrap) {
  const RunResult result =
      RunText("DIV R2, R0, R1\nMOD R3, R0, R1", {.initial = {kMinInt, -1, 5, 5}});
  EXPECT_EQ(result.error, 0u);
  EXPECT_EQ(result.registers[2], kMinInt);
  EXPECT_EQ(result.registers[3], 0);
}

TEST(FluxHazards, StackHolds256ValuesOfPushAndCallTogether) {
  // 255 pushes and one call fit; the next push does not.
  const std::string text =
      "MOVI16 R1, 255\nagain: PUSH R1\nLOOP R1, again\nCALL sub\nsub: PUSH R0\nHALT";
  const RunResult result = RunText(text);
  EXPECT_EQ(result.error, 2u);
  EXPECT_EQ(result.cycles, 1u + 2 * 255 + 2);
}

TEST(FluxHazards, LoopDistanceIsUnsigned) {
  // 0x8000 back from the end of 32,768 NOPs, twice.
  Bytecode code(0x8000, 0x01);
  code.insert(code.end(), {0x46, 0x00, 0x00, 0x80});
  const RunResult result = RunBytes(code, {.initial = {3}});
  EXPECT_EQ(result.error, 0u);
  EXPECT_EQ(result.cycles, 3u * 0x8001);
}

TEST(FluxHazards, JumpIntoTheMiddleOfAnInstruction) {
  const RunResult result = RunBytes({0x43, 0, 6, 0, 0x40, 0, 0x08, 0x01});
  EXPECT_EQ(result.error, 0u);
  EXPECT_EQ(result.registers[1], 1);
}

TEST(FluxHazards, RunsDoNotSeeEachOthersRegistersOrStack) {
  HostBatch batch;
  batch.bytecode = {0x0c, 0x00, 0x08, 0x05, 0x00,         // PUSH R0; INC R5; HALT
                    0x3a, 0x00, 0x05, 0x00, 0x0d, 0x00};  // MOV R0, R5; POP R0
  batch.offsets = {0, 5, 11};
  batch.index = {0, 1, 0, 1};
  batch.count = 4;
  const HostResults results = RunOnHost(batch);
  EXPECT_EQ(results.errors[1], 3);
  EXPECT_EQ(results.errors[3], 3);
  EXPECT_EQ(results.registers[1], 0);
}

// Last: it repeats what the tests above have run. Programs that the translator refuses have long
// code without branches.
TEST(FluxHazards, AllOfThemAsNativeCode) {
  std::vector<NativeProgram> programs;
  std::vector<RunOptions> options;
  for (const Case& each : Cases()) {
    if (each.code.size() > 1000) continue;
    programs.push_back({each.code, each.options.unknown_nop});
    options.push_back(each.options);
  }
  ASSERT_GT(programs.size(), 100u);
  const auto native = NativePrograms::Compile(programs);
  ASSERT_TRUE(native.ok()) << native.status();
  for (size_t i = 0; i < programs.size(); ++i) {
    EXPECT_EQ((*native)->Run(i, options[i]), RunReference(programs[i].bytecode, options[i]))
        << "program " << i << "\n"
        << (*native)->translation(i).program;
  }
}

}  // namespace
}  // namespace resident::flux
