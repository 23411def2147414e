// Generate: translates a formula to the source of an operator.
//
// Every name in the source is generated here (v[0], s0, t0 ...) or comes from a table of this
// program. Nothing is copied from the text except the operator's name and the values of numbers.
#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/expression/expression.h"
#include "runtime/compile/expression/formula.h"

namespace resident::expression {
namespace {

// Elements of one chunk of a task; a chunk takes a block some microseconds.
constexpr int kLightGrain = 32768;
constexpr int kHeavyGrain = 8192;

// Approximate numbers of instructions up to which a formula is expanded four times, and twice.
constexpr int kLightCost = 4;
constexpr int kHeavyCost = 24;
constexpr int kDivisionCost = 8;

std::string NumberText(float value) {
  if (std::isnan(value)) return "resident::math::nan()";
  if (std::isinf(value)) return "resident::math::infinity()";
  return absl::StrFormat("%af", static_cast<double>(value));
}

// Returns the expression that refers to the result of operation `index`.
std::string Use(const Formula& formula, size_t index) {
  const Operation& operation = formula.operations[index];
  switch (operation.kind) {
    case Operation::Kind::kNumber:
      return NumberText(operation.number);
    case Operation::Kind::kInput:
      return absl::StrCat("v[", operation.parameter, "]");
    case Operation::Kind::kScalar:
      return absl::StrCat("s", operation.parameter);
    default:
      return absl::StrCat("t", index);
  }
}

// Returns the expression that computes an operation with operands.
std::string Value(const Formula& formula, const Operation& operation) {
  const auto operand = [&](size_t i) { return Use(formula, operation.operands[i]); };
  const std::string symbol(operation.symbol);
  switch (operation.kind) {
    case Operation::Kind::kOperator:
      if (operation.operands.size() == 1) return absl::StrCat(symbol, operand(0));
      return absl::StrCat(operand(0), " ", symbol, " ", operand(1));
    case Operation::Kind::kChoice:
      return absl::StrCat(operand(0), " ? ", operand(1), " : ", operand(2));
    default:
      return absl::StrCat(
          "resident::math::", std::string(operation.function->name), "(",
          absl::StrJoin(operation.operands, ", ",
                        [&](std::string* out, size_t index) { out->append(Use(formula, index)); }),
          ")");
  }
}

int Cost(const Formula& formula) {
  int cost = 0;
  for (const Operation& operation : formula.operations) {
    if (operation.operands.empty()) continue;
    cost += operation.kind == Operation::Kind::kCall ? operation.function->cost
            : operation.symbol == "/"                ? kDivisionCost
                                                     : 1;
  }
  return cost;
}

// How many 16-byte loads of each input a thread has in flight: as many as fit into registers, or
// one if the formula is too large to be expanded for each load.
int InFlight(const Formula& formula) {
  const int cost = Cost(formula);
  if (cost > kHeavyCost || formula.inputs.size() > 4) return 1;
  return cost > kLightCost || formula.inputs.size() > 2 ? 2 : 4;
}

std::string Source(const std::string& function, const Formula& formula) {
  std::string source = absl::StrCat(
      "// Made from an expression.\n#include \"kernels/sdk/operator.h\"\n\nRESIDENT_OPERATOR(",
      function, ")(resident::Block& block, const resident::Args& args) {\n");
  for (size_t s = 0; s < formula.scalars.size(); ++s) {
    const bool used = std::any_of(
        formula.operations.begin(), formula.operations.end(), [&](const Operation& operation) {
          return operation.kind == Operation::Kind::kScalar && operation.parameter == s;
        });
    if (!used) continue;
    absl::StrAppend(&source, "  const float s", s, " = args.scalar<float>(",
                    formula.inputs.size() + 1 + s, ");\n");
  }
  absl::StrAppend(&source, "  resident::elementwise<", formula.inputs.size(), ", ",
                  InFlight(formula), ">(block, args, [=](const float* v) -> float {\n");
  if (formula.inputs.empty()) absl::StrAppend(&source, "    (void)v;\n");
  for (size_t i = 0; i < formula.operations.size(); ++i) {
    const Operation& operation = formula.operations[i];
    if (operation.operands.empty()) continue;
    absl::StrAppend(&source, "    const ", operation.boolean ? "bool" : "float", " t", i, " = ",
                    Value(formula, operation), ";\n");
  }
  absl::StrAppend(&source, "    return ", Use(formula, formula.result), ";\n  });\n}\n");
  return source;
}

std::string SignatureText(const Formula& formula) {
  std::string text;
  for (const Input& input : formula.inputs) {
    absl::StrAppend(&text, input.name, ": in strided ", absl::StrJoin(input.dtypes, "|"),
                    "[*S~], ");
  }
  absl::StrAppend(&text, "out: out strided ", absl::StrJoin(formula.output_dtypes, "|"), "[*S]");
  for (const ScalarParameter& scalar : formula.scalars) {
    absl::StrAppend(&text, ", ", scalar.name, ": scalar f32");
    if (scalar.default_value.has_value()) {
      absl::StrAppendFormat(&text, " = %.9g", *scalar.default_value);
    }
  }
  return text;
}

// Returns the text in one line, without the list of inputs.
std::string Summary(std::string_view text) {
  const size_t arrow = text.find("->");
  if (arrow != std::string_view::npos) text.remove_prefix(arrow + 2);
  while (!text.empty() && absl::ascii_isspace(text.front())) text.remove_prefix(1);
  std::string line;
  for (const char c : text) {
    if (!absl::ascii_isspace(c)) {
      line.push_back(c);
    } else if (!line.empty() && line.back() != ' ') {
      line.push_back(' ');
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return absl::StrCat("out = ", line);
}

}  // namespace

absl::StatusOr<GeneratedOperator> Generate(std::string_view name, std::string_view text) {
  ASSIGN_OR_RETURN(const Formula formula, Parse(text));
  std::string function(name);
  for (char& c : function) {
    if (!absl::ascii_isalnum(c)) c = '_';
  }
  GeneratedOperator generated;
  generated.source = Source(function, formula);
  generated.signature = SignatureText(formula);
  generated.split = absl::StrCat("out ", Cost(formula) > kHeavyCost ? kHeavyGrain : kLightGrain);
  generated.summary = Summary(text);
  return generated;
}

}  // namespace resident::expression
