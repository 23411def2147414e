#include "runtime/compile/does_not_compile.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace resident {
namespace {

constexpr size_t kMaxQuoted = 300;

}  // namespace

absl::Status DoesNotCompile(const std::string& log) {
  absl::string_view first;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    // "op.cc:8:13: error: ...", "op.cc(8): error: ...", "fatal error", "catastrophic error". From
    // the assembler: "x.s:12: Error: ...".
    if (!absl::StrContains(line, "error: ") && !absl::StrContains(line, "error #") &&
        !absl::StrContains(line, ": Error: ")) {
      continue;
    }
    first = absl::StripAsciiWhitespace(line).substr(0, kMaxQuoted);
    break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the source does not compile", first.empty() ? "" : ": ", first,
                   ". Fix: correct the errors in the compiler's log, "
                   "which has the lines of the files that were sent"));
}

}  // namespace resident
