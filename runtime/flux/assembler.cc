#include "runtime/flux/assembler.h"

#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/instruction_table.h"

namespace resident::flux {
namespace {

struct TextPosition {
  size_t line = 1;
  size_t column = 1;
};

absl::Status ErrorAt(TextPosition position, const std::string& message) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", position.line, ", column ", position.column, ": ", message));
}

std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const unsigned char c : text.substr(0, 40)) {
    quoted += std::isprint(c) ? static_cast<char>(c) : '?';
  }
  return quoted + (text.size() > 40 ? "...'" : "'");
}

bool IsNameStart(unsigned char c) { return std::isalpha(c) || c == '_'; }
bool IsNameCharacter(unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; }

// R0, r15, R16: any R followed by digits only.
bool LooksLikeRegister(std::string_view text) {
  if (text.size() < 2 || (text[0] != 'R' && text[0] != 'r')) return false;
  for (const unsigned char c : text.substr(1)) {
    if (!std::isdigit(c)) return false;
  }
  return true;
}

// A word of a line: a name, a number, or one character of punctuation.
struct Token {
  std::string_view text;
  TextPosition position;
};

// Splits a line; comments and blanks are dropped.
std::vector<Token> Tokenize(std::string_view line, size_t line_number) {
  std::vector<Token> tokens;
  size_t i = 0;
  while (i < line.size() && line[i] != ';') {
    const unsigned char c = line[i];
    if (std::isspace(c)) {
      ++i;
      continue;
    }
    const size_t start = i++;
    if (c != ',' && c != ':') {
      while (i < line.size() && !std::isspace(static_cast<unsigned char>(line[i])) &&
             line[i] != ',' && line[i] != ':' && line[i] != ';') {
        ++i;
      }
    }
    tokens.push_back({line.substr(start, i - start), {line_number, start + 1}});
  }
  return tokens;
}

struct Number {
  int64_t value;
  bool hexadecimal;
};

// Decimal or hexadecimal, with an optional sign; at most 10 digits.
std::optional<Number> ParseNumber(std::string_view text) {
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const bool hexadecimal = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  if (hexadecimal) text.remove_prefix(2);
  if (text.empty() || text.size() > 10) return std::nullopt;
  int64_t value = 0;
  for (const unsigned char c : text) {
    if (!(hexadecimal ? std::isxdigit(c) : std::isdigit(c))) return std::nullopt;
    const int digit = std::isdigit(c) ? c - '0' : std::tolower(c) - 'a' + 10;
    value = value * (hexadecimal ? 16 : 10) + digit;
  }
  return Number{negative ? -value : value, hexadecimal};
}

class Assembler {
 public:
  absl::StatusOr<Bytecode> Run(std::string_view source) {
    size_t line_number = 1;
    while (true) {
      const size_t end = source.find('\n');
      RETURN_IF_ERROR(AddLine(Tokenize(source.substr(0, end), line_number)));
      if (end == std::string_view::npos) break;
      source.remove_prefix(end + 1);
      ++line_number;
    }
    for (const Reference& reference : references_) {
      RETURN_IF_ERROR(Resolve(reference));
    }
    return std::move(code_);
  }

 private:
  // A branch to a label, at the address of its instruction.
  struct Reference {
    Token label;
    size_t address;
    Operands operands;
  };

  absl::Status AddLine(const std::vector<Token>& tokens) {
    size_t i = 0;
    while (i + 1 < tokens.size() && tokens[i + 1].text == ":") {
      RETURN_IF_ERROR(DefineLabel(tokens[i]));
      i += 2;
    }
    if (i == tokens.size()) return absl::OkStatus();
    const Token& head = tokens[i];
    ASSIGN_OR_RETURN(const std::vector<Token> operands, SplitOperands(tokens, i + 1));
    if (head.text == ".byte") return AddBytes(head, operands);
    const Instruction* instruction = FindInstruction(head.text);
    if (instruction == nullptr && BeginsOtherComment(head)) return OtherComment(head);
    if (instruction == nullptr) {
      return ErrorAt(head.position, absl::StrCat("unknown instruction ", Quoted(head.text),
                                                 ". Fix: see the table of mnemonics in "
                                                 "docs/flux.md, or write .byte"));
    }
    return AddInstruction(head, *instruction, operands);
  }

  absl::Status DefineLabel(const Token& token) {
    const std::string_view name = token.text;
    bool valid = IsNameStart(static_cast<unsigned char>(name[0])) && !LooksLikeRegister(name);
    for (const unsigned char c : name) valid = valid && IsNameCharacter(c);
    if (!valid) {
      return ErrorAt(token.position, absl::StrCat(Quoted(name),
                                                  " is not a valid label. Fix: use a letter or _, "
                                                  "then letters, digits, _ or '.', and no name "
                                                  "of a register"));
    }
    const auto [it, added] =
        labels_.emplace(std::string(name), Label{code_.size(), token.position});
    if (!added) {
      return ErrorAt(token.position,
                     absl::StrCat("label ", Quoted(name), " is already defined in line ",
                                  it->second.position.line, ". Fix: rename one of them"));
    }
    return absl::OkStatus();
  }

  // Whether a comment of another assembler or language begins here.
  static bool BeginsOtherComment(const Token& token) {
    return token.text[0] == '#' || token.text[0] == '/';
  }

  static absl::Status OtherComment(const Token& token) {
    return ErrorAt(token.position, absl::StrCat("unexpected ", Quoted(token.text),
                                                ". Fix: comments begin with ';'"));
  }

  // Returns the operands from token i. Every second token must be a comma.
  absl::StatusOr<std::vector<Token>> SplitOperands(const std::vector<Token>& tokens, size_t i) {
    std::vector<Token> operands;
    for (bool comma = false; i < tokens.size(); ++i, comma = !comma) {
      const Token& token = tokens[i];
      if (BeginsOtherComment(token)) return OtherComment(token);
      if (comma != (token.text == ",") || token.text == ":") {
        return ErrorAt(token.position, absl::StrCat(comma ? "expected ',' before " : "unexpected ",
                                                    Quoted(token.text),
                                                    ". Fix: separate operands by single commas"));
      }
      if (!comma) operands.push_back(token);
      if (comma && i + 1 == tokens.size()) {
        return ErrorAt(token.position,
                       "an operand is missing after ','. Fix: add it or drop the comma");
      }
    }
    return operands;
  }

  absl::Status AddBytes(const Token& head, const std::vector<Token>& operands) {
    if (operands.empty()) {
      return ErrorAt(head.position, ".byte has no value. Fix: write .byte 0x00, for example");
    }
    for (const Token& operand : operands) {
      ASSIGN_OR_RETURN(const int64_t value, ReadNumber(operand, -128, 255, 255));
      code_.push_back(static_cast<uint8_t>(value));
    }
    return absl::OkStatus();
  }

  absl::Status AddInstruction(const Token& head, const Instruction& instruction,
                              const std::vector<Token>& operands) {
    const size_t expected = OperandCount(instruction.operands);
    if (operands.size() != expected) {
      return ErrorAt(head.position,
                     absl::StrCat(std::string(instruction.mnemonic), " has ", operands.size(),
                                  " operands. Fix: give it ", expected, ": ",
                                  std::string(OperandSyntax(instruction.operands))));
    }
    const size_t address = code_.size();
    code_.push_back(instruction.opcode);
    for (size_t i = 1; i < InstructionLength(instruction.opcode); ++i) code_.push_back(0);
    uint8_t* bytes = code_.data() + address;

    switch (instruction.operands) {
      case Operands::kNone:
        return absl::OkStatus();
      case Operands::kByte:
        return SetNumber(operands[0], 0, 255, 255, 1, bytes + 1);
      case Operands::kRegister:
        return SetRegister(operands[0], bytes + 1);
      case Operands::kRegisterImm8: {
        const absl::Status status = SetRegister(operands[0], bytes + 1);
        return status.ok() ? SetNumber(operands[1], -128, 127, 255, 1, bytes + 2) : status;
      }
      case Operands::kRegisterImm16: {
        const absl::Status status = SetRegister(operands[0], bytes + 1);
        return status.ok() ? SetNumber(operands[1], -32768, 32767, 65535, 2, bytes + 2) : status;
      }
      case Operands::kTwoRegisters:
      case Operands::kThreeRegisters:
        for (size_t i = 0; i < operands.size(); ++i) {
          RETURN_IF_ERROR(SetRegister(operands[i], bytes + 1 + i));
        }
        return absl::OkStatus();
      case Operands::kBranch8: {
        const absl::Status status = SetRegister(operands[0], bytes + 1);
        return status.ok() ? SetTarget(operands[1], address, instruction.operands) : status;
      }
      case Operands::kBranch16:
        return SetTarget(operands[0], address, instruction.operands);
      case Operands::kLoop: {
        const absl::Status status = SetRegister(operands[0], bytes + 1);
        return status.ok() ? SetTarget(operands[1], address, instruction.operands) : status;
      }
    }
    return absl::OkStatus();
  }

  static size_t OperandCount(Operands operands) {
    switch (operands) {
      case Operands::kNone:
        return 0;
      case Operands::kByte:
      case Operands::kRegister:
      case Operands::kBranch16:
        return 1;
      case Operands::kThreeRegisters:
        return 3;
      default:
        return 2;
    }
  }
  static std::string_view OperandSyntax(Operands operands) {
    switch (operands) {
      case Operands::kNone:
        return "none";
      case Operands::kByte:
        return "a number";
      case Operands::kRegister:
        return "a register";
      case Operands::kBranch16:
        return "a target";
      case Operands::kThreeRegisters:
        return "three registers";
      case Operands::kTwoRegisters:
        return "two registers";
      case Operands::kRegisterImm8:
      case Operands::kRegisterImm16:
        return "a register, a number";
      case Operands::kBranch8:
      case Operands::kLoop:
        return "a register, a target";
    }
    return "";
  }

  absl::Status SetRegister(const Token& token, uint8_t* byte) {
    if (!LooksLikeRegister(token.text)) {
      return ErrorAt(token.position, absl::StrCat("expected a register, not ", Quoted(token.text),
                                                  ". Fix: use R0 to R15"));
    }
    const std::optional<Number> number = ParseNumber(token.text.substr(1));
    if (!number.has_value() || number->value > 15) {
      return ErrorAt(token.position, absl::StrCat("register ", Quoted(token.text),
                                                  " does not exist. Fix: use R0 to R15"));
    }
    *byte = static_cast<uint8_t>(number->value);
    return absl::OkStatus();
  }

  // Returns a number from low to high, or a hexadecimal one up to `pattern`.
  absl::StatusOr<int64_t> ReadNumber(const Token& token, int64_t low, int64_t high,
                                     int64_t pattern) {
    const std::optional<Number> number = ParseNumber(token.text);
    if (!number.has_value()) {
      return ErrorAt(token.position, absl::StrCat("expected a number, not ", Quoted(token.text),
                                                  ". Fix: write it in decimal or as 0x.."));
    }
    if (number->value < low || number->value > (number->hexadecimal ? pattern : high)) {
      return ErrorAt(token.position, absl::StrCat(Quoted(token.text), " is out of range. Fix: use ",
                                                  low, " to ", high));
    }
    return number->value;
  }

  absl::Status SetNumber(const Token& token, int64_t low, int64_t high, int64_t pattern, int width,
                         uint8_t* bytes) {
    ASSIGN_OR_RETURN(const int64_t value, ReadNumber(token, low, high, pattern));
    for (int i = 0; i < width; ++i) bytes[i] = static_cast<uint8_t>(value >> 8 * i);
    return absl::OkStatus();
  }

  // The target of the branch at `address`: a label, resolved later, or a distance.
  absl::Status SetTarget(const Token& token, size_t address, Operands operands) {
    if (IsNameStart(static_cast<unsigned char>(token.text[0]))) {
      references_.push_back({token, address, operands});
      return absl::OkStatus();
    }
    uint8_t* bytes = code_.data() + address + 2;
    switch (operands) {
      case Operands::kBranch8:
        return SetNumber(token, -128, 127, 255, 1, bytes);
      case Operands::kLoop:
        return SetNumber(token, 0, 65535, 65535, 2, bytes);
      default:
        return SetNumber(token, -32768, 32767, 65535, 2, bytes);
    }
  }

  // How to branch farther than an instruction can.
  static std::string FartherBranch(Operands operands) {
    if (operands == Operands::kBranch8) return "branch to a JMP within this distance";
    if (operands == Operands::kLoop) {
      return "put the label at or before LOOP, or let it branch to a JMP";
    }
    return "jump in two steps, to another JMP within this distance";
  }

  absl::Status Resolve(const Reference& reference) {
    const auto it = labels_.find(std::string(reference.label.text));
    if (it == labels_.end()) {
      return ErrorAt(reference.label.position,
                     absl::StrCat("label ", Quoted(reference.label.text),
                                  " is not defined. Fix: define it, or write a distance"));
    }
    int64_t distance =
        static_cast<int64_t>(it->second.address) - static_cast<int64_t>(reference.address);
    int64_t low = -32768;
    int64_t high = 32767;
    if (reference.operands == Operands::kBranch8) {
      low = -128;
      high = 127;
    } else if (reference.operands == Operands::kLoop) {
      low = -65535;
      high = 0;
    }
    if (distance < low || distance > high) {
      return ErrorAt(reference.label.position,
                     absl::StrCat("label ", Quoted(reference.label.text), " is ", distance,
                                  " bytes away. Fix: a target of this instruction is ", low, " to ",
                                  high, " bytes away; ", FartherBranch(reference.operands)));
    }
    if (reference.operands == Operands::kLoop) distance = -distance;
    uint8_t* bytes = code_.data() + reference.address + 2;
    bytes[0] = static_cast<uint8_t>(distance);
    if (reference.operands != Operands::kBranch8) bytes[1] = static_cast<uint8_t>(distance >> 8);
    return absl::OkStatus();
  }

  struct Label {
    size_t address;
    TextPosition position;
  };

  Bytecode code_;
  std::map<std::string, Label> labels_;
  std::vector<Reference> references_;
};

}  // namespace

absl::StatusOr<Bytecode> Assemble(std::string_view source) { return Assembler().Run(source); }

}  // namespace resident::flux
