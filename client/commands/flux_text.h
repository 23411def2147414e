// FLUX programs in files: assembly, or bytecode in hex.
#ifndef RESIDENT_CLIENT_COMMANDS_FLUX_TEXT_H_
#define RESIDENT_CLIENT_COMMANDS_FLUX_TEXT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/flux/assembler.h"

namespace resident::cli {

// Whether the text contains only whole bytes in hex and white space.
bool IsHex(std::string_view text);
// REQUIRES: IsHex(text).
flux::Bytecode FromHex(std::string_view text);

// Errors: INVALID_ARGUMENT with the assembler's message and the file name.
absl::StatusOr<flux::Bytecode> AssembleFile(const std::string& path, const std::string& text);
// Accepts assembly or hex. Errors: see AssembleFile.
absl::StatusOr<flux::Bytecode> ReadFluxProgram(const std::string& path, const std::string& text);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_COMMANDS_FLUX_TEXT_H_
