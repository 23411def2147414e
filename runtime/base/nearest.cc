#include "runtime/base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace resident {
namespace {

// Functions of C, NumPy and PyTorch whose names are similar to those of operators or of functions
// of expressions, but which compute something else.
constexpr std::string_view kFunctions[] = {
    "acos",  "acosh",  "all",  "any",   "argmin", "argsort", "asin",   "asinh", "atan",  "atan2",
    "atanh", "cbrt",   "celu", "cosh",  "cot",    "cummax",  "cumsum", "dot",   "erfc",  "erfinv",
    "exp10", "exp2",   "fmod", "gamma", "glu",    "hypot",   "lgamma", "ln",    "log10", "log2",
    "logit", "matmul", "max",  "mean",  "median", "min",     "mod",    "norm",  "prod",  "rand",
    "relu6", "sec",    "selu", "sgn",   "sign",   "sinc",    "sinh",   "sort",  "sqr",   "std",
    "sum",   "tan",    "topk", "var",   "where",
};

// Levenshtein distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, std::span<const std::string_view> candidates,
                    Beginnings beginnings) {
  std::string_view nearest;
  if (std::find(std::begin(kFunctions), std::end(kFunctions), word) != std::end(kFunctions))
    return "";
  size_t min_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const bool begins =
        beginnings == Beginnings::kNear && word.size() >= 3 && candidate.starts_with(word);
    const size_t longer = std::max(word.size(), candidate.size());
    const size_t shorter = std::min(word.size(), candidate.size());
    // The distance is at least the difference of the lengths. A word of megabytes is not compared.
    if (!begins && longer - shorter >= min_distance) continue;
    const size_t distance = begins ? 1 : EditDistance(word, candidate);
    if (distance < min_distance) {
      min_distance = distance;
      nearest = candidate;
    }
  }
  return std::string(nearest);
}

}  // namespace resident
