#include "runtime/compile/expression/functions.h"

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

}  // namespace

absl::Span<const Function> Functions() { return kFunctions; }

const Function* FindFunction(std::string_view name) {
  for (const Function& function : kFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

std::string NearestFunction(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Function& function : kFunctions) names.push_back(function.name);
  return Nearest(name, names, Beginnings::kNear);
}

std::string FunctionList() {
  return absl::StrJoin(kFunctions, ", ", [](std::string* out, const Function& function) {
    absl::StrAppend(out, std::string(function.name), "(", std::string(function.parameters), ")");
  });
}

}  // namespace resident::expression
