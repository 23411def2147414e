// FLUX programs as files have them: assembly, or bytecode in hex.
#ifndef RESIDENT_CLIENT_COMMANDS_FLUX_TEXT_H_
#define RESIDENT_CLIENT_COMMANDS_FLUX_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/flux/assembler.h"

namespace resident::cli {

// Whether it is nothing but whole bytes in hex and white space.
bool IsHex(std::string_view text);
// REQUIRES: IsHex(text).
flux::Bytecode FromHex(std::string_view text);

// INVALID_ARGUMENT: what the assembler says, with the file's name.
absl::StatusOr<flux::Bytecode> AssembleFile(const std::string& path, const std::string& text);
// Assembly or hex. Errors: likewise.
absl::StatusOr<flux::Bytecode> ReadFluxProgram(const std::string& path, const std::string& text);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_FLUX_TEXT_H_
