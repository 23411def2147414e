// Quote: text that a client sent, as a message shows it.
//
//   return absl::NotFoundError(StrCat("no operator ", Quote(name), ". Fix: ..."));
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_QUOTE_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_QUOTE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace resident::errors {

// 'text', at most 64 bytes of it, with what is not printable escaped.
std::string Quote(std::string_view text);

// As Quote, of what stands around `position`.
std::string QuoteAt(std::string_view text, size_t position);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_QUOTE_H_
