#include "runtime/base/errors/words.h"

namespace resident::errors {

std::string InWords(std::string_view message, std::span<const Phrase> phrases) {
  std::string text(message);
  for (const Phrase& phrase : phrases) {
    for (size_t at = text.find(phrase.api); at != std::string::npos;
         at = text.find(phrase.api, at + phrase.here.size())) {
      text.replace(at, phrase.api.size(), phrase.here);
    }
  }
  return text;
}

absl::Status InWords(const absl::Status& status, std::span<const Phrase> phrases) {
  if (status.ok()) return status;
  const std::string_view message(status.message().data(), status.message().size());
  absl::Status made(status.code(), InWords(message, phrases));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { made.SetPayload(type, payload); });
  return made;
}

}  // namespace resident::errors
