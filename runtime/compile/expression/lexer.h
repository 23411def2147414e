// Lexer: the text of an expression as tokens.
//
// Only tokens of the grammar (expression.h) come out; any other byte is an error.
//
// Thread safety: functions without state of their own. Tokens point into the text.
#ifndef RESIDENT_RUNTIME_COMPILE_EXPRESSION_LEXER_H_
#define RESIDENT_RUNTIME_COMPILE_EXPRESSION_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace resident::expression {

enum class TokenKind : uint8_t { kNumber, kName, kSymbol, kEnd };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  // As it stands in the text; empty at the end.
  std::string_view text;
  // Of the first byte.
  size_t position = 0;
  // kNumber: finite.
  float number = 0;

  bool Is(std::string_view symbol) const { return kind == TokenKind::kSymbol && text == symbol; }
};

// The tokens, the last of which is kEnd.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text);

}  // namespace resident::expression

#endif  // RESIDENT_RUNTIME_COMPILE_EXPRESSION_LEXER_H_
