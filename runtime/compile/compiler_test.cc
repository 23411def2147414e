// The whole compiler: real compile processes and the real host compiler.
#include "runtime/compile/compiler.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/sdk/operator.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr char kSwish[] = R"(#include "resident/operator.h"

RESIDENT_OPERATOR(swish)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { y[i] = x[i] * 2; });
}
)";

constexpr char kCompileProgram[] = "runtime/compile/compile_for_test";

class CompilerTest : public ::testing::Test {
 protected:
  CompilerTest() : cache_(absl::StrCat(getenv("TEST_TMPDIR"), "/", TestName())) {
    options_.cache_dir = cache_;
    options_.program = kCompileProgram;
    Restart();
  }

  static std::string TestName() {
    return ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  // Whether the compiler's folder, the only one in the work folder, is empty.
  bool WorkIsEmpty() const {
    for (const auto& folder : fs::directory_iterator(cache_ + "/work")) {
      if (!fs::is_empty(folder)) return false;
    }
    return true;
  }

  void Restart() {
    compiler_.reset();
    auto created = Compiler::Create(options_);
    ASSERT_TRUE(created.ok()) << created.status();
    compiler_ = *std::move(created);
  }

  static CompileJob Job(const std::string& source) {
    CompileJob job;
    job.target = "x86-64";
    job.files = {{"swish.cc", source}};
    job.main_file = "swish.cc";
    job.function = "swish";
    job.content_hash = std::string(64, 'a');
    return job;
  }
  static std::string Operator(const std::string& before, const std::string& body) {
    return absl::StrCat("#include \"resident/operator.h\"\n", before,
                        "\nRESIDENT_OPERATOR(swish)(resident::Block& block, const "
                        "resident::Args& args) {\n",
                        body, "\n}\n");
  }

  const std::string cache_;
  CompilerOptions options_;
  std::unique_ptr<Compiler> compiler_;
};

// Loads a shared object as the engine does, and calls its operator on x.
float CallOn(const CompileResult& unit, float x) {
  const int fd = memfd_create("unit", 0);
  EXPECT_EQ(write(fd, unit.object->data(), unit.object->size()),
            static_cast<ssize_t>(unit.object->size()));
  void* const library = dlopen(absl::StrCat("/proc/self/fd/", fd).c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(library, nullptr) << dlerror();
  if (library == nullptr) return 0;
  const auto function = reinterpret_cast<OperatorFunction>(dlsym(library, unit.symbol.c_str()));
  EXPECT_NE(function, nullptr);
  float y = 0;
  static BlockState state;
  state = {};
  state.chunk_count = 1;
  state.descriptor.flags = kTaskCompact;
  state.descriptor.words[0] = 1;
  state.descriptor.words[1] = reinterpret_cast<u64>(&x);
  state.descriptor.words[2] = reinterpret_cast<u64>(&y);
  if (function != nullptr) function(&state);
  dlclose(library);
  close(fd);
  return y;
}

TEST_F(CompilerTest, UnitCanBeLoadedAndCalled) {
  const CompileResult unit = compiler_->Compile(Job(kSwish));
  ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
  EXPECT_EQ(unit.symbol, "resident_op_aaaaaaaaaaaaaaaa");
  EXPECT_FALSE(unit.cached);
  EXPECT_GT(unit.resources.code_bytes, 10u);
  EXPECT_EQ(CallOn(unit, 21), 42);
}

TEST_F(CompilerTest, CheckedAndPlainUnitCanBeLoadedTogether) {
  CompileJob job = Job(kSwish);
  job.checked = true;
  const CompileResult unit = compiler_->Compile(job);
  ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
  EXPECT_EQ(unit.symbol, "resident_opc_aaaaaaaaaaaaaaaa");
}

TEST_F(CompilerTest, SecondCompilationComesFromTheCacheAlsoAfterRestart) {
  ASSERT_TRUE(compiler_->Compile(Job(kSwish)).ok());
  Restart();
  const CompileResult again = compiler_->Compile(Job(kSwish));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again.cached);
  EXPECT_EQ(CallOn(again, 2), 4);
  CompileJob other = Job(kSwish);
  other.content_hash[0] = 'b';
  EXPECT_FALSE(compiler_->Compile(other).cached);
}

// A restart names the level that an install got without naming one.
TEST_F(CompilerTest, AUnitOfNoLevelIsCachedAsOneOfItsLevel) {
  CompileJob job = Job(kSwish);
  job.isolation = Isolation::kUnspecified;
  const CompileResult unit = compiler_->Compile(job);
  ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
  EXPECT_EQ(unit.isolation, Isolation::kStoppable);
  EXPECT_TRUE(compiler_->Compile(job).cached);
  job.isolation = Isolation::kStoppable;
  EXPECT_TRUE(compiler_->Compile(job).cached);
  job.isolation = Isolation::kTrusted;
  EXPECT_FALSE(compiler_->Compile(job).cached);
}

TEST_F(CompilerTest, ErrorsHaveTheLinesOfTheUsersFile) {
  CompileJob job = Job(Operator("#include \"util/wrong.h\"", "  block.nothing();"));
  job.files["util/wrong.h"] = "\n\nint f() { return undeclared; }\n";
  const CompileResult unit = compiler_->Compile(job);
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unit.log, HasSubstr("swish.cc:4:"));
  EXPECT_THAT(unit.log, HasSubstr("util/wrong.h:3:"));
  EXPECT_THAT(unit.log, Not(HasSubstr(cache_)));
}

TEST_F(CompilerTest, TwoFilesMayUseNamesOfOtherUnits) {
  CompileJob job =
      Job(Operator("#include \"util/twice.h\"", "  args.tensor<float>(1)[0] = util::twice(1.5f);"));
  job.files["util/twice.h"] = "namespace util { float twice(float x) { return 2 * x; } }\n";
  const CompileResult unit = compiler_->Compile(job);
  ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
  EXPECT_EQ(CallOn(unit, 0), 3);
}

// The result must not contain text of a file other than the inputs, not even in an error.
class HostFileTest : public CompilerTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(HostFileTest, IsNotRead) {
  const CompileResult unit = compiler_->Compile(Job(Operator(GetParam(), "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument) << unit.log;
  EXPECT_THAT(unit.log, Not(HasSubstr("root:")));
  EXPECT_THAT(unit.log, Not(HasSubstr("/bin/")));
  EXPECT_THAT(unit.log, HasSubstr("swish.cc:2"));
  EXPECT_THAT(unit.log, HasSubstr("a source may include the files that were sent"));
}
INSTANTIATE_TEST_SUITE_P(Paths, HostFileTest,
                         ::testing::Values("#include \"/etc/passwd\"",
                                           "#include \"../../../../../../../../../../etc/passwd\"",
                                           "#include </etc/passwd>",
                                           "#include </proc/self/environ>", "#include <vector>"));

TEST_F(CompilerTest, AssemblerCannotReadHostFiles) {
  const CompileResult unit =
      compiler_->Compile(Job(Operator("asm(\".data\\n.incbin \\\"/etc/passwd\\\"\\n\");", "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument) << unit.log;
  EXPECT_THAT(unit.log, Not(HasSubstr("root:")));
}

constexpr char kBomb[] =
    "template <int N, int M> struct Bomb {\n"
    "  static constexpr long value = Bomb<N - 1, 2 * M>::value + Bomb<N - 1, 2 * M + 1>::value;\n"
    "};\n"
    "template <int M> struct Bomb<0, M> { static constexpr long value = M; };\n"
    "constexpr long kValue = Bomb<26, 1>::value;\n";

int ProcessesNamed(const std::string& name) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream comm(entry.path() / "comm");
    std::ifstream environment(entry.path() / "environ");
    std::string text, variables;
    std::getline(comm, text);
    std::getline(environment, variables);
    count += text == name && variables.find(getenv("TEST_TMPDIR")) != std::string::npos;
  }
  return count;
}

TEST_F(CompilerTest, CompilationOverTheWallTimeIsKilledWithAllItStarted) {
  // Long enough for a compile process to start in it on a busy machine.
  options_.limits.wall_time = std::chrono::milliseconds(4000);
  Restart();
  const CompileResult unit = compiler_->Compile(Job(Operator(kBomb, "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kDeadlineExceeded) << unit.compiled;
  EXPECT_THAT(std::string(unit.compiled.message()), HasSubstr("4000 ms"));
  EXPECT_EQ(compiler_->counters().killed, 1u);
  // Its compiler was killed, but may take a moment to end.
  EXPECT_TRUE(testing::Eventually([] { return ProcessesNamed("cc1plus") == 0; }));
  EXPECT_TRUE(testing::Eventually([this] { return WorkIsEmpty(); }));
}

// Under a sanitizer there is no limit on memory (sandbox.cc).
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CompilerTest, CompilationOverTheMemoryIsRefused) {
  options_.limits.memory_mib = 256;
  Restart();
  const CompileResult unit = compiler_->Compile(Job(Operator(kBomb, "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kResourceExhausted)
      << unit.compiled << unit.log;
}
#endif

TEST_F(CompilerTest, TargetWithoutACompilerIsRefused) {
  CompileJob job = Job(kSwish);
  job.target = "abacus";
  const CompileResult source = compiler_->Compile(job);
  EXPECT_EQ(source.compiled.code(), absl::StatusCode::kInvalidArgument) << source.compiled;
  EXPECT_THAT(std::string(source.compiled.message()), HasSubstr("'abacus'"));
  const CompileResult object = compiler_->CompileObject({.target = "abacus", .bytes = "x"});
  EXPECT_THAT(std::string(object.compiled.message()), HasSubstr("'abacus'"));
}

TEST_F(CompilerTest, CompilationOverTheCpuTimeIsRefused) {
  options_.limits.cpu_time = std::chrono::seconds(1);
  options_.limits.wall_time = std::chrono::seconds(100);
  Restart();
  const CompileResult unit = compiler_->Compile(Job(Operator(kBomb, "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kDeadlineExceeded) << unit.compiled << unit.log;
  EXPECT_THAT(std::string(unit.compiled.message()), HasSubstr("--compile_cpu_time"));
}

TEST_F(CompilerTest, HugeOutputIsRefused) {
  const CompileResult unit =
      compiler_->Compile(Job(Operator("asm(\".data\\n.fill 2000000000, 1, 7\\n\");", "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kResourceExhausted)
      << unit.compiled << unit.log;
}

TEST_F(CompilerTest, CompilerThatFillsItsFolderIsKilled) {
  options_.host_compiler = fs::absolute("runtime/compile/greedy_compiler_for_test");
  options_.limits.folder_mib = 64;
  Restart();
  const CompileResult unit = compiler_->Compile(Job(kSwish));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kResourceExhausted) << unit.compiled;
  EXPECT_THAT(std::string(unit.compiled.message()), HasSubstr("64 MiB or 10000 files. Fix: "));
  EXPECT_TRUE(testing::Eventually([this] { return WorkIsEmpty(); }));
}

// An assembler's error repeats the text that it cannot parse, with the name of its input file.
TEST_F(CompilerTest, MessagesAreUtf8AndNameNoFolderOfTheDaemon) {
  const CompileResult unit =
      compiler_->Compile(Job(Operator("asm(\".error \\\"caf\\xe9 (\\xc3)\\\"\");", "")));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument) << unit.compiled << unit.log;
  EXPECT_THAT(unit.log, HasSubstr("caf\xef\xbf\xbd"));
  EXPECT_THAT(std::string(unit.compiled.message()), HasSubstr("Error: caf\xef\xbf\xbd"));
  for (const std::string& text : {unit.log, std::string(unit.compiled.message())}) {
    EXPECT_THAT(text, Not(HasSubstr(cache_)));
    EXPECT_THAT(text, Not(HasSubstr("/work/")));
  }
}

TEST_F(CompilerTest, LargeSourceIsRefusedBeforeItIsCompiled) {
  const CompileResult unit =
      compiler_->Compile(Job(absl::StrCat(kSwish, std::string(10 << 20, '\n'))));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unit.compiled.message()), HasSubstr("1048576"));
  EXPECT_EQ(compiler_->counters().cache_misses, 0u);
}

TEST_F(CompilerTest, CancelledCompilationEnds) {
  CompileJob job = Job(Operator(kBomb, ""));
  job.cancelled = [] { return true; };
  EXPECT_EQ(compiler_->Compile(job).compiled.code(), absl::StatusCode::kCancelled);
}

TEST_F(CompilerTest, ConcurrentCompilationsSucceed) {
  std::vector<std::thread> threads;
  std::vector<CompileResult> results(6);
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      CompileJob job = Job(kSwish);
      job.content_hash[0] = static_cast<char>('0' + i);
      results[i] = compiler_->Compile(job);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const CompileResult& result : results) EXPECT_TRUE(result.ok()) << result.compiled;
}

// Children of this process: those that wait for a job, and those that have done one and end.
std::set<pid_t> Processes() {
  std::set<pid_t> pids;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t pid; children >> pid;) pids.insert(pid);
  }
  return pids;
}

TEST_F(CompilerTest, ProcessThatWasKilledWhileItWaitedIsReplaced) {
  options_.ahead = {"x86-64"};
  Restart();
  const std::set<pid_t> before = Processes();
  ASSERT_EQ(before.size(), 2u);
  ASSERT_TRUE(compiler_->Compile(Job(kSwish)).ok());
  // One takes the place of that which compiled; a thread ends the one and starts the other.
  std::set<pid_t> waiting;
  ASSERT_TRUE(testing::Eventually([&] {
    waiting = Processes();
    return waiting.size() == 2 && waiting != before;
  })) << waiting.size();
  for (const pid_t pid : waiting) {
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    ASSERT_GE(pidfd, 0) << pid;
    kill(pid, SIGKILL);
    pollfd ended{pidfd, POLLIN, 0};
    poll(&ended, 1, -1);
    close(pidfd);
  }
  CompileJob other = Job(kSwish);
  other.content_hash[0] = 'b';
  const CompileResult unit = compiler_->Compile(other);
  EXPECT_TRUE(unit.ok()) << unit.compiled;
  compiler_.reset();
  EXPECT_THAT(Processes(), ::testing::IsEmpty());
  EXPECT_TRUE(fs::is_empty(cache_ + "/work"));
}

TEST_F(CompilerTest, MissingHostCompilerIsReported) {
  options_.host_compiler = "no-such-compiler++";
  Restart();
  const CompileResult unit = compiler_->Compile(Job(kSwish));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(unit.compiled.message()), HasSubstr("--host_compiler"));
}

// A unit that is refused, and a part of the error.
struct BadUnit {
  const char* name;
  const char* before;
  const char* body;
  const char* message;
};

class BadUnitTest : public CompilerTest, public ::testing::WithParamInterface<BadUnit> {};

TEST_P(BadUnitTest, IsRefused) {
  const CompileResult unit = compiler_->Compile(Job(Operator(GetParam().before, GetParam().body)));
  ASSERT_TRUE(unit.compiled.ok()) << unit.compiled << unit.log;
  EXPECT_EQ(unit.inspected.code(), absl::StatusCode::kInvalidArgument) << unit.log;
  EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr("Fix: "));
}

constexpr char kStore[] = "args.tensor<float>(1)[0] = ";
INSTANTIATE_TEST_SUITE_P(
    Host, BadUnitTest,
    ::testing::Values(
        BadUnit{"Undefined", "float missing(float);", "args.tensor<float>(1)[0] = missing(1);",
                "'missing(float)'"},
        BadUnit{"System", "extern \"C\" int system(const char*);", "system(\"true\");", "'system'"},
        BadUnit{"Recursion", "int f(int n) { return n < 2 ? n : f(n - 1) * f(n - 2) + 1; }",
                "args.tensor<float>(1)[0] = f(args.scalar<int>(2));", "calls itself"},
        BadUnit{"Stack", "",
                "volatile float a[1 << 20]; a[args.scalar<int>(2)] = 1; "
                "args.tensor<float>(1)[0] = a[args.scalar<int>(3)];",
                "bytes of stack; the limit is 262144"},
        BadUnit{"Alloca", "",
                "volatile char* a = (volatile char*)__builtin_alloca(args.scalar<int>(2)); a[0] = "
                "1; args.tensor<float>(1)[0] = a[args.scalar<int>(3)];",
                "known at run time only"},
        BadUnit{"Variable", "static int counter;", "args.tensor<float>(1)[0] = ++counter;",
                "counter"},
        BadUnit{"Constructor",
                "struct S { S(); volatile int x; }; inline S::S() : x(3) {} static S s;",
                "args.tensor<float>(1)[0] = s.x;", "when it is loaded"},
        BadUnit{"ThreadLocal", "static thread_local int t;", "args.tensor<float>(1)[0] = ++t;",
                "thread_local"},
        BadUnit{"Collision",
                "extern \"C\" __attribute__((visibility(\"default\"))) void resident_kernel() {}",
                "", "'resident_kernel'"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(CompilerTest, OperatorOfAnotherNameIsNamed) {
  CompileJob job = Job(kSwish);
  job.function = "other";
  const CompileResult unit = compiler_->Compile(job);
  ASSERT_TRUE(unit.compiled.ok()) << unit.log;
  EXPECT_THAT(std::string(unit.inspected.message()),
              HasSubstr("it defines RESIDENT_OPERATOR(swish) but not RESIDENT_OPERATOR(other)"));
}

TEST_F(CompilerTest, OtherParameterListDoesNotCompile) {
  const CompileResult unit = compiler_->Compile(
      Job("#include \"resident/operator.h\"\nRESIDENT_OPERATOR(swish)(int x) {}\n"));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unit.log, HasSubstr("swish.cc:2:"));
}

}  // namespace
}  // namespace resident
