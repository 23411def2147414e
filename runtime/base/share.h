// Share: a part of a whole, 0 to 1, as the value of a flag: "1%" or "0.01".
//
// The daemon and residentctl use it for their thresholds. A number without "%" is the share itself:
// "1" is the whole, and "5" is refused.
//
// Thread safety: a value.
//
//   command.FlagAs<resident::Share>("max_error_rate", &max_error_rate, "...");
#ifndef RESIDENT_RUNTIME_BASE_SHARE_H_
#define RESIDENT_RUNTIME_BASE_SHARE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace resident {

struct Share {
  double value = 0;
  operator double() const { return value; }
};

bool AbslParseFlag(absl::string_view text, Share* share, std::string* error);
std::string AbslUnparseFlag(const Share& share);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_SHARE_H_
