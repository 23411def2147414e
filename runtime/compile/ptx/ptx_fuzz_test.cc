// Damages rewritten PTX, and executes what the verifier still accepts: none may run on once the
// stop word is set.
//
// RESIDENT_TEST_MUTANTS=1000000 tries as many; RESIDENT_TEST_SEED begins elsewhere.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/compile/ptx/ptx_interpreter_for_test.h"
#include "runtime/compile/ptx/ptx_rewriter.h"
#include "runtime/compile/ptx/ptx_verifier.h"

namespace resident {
namespace {

using Random = std::mt19937_64;
using Lines = std::vector<std::string>;

uint64_t ReadVariable(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

template <typename T>
const T& Pick(const std::vector<T>& values, Random& random) {
  return values[random() % values.size()];
}

// Programs with loops of all kinds in each other, meetings, barriers and calls.
class ProgramMaker {
 public:
  explicit ProgramMaker(uint64_t seed) : random_(seed) {}

  std::string Make() {
    std::string text = ".version 9.0\n.target sm_90\n.address_size 64\n";
    AddFunction(".func (.param .b32 out) leaf(.param .b32 in)", 1, /*calls=*/0, &text);
    AddFunction(".func inner()", 2, 1, &text);
    AddFunction(".visible .func resident_op_1(.param .b64 state) .abi_preserve 2", 3, 2, &text);
    return text;
  }

 private:
  std::string R(int low = 1) { return absl::StrCat("%r", low + random_() % 5); }
  std::string P() { return absl::StrCat("%p", 1 + random_() % 3); }

  void AddFunction(const std::string& header, int depth, int calls, std::string* text) {
    calls_ = calls;
    absl::StrAppend(text, header,
                    "\n{\n.reg .pred %p<8>;\n.reg .b16 %rs<3>;\n.reg .b32 %r<16>;\n"
                    ".reg .b64 %rd<6>;\nld.shared.u8 %rs1, [%rd1];\ncvt.u32.u16 %r15, %rs1;\n"
                    "ld.global.u32 %r14, [%rd1];\n");
    AddStatements(depth, text);
    absl::StrAppend(text, "ret;\n}\n");
  }

  void AddStatements(int depth, std::string* text) {
    const int statements = 2 + static_cast<int>(random_() % 4);
    for (int i = 0; i < statements; ++i) AddStatement(depth, text);
  }

  void AddStatement(int depth, std::string* text) {
    const uint64_t label = ++labels_;
    switch (random_() % (depth > 0 ? 14 : 8)) {
      case 0:
      case 1:
        absl::StrAppend(text, "xor.b32 ", R(), ", ", R(), ", ", R(), ";\n");
        break;
      case 2:
        absl::StrAppend(text, "ld.global.u32 ", R(), ", [%rd1+4];\n");
        break;
      case 3:
        absl::StrAppend(text, "setp.lt.s32 ", P(), ", ", R(), ", ", R(), ";\n");
        break;
      case 4:
        absl::StrAppend(text, "shfl.sync.bfly.b32 ", R(), ", ", R(), ", 1, 31, ",
                        random_() % 3 == 0 ? "%r14" : "-1", ";\n");
        break;
      case 5:
        absl::StrAppend(text, "barrier.sync 1, ", R(), ";\n");
        break;
      case 6:
        absl::StrAppend(text, "@", P(), " bra S", label, ";\nadd.s32 ", R(), ", ", R(), ", 3;\nS",
                        label, ":\n");
        break;
      case 7:
        if (calls_ == 2) absl::StrAppend(text, "call inner;\n");
        if (calls_ == 1) {
          absl::StrAppend(text, "{ .param .b32 a; .param .b32 b; st.param.b32 [a], ", R(),
                          "; call (b), leaf, (a); ld.param.b32 ", R(), ", [b]; }\n");
        }
        break;
      case 8:
      case 9:  // L1.
        absl::StrAppend(text, "W", label, ":\n");
        AddStatements(depth - 1, text);
        absl::StrAppend(text, "setp.ne.u32 %p4, ", R(), ", 0;\n@%p4 bra W", label, ";\n");
        break;
      case 10:  // L2.
      case 11:
        absl::StrAppend(text, "C", label, ":\nxor.b32 %r10, %r10, ", R(), ";\nadd.s32 %r11, %r11, ",
                        1 + random_() % 9, ";\nsetp.lt.s32 %p5, %r11, %r14;\n@%p5 bra C", label,
                        ";\n");
        break;
      case 12:  // L3.
        absl::StrAppend(text, "K", label, ":\nmul.lo.s32 %r12, %r12, ", R(),
                        ";\nadd.s32 %r13, %r13, 1;\nsetp.lt.u32 %p6, %r13, %r15;\n@%p6 bra K",
                        label, ";\n");
        break;
      default:  // L4, with another way out.
        absl::StrAppend(text, "E", label, ":\n");
        AddStatements(depth - 1, text);
        absl::StrAppend(text, "@", P(), " bra X", label, ";\nbra E", label, ";\nX", label, ":\n");
    }
  }

  Random random_;
  int calls_ = 0;
  uint64_t labels_ = 0;
};

class Damage {
 public:
  explicit Damage(const Lines& lines) : lines_(lines) {
    for (size_t i = 0; i < lines.size(); ++i) {
      if (absl::EndsWith(lines[i], ":")) {
        labels_.push_back(lines[i].substr(0, lines[i].size() - 1));
      }
      for (const absl::string_view word : absl::StrSplit(lines[i], absl::ByAnyChar(" ,;[]{}+|"))) {
        if (absl::StartsWith(word, "%") && !absl::StrContains(word, "<")) {
          registers_.emplace_back(word);
        }
      }
      if (!absl::StartsWith(lines[i], ".") && !lines[i].empty()) body_.push_back(i);
    }
  }

  // Returns the lines with one change; empty: there was none.
  Lines Make(Random& random) const {
    Lines lines = lines_;
    const size_t at = Pick(body_, random);
    std::string& line = lines[at];
    switch (random() % 9) {
      case 0:
        line.clear();
        break;
      case 1:
        if (at + 1 < lines.size()) std::swap(line, lines[at + 1]);
        break;
      case 2: {  // Move.
        const std::string moved = line;
        line.clear();
        lines.insert(lines.begin() + static_cast<ptrdiff_t>(Pick(body_, random)), moved);
        break;
      }
      case 3:
        lines.insert(lines.begin() + static_cast<ptrdiff_t>(Pick(body_, random)),
                     std::string(line));
        break;
      case 4: {  // Another register.
        const size_t begin = FindNth(line, '%', random);
        if (begin == std::string::npos) return {};
        const size_t end = std::min(line.find_first_of(" ,;[]{}+|", begin), line.size());
        line.replace(begin, end - begin, Pick(registers_, random));
        break;
      }
      case 5: {  // Another number.
        const std::vector<std::string> numbers = {
            "0", "1", "-1", "4", "255", "4096", "65536", "-4096", "2147483647", "-2147483648"};
        const size_t begin = line.find_last_of(' ');
        if (begin == std::string::npos) return {};
        const size_t digits = line.find_first_of("-0123456789", begin);
        if (digits == std::string::npos) return {};
        const size_t end = std::min(line.find_first_not_of("-0123456789", digits), line.size());
        line.replace(digits, end - digits, Pick(numbers, random));
        break;
      }
      case 6: {  // Another label.
        const size_t begin = line.find("bra ");
        if (begin == std::string::npos || labels_.empty()) return {};
        line = absl::StrCat(line.substr(0, begin + 4), Pick(labels_, random), ";");
        break;
      }
      case 7:  // Another guard.
        if (absl::EndsWith(line, ":")) return {};
        if (!absl::StartsWith(line, "@")) {
          line = absl::StrCat("@%p", 1 + random() % 3, " ", line);
        } else if (random() % 2 == 0) {
          line = absl::StartsWith(line, "@!") ? "@" + line.substr(2) : "@!" + line.substr(1);
        } else {
          line = line.substr(line.find(' ') + 1);
        }
        break;
      default: {  // Another operation.
        const std::vector<std::pair<std::string, std::string>> changes = {
            {"add", "sub"},         {"min", "max"},    {".lt", ".gt"},   {".s32", ".u32"},
            {".ne", ".eq"},         {".u8", ".u16"},   {".ge", ".le"},   {".and", ""},
            {"setp.lt", "setp.ne"}, {"ret", "bra S1"}, {".all", ".any"}, {"volatile.", ""}};
        const auto& [from, to] = Pick(changes, random);
        const size_t begin = line.find(from);
        if (begin == std::string::npos) return {};
        line.replace(begin, from.size(), to);
      }
    }
    return lines == lines_ ? Lines() : lines;
  }

 private:
  static size_t FindNth(const std::string& line, char c, Random& random) {
    std::vector<size_t> found;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == c) found.push_back(i);
    }
    return found.empty() ? std::string::npos : Pick(found, random);
  }

  const Lines& lines_;
  Lines labels_;
  Lines registers_;
  std::vector<size_t> body_;
};

// Executes a text that was accepted. Returns what is wrong with it.
absl::Status Execute(const std::string& text, Random& random, uint64_t* longest) {
  const auto unit = ParsePtx(text, /*rewritten=*/true);
  if (!unit.ok()) return unit.status();
  PtxInterpreter interpreter(*unit);
  for (int i = 0; i < 3; ++i) {
    const PtxInterpreter::Result result = interpreter.Call(
        {.stop_after = 1 + random() % 3000, .limit = interpreter.Limit(), .seed = random()});
    *longest = std::max(*longest, result.after_stop);
    if (!result.status.ok()) return result.status;
  }
  return absl::OkStatus();
}

TEST(PtxFuzzTest, WhatIsAcceptedStops) {
  const uint64_t mutants = ReadVariable("RESIDENT_TEST_MUTANTS", 5'000);
  const uint64_t seed = ReadVariable("RESIDENT_TEST_SEED", 1);
  uint64_t tried = 0;
  uint64_t accepted = 0;
  uint64_t longest = 0;
  for (uint64_t program = 0; tried < mutants; ++program) {
    const std::string source = ProgramMaker(seed * 1'000'003 + program).Make();
    const auto rewritten = RewritePtx(source, 90);
    ASSERT_TRUE(rewritten.ok()) << rewritten.status() << source;
    const absl::Status verified = VerifyPtx(rewritten->text, 90);
    ASSERT_TRUE(verified.ok()) << verified << rewritten->text;
    Random random(seed * 7'919 + program);
    absl::Status executed = Execute(rewritten->text, random, &longest);
    ASSERT_TRUE(executed.ok()) << executed << "\n" << rewritten->text;
    const Lines lines = absl::StrSplit(rewritten->text, '\n');
    const Damage damage(lines);
    for (int i = 0; i < 100 && tried < mutants; ++i) {
      const Lines mutant = damage.Make(random);
      if (mutant.empty()) continue;
      ++tried;
      const std::string text = absl::StrJoin(mutant, "\n");
      if (!VerifyPtx(text, 90).ok()) continue;
      ++accepted;
      executed = Execute(text, random, &longest);
      ASSERT_TRUE(executed.ok()) << "program " << program << ", mutant " << i << ": " << executed
                                 << "\n"
                                 << text;
    }
  }
  std::printf(
      "%llu mutants, %llu refused, %llu accepted, which all stopped within %llu statements\n",
      static_cast<unsigned long long>(tried), static_cast<unsigned long long>(tried - accepted),
      static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(longest));
  EXPECT_GT(accepted, 0u);
}

// A source that is damaged is refused by a rule, or what is made of it is accepted: the verifier
// asks for nothing that the rewriter does not do.
TEST(PtxFuzzTest, WhatIsRewrittenIsAccepted) {
  const uint64_t mutants = ReadVariable("RESIDENT_TEST_MUTANTS", 5'000);
  const uint64_t seed = ReadVariable("RESIDENT_TEST_SEED", 1);
  uint64_t rewritten = 0;
  for (uint64_t tried = 0, program = 0; tried < mutants; ++program) {
    Random random(seed * 104'729 + program);
    const Lines lines = absl::StrSplit(ProgramMaker(seed * 15'485'863 + program).Make(), '\n');
    const Damage damage(lines);
    for (int i = 0; i < 50 && tried < mutants; ++i, ++tried) {
      Lines mutant = damage.Make(random);
      if (mutant.empty()) continue;
      std::string text = absl::StrJoin(mutant, "\n");
      if (random() % 8 == 0) text[random() % text.size()] = static_cast<char>(random());
      const auto unit = RewritePtx(text, 90);
      if (!unit.ok()) continue;
      ++rewritten;
      const absl::Status verified = VerifyPtx(unit->text, 90);
      ASSERT_TRUE(verified.ok()) << verified << "\n" << text << "\n" << unit->text;
    }
  }
  std::printf("%llu damaged sources were rewritten and accepted\n",
              static_cast<unsigned long long>(rewritten));
  EXPECT_GT(rewritten, mutants / 10);
}

// The interpreter notices a program that does not stop.
TEST(PtxFuzzTest, TheInterpreterNoticesLoopsThatDoNotLook) {
  const auto unit = ParsePtx(
      ".visible .func resident_op_1() .abi_preserve 2\n{\n.reg .b32 %q_s;\nL:\nbra L;\n}\n",
      /*rewritten=*/true);
  ASSERT_TRUE(unit.ok()) << unit.status();
  PtxInterpreter interpreter(*unit);
  EXPECT_FALSE(interpreter.Call({.stop_after = 10, .limit = 100'000, .seed = 1}).status.ok());
}

}  // namespace
}  // namespace resident
