// Makes the worked examples and the library's operators stoppable with the real NVRTC and
// nvJitLink, without a GPU, and prints what that costs in registers and code, and the rule that
// refuses an operator.
//
// RESIDENT_TEST_LINK=all also links the large ones of the library, which takes minutes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/compile/compiler.h"
#include "runtime/compile/cuda_tools.h"
#include "runtime/compile/ptx/ptx_rewriter.h"
#include "runtime/compile/ptx/ptx_text.h"
#include "runtime/compile/ptx/ptx_verifier.h"
#include "runtime/compile/unit.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

class StoppableTest : public ::testing::Test {
 protected:
  StoppableTest() {
    CompilerOptions options;
    options.program = "runtime/compile/compile_for_test";
    auto created = Compiler::Create(options);
    EXPECT_TRUE(created.ok()) << created.status();
    compiler_ = *std::move(created);
  }

  static CompileJob Job(const std::string& source, const std::string& name, Isolation isolation) {
    CompileJob job;
    job.target = "sm_90";
    job.files = {{"swish.cc", source}};
    job.main_file = "swish.cc";
    job.function = name;
    job.content_hash = std::string(64, 'a');
    job.isolation = isolation;
    return job;
  }
  static std::string Operator(const std::string& body) {
    return absl::StrCat(
        "#include \"resident/operator.h\"\n"
        "RESIDENT_OPERATOR(swish)(resident::Block& block, const resident::Args& args) {\n",
        body, "\n}\n");
  }

  std::unique_ptr<Compiler> compiler_;
};

TEST_F(StoppableTest, WorkedExamplesPass) {
  size_t examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator("docs/examples")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string name = entry.path().stem();
    const std::string source = ReadText(entry.path());
    CompileJob job = Job(source, name, Isolation::kTrusted);
    // docs/operators.md installs these two with allow_spills.
    job.allow_spills = name == "scaled_gelu" || name == "matmul_bf16";
    const CompileResult before = compiler_->Compile(job);
    ASSERT_TRUE(before.ok()) << before.compiled << before.inspected;
    EXPECT_EQ(before.isolation, Isolation::kTrusted);
    job.isolation = Isolation::kStoppable;
    const CompileResult after = compiler_->Compile(job);
    EXPECT_TRUE(after.ok()) << name << ": " << after.compiled << after.inspected << after.log;
    EXPECT_EQ(after.isolation, Isolation::kStoppable);
    EXPECT_LE(after.resources.registers, kMaxRegisters);
    std::printf("%-16s registers %3u -> %3u, stack %3u -> %3u, code %5u -> %5u; ", name.c_str(),
                before.resources.registers, after.resources.registers, before.resources.stack_bytes,
                after.resources.stack_bytes, before.resources.code_bytes,
                after.resources.code_bytes);
    const RewriteCounts& n = after.rewritten;
    std::printf("loops %u, counted %u, short %u, endless %u, looks %u, barriers %u, warps %u\n",
                n.loops, n.counted_loops, n.short_loops, n.endless_loops, n.looks, n.barriers,
                n.warp_operations);
    ++examples;
  }
  EXPECT_GE(examples, 8u);
}

// The highest level that passes, with the reason.
TEST_F(StoppableTest, AnOperatorThatDoesNotPassIsTrustedOrRefused) {
  const std::string source = Operator("  if (args.scalar<int>(0) < 0) __trap();");
  const CompileResult highest = compiler_->Compile(Job(source, "swish", Isolation::kUnspecified));
  ASSERT_TRUE(highest.ok()) << highest.compiled << highest.inspected;
  EXPECT_EQ(highest.isolation, Isolation::kTrusted);
  const auto message = AllOf(StartsWith("swish.cc:3: this operator cannot be made stoppable: "),
                             HasSubstr("'trap' ends the engine (rule C1). Fix: "));
  EXPECT_THAT(highest.isolation_reason, message);
  const CompileResult required = compiler_->Compile(Job(source, "swish", Isolation::kStoppable));
  EXPECT_TRUE(required.compiled.ok());
  EXPECT_EQ(required.inspected.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(required.inspected.message()), message);
}

TEST_F(StoppableTest, AnOperatorThatPassesIsStoppableWhereNothingIsRequired) {
  for (const int architecture : {80, 90, 100, 120}) {
    CompileJob job = Job(Operator("  args.tensor<float>(0)[0] = block.reduce_sum(1.0f);\n"
                                  "  while (args.scalar<int>(0) < 0) block.barrier();"),
                         "swish", Isolation::kUnspecified);
    job.target = absl::StrCat("sm_", architecture);
    const CompileResult unit = compiler_->Compile(job);
    ASSERT_TRUE(unit.ok()) << job.target << ": " << unit.compiled << unit.inspected;
    EXPECT_EQ(unit.isolation, Isolation::kStoppable);
    EXPECT_EQ(unit.isolation_reason, "");
    EXPECT_GE(unit.rewritten.barriers, 1u);
    EXPECT_GE(unit.rewritten.warp_operations, 1u);
  }
}

TEST_F(StoppableTest, CheckedBuildsAreAsTheyWere) {
  CompileJob job = Job(Operator("  block.barrier();"), "swish", Isolation::kStoppable);
  job.checked = true;
  const CompileResult unit = compiler_->Compile(job);
  ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected;
  EXPECT_EQ(unit.isolation, Isolation::kTrusted);
}

struct BadUnit {
  const char* source;
  const char* message;
};

// What inspection refuses stays refused, by the same message.
TEST_F(StoppableTest, InspectionSeesTheSame) {
  const BadUnit units[] = {
      {"static int counter;\nint f() { return ++counter; }", "the unit has variables in device "},
      {"extern \"C\" __device__ void resident_kernel() {}\nint f() { return 1; }",
       "the unit exports 'resident_kernel'"},
      {"__constant__ int kT[] = {1, 2};\nint f() { return kT[threadIdx.x % 2]; }", ".const"},
      {"int f() { __shared__ int s[64]; s[threadIdx.x] = 1; __syncthreads(); return s[3]; }",
       "shared"},
  };
  for (const BadUnit& bad : units) {
    for (const Isolation isolation : {Isolation::kStoppable, Isolation::kUnspecified}) {
      const CompileResult unit = compiler_->Compile(
          Job(absl::StrCat(bad.source, "\n", Operator("  args.tensor<int>(0)[0] = f();")), "swish",
              isolation));
      EXPECT_EQ(unit.inspected.code(), absl::StatusCode::kInvalidArgument) << bad.source;
      if (isolation == Isolation::kStoppable) {
        EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr(bad.message));
      }
    }
  }
  const CompileResult other =
      compiler_->Compile(Job(Operator(""), "another", Isolation::kStoppable));
  EXPECT_THAT(std::string(other.inspected.message()),
              HasSubstr("but not RESIDENT_OPERATOR(another)"));
}

TEST_F(StoppableTest, PtxObjectsPassAndCubinsDoNot) {
  ObjectJob job{.target = "sm_90",
                .bytes = ReadText("runtime/compile/object_for_test.ptx"),
                .isolation = Isolation::kStoppable};
  const CompileResult ptx = compiler_->CompileObject(job);
  ASSERT_TRUE(ptx.ok()) << ptx.inspected;
  EXPECT_EQ(ptx.isolation, Isolation::kStoppable);
  EXPECT_EQ(ptx.symbol, "resident_op_00112233445566ff");
  EXPECT_GT(ptx.rewritten.loops, 0u);
  job.bytes = ReadText("runtime/compile/object_for_test.cubin");
  EXPECT_THAT(std::string(compiler_->CompileObject(job).inspected.message()),
              HasSubstr("a cubin cannot be made stoppable. Fix: "));
  job.isolation = Isolation::kUnspecified;
  const CompileResult trusted = compiler_->CompileObject(job);
  ASSERT_TRUE(trusted.ok()) << trusted.inspected;
  EXPECT_EQ(trusted.isolation, Isolation::kTrusted);
  EXPECT_THAT(trusted.isolation_reason, HasSubstr("a cubin"));
}

// RESIDENT_VERIFY_ONLY=FILE, for fuzzers in another process.
TEST(VerifyOnlyTest, ACompileProcessVerifiesAFile) {
  const auto rewritten = RewritePtx(ReadText("runtime/compile/object_for_test.ptx"), 90);
  ASSERT_TRUE(rewritten.ok()) << rewritten.status();
  const std::string path = absl::StrCat(::testing::TempDir(), "/verify_only.ptx");
  const auto verify = [&](const std::string& text) {
    std::ofstream(path) << text;
    FILE* const process = popen(
        absl::StrCat("RESIDENT_VERIFY_ONLY=", path, " runtime/compile/compile_for_test").c_str(),
        "r");
    std::string output;
    for (int c; process != nullptr && (c = fgetc(process)) != EOF;) {
      output += static_cast<char>(c);
    }
    return std::pair(process == nullptr ? -1 : WEXITSTATUS(pclose(process)), output);
  };
  EXPECT_EQ(verify(rewritten->text), (std::pair{0, std::string("accepted\n")}));
  const auto [status, why] = verify(
      absl::StrReplaceAll(rewritten->text, {{"mov.u32 %q_b, 4096;", "mov.u32 %q_b, 9999;"}}));
  EXPECT_EQ(status, 1);
  EXPECT_THAT(why, HasSubstr("does not begin with a budget"));
}

// The text of one operator's functions and of all variables.
std::string Select(const PtxUnit& unit, const std::string& entry) {
  std::map<std::string, const PtxFunction*> functions;
  for (const PtxItem& item : unit.items) {
    if (item.text.empty()) functions[item.name] = &item.function;
  }
  std::set<std::string> reached = {entry};
  for (std::vector<std::string> open = {entry}; !open.empty();) {
    const PtxFunction* const function = functions.at(open.back());
    open.pop_back();
    for (const PtxStatement& statement : function->statements) {
      if (!statement.Is(PtxClass::kCall) || !functions.contains(statement.target)) continue;
      if (reached.insert(statement.target).second) open.push_back(statement.target);
    }
  }
  std::string text;
  for (const PtxItem& item : unit.items) {
    if (!item.name.empty() && !item.variable && !reached.contains(item.name)) continue;
    if (!item.text.empty()) {
      absl::StrAppend(&text, item.text, "\n");
      continue;
    }
    absl::StrAppend(&text, item.function.header, "\n{\n");
    AppendPtxDeclarations(item.function, &text);
    for (const PtxStatement& statement : item.function.statements) {
      absl::StrAppend(&text, statement.Text(), "\n");
    }
    text += "}\n";
  }
  return text;
}

// Files whose operators NVRTC does not compile.
bool NeedsHostHeaders(const std::string& name) {
  return name == "jump_table" || name == "test_operators";
}

TEST_F(StoppableTest, LibraryOperatorsPass) {
  std::map<std::string, std::string> headers = SdkHeaders();
  for (const char* const folder : {"kernels/ops", "kernels/sdk", "kernels/layout"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      // Those of the SDK are without what NVRTC does not know.
      headers.emplace(absl::StrCat(folder, "/", entry.path().filename().string()),
                      ReadText(entry.path()));
    }
  }
  const char* const wanted = std::getenv("RESIDENT_TEST_LINK");
  const bool link_all = wanted != nullptr && std::string_view(wanted) == "all";
  size_t passed = 0;
  size_t operators = 0;
  std::vector<std::string> refused;
  for (const auto& entry : std::filesystem::directory_iterator("kernels/ops")) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".cc" || absl::EndsWith(name, "_test") ||
        NeedsHostHeaders(name)) {
      continue;
    }
    NvrtcSource source;
    source.main_name = "library.cc";
    // What the library's compiler knows and NVRTC does not.
    source.main_text = absl::StrCat(
        "template <class A, class B> inline constexpr bool kSameType = false;\n"
        "template <class A> inline constexpr bool kSameType<A, A> = true;\n"
        "#define __is_same(A, B) kSameType<A, B>\n#define __builtin_memcpy memcpy\n"
        "#include \"kernels/sdk/operator.h\"\n"
        "#include \"kernels/ops/",
        name, ".cc\"\n");
    source.headers = headers;
    source.options = {"-std=c++20", "-rdc=true", "-arch=compute_90", "-default-device", "-minimal"};
    source.ptx = true;
    std::string log;
    const auto ptx = NvrtcCompile(source, &log);
    ASSERT_TRUE(ptx.ok()) << name << ": " << ptx.status() << log.substr(0, 2000);
    const auto unit = ParsePtx(*ptx);
    ASSERT_TRUE(unit.ok()) << name << ": " << unit.status();
    for (const PtxItem& item : unit->items) {
      if (!item.text.empty() || !item.function.entry) continue;
      ++operators;
      const std::string text = Select(*unit, item.name);
      const std::clock_t begin = std::clock();
      const auto rewritten = RewritePtx(text, 90);
      if (!rewritten.ok()) {
        refused.push_back(absl::StrCat(item.name, ": ", rewritten.status().message()));
        continue;
      }
      const absl::Status verified = VerifyPtx(rewritten->text, 90);
      const double ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      EXPECT_TRUE(verified.ok()) << item.name << ": " << verified;
      ++passed;
      std::printf("%-44s %7zu bytes of PTX, %6.2f ms", item.name.c_str() + 18, text.size(), ms);
      if (link_all || text.size() < 150'000) {
        InspectRequest inspect;
        inspect.symbol = item.name;
        inspect.architecture = 90;
        std::string module;
        inspect.object = text;
        const auto before = InspectPtx(inspect, &module);
        inspect.object = rewritten->text;
        const auto after = InspectPtx(inspect, &module);
        ASSERT_TRUE(after.ok()) << item.name << ": " << after.status();
        ASSERT_TRUE(before.ok()) << item.name << ": " << before.status();
        EXPECT_LE(after->resources.registers, kMaxRegisters);
        std::printf("; registers %3u -> %3u, stack %4u -> %4u, code %6u -> %6u",
                    before->resources.registers, after->resources.registers,
                    before->resources.stack_bytes, after->resources.stack_bytes,
                    before->resources.code_bytes, after->resources.code_bytes);
      }
      std::printf("\n");
    }
  }
  std::printf("%zu of %zu operators of the library pass\n", passed, operators);
  for (const std::string& why : refused) std::printf("  %s\n", why.c_str());
  EXPECT_EQ(passed, operators);
  EXPECT_GE(operators, 60u);
}

}  // namespace
}  // namespace resident
