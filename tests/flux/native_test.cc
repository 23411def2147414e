// Native code of FLUX programs beside the reference interpreter: random programs at many limits of
// cycles, all test vectors, what exceeds the translator's limits; and that these tests notice the
// errors that a translator is likely to have.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/flux/isa.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/translator.h"
#include "runtime/flux/vectors.h"
#include "tests/flux/native_programs.h"
#include "tests/flux/program_runs.h"
#include "tests/flux/random_program.h"
#include "tests/flux/reference.h"

namespace resident::flux {
namespace {

constexpr size_t kProgramsOfUnit = 250;

std::string_view View(const Bytecode& bytecode) {
  return {reinterpret_cast<const char*>(bytecode.data()), bytecode.size()};
}

struct Tally {
  std::vector<uint64_t> errors = std::vector<uint64_t>(kErrors);
  uint64_t runs = 0;
  uint64_t known_stack = 0;
  uint64_t any_stack = 0;
};

// Compares one unit of random programs with the reference. Returns the first difference; empty:
// there is none. `programs`: how many were compared.
std::string CompareUnit(uint64_t seed, const NativePrograms::Mutate& mutate, Tally* tally,
                        size_t* programs) {
  RandomProgramGenerator generator(seed);
  std::vector<RandomCase> cases;
  std::vector<NativeProgram> unit;
  while (cases.size() < kProgramsOfUnit) {
    cases.push_back(generator.NextForTranslation());
    unit.push_back({cases.back().bytecode, cases.back().options.unknown_nop});
  }
  const auto native = NativePrograms::Compile(unit, "-O1", mutate);
  if (!native.ok()) return std::string(native.status().message());
  for (size_t i = 0; i < cases.size(); ++i) {
    const bool known = (*native)->translation(i).form == FlowGraph::Form::kKnownStack;
    ++(known ? tally->known_stack : tally->any_stack);
    for (const RunOptions& options : MakeRuns(cases[i], generator)) {
      const RunResult expected = RunReference(cases[i].bytecode, options);
      const RunResult actual = (*native)->Run(i, options);
      ++tally->runs;
      ++tally->errors[expected.error];
      if (actual == expected) continue;
      *programs = i + 1;
      return "unit " + std::to_string(seed) + ", program " + std::to_string(i) + ", max_cycles " +
             std::to_string(options.max_cycles) + "\n" + Disassemble(cases[i].bytecode) +
             "reference: " + Describe(expected) + "\nnative:    " + Describe(actual) + "\n" +
             (*native)->translation(i).program;
    }
  }
  *programs = cases.size();
  return "";
}

TEST(NativeFlux, EqualsTheReferenceOnRandomPrograms) {
  constexpr uint64_t kUnits = 20'000 / kProgramsOfUnit;
  std::atomic<uint64_t> next{0};
  std::vector<Tally> tallies(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::string> differences(kUnits);
  std::vector<std::thread> threads;
  for (Tally& tally : tallies) {
    threads.emplace_back([&next, &differences, &tally] {
      size_t programs = 0;
      for (uint64_t unit = next++; unit < kUnits; unit = next++) {
        differences[unit] = CompareUnit(1000 + unit, nullptr, &tally, &programs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int reported = 0;
  for (const std::string& difference : differences) {
    if (!difference.empty() && reported++ < 3) ADD_FAILURE() << difference;
  }
  Tally all;
  for (const Tally& tally : tallies) {
    for (size_t e = 0; e < all.errors.size(); ++e) all.errors[e] += tally.errors[e];
    all.runs += tally.runs;
    all.known_stack += tally.known_stack;
    all.any_stack += tally.any_stack;
  }
  EXPECT_EQ(all.runs, 20'000u * kRunsOfProgram);
  // Every kind of end, and both forms, occur often enough.
  for (size_t e = 0; e < all.errors.size(); ++e) EXPECT_GT(all.errors[e], 100u) << "error " << e;
  EXPECT_GT(all.known_stack, 5'000u);
  EXPECT_GT(all.any_stack, 1'000u);
}

// An error in the translator, as a change of the generated source.
struct Mutation {
  const char* name;
  const char* pattern;
  const char* replacement;
};

class NativeFluxMutations : public testing::TestWithParam<Mutation> {};

TEST_P(NativeFluxMutations, IsFoundWithin5000Programs) {
  const std::regex pattern(GetParam().pattern);
  size_t total = 0;
  for (uint64_t unit = 0; total < 5'000; ++unit) {
    Tally tally;
    size_t programs = 0;
    const std::string difference = CompareUnit(
        1000 + unit,
        [&](const std::string& source) {
          return std::regex_replace(source, pattern, GetParam().replacement);
        },
        &tally, &programs);
    total += programs;
    if (difference.empty()) continue;
    // A difference of results, not a source that does not compile.
    EXPECT_NE(difference.find("reference: "), std::string::npos) << difference;
    return;
  }
  FAIL() << "not found in " << total << " programs";
}

// The division's replacements compute the quotient in 64 bits, so that the wrong value of
// INT_MIN / -1 does not trap.
INSTANTIATE_TEST_SUITE_P(
    All, NativeFluxMutations,
    testing::Values(
        Mutation{"FailuresGiveNoCyclesBack", "left \\+= \\d+; ", ""},
        Mutation{"FailuresGiveOneCycleTooFewBack", "left \\+= (\\d+); ", "left += $1 - 1; "},
        Mutation{"QuotientOfMinusOne", "Quotient\\((r\\d+), (r\\d+)\\)",
                 "static_cast<u32>($2 == 0xffffffffu ? 0 : static_cast<i32>($1) / "
                 "static_cast<i32>($2))"},
        Mutation{"RemainderOfMinusOne", "Remainder\\((r\\d+), (r\\d+)\\)",
                 "($2 == 0xffffffffu ? $1 : Remainder($1, $2))"},
        Mutation{"TheEndOfTheCodeCounts", "\\{ error = kErrorNone; goto done; \\}",
                 "{ if (left == 0) goto limit; error = kErrorNone; goto done; }"},
        Mutation{"TheLimitHasNoPriorityAtATruncatedInstruction",
                 "left == 0 \\? kErrorCycleLimit : (\\d+)", "$1"},
        Mutation{"OneCycleTooMany", "if \\(left < (\\d+)\\)", "if (left + 1 < $1)"},
        Mutation{"LoopContinuesAtZero", "(r\\d+ -= 1;\\n    if \\(static_cast<i32>\\(r\\d+\\)) > 0",
                 "$1 >= 0"},
        Mutation{"ShiftsAreLogical", "static_cast<u32>\\(static_cast<i32>\\((r\\d+)\\) >>",
                 "static_cast<u32>($1 >>"},
        Mutation{"ReturnsToValuesAreOutOfBounds", "leave_to = address; goto leave;",
                 "error = kErrorPcOutOfBounds; goto done;"}),
    [](const auto& info) { return info.param.name; });

TEST(NativeFlux, PassesAllVectors) {
  const auto vectors = ReadVectors("tests/flux/vectors.jsonl");
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  std::vector<NativeProgram> programs;
  for (const Vector& vector : *vectors) {
    programs.push_back({vector.bytecode, vector.options.unknown_nop});
  }
  const auto native = NativePrograms::Compile(programs, "-O3");
  ASSERT_TRUE(native.ok()) << native.status();
  for (size_t i = 0; i < vectors->size(); ++i) {
    const Vector& vector = (*vectors)[i];
    EXPECT_EQ(Difference(vector, (*native)->Run(i, vector.options)), "")
        << "line " << vector.line << ": " << vector.name;
  }
}

// Calls and branches in a program that is as large as the translator permits, with its stack in
// memory.
TEST(NativeFlux, TheLargestProgramCompilesAndIsExact) {
  Bytecode code;
  // R1 counts the rounds of a loop that contains all else, and R15 is 1.
  code.insert(code.end(), {0x18, 1, 3, 0x18, 15, 1});
  const size_t start = code.size();
  // CALL the RET behind the next instruction, which is JMP over the RET.
  code.insert(code.end(), {0x4a, 0, 8, 0, 0x43, 0, 5, 0, 0x02});
  for (uint8_t i = 0; i < 196; ++i) {
    const auto r = static_cast<uint8_t>(2 + i % 12);
    code.insert(code.end(), {0x20, r, r, 15, 0x22, 14, r, r, 0x26, 13, 14, r});
    code.insert(code.end(), {0x3c, static_cast<uint8_t>(i % 2 == 0 ? 15 : r), 8, 0});
    code.insert(code.end(), {0x27, 12, 13, r});
  }
  // A loop that pushes has a stack that is not known.
  code.insert(code.end(), {0x0c, 2, 0x09, 1});
  const auto back = static_cast<uint32_t>(start) - static_cast<uint32_t>(code.size());
  code.insert(code.end(), {0x3c, 1, 8, 0});
  code.insert(code.end(),
              {0x43, 0, static_cast<uint8_t>(back - 4), static_cast<uint8_t>((back - 4) >> 8)});
  const auto translation = Translate(View(code), false);
  ASSERT_TRUE(translation.ok()) << translation.status();
  EXPECT_EQ(translation->form, FlowGraph::Form::kAnyStack);
  EXPECT_GT(translation->instructions, 980u);
  EXPECT_GT(translation->blocks, 390u);
  const auto native = NativePrograms::Compile({{code, false}}, "-O3");
  ASSERT_TRUE(native.ok()) << native.status();
  RandomProgramGenerator generator(5);
  for (int i = 0; i < 200; ++i) {
    RunOptions options = generator.Next().options;
    options.unknown_nop = false;
    options.max_cycles = generator.Below(4000);
    ASSERT_EQ((*native)->Run(0, options), RunReference(code, options)) << i;
  }
}

TEST(Translator, KnowsTheStackOfCallsAndNotOfRecursion) {
  const auto form = [](const char* text) {
    const auto translation = Translate(View(*Assemble(text)), false);
    EXPECT_TRUE(translation.ok()) << translation.status();
    return translation->form;
  };
  EXPECT_EQ(form("CALL sub\nHALT\nsub: PUSH R1\nPOP R2\nRET"), FlowGraph::Form::kKnownStack);
  EXPECT_EQ(form("sub: DEC R0\nJZ R0, end\nCALL sub\nend: RET"), FlowGraph::Form::kAnyStack);
  EXPECT_EQ(form("again: PUSH R0\nLOOP R0, again"), FlowGraph::Form::kAnyStack);
  EXPECT_EQ(form("PUSH R0\nRET"), FlowGraph::Form::kAnyStack);
}

TEST(Translator, SaysWhetherAnUnknownOpcodeIsReachable) {
  EXPECT_TRUE(Translate(View({0x30, 0, 0, 0}), false)->one_mode);
  EXPECT_TRUE(Translate(View({0x30, 0, 0, 0}), true)->one_mode);
  EXPECT_FALSE(Translate(View({0x00, 0x30, 0, 0, 0}), false)->one_mode);
  // A truncated instruction ends the run in both modes.
  EXPECT_FALSE(Translate(View({0x30, 0, 0}), false)->one_mode);
  // The code behind it is reached in one of them.
  EXPECT_EQ(Translate(View({0x30, 0, 0, 0, 0x01, 0x01}), false)->instructions, 1u);
  EXPECT_EQ(Translate(View({0x30, 0, 0, 0, 0x01, 0x01}), true)->instructions, 4u);
}

TEST(Translator, RefusesWhatExceedsItsLimits) {
  const auto refusal = [](const Bytecode& code, const TranslationLimits& limits = {}) {
    const auto translation = Translate(View(code), false, limits);
    EXPECT_EQ(translation.status().code(), absl::StatusCode::kResourceExhausted);
    return std::string(translation.status().message());
  };
  // The end of the code is a node too.
  EXPECT_TRUE(Translate(View(Bytecode(999, 0x01)), false).ok());
  EXPECT_EQ(refusal(Bytecode(1000, 0x01)),
            "the program has more than 1000 instructions that a run can reach");
  // Of a long program, only what can be reached counts.
  Bytecode mostly_unreachable(1 << 20, 0x01);
  mostly_unreachable[0] = 0x00;
  EXPECT_TRUE(Translate(View(mostly_unreachable), false).ok());
  Bytecode branches;
  for (int i = 0; i < 400; ++i) branches.insert(branches.end(), {0x3c, 0, 4, 0});
  EXPECT_EQ(refusal(branches), "the program has more than 400 blocks between branches");
  EXPECT_EQ(
      refusal(Bytecode(100, 0x01),
              {.flow = {}, .max_blocks = 400, .max_leaving_bytes = 0, .max_source_bytes = 100}),
      "the program has more than 100 bytes of generated source");
}

}  // namespace
}  // namespace resident::flux
