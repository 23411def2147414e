#include "runtime/model/number_text.h"

#include <cmath>
#include <cstdint>

#include "absl/strings/numbers.h"

namespace resident {
namespace {

absl::string_view View(std::string_view s) { return {s.data(), s.size()}; }

// Whether `value`, which `word` became, is what the word says, apart from the rounding of a
// fraction.
bool IsAsWritten(std::string_view word, double value) {
  if (std::isinf(value)) return word.find_first_of("iI") != std::string_view::npos;  // "inf".
  int64_t integer;
  if (!absl::SimpleAtoi(View(word), &integer)) {
    return !IsWholeNumber(word) || std::abs(value) < 0x1p63;
  }
  // Above, the conversion back would overflow.
  return std::abs(value) < 0x1p63 ? static_cast<int64_t>(value) == integer
                                  : value < 0 && integer == INT64_MIN;
}

}  // namespace

bool IsWholeNumber(std::string_view word) {
  return !word.empty() && word.find_first_not_of("+-0123456789") == std::string_view::npos;
}

std::optional<double> ParseReal(DType dtype, std::string_view word) {
  double value;
  if (dtype == DType::kF32) {
    float rounded;  // Once.
    if (!absl::SimpleAtof(View(word), &rounded)) return std::nullopt;
    value = double{rounded};
  } else if (!absl::SimpleAtod(View(word), &value)) {
    return std::nullopt;
  }
  const uint64_t bits = ScalarBits(dtype, value);
  const double stored = ReadElement(dtype, reinterpret_cast<const char*>(&bits)).real;
  if (!IsAsWritten(word, stored)) return std::nullopt;
  return value;
}

bool AppendNumber(DType dtype, std::string_view word, std::string* bytes) {
  uint64_t bits = 0;
  if (IsFloat(dtype)) {
    const std::optional<double> value = ParseReal(dtype, word);
    if (!value.has_value()) return false;
    bits = ScalarBits(dtype, *value);
  } else {
    int64_t value;
    if (!absl::SimpleAtoi(View(word), &value) || !ScalarFits(dtype, value)) return false;
    bits = ScalarBits(dtype, value);
  }
  bytes->append(reinterpret_cast<const char*>(&bits), SizeOf(dtype));
  return true;
}

}  // namespace resident
