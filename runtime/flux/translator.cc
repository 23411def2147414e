#include "runtime/flux/translator.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/flux/interpreter.h"

namespace resident::flux {
namespace {

using Flow = FlowGraph::Flow;
using Node = FlowGraph::Node;

std::string R(uint32_t i) { return absl::StrCat("r", i); }
std::string Slot(size_t i) { return absl::StrCat("s", i); }
std::string Block(int node) { return absl::StrCat("block_", node); }
std::string Fail(absl::string_view error) {
  return absl::StrCat("{ error = ", error, "; goto done; }");
}

uint32_t D(const Node& node) { return node.word >> 8 & 15; }
uint32_t A(const Node& node) { return node.word >> 16 & 15; }
uint32_t B(const Node& node) { return node.word >> 24 & 15; }
std::string Imm8(const Node& node) {
  return absl::StrCat("static_cast<u32>(", static_cast<int>(static_cast<int8_t>(node.word >> 16)),
                      ")");
}

// The statement of an instruction that only changes registers and cannot fail; empty: a no-op.
std::string Compute(const Node& node) {
  if (node.no_op) return "";
  const std::string d = R(D(node));
  const std::string a = R(A(node));
  const std::string b = R(B(node));
  const auto is_signed = [](const std::string& value) {
    return absl::StrCat("static_cast<i32>(", value, ")");
  };
  const auto set = [&](absl::string_view symbol) {
    return absl::StrCat(d, " = ", a, " ", symbol, " ", b, ";");
  };
  const auto compare = [&](absl::string_view symbol) {
    return absl::StrCat(d, " = ", is_signed(a), " ", symbol, " ", is_signed(b), ";");
  };
  const auto choose = [&](absl::string_view symbol) {
    return absl::StrCat(d, " = ", is_signed(a), " ", symbol, " ", is_signed(b), " ? ", a, " : ", b,
                        ";");
  };
  switch (node.word & 0xff) {
    case kInc:
      return absl::StrCat(d, " += 1;");
    case kDec:
      return absl::StrCat(d, " -= 1;");
    case kNot:
      return absl::StrCat(d, " = ~", d, ";");
    case kNeg:
      return absl::StrCat(d, " = 0 - ", d, ";");
    case kMovi:
      return absl::StrCat(d, " = ", Imm8(node), ";");
    case kAddi:
      return absl::StrCat(d, " += ", Imm8(node), ";");
    case kSubi:
      return absl::StrCat(d, " -= ", Imm8(node), ";");
    case kMovi16:
      return absl::StrCat(d, " = static_cast<u32>(", static_cast<int32_t>(node.word) >> 16, ");");
    case kMov:
      return absl::StrCat(d, " = ", a, ";");
    case kAdd:
      return set("+");
    case kSub:
      return set("-");
    case kMul:
      return set("*");
    case kAnd:
      return set("&");
    case kOr:
      return set("|");
    case kXor:
      return set("^");
    case kShl:
      return absl::StrCat(d, " = ", a, " << (", b, " & 31);");
    case kShr:
      return absl::StrCat(d, " = static_cast<u32>(", is_signed(a), " >> (", b, " & 31));");
    case kMin:
      return choose("<");
    case kMax:
      return choose(">");
    case kCmpEq:
      return set("==");
    case kCmpNe:
      return set("!=");
    case kCmpLt:
      return compare("<");
    case kCmpGt:
      return compare(">");
    default:
      // Does not compile, so that an instruction without a translation is never skipped.
      return absl::StrCat("no_translation_of_opcode_", node.word & 0xff, ";");
  }
}

// The condition of a JZ, JNZ, JLT, JGT or LOOP that has decremented.
std::string Condition(const Node& node) {
  const std::string d = absl::StrCat("static_cast<i32>(", R(D(node)), ")");
  switch (node.word & 0xff) {
    case kJz:
      return absl::StrCat(d, " == 0");
    case kJnz:
      return absl::StrCat(d, " != 0");
    case kJlt:
      return absl::StrCat(d, " < 0");
    default:
      return absl::StrCat(d, " > 0");
  }
}

// Writes the statements of one program.
class Writer {
 public:
  Writer(const FlowGraph& graph, uint32_t max_bytes) : graph_(graph), max_bytes_(max_bytes) {}

  // False: the text is larger than the limit.
  bool Write() {
    for (size_t i = 0; i < graph_.nodes().size() && !full(); ++i) {
      if (graph_.nodes()[i].block) WriteBlock(static_cast<int>(i));
    }
    if (dispatches_) WriteDispatch();
    return !full();
  }

  uint32_t blocks() const { return blocks_; }
  const std::set<uint32_t>& registers() const { return registers_; }
  size_t slots() const { return slots_; }
  // Of the blocks, and of what rarely runs.
  const std::string& fast() const { return fast_; }
  const std::string& slow() const { return slow_; }

 private:
  bool known() const { return graph_.form() == FlowGraph::Form::kKnownStack; }
  bool full() const { return fast_.size() + slow_.size() > max_bytes_; }
  const Node& node(int index) const { return graph_.nodes()[index]; }

  static void Line(std::string& to, absl::string_view text) {
    if (!text.empty()) absl::StrAppend(&to, "    ", text, "\n");
  }
  void Jump(int to) { Line(fast_, absl::StrCat("goto ", Block(to), ";")); }
  // Of a taken branch. One out of the code is an error at once, on the last cycle too.
  std::string Taken(const Node& from) const {
    return from.target == FlowGraph::kNone ? Fail("kErrorPcOutOfBounds")
                                           : absl::StrCat("goto ", Block(from.target), ";");
  }
  // The instruction fails if the condition holds; `back` cycles of its block did not happen.
  static std::string FailIf(absl::string_view condition, absl::string_view error, size_t back) {
    return absl::StrCat("if (", condition, ") { error = ", error, "; ",
                        back == 0 ? "" : absl::StrCat("left += ", back, "; "), "goto done; }");
  }

  // The nodes from the start of a block to its last one.
  std::vector<int> Members(int first) const {
    std::vector<int> members = {first};
    while (true) {
      const Node& last = node(members.back());
      if (last.next == FlowGraph::kNone || last.flow == Flow::kCondition) return members;
      if (node(last.next).block) return members;
      members.push_back(last.next);
    }
  }

  void WriteBlock(int first) {
    ++blocks_;
    const std::vector<int> members = Members(first);
    const Node& last = node(members.back());
    const size_t counted = members.size() - (last.flow == Flow::kEnd ? 1 : 0);
    absl::StrAppend(&fast_, "  ", Block(first), ":  // Address ", node(first).address, ".\n");
    if (counted != 0) {
      Line(fast_, absl::StrCat("if (left < ", counted, ") goto slow_", first, ";"));
      Line(fast_, absl::StrCat("left -= ", counted, ";"));
    }
    for (size_t k = 0; k < members.size(); ++k) {
      const size_t back = k < counted ? counted - 1 - k : 0;
      if (!WriteStraight(fast_, node(members[k]), back)) break;
      if (k + 1 == members.size()) WriteEnd(last, back);
    }
    if (counted != 0) WriteSlowBlock(first, members, counted);
  }

  // At most counted - 1 cycles are left: the last instruction is not executed.
  void WriteSlowBlock(int first, const std::vector<int>& members, size_t counted) {
    absl::StrAppend(&slow_, "  slow_", first, ":\n");
    for (size_t k = 0; k + 1 < counted; ++k) {
      Line(slow_, "if (left == 0) goto limit;");
      Line(slow_, "left -= 1;");
      if (!WriteStraight(slow_, node(members[k]), 0)) return;
    }
    Line(slow_, "goto limit;");
  }

  // Writes what an instruction does before control goes on. False: it always fails.
  bool WriteStraight(std::string& to, const Node& node, size_t back) {
    const size_t depth = node.stack.size();
    if (known() && node.flow == Flow::kPush) slots_ = std::max(slots_, depth + 1);
    switch (node.flow) {
      case Flow::kStraight:
        if (!node.no_op) Use(node);
        Line(to, Compute(node));
        return true;
      case Flow::kDivision: {
        Use(node);
        const bool quotient = (node.word & 0xff) == kDiv;
        Line(to, FailIf(absl::StrCat(R(B(node)), " == 0"), "kErrorDivisionByZero", back));
        Line(to, absl::StrCat(R(D(node)), quotient ? " = Quotient(" : " = Remainder(", R(A(node)),
                              ", ", R(B(node)), ");"));
        return true;
      }
      case Flow::kPush:
        Use(node);
        if (known()) {
          Line(to, absl::StrCat(Slot(depth), " = ", R(D(node)), ";"));
        } else {
          Line(to, FailIf("depth == kStackDepth", "kErrorStackOverflow", back));
          Line(to, absl::StrCat("stack.set(depth++, static_cast<i32>(", R(D(node)), "));"));
        }
        return true;
      case Flow::kPop:
        Use(node);
        if (!known()) {
          Line(to, FailIf("depth == 0", "kErrorStackUnderflow", back));
          Line(to, absl::StrCat(R(D(node)), " = static_cast<u32>(stack.get(--depth));"));
          return true;
        }
        if (depth == 0) {
          Line(to, FailIf("true", "kErrorStackUnderflow", back));
          return false;
        }
        Line(to,
             absl::StrCat(R(D(node)), " = ",
                          node.stack.back() == FlowGraph::kValue ? Slot(depth - 1)
                                                                 : absl::StrCat(node.stack.back()),
                          ";"));
        return true;
      case Flow::kCondition:
        Use(node);
        return true;
      default:
        return true;
    }
  }

  // Writes how a block ends.
  void WriteEnd(const Node& last, size_t back) {
    switch (last.flow) {
      case Flow::kCondition:
        if ((last.word & 0xff) == kLoop) Line(fast_, absl::StrCat(R(D(last)), " -= 1;"));
        Line(fast_, absl::StrCat("if (", Condition(last), ") ", Taken(last)));
        Jump(last.next);
        return;
      case Flow::kJump:
        Line(fast_, Taken(last));
        return;
      case Flow::kCall:
        if (!known()) {
          Line(fast_, FailIf("depth == kStackDepth", "kErrorStackOverflow", back));
          Line(fast_, absl::StrCat("stack.set(depth++, ", last.address + LengthOf(kCall), ");"));
        }
        Line(fast_, Taken(last));
        return;
      case Flow::kReturn:
        if (!known()) {
          dispatches_ = true;
          Line(fast_, FailIf("depth == 0", "kErrorStackUnderflow", back));
          Line(fast_, "goto take_return;");
        } else {
          Line(fast_, last.stack.empty() ? Fail("kErrorStackUnderflow") : Taken(last));
        }
        return;
      case Flow::kHalt:
        Line(fast_, Fail("kErrorNone"));
        return;
      case Flow::kError:
        Line(fast_, Fail(absl::StrCat(last.error)));
        return;
      case Flow::kEnd:
        // The end of the code is no error, at the limit either; at a truncated instruction the
        // limit has priority.
        Line(fast_, last.error == kErrorNone
                        ? Fail("kErrorNone")
                        : Fail(absl::StrCat("left == 0 ? kErrorCycleLimit : ", last.error)));
        return;
      case Flow::kStraight:
      case Flow::kDivision:
      case Flow::kPush:
      case Flow::kPop:
        Jump(last.next);
        return;
    }
  }

  void WriteDispatch() {
    // In braces, so that no goto enters the scope of the variable.
    absl::StrAppend(&slow_, "  take_return: {\n");
    Line(slow_, "const u32 address = static_cast<u32>(stack.get(--depth));");
    Line(slow_, "switch (address) {");
    for (const int site : graph_.return_sites()) {
      Line(slow_, absl::StrCat("  case ", node(site).address, ": goto ", Block(site), ";"));
    }
    Line(slow_, absl::StrCat("  default: ", graph_.returns_to_values()
                                                ? "leave_to = address; goto leave;"
                                                : "error = kErrorPcOutOfBounds; goto done;"));
    Line(slow_, "}");
    absl::StrAppend(&slow_, "  }\n");
  }

  void Use(const Node& node) {
    const uint32_t opcode = node.word & 0xff;
    registers_.insert(D(node));
    if (HasTwoRegisters(opcode)) registers_.insert(A(node));
    if (HasThreeRegisters(opcode)) registers_.insert(B(node));
  }

  const FlowGraph& graph_;
  const uint32_t max_bytes_;
  uint32_t blocks_ = 0;
  std::set<uint32_t> registers_;  // Named by the program; the others keep their values.
  size_t slots_ = 0;              // Variables for stack slots.
  bool dispatches_ = false;
  std::string fast_;
  std::string slow_;
};

std::string ProgramText(size_t bytes, const FlowGraph& graph, bool unknown_nop,
                        const Writer& writer) {
  const bool leaves = graph.returns_to_values();
  const char* const unknown = !graph.has_unknown_opcode() ? "kNone"
                              : unknown_nop               ? "kAreNoOps"
                                                          : "kAreErrors";
  std::string store;
  for (const uint32_t r : writer.registers()) {
    absl::StrAppend(&store, "    registers.set(", r, ", static_cast<i32>(", R(r), "));\n");
  }
  std::string text = absl::StrCat(
      "struct Program {\n"
      "  static constexpr u32 kBytes = ",
      bytes,
      ";\n"
      "  static constexpr UnknownOpcodes kUnknownOpcodes = UnknownOpcodes::",
      unknown,
      ";\n"
      "  static constexpr bool kLeaves = ",
      leaves ? "true" : "false",
      ";\n"
      "  template <typename Code, typename Registers, typename Stack>\n"
      "  RESIDENT_HOST_DEVICE static Outcome Run(const Code& code, const Registers& registers,\n"
      "                                          const Stack& stack, const u32 max_cycles) {\n"
      "    u32 left = max_cycles;\n"
      "    u32 error = kErrorNone;\n");
  if (graph.form() == FlowGraph::Form::kAnyStack) absl::StrAppend(&text, "    u32 depth = 0;\n");
  if (leaves) absl::StrAppend(&text, "    u32 leave_to = 0;\n");
  for (const uint32_t r : writer.registers()) {
    absl::StrAppend(&text, "    u32 ", R(r), " = static_cast<u32>(registers.get(", r, "));\n");
  }
  for (size_t slot = 0; slot < writer.slots(); ++slot) {
    absl::StrAppend(&text, "    u32 ", Slot(slot), " = 0;\n");
  }
  absl::StrAppend(&text, "    (void)code, (void)stack;\n    goto ", Block(0), ";\n", writer.fast(),
                  writer.slow(), "  limit:\n    error = kErrorCycleLimit;\n  done:\n", store,
                  "    return {error, max_cycles - left};\n");
  if (leaves) {
    absl::StrAppend(&text, "  leave:\n", store,
                    "    if (leave_to > code.length) return {kErrorPcOutOfBounds, max_cycles - "
                    "left};\n"
                    "    return Continue(code, registers, stack, {leave_to, depth, left}, "
                    "max_cycles);\n");
  }
  absl::StrAppend(&text, "  }\n};\n");
  return text;
}

absl::Status TooLarge(absl::string_view what, uint64_t limit) {
  return absl::ResourceExhaustedError(absl::StrCat("the program has more than ", limit, " ", what));
}

}  // namespace

absl::StatusOr<Translation> Translate(std::string_view bytecode, bool unknown_nop,
                                      const TranslationLimits& limits) {
  const auto graph = FlowGraph::Explore(bytecode, unknown_nop, limits.flow);
  if (!graph.has_value()) {
    return TooLarge("instructions that a run can reach", limits.flow.max_nodes);
  }
  if (graph->returns_to_values() && bytecode.size() > limits.max_leaving_bytes) {
    return TooLarge("bytes, and may return to addresses that it pushed", limits.max_leaving_bytes);
  }
  Writer writer(*graph, limits.max_source_bytes);
  if (!writer.Write()) return TooLarge("bytes of generated source", limits.max_source_bytes);
  if (writer.blocks() > limits.max_blocks) {
    return TooLarge("blocks between branches", limits.max_blocks);
  }
  Translation translation;
  translation.program = ProgramText(bytecode.size(), *graph, unknown_nop, writer);
  translation.form = graph->form();
  translation.instructions = static_cast<uint32_t>(graph->nodes().size());
  translation.blocks = writer.blocks();
  translation.one_mode = graph->has_unknown_opcode();
  return translation;
}

std::string NativeOperatorSource(std::string_view function, const Translation& translation) {
  return absl::StrCat(
      "// Made from a FLUX program.\n"
      "#include \"kernels/flux/native_program.h\"\n\n"
      "namespace native {\n"
      "using namespace resident;\n"
      "using namespace resident::flux;\n",
      translation.program, "}  // namespace native\n\nRESIDENT_OPERATOR(", std::string(function),
      ")(resident::Block& block, const resident::Args& args) {\n"
      "  resident::flux::RunNativeProgram<native::Program>(block, args);\n}\n");
}

}  // namespace resident::flux
