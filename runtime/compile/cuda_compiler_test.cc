// The compiler for GPUs: the real NVRTC and nvJitLink, and no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/sdk/operator.h"
#include "runtime/compile/compiler.h"
#include "runtime/image/cubin.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kSlot = 200;

class CudaCompilerTest : public ::testing::Test {
 protected:
  CudaCompilerTest() {
    options_.cache_dir =
        absl::StrCat(getenv("TEST_TMPDIR"), "/",
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    options_.program = "runtime/compile/compile_for_test";
    Restart();
  }

  void Restart() {
    compiler_.reset();
    auto created = Compiler::Create(options_);
    ASSERT_TRUE(created.ok()) << created.status();
    compiler_ = *std::move(created);
  }

  static CompileJob Job(const std::string& before, const std::string& body, int architecture = 90) {
    CompileJob job;
    job.target = absl::StrCat("sm_", architecture);
    job.files = {
        {"swish.cc", absl::StrCat("#include \"resident/operator.h\"\n", before,
                                  "\nRESIDENT_OPERATOR(swish)(resident::Block& block, const "
                                  "resident::Args& args) {\n",
                                  body, "\n}\n")}};
    job.main_file = "swish.cc";
    job.function = "swish";
    job.content_hash = std::string(64, 'a');
    return job;
  }
  static CompileJob Good(int architecture = 90) {
    return Job("float twice(float x) { return 2 * x; }\nRESIDENT_CONSTANT(float, kT, {1, 2});",
               "  auto x = args.tensor<const float>(0);\n"
               "  auto y = args.tensor<float>(1);\n"
               "  block.for_each(block.share(x.size()), [&](resident::i64 i) {\n"
               "    y[i] = twice(x[i]) / (1 + expf(-x[i])) + kT[i % 2];\n"
               "  });\n"
               "  args.tensor<float>(2)[0] = block.reduce_sum(x[0]);",
               architecture);
  }

  CompilerOptions options_;
  std::unique_ptr<Compiler> compiler_;
};

TEST_F(CudaCompilerTest, UnitsAndTheirChecksBecomeModules) {
  for (const int architecture : {80, 90, 100}) {
    for (const bool checked : {false, true}) {
      CompileJob job = Good(architecture);
      job.checked = checked;
      const CompileResult unit = compiler_->Compile(job);
      ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
      EXPECT_LE(unit.resources.registers, kMaxRegisters);
      EXPECT_GT(unit.resources.code_bytes, 500u);
      const auto functions = ReadCubin(*unit.object);
      ASSERT_TRUE(functions.ok()) << functions.status();
      EXPECT_EQ(functions->count(unit.symbol), 1u);
      EXPECT_EQ(functions->count(kResidentKernelName), 0u);
      EXPECT_THAT(*unit.object, HasSubstr(unit.symbol + "_entry"));
    }
  }
}

// A function of a module sees the kernel's constant memory instead of its own. Compilers
// often put the jump tables of switch statements there.
TEST_F(CudaCompilerTest, ModulesHaveNoConstantMemory) {
  std::string cases;
  for (int i = 0; i < 12; ++i) {
    absl::StrAppend(&cases, "    case ", i * 3, ": y[i] = x[i] * ", i + 1, " + sinf(x[i] + ", i,
                    "); break;\n");
  }
  for (const int architecture : {80, 90, 100}) {
    const CompileResult unit =
        compiler_->Compile(Job("RESIDENT_CONSTANT(float, kT, {1, 2, 3});",
                               "  auto x = args.tensor<const float>(0);\n"
                               "  auto y = args.tensor<float>(1);\n"
                               "  block.for_each(block.share(x.size()), [&](resident::i64 i) {\n"
                               "    switch (static_cast<int>(x[i])) {\n" +
                                   cases + "    default: y[i] = kT[i % 3]; }\n  });",
                               architecture));
    ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
    EXPECT_THAT(*unit.object, Not(AnyOf(HasSubstr(".nv.constant2"), HasSubstr(".nv.constant3"))));
  }
}

TEST_F(CudaCompilerTest, ConstantMemoryIsRefused) {
  const CompileResult unit = compiler_->Compile(Job(
      "__constant__ float kT[] = {1, 2};", "  args.tensor<float>(0)[0] = kT[block.thread() % 2];"));
  EXPECT_EQ(unit.inspected.code(), absl::StatusCode::kInvalidArgument) << unit.inspected;
  EXPECT_THAT(std::string(unit.inspected.message()),
              AllOf(HasSubstr("8 bytes of constant memory"), HasSubstr("RESIDENT_CONSTANT")));
}

TEST_F(CudaCompilerTest, SecondCompilationComesFromTheCacheAlsoAfterRestart) {
  ASSERT_TRUE(compiler_->Compile(Good()).ok());
  EXPECT_TRUE(compiler_->Compile(Good()).cached);
  Restart();
  EXPECT_TRUE(compiler_->Compile(Good()).cached);
  EXPECT_FALSE(compiler_->Compile(Good(100)).cached);
}

// A restart names the level that an install got without naming one.
TEST_F(CudaCompilerTest, AUnitThatIsNotStoppableIsCachedAsATrustedOne) {
  CompileJob job = Job("", "  if (args.scalar<int>(0) < 0) __trap();");
  job.isolation = Isolation::kUnspecified;
  EXPECT_THAT(compiler_->Compile(job).isolation_reason, HasSubstr("(rule C1)"));
  const CompileResult again = compiler_->Compile(job);
  EXPECT_TRUE(again.cached);
  EXPECT_EQ(again.isolation, Isolation::kTrusted);
  EXPECT_THAT(again.isolation_reason, HasSubstr("(rule C1)"));
  job.isolation = Isolation::kTrusted;
  const CompileResult trusted = compiler_->Compile(job);
  EXPECT_TRUE(trusted.cached);
  EXPECT_EQ(trusted.isolation_reason, "");
  job.isolation = Isolation::kStoppable;
  EXPECT_FALSE(compiler_->Compile(job).ok());
}

TEST_F(CudaCompilerTest, ErrorsHaveTheLinesOfTheUsersFile) {
  CompileJob job = Job("#include \"util/wrong.h\"", "  block.nothing();");
  job.files["util/wrong.h"] = "\n\nint f() { return undeclared; }\n";
  const CompileResult unit = compiler_->Compile(job);
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(unit.log, HasSubstr("swish.cc(4)"));
  EXPECT_THAT(unit.log, HasSubstr("util/wrong.h(3)"));
}

TEST_F(CudaCompilerTest, HostFilesAreNotRead) {
  for (const char* include :
       {"#include \"/etc/passwd\"", "#include \"../../../../../../../../etc/passwd\"",
        "#include </etc/hostname>", "#include </proc/self/environ>"}) {
    const CompileResult unit = compiler_->Compile(Job(include, ""));
    EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kInvalidArgument) << unit.compiled;
    EXPECT_THAT(unit.log, Not(HasSubstr("root:")));
    EXPECT_THAT(unit.log, HasSubstr("swish.cc(2)"));
    EXPECT_THAT(unit.log, HasSubstr("a source may include the files that were sent"));
  }
}

TEST_F(CudaCompilerTest, CompilationOverTheWallTimeIsKilled) {
  options_.limits.wall_time = std::chrono::milliseconds(3000);
  Restart();
  const CompileResult unit = compiler_->Compile(
      Job("template <int N, int M> struct Bomb {\n"
          "  static constexpr long value = Bomb<N - 1, 2 * M>::value + "
          "Bomb<N - 1, 2 * M + 1>::value;\n"
          "};\n"
          "template <int M> struct Bomb<0, M> { static constexpr long value = M; };\n"
          "constexpr long kValue = Bomb<26, 1>::value;\n",
          ""));
  EXPECT_EQ(unit.compiled.code(), absl::StatusCode::kDeadlineExceeded) << unit.compiled << unit.log;
  EXPECT_TRUE(compiler_->Compile(Good()).ok());
}

struct BadUnit {
  const char* name;
  const char* before;
  const char* body;
  const char* message;
};

class BadCudaUnitTest : public CudaCompilerTest, public ::testing::WithParamInterface<BadUnit> {};

TEST_P(BadCudaUnitTest, IsRefused) {
  const CompileResult unit = compiler_->Compile(Job(GetParam().before, GetParam().body));
  ASSERT_TRUE(unit.compiled.ok()) << unit.compiled << unit.log;
  EXPECT_EQ(unit.inspected.code(), absl::StatusCode::kInvalidArgument) << unit.log;
  EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr(GetParam().message));
  EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr("Fix: "));
}

constexpr char kManyRegisters[] =
    "auto x = args.tensor<const float>(0); float v[128];\n"
    "#pragma unroll\n"
    "for (int i = 0; i < 128; ++i) v[i] = x[i];\n"
    "block.barrier();\n"
    "#pragma unroll 1\n"
    "for (int k = 0; k < 100; ++k) {\n"
    "#pragma unroll\n"
    "for (int i = 0; i < 128; ++i) v[i] = v[i] * v[(i + 1) % 128] + v[(i + 7) % 128];\n"
    "}\n"
    "float sum = 0;\n"
    "#pragma unroll\n"
    "for (int i = 0; i < 128; ++i) sum += v[i] * i;\n"
    "args.tensor<float>(1)[block.thread()] = sum;";

INSTANTIATE_TEST_SUITE_P(
    Cuda, BadCudaUnitTest,
    ::testing::Values(
        BadUnit{"Undefined", "__device__ float missing(float);",
                "args.tensor<float>(1)[0] = missing(1);", "'missing(float)'"},
        BadUnit{"Print", "", "printf(\"x\");", "operators cannot print"},
        BadUnit{"Recursion",
                "__noinline__ int f(int n) { return n < 2 ? n : f(n - 1) * f(n - 2) + 1; }",
                "args.tensor<float>(1)[0] = f(args.scalar<int>(2));", "calls itself"},
        BadUnit{"MutualRecursion",
                "__noinline__ int g(int n); __noinline__ int f(int n) { return n < 2 ? n : g(n - "
                "1) + 1; } int g(int n) { return f(n - 2) * 3; }",
                "args.tensor<float>(1)[0] = f(args.scalar<int>(2));",
                "calls itself through other functions"},
        BadUnit{"Stack", "",
                "float a[2000]; auto x = args.tensor<const float>(0);\n"
                "for (int i = 0; i < 2000; ++i) a[i] = x[i];\n"
                "args.tensor<float>(1)[0] = a[args.scalar<int>(2)];",
                "bytes of stack a thread; there are 1920"},
        BadUnit{"Registers", "", kManyRegisters, "registers a thread; the kernel has 96"},
        BadUnit{"SharedMemory", "",
                "__shared__ float s[256]; s[block.thread()] = 1; block.barrier(); "
                "args.tensor<float>(1)[0] = s[255 - block.thread()];",
                "1024 bytes of static shared memory"},
        BadUnit{"DynamicSharedMemory", "",
                "extern __shared__ float s[]; s[block.thread()] = 1; block.barrier(); "
                "args.tensor<float>(1)[0] = s[255 - block.thread()];",
                "::s'"},
        BadUnit{"Variable", "static int counter;", "args.tensor<float>(1)[0] = ++counter;",
                "counter"},
        BadUnit{"VariableOfFunction", "",
                "static int calls = 3; args.tensor<float>(1)[0] = ++calls;", "calls"},
        BadUnit{"Collision", "extern \"C\" __device__ void resident_kernel() {}", "",
                "'resident_kernel'"},
        BadUnit{"CollisionWithBuiltIn",
                "extern \"C\" __device__ void resident_operator_add(resident::Block&, const "
                "resident::Args&) {}",
                "", "'resident_operator_add'"},
        BadUnit{"UnknownPointer", "",
                "auto f = reinterpret_cast<void (*)(int, float)>(args.scalar<long long>(2)); f(1, "
                "2);",
                "through a pointer"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(CudaCompilerTest, SpillsFitTheKernelWhenAllowed) {
  CompileJob job = Job("", kManyRegisters);
  job.allow_spills = true;
  const CompileResult unit = compiler_->Compile(job);
  ASSERT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
  EXPECT_LE(unit.resources.registers, kMaxRegisters);
  EXPECT_GT(unit.resources.stack_bytes, 0u);
}

TEST_F(CudaCompilerTest, WorkedExamplesFit) {
  size_t examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator("docs/examples")) {
    const std::string name = entry.path().stem();
    std::ifstream file(entry.path());
    CompileJob job = Job("", "");
    job.files["swish.cc"] = std::string(std::istreambuf_iterator<char>(file), {});
    job.function = name;
    // docs/operators.md installs these two with allow_spills.
    job.allow_spills = name == "scaled_gelu" || name == "matmul_bf16";
    const CompileResult unit = compiler_->Compile(job);
    EXPECT_TRUE(unit.ok()) << name << ": " << unit.compiled << unit.inspected << unit.log;
    ++examples;
  }
  EXPECT_GE(examples, 8u);
}

TEST_F(CudaCompilerTest, ConstantsThatCodeDoesNotReadAreNoVariables) {
  const CompileResult unit = compiler_->Compile(
      Job("struct P { static constexpr int kA = 3; }; inline constexpr float kB = 2; constexpr int "
          "kC[2] = {1, 2};",
          "args.tensor<float>(1)[0] = P::kA + kB + kC[1];"));
  EXPECT_TRUE(unit.ok()) << unit.compiled << unit.inspected << unit.log;
}

// Objects that were compiled with nvcc, as an operator's author does.
class ObjectTest : public CudaCompilerTest {
 protected:
  static std::string ReadObject(const std::string& name) {
    std::ifstream file("runtime/compile/" + name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  CompileResult Take(const std::string& bytes, int architecture = 90) {
    ObjectJob job;
    job.target = absl::StrCat("sm_", architecture);
    job.bytes = bytes;
    return compiler_->CompileObject(job);
  }
};

TEST_F(ObjectTest, CubinAndPtxBecomeModules) {
  for (const char* name : {"object_for_test.cubin", "object_for_test.ptx"}) {
    const CompileResult unit = Take(ReadObject(name));
    ASSERT_TRUE(unit.ok()) << name << unit.compiled << unit.inspected;
    EXPECT_EQ(unit.symbol, "resident_op_00112233445566ff");
    EXPECT_GT(unit.resources.registers, 10u);
    EXPECT_GT(unit.resources.code_bytes, 100u);
    EXPECT_EQ(ReadCubin(*unit.object)->count(unit.symbol), 1u);
    EXPECT_TRUE(Take(ReadObject(name)).cached);
  }
}

// Shared memory that a search of the text does not find is found in the linked module.
TEST_F(ObjectTest, SharedMemoryOfPtxIsRefusedHoweverItIsWritten) {
  std::string ptx = ReadObject("object_for_test.ptx");
  const size_t function = ptx.find(".visible .func resident_op_");
  ASSERT_NE(function, std::string::npos);
  const size_t body = ptx.find('{', function);
  ASSERT_NE(body, std::string::npos);
  ptx.insert(body + 1,
             ".shared\t.align 4 .b8 hidden[64]; .reg .b32 %hidden; mov.u32 %hidden, 1;\n"
             "st.volatile.shared.u32 [hidden], %hidden;\n");
  const CompileResult unit = Take(ptx);
  EXPECT_EQ(unit.inspected.code(), absl::StatusCode::kInvalidArgument) << unit.inspected;
  EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr("shared memory"));
}

TEST_F(ObjectTest, ObjectOfAnotherGpuIsRefused) {
  const CompileResult unit = Take(ReadObject("object_for_test.cubin"), 80);
  EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr("is for sm_90"));
}

TEST_F(ObjectTest, ObjectOfAnotherSdkIsRefused) {
  for (const char* name : {"object_for_test.cubin", "object_for_test.ptx"}) {
    std::string bytes = ReadObject(name);
    const std::string mark = absl::StrCat("resident_sdk_", RESIDENT_SDK_VERSION, "_");
    for (size_t at = bytes.find(mark); at != std::string::npos; at = bytes.find(mark, at + 1)) {
      bytes[at + mark.size() - 2] = '9';
    }
    const CompileResult unit = Take(bytes);
    EXPECT_THAT(std::string(unit.inspected.message()), HasSubstr("with version 9 of the SDK"));
  }
}

TEST_F(ObjectTest, GarbageIsRefused) {
  const std::string cubin = ReadObject("object_for_test.cubin");
  for (const std::string& bytes :
       {std::string(), std::string("hello"), cubin.substr(0, 100),
        cubin.substr(0, cubin.size() / 2), std::string(1000, '\x7f'),
        std::string(".target sm_90\n.visible .func ("),
        std::string(".version 9.0\n.target sm_90\n.visible .func resident_op_00112233445566ff")}) {
    const CompileResult unit = Take(bytes);
    EXPECT_TRUE(unit.compiled.ok()) << unit.compiled;
    EXPECT_EQ(unit.inspected.code(), absl::StatusCode::kInvalidArgument) << unit.inspected;
  }
}

}  // namespace
}  // namespace resident
