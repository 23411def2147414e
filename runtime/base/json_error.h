// Finds where a text is not valid JSON, for messages.
//
//   StrCat(path, " is not valid JSON", JsonErrorPlace(text))  // "... in line 3, column 7"
//
// Thread safety: a function without state.
#ifndef RESIDENT_RUNTIME_BASE_JSON_ERROR_H_
#define RESIDENT_RUNTIME_BASE_JSON_ERROR_H_

#include <string>
#include <string_view>

namespace resident {

// " in line 3, column 7", both from 1, columns in bytes; or that a text that is valid JSON is
// nested too deeply. REQUIRES: ParseShallowJson (runtime/base/shallow_json.h) discarded the text.
std::string JsonErrorPlace(std::string_view text);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_JSON_ERROR_H_
