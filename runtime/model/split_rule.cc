#include "runtime/model/split_rule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/graph/chunk_rule.h"
#include "runtime/model/errors.h"

namespace resident {

uint64_t SplitRule::Chunks(absl::Span<const int64_t> shape, uint64_t workers) const {
  if (parameter < 0) return 1;
  uint64_t items = 1;
  for (size_t i = 0; i < (by_first_dim ? std::min<size_t>(1, shape.size()) : shape.size()); ++i) {
    items *= static_cast<uint64_t>(shape[i]);
  }
  return CountChunks(items, grain, limit, workers);
}

absl::StatusOr<SplitRule> ParseSplit(const std::string& text, const Signature& signature) {
  SplitRule rule;
  if (text.empty()) return rule;
  const size_t space = text.find(' ');
  if (space == std::string::npos) return errors::BadSplit(text, "the grain is missing");
  std::string name = text.substr(0, space);
  if (name.size() > 2 && name.substr(name.size() - 2) == "/1") {
    rule.by_first_dim = true;
    name.resize(name.size() - 2);
  }
  for (size_t i = 0; i < signature.parameters().size(); ++i) {
    if (signature.parameters()[i].name == name && !signature.parameters()[i].scalar()) {
      rule.parameter = static_cast<int>(i);
    }
  }
  if (rule.parameter < 0)
    return errors::BadSplit(text, "there is no tensor parameter of that name");
  const std::vector<std::string> numbers = absl::StrSplit(text.substr(space + 1), ' ');
  if (!absl::SimpleAtoi(numbers[0], &rule.grain) || rule.grain == 0) {
    return errors::BadSplit(text, "the grain must be a positive number");
  }
  if (numbers.size() > 2 ||
      (numbers.size() == 2 && (!absl::SimpleAtoi(numbers[1], &rule.limit) || rule.limit == 0 ||
                               rule.limit > kMaxTaskChunks))) {
    return errors::BadSplit(text,
                            absl::StrCat("the limit must be a number from 1 to ", kMaxTaskChunks));
  }
  return rule;
}

}  // namespace resident
