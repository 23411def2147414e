// Messages in the words of the interface at which they are read. The daemon writes its messages for
// the gRPC API; residentctl and the Open Inference Protocol replace what only that API has.
//
//   constexpr Phrase kWords[] = {{"Operators.List", "`residentctl ops list`"}};
//   InWords("no operator 'ad'. Fix: see Operators.List", kWords);
//
// Thread safety: a function without state.
#ifndef RESIDENT_RUNTIME_BASE_ERRORS_WORDS_H_
#define RESIDENT_RUNTIME_BASE_ERRORS_WORDS_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace resident::errors {

struct Phrase {
  std::string_view api;   // As in messages of the daemon.
  std::string_view here;  // What is shown in its place.
};

// Replaces every phrase; an earlier one of the list first.
std::string InWords(std::string_view message, std::span<const Phrase> phrases);
// The same for the message of a status, which keeps its code and payloads.
absl::Status InWords(const absl::Status& status, std::span<const Phrase> phrases);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_BASE_ERRORS_WORDS_H_
