#include "runtime/compile/ptx/ptx_lexer.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"

namespace resident {
namespace {

constexpr std::array<bool, 256> kNameCharacters = [] {
  std::array<bool, 256> name{};
  for (int c = 0; c < 256; ++c) {
    name[c] = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              c == '_' || c == '$' || c == '%';
  }
  return name;
}();

}  // namespace

bool IsPtxNameCharacter(char c) { return kNameCharacters[static_cast<unsigned char>(c)]; }

void PtxLexer::SkipSpace() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    const std::string_view rest = text_.substr(at_);
    if (c == '\n') ++line_;
    if (absl::ascii_isspace(static_cast<unsigned char>(c))) {
      ++at_;
    } else if (rest.starts_with("//")) {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (rest.starts_with("/*")) {
      const size_t end = std::min(text_.find("*/", at_ + 2), text_.size() - 2);
      line_ += static_cast<uint32_t>(std::count(text_.begin() + at_, text_.begin() + end, '\n'));
      at_ = end + 2;
    } else {
      return;
    }
  }
}

void PtxLexer::Advance() {
  SkipSpace();
  next_ = {PtxToken::Kind::kEnd, {}, line_};
  if (at_ >= text_.size()) return;
  const size_t begin = at_;
  const char first = text_[at_++];
  if (first == '"') {
    next_.kind = PtxToken::Kind::kError;
    const size_t end = text_.find_first_of("\"\n", at_);
    if (end != std::string_view::npos && text_[end] == '"') {
      next_.kind = PtxToken::Kind::kString;
      at_ = end + 1;
    }
  } else if (IsPtxNameCharacter(first) || first == '.') {
    next_.kind = PtxToken::Kind::kWord;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (IsPtxNameCharacter(c) || c == '.') {
        ++at_;
      } else if (c == ':' && text_.substr(at_).starts_with("::")) {
        at_ += 2;
      } else {
        break;
      }
    }
  } else {
    next_.kind = std::string_view("{}[]()<>,;:@!|+-=").find(first) != std::string_view::npos
                     ? PtxToken::Kind::kCharacter
                     : PtxToken::Kind::kError;
  }
  next_.text = text_.substr(begin, at_ - begin);
}

}  // namespace resident
