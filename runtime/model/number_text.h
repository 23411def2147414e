// Numbers in texts (command lines, files of examples) as elements of a type.
//
// Thread safety: functions without state.
//
//   std::string bytes;
//   const bool ok = AppendNumber(DType::kF16, "0.5", &bytes);   // Two bytes.
#ifndef RESIDENT_RUNTIME_MODEL_NUMBER_TEXT_H_
#define RESIDENT_RUNTIME_MODEL_NUMBER_TEXT_H_

#include <optional>
#include <string>
#include <string_view>

#include "runtime/model/dtype.h"

namespace resident {

// nullopt: the word is no number, or the floating-point type would change an integer, or make a
// number infinite. float16 and bfloat16 are rounded to nearest, ties to even.
std::optional<double> ParseReal(DType dtype, std::string_view word);

// Appends the little-endian bytes of one element. False, and nothing is appended: the word is no
// number that the type has.
bool AppendNumber(DType dtype, std::string_view word, std::string* bytes);

// Whether the word has digits and signs only: if no type had it, it would be too large for all.
bool IsWholeNumber(std::string_view word);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_NUMBER_TEXT_H_
