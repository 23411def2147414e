#include "runtime/compile/expression/lexer.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/expression/expression.h"

namespace resident::expression {
namespace {

constexpr size_t kMaxNameBytes = 64;

// Longer symbols come first.
constexpr std::string_view kSymbols[] = {"->", "<=", ">=", "==", "!=", "&&", "||",
                                         "+",  "-",  "*",  "/",  "<",  ">",  "!",
                                         "?",  ":",  "(",  ")",  ",",  "=",  "|"};

bool IsNameByte(char c) { return absl::ascii_isalnum(c) || c == '_'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<Token>> Run() {
    if (text_.size() > kMaxBytes) {
      return errors::BadExpression(text_, kMaxBytes, 1,
                                   absl::StrCat("the expression has ", text_.size(),
                                                " bytes, over the limit of ", kMaxBytes),
                                   "install it as source (docs/operators.md)");
    }
    std::vector<Token> tokens;
    while (true) {
      while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
      ASSIGN_OR_RETURN(Token token, Next());
      tokens.push_back(token);
      if (token.kind == TokenKind::kEnd) return tokens;
    }
  }

 private:
  char At(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  absl::StatusOr<Token> Next() {
    if (at_ == text_.size()) return Token{TokenKind::kEnd, {}, at_, 0};
    const char c = text_[at_];
    if (absl::ascii_isdigit(c) || (c == '.' && absl::ascii_isdigit(At(at_ + 1)))) return Number();
    if (IsNameByte(c)) return Name();
    for (const std::string_view symbol : kSymbols) {
      if (text_.substr(at_, symbol.size()) != symbol) continue;
      const Token token{TokenKind::kSymbol, text_.substr(at_, symbol.size()), at_, 0};
      at_ += symbol.size();
      return token;
    }
    std::string fix;
    if (c == '^') fix = "write pow(x, y) for powers";
    if (c == '&') fix = "write && for 'and'";
    if (c == '%') fix = "write x - floor(x / y) * y for remainders";
    const bool printable = c > ' ' && c <= '~';
    return errors::BadExpression(
        text_, at_, 1,
        printable ? absl::StrCat("'", std::string(1, c), "' has no meaning here")
                  : absl::StrCat("byte ", static_cast<unsigned char>(c), " has no meaning here"),
        fix);
  }

  absl::StatusOr<Token> Number() {
    size_t end = at_;
    const auto digits = [&] {
      while (absl::ascii_isdigit(At(end))) ++end;
    };
    digits();
    if (At(end) == '.') {
      ++end;
      digits();
    }
    if (At(end) == 'e' || At(end) == 'E') {
      const size_t sign = At(end + 1) == '+' || At(end + 1) == '-' ? 1 : 0;
      if (absl::ascii_isdigit(At(end + 1 + sign))) {
        end += 1 + sign;
        digits();
      }
    }
    Token token{TokenKind::kNumber, text_.substr(at_, end - at_), at_, 0};
    if (IsNameByte(At(end)) || At(end) == '.') {
      return errors::BadExpression(text_, at_, end - at_ + 1, "this number is malformed",
                                   "write numbers as 2, 0.5 or 1e-6, and * between a number and "
                                   "a name");
    }
    double value = 0;
    const bool read =
        absl::SimpleAtod(absl::string_view(token.text.data(), token.text.size()), &value);
    token.number = static_cast<float>(value);
    if (!read || !std::isfinite(token.number)) {
      return errors::BadExpression(text_, at_, end - at_, "this number does not fit float32",
                                   "write at most 3.4e38; infinity is written inf");
    }
    at_ = end;
    return token;
  }

  absl::StatusOr<Token> Name() {
    size_t end = at_;
    while (IsNameByte(At(end))) ++end;
    const Token token{TokenKind::kName, text_.substr(at_, end - at_), at_, 0};
    if (token.text.size() > kMaxNameBytes) {
      return errors::BadExpression(text_, at_, token.text.size(),
                                   absl::StrCat("a name of ", token.text.size(),
                                                " bytes is over the limit of ", kMaxNameBytes),
                                   "use a shorter name");
    }
    at_ = end;
    return token;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view text) { return Lexer(text).Run(); }

}  // namespace resident::expression
