#include "runtime/model/cost_rule.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/model/errors.h"

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
      return CostRule::Factor{.parameter = p,
                              .first = at,
                              .end = spread ? static_cast<int>(d + 1 - dims.size()) : at + 1,
                              .limit = std::nullopt};
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

bool CostRule::limited() const {
  return std::any_of(terms.begin(), terms.end(), [](const Term& term) {
    return std::any_of(term.factors.begin(), term.factors.end(),
                       [](const Factor& factor) { return factor.limit.has_value(); });
  });
}

double CostRule::Operations(absl::Span<const Shape> shapes,
                            absl::Span<const double> scalars) const {
  double operations = 0;
  for (const Term& term : terms) {
    double product = term.factor;
    for (const Factor& factor : term.factors) {
      assert(factor.parameter < shapes.size());
      double size = Product(factor, shapes[factor.parameter]);
      if (factor.limit.has_value() && !scalars.empty() && scalars[*factor.limit] >= 0) {
        size = std::min(size, scalars[*factor.limit]);
      }
      product *= size;
    }
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
      const size_t colon = std::min(word.find(':'), word.size());
      const std::string name = word.substr(0, colon);
      const std::optional<CostRule::Factor> factor = FindVariable(signature, name);
      if (!factor.has_value()) {
        return errors::BadCost(text, absl::StrCat("no shape has a variable \"", name, "\""));
      }
      term.factors.push_back(*factor);
      if (colon == word.size()) continue;
      const std::string limit = word.substr(colon + 1);
      const auto scalar =
          std::find_if(signature.parameters().begin(), signature.parameters().end(),
                       [&](const Parameter& p) { return p.scalar() && p.name == limit; });
      if (scalar == signature.parameters().end()) {
        return errors::BadCost(text, absl::StrCat("there is no scalar \"", limit, "\""));
      }
      term.factors.back().limit = static_cast<size_t>(scalar - signature.parameters().begin());
    }
  }
  return rule;
}

}  // namespace resident
