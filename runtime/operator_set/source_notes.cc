#include "runtime/operator_set/source_notes.h"

#include <algorithm>

namespace resident {
namespace {

std::string_view Stripped(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Sets `text` to what follows "//" if the line contains only a comment.
bool IsComment(std::string_view line, std::string_view* text) {
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos || line.substr(first, 2) != "//") return false;
  *text = line.substr(first + 2);
  return true;
}

size_t Indent(std::string_view text) {
  return std::min(text.find_first_not_of(" \t"), text.size());
}

}  // namespace

SourceNotes ReadSourceNotes(std::string_view source) {
  SourceNotes notes;
  // The note that the previous line began or continued; null: none.
  std::string* open = nullptr;
  std::string skipped;  // The value of a repeated key.
  size_t indent = 0;
  while (!source.empty()) {
    const size_t end = std::min(source.find('\n'), source.size());
    std::string_view text;
    const bool comment = IsComment(source.substr(0, end), &text);
    source.remove_prefix(std::min(end + 1, source.size()));
    const std::string_view content = comment ? Stripped(text) : std::string_view();
    if (content.empty()) {
      open = nullptr;
      continue;
    }
    if (open != nullptr && Indent(text) > indent) {
      open->append(" ").append(content);
      continue;
    }
    open = nullptr;
    for (const auto& [key, value] :
         {std::pair<std::string_view, std::string*>{"signature:", &notes.signature},
          {"split:", &notes.split},
          {"summary:", &notes.summary}}) {
      if (content.substr(0, key.size()) != key) continue;
      open = value->empty() ? value : &skipped;
      *open = Stripped(content.substr(key.size()));
      indent = Indent(text);
    }
  }
  return notes;
}

}  // namespace resident
