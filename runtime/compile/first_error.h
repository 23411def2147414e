// FirstError: what a compiler's log says first, for a message of one line.
#ifndef RESIDENT_RUNTIME_COMPILE_FIRST_ERROR_H_
#define RESIDENT_RUNTIME_COMPILE_FIRST_ERROR_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace resident {

// The first line with an error in it, cut where it is long; empty: there is none.
inline absl::string_view FirstError(absl::string_view log) {
  constexpr size_t kMostBytes = 200;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    if (line.find("error") != absl::string_view::npos) return line.substr(0, kMostBytes);
  }
  return {};
}

inline absl::Status DoesNotCompile(absl::string_view log) {
  const absl::string_view error = FirstError(log);
  return absl::InvalidArgumentError(absl::StrCat("the source does not compile",
                                                 error.empty() ? "" : ": ", error,
                                                 ". Fix: the log of the install has every line"));
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_FIRST_ERROR_H_
