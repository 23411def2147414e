
#include "runtime/compile/expression/formula.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/nearest.h"
#include "runtime/compile/expression/expression.h"

namespace resident::expression {
namespace {

constexpr Function kFunctions[] = {
    {"abs", "x", 1, 1, 1},
    {"ceil", "x", 1, 1, 1},
    {"clamp", "x, lo, hi", 3, 3, 4},
    {"cos", "x", 1, 1, 40},
    {"elu", "x, alpha = 1, scale = 1, input_scale = 1", 1, 4, 20},
    {"erf", "x", 1, 1, 30},
    {"exp", "x", 1, 1, 10},
    {"expm1", "x", 1, 1, 15},
    {"floor", "x", 1, 1, 1},
    {"fma", "x, y, z", 3, 3, 1},
    {"gelu", "x", 1, 1, 40},
    {"gelu_tanh", "x", 1, 1, 20},
    {"hardsigmoid", "x", 1, 1, 12},
    {"hardswish", "x", 1, 1, 12},
    {"hardtanh", "x, lo = -1, hi = 1", 1, 3, 4},
    {"leaky_relu", "x, slope = 0.01", 1, 2, 2},
    {"log", "x", 1, 1, 15},
    {"log1p", "x", 1, 1, 15},
    {"maximum", "x, y", 2, 2, 2},
    {"minimum", "x, y", 2, 2, 2},
    {"neg", "x", 1, 1, 1},
    {"pow", "x, y", 2, 2, 60},
    {"relu", "x", 1, 1, 1},
    {"round", "x", 1, 1, 1},
    {"rsqrt", "x", 1, 1, 10},
    {"select", "condition, x, y", 3, 3, 1, true},
    {"sigmoid", "x", 1, 1, 15},
    {"silu", "x", 1, 1, 15},
    {"silu_mul", "gate, up", 2, 2, 15},
    {"sin", "x", 1, 1, 40},
    {"softplus", "x, beta = 1, threshold = 20", 1, 3, 30},
    {"sqrt", "x", 1, 1, 10},
    {"tanh", "x", 1, 1, 15},
    {"trunc", "x", 1, 1, 1},
};

// Well-known functions that expressions do not have, with what computes the same.
struct Substitute {
  std::string_view name;
  std::string_view text;
};
constexpr Substitute kFormulas[] = {
    {"clip", "clamp(x, lo, hi)"},
    {"cosh", "(exp(x) + exp(-x)) / 2"},
    {"cot", "cos(x) / sin(x)"},
    {"erfc", "1 - erf(x)"},
    {"exp10", "pow(10, x)"},
    {"exp2", "pow(2, x)"},
    {"expit", "sigmoid(x)"},
    {"fabs", "abs(x)"},
    {"floor_divide", "floor(x / y)"},
    {"fmod", "x - trunc(x / y) * y"},
    {"glu", "x * sigmoid(y)"},
    {"hypot", "sqrt(x * x + y * y)"},
    {"if", "condition ? x : y"},
    {"isnan", "x != x"},
    {"lerp", "x + weight * (y - x)"},
    {"ln", "log(x)"},
    {"log10", "log(x) / 2.302585"},
    {"log2", "log(x) / 0.6931472"},
    {"logit", "log(x / (1 - x))"},
    {"logsigmoid", "-softplus(-x)"},
    {"mish", "x * tanh(softplus(x))"},
    {"mod", "x - floor(x / y) * y"},
    {"prelu", "x > 0 ? x : slope * x"},
    {"reciprocal", "1 / x"},
    {"relu6", "clamp(x, 0, 6)"},
    {"remainder", "x - floor(x / y) * y"},
    {"rint", "round(x)"},
    {"sec", "1 / cos(x)"},
    {"selu", "elu(x, 1.6732632, 1.050701)"},
    {"sgn", "x > 0 ? 1 : x < 0 ? -1 : 0"},
    {"sign", "x > 0 ? 1 : x < 0 ? -1 : 0"},
    {"sinh", "(exp(x) - exp(-x)) / 2"},
    {"softsign", "x / (1 + abs(x))"},
    {"sqr", "x * x"},
    {"square", "x * x"},
    {"swish", "silu(x)"},
    {"tan", "sin(x) / cos(x)"},
    {"where", "condition ? x : y"},
};

// Functions of several elements, with the operator that computes them; "": there is none.
constexpr Substitute kReductions[] = {
    {"amax", "max"},        {"amin", "min"},
    {"argmax", "argmax"},   {"argmin", ""},
    {"cumsum", ""},         {"layernorm", "layernorm"},
    {"max", "max"},         {"mean", "mean"},
    {"min", "min"},         {"norm", ""},
    {"prod", ""},           {"rmsnorm", "rmsnorm"},
    {"softmax", "softmax"}, {"std", ""},
    {"sum", "sum"},         {"var", ""},
};

template <size_t kSize>
const Substitute* Find(const Substitute (&table)[kSize], std::string_view name) {
  for (const Substitute& each : table) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

}  // namespace

absl::Span<const Function> Functions() { return kFunctions; }

const Function* FindFunction(std::string_view name) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

std::string InPlaceOfFunction(std::string_view name) {
  if (const Substitute* const known = Find(kFormulas, name); known != nullptr) {
    return absl::StrCat("write ", std::string(known->text));
  }
  if (const Substitute* const known = Find(kReductions, name); known != nullptr) {
    const std::string of_two = name == "max"   ? ", or write maximum(x, y) for the larger of two"
                               : name == "min" ? ", or write minimum(x, y) for the smaller of two"
                                               : "";
    if (known->text.empty()) {
      return "an expression is elementwise; install C++ source (docs/operators.md)";
    }
    return absl::StrCat("an expression is elementwise; use the operator ", std::string(known->text),
                        of_two);
  }
  std::vector<std::string_view> names;
  for (const Function& function : kFunctions) names.push_back(function.name);
  const std::string nearest = Nearest(name, names, Beginnings::kNear);
  return nearest.empty() ? absl::StrCat("use one of: ", FunctionList())
                         : absl::StrCat("did you mean ", nearest, "?");
}

std::string FunctionList() {
  return absl::StrJoin(kFunctions, ", ", [](std::string* out, const Function& function) {
    absl::StrAppend(out, std::string(function.name), "(", std::string(function.parameters), ")");
  });
}

}  // namespace resident::expression
