#include "runtime/model/split_rule.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/graph/chunk_rule.h"
#include "runtime/base/status_macros.h"
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

uint64_t SplitRule::Chunks(ShapeOf shape_of, uint64_t workers) const {
  if (parameter < 0) return 1;
  const uint64_t chunks = Chunks(shape_of(parameter), workers);
  if (other_grain == 0) return chunks;
  uint64_t items = 1;
  for (const int64_t size : shape_of(other_parameter)) items *= static_cast<uint64_t>(size);
  return std::max<uint64_t>(chunks, CountChunks(items, other_grain, limit, workers));
}

namespace {

// The index of a tensor parameter; -1: there is none of that name.
int FindTensor(const std::string& name, const Signature& signature) {
  for (size_t i = 0; i < signature.parameters().size(); ++i) {
    if (signature.parameters()[i].name == name && !signature.parameters()[i].scalar()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

absl::StatusOr<SplitRule> ParseSplit(const std::string& text, const Signature& signature) {
  SplitRule rule;
  if (text.empty()) return rule;
  constexpr char kUnknown[] = "there is no tensor parameter of that name";
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(", ", 1));
  if (const auto& [first, other] = parts; !other.empty()) {
    ASSIGN_OR_RETURN(rule, ParseSplit(first, signature));
    const std::pair<std::string, std::string> words =
        absl::StrSplit(other, absl::MaxSplits(' ', 1));
    rule.other_parameter = FindTensor(words.first, signature);
    if (rule.other_parameter < 0) return errors::BadSplit(text, kUnknown);
    if (!absl::SimpleAtoi(words.second, &rule.other_grain) || rule.other_grain == 0) {
      return errors::BadSplit(text, "the grain must be a positive number");
    }
    return rule;
  }
  const size_t space = text.find(' ');
  if (space == std::string::npos) return errors::BadSplit(text, "the grain is missing");
  std::string name = text.substr(0, space);
  if (name.size() > 2 && name.substr(name.size() - 2) == "/1") {
    rule.by_first_dim = true;
    name.resize(name.size() - 2);
  }
  rule.parameter = FindTensor(name, signature);
  if (rule.parameter < 0) return errors::BadSplit(text, kUnknown);
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
