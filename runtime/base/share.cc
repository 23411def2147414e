#include "runtime/base/share.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace resident {

bool AbslParseFlag(absl::string_view text, Share* share, std::string* error) {
  const double whole = absl::ConsumeSuffix(&text, "%") ? 100 : 1;
  double number = 0;
  if (absl::SimpleAtod(text, &number) && number >= 0 && number <= whole) {
    share->value = number / whole;
    return true;
  }
  *error = "a share is 0% to 100%, or 0 to 1";
  return false;
}

std::string AbslUnparseFlag(const Share& share) { return absl::StrCat(share.value); }

}  // namespace resident
