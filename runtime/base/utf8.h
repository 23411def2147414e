// UTF-8 from bytes that nobody has checked: what a compiler or an engine printed.
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

// With U+FFFD in place of each byte that is not part of a well-formed character. Protobuf and its
// clients refuse a message with other strings.
std::string ToUtf8(absl::string_view bytes);

// The beginning of a well-formed text: at most so many bytes, and whole characters.
absl::string_view CutUtf8(absl::string_view text, size_t most_bytes);

// As ToUtf8, with '?' in place of each control character but the tab: one line, which does nothing
// to a terminal.
std::string ToPrintableLine(absl::string_view bytes);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_UTF8_H_
