#include "runtime/compile/errors.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status BadExpression(std::string_view text, size_t position, size_t width,
                           const std::string& what, const std::string& fix) {
  // A line with the text around the position, and a line that points at it.
  constexpr size_t kAround = 36;
  const size_t begin = position > kAround ? position - kAround : 0;
  const size_t end = std::min(text.size(), position + kAround);
  std::string line(text.substr(std::min(begin, text.size()), end - std::min(begin, end)));
  for (char& c : line) {
    if (c < ' ' || c > '~') c = c == '\n' || c == '\t' || c == '\r' ? ' ' : '?';
  }
  const size_t shown = std::min(std::max<size_t>(width, 1), end > position ? end - position : 1);
  const std::string pointer =
      StrCat(std::string(position - begin, ' '), "^", std::string(shown - 1, '~'));
  return absl::InvalidArgumentError(
      StrCat("expression, column ", position + 1, ": ", what, "\n  ", line, "\n  ", pointer,
             "\nFix: ", fix.empty() ? "see the grammar in docs/operators.md" : fix));
}

absl::Status InstallFileName(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("file name ", Quote(name), ": ", what,
                                           ". Fix: use the name that the #include directive uses, "
                                           "such as util/math.h"));
}

absl::Status InstallMissingFile(const std::string& name, size_t files) {
  return absl::InvalidArgumentError(StrCat("the header names the file ", Quote(name),
                                           ", which is not among the ", files,
                                           " that were sent. Fix: send it as an InstallFile of "
                                           "exactly that name"));
}

absl::Status InstallWithdrawn() {
  return absl::CancelledError(
      "the install was withdrawn before it was loaded. Fix: none needed if that was intended");
}

absl::Status CompileFolderFull(uint64_t limit_mib, uint64_t limit_entries) {
  return absl::ResourceExhaustedError(
      StrCat("the compiler's folder exceeded the limit of ", limit_mib, " MiB or ", limit_entries,
             " files. Fix: make the source smaller, and pass large tables as tensors"));
}

}  // namespace resident::errors

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
