#include "runtime/compile/inspect_ptx.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/compile/call_graph.h"

namespace resident {
namespace {

// Whether control cannot go on behind an instruction. A predicated one ("@%p1 bra") may be
// skipped.
bool EndsControl(absl::string_view instruction) {
  for (const absl::string_view end : {"ret", "exit", "trap", "bra", "brx"}) {
    if (!absl::StartsWith(instruction, end)) continue;
    const absl::string_view rest = instruction.substr(end.size());
    if (rest.empty() || rest.front() == ';' || rest.front() == '.' || rest.front() == ' ' ||
        rest.front() == '\t') {
      return true;
    }
  }
  return false;
}

// The name in ".visible .func (.param .b32 retval) name(" and ".entry name(".
std::string NameIn(absl::string_view header) {
  const size_t directive = header.find(".func");
  absl::string_view rest = directive == absl::string_view::npos
                               ? header.substr(header.find(".entry") + sizeof(".entry") - 1)
                               : header.substr(directive + sizeof(".func") - 1);
  rest = absl::StripLeadingAsciiWhitespace(rest);
  if (absl::StartsWith(rest, "(")) {
    const size_t end = rest.find(')');
    rest = end == absl::string_view::npos ? "" : rest.substr(end + 1);
  }
  rest = absl::StripLeadingAsciiWhitespace(rest);
  return Demangle(std::string(rest.substr(0, rest.find_first_of("( \t\n"))));
}

}  // namespace

absl::Status CheckPtxFunctionsReturn(std::string_view ptx) {
  std::string header;            // Of the function that comes or is being read.
  std::string last_instruction;  // Of its body.
  int depth = 0;                 // Of braces: calls and register scopes have their own.
  for (absl::string_view line : absl::StrSplit(absl::string_view(ptx.data(), ptx.size()), '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find("//")));
    if (line.empty()) continue;
    if (depth == 0) {
      if (absl::StrContains(line, ".func") || absl::StrContains(line, ".entry")) header.clear();
      absl::StrAppend(&header, line, " ");
      if (line != "{") {
        // A declaration, or a variable with its values.
        if (absl::EndsWith(line, ";")) header.clear();
        continue;
      }
      depth = 1;
      last_instruction.clear();
    } else if (line == "{") {
      ++depth;
    } else if (line == "}") {
      if (--depth > 0) continue;
      const bool function =
          absl::StrContains(header, ".func") || absl::StrContains(header, ".entry");
      if (function && !EndsControl(last_instruction)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the compiler has dropped code: the function '", NameIn(header),
            "' ends without a return. It may have taken a part of the source for unreachable. "
            "Fix: remove undefined behaviour (values without a type's meaning, "
            "__builtin_unreachable, wrong assumptions), or write the function another way"));
      }
      header.clear();
    } else if (line.front() != '.') {                     // Not a directive.
      last_instruction.assign(line.data(), line.size());  // Or a label, which control reaches.
    }
  }
  return absl::OkStatus();
}

}  // namespace resident
