// Lexer: splits the text of an expression into tokens.
//
// It returns only tokens of the grammar (expression.h); any other byte is an error.
//
// Thread safety: pure functions. Tokens point into the text.
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
  // The token's part of the text; empty at the end.
  std::string_view text;
  // Offset of the first byte.
  size_t position = 0;
  // kNumber: the value, which is finite.
  float number = 0;

  bool Is(std::string_view symbol) const { return kind == TokenKind::kSymbol && text == symbol; }
};

// Returns the tokens; the last one is kEnd.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text);

}  // namespace resident::expression

#endif  // RESIDENT_RUNTIME_COMPILE_EXPRESSION_LEXER_H_
