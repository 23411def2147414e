#include "client/commands/flux_text.h"

#include <cassert>
#include <cctype>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace resident::cli {

bool IsHex(std::string_view text) {
  size_t digits = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isspace(byte) != 0) continue;
    if (std::isxdigit(byte) == 0) return false;
    ++digits;
  }
  return digits > 0 && digits % 2 == 0;
}

flux::Bytecode FromHex(std::string_view text) {
  assert(IsHex(text));
  std::string digits;
  for (const char c : text) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0) digits += c;
  }
  const std::string bytes = absl::HexStringToBytes(digits);
  return flux::Bytecode(bytes.begin(), bytes.end());
}

absl::StatusOr<flux::Bytecode> AssembleFile(const std::string& path, const std::string& text) {
  absl::StatusOr<flux::Bytecode> code = flux::Assemble(text);
  if (code.ok()) return code;
  // The assembler's error does not contain the file name.
  return absl::Status(code.status().code(), absl::StrCat(path, ": ", code.status().message()));
}

absl::StatusOr<flux::Bytecode> ReadFluxProgram(const std::string& path, const std::string& text) {
  // No valid assembly consists only of hex digits: "ADD", for example, needs operands.
  if (IsHex(text)) return FromHex(text);
  return AssembleFile(path, text);
}

}  // namespace resident::cli
