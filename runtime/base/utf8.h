// UTF-8 from unchecked bytes, for example the output of a compiler or an engine.
//
// Thread safety: may be called from any thread.
//
//   ToUtf8("caf\xe9")          // "caf\uFFFD"
//   CutUtf8("caf\u00e9", 4)      // "caf"
//   ToPrintableLine("a\x1b[2J") // "a?[2J"
#ifndef RESIDENT_RUNTIME_BASE_UTF8_H_
#define RESIDENT_RUNTIME_BASE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace resident {

// Replaces each byte that is not part of a well-formed character with U+FFFD. Protobuf and its
// clients refuse a message with other strings.
std::string ToUtf8(absl::string_view bytes);

// The beginning of a well-formed text: whole characters, at most `max_bytes` bytes.
absl::string_view CutUtf8(absl::string_view text, size_t max_bytes);

// Like ToUtf8, but also replaces each control character except the tab with '?'. The result is one
// line without terminal control sequences.
std::string ToPrintableLine(absl::string_view bytes);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_UTF8_H_
