#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/call_graph.h"
#include "runtime/compile/inspect.h"

namespace resident {
namespace {

// Whether control cannot reach the instruction after this one. It can if the instruction is
// predicated ("@%p1 bra").
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

// Returns the code without comments and without the contents of strings.
std::string WithoutText(absl::string_view ptx) {
  std::string code;
  code.reserve(ptx.size());
  while (!ptx.empty()) {
    size_t skipped = 0;
    if (absl::StartsWith(ptx, "//")) {
      skipped = std::min(ptx.find('\n'), ptx.size());
    } else if (absl::StartsWith(ptx, "/*")) {
      const size_t end = ptx.find("*/", 2);
      skipped = end == absl::string_view::npos ? ptx.size() : end + 2;
      code += ' ';
    } else if (ptx.front() == '"') {
      // A string ends on the line where it begins.
      skipped = std::min(ptx.find_first_of("\"\n", 1), ptx.size());
      if (skipped < ptx.size() && ptx[skipped] == '"') ++skipped;
    } else {
      code += ptx.front();
      skipped = 1;
    }
    ptx.remove_prefix(skipped);
  }
  return code;
}

// Returns the last instruction or label of a line, or of a part of it, without braces around it;
// empty: there is none.
absl::string_view LastInstruction(absl::string_view line) {
  absl::string_view last;
  for (absl::string_view statement : absl::StrSplit(line, ';')) {
    const size_t begin = statement.find_first_not_of("{} \t\r");
    if (begin == absl::string_view::npos) continue;
    statement = absl::StripTrailingAsciiWhitespace(statement.substr(begin));
    if (statement.front() != '.') last = statement;  // Not a directive.
  }
  return last;
}

absl::Status CheckReturns(absl::string_view header, absl::string_view last_instruction) {
  const bool function = absl::StrContains(header, ".func") || absl::StrContains(header, ".entry");
  if (!function || EndsControl(last_instruction)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the compiler has dropped code: the function '", NameIn(header),
                   "' ends without a return. The compiler may have treated a part of the source as "
                   "unreachable. Fix: remove undefined behaviour (invalid values of a type, "
                   "__builtin_unreachable, wrong assumptions), or write the function differently"));
}

// Of a function that is the entry of an operator.
absl::Status CheckAbi(absl::string_view header) {
  constexpr absl::string_view kAbi = ".abi_preserve";
  if (!absl::StrContains(header, ".visible") || absl::StrContains(header, kAbi)) {
    return absl::OkStatus();
  }
  const std::string name = NameIn(header);
  if (!absl::StartsWith(name, "resident_op_") && !absl::StartsWith(name, "resident_opc_")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the function '", name,
      "' is not one that the kernel can call. Fix: define it as RESIDENT_OPERATOR(NAME)"
      "(resident::Block& block, const resident::Args& args)"));
}

}  // namespace

absl::Status CheckPtxFunctions(std::string_view ptx) {
  const std::string code = WithoutText(absl::string_view(ptx.data(), ptx.size()));
  std::string header;            // Text before the body of the next or current function.
  std::string last_instruction;  // The last one of its body so far.
  // Nesting of braces: calls, scopes and vectors have braces, anywhere in a line.
  int depth = 0;
  for (const absl::string_view line : absl::StrSplit(code, '\n')) {
    size_t begin = 0;  // Where the part of the line that has not been read begins.
    const auto read_body = [&](size_t end) {
      const absl::string_view last = LastInstruction(line.substr(begin, end - begin));
      if (!last.empty()) last_instruction.assign(last.data(), last.size());
    };
    for (size_t i = 0; i < line.size(); ++i) {
      if (depth == 0) {
        if (line[i] == ';') header.clear();  // A declaration, or a variable.
        if (line[i] == '{') {
          depth = 1;
          begin = i + 1;
          last_instruction.clear();
        } else if (line[i] != ';' && line[i] != '}') {
          header += line[i];
        }
      } else if (line[i] == '{') {
        ++depth;
      } else if (line[i] == '}' && --depth == 0) {
        read_body(i);
        RETURN_IF_ERROR(CheckReturns(header, last_instruction));
        RETURN_IF_ERROR(CheckAbi(header));
        header.clear();
      }
    }
    if (depth == 0) {
      header += ' ';
    } else {
      read_body(line.size());
    }
  }
  return absl::OkStatus();
}

}  // namespace resident
