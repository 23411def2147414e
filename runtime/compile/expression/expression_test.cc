#include "runtime/compile/expression/expression.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/layout/task.h"
#include "runtime/model/signature.h"

namespace resident::expression {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

GeneratedOperator MustGenerate(const std::string& text) {
  const auto generated = Generate("op", text);
  EXPECT_TRUE(generated.ok()) << text << ": " << generated.status();
  return generated.ok() ? *generated : GeneratedOperator();
}

std::string Refusal(const std::string& text) {
  const auto generated = Generate("op", text);
  EXPECT_FALSE(generated.ok()) << text;
  EXPECT_EQ(generated.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(generated.status().message());
}

constexpr char kAny[] = "f32|f16|bf16";

TEST(ExpressionTest, MakesSourceSignatureSplitAndSummary) {
  const auto swish = Generate("my.swish-2", " x *\n sigmoid(x) ");
  ASSERT_TRUE(swish.ok()) << swish.status();
  EXPECT_EQ(swish->source,
            "// Made from an expression.\n"
            "#include \"kernels/sdk/operator.h\"\n"
            "\n"
            "RESIDENT_OPERATOR(my_swish_2)(resident::Block& block, const resident::Args& args) {\n"
            "  resident::elementwise<1, 2>(block, args, [=](const float* v) -> float {\n"
            "    const float t2 = resident::math::sigmoid(v[0]);\n"
            "    const float t3 = v[0] * t2;\n"
            "    return t3;\n"
            "  });\n"
            "}\n");
  EXPECT_EQ(swish->signature, "x: in strided f32|f16|bf16[*S~], out: out strided f32|f16|bf16[*S]");
  EXPECT_EQ(swish->split, "out 32768");
  EXPECT_EQ(swish->summary, "out = x * sigmoid(x)");
}

TEST(ExpressionTest, InputsAreInTheOrderOfTheirUseAndScalarsInThatOfTheirDeclaration) {
  const GeneratedOperator op =
      MustGenerate("b * y + a * x where a: scalar, y: in f16, b: scalar f32 = -2.5, out: out bf16");
  EXPECT_EQ(op.signature, absl::StrCat("y: in strided f16[*S~], x: in strided ", kAny,
                                       "[*S~], out: out strided bf16[*S], a: scalar f32, b: "
                                       "scalar f32 = -2.5"));
  EXPECT_THAT(op.source, HasSubstr("s0 = args.scalar<float>(3)"));
  EXPECT_THAT(op.source, HasSubstr("s1 = args.scalar<float>(4)"));
  EXPECT_THAT(op.source, HasSubstr("s1 * v[0]"));
}

TEST(ExpressionTest, InputsBeforeTheArrowAreInTheirOrder) {
  const GeneratedOperator behind = MustGenerate("x, y -> y - x");
  EXPECT_EQ(behind.signature, absl::StrCat("x: in strided ", kAny, "[*S~], y: in strided ", kAny,
                                           "[*S~], out: out strided ", kAny, "[*S]"));
  EXPECT_THAT(behind.source, HasSubstr("= v[1] - v[0];"));
  EXPECT_EQ(behind.summary, "out = y - x");
  // A parameter that is listed or declared need not be used.
  const GeneratedOperator unused = MustGenerate("x, y -> x where y: in f16, a: scalar f32 = -1");
  EXPECT_EQ(unused.signature,
            absl::StrCat("x: in strided ", kAny, "[*S~], y: in strided f16[*S~], out: out strided ",
                         kAny, "[*S], a: scalar f32 = -1"));
  EXPECT_THAT(unused.source, Not(HasSubstr("float s0")));
  EXPECT_EQ(MustGenerate("-> a where a: scalar f32 = 2").signature,
            absl::StrCat("out: out strided ", kAny, "[*S], a: scalar f32 = 2"));
}

TEST(ExpressionTest, AValueOfWhereIsComputedOnce) {
  const GeneratedOperator op = MustGenerate("t * t + u where t = exp(x), u = t + a, a: scalar");
  EXPECT_EQ(op.source.find("exp("), op.source.rfind("exp("));
  EXPECT_THAT(op.signature, HasSubstr("x: in strided"));
  EXPECT_THAT(op.signature, HasSubstr("a: scalar f32"));
  EXPECT_THAT(op.signature, Not(HasSubstr("t: in")));
  // Also one that is the result, or a comparison, or has a choice with commas.
  EXPECT_THAT(MustGenerate("t where t = x * y").source, HasSubstr("return t2;"));
  EXPECT_THAT(MustGenerate("b ? x : 0 where b = x > 0").source, HasSubstr("const bool"));
  EXPECT_THAT(MustGenerate("t + u where t = maximum(x, y), u = clamp(x, 0, 1)").source,
              HasSubstr("resident::math::clamp"));
}

TEST(ExpressionTest, ListsOfInputsAndValuesAreChecked) {
  const struct {
    const char* text;
    const char* part;
  } kCases[] = {
      {"x, pi -> x", "'pi' is a constant"},
      {"x, exp -> x", "'exp' is a function"},
      {"x, x -> x", "'x' is an input twice"},
      {"out -> 1", "'out' is the output"},
      {"x -> x + y", "'y' is not among the inputs before '->'"},
      {"x -> x where y: in", "'y' is not among the inputs before '->'"},
      {"x, a -> x where a: scalar", "'a' is an input before '->', and declared as something else"},
      {"x, t -> x where t = x", "'t' is an input before '->', and declared as something else"},
      {"x, -> x", "expected the name of an input before '->'"},
      {"x y -> x", "expected ',' or '->' after the name of an input"},
      {"t where t = u, u = x", "'u' is used before 'where' defines it"},
      {"t where t = t + 1", "'t' is used before 'where' defines it"},
      {"x where t = x", "'t' is declared and not used"},
      {"x -> x where t = x", "'t' is declared and not used"},
      {"t where t = x, t = y", "'t' is declared twice"},
      {"t where t = x )", "expected ',' or the end"},
      {"t where t = ", "expected a value"},
      {"t where t = x > 0", "is a comparison, which is not a number"},
      {"t where pi = x", "'pi' is a constant"},
  };
  for (const auto& test : kCases)
    EXPECT_THAT(Refusal(test.text), HasSubstr(test.part)) << test.text;
}

TEST(ExpressionTest, AFunctionThatIsMissingIsNotReplacedByAnotherOne) {
  const struct {
    const char* text;
    const char* fix;
  } kCases[] = {
      {"log10(x)", "Fix: write log(x) / 2.302585"},
      {"sign(x)", "Fix: write x > 0 ? 1 : x < 0 ? -1 : 0"},
      {"sum(x)", "Fix: an expression is elementwise; use the operator sum"},
      {"max(x)", "use the operator max, or write maximum(x, y) for the larger of two"},
      {"sqr(x)", "Fix: write x * x"},
      {"tan(x)", "Fix: write sin(x) / cos(x)"},
      {"asin(x)", "Fix: use one of: abs(x), "},
      {"std(x)", "Fix: an expression is elementwise; install C++ source"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(Refusal(test.text), HasSubstr(test.fix));
    EXPECT_THAT(Refusal(test.text), Not(HasSubstr("did you mean")));
  }
}

TEST(ExpressionTest, ScalarsAreNeverInTheSource) {
  EXPECT_THAT(MustGenerate("x * a where a: scalar = 7.25").source, Not(HasSubstr("7.25")));
  EXPECT_EQ(MustGenerate("x * a where a: scalar = 7.25").source,
            MustGenerate("x * a where a: scalar = 1").source);
}

TEST(ExpressionTest, EverySignatureParses) {
  for (const char* text :
       {"x", "1", "v where v: scalar = inf", "v where v: scalar = -inf, out: out",
        "v where v: scalar = nan", "a+b+c+d+e1+f+g+h+i+j+k+l+m", "x where x: in bf16",
        "clamp(x, lo, hi) where lo: scalar = -1e-30, hi: scalar f32 = 0.1"}) {
    const GeneratedOperator op = MustGenerate(text);
    EXPECT_TRUE(Signature::Parse(op.signature).ok()) << op.signature;
  }
  const auto signature = Signature::Parse(MustGenerate("x * sigmoid(x)").signature);
  ASSERT_TRUE(signature.ok());
  EXPECT_TRUE(signature->compact());
  EXPECT_TRUE(signature->parameters()[0].strided);
  EXPECT_EQ(signature->required_arguments(), 2u);
}

TEST(ExpressionTest, PrecedenceIsThatOfC) {
  EXPECT_THAT(MustGenerate("a + b * c").source, HasSubstr("t3 = v[1] * v[2]"));
  EXPECT_THAT(MustGenerate("(a + b) * c").source, HasSubstr("t2 = v[0] + v[1]"));
  EXPECT_THAT(MustGenerate("a - b - c").source, HasSubstr("t4 = t2 - v[2]"));
  EXPECT_THAT(MustGenerate("-a * b").source, HasSubstr("t1 = -v[0]"));
  EXPECT_THAT(MustGenerate("a < b && b < c || !(a == c) ? a : b").source,
              HasSubstr("const bool t11 = t6 || t10"));
  EXPECT_THAT(MustGenerate("a > 0 ? b : a < 0 ? c : 1").source, HasSubstr("t2 ? v[1] : t9"));
}

TEST(ExpressionTest, MistakesAreReportedWithTheirColumnAndMarked) {
  EXPECT_EQ(Refusal("x * sgimoid(x)"),
            "expression, column 5: there is no function 'sgimoid'\n"
            "  x * sgimoid(x)\n"
            "      ^~~~~~~\n"
            "Fix: did you mean sigmoid?");
  const struct {
    const char* text;
    int column;
    const char* part;
  } kCases[] = {
      {"", 1, "expected a value"},
      {"x +", 4, "expected a value and found the end"},
      {"x y", 3, "'y' is not expected here"},
      {"(x", 3, "expected ')'"},
      {"x)", 2, "is not expected here"},
      {"x $ y", 3, "'$' has no meaning"},
      {"x ^ 2", 3, "'^' has no meaning"},
      {"x ** 2", 4, "'**'"},
      {"x & y", 3, "'&' has no meaning"},
      {"2x", 1, "malformed"},
      {"1.2.3", 1, "malformed"},
      {"1e99", 1, "does not fit float32"},
      {"a < b < c", 7, "comparisons do not follow"},
      {"a < b", 1, "is a comparison"},
      {"(a < b) + 1", 9, "'+' takes numbers"},
      {"-(a < b)", 1, "'-' takes numbers"},
      {"a ? b : c", 3, "'?' takes a comparison"},
      {"a && b", 3, "'&&' takes a comparison"},
      {"a < b ? c", 10, "expected ':'"},
      {"select(a, b, c)", 8, "argument 1 of 'select' is a comparison"},
      {"exp(a < b)", 5, "argument 1 of 'exp' is a number"},
      {"pow(x)", 1, "'pow' takes 2 arguments and got fewer"},
      {"exp(x, y)", 1, "'exp' takes 1 arguments and got more"},
      {"elu()", 1, "'elu' takes 1 to 4 arguments"},
      {"exp + 1", 1, "'exp' is a function"},
      {"out + x", 1, "'out' is the output"},
      {"x where", 8, "a name to declare"},
      {"x where a: scalar", 9, "declared and not used"},
      {"x where x: in f32, x: in f16", 20, "declared twice"},
      {"x where x in", 11, "expected ':'"},
      {"x where x: out", 12, "expected 'in' or 'scalar'"},
      {"x where x: in f64", 15, "'f64' is not a type"},
      {"x where x: in f16|f16", 19, "named twice"},
      {"x where x: scalar i32", 19, "'i32' is not the type of a scalar"},
      {"x where x: scalar = y", 21, "the scalar's default"},
      {"x + y where x: scalar = 1, y: scalar", 28, "has no default and follows 'x'"},
      {"x where out: in", 14, "expected 'out'"},
      {"x where exp: scalar", 9, "'exp' is a function"},
      {"x where pi: scalar", 9, "'pi' is a constant"},
      {"x where x: in, where", 16, "'where' occurs twice"},
  };
  for (const auto& c : kCases) {
    const std::string refusal = Refusal(c.text);
    EXPECT_THAT(refusal, HasSubstr(absl::StrCat("column ", c.column, ": "))) << c.text;
    EXPECT_THAT(refusal, HasSubstr(c.part)) << c.text;
    EXPECT_THAT(refusal, HasSubstr("\nFix: ")) << c.text;
    // The mark is below the column.
    const size_t mark = refusal.find("\n  ", refusal.find("\n  ") + 1) + 3;
    EXPECT_EQ(refusal.find('^', mark) - mark, static_cast<size_t>(c.column - 1)) << refusal;
  }
}

TEST(ExpressionTest, ALongExpressionIsShownAroundTheMistake) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "x + ";
  const std::string refusal = Refusal(text + "oops(x) + x + x + x + x + x + x + x + x + x + x");
  EXPECT_THAT(refusal, HasSubstr("column 401"));
  EXPECT_LT(refusal.size(), 300u);
  const size_t line = refusal.find("\n  ") + 3;
  const size_t mark = refusal.find("\n  ", line) + 3;
  EXPECT_EQ(refusal.find("oops", line) - line, refusal.find('^', mark) - mark);
}

TEST(ExpressionTest, LimitsAreEnforced) {
  const auto nested = [](size_t n) { return std::string(n, '(') + "x" + std::string(n, ')'); };
  EXPECT_TRUE(Generate("op", nested(kMaxDepth - 1)).ok());
  EXPECT_THAT(Refusal(nested(kMaxDepth)), HasSubstr("levels of nesting"));
  EXPECT_THAT(Refusal(std::string(kMaxDepth + 1, '-') + "x"), HasSubstr("levels of nesting"));
  EXPECT_THAT(Refusal(std::string(4000, '(')), HasSubstr("levels of nesting"));
  std::string choices;
  for (size_t i = 0; i < kMaxDepth; ++i) choices += "x<1?x:";
  EXPECT_THAT(Refusal(choices + "x"), HasSubstr("levels of nesting"));

  std::string sum = "x";
  while (sum.size() < 2 * kMaxOperations) sum += "+x";
  EXPECT_THAT(Refusal(sum), HasSubstr("operations"));
  EXPECT_THAT(Refusal(std::string(kMaxBytes + 1, ' ')), HasSubstr("over the limit of 4096"));
  EXPECT_THAT(Refusal(std::string(65, 'x')), HasSubstr("a name of 65 bytes"));

  std::string inputs = "x0";
  for (u32 i = 1; i < kMaxArguments - 1; ++i) inputs += absl::StrCat("+x", i);
  EXPECT_TRUE(Generate("op", inputs).ok());
  EXPECT_THAT(Refusal(inputs + "+more"), HasSubstr("more than 14 parameters"));
  EXPECT_THAT(Refusal(inputs + "+a where a: scalar"), HasSubstr("more than 14 parameters"));
  std::string scalars = "x where a0: scalar";
  for (u32 i = 1; i < kMaxArguments; ++i) scalars += absl::StrCat(", a", i, ": scalar");
  EXPECT_THAT(Refusal(scalars), HasSubstr("more than 14 parameters"));
}

// No text of the expression reaches the compiler, only what the generator writes itself.
TEST(ExpressionTest, HostileTextDoesNotReachTheSource) {
  for (const char* text : {"x; }", "\"x\"", "x // y", "x /* y */", "#include </etc/passwd>",
                           "x\n#define y", "`x`", "x\\", "asm(x)", "__asm__(x)", "x @ y", "x[0]",
                           "{x}", "x.y", "x -> y", "'a'", "$(reboot)", "x \x80", "std::exit(1)"}) {
    Refusal(text);
  }
  // Names that have a meaning for a compiler are only names of parameters.
  const GeneratedOperator op = MustGenerate("int + RESIDENT_GPU + __LINE__ + asm + v + s0 + block");
  for (const char* name : {"int ", "RESIDENT_GPU", "__LINE__", "asm"}) {
    EXPECT_THAT(op.source, Not(HasSubstr(name)));
  }
  // Every byte of the operator's name that cannot be in an identifier becomes '_'.
  const auto named = Generate("a b(c)", "x");
  ASSERT_TRUE(named.ok());
  EXPECT_THAT(named->source, HasSubstr("RESIDENT_OPERATOR(a_b_c_)"));
}

TEST(ExpressionTest, RandomTextNeverCrashesAndSourcesHaveNoForeignBytes) {
  std::mt19937 random(3);
  const std::vector<std::string> pieces = {
      "x",   "y",   "exp", "(",      ")",  ",",   "+",    "-", "*",     "/",     "<",      "?",
      ":",   "&&",  "!",   " ",      "1",  ".5",  "e9",   "=", "|",     "where", "scalar", "in",
      "out", "f16", "inf", "select", "\n", "\0x", "\xff", "{", "clamp", ">=",    "pow",    "a"};
  int accepted = 0;
  for (int i = 0; i < 30000; ++i) {
    std::string text;
    for (int n = random() % 12; n >= 0; --n) text += pieces[random() % pieces.size()];
    const auto generated = Generate("op", text);
    if (!generated.ok()) {
      ASSERT_THAT(std::string(generated.status().message()), HasSubstr("Fix: ")) << text;
      continue;
    }
    ++accepted;
    ASSERT_TRUE(Signature::Parse(generated->signature).ok()) << generated->signature;
    ASSERT_EQ(generated->source.find_first_not_of(
                  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n"
                  "_:;,.()[]{}<>=+-*/&|!?#\""),
              std::string::npos)
        << generated->source;
  }
  EXPECT_GT(accepted, 100);
}

TEST(ExpressionTest, EveryFunctionIsListedWithItsParameters) {
  const std::string list = FunctionList();
  for (const char* function :
       {"exp(x)", "gelu_tanh(x)", "softplus(x, beta = 1, threshold = 20)", "clamp(x, lo, hi)",
        "silu_mul(gate, up)", "select(condition, x, y)"}) {
    EXPECT_THAT(list, HasSubstr(function));
  }
}

}  // namespace
}  // namespace resident::expression
