#include "runtime/base/errors/reason.h"

#include <cassert>

#include "absl/strings/cord.h"
#include "absl/strings/str_split.h"

namespace resident::errors {
namespace {

// The payload: the name, then keys and values, separated by a byte that none of them contains.
constexpr char kPayload[] = "residentd/reason";
constexpr char kSeparator = '\0';

void Append(std::string_view part, std::string* text) {
  for (const char c : part.substr(0, kMaxReasonValueBytes)) {
    if (c != kSeparator) text->push_back(c);
  }
}

}  // namespace

absl::Status WithReason(absl::Status status, const ErrorReason& reason) {
  assert(!status.ok());
  std::string text;
  Append(reason.name, &text);
  for (const auto& [key, value] : reason.details) {
    text.push_back(kSeparator);
    Append(key, &text);
    text.push_back(kSeparator);
    Append(value, &text);
  }
  status.SetPayload(kPayload, absl::Cord(text));
  return status;
}

std::optional<ErrorReason> FindReason(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  const std::vector<std::string> parts =
      absl::StrSplit(std::string(*payload), absl::ByChar(kSeparator));
  ErrorReason reason;
  reason.name = parts[0];
  for (size_t i = 1; i + 1 < parts.size(); i += 2)
    reason.details.emplace_back(parts[i], parts[i + 1]);
  return reason;
}

}  // namespace resident::errors
