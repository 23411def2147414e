#include "runtime/base/utf8.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";

// Length of the well-formed character at the beginning; 0: there is none (Unicode 15, table 3-7).
size_t CharacterLength(absl::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint8_t low = 0x80, high = 0xbf;  // Bounds of the second byte.
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;  // Surrogates.
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;  // Above U+10FFFF.
  }
  if (length == 0 || bytes.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

bool IsControl(absl::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return (first < 0x20 && first != '\t') || first == 0x7f;
  // U+0080 to U+009F.
  return character.size() == 2 && first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;
}

std::string Convert(absl::string_view bytes, bool printable) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = CharacterLength(bytes);
    const absl::string_view character = bytes.substr(0, length == 0 ? 1 : length);
    bytes.remove_prefix(character.size());
    if (length == 0) {
      absl::StrAppend(&text, kReplacement);
    } else if (printable && IsControl(character)) {
      text += '?';
    } else {
      absl::StrAppend(&text, character);
    }
  }
  return text;
}

}  // namespace

std::string ToUtf8(absl::string_view bytes) { return Convert(bytes, /*printable=*/false); }

absl::string_view CutUtf8(absl::string_view text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  // Do not cut before a byte that continues a character.
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

std::string ToPrintableLine(absl::string_view bytes) { return Convert(bytes, /*printable=*/true); }

}  // namespace resident
