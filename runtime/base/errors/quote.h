// Quote: formats text that a client sent for a message.
//
//   return absl::NotFoundError(StrCat("no operator ", Quote(name), ". Fix: ..."));
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_QUOTE_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_QUOTE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace resident::errors {

// Returns 'text', at most 64 bytes of it. Bytes that are not printable are escaped.
std::string Quote(std::string_view text);

// Like Quote, for the part of the text around `position`.
std::string QuoteAt(std::string_view text, size_t position);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_QUOTE_H_
