#include "runtime/model/cost_rule.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/errors/argument_errors.h"

namespace resident {
namespace {

using Kind = DimPattern::Kind;

// The first place of the variable that is called `name` or "*name".
std::optional<CostRule::Factor> FindVariable(const Signature& signature, const std::string& name) {
  for (size_t p = 0; p < signature.parameters().size(); ++p) {
    const std::vector<DimPattern>& dims = signature.parameters()[p].dims;
    bool behind_spread = false;
    for (size_t d = 0; d < dims.size(); ++d) {
      const int at = static_cast<int>(behind_spread ? d - dims.size() : d);
      const bool spread = dims[d].kind == Kind::kSpread || dims[d].kind == Kind::kBroadcast;
      behind_spread |= spread;
      if (dims[d].kind != Kind::kNamed && dims[d].kind != Kind::kSpread) continue;
      std::string_view variable = signature.variables()[dims[d].variable];
      if (variable.front() == '*') variable.remove_prefix(1);
      if (variable != name) continue;
      return CostRule::Factor{p, at, spread ? static_cast<int>(d + 1 - dims.size()) : at + 1};
    }
  }
  return std::nullopt;
}

double Product(const CostRule::Factor& factor, absl::Span<const int64_t> shape) {
  const int rank = static_cast<int>(shape.size());
  const int end = factor.end > 0 ? factor.end : rank + factor.end;
  const int first = factor.first >= 0 ? factor.first : rank + factor.first;
  if (first < 0 || end > rank) return 0;
  double product = 1;
  for (int d = first; d < end; ++d) {
    product *= static_cast<double>(shape[static_cast<size_t>(d)]);
  }
  return product;
}

}  // namespace

double CostRule::Operations(absl::Span<const Shape> shapes) const {
  double operations = 0;
  for (const Term& term : terms) {
    double product = term.factor;
    for (const Factor& factor : term.factors) product *= Product(factor, shapes[factor.parameter]);
    operations += product;
  }
  return operations;
}

absl::StatusOr<CostRule> ParseCost(const std::string& text, const Signature& signature) {
  CostRule rule;
  if (text.empty()) return rule;
  for (const std::string& sum : std::vector<std::string>(absl::StrSplit(text, " + "))) {
    CostRule::Term& term = rule.terms.emplace_back();
    bool first = true;
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(sum, ' '))) {
      uint32_t number = 0;
      if (std::exchange(first, false) && absl::SimpleAtoi(word, &number) && number > 0) {
        term.factor = number;
        continue;
      }
      const std::optional<CostRule::Factor> factor = FindVariable(signature, word);
      if (!factor.has_value()) {
        return errors::BadCost(text, absl::StrCat("no shape has a variable \"", word, "\""));
      }
      term.factors.push_back(*factor);
    }
  }
  return rule;
}

}  // namespace resident
