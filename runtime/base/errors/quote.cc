#include "runtime/base/errors/quote.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace resident::errors {
namespace {

using absl::StrCat;

constexpr size_t kMaxQuotedBytes = 64;

}  // namespace

std::string Quote(std::string_view text) {
  const bool cut = text.size() > kMaxQuotedBytes;
  const absl::string_view shown(text.data(), cut ? kMaxQuotedBytes : text.size());
  return StrCat("'", absl::CHexEscape(shown), cut ? "..." : "", "'");
}

std::string QuoteAt(std::string_view text, size_t position) {
  const size_t max_before = kMaxQuotedBytes / 2;
  if (text.size() <= kMaxQuotedBytes || position <= max_before) return Quote(text);
  const size_t begin = std::min(position, text.size()) - max_before;
  return StrCat("...", Quote(text.substr(begin)));
}

}  // namespace resident::errors
