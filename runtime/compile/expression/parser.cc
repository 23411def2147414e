// Parse: recursive descent over the grammar of expression.h.
//
// Names are used before `where` declares them. Therefore the parser first skips to `where` and
// reads the declarations, but not yet the values that `where` defines; then it parses these values
// in their order, and at last returns to the beginning.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/expression/expression.h"
#include "runtime/compile/expression/formula.h"
#include "runtime/compile/expression/lexer.h"

namespace resident::expression {
namespace {

constexpr char kWhere[] = "where";
constexpr char kOutput[] = "out";
constexpr std::array<const char*, 3> kDTypes = {"f32", "f16", "bf16"};

struct Constant {
  std::string_view name;
  float value;
};
constexpr Constant kConstants[] = {
    {"inf", std::numeric_limits<float>::infinity()},
    {"nan", std::numeric_limits<float>::quiet_NaN()},
    {"pi", 3.14159265358979f},
};

const Constant* FindConstant(std::string_view name) {
  for (const Constant& constant : kConstants) {
    if (constant.name == name) return &constant;
  }
  return nullptr;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<Formula> Run() {
    ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(text_));
    tokens_ = std::move(tokens);
    formula_.output_dtypes.assign(kDTypes.begin(), kDTypes.end());

    const auto where = std::find_if(tokens_.begin(), tokens_.end(), IsWhere);
    const size_t end = where - tokens_.begin();
    RETURN_IF_ERROR(Inputs(where));
    const size_t begin = at_;
    if (where != tokens_.end()) {
      at_ = end + 1;
      RETURN_IF_ERROR(Declarations());
      RETURN_IF_ERROR(AddListedInputs());
      RETURN_IF_ERROR(Definitions());
    } else {
      RETURN_IF_ERROR(AddListedInputs());
    }

    at_ = begin;
    ASSIGN_OR_RETURN(const auto result, Choice());
    formula_.result = result;
    if (at_ != std::min(end, tokens_.size() - 1)) {
      return Error(Now(), absl::StrCat(Shown(Now()), " is not expected here"),
                   "put an operator between two values, or end the expression");
    }
    if (IsBoolean(result)) {
      return Error(tokens_[begin], "the expression is a comparison, which is not a number",
                   "write (...) ? 1 : 0");
    }
    RETURN_IF_ERROR(CheckUse());
    return std::move(formula_);
  }

 private:
  using Index = absl::StatusOr<size_t>;

  struct Declared {
    Token name;
    enum class Kind : uint8_t { kInput, kScalar, kValue } kind = Kind::kInput;
    std::vector<std::string> dtypes;  // kInput.
    size_t scalar = 0;                // Index in the formula's scalars.
    size_t begin = 0;                 // kValue: its first token.
    std::optional<size_t> operation;  // kValue: its result, once it is parsed.
    bool used = false;
  };

  static bool IsWhere(const Token& token) {
    return token.kind == TokenKind::kName && token.text == kWhere;
  }

  const Token& Now() const { return tokens_[at_]; }
  // Returns the token for a message.
  static std::string Shown(const Token& token) {
    return token.kind == TokenKind::kEnd ? "the end of the expression"
                                         : absl::StrCat("'", std::string(token.text), "'");
  }
  bool Take(std::string_view symbol) {
    if (!Now().Is(symbol)) return false;
    ++at_;
    return true;
  }
  absl::Status Error(const Token& token, const std::string& what,
                     const std::string& fix = "") const {
    return errors::BadExpression(text_, token.position, token.text.size(), what, fix);
  }
  absl::Status Expected(const std::string& what) const {
    return Error(Now(), absl::StrCat("expected ", what, " and found ", Shown(Now())));
  }

  // --- Inputs ----------------------------------------------------------------------

  // Parses [NAME ("," NAME)*] "->", if there is a "->" before `where`.
  absl::Status Inputs(std::vector<Token>::const_iterator where) {
    if (std::none_of(tokens_.cbegin(), where, [](const Token& token) { return token.Is("->"); })) {
      return absl::OkStatus();
    }
    listed_.emplace();
    if (Take("->")) return absl::OkStatus();
    do {
      const Token name = Now();
      if (name.kind != TokenKind::kName) return Expected("the name of an input before '->'");
      ++at_;
      RETURN_IF_ERROR(CheckName(name));
      if (name.text == kOutput) return OutputIsNotRead(name);
      if (IsListed(name)) {
        return Error(name, absl::StrCat(Shown(name), " is an input twice"), "name each input once");
      }
      listed_->push_back(name);
    } while (Take(","));
    if (!Take("->")) return Expected("',' or '->' after the name of an input");
    return absl::OkStatus();
  }

  bool IsListed(const Token& name) const {
    return listed_.has_value() &&
           std::any_of(listed_->begin(), listed_->end(),
                       [&](const Token& input) { return input.text == name.text; });
  }

  // Makes inputs of the names before "->", in their order.
  absl::Status AddListedInputs() {
    for (const Declared& declared : declared_) {
      const bool input = declared.kind == Declared::Kind::kInput;
      if (!listed_.has_value() || input == IsListed(declared.name)) continue;
      return Error(declared.name,
                   absl::StrCat(Shown(declared.name),
                                input ? " is not among the inputs before '->'"
                                      : " is an input before '->', and declared as something else"),
                   input ? "add it there" : "choose another name, or remove it from the inputs");
    }
    for (const Token& name : listed_.value_or(std::vector<Token>())) {
      RETURN_IF_ERROR(CheckParameterCount(name));
      AddInput(name);
    }
    return absl::OkStatus();
  }

  void AddInput(const Token& name) {
    const auto declared = FindDeclared(name);
    formula_.inputs.push_back(
        {std::string(name.text), declared != declared_.end()
                                     ? declared->dtypes
                                     : std::vector<std::string>(kDTypes.begin(), kDTypes.end())});
  }

  // --- Declarations --------------------------------------------------------------

  absl::Status Declarations() {
    do {
      RETURN_IF_ERROR(Declaration());
    } while (Take(","));
    if (Now().kind != TokenKind::kEnd) return Expected("',' or the end");
    return absl::OkStatus();
  }

  absl::Status Declaration() {
    const Token name = Now();
    if (name.kind != TokenKind::kName) return Expected("a name to declare");
    ++at_;
    RETURN_IF_ERROR(CheckName(name));
    const bool again = std::any_of(declared_.begin(), declared_.end(), [&](const Declared& other) {
      return other.name.text == name.text;
    });
    if (again || (name.text == kOutput && output_declared_)) {
      return Error(name, absl::StrCat(Shown(name), " is declared twice"), "declare each name once");
    }
    const bool is_output = name.text == kOutput;
    if (!is_output && Take("=")) return SkipDefinition(name);
    if (!Take(":")) return Expected(absl::StrCat("':' after ", Shown(name)));
    const Token kind = Now();
    if (kind.kind == TokenKind::kName && kind.text == (is_output ? "out" : "in")) {
      ++at_;
      ASSIGN_OR_RETURN(auto dtypes, DTypes());
      if (is_output) {
        output_declared_ = true;
        formula_.output_dtypes = std::move(dtypes);
        return absl::OkStatus();
      }
      Declared input;
      input.name = name;
      input.dtypes = std::move(dtypes);
      declared_.push_back(std::move(input));
      return absl::OkStatus();
    }
    if (kind.kind == TokenKind::kName && kind.text == "scalar" && !is_output) {
      ++at_;
      return Scalar(name);
    }
    return Error(kind,
                 absl::StrCat("expected ", is_output ? "'out'" : "'in' or 'scalar'", " and found ",
                              Shown(kind)),
                 is_output ? "write out: out f16; 'out' names the output"
                           : absl::StrCat("write ", std::string(name.text), ": in f16|bf16, or ",
                                          std::string(name.text), ": scalar f32 = 1"));
  }

  // Notes where the value begins that a name stands for, and goes to its end.
  absl::Status SkipDefinition(const Token& name) {
    Declared value;
    value.name = name;
    value.kind = Declared::Kind::kValue;
    value.begin = at_;
    declared_.push_back(std::move(value));
    int open = 0;
    for (; Now().kind != TokenKind::kEnd && (open > 0 || !Now().Is(",")); ++at_) {
      open += Now().Is("(") ? 1 : Now().Is(")") ? -1 : 0;
    }
    return absl::OkStatus();
  }

  // Parses the values that `where` defines. Each may use those before it.
  absl::Status Definitions() {
    for (Declared& declared : declared_) {
      if (declared.kind != Declared::Kind::kValue) continue;
      at_ = declared.begin;
      ASSIGN_OR_RETURN(const auto value, Choice());
      if (Now().kind != TokenKind::kEnd && !Now().Is(",")) return Expected("',' or the end");
      declared.operation = value;
    }
    return absl::OkStatus();
  }

  // Parses [dtype ("|" dtype)*]; returns all types if none is named.
  absl::StatusOr<std::vector<std::string>> DTypes() {
    std::vector<std::string> dtypes;
    if (Now().kind != TokenKind::kName)
      return std::vector<std::string>(kDTypes.begin(), kDTypes.end());
    do {
      const Token dtype = Now();
      const std::string name(dtype.text);
      if (std::find(kDTypes.begin(), kDTypes.end(), name) == kDTypes.end()) {
        return Error(dtype, absl::StrCat(Shown(dtype), " is not a type of a tensor here"),
                     "name f32, f16 or bf16");
      }
      if (std::find(dtypes.begin(), dtypes.end(), name) != dtypes.end()) {
        return Error(dtype, absl::StrCat(Shown(dtype), " is named twice"), "name each type once");
      }
      ++at_;
      dtypes.push_back(name);
    } while (Take("|"));
    return dtypes;
  }

  absl::Status Scalar(const Token& name) {
    if (Now().kind == TokenKind::kName) {
      if (Now().text != "f32") {
        return Error(Now(), absl::StrCat(Shown(Now()), " is not the type of a scalar here"),
                     "write scalar f32");
      }
      ++at_;
    }
    ScalarParameter scalar;
    scalar.name = std::string(name.text);
    if (Take("=")) {
      const bool negative = Take("-");
      const Token value = Now();
      const Constant* const constant =
          value.kind == TokenKind::kName ? FindConstant(value.text) : nullptr;
      if (value.kind != TokenKind::kNumber && constant == nullptr) {
        return Expected("the scalar's default, a number,");
      }
      ++at_;
      const float number = constant != nullptr ? constant->value : value.number;
      scalar.default_value = negative ? -number : number;
    } else if (!formula_.scalars.empty() && formula_.scalars.back().default_value.has_value()) {
      return Error(name,
                   absl::StrCat("scalar ", Shown(name), " has no default and follows '",
                                formula_.scalars.back().name, "', which has one"),
                   "declare scalars with a default last");
    }
    RETURN_IF_ERROR(CheckParameterCount(name));
    Declared declared;
    declared.name = name;
    declared.kind = Declared::Kind::kScalar;
    declared.scalar = formula_.scalars.size();
    declared_.push_back(std::move(declared));
    formula_.scalars.push_back(std::move(scalar));
    return absl::OkStatus();
  }

  // Refuses `name` if there are too many parameters already.
  absl::Status CheckParameterCount(const Token& name) const {
    if (formula_.inputs.size() + 1 + formula_.scalars.size() < kMaxArguments) {
      return absl::OkStatus();
    }
    return Error(
        name,
        absl::StrCat("more than ", kMaxArguments, " parameters: inputs, the output and scalars"),
        "use fewer names, or split the expression into two operators");
  }

  // Refuses a name that a parameter may not have.
  absl::Status CheckName(const Token& name) const {
    if (FindFunction(name.text) != nullptr) {
      return Error(name, absl::StrCat(Shown(name), " is a function"),
                   absl::StrCat("call it, as ", std::string(name.text), "(",
                                std::string(FindFunction(name.text)->parameters),
                                "), or choose another name"));
    }
    if (FindConstant(name.text) != nullptr) {
      return Error(name, absl::StrCat(Shown(name), " is a constant"), "choose another name");
    }
    if (IsWhere(name)) return Error(name, "'where' occurs twice", "declare after one 'where'");
    return absl::OkStatus();
  }

  // --- The formula -----------------------------------------------------------------

  bool IsBoolean(size_t operation) const { return formula_.operations[operation].boolean; }

  Index Add(const Token& token, Operation operation) {
    if (formula_.operations.size() == kMaxOperations) {
      return Error(token, absl::StrCat("more than ", kMaxOperations, " operations"),
                   "install it as source (docs/operators.md)");
    }
    formula_.operations.push_back(std::move(operation));
    return formula_.operations.size() - 1;
  }

  absl::Status WantNumber(const Token& user, size_t operand) const {
    if (!IsBoolean(operand)) return absl::OkStatus();
    return Error(user, absl::StrCat(Shown(user), " takes numbers and got a comparison"),
                 "convert it to a number: (...) ? 1 : 0");
  }
  absl::Status WantBoolean(const Token& user, size_t operand) const {
    if (IsBoolean(operand)) return absl::OkStatus();
    return Error(user, absl::StrCat(Shown(user), " takes a comparison and got a number"),
                 "compare it: x != 0");
  }

  Index Binary(const Token& token, size_t left, size_t right, bool of_booleans, bool boolean) {
    for (const size_t operand : {left, right}) {
      RETURN_IF_ERROR(of_booleans ? WantBoolean(token, operand) : WantNumber(token, operand));
    }
    Operation operation;
    operation.kind = Operation::Kind::kOperator;
    operation.symbol = token.text;
    operation.boolean = boolean;
    operation.operands = {left, right};
    return Add(token, std::move(operation));
  }

  // Counts the levels of nesting.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) { ++parser_.depth_; }
    ~Level() { --parser_.depth_; }
    absl::Status Check() const {
      if (parser_.depth_ <= kMaxDepth) return absl::OkStatus();
      return parser_.Error(parser_.Now(),
                           absl::StrCat("more than ", kMaxDepth, " levels of nesting"),
                           "install it as source (docs/operators.md)");
    }

   private:
    Parser& parser_;
  };

  Index Choice() {
    const Level level(*this);
    RETURN_IF_ERROR(level.Check());
    const Index condition = Either();
    if (!condition.ok() || !Now().Is("?")) return condition;
    const Token token = Now();
    ++at_;
    RETURN_IF_ERROR(WantBoolean(token, *condition));
    const Index yes = Choice();
    if (!yes.ok()) return yes;
    if (!Take(":")) return Expected("':' of the choice");
    const Index no = Choice();
    if (!no.ok()) return no;
    return AddChoice(token, *condition, *yes, *no);
  }

  Index AddChoice(const Token& token, size_t condition, size_t yes, size_t no) {
    for (const size_t operand : {yes, no}) {
      RETURN_IF_ERROR(WantNumber(token, operand));
    }
    Operation operation;
    operation.kind = Operation::Kind::kChoice;
    operation.operands = {condition, yes, no};
    return Add(token, std::move(operation));
  }

  Index Either() {
    Index left = Both();
    while (left.ok() && Now().Is("||")) {
      const Token token = Now();
      ++at_;
      const Index right = Both();
      if (!right.ok()) return right;
      left = Binary(token, *left, *right, /*of_booleans=*/true, /*boolean=*/true);
    }
    return left;
  }

  Index Both() {
    Index left = Comparison();
    while (left.ok() && Now().Is("&&")) {
      const Token token = Now();
      ++at_;
      const Index right = Comparison();
      if (!right.ok()) return right;
      left = Binary(token, *left, *right, /*of_booleans=*/true, /*boolean=*/true);
    }
    return left;
  }

  bool AtComparison() const {
    for (const char* symbol : {"<", "<=", ">", ">=", "==", "!="}) {
      if (Now().Is(symbol)) return true;
    }
    return false;
  }

  Index Comparison() {
    const Index left = Sum();
    if (!left.ok() || !AtComparison()) return left;
    const Token token = Now();
    ++at_;
    const Index right = Sum();
    if (!right.ok()) return right;
    if (AtComparison()) {
      return Error(Now(), "comparisons do not follow one another", "write a < b && b < c");
    }
    return Binary(token, *left, *right, /*of_booleans=*/false, /*boolean=*/true);
  }

  Index Sum() {
    Index left = Product();
    while (left.ok() && (Now().Is("+") || Now().Is("-"))) {
      const Token token = Now();
      ++at_;
      const Index right = Product();
      if (!right.ok()) return right;
      left = Binary(token, *left, *right, /*of_booleans=*/false, /*boolean=*/false);
    }
    return left;
  }

  Index Product() {
    Index left = Unary();
    while (left.ok() && (Now().Is("*") || Now().Is("/"))) {
      const Token token = Now();
      ++at_;
      if (token.text == "*" && Now().Is("*")) {
        return Error(Now(), "'**' is not an operator", "write pow(x, y)");
      }
      const Index right = Unary();
      if (!right.ok()) return right;
      left = Binary(token, *left, *right, /*of_booleans=*/false, /*boolean=*/false);
    }
    return left;
  }

  Index Unary() {
    const Token token = Now();
    const bool inverts = token.Is("!");
    if (!inverts && !token.Is("-") && !token.Is("+")) return Primary();
    ++at_;
    const Level level(*this);
    RETURN_IF_ERROR(level.Check());
    const Index operand = Unary();
    if (!operand.ok()) return operand;
    RETURN_IF_ERROR(inverts ? WantBoolean(token, *operand) : WantNumber(token, *operand));
    if (token.Is("+")) return operand;
    Operation operation;
    operation.kind = Operation::Kind::kOperator;
    operation.symbol = token.text;
    operation.boolean = inverts;
    operation.operands = {*operand};
    return Add(token, std::move(operation));
  }

  Index Primary() {
    const Token token = Now();
    if (Take("(")) {
      const Index inner = Choice();
      if (!inner.ok()) return inner;
      if (!Take(")")) return Expected("')'");
      return inner;
    }
    if (token.kind == TokenKind::kNumber) {
      ++at_;
      return Number(token, token.number);
    }
    if (token.kind != TokenKind::kName || IsWhere(token)) {
      return Error(token, absl::StrCat("expected a value and found ", Shown(token)),
                   "put a number, a name or a function there");
    }
    ++at_;
    if (Now().Is("(")) return Call(token);
    if (const Constant* const constant = FindConstant(token.text); constant != nullptr) {
      return Number(token, constant->value);
    }
    return Name(token);
  }

  Index Number(const Token& token, float value) {
    Operation operation;
    operation.number = value;
    return Add(token, std::move(operation));
  }

  Index Name(const Token& token) {
    RETURN_IF_ERROR(CheckName(token));
    if (token.text == kOutput) return OutputIsNotRead(token);
    Operation operation;
    const auto declared = FindDeclared(token);
    if (declared != declared_.end()) declared->used = true;
    if (declared != declared_.end() && declared->kind == Declared::Kind::kValue) {
      if (declared->operation.has_value()) return *declared->operation;
      return Error(token, absl::StrCat(Shown(token), " is used before 'where' defines it"),
                   "define each value before the values that use it");
    }
    if (declared != declared_.end() && declared->kind == Declared::Kind::kScalar) {
      operation.kind = Operation::Kind::kScalar;
      operation.parameter = declared->scalar;
      return Add(token, std::move(operation));
    }
    operation.kind = Operation::Kind::kInput;
    auto& inputs = formula_.inputs;
    const auto known = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const Input& input) { return input.name == token.text; });
    operation.parameter = known - inputs.begin();
    if (known == inputs.end()) {
      if (listed_.has_value()) {
        return Error(token, absl::StrCat(Shown(token), " is not among the inputs before '->'"),
                     "add it there, or correct the name");
      }
      RETURN_IF_ERROR(CheckParameterCount(token));
      AddInput(token);
    }
    return Add(token, std::move(operation));
  }

  std::vector<Declared>::iterator FindDeclared(const Token& name) {
    return std::find_if(declared_.begin(), declared_.end(),
                        [&](const Declared& other) { return other.name.text == name.text; });
  }

  absl::Status OutputIsNotRead(const Token& name) const {
    return Error(name, "'out' is the output, which an expression does not read",
                 "choose another name for the input");
  }

  Index Call(const Token& name) {
    const Function* const function = FindFunction(name.text);
    if (function == nullptr) {
      return Error(name, absl::StrCat("there is no function ", Shown(name)),
                   InPlaceOfFunction(name.text));
    }
    ++at_;  // The parenthesis.
    Operation operation;
    operation.kind = Operation::Kind::kCall;
    operation.function = function;
    const std::string usage = absl::StrCat("write ", std::string(function->name), "(",
                                           std::string(function->parameters), ")");
    if (!Now().Is(")")) {
      do {
        const Token argument = Now();
        const Index value = Choice();
        if (!value.ok()) return value;
        const bool wants_boolean = function->conditional && operation.operands.empty();
        if (IsBoolean(*value) != wants_boolean) {
          return Error(argument,
                       absl::StrCat("argument ", operation.operands.size() + 1, " of ", Shown(name),
                                    " is a ", wants_boolean ? "comparison" : "number",
                                    " and got a ", wants_boolean ? "number" : "comparison"),
                       usage);
        }
        operation.operands.push_back(*value);
      } while (operation.operands.size() <= function->max_arguments && Take(","));
    }
    if (operation.operands.size() < function->min_arguments ||
        operation.operands.size() > function->max_arguments) {
      const std::string wanted =
          function->min_arguments == function->max_arguments
              ? absl::StrCat(function->max_arguments)
              : absl::StrCat(function->min_arguments, " to ", function->max_arguments);
      return Error(
          name,
          absl::StrCat(Shown(name), " takes ", wanted, " arguments and got ",
                       operation.operands.size() > function->max_arguments ? "more" : "fewer"),
          usage);
    }
    if (!Take(")")) return Expected("',' or ')'");
    return Add(name, std::move(operation));
  }

  absl::Status CheckUse() const {
    for (const Declared& declared : declared_) {
      // With a list of inputs, it is the interface: a parameter need not be used.
      if (declared.used || (listed_.has_value() && declared.kind != Declared::Kind::kValue))
        continue;
      return Error(declared.name, absl::StrCat(Shown(declared.name), " is declared and not used"),
                   "use it in the expression, or leave the declaration out");
    }
    return absl::OkStatus();
  }

  const std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  size_t depth_ = 0;
  bool output_declared_ = false;
  std::optional<std::vector<Token>> listed_;  // The inputs before "->", if there is one.
  std::vector<Declared> declared_;
  Formula formula_;
};

}  // namespace

absl::StatusOr<Formula> Parse(std::string_view text) { return Parser(text).Run(); }

}  // namespace resident::expression
