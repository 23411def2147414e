#include "runtime/errors/quote.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace resident::errors {
namespace {

using absl::StrCat;

constexpr size_t kMostQuoted = 64;

}  // namespace

std::string Quote(std::string_view text) {
  const bool cut = text.size() > kMostQuoted;
  const absl::string_view shown(text.data(), cut ? kMostQuoted : text.size());
  return StrCat("'", absl::CHexEscape(shown), cut ? "..." : "", "'");
}

}  // namespace resident::errors
