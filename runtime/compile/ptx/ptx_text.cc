#include "runtime/compile/ptx/ptx_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

constexpr std::array<bool, 256> kNameCharacters = [] {
  std::array<bool, 256> name{};
  for (int c = 0; c < 256; ++c) {
    name[c] = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
              c == '_' || c == '$' || c == '%';
  }
  return name;
}();

bool IsNameCharacter(char c) { return kNameCharacters[static_cast<unsigned char>(c)]; }

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool IsReservedName(std::string_view name) {
  return absl::StartsWith(View(name), kPtxReservedRegister) ||
         absl::StartsWith(View(name), kPtxReservedLabel);
}

struct Token {
  // A word consists of letters, digits, _ $ % . and ::; everything else has one character.
  enum class Kind : uint8_t { kWord, kCharacter, kString, kEnd, kError };
  Kind kind = Kind::kEnd;
  std::string_view text;
  uint32_t line = 0;

  bool Is(char c) const { return kind == Kind::kCharacter && text[0] == c; }
  bool IsWord(std::string_view word) const { return kind == Kind::kWord && text == word; }
  bool IsDirective() const { return kind == Kind::kWord && text[0] == '.'; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { Advance(); }

  const Token& Peek() const { return next_; }
  Token Take() {
    const Token token = next_;
    Advance();
    return token;
  }

 private:
  // Skips spaces and comments. A comment that does not end hides everything behind it, as it does
  // for ptxas; the function that it is in has no end then.
  void SkipSpace() {
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

  void Advance() {
    SkipSpace();
    next_ = {Token::Kind::kEnd, {}, line_};
    if (at_ >= text_.size()) return;
    const size_t begin = at_;
    const char first = text_[at_++];
    if (first == '"') {
      next_.kind = Token::Kind::kError;
      const size_t end = text_.find_first_of("\"\n", at_);
      if (end != std::string_view::npos && text_[end] == '"') {
        next_.kind = Token::Kind::kString;
        at_ = end + 1;
      }
    } else if (IsNameCharacter(first) || first == '.') {
      next_.kind = Token::Kind::kWord;
      while (at_ < text_.size()) {
        const char c = text_[at_];
        if (IsNameCharacter(c) || c == '.') {
          ++at_;
        } else if (c == ':' && text_.substr(at_).starts_with("::")) {
          at_ += 2;
        } else {
          break;
        }
      }
    } else {
      next_.kind = std::string_view("{}[]()<>,;:@!|+-=").find(first) != std::string_view::npos
                       ? Token::Kind::kCharacter
                       : Token::Kind::kError;
    }
    next_.text = text_.substr(begin, at_ - begin);
  }

  const std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  Token next_;
};

enum class NameKind : uint8_t { kRegister, kParameter, kLocal };

// The names that are declared in a scope of a function.
struct Scope {
  uint32_t parent = 0;
  struct Name {
    NameKind kind;
    std::string renamed;
    uint32_t count = 0;  // Not 0: of a range of registers.
    bool of_call = false;
  };
  absl::flat_hash_map<std::string, Name> names;
  // A function has few ranges, and most registers are of one.
  std::vector<std::pair<std::string, Name>> ranges;
  std::unordered_map<std::string, std::string> labels;
};

// Bytes of a type's value; 0: not a type of registers.
uint32_t FindBytes(std::string_view type) {
  if (type == ".pred") return 1;
  for (const auto& [suffix, bytes] : {std::pair<std::string_view, uint32_t>{"64", 8},
                                      {"f16x2", 4},
                                      {"32", 4},
                                      {"16", 2},
                                      {"8", 1}}) {
    if (type.size() > suffix.size() && type.ends_with(suffix)) return bytes;
  }
  return 0;
}

class Parser {
 public:
  Parser(std::string_view text, bool rewritten) : lexer_(text), rewritten_(rewritten) {}

  absl::StatusOr<PtxUnit> Run() {
    while (lexer_.Peek().kind != Token::Kind::kEnd) RETURN_IF_ERROR(ReadItem());
    for (const auto& [name, use] : uses_) {
      if (variables_.contains(name)) {
        unit_.used_variables.insert(name);
      } else if (functions_.contains(name)) {
        return RefuseUse(use, "C1", absl::StrCat("the address of the function '", name, "'"));
      } else {
        return RefuseUse(use, "P1", absl::StrCat("'", name, "' is not declared"));
      }
    }
    // A local name that hides a variable would change what later statements mean.
    for (const auto& [name, use] : locals_) {
      if (!variables_.contains(name) && !functions_.contains(name)) continue;
      return RefuseUse(use, "P2",
                       absl::StrCat("'", name, "' is the name of a variable or function too"));
    }
    return std::move(unit_);
  }

 private:
  struct Use {
    uint32_t line;
    uint32_t locations;
    uint32_t first_location;
  };

  Use Here() const {
    return {lexer_.Peek().line, static_cast<uint32_t>(unit_.locations.size()),
            function_ == nullptr ? static_cast<uint32_t>(unit_.locations.size())
                                 : function_->first_location};
  }
  // The table of files comes last in the text, and is not known yet: the line is of the PTX, unless
  // the rest is read first.
  absl::Status RefuseUse(const Use& use, std::string_view rule, std::string_view what) {
    while (lexer_.Peek().kind != Token::Kind::kEnd) {
      if (lexer_.Take().IsWord(".file")) (void)ReadFile();
    }
    PtxFunction function;
    function.first_location = use.first_location;
    PtxStatement statement;
    statement.line = use.line;
    statement.locations = use.locations;
    return PtxRefused(unit_.Describe(function, statement), rule, what);
  }
  absl::Status Refuse(std::string_view rule, std::string_view what) {
    return RefuseUse(Here(), rule, what);
  }
  absl::Status RefuseToken(std::string_view expected) {
    const Token& token = lexer_.Peek();
    return Refuse("P1", absl::StrCat("'", View(token.text.substr(0, 40)), "' where ",
                                     View(expected), " is expected"));
  }

  absl::Status Expect(char c) {
    if (!lexer_.Peek().Is(c)) return RefuseToken(absl::StrCat("'", std::string(1, c), "'"));
    lexer_.Take();
    return absl::OkStatus();
  }
  bool TakeIf(char c) {
    if (!lexer_.Peek().Is(c)) return false;
    lexer_.Take();
    return true;
  }
  // A word that is a name: without dots.
  absl::StatusOr<std::string> TakeName() {
    const Token& token = lexer_.Peek();
    if (token.kind != Token::Kind::kWord || IsDigit(token.text[0]) ||
        token.text.find_first_of(".:") != std::string_view::npos) {
      return RefuseToken("a name");
    }
    if (!rewritten_ && IsReservedName(token.text)) {
      return Refuse("P2", absl::StrCat("'", View(token.text), "' is a reserved name"));
    }
    return std::string(lexer_.Take().text);
  }
  absl::StatusOr<uint32_t> TakeCount() {
    uint32_t count = 0;
    if (lexer_.Peek().kind != Token::Kind::kWord ||
        !absl::SimpleAtoi(View(lexer_.Peek().text), &count)) {
      return RefuseToken("a number");
    }
    lexer_.Take();
    return count;
  }
  // ".b32" and the like.
  absl::StatusOr<std::string> TakeType() {
    if (!lexer_.Peek().IsDirective() || FindBytes(lexer_.Peek().text) == 0) {
      return RefuseToken("a type");
    }
    return std::string(lexer_.Take().text);
  }

  absl::Status ReadFile() {
    ASSIGN_OR_RETURN(const uint32_t number, TakeCount());
    if (lexer_.Peek().kind != Token::Kind::kString) return RefuseToken("a file's name");
    std::string_view name = lexer_.Take().text;
    unit_.files[number] = std::string(name.substr(1, name.size() - 2));
    while (TakeIf(',')) RETURN_IF_ERROR(TakeCount().status());
    return absl::OkStatus();
  }

  absl::Status ReadItem();
  absl::Status ReadVariable(std::string text);
  absl::Status ReadFunction(std::string text, bool visible);
  absl::Status ReadParameters(bool results, std::string* text);
  absl::Status ReadBody();
  absl::Status ReadDirective();
  absl::Status ReadRegisters();
  // Takes ".param .align 8 .b8 name", without dimensions, declares the name, and returns the text.
  absl::StatusOr<std::string> TakeVariable(NameKind kind, bool of_call);
  absl::Status ReadParameterOfCall();
  absl::Status ReadLocal();
  absl::Status ReadLocation();
  absl::Status ReadInstruction();
  absl::Status ReadCall(PtxStatement* statement);
  absl::StatusOr<std::string> ReadOperand(PtxStatement* statement);
  absl::StatusOr<std::string> ReadAddress(PtxStatement* statement);
  absl::StatusOr<std::string> ReadValue(PtxStatement* statement);
  absl::Status EndFunction();

  // Adds a name to the current scope and returns what it is called in the flat function.
  std::string Declare(const std::string& name, NameKind kind, uint32_t count, bool of_call);
  const Scope::Name* Find(absl::string_view name, std::string* renamed) const;

  Lexer lexer_;
  const bool rewritten_;
  PtxUnit unit_;
  std::unordered_set<std::string> variables_;
  std::unordered_set<std::string> functions_;
  std::unordered_map<std::string, Use> uses_;
  std::unordered_map<std::string, Use> locals_;
  uint32_t registers_ = 0;
  // Those that have occurred.
  absl::flat_hash_map<std::string, std::optional<PtxOpcode>> opcodes_;

  // Of the current function.
  PtxFunction* function_ = nullptr;
  std::vector<Scope> scopes_;
  uint32_t scope_ = 0;
  uint32_t depth_ = 0;
  // Branches: the statement and its scope.
  std::vector<std::pair<size_t, uint32_t>> branches_;
};

absl::Status Parser::ReadItem() {
  std::string text;
  bool visible = false;
  bool external = false;
  while (lexer_.Peek().IsDirective()) {
    const Token token = lexer_.Peek();
    absl::StrAppend(&text, text.empty() ? "" : " ", View(token.text));
    const bool first = text.size() == token.text.size();
    if (token.text == ".visible" || token.text == ".weak" || token.text == ".extern") {
      visible |= token.text == ".visible";
      external |= token.text == ".extern";
      lexer_.Take();
      continue;
    }
    if (token.text == ".func") {
      lexer_.Take();
      return ReadFunction(std::move(text), visible);
    }
    if (token.text == ".global" && !external) {
      lexer_.Take();
      return ReadVariable(std::move(text));
    }
    if (!first) break;
    if (token.text == ".version" || token.text == ".target" || token.text == ".address_size") {
      lexer_.Take();
      if (lexer_.Peek().kind != Token::Kind::kWord) return RefuseToken("a word");
      unit_.items.emplace_back().text = absl::StrCat(text, " ", View(lexer_.Take().text));
      return absl::OkStatus();
    }
    if (token.text == ".file" && !rewritten_) {
      lexer_.Take();
      return ReadFile();
    }
    if (token.text == ".section" && !rewritten_) {
      lexer_.Take();
      if (!lexer_.Peek().text.starts_with(".debug_")) break;
      lexer_.Take();
      RETURN_IF_ERROR(Expect('{'));
      while (!lexer_.Peek().Is('}') && lexer_.Peek().kind != Token::Kind::kEnd) lexer_.Take();
      return Expect('}');
    }
    break;
  }
  const Token& token = lexer_.Peek();
  return Refuse("P1", absl::StrCat("'", View(token.text.substr(0, 40)),
                                   "' is not a declaration that units may have"));
}

// The text of initial values is numbers only: a symbol there would be the address of a function.
absl::Status Parser::ReadVariable(std::string text) {
  if (lexer_.Peek().IsWord(".align")) {
    lexer_.Take();
    ASSIGN_OR_RETURN(const uint32_t align, TakeCount());
    absl::StrAppend(&text, " .align ", align);
  }
  ASSIGN_OR_RETURN(const std::string type, TakeType());
  ASSIGN_OR_RETURN(const std::string name, TakeName());
  absl::StrAppend(&text, " ", type, " ", name);
  while (TakeIf('[')) {
    ASSIGN_OR_RETURN(const uint32_t count, TakeCount());
    RETURN_IF_ERROR(Expect(']'));
    absl::StrAppend(&text, "[", count, "]");
  }
  if (TakeIf('=')) {
    text += " = ";
    while (!lexer_.Peek().Is(';')) {
      const Token& token = lexer_.Peek();
      const bool number = token.kind == Token::Kind::kWord && IsDigit(token.text[0]);
      if (!number && !token.Is('{') && !token.Is('}') && !token.Is(',') && !token.Is('-')) {
        return RefuseToken("a number");
      }
      absl::StrAppend(&text, View(lexer_.Take().text));
    }
  }
  RETURN_IF_ERROR(Expect(';'));
  variables_.insert(name);
  PtxItem& item = unit_.items.emplace_back();
  item.name = name;
  item.text = text + ";";
  item.variable = true;
  return absl::OkStatus();
}

// "(.param .align 8 .b8 name[24], .param .b32 other)".
absl::Status Parser::ReadParameters(bool results, std::string* text) {
  RETURN_IF_ERROR(Expect('('));
  *text += " (";
  for (bool first = true; !TakeIf(')'); first = false) {
    if (!first) {
      RETURN_IF_ERROR(Expect(','));
      *text += ", ";
    }
    if (!lexer_.Peek().IsWord(".param")) return RefuseToken("'.param'");
    lexer_.Take();
    uint32_t align = 0;
    *text += ".param";
    if (lexer_.Peek().IsWord(".align")) {
      lexer_.Take();
      ASSIGN_OR_RETURN(align, TakeCount());
      absl::StrAppend(text, " .align ", align);
    }
    ASSIGN_OR_RETURN(const std::string type, TakeType());
    ASSIGN_OR_RETURN(const std::string name, TakeName());
    absl::StrAppend(text, " ", type, " ", name);
    scopes_[0].names[name] = {NameKind::kParameter, name};
    locals_.emplace(name, Here());
    uint32_t bytes = FindBytes(type);
    uint32_t step = bytes;
    if (TakeIf('[')) {
      ASSIGN_OR_RETURN(const uint32_t count, TakeCount());
      RETURN_IF_ERROR(Expect(']'));
      absl::StrAppend(text, "[", count, "]");
      if (count > 4096) return Refuse("P1", absl::StrCat("a parameter of ", count, " elements"));
      bytes *= count;
      step = std::max<uint32_t>(step, align);
    }
    if (!results) continue;
    step = std::min<uint32_t>(step, 8);
    for (uint32_t at = 0; at < bytes; at += step) {
      while (at + step > bytes) step /= 2;
      function_->zero_results.push_back(
          absl::StrCat("st.param.b", 8 * step, " [", name, "+", at, "], 0;"));
    }
  }
  *text += ")";
  return absl::OkStatus();
}

absl::Status Parser::ReadFunction(std::string text, bool visible) {
  PtxItem item;
  function_ = &item.function;
  function_->first_location = static_cast<uint32_t>(unit_.locations.size());
  scopes_.assign(1, Scope());
  scope_ = depth_ = 0;
  branches_.clear();
  if (lexer_.Peek().Is('(')) RETURN_IF_ERROR(ReadParameters(/*results=*/true, &text));
  ASSIGN_OR_RETURN(item.name, TakeName());
  function_->name = item.name;
  absl::StrAppend(&text, " ", item.name);
  if (lexer_.Peek().Is('(')) RETURN_IF_ERROR(ReadParameters(/*results=*/false, &text));
  while (lexer_.Peek().IsWord(".abi_preserve") || lexer_.Peek().IsWord(".abi_preserve_control")) {
    function_->entry = visible;
    absl::StrAppend(&text, " ", View(lexer_.Take().text));
    ASSIGN_OR_RETURN(const uint32_t count, TakeCount());
    absl::StrAppend(&text, " ", count);
  }
  functions_.insert(item.name);
  function_->header = text;
  if (TakeIf(';')) {
    item.text = text + ";";
  } else {
    RETURN_IF_ERROR(Expect('{'));
    if (!unit_.functions.insert(item.name).second) {
      return Refuse("P1", absl::StrCat("the function '", item.name, "' is defined twice"));
    }
    RETURN_IF_ERROR(ReadBody());
  }
  function_ = nullptr;
  unit_.items.push_back(std::move(item));
  return absl::OkStatus();
}

absl::Status Parser::ReadBody() {
  while (true) {
    const Token& token = lexer_.Peek();
    if (token.Is('{')) {
      if (rewritten_ || ++depth_ > kMaxPtxScopeDepth || scopes_.size() >= kMaxPtxScopes) {
        return Refuse("P3", "too many scopes");
      }
      lexer_.Take();
      scopes_.emplace_back().parent = scope_;
      scope_ = static_cast<uint32_t>(scopes_.size()) - 1;
    } else if (token.Is('}')) {
      lexer_.Take();
      if (scope_ == 0) return EndFunction();
      --depth_;
      scope_ = scopes_[scope_].parent;
    } else if (token.IsDirective()) {
      RETURN_IF_ERROR(ReadDirective());
    } else {
      RETURN_IF_ERROR(ReadInstruction());
    }
  }
}

absl::Status Parser::ReadDirective() {
  const Token directive = lexer_.Peek();
  const auto is = [&](std::string_view name) { return directive.text == name; };
  if (is(".reg")) return ReadRegisters();
  if (is(".param")) return ReadParameterOfCall();
  if (is(".local")) return ReadLocal();
  if (is(".loc") && !rewritten_) return ReadLocation();
  if (is(".pragma")) {
    lexer_.Take();
    const Token text = lexer_.Peek();
    if (text.text != "\"nounroll\"" && !text.text.starts_with("\"used_bytes_mask ")) {
      return RefuseToken("a pragma that units may have");
    }
    lexer_.Take();
    PtxStatement& statement = function_->statements.emplace_back();
    statement.kind = PtxStatement::Kind::kPragma;
    statement.opcode = std::string(text.text);
    statement.line = text.line;
    return Expect(';');
  }
  return Refuse("P1", absl::StrCat("'", View(directive.text), "' in a function"));
}

std::string Parser::Declare(const std::string& name, NameKind kind, uint32_t count, bool of_call) {
  std::string renamed = name;
  const bool percent = name[0] == '%';
  if (kind == NameKind::kRegister && !percent) renamed = "%" + name;
  if (scope_ != 0 && kind == NameKind::kRegister) {
    renamed = absl::StrCat("%s", scope_, "_", name.substr(percent ? 1 : 0));
  } else if (scope_ != 0) {
    renamed = absl::StrCat("$S", scope_, "_", name);
  }
  if (renamed[0] != '%') locals_.emplace(name, Here());
  Scope& scope = scopes_[scope_];
  if (count != 0) {
    scope.ranges.push_back({name, {kind, renamed, count, of_call}});
  } else {
    scope.names[name] = {kind, renamed, 0, of_call};
  }
  return renamed;
}

absl::Status Parser::ReadRegisters() {
  lexer_.Take();
  ASSIGN_OR_RETURN(const std::string type, TakeType());
  if (type != ".pred" && FindBytes(type) < 2) {
    return Refuse("P1", absl::StrCat("registers of type '", type, "'"));
  }
  do {
    ASSIGN_OR_RETURN(const std::string name, TakeName());
    if (IsReservedName(name) || (!rewritten_ && absl::StartsWith(name, "q_"))) {
      if (!rewritten_) return Refuse("P2", absl::StrCat("'", name, "' is a reserved name"));
      scopes_[0].names[name] = {NameKind::kRegister, name};
      continue;
    }
    uint32_t count = 0;
    if (TakeIf('<')) {
      ASSIGN_OR_RETURN(count, TakeCount());
      RETURN_IF_ERROR(Expect('>'));
      if (count == 0) return Refuse("P1", "a declaration of no registers");
      if (scopes_[scope_].ranges.size() == kMaxPtxRanges) {
        return Refuse("P3", "too many declarations of registers");
      }
    }
    registers_ += std::min(std::max(count, 1u), kMaxPtxRegisters + 1);
    if (registers_ > kMaxPtxRegisters) return Refuse("P3", "too many registers");
    const std::string renamed = Declare(name, NameKind::kRegister, count, false);
    function_->registers.push_back({type, renamed, count});
  } while (TakeIf(','));
  return Expect(';');
}

absl::StatusOr<std::string> Parser::TakeVariable(NameKind kind, bool of_call) {
  std::string text(lexer_.Take().text);
  if (lexer_.Peek().IsWord(".align")) {
    lexer_.Take();
    ASSIGN_OR_RETURN(const uint32_t align, TakeCount());
    absl::StrAppend(&text, " .align ", align);
  }
  ASSIGN_OR_RETURN(const std::string type, TakeType());
  ASSIGN_OR_RETURN(const std::string name, TakeName());
  absl::StrAppend(&text, " ", type, " ", Declare(name, kind, 0, of_call));
  return text;
}

absl::Status Parser::ReadParameterOfCall() {
  ASSIGN_OR_RETURN(std::string text, TakeVariable(NameKind::kParameter, true));
  if (TakeIf('[')) {
    ASSIGN_OR_RETURN(const uint32_t count, TakeCount());
    RETURN_IF_ERROR(Expect(']'));
    absl::StrAppend(&text, "[", count, "]");
  }
  function_->declarations.push_back(text + ";");
  return Expect(';');
}

absl::Status Parser::ReadLocal() {
  ASSIGN_OR_RETURN(std::string text, TakeVariable(NameKind::kLocal, false));
  while (TakeIf('[')) {
    ASSIGN_OR_RETURN(const uint32_t count, TakeCount());
    RETURN_IF_ERROR(Expect(']'));
    absl::StrAppend(&text, "[", count, "]");
  }
  function_->declarations.push_back(text + ";");
  return Expect(';');
}

// ".loc 1 9 1, function_name $L__info_string0, inlined_at 2 125 3": ends at the end of the line, or
// rather, in front of what is no part of it.
absl::Status Parser::ReadLocation() {
  lexer_.Take();
  PtxUnit::Location location{};
  ASSIGN_OR_RETURN(location.file, TakeCount());
  ASSIGN_OR_RETURN(location.line, TakeCount());
  RETURN_IF_ERROR(TakeCount().status());
  unit_.locations.push_back(location);
  while (TakeIf(',')) {
    if (lexer_.Peek().IsWord("function_name")) {
      lexer_.Take();
      RETURN_IF_ERROR(TakeName().status());
      if (TakeIf('+')) RETURN_IF_ERROR(TakeCount().status());
    } else if (lexer_.Peek().IsWord("inlined_at")) {
      lexer_.Take();
      for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(TakeCount().status());
    } else {
      return RefuseToken("a part of .loc");
    }
  }
  return absl::OkStatus();
}

const Scope::Name* Parser::Find(absl::string_view name, std::string* renamed) const {
  size_t digits = name.size();
  while (digits > 1 && IsDigit(name[digits - 1])) --digits;
  const absl::string_view prefix = name.substr(0, digits);
  const absl::string_view number = name.substr(digits);
  uint32_t index = 0;
  const bool numbered =
      !number.empty() && (number == "0" || number[0] != '0') && absl::SimpleAtoi(number, &index);
  for (uint32_t at = scope_;; at = scopes_[at].parent) {
    const Scope& scope = scopes_[at];
    if (!scope.names.empty()) {
      const auto found = scope.names.find(name);
      if (found != scope.names.end()) {
        *renamed = found->second.renamed;
        return &found->second;
      }
    }
    for (const auto& [range, of] : scope.ranges) {
      if (!numbered || range != prefix || index >= of.count) continue;
      *renamed = absl::StrCat(of.renamed, number);
      return &of;
    }
    if (at == 0) return nullptr;
  }
}

// A register, a number or a symbol.
absl::StatusOr<std::string> Parser::ReadValue(PtxStatement* statement) {
  if (TakeIf('-')) {
    const Token& token = lexer_.Peek();
    if (token.kind != Token::Kind::kWord || !IsDigit(token.text[0])) return RefuseToken("a number");
    return absl::StrCat("-", View(lexer_.Take().text));
  }
  const bool negated = TakeIf('!');
  const Token token = lexer_.Peek();
  if (token.kind != Token::Kind::kWord) return RefuseToken("an operand");
  const absl::string_view name = View(token.text);
  std::string renamed;
  if (IsDigit(name[0]) || name == "_") {
    lexer_.Take();
    return std::string(name);
  }
  if (const Scope::Name* const found = Find(name, &renamed)) {
    lexer_.Take();
    statement->of_call |= found->of_call;
    statement->reserved |= IsReservedName(renamed);
    if (negated) renamed.insert(0, 1, '!');
    return renamed;
  }
  if (IsPtxSpecialRegister(token.text)) {
    lexer_.Take();
    return std::string(name);
  }
  if (name[0] == '%' || name.find('.') != absl::string_view::npos) {
    return Refuse("O1", absl::StrCat("'", name, "' is not a register that operators may read"));
  }
  ASSIGN_OR_RETURN(const std::string symbol, TakeName());
  uses_.emplace(symbol, Here());
  return symbol;
}

// "[%rd1+4]", "[1056]", "[name+-8]".
absl::StatusOr<std::string> Parser::ReadAddress(PtxStatement* statement) {
  RETURN_IF_ERROR(Expect('['));
  ASSIGN_OR_RETURN(std::string address, ReadValue(statement));
  if (lexer_.Peek().Is('+') || lexer_.Peek().Is('-')) {
    bool negative = lexer_.Take().Is('-');
    if (TakeIf('-')) negative = !negative;
    const Token& token = lexer_.Peek();
    if (token.kind != Token::Kind::kWord || !IsDigit(token.text[0])) return RefuseToken("a number");
    absl::StrAppend(&address, negative ? "+-" : "+", View(lexer_.Take().text));
  }
  RETURN_IF_ERROR(Expect(']'));
  return absl::StrCat("[", address, "]");
}

absl::StatusOr<std::string> Parser::ReadOperand(PtxStatement* statement) {
  if (lexer_.Peek().Is('[')) return ReadAddress(statement);
  if (TakeIf('{')) {
    std::vector<std::string> values;
    do {
      ASSIGN_OR_RETURN(values.emplace_back(), ReadValue(statement));
    } while (TakeIf(','));
    RETURN_IF_ERROR(Expect('}'));
    return absl::StrCat("{", absl::StrJoin(values, ", "), "}");
  }
  ASSIGN_OR_RETURN(std::string value, ReadValue(statement));
  const bool offset = lexer_.Peek().Is('+');
  if (TakeIf('|') || TakeIf('+')) {
    ASSIGN_OR_RETURN(const std::string second, ReadValue(statement));
    absl::StrAppend(&value, offset ? "+" : "|", second);
  }
  return value;
}

// "(result), name, (parameter, parameter)": everything is in ".param".
absl::Status Parser::ReadCall(PtxStatement* statement) {
  const auto list = [&]() -> absl::Status {
    RETURN_IF_ERROR(Expect('('));
    std::vector<std::string> names;
    while (!TakeIf(')')) {
      if (!names.empty()) RETURN_IF_ERROR(Expect(','));
      ASSIGN_OR_RETURN(const std::string name, TakeName());
      const Scope::Name* const found = Find(name, &names.emplace_back());
      if (found == nullptr || found->kind != NameKind::kParameter) {
        return Refuse("P1", absl::StrCat("'", name, "' is not a parameter of a call"));
      }
    }
    statement->operands.push_back(absl::StrCat("(", absl::StrJoin(names, ", "), ")"));
    return absl::OkStatus();
  };
  if (lexer_.Peek().Is('(')) {
    RETURN_IF_ERROR(list());
    RETURN_IF_ERROR(Expect(','));
  }
  if (lexer_.Peek().kind == Token::Kind::kWord && lexer_.Peek().text[0] == '%') {
    return Refuse("C1", "a call through a pointer");
  }
  ASSIGN_OR_RETURN(statement->target, TakeName());
  statement->operands.push_back(statement->target);
  if (TakeIf(',')) RETURN_IF_ERROR(list());
  return absl::OkStatus();
}

absl::Status Parser::ReadInstruction() {
  const Use begin = Here();
  PtxStatement statement;
  statement.line = begin.line;
  statement.locations = begin.locations;
  if (TakeIf('@')) {
    const bool negated = TakeIf('!');
    const std::string name(lexer_.Peek().text);
    std::string renamed;
    const Scope::Name* const found = Find(name, &renamed);
    if (found == nullptr || found->kind != NameKind::kRegister) return RefuseToken("a predicate");
    lexer_.Take();
    statement.guard = (negated ? "!" : "") + renamed;
    statement.reserved |= IsReservedName(renamed);
  }
  if (lexer_.Peek().kind != Token::Kind::kWord) return RefuseToken("an operation");
  const std::string opcode(lexer_.Take().text);
  if (lexer_.Peek().Is(':') && statement.guard.empty()) {
    lexer_.Take();
    if (opcode.find_first_of(".:") != std::string::npos || IsDigit(opcode[0]) ||
        (!rewritten_ && IsReservedName(opcode))) {
      return RefuseUse(begin, "P2",
                       absl::StrCat("'", opcode, "' is not a label that units may have"));
    }
    statement.kind = PtxStatement::Kind::kLabel;
    statement.opcode = scope_ == 0 ? opcode : absl::StrCat("$S", scope_, "_", opcode);
    statement.reserved = IsReservedName(opcode);
    locals_.emplace(opcode, begin);
    if (!scopes_[scope_].labels.emplace(opcode, statement.opcode).second) {
      return RefuseUse(begin, "P1", absl::StrCat("the label '", opcode, "' occurs twice"));
    }
    function_->statements.push_back(std::move(statement));
    return absl::OkStatus();
  }
  std::string rule;
  std::string why;
  const auto known = opcodes_.find(opcode);
  const auto found = known != opcodes_.end() ? known->second : FindPtxOpcode(opcode, &rule, &why);
  if (!found) return RefuseUse(begin, rule, why);
  if (known == opcodes_.end()) opcodes_.emplace(opcode, found);
  statement.opcode = opcode;
  statement.opcode_class = found->opcode_class;
  if (statement.Is(PtxClass::kBarrier) && absl::StartsWith(opcode, "bar.warp")) {
    statement.opcode_class = PtxClass::kWarp;
  }
  if (statement.Is(PtxClass::kBranch)) {
    ASSIGN_OR_RETURN(statement.target, TakeName());
    statement.reserved |= IsReservedName(statement.target);
    branches_.emplace_back(function_->statements.size(), scope_);
  } else if (statement.Is(PtxClass::kCall)) {
    RETURN_IF_ERROR(ReadCall(&statement));
  } else if (!lexer_.Peek().Is(';')) {
    do {
      ASSIGN_OR_RETURN(statement.operands.emplace_back(), ReadOperand(&statement));
    } while (TakeIf(','));
  }
  RETURN_IF_ERROR(Expect(';'));
  function_->statements.push_back(std::move(statement));
  return absl::OkStatus();
}

// Branches find their labels, which may be behind them, also of outer scopes.
absl::Status Parser::EndFunction() {
  for (const auto& [index, begin] : branches_) {
    PtxStatement& branch = function_->statements[index];
    for (uint32_t scope = begin;; scope = scopes_[scope].parent) {
      const auto found = scopes_[scope].labels.find(branch.target);
      if (found != scopes_[scope].labels.end()) {
        branch.target = found->second;
        break;
      }
      if (scope == 0) {
        return RefuseUse({branch.line, branch.locations, function_->first_location}, "P1",
                         absl::StrCat("there is no label '", branch.target, "'"));
      }
    }
    branch.operands = {branch.target};
  }
  const bool empty = std::none_of(
      function_->statements.begin(), function_->statements.end(),
      [](const PtxStatement& s) { return s.kind == PtxStatement::Kind::kInstruction; });
  if (empty) return Refuse("R1", absl::StrCat("the function '", function_->name, "' is empty"));
  return absl::OkStatus();
}

}  // namespace

std::string PtxStatement::Text() const {
  if (kind == Kind::kLabel) return opcode + ":";
  if (kind == Kind::kPragma) return absl::StrCat(".pragma ", opcode, ";");
  return absl::StrCat(guard.empty() ? "" : "@", guard, guard.empty() ? "" : " ", opcode,
                      operands.empty() ? "" : " ", absl::StrJoin(operands, ", "), ";");
}

bool PtxStatement::Has(std::string_view modifier) const {
  const std::string_view text = opcode;
  for (size_t at = text.find(modifier); at != std::string_view::npos;
       at = text.find(modifier, at + 1)) {
    const size_t end = at + modifier.size();
    if (at > 0 && text[at - 1] == '.' && (end == text.size() || text[end] == '.')) return true;
  }
  return false;
}

std::string PtxUnit::Describe(const PtxFunction& function, const PtxStatement& statement) const {
  // What is inlined from the SDK has the author's line in front of it.
  const Location* found = nullptr;
  for (size_t at = std::min<size_t>(statement.locations, locations.size());
       at > function.first_location; --at) {
    const Location& location = locations[at - 1];
    const auto file = files.find(location.file);
    if (file == files.end() || location.line == 0) continue;
    if (found == nullptr) found = &location;
    if (absl::StrContains(file->second, "kernels/") ||
        absl::StrContains(file->second, "resident/")) {
      continue;
    }
    found = &location;
    break;
  }
  if (found == nullptr) return absl::StrCat("line ", statement.line, " of the PTX");
  return absl::StrCat(files.at(found->file), ":", found->line);
}

absl::StatusOr<PtxUnit> ParsePtx(std::string_view text, bool rewritten) {
  // NVRTC ends its text with a zero.
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  if (text.size() > kMaxPtxBytes) {
    return PtxRefused(
        "", "P3", absl::StrCat("its PTX has ", text.size(), " bytes; the limit is ", kMaxPtxBytes));
  }
  return Parser(text, rewritten).Run();
}

void AppendPtxDeclarations(const PtxFunction& function, std::string* text) {
  for (const PtxRegisters& registers : function.registers) {
    absl::StrAppend(text, ".reg ", registers.type, " ", registers.name);
    if (registers.count != 0) absl::StrAppend(text, "<", registers.count, ">");
    *text += ";\n";
  }
  for (const std::string& declaration : function.declarations) {
    absl::StrAppend(text, declaration, "\n");
  }
}

void AppendPtxZeros(const PtxFunction& function, std::string* text) {
  for (const PtxRegisters& registers : function.registers) {
    const std::string opcode = registers.type == ".pred"
                                   ? "mov.pred "
                                   : absl::StrCat("mov.b", 8 * FindBytes(registers.type), " ");
    if (registers.count == 0) absl::StrAppend(text, opcode, registers.name, ", 0;\n");
    for (uint32_t i = 0; i < registers.count; ++i) {
      absl::StrAppend(text, opcode, registers.name, i, ", 0;\n");
    }
  }
}

void VisitPtxRegisters(std::string_view operand, absl::FunctionRef<void(std::string_view)> visit) {
  for (size_t at = operand.find('%'); at != std::string_view::npos; at = operand.find('%', at)) {
    size_t end = at;
    while (end < operand.size() && IsNameCharacter(operand[end])) ++end;
    visit(operand.substr(at, end - at));
    at = end;
  }
}

void VisitWrittenPtxRegisters(const PtxStatement& statement,
                              absl::FunctionRef<void(std::string_view)> visit) {
  if (statement.kind != PtxStatement::Kind::kInstruction || statement.operands.empty()) return;
  const PtxClass of = statement.opcode_class;
  const bool writes = of == PtxClass::kPure || of == PtxClass::kLoad ||
                      (of == PtxClass::kBarrier && statement.Has("red")) ||
                      (of == PtxClass::kWarp && !absl::StartsWith(statement.opcode, "bar.") &&
                       !absl::StartsWith(statement.opcode, "stmatrix"));
  if (writes) VisitPtxRegisters(statement.operands.front(), visit);
}

std::string FindPtxMask(const PtxStatement& statement) {
  const bool whole =
      absl::StartsWith(statement.opcode, "mma") || absl::StrContains(statement.opcode, "matrix");
  if (whole || statement.operands.empty()) return "-1";
  const std::string& mask = absl::StartsWith(statement.opcode, "bar.") ? statement.operands.front()
                                                                       : statement.operands.back();
  const std::string lower = absl::AsciiStrToLower(mask);
  if (lower == "-1" || lower == "0xffffffff" || lower == "0xffffffffu" || lower == "4294967295") {
    return "-1";
  }
  return mask;
}

int64_t FindPtxCost(const PtxStatement& statement) {
  if (statement.kind != PtxStatement::Kind::kInstruction) return 0;
  if (statement.Is(PtxClass::kFence)) return kPtxFenceCost;
  if (!statement.Is(PtxClass::kLoad) && !statement.Is(PtxClass::kStore)) return 1;
  // Copies name two spaces, one of which is global memory.
  const bool copies = absl::StartsWith(statement.opcode, "cp.async.c");
  const bool near = statement.Has("shared") || statement.Has("shared::cta") ||
                    statement.Has("param") || statement.Has("local");
  return near && !copies ? 1 : kPtxMemoryCost;
}

int64_t FindPtxDistance(const PtxStatement& statement) {
  return statement.Is(PtxClass::kFence) ? kPtxFenceCost : 1;
}

}  // namespace resident
