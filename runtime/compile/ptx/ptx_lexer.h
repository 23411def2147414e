// The words of PTX: names, numbers, directives, strings and single characters, without spaces and
// comments.
//
// Thread safety: one thread.
//
//   PtxLexer lexer(text);
//   while (lexer.Peek().kind != PtxToken::Kind::kEnd) Use(lexer.Take());
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_LEXER_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace resident {

// Letters, digits, _ $ %.
bool IsPtxNameCharacter(char c);

struct PtxToken {
  // A word consists of letters, digits, _ $ % . and ::; everything else has one character.
  enum class Kind : uint8_t { kWord, kCharacter, kString, kEnd, kError };
  Kind kind = Kind::kEnd;
  std::string_view text;
  uint32_t line = 0;

  bool Is(char c) const { return kind == Kind::kCharacter && text[0] == c; }
  bool IsWord(std::string_view word) const { return kind == Kind::kWord && text == word; }
  bool IsDirective() const { return kind == Kind::kWord && text[0] == '.'; }
};

// `text` must outlive the lexer and its tokens.
class PtxLexer {
 public:
  explicit PtxLexer(std::string_view text) : text_(text) { Advance(); }

  const PtxToken& Peek() const { return next_; }
  PtxToken Take() {
    const PtxToken token = next_;
    Advance();
    return token;
  }

 private:
  // Skips spaces and comments. A comment that does not end hides everything behind it, as it does
  // for ptxas; the function that it is in has no end then.
  void SkipSpace();
  void Advance();

  const std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  PtxToken next_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_LEXER_H_
