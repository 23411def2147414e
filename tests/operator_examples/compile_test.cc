// Expressions, and the examples of docs/operators.md, through the real compile role: for
// the CPU engine and (RESIDENT_TEST_CUDA) for every architecture of GPU. They compile
// without a word, in both builds, and pass inspection.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/compile/compiler.h"
#include "runtime/expression/expression.h"

namespace resident {
namespace {

// All functions are in the last one.
const char* const kExpressions[] = {
    "x * sigmoid(x)",
    "a * x + y where a: scalar f32 = 1",
    "1",
    "sin(x) * cos(y) + pow(z, 1.5)",
    "a + b + c + d + f + g + h + i + j + k + l + m + n",
    "abs(x) + ceil(x) + clamp(x, 0, 1) + cos(x) + elu(x) + erf(x) + exp(x) + expm1(x) + floor(x) "
    "+ fma(x, x, x) + gelu(x) + gelu_tanh(x) + hardsigmoid(x) + hardswish(x) + hardtanh(x) + "
    "leaky_relu(x) + log(x) + log1p(x) + maximum(x, y) + minimum(x, y) + neg(x) + pow(x, y) + "
    "relu(x) + round(x) + rsqrt(x) + select(x < y && x != 0 || !(y >= inf), x, nan) + sigmoid(x) + "
    "silu(x) + silu_mul(x, y) + sin(x) + softplus(x) + sqrt(x) + tanh(x) + trunc(x) + pi",
};
const char* const kExamples[] = {"hinge", "scaled_gelu", "softmax_rows", "outer", "reverse_rows"};

struct Source {
  std::string function;
  std::string text;
  // What an expression needs of registers is not its author's concern.
  bool allow_spills;
};

std::vector<Source> Sources() {
  std::vector<Source> sources;
  for (const char* expression : kExpressions) {
    const auto generated = expression::Generate("op", expression);
    EXPECT_TRUE(generated.ok()) << generated.status();
    if (generated.ok()) sources.push_back({"op", generated->source, true});
  }
  for (const std::string name : kExamples) {
    std::ostringstream text;
    text << std::ifstream("docs/examples/" + name + ".cc").rdbuf();
    sources.push_back({name, text.str(), false});
  }
  return sources;
}

std::vector<CompileTarget> Targets() {
  if (RESIDENT_TEST_CUDA) return {{false, 0}, {true, 80}, {true, 90}, {true, 100}};
  return {{false, 0}};
}

class CompileTest : public ::testing::TestWithParam<CompileTarget> {};

INSTANTIATE_TEST_SUITE_P(Targets, CompileTest, ::testing::ValuesIn(Targets()),
                         [](const auto& info) {
                           return info.param.cuda ? "sm_" + std::to_string(info.param.architecture)
                                                  : std::string("cpu");
                         });

TEST_P(CompileTest, ExpressionsAndExamplesCompileAndPassInspection) {
  CompilerOptions options;
  options.program = "runtime/compile/compile_for_test";
  const auto compiler = Compiler::Create(options);
  ASSERT_TRUE(compiler.ok()) << compiler.status();
  for (const Source& source : Sources()) {
    for (const bool checked : {false, true}) {
      CompileJob job;
      job.target = GetParam();
      job.files = {{"op.cc", source.text}};
      job.main_file = "op.cc";
      job.function = source.function;
      job.content_hash = std::string(64, checked ? 'c' : 'a');
      job.checked = checked;
      job.allow_spills = source.allow_spills;
      const CompileResult unit = (*compiler)->Compile(job);
      SCOPED_TRACE(source.text);
      ASSERT_TRUE(unit.compiled.ok()) << unit.compiled << unit.log;
      EXPECT_TRUE(unit.inspected.ok()) << unit.inspected;
      EXPECT_EQ(unit.log, "");
      std::cout << source.function << (checked ? ", checked: " : ": ") << unit.resources.registers
                << " registers, " << unit.resources.stack_bytes << " bytes of stack, "
                << unit.resources.code_bytes << " bytes of code\n";
    }
  }
}

}  // namespace
}  // namespace resident
