#include "tests/operators/bad_operators.h"

#include <cstdlib>

namespace resident::testing {
namespace {

// Number of threads of a GPU block, with which tests/daemon/daemon.h starts the daemon.
uint32_t ThreadsPerBlock() {
  const char* threads = std::getenv("RESIDENT_TEST_THREADS_PER_BLOCK");
  const int wanted = threads == nullptr ? 0 : std::atoi(threads);
  return wanted == 0 ? 256 : static_cast<uint32_t>(wanted);
}

// Returns the source of the operator `name` with this body; `before` precedes it.
std::string Operator(const std::string& name, const std::string& body,
                     const std::string& before = "") {
  return "#include \"kernels/sdk/operator.h\"\n"
         "using namespace resident;\n" +
         before + "\nRESIDENT_OPERATOR(" + name +
         ")(Block& block, const Args& args) {\n"
         "  auto x = args.tensor<const float>(0);\n"
         "  auto out = args.tensor<float>(1);\n"
         "  (void)x; (void)out;\n" +
         body + "\n}\n";
}

// out = 2 x. Correct code, used together with the faulty code of a row.
constexpr char kTwice[] =
    "  block.for_each(block.share(x.size()), [&](i64 i) { out[i] = 2 * x[i]; });\n";

// Makes a row whose operator has this body.
BadOperator Row(const std::string& name, Stage stage, const std::string& message,
                const std::string& body, const std::string& before = "") {
  BadOperator row;
  row.name = name;
  row.source = Operator(name, body, before);
  row.stage = stage;
  row.message = message;
  return row;
}

BadOperator OnOnly(On on, BadOperator row) {
  row.on = on;
  return row;
}

BadOperator WithGpuMessage(const std::string& message, BadOperator row) {
  row.message_gpu = message;
  return row;
}

BadOperator WithSecondExample(BadOperator row) {
  row.second_example = true;
  return row;
}

BadOperator WithSplit(const std::string& split, BadOperator row) {
  row.split = split;
  return row;
}

std::vector<BadOperator> MakeTable() {
  std::vector<BadOperator> rows;
  const auto add = [&](BadOperator row) { rows.push_back(std::move(row)); };

  // --- Refused before compilation ------------------------------------------------------
  add([] {
    BadOperator row = Row("name_collides", Stage::kRequest, "built in", kTwice);
    row.installed_as = "add";
    return row;
  }());
  add([] {
    BadOperator row = Row("signature_is_none", Stage::kRequest, "signature", kTwice);
    row.signature = "x: in f99[*S], out: out f32[*S]";
    return row;
  }());
  add([] {
    BadOperator row = Row("ten_megabytes", Stage::kRequest, "the limit is 1048576", kTwice);
    row.source += "// " + std::string(10 << 20, 'x') + "\n";
    return row;
  }());
  add([] {
    BadOperator row = Row("expression_is_none", Stage::kRequest, "expression", "");
    row.source.clear();
    row.expression = "x * sigmoid(";
    return row;
  }());
  add([] {
    BadOperator row = Row("object_is_not_allowed", Stage::kRequest, "--allow_objects", kTwice);
    row.object = true;
    return row;
  }());

  // --- Does not compile ----------------------------------------------------------------
  add(WithGpuMessage("syntax_error.cc(",
                     Row("syntax_error", Stage::kCompile, "syntax_error.cc:8:", "  out[0] = 1\n")));
  add(Row("includes_a_file_of_the_host", Stage::kCompile, "/etc/passwd", kTwice,
          "#include \"/etc/passwd\""));
  add(Row("includes_a_file_above", Stage::kCompile, "etc/hostname", kTwice,
          "#include \"../../../../../../../../etc/hostname\""));
  add(Row("includes_a_system_header", Stage::kCompile, "iostream", kTwice, "#include <iostream>"));
  add(OnOnly(On::kCpu, Row("assembles_a_file_of_the_host", Stage::kCompile, "/etc/passwd", kTwice,
                           "asm(\".incbin \\\"/etc/passwd\\\"\");")));
  add(Row(
      "takes_minutes_to_compile", Stage::kCompile, "took longer than 8000 ms", kTwice,
      "template <int a, int b> struct Slow {\n"
      "  static constexpr u64 value = Slow<a - 1, 2 * b>::value + Slow<a - 1, 2 * b + 1>::value;\n"
      "};\n"
      "template <int b> struct Slow<0, b> { static constexpr u64 value = b; };\n"
      "constexpr u64 slow = Slow<28, 1>::value;"));
  add([] {
    BadOperator row = Row("other_parameters", Stage::kCompile, "other_parameters", "");
    row.source =
        "#include \"kernels/sdk/operator.h\"\n"
        "RESIDENT_OPERATOR(other_parameters)(int x) {}\n";
    return row;
  }());

  // --- Fails inspection ----------------------------------------------------------------
  add([] {
    BadOperator row = Row("no_entry", Stage::kInspect, "no_entry", "");
    row.source = Operator("another_name", kTwice);
    return row;
  }());
  add(Row("undefined_function", Stage::kInspect, "nowhere_to_be_found",
          "  nowhere_to_be_found(out.data());\n",
          "#if RESIDENT_GPU\n"
          "extern \"C\" __device__ void nowhere_to_be_found(float*);\n"
          "#else\n"
          "extern \"C\" void nowhere_to_be_found(float*);\n"
          "#endif"));
  add(OnOnly(On::kCpu, Row("calls_the_system", Stage::kInspect, "system",
                           "  out[0] = static_cast<float>(system(\"true\"));\n",
                           "extern \"C\" int system(const char*);")));
  add(Row("huge_local_array", Stage::kInspect, "stack",
          "  volatile float many[1 << 17];\n"
          "  for (i64 i = 0; i < 1 << 17; ++i) many[i] = static_cast<float>(i);\n"
          "  out[0] = many[x.size()];\n"));
  add(Row("deep_recursion", Stage::kInspect, "calls itself", "  out[0] = Deep(1e9f + x[0]);\n",
          "#if RESIDENT_GPU\n"
          "#define DEVICE __device__ __noinline__\n"
          "#else\n"
          "#define DEVICE __attribute__((noinline))\n"
          "#endif\n"
          "DEVICE float Deep(float left) {\n"
          "  volatile float here[16];\n"
          "  for (int i = 0; i < 16; ++i) here[i] = left;\n"
          "  return left <= 0 ? 0 : Deep(left - 1) + here[static_cast<int>(left) & 15];\n"
          "}"));
  add(OnOnly(On::kGpu, Row("static_shared_memory", Stage::kInspect, "shared memory",
                           "  __shared__ float own[1024];\n"
                           "  own[block.thread()] = x[0];\n"
                           "  block.barrier();\n"
                           "  out[0] = own[(block.thread() + 1) % 256];\n")));
  add(OnOnly(
      On::kGpu,
      Row("more_registers_than_the_kernel", Stage::kInspect, "registers",
          "  float v[160];\n"
          "#pragma unroll\n"
          "  for (int i = 0; i < 160; ++i) v[i] = x.data()[i % x.size()];\n"
          "  for (int round = 0; round < x.size(); ++round) {\n"
          "#pragma unroll\n"
          "    for (int i = 0; i < 160; ++i) v[i] = v[i] * v[(i + 1) % 160] + v[(i + 7) % 160];\n"
          "  }\n"
          "  float sum = 0;\n"
          "#pragma unroll\n"
          "  for (int i = 0; i < 160; ++i) sum += v[i] * static_cast<float>(i);\n"
          "  out[0] = sum;\n")));
  add(Row("static_state", Stage::kInspect, "calls",
          "  ++calls;\n  out[0] = static_cast<float>(calls);\n",
          "#if RESIDENT_GPU\n"
          "__device__ int calls = 1;\n"
          "#else\n"
          "int calls = 1;\n"
          "#endif"));
  add(OnOnly(On::kCpu, Row("runs_when_it_is_loaded", Stage::kInspect, "loaded", kTwice,
                           "struct Early {\n"
                           "  Early() { *reinterpret_cast<volatile int*>(8) = 1; }\n"
                           "};\n"
                           "Early early;")));

  // --- Fails validation ----------------------------------------------------------------
  add(Row("infinite_loop", Stage::kValidation, "has not returned within its time limit of 2000 ms",
          "  volatile float* const forever = out.data();\n"
          "  while (true) *forever = 1;\n"));
  add(WithSecondExample(Row("infinite_loop_on_one_input", Stage::kValidation, "example 2",
                            "  volatile float thirteen = 13;\n"
                            "  while (x[0] == thirteen) {\n  }\n" +
                                std::string(kTwice))));
  add(WithGpuMessage("it ended the engine",
                     Row("store_to_null", Stage::kValidation, "SIGSEGV",
                         "  volatile u64 nowhere = 0;\n"
                         "  *reinterpret_cast<volatile float*>(nowhere) = 1;\n")));
  add(Row("store_beyond_the_tensor", Stage::kValidation,
          "touched element 100 of 'out', which has 100 elements",
          std::string(kTwice) + "  if (block.thread() == 0) out[out.size()] = 1;\n"));
  add(Row("store_beyond_the_tensor_by_pointer", Stage::kValidation, "past the end of 'out'",
          std::string(kTwice) + "  if (block.thread() == 0) out.data()[out.size()] = 1;\n"));
  add(Row("store_before_the_tensor", Stage::kValidation, "touched element -1 of 'out'",
          std::string(kTwice) + "  if (block.thread() == 0) out[-1] = 1;\n"));
  // A validation engine has no memory at the addresses where another client's buffer would
  // be.
  add(Row("store_to_another_clients_buffer", Stage::kValidation, "it ended the engine",
          std::string(kTwice) +
              "  volatile u64 theirs = reinterpret_cast<u64>(out.data()) + (1ull << 44);\n"
              "  if (block.thread() == 0) *reinterpret_cast<volatile float*>(theirs) = 1;\n"));
  add(Row("store_to_an_input", Stage::kValidation, "it wrote to element 0 of its input 'x'",
          std::string(kTwice) + "  block.barrier();\n"
                                "  if (block.thread() == 0) const_cast<float&>(x[0]) = -5;\n"));
  add(Row("leaves_an_element_unwritten", Stage::kValidation,
          "left 1 of the 100 elements of 'out' unwritten, the first is element 99",
          "  block.for_each({0, x.size() - 1}, [&](i64 i) { out[i] = 2 * x[i]; });\n"));
  add(Row("wrong_result", Stage::kValidation, "'out' differs from what the example expects",
          "  block.for_each(block.share(x.size()), [&](i64 i) { out[i] = 3 * x[i]; });\n"));
  add(Row("reads_its_output", Stage::kValidation, "element 0 is nan",
          "  block.for_each(block.share(x.size()), [&](i64 i) { out[i] += 2 * x[i]; });\n"));
  add(Row("reports_a_failure", Stage::kValidation, "INTERNAL, detail 7",
          "  block.fail(CompletionStatus::kInternal, 7);\n"));
  add(Row("trap", Stage::kValidation, "it ended the engine",
          "#if !RESIDENT_GPU\n"
          "  __builtin_trap();\n"
          "#elif defined(__CUDA_ARCH__)\n"
          "  asm volatile(\"trap;\");\n"
          "#endif\n"));
  add(OnOnly(On::kGpu, Row("asm_that_exits", Stage::kValidation, "has not returned",
                           "  asm volatile(\"exit;\");\n")));
  add(OnOnly(On::kCpu,
             Row("asm_that_ends_the_process", Stage::kValidation, "the engine exited with status 3",
                 "  long number = 231;\n"
                 "  asm volatile(\"syscall\" : \"+a\"(number) : \"D\"(3) : \"rcx\", \"r11\", "
                 "\"memory\");\n")));
  add(OnOnly(On::kCpu, Row("divides_by_zero", Stage::kValidation, "SIGFPE",
                           "  volatile int zero = 0;\n"
                           "  out[0] = static_cast<float>(static_cast<int>(x.size()) / zero);\n")));
  add(OnOnly(On::kGpu,
             Row("divergent_barrier", Stage::kValidation,
                 "reached a barrier with " + std::to_string(ThreadsPerBlock() / 2) + " of " +
                     std::to_string(ThreadsPerBlock()) + " threads",
                 std::string(kTwice) + "  if (block.thread() % 2 == 0) block.barrier();\n")));
  add(Row("signature_disagrees_about_a_type", Stage::kValidation,
          "read 'x' as elements of 8 bytes, but its type is f32 (4 bytes)",
          "  auto wide = args.tensor<const double>(0);\n"
          "  block.for_each(block.share(out.size()), "
          "[&](i64 i) { out[i] = static_cast<float>(wide[i]); });\n"));
  add(Row("signature_disagrees_about_the_arguments", Stage::kValidation,
          "requested argument 2, but its signature has 2 (x, out)",
          std::string(kTwice) + "  if (args.scalar<float>(2) > 0) out[0] = 0;\n"));
  add(WithSplit("out 64",
                Row("right_in_one_split_only", Stage::kValidation, "on one block",
                    "  const i64 begin = 64 * block.chunk();\n"
                    "  const i64 end = begin + 64 < x.size() ? begin + 64 : x.size();\n"
                    "  block.for_each({begin, end}, [&](i64 i) { out[i] = 2 * x[i]; });\n")));
  add(Row("scratch_beyond_its_end", Stage::kValidation, "requested scratch() up to byte",
          std::string(kTwice) +
              "  if (block.thread() == 0) *block.scratch<float>(kScratchBytes) = 1;\n"));
  return rows;
}

}  // namespace

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kRequest:
      return "request";
    case Stage::kCompile:
      return "compile";
    case Stage::kInspect:
      return "inspect";
    case Stage::kValidation:
      return "validation";
  }
  return "unknown";
}

const std::vector<BadOperator>& BadOperators() {
  static const auto* const rows = new std::vector<BadOperator>(MakeTable());
  return *rows;
}

}  // namespace resident::testing
