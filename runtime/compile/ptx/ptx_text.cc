#include "runtime/compile/ptx/ptx_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/compile/ptx/ptx_lexer.h"

namespace resident {

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

uint32_t FindPtxTypeBytes(std::string_view type) {
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
    const std::string opcode =
        registers.type == ".pred"
            ? "mov.pred "
            : absl::StrCat("mov.b", 8 * FindPtxTypeBytes(registers.type), " ");
    if (registers.count == 0) absl::StrAppend(text, opcode, registers.name, ", 0;\n");
    for (uint32_t i = 0; i < registers.count; ++i) {
      absl::StrAppend(text, opcode, registers.name, i, ", 0;\n");
    }
  }
}

void VisitPtxRegisters(std::string_view operand, absl::FunctionRef<void(std::string_view)> visit) {
  for (size_t at = operand.find('%'); at != std::string_view::npos; at = operand.find('%', at)) {
    size_t end = at;
    while (end < operand.size() && IsPtxNameCharacter(operand[end])) ++end;
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
