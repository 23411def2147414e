#include "runtime/compile/ptx/ptx_interpreter_for_test.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace resident {
namespace {

constexpr uint64_t kBlockThreads = 288;
constexpr uint64_t kOperatorThreads = 256;

uint64_t Cut(uint64_t value, uint8_t bits) {
  return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1);
}

int64_t Signed(uint64_t value, uint8_t bits) {
  const int shift = 64 - bits;
  return static_cast<int64_t>(value << shift) >> shift;
}

bool Less(uint64_t a, uint64_t b, uint8_t bits, bool is_signed) {
  return is_signed ? Signed(a, bits) < Signed(b, bits) : Cut(a, bits) < Cut(b, bits);
}

// The bits of an opcode's last type: "add.s32".
uint8_t FindBits(const std::string& opcode) {
  if (absl::EndsWith(opcode, "64")) return 64;
  if (absl::EndsWith(opcode, "16")) return 16;
  return absl::EndsWith(opcode, "8") ? 8 : 32;
}

}  // namespace

PtxInterpreter::PtxInterpreter(const PtxUnit& unit) {
  for (const PtxItem& item : unit.items) {
    if (!item.text.empty()) continue;
    numbers_[item.name] = functions_.size();
    if (item.function.entry) entry_ = functions_.size();
    functions_.emplace_back();
  }
  uint64_t unseen = 0;
  for (const PtxItem& item : unit.items) {
    if (!item.text.empty()) continue;
    Function& function = functions_[numbers_[item.name]];
    Translate(item.function, &function);
    for (size_t i = 0; i < function.statements.size(); ++i) {
      const Statement& statement = function.statements[i];
      unseen += statement.operation == Operation::kBranch && statement.target <= i;
    }
  }
  // Each frame ends a part of a loop of one budget and a way to the next look; loops that do not
  // look have 4,096 statements, or 256 turns of at most kPtxMaxShortLoopCost. A statement of a loop
  // may have three of its form beside it, a way those of its meetings.
  limit_ = functions_.size() * (4 * kPtxBudget + 64 * kPtxMaxLookDistance) +
           unseen * 256 * kPtxMaxShortLoopCost * 2;
}

PtxInterpreter::Operand PtxInterpreter::Read(
    const std::string& text, std::unordered_map<std::string, int32_t>* registers) const {
  Operand operand;
  absl::string_view name = text;
  if (absl::StartsWith(name, "!")) {
    operand.negated = true;
    name.remove_prefix(1);
  }
  int64_t number = 0;
  if (absl::SimpleAtoi(name, &number)) {
    operand.number = static_cast<uint64_t>(number);
  } else if (absl::StartsWith(name, "%") && !IsPtxSpecialRegister(std::string(name))) {
    operand.reg = registers->emplace(std::string(name), static_cast<int32_t>(registers->size()))
                      .first->second;
  } else if (name == "%ntid.x") {
    operand.number = kBlockThreads;
  } else {
    operand.random = true;
  }
  return operand;
}

void PtxInterpreter::Translate(const PtxFunction& from, Function* to) {
  std::unordered_map<std::string, int32_t> registers;
  std::unordered_map<std::string, size_t> labels;
  for (size_t i = 0; i < from.statements.size(); ++i) {
    if (from.statements[i].kind == PtxStatement::Kind::kLabel) {
      labels[from.statements[i].opcode] = i;
    }
  }
  bool partial = false;
  for (const PtxStatement& source : from.statements) {
    Statement& statement = to->statements.emplace_back();
    statement.line = source.line;
    if (source.kind == PtxStatement::Kind::kPragma) continue;
    if (source.kind == PtxStatement::Kind::kLabel) {
      statement.operation = Operation::kLabel;
      // "$Q_meet1_0" has another letter there.
      statement.met = absl::StartsWith(source.opcode, "$Q_met");
      statement.all = statement.met && !partial;
      if (statement.met) partial = false;
      continue;
    }
    if (!source.guard.empty()) {
      const Operand guard = Read(source.guard, &registers);
      statement.guarded = true;
      statement.guard = static_cast<uint32_t>(guard.reg);
      statement.negated = guard.negated;
    }
    VisitWrittenPtxRegisters(source, [&](std::string_view name) {
      if (name != "%") statement.written.push_back(Read(std::string(name), &registers).reg);
    });
    const std::string& opcode = source.opcode;
    const auto is = [&](std::string_view prefix) { return opcode.starts_with(prefix); };
    statement.bits = FindBits(opcode);
    statement.is_signed = absl::StrContains(opcode, ".s");
    const bool whole = !absl::StrContains(opcode, ".f") && !absl::StrContains(opcode, ".bf") &&
                       !absl::StrContains(opcode, ".cc") && !absl::StrContains(opcode, ".sat");
    statement.operation = Operation::kRandom;
    if (source.Is(PtxClass::kBranch)) {
      statement.operation = Operation::kBranch;
      statement.target = labels.at(source.target);
    } else if (source.Is(PtxClass::kCall)) {
      statement.operation = Operation::kCall;
      statement.target = numbers_.at(source.target);
    } else if (source.Is(PtxClass::kReturn)) {
      statement.operation = Operation::kReturn;
    } else if (source.Is(PtxClass::kBarrier)) {
      statement.operation = Operation::kBarrier;
    } else if (is("activemask")) {
      statement.operation = Operation::kLanes;
    } else if (source.Is(PtxClass::kWarp)) {
      // A vote about %q_m is a part of a form: it is in front of its label.
      statement.operation =
          is("vote.sync.all") && source.reserved ? Operation::kVote : Operation::kWarp;
      partial |= statement.operation == Operation::kVote;
    } else if (source.Text() == "ld.volatile.shared.u32 %q_s, [%q_c+32];") {
      statement.operation = Operation::kLoadStop;
    } else if (is("atom.shared.cas") && source.reserved) {
      statement.operation =
          source.operands.back() == "4" ? Operation::kStopOnce : Operation::kLeave;
    } else if (whole && (is("mov.b") || is("mov.u") || is("mov.s") || is("mov.pred")) &&
               source.operands[1][0] != '{' && source.operands[0][0] != '{') {
      statement.operation = Operation::kMove;
      if (is("mov.pred")) statement.bits = 1;
    } else if (whole && (is("add.s") || is("add.u"))) {
      statement.operation = Operation::kAdd;
    } else if (whole && (is("sub.s") || is("sub.u"))) {
      statement.operation = Operation::kSubtract;
    } else if (opcode == "mad.lo.s32" || opcode == "mad.lo.u32") {
      statement.operation = Operation::kMultiplyAdd;
    } else if (whole && (is("min.s") || is("min.u"))) {
      statement.operation = Operation::kMin;
    } else if (whole && (is("max.s") || is("max.u"))) {
      statement.operation = Operation::kMax;
    } else if (is("and.b")) {
      statement.operation = Operation::kAnd;
    } else if (is("xor.b")) {
      statement.operation = Operation::kXor;
    } else if (is("shr.u")) {
      statement.operation = Operation::kShiftRight;
    } else if (opcode == "cvt.u32.u64" || opcode == "cvt.u32.u32" || opcode == "cvt.u32.u16") {
      statement.operation = Operation::kConvert;
    } else if (is("setp.") && whole && source.operands.size() <= 4 &&
               !absl::StrContains(source.operands[0], "|") &&
               (source.operands.size() == 3 || absl::StrContains(opcode, ".and."))) {
      for (const char* const compare : {"lt", "le", "gt", "ge", "eq", "ne"}) {
        if (!absl::StartsWith(opcode, absl::StrCat("setp.", compare, "."))) continue;
        statement.operation = Operation::kCompare;
        // "lt" and "le" differ in the second letter only.
        statement.compare = compare[0] == 'l'   ? (compare[1] == 't' ? '<' : '(')
                            : compare[0] == 'g' ? (compare[1] == 't' ? '>' : ')')
                                                : compare[0];
      }
    }
    const size_t first = statement.operation == Operation::kBarrier ||
                                 statement.operation == Operation::kRandom ||
                                 statement.operation == Operation::kWarp
                             ? source.operands.size()
                             : 1;
    for (size_t i = first; i < source.operands.size(); ++i) {
      statement.operands.push_back(Read(source.operands[i], &registers));
    }
    if (statement.operation == Operation::kBarrier) {
      for (const char* const name : {"%q_n", "%q_m"}) {
        statement.operands.push_back(Read(name, &registers));
      }
    }
  }
  to->registers = registers.size();
}

PtxInterpreter::Result PtxInterpreter::Call(const Run& run) {
  struct Frame {
    const Function* function;
    size_t at = 0;
    std::vector<uint64_t> registers;
  };
  std::mt19937_64 random(run.seed);
  Result result;
  std::vector<Frame> frames;
  frames.push_back({&functions_[entry_], 0, std::vector<uint64_t>(functions_[entry_].registers)});
  uint64_t executed = 0;
  uint32_t stop = 0;
  // The last thing that control did was to pass the end of a meeting, of all lanes.
  bool met = false;
  bool all = false;
  const auto broken = [&](const Statement& statement, const std::string& what) {
    result.status = absl::InternalError(absl::StrCat("line ", statement.line, ": ", what));
    return result;
  };
  while (!frames.empty()) {
    Frame& frame = frames.back();
    if (frame.at >= frame.function->statements.size()) {
      result.status = absl::InternalError("control left the function");
      return result;
    }
    const Statement& statement = frame.function->statements[frame.at++];
    if (statement.operation == Operation::kNothing) continue;
    if (++executed == run.stop_after && stop == 0) stop = 1;
    if (stop != 0 && ++result.after_stop > run.limit) {
      return broken(statement, "it does not stop");
    }
    if (stop == 0 && executed > run.stop_after) stop = 1;
    const auto value = [&](const Operand& operand) -> uint64_t {
      if (operand.random) return random();
      if (operand.reg < 0) return operand.number;
      const uint64_t read = frame.registers[static_cast<size_t>(operand.reg)];
      return operand.negated ? (read == 0 ? 1 : 0) : read;
    };
    const auto write = [&](uint64_t written) {
      for (const int32_t reg : statement.written) {
        if (reg >= 0) frame.registers[static_cast<size_t>(reg)] = written;
      }
    };
    const auto operand = [&](size_t i) { return value(statement.operands[i]); };
    if (statement.guarded && (frame.registers[statement.guard] != 0) == statement.negated) {
      // A branch that is not taken ends a basic block too.
      if (statement.operation == Operation::kBranch || statement.operation == Operation::kReturn) {
        met = false;
      }
      continue;
    }
    const uint8_t bits = statement.bits;
    switch (statement.operation) {
      case Operation::kRandom:
        for (const int32_t reg : statement.written) {
          // Small values, so that counted loops end, and all others.
          const uint64_t drawn = random();
          const uint64_t any = drawn % 4 == 0 ? drawn : drawn % 4 == 1 ? drawn >> 56 : drawn & 1;
          if (reg >= 0) frame.registers[static_cast<size_t>(reg)] = Cut(any, bits);
        }
        break;
      case Operation::kNothing:
        break;
      case Operation::kLabel:
        met = statement.met;
        all = statement.all;
        break;
      case Operation::kMove:
        write(bits == 1 ? operand(0) != 0 : Cut(operand(0), bits));
        break;
      case Operation::kAdd:
        write(Cut(operand(0) + operand(1), bits));
        break;
      case Operation::kSubtract:
        write(Cut(operand(0) - operand(1), bits));
        break;
      case Operation::kMultiplyAdd:
        write(Cut(operand(0) * operand(1) + operand(2), bits));
        break;
      case Operation::kMin:
      case Operation::kMax: {
        const uint64_t a = operand(0);
        const uint64_t b = operand(1);
        const bool first =
            Less(a, b, bits, statement.is_signed) == (statement.operation == Operation::kMin);
        write(Cut(first ? a : b, bits));
        break;
      }
      case Operation::kAnd:
        write(Cut(operand(0) & operand(1), bits));
        break;
      case Operation::kXor:
        write(Cut(operand(0) ^ operand(1), bits));
        break;
      case Operation::kShiftRight: {
        const uint64_t by = operand(1);
        write(by >= bits ? 0 : Cut(operand(0), bits) >> by);
        break;
      }
      case Operation::kConvert:
        // A register of 16 bits never has more.
        write(Cut(operand(0), bits == 64 ? 32 : bits));
        break;
      case Operation::kCompare: {
        const uint64_t a = Cut(operand(0), bits);
        const uint64_t b = Cut(operand(1), bits);
        const bool less = Less(a, b, bits, statement.is_signed);
        bool holds = a == b;
        if (statement.compare == '<') holds = less;
        if (statement.compare == '(') holds = less || a == b;
        if (statement.compare == '>') holds = !less && a != b;
        if (statement.compare == ')') holds = !less;
        if (statement.compare == 'n') holds = a != b;
        if (statement.operands.size() > 2) holds = holds && operand(2) != 0;
        write(holds ? 1 : 0);
        break;
      }
      case Operation::kLoadStop:
        write(stop);
        break;
      case Operation::kStopOnce:
        write(stop);
        if (stop == 0) stop = 4;
        break;
      case Operation::kLeave:
        write(random() % 4 != 0 ? operand(1) : Cut(random(), 32));
        break;
      case Operation::kLanes:
        write(random() % 4 == 0 ? Cut(random() | 1, 32) : 0xffffffff);
        break;
      case Operation::kVote:
        write(operand(0) != 0 && random() % 4 != 0 ? 1 : 0);
        break;
      case Operation::kBranch:
        met = false;
        frame.at = statement.target;
        break;
      case Operation::kReturn:
        met = false;
        frames.pop_back();
        break;
      case Operation::kCall: {
        met = false;
        if (frames.size() > functions_.size()) return broken(statement, "recursion");
        const Function& called = functions_[statement.target];
        frames.push_back({&called, 0, std::vector<uint64_t>(called.registers)});
        break;
      }
      case Operation::kBarrier:
        if (operand(0) != kOperatorThreads || operand(1) != 0) {
          return broken(statement, "a barrier of other threads");
        }
        if (!met || !all) return broken(statement, "a barrier without a meeting");
        write(random() & 1);
        break;
      case Operation::kWarp:
        if (!met) return broken(statement, "a warp operation without a meeting");
        for (const int32_t reg : statement.written) {
          if (reg >= 0) frame.registers[static_cast<size_t>(reg)] = Cut(random(), bits);
        }
        break;
    }
  }
  return result;
}

}  // namespace resident
