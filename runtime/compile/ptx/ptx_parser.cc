#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/ptx/ptx_lexer.h"
#include "runtime/compile/ptx/ptx_scopes.h"
#include "runtime/compile/ptx/ptx_text.h"

namespace resident {
namespace {

constexpr bool IsDigit(char c) { return c >= '0' && c <= '9'; }

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool IsReservedName(std::string_view name) {
  return absl::StartsWith(View(name), kPtxReservedRegister) ||
         absl::StartsWith(View(name), kPtxReservedLabel);
}

class Parser {
 public:
  Parser(std::string_view text, bool rewritten) : lexer_(text), rewritten_(rewritten) {}

  absl::StatusOr<PtxUnit> Run() {
    while (lexer_.Peek().kind != PtxToken::Kind::kEnd) RETURN_IF_ERROR(ReadItem());
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
    while (lexer_.Peek().kind != PtxToken::Kind::kEnd) {
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
    const PtxToken& token = lexer_.Peek();
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
    const PtxToken& token = lexer_.Peek();
    if (token.kind != PtxToken::Kind::kWord || IsDigit(token.text[0]) ||
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
    if (lexer_.Peek().kind != PtxToken::Kind::kWord ||
        !absl::SimpleAtoi(View(lexer_.Peek().text), &count)) {
      return RefuseToken("a number");
    }
    lexer_.Take();
    return count;
  }
  // ".b32" and the like.
  absl::StatusOr<std::string> TakeType() {
    if (!lexer_.Peek().IsDirective() || FindPtxTypeBytes(lexer_.Peek().text) == 0) {
      return RefuseToken("a type");
    }
    return std::string(lexer_.Take().text);
  }

  absl::Status ReadFile() {
    ASSIGN_OR_RETURN(const uint32_t number, TakeCount());
    if (lexer_.Peek().kind != PtxToken::Kind::kString) return RefuseToken("a file's name");
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
  absl::StatusOr<std::string> TakeVariable(PtxScopes::Kind kind, bool of_call);
  absl::Status ReadParameterOfCall();
  absl::Status ReadLocal();
  absl::Status ReadLocation();
  absl::Status ReadInstruction();
  absl::Status ReadCall(PtxStatement* statement);
  absl::StatusOr<std::string> ReadOperand(PtxStatement* statement);
  absl::StatusOr<std::string> ReadAddress(PtxStatement* statement);
  absl::StatusOr<std::string> ReadValue(PtxStatement* statement);
  absl::Status EndFunction();

  // As PtxScopes::Declare.
  std::string Declare(const std::string& name, PtxScopes::Kind kind, uint32_t count, bool of_call);
  const PtxScopes::Name* Find(absl::string_view name, std::string* renamed) const {
    return scopes_.Find(name, renamed);
  }

  PtxLexer lexer_;
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
  PtxScopes scopes_;
  // Branches: the statement and its scope.
  std::vector<std::pair<size_t, uint32_t>> branches_;
};

absl::Status Parser::ReadItem() {
  std::string text;
  bool visible = false;
  bool external = false;
  while (lexer_.Peek().IsDirective()) {
    const PtxToken token = lexer_.Peek();
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
      if (lexer_.Peek().kind != PtxToken::Kind::kWord) return RefuseToken("a word");
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
      while (!lexer_.Peek().Is('}') && lexer_.Peek().kind != PtxToken::Kind::kEnd) lexer_.Take();
      return Expect('}');
    }
    break;
  }
  const PtxToken& token = lexer_.Peek();
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
      const PtxToken& token = lexer_.Peek();
      const bool number = token.kind == PtxToken::Kind::kWord && IsDigit(token.text[0]);
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
    scopes_.DeclareOuter(name, PtxScopes::Kind::kParameter);
    locals_.emplace(name, Here());
    uint32_t bytes = FindPtxTypeBytes(type);
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
  scopes_.Reset();
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
    const PtxToken& token = lexer_.Peek();
    if (token.Is('{')) {
      if (rewritten_ || !scopes_.Begin()) return Refuse("P3", "too many scopes");
      lexer_.Take();
    } else if (token.Is('}')) {
      lexer_.Take();
      if (!scopes_.End()) return EndFunction();
    } else if (token.IsDirective()) {
      RETURN_IF_ERROR(ReadDirective());
    } else {
      RETURN_IF_ERROR(ReadInstruction());
    }
  }
}

absl::Status Parser::ReadDirective() {
  const PtxToken directive = lexer_.Peek();
  const auto is = [&](std::string_view name) { return directive.text == name; };
  if (is(".reg")) return ReadRegisters();
  if (is(".param")) return ReadParameterOfCall();
  if (is(".local")) return ReadLocal();
  if (is(".loc") && !rewritten_) return ReadLocation();
  if (is(".pragma")) {
    lexer_.Take();
    const PtxToken text = lexer_.Peek();
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

std::string Parser::Declare(const std::string& name, PtxScopes::Kind kind, uint32_t count,
                            bool of_call) {
  std::string renamed = scopes_.Declare(name, kind, count, of_call);
  if (renamed[0] != '%') locals_.emplace(name, Here());
  return renamed;
}

absl::Status Parser::ReadRegisters() {
  lexer_.Take();
  ASSIGN_OR_RETURN(const std::string type, TakeType());
  if (type != ".pred" && FindPtxTypeBytes(type) < 2) {
    return Refuse("P1", absl::StrCat("registers of type '", type, "'"));
  }
  do {
    ASSIGN_OR_RETURN(const std::string name, TakeName());
    if (IsReservedName(name) || (!rewritten_ && absl::StartsWith(name, "q_"))) {
      if (!rewritten_) return Refuse("P2", absl::StrCat("'", name, "' is a reserved name"));
      scopes_.DeclareOuter(name, PtxScopes::Kind::kRegister);
      continue;
    }
    uint32_t count = 0;
    if (TakeIf('<')) {
      ASSIGN_OR_RETURN(count, TakeCount());
      RETURN_IF_ERROR(Expect('>'));
      if (count == 0) return Refuse("P1", "a declaration of no registers");
      if (scopes_.ranges() == kMaxPtxRanges) {
        return Refuse("P3", "too many declarations of registers");
      }
    }
    registers_ += std::min(std::max(count, 1u), kMaxPtxRegisters + 1);
    if (registers_ > kMaxPtxRegisters) return Refuse("P3", "too many registers");
    const std::string renamed = Declare(name, PtxScopes::Kind::kRegister, count, false);
    function_->registers.push_back({type, renamed, count});
  } while (TakeIf(','));
  return Expect(';');
}

absl::StatusOr<std::string> Parser::TakeVariable(PtxScopes::Kind kind, bool of_call) {
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
  ASSIGN_OR_RETURN(std::string text, TakeVariable(PtxScopes::Kind::kParameter, true));
  if (TakeIf('[')) {
    ASSIGN_OR_RETURN(const uint32_t count, TakeCount());
    RETURN_IF_ERROR(Expect(']'));
    absl::StrAppend(&text, "[", count, "]");
  }
  function_->declarations.push_back(text + ";");
  return Expect(';');
}

absl::Status Parser::ReadLocal() {
  ASSIGN_OR_RETURN(std::string text, TakeVariable(PtxScopes::Kind::kLocal, false));
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

// A register, a number or a symbol.
absl::StatusOr<std::string> Parser::ReadValue(PtxStatement* statement) {
  if (TakeIf('-')) {
    const PtxToken& token = lexer_.Peek();
    if (token.kind != PtxToken::Kind::kWord || !IsDigit(token.text[0]))
      return RefuseToken("a number");
    return absl::StrCat("-", View(lexer_.Take().text));
  }
  const bool negated = TakeIf('!');
  const PtxToken token = lexer_.Peek();
  if (token.kind != PtxToken::Kind::kWord) return RefuseToken("an operand");
  const absl::string_view name = View(token.text);
  std::string renamed;
  if (IsDigit(name[0]) || name == "_") {
    lexer_.Take();
    return std::string(name);
  }
  if (const PtxScopes::Name* const found = Find(name, &renamed)) {
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
    const PtxToken& token = lexer_.Peek();
    if (token.kind != PtxToken::Kind::kWord || !IsDigit(token.text[0]))
      return RefuseToken("a number");
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
      const PtxScopes::Name* const found = Find(name, &names.emplace_back());
      if (found == nullptr || found->kind != PtxScopes::Kind::kParameter) {
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
  if (lexer_.Peek().kind == PtxToken::Kind::kWord && lexer_.Peek().text[0] == '%') {
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
    const PtxScopes::Name* const found = Find(name, &renamed);
    if (found == nullptr || found->kind != PtxScopes::Kind::kRegister)
      return RefuseToken("a predicate");
    lexer_.Take();
    statement.guard = (negated ? "!" : "") + renamed;
    statement.reserved |= IsReservedName(renamed);
  }
  if (lexer_.Peek().kind != PtxToken::Kind::kWord) return RefuseToken("an operation");
  const std::string opcode(lexer_.Take().text);
  if (lexer_.Peek().Is(':') && statement.guard.empty()) {
    lexer_.Take();
    if (opcode.find_first_of(".:") != std::string::npos || IsDigit(opcode[0]) ||
        (!rewritten_ && IsReservedName(opcode))) {
      return RefuseUse(begin, "P2",
                       absl::StrCat("'", opcode, "' is not a label that units may have"));
    }
    statement.kind = PtxStatement::Kind::kLabel;
    statement.opcode = scopes_.DeclareLabel(opcode);
    statement.reserved = IsReservedName(opcode);
    locals_.emplace(opcode, begin);
    if (statement.opcode.empty()) {
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
    branches_.emplace_back(function_->statements.size(), scopes_.current());
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
  for (const auto& [index, scope] : branches_) {
    PtxStatement& branch = function_->statements[index];
    const std::string* const label = scopes_.FindLabel(scope, branch.target);
    if (label == nullptr) {
      return RefuseUse({branch.line, branch.locations, function_->first_location}, "P1",
                       absl::StrCat("there is no label '", branch.target, "'"));
    }
    branch.target = *label;
    branch.operands = {branch.target};
  }
  const bool empty = std::none_of(
      function_->statements.begin(), function_->statements.end(),
      [](const PtxStatement& s) { return s.kind == PtxStatement::Kind::kInstruction; });
  if (empty) return Refuse("R1", absl::StrCat("the function '", function_->name, "' is empty"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PtxUnit> ParsePtx(std::string_view text, bool rewritten) {
  // NVRTC ends its text with a zero.
  while (!text.empty() && text.back() == '\0') text.remove_suffix(1);
  if (text.size() > kMaxPtxBytes) {
    return PtxRefused(
        "", "P3", absl::StrCat("its PTX has ", text.size(), " bytes; the limit is ", kMaxPtxBytes));
  }
  return Parser(text, rewritten).Run();
}

}  // namespace resident
