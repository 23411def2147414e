#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/instruction_table.h"

namespace resident::flux {
namespace {

// An instruction, or bytes that are not one.
struct Line {
  size_t address;
  size_t length;
  // nullptr: bytes.
  const Instruction* instruction;
  // Why it is written as bytes.
  std::string reason;
};

int64_t Signed16(const uint8_t* bytes) {
  return static_cast<int16_t>(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
}

// Returns why the assembler would not produce these bytes; empty if it would.
std::string FindUnwritable(const Instruction& instruction, const uint8_t* bytes) {
  size_t registers = 1;
  std::vector<size_t> zero;
  switch (instruction.operands) {
    case Operands::kNone:
    case Operands::kByte:
      registers = 0;
      break;
    case Operands::kTwoRegisters:
      registers = 2;
      zero = {3};
      break;
    case Operands::kThreeRegisters:
      registers = 3;
      break;
    case Operands::kBranch8:
      zero = {3};
      break;
    case Operands::kBranch16:
      registers = 0;
      zero = {1};
      break;
    default:
      break;
  }
  const std::string name(instruction.mnemonic);
  for (size_t i = 1; i <= registers; ++i) {
    if (bytes[i] > 15) return absl::StrCat(name, " with bad register ", bytes[i]);
  }
  for (const size_t i : zero) {
    if (bytes[i] != 0) return absl::StrCat(name, " with byte ", i, " not 0");
  }
  return "";
}

std::vector<Line> Sweep(const Bytecode& code) {
  std::vector<Line> lines;
  for (size_t at = 0; at < code.size(); at += lines.back().length) {
    const Instruction* instruction = FindInstruction(code[at]);
    const size_t length = InstructionLength(code[at]);
    if (at + length > code.size()) {
      lines.push_back({at, code.size() - at, nullptr, "truncated at the end"});
    } else if (instruction == nullptr) {
      lines.push_back({at, length, nullptr, "unknown opcode"});
    } else {
      std::string reason = FindUnwritable(*instruction, code.data() + at);
      lines.push_back({at, length, reason.empty() ? instruction : nullptr, std::move(reason)});
    }
  }
  return lines;
}

// Distance of a branch's target from its own address; nullopt for other instructions.
std::optional<int64_t> Distance(const Line& line, const Bytecode& code) {
  if (line.instruction == nullptr) return std::nullopt;
  const uint8_t* bytes = code.data() + line.address;
  switch (line.instruction->operands) {
    case Operands::kBranch8:
      return static_cast<int8_t>(bytes[2]);
    case Operands::kBranch16:
      return Signed16(bytes + 2);
    case Operands::kLoop:
      return -(bytes[2] + 256 * int64_t{bytes[3]});
    default:
      return std::nullopt;
  }
}

class Disassembler {
 public:
  Disassembler(const Bytecode& code, const DisassemblerOptions& options)
      : code_(code), options_(options), lines_(Sweep(code)) {
    std::set<int64_t> starts = {static_cast<int64_t>(code.size())};
    for (const Line& line : lines_) starts.insert(static_cast<int64_t>(line.address));
    for (const Line& line : lines_) {
      const std::optional<int64_t> distance = Distance(line, code);
      if (!distance.has_value()) continue;
      const int64_t target = static_cast<int64_t>(line.address) + *distance;
      if (starts.count(target) != 0) targets_.insert(target);
    }
  }

  std::string Run() {
    std::string text;
    for (const Line& line : lines_) {
      AddLabel(line.address, &text);
      std::string body = line.instruction != nullptr ? InstructionText(line) : Bytes(line);
      if (options_.addresses || line.instruction == nullptr) {
        body = absl::StrFormat("%-28s; %s", body, Comment(line));
      }
      absl::StrAppend(&text, "  ", body, "\n");
    }
    AddLabel(code_.size(), &text);
    return text;
  }

 private:
  static std::string LabelName(int64_t address) { return absl::StrFormat("L%04x", address); }

  void AddLabel(size_t address, std::string* text) {
    if (targets_.count(static_cast<int64_t>(address)) != 0) {
      absl::StrAppend(text, LabelName(static_cast<int64_t>(address)), ":\n");
    }
  }

  std::string Comment(const Line& line) {
    std::string comment;
    if (options_.addresses) {
      comment = absl::StrFormat("%04x ", line.address);
      if (line.instruction != nullptr) {
        for (size_t i = 0; i < line.length; ++i) {
          absl::StrAppendFormat(&comment, " %02x", code_[line.address + i]);
        }
      }
    }
    if (!line.reason.empty()) absl::StrAppend(&comment, comment.empty() ? "" : " ", line.reason);
    return comment;
  }

  std::string Bytes(const Line& line) {
    std::string text = ".byte";
    for (size_t i = 0; i < line.length; ++i) {
      absl::StrAppendFormat(&text, "%s 0x%02x", i == 0 ? "" : ",", code_[line.address + i]);
    }
    return text;
  }

  std::string Target(const Line& line) {
    const int64_t distance = *Distance(line, code_);
    const int64_t target = static_cast<int64_t>(line.address) + distance;
    if (targets_.count(target) != 0) return LabelName(target);
    if (line.instruction->operands == Operands::kLoop) return absl::StrCat(-distance);
    return absl::StrFormat("%+d", distance);
  }

  std::string InstructionText(const Line& line) {
    const uint8_t* b = code_.data() + line.address;
    const std::string head = absl::StrFormat("%-9s ", std::string(line.instruction->mnemonic));
    switch (line.instruction->operands) {
      case Operands::kNone:
        return std::string(line.instruction->mnemonic);
      case Operands::kByte:
        return absl::StrFormat("%s%d", head, b[1]);
      case Operands::kRegister:
        return absl::StrFormat("%sR%d", head, b[1]);
      case Operands::kRegisterImm8:
        return absl::StrFormat("%sR%d, %d", head, b[1], static_cast<int8_t>(b[2]));
      case Operands::kRegisterImm16:
        return absl::StrFormat("%sR%d, %d", head, b[1], Signed16(b + 2));
      case Operands::kTwoRegisters:
        return absl::StrFormat("%sR%d, R%d", head, b[1], b[2]);
      case Operands::kThreeRegisters:
        return absl::StrFormat("%sR%d, R%d, R%d", head, b[1], b[2], b[3]);
      case Operands::kBranch8:
      case Operands::kLoop:
        return absl::StrFormat("%sR%d, %s", head, b[1], Target(line));
      case Operands::kBranch16:
        return absl::StrCat(head, Target(line));
    }
    return "";
  }

  const Bytecode& code_;
  const DisassemblerOptions& options_;
  const std::vector<Line> lines_;
  // Addresses that have a label.
  std::set<int64_t> targets_;
};

}  // namespace

std::string Disassemble(const Bytecode& code, const DisassemblerOptions& options) {
  return Disassembler(code, options).Run();
}

}  // namespace resident::flux
