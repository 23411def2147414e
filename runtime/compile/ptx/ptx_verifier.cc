#include "runtime/compile/ptx/ptx_verifier.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/layout/confine.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/ptx/ptx_text.h"

namespace resident {
namespace {

// What the verifier knows of the functions that it has read.
struct Unit {
  // Functions that look where they begin, and may be called.
  std::unordered_set<std::string> looking;
  // The functions that a function calls.
  std::unordered_map<std::string, std::vector<std::string>> calls;
  // Numbers of forms, which also name sites of warps: they occur once in the unit.
  std::unordered_set<std::string> numbers;
};

class FunctionVerifier {
 public:
  FunctionVerifier(const PtxFunction& function, int architecture, Unit* unit)
      : function_(function),
        body_(function.statements),
        architecture_(architecture),
        unit_(*unit) {}

  absl::Status Run();

 private:
  // The region of a loop by rule L2 or L3: from its label to its branch.
  struct Region {
    size_t head;
    size_t branch;
  };
  struct Head {
    size_t at = 0;
    bool counted = false;
    PtxNames names;
    // The label behind it.
    std::string loop;
  };

  absl::Status Refuse(size_t at, std::string_view what) const {
    const PtxStatement& statement = body_[std::min(at, body_.size() - 1)];
    return absl::InternalError(
        absl::StrCat("line ", statement.line, ": ", std::string(what), ": ", statement.Text()));
  }

  // How many statements from `at` on are the form, with the names' texts; 0: they are not.
  size_t Match(PtxForm form, size_t at, PtxNames* names) const;
  absl::Status CheckPrologue(size_t* at);
  absl::Status FindForms(size_t begin);
  absl::Status CheckForm(PtxForm form, size_t at, const PtxNames& names);
  absl::Status CheckNumber(PtxForm form, size_t at, const PtxNames& names);
  absl::Status CheckEdge(size_t at, const PtxNames& names, bool guarded);
  absl::Status CheckCountedEdge(size_t at, const PtxNames& names);
  absl::Status CheckHeads();
  absl::Status CheckShortLoop(size_t branch);
  absl::Status CheckInside(const Region& region, size_t step, bool is_short) const;
  absl::Status CheckPlain(size_t at);
  absl::Status CheckWays(size_t begin);

  // Statements outside of forms between two positions, by cost.
  int64_t FindCost(size_t begin, size_t end) const { return costs_[end] - costs_[begin]; }
  // The only place in [begin, end) where the register is written; body_.size(): there is none, or
  // there are several.
  size_t FindOnlyWrite(size_t begin, size_t end, std::string_view reg) const;
  bool IsWritten(size_t begin, size_t end, std::string_view reg) const;

  const PtxFunction& function_;
  const std::vector<PtxStatement>& body_;
  const int architecture_;
  Unit& unit_;

  std::unordered_map<std::string, size_t> labels_;
  // The form that a statement begins, and its length; 0: the statement is in none.
  struct Found {
    PtxForm form;
    size_t length;
    PtxNames names;
  };
  std::unordered_map<size_t, Found> forms_;
  std::vector<bool> in_form_;
  // The branch of a counted loop, which is in a form, to its label.
  std::vector<int64_t> costs_;
  std::unordered_map<std::string, Head> heads_;
  std::unordered_map<std::string, std::pair<size_t, size_t>> sources_;
  // How often and where a register is written; the names are those of the statements.
  absl::flat_hash_map<std::string_view, std::pair<size_t, size_t>> written_;
};

size_t FunctionVerifier::Match(PtxForm form, size_t at, PtxNames* names) const {
  const std::vector<std::string>& statements = PtxFormStatements(form);
  if (at + statements.size() > body_.size()) return 0;
  for (size_t i = 0; i < statements.size(); ++i) {
    if (!MatchPtxStatement(statements[i], body_[at + i].Text(), names)) return 0;
  }
  return statements.size();
}

size_t FunctionVerifier::FindOnlyWrite(size_t begin, size_t end, std::string_view reg) const {
  size_t found = body_.size();
  size_t count = 0;
  for (size_t i = begin; i < end; ++i) {
    VisitWrittenPtxRegisters(body_[i], [&](std::string_view name) {
      if (name != reg) return;
      found = i;
      ++count;
    });
  }
  return count == 1 ? found : body_.size();
}

bool FunctionVerifier::IsWritten(size_t begin, size_t end, std::string_view reg) const {
  bool written = false;
  for (size_t i = begin; i < end; ++i) {
    VisitWrittenPtxRegisters(body_[i], [&](std::string_view name) { written |= name == reg; });
  }
  return written;
}

// The budget, R2, and L6 except in entries.
absl::Status FunctionVerifier::CheckPrologue(size_t* at) {
  PtxNames names;
  *at = Match(PtxForm::kPrologue, 0, &names);
  const uint32_t address = ConfineAddress(static_cast<uint32_t>(architecture_));
  if (*at == 0 || names["confine"] != absl::StrCat(address)) {
    return Refuse(0, "the function does not begin with a budget");
  }
  std::string zeros;
  AppendPtxZeros(function_, &zeros);
  for (const std::string& zero : function_.zero_results) absl::StrAppend(&zeros, zero, "\n");
  for (const absl::string_view zero : absl::StrSplit(zeros, '\n', absl::SkipEmpty())) {
    if (*at >= body_.size() || body_[*at].Text() != zero) {
      return Refuse(*at, absl::StrCat("not ", zero));
    }
    ++*at;
  }
  const size_t look = Match(PtxForm::kLook, *at, &names);
  *at += look;
  if (look != 0) unit_.looking.insert(function_.name);
  if (look == 0 && !function_.entry) return Refuse(*at, "the function begins without a look");
  return absl::OkStatus();
}

absl::Status FunctionVerifier::FindForms(size_t begin) {
  in_form_.assign(body_.size(), false);
  // Longer forms are in front of those with which they begin.
  constexpr PtxForm kForms[] = {
      PtxForm::kCountedHead,    PtxForm::kHead,    PtxForm::kCountedEdge,
      PtxForm::kEdge,           PtxForm::kEndless, PtxForm::kBarrier,
      PtxForm::kPartialMeeting, PtxForm::kMeeting, PtxForm::kLook,
  };
  std::fill(in_form_.begin(), in_form_.begin() + static_cast<ptrdiff_t>(begin), true);
  for (size_t at = begin; at < body_.size();) {
    if (!body_[at].reserved) {
      ++at;
      continue;
    }
    size_t length = 0;
    for (const PtxForm form : kForms) {
      PtxNames names;
      length = Match(form, at, &names);
      if (length == 0) continue;
      RETURN_IF_ERROR(CheckNumber(form, at, names));
      forms_.emplace(at, Found{form, length, std::move(names)});
      break;
    }
    if (length == 0) return Refuse(at, "a reserved name outside of a form");
    std::fill(in_form_.begin() + static_cast<ptrdiff_t>(at),
              in_form_.begin() + static_cast<ptrdiff_t>(at + length), true);
    at += length;
  }
  costs_.assign(1, 0);
  for (size_t i = 0; i < body_.size(); ++i) {
    int64_t cost = in_form_[i] ? 0 : FindPtxCost(body_[i]);
    // A way back outside of a form is that of a short loop, or will be refused.
    const bool back =
        !in_form_[i] && body_[i].Is(PtxClass::kBranch) && labels_.at(body_[i].target) <= i;
    if (back) cost += kPtxShortLoopTurns * (costs_[i] + cost - costs_[labels_.at(body_[i].target)]);
    costs_.push_back(costs_.back() + cost);
  }
  return absl::OkStatus();
}

// A number is that of one head and of one edge, or of one site of a warp.
absl::Status FunctionVerifier::CheckNumber(PtxForm form, size_t at, const PtxNames& names) {
  if (names.Find("k") == nullptr) return absl::OkStatus();
  // A special register may have another value when the operation reads it.
  if (IsPtxSpecialRegister(names["mask"])) return Refuse(at, "a mask that changes");
  const std::string& number = names["k"];
  uint32_t value = 0;
  if (!absl::SimpleAtoi(number, &value) || absl::StrCat(value) != number) {
    return Refuse(at, "a form without a number");
  }
  const bool edge =
      form == PtxForm::kEdge || form == PtxForm::kEndless || form == PtxForm::kCountedEdge;
  if (!unit_.numbers.insert((edge ? "edge " : "") + number).second) {
    return Refuse(at, "the number of another form");
  }
  if (form == PtxForm::kHead || form == PtxForm::kCountedHead) {
    heads_[number] = {at, form == PtxForm::kCountedHead, names, ""};
  }
  return absl::OkStatus();
}

// Heads are directly in front of the label of their loop, or of other heads of it.
absl::Status FunctionVerifier::CheckHeads() {
  for (auto& [number, head] : heads_) {
    size_t at = head.at;
    while (true) {
      const auto form = forms_.find(at);
      const bool is_head = form != forms_.end() && (form->second.form == PtxForm::kHead ||
                                                    form->second.form == PtxForm::kCountedHead);
      if (!is_head) break;
      at += form->second.length;
    }
    if (at >= body_.size() || body_[at].kind != PtxStatement::Kind::kLabel) {
      return Refuse(head.at, "a head without a loop");
    }
    head.loop = body_[at].opcode;
  }
  return absl::OkStatus();
}

// L1 and L4.
absl::Status FunctionVerifier::CheckEdge(size_t at, const PtxNames& names, bool guarded) {
  const auto head = heads_.find(names["k"]);
  const auto label = labels_.find(names["loop"]);
  if (label == labels_.end() || label->second > at) return Refuse(at, "not a way back");
  if (head == heads_.end() || head->second.loop != names["loop"] || head->second.counted) {
    return Refuse(at, "a loop without its head");
  }
  // The branch itself counts too.
  const int64_t min_cost = std::min<int64_t>(FindCost(label->second, at) + 1, kPtxBudget);
  const int64_t cost = names.Number("cost");
  if (cost < min_cost || cost > kPtxBudget) return Refuse(at, "a loop that costs too little");
  if (!guarded) return absl::OkStatus();
  const std::string& guard = names["guard"];
  const bool negated = guard[0] == '!';
  if (names["unless"] != (negated ? guard.substr(1) : "!" + guard)) {
    return Refuse(at, "a loop that ends for another reason");
  }
  return absl::OkStatus();
}

// No way in from outside, and from the step on only straight code.
absl::Status FunctionVerifier::CheckInside(const Region& region, size_t step, bool is_short) const {
  for (size_t i = region.head; i < region.branch; ++i) {
    const PtxStatement& statement = body_[i];
    if (statement.reserved) return Refuse(i, "a form in a loop without a budget");
    if (statement.kind == PtxStatement::Kind::kLabel) {
      const auto sources = sources_.find(statement.opcode);
      if (sources == sources_.end()) continue;
      // A short loop ends from wherever it is entered.
      if ((sources->second.first < region.head && !is_short) ||
          sources->second.second > region.branch + 1) {
        return Refuse(i, "a way into a loop without a budget");
      }
    }
    if (statement.Is(PtxClass::kCall) || statement.Is(PtxClass::kReturn)) {
      return Refuse(i, "a call in a loop without a budget");
    }
    if (statement.Is(PtxClass::kBranch) && labels_.at(statement.target) <= i) {
      return Refuse(i, "a loop in a loop without a budget");
    }
    const bool control = statement.Is(PtxClass::kBranch) ||
                         (statement.kind == PtxStatement::Kind::kLabel && i != region.head);
    if (control && i > step) return Refuse(i, "a turn without its step");
  }
  return absl::OkStatus();
}

// L2.
absl::Status FunctionVerifier::CheckCountedEdge(size_t at, const PtxNames& names) {
  const auto head = heads_.find(names["k"]);
  const auto label = labels_.find(names["loop"]);
  if (label == labels_.end() || label->second > at) return Refuse(at, "not a way back");
  if (head == heads_.end() || head->second.loop != names["loop"] || !head->second.counted ||
      head->second.at + PtxFormStatements(PtxForm::kCountedHead).size() != label->second) {
    return Refuse(at, "a loop without its head");
  }
  const PtxNames& of_head = head->second.names;
  for (const char* const same : {"i", "limit", "type", "bits"}) {
    if (names[same] != of_head[same]) return Refuse(at, "the head of another loop");
  }
  const std::string& type = names["type"];
  const std::string& bits = names["bits"];
  const std::string& compare = names["compare"];
  const std::string& compared = names["compared"];
  const bool up = names["inner"] == "lt";
  const bool types = (bits == "32" || bits == "64") &&
                     (type == "s" + bits || (type == "u" + bits && compare != "ne")) &&
                     (compare == "ne" ? (compared == "s" + bits || compared == "u" + bits)
                                      : compared == type && compare == names["inner"]);
  if (!types || (!up && names["inner"] != "gt") || of_head["nearer"] != (up ? "min" : "max")) {
    return Refuse(at, "a loop that compares something else");
  }
  const std::string& counter = names["i"];
  const Region region{label->second, at};
  const size_t step_at = FindOnlyWrite(region.head, at, counter);
  if (counter[0] != '%' || step_at == body_.size() || IsWritten(region.head, at, names["limit"])) {
    return Refuse(at, "a counter that does not change once in each turn");
  }
  PtxNames step;
  if (!MatchPtxStatement(absl::StrCat("add.s", bits, " ", counter, ", ", counter, ", <step>;"),
                         body_[step_at].Text(), &step)) {
    return Refuse(step_at, "a counter that does not change by a number");
  }
  const int64_t size = step.Number("step");
  const int64_t span = of_head.Number("span");
  const int64_t each = names.Number("each");
  // The comparison and the branch count too.
  const int64_t cost = FindCost(region.head, at) + 2;
  if (size == 0 || (size > 0) != up || std::abs(size) > kPtxBudget || span % size != 0) {
    return Refuse(step_at, "a counter that goes another way");
  }
  RETURN_IF_ERROR(CheckInside(region, step_at, /*is_short=*/false));
  const int64_t turns = span / size;
  if (turns < 1 || std::abs(span) > std::max(kPtxMaxSpan, std::abs(size)) ||
      (turns > 1 && turns * cost > kPtxBudget)) {
    return Refuse(at, "a loop with too many turns");
  }
  if (std::abs(each) > kPtxBudget || std::abs(each) * std::abs(span) > kPtxMaxCharge) {
    return Refuse(at, "a loop that costs too much");
  }
  if ((each > 0) == up || std::abs(each) * std::abs(size) < std::min<int64_t>(cost, kPtxBudget)) {
    return Refuse(at, "a loop that costs too little");
  }
  return absl::OkStatus();
}

// L3: a counter that rises by 1 in each turn, below a limit of 8 bits.
absl::Status FunctionVerifier::CheckShortLoop(size_t branch) {
  const size_t head = labels_.at(body_[branch].target);
  PtxNames names;
  if (head >= branch || in_form_[branch - 1] ||
      !MatchPtxStatement("@<p> bra <label>;", body_[branch].Text(), &names) ||
      !MatchPtxStatement("setp.lt.u32 <p>, <i>, <limit>;", body_[branch - 1].Text(), &names)) {
    return Refuse(branch, "a way back without a budget");
  }
  const auto only = [&](const std::string& reg) {
    const auto found = written_.find(reg);
    return found != written_.end() && found->second.first == 1 ? found->second.second
                                                               : body_.size();
  };
  const size_t extended = only(names["limit"]);
  if (extended == body_.size() ||
      !MatchPtxStatement("cvt.u32.u16 <limit>, <loaded>;", body_[extended].Text(), &names)) {
    return Refuse(branch, "a limit that may be large");
  }
  const size_t loaded = only(names["loaded"]);
  if (loaded == body_.size() || !body_[loaded].guard.empty() ||
      !absl::StartsWith(body_[loaded].opcode, "ld.") ||
      !absl::EndsWith(body_[loaded].opcode, ".u8") ||
      body_[loaded].operands.front() != names["loaded"]) {
    return Refuse(branch, "a limit that may be large");
  }
  const size_t step = FindOnlyWrite(head, branch, names["i"]);
  if (names["i"][0] != '%' || step == body_.size() ||
      !MatchPtxStatement("add.s32 <i>, <i>, 1;", body_[step].Text(), &names)) {
    return Refuse(branch, "a counter that does not rise in each turn");
  }
  if (FindCost(head, branch) + 1 > kPtxMaxShortLoopCost)
    return Refuse(branch, "a loop that is long");
  return CheckInside({head, branch}, step, /*is_short=*/true);
}

absl::Status FunctionVerifier::CheckForm(PtxForm form, size_t at, const PtxNames& names) {
  switch (form) {
    case PtxForm::kEdge:
      return CheckEdge(at, names, /*guarded=*/true);
    case PtxForm::kEndless:
      return CheckEdge(at, names, /*guarded=*/false);
    case PtxForm::kCountedEdge:
      return CheckCountedEdge(at, names);
    default:
      return absl::OkStatus();
  }
}

absl::Status FunctionVerifier::CheckPlain(size_t at) {
  const PtxStatement& statement = body_[at];
  switch (statement.opcode_class) {
    case PtxClass::kSleep:
      return Refuse(at, "it sleeps");
    case PtxClass::kBarrier:
      return Refuse(at, "a barrier of its own");
    case PtxClass::kCall:
      unit_.calls[function_.name].push_back(statement.target);
      return absl::OkStatus();
    case PtxClass::kBranch:
      return labels_.at(statement.target) <= at ? CheckShortLoop(at) : absl::OkStatus();
    case PtxClass::kWarp:
      if (!statement.guard.empty()) return Refuse(at, "a warp operation with a predicate");
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// The distance of looks along every way forward, and that the lanes are together.
absl::Status FunctionVerifier::CheckWays(size_t begin) {
  int64_t distance = 0;  // -1: control cannot get here.
  std::unordered_map<std::string, int64_t> distance_at;
  std::string met;
  const auto leave = [&](const std::string& label) {
    int64_t& known = distance_at[label];
    known = std::max(known, distance);
  };
  for (size_t at = begin; at < body_.size(); ++at) {
    const PtxStatement& statement = body_[at];
    if (const auto found = forms_.find(at); found != forms_.end()) {
      const Found& form = found->second;
      RETURN_IF_ERROR(CheckForm(form.form, at, form.names));
      at += form.length - 1;
      switch (form.form) {
        case PtxForm::kLook:
          distance = 0;
          met.clear();
          break;
        case PtxForm::kCountedEdge:
          distance += kPtxUnseenLoop;
          met.clear();
          break;
        case PtxForm::kEndless:
          distance = -1;
          met.clear();
          break;
        case PtxForm::kMeeting:
          met = "-1";
          break;
        case PtxForm::kPartialMeeting:
          met = form.names["mask"];
          break;
        case PtxForm::kBarrier:
          if (met != "-1") return Refuse(at, "a barrier without its test");
          break;
        default:
          met.clear();
      }
      ++distance;
    } else if (statement.kind == PtxStatement::Kind::kLabel) {
      met.clear();
      const auto known = distance_at.find(statement.opcode);
      if (known != distance_at.end()) distance = std::max(distance, known->second);
      distance = std::max<int64_t>(distance, 0);
    } else if (statement.kind == PtxStatement::Kind::kInstruction) {
      RETURN_IF_ERROR(CheckPlain(at));
      distance += FindPtxDistance(statement);
      if (statement.Is(PtxClass::kWarp) && met != FindPtxMask(statement)) {
        return Refuse(at, "a warp operation without its test");
      }
      VisitWrittenPtxRegisters(statement, [&](std::string_view name) {
        if (name == met) met.clear();
      });
      const bool back = statement.Is(PtxClass::kBranch) && labels_.at(statement.target) <= at;
      if (back) distance += kPtxUnseenLoop;
      if (statement.Is(PtxClass::kBranch) && !back) leave(statement.target);
      if (statement.Is(PtxClass::kBranch) || statement.Is(PtxClass::kReturn) ||
          statement.Is(PtxClass::kCall)) {
        met.clear();
        if (statement.guard.empty()) distance = statement.Is(PtxClass::kCall) ? 0 : -1;
      }
    }
    if (distance > kPtxMaxLookDistance) return Refuse(at, "a long way without a look");
  }
  return absl::OkStatus();
}

absl::Status FunctionVerifier::Run() {
  size_t loops = 0;
  for (size_t i = 0; i < body_.size(); ++i) {
    const PtxStatement& statement = body_[i];
    if (statement.kind == PtxStatement::Kind::kLabel) labels_.emplace(statement.opcode, i);
  }
  for (size_t i = 0; i < body_.size(); ++i) {
    if (!body_[i].Is(PtxClass::kBranch)) continue;
    sources_.emplace(body_[i].target, std::pair{i, i}).first->second.second = i;
  }
  // A label at the end would be a way out of the function.
  const PtxStatement& last = body_.back();
  if ((!last.Is(PtxClass::kReturn) && !last.Is(PtxClass::kBranch)) || !last.guard.empty()) {
    return Refuse(body_.size(), "the function does not end");
  }
  size_t begin = 0;
  RETURN_IF_ERROR(CheckPrologue(&begin));
  RETURN_IF_ERROR(FindForms(begin));
  RETURN_IF_ERROR(CheckHeads());
  for (size_t i = begin; i < body_.size(); ++i) {
    VisitWrittenPtxRegisters(body_[i], [&](std::string_view name) {
      auto& [count, at] = written_[name];
      ++count;
      at = i;
    });
  }
  for (const auto& [at, found] : forms_) {
    loops += found.form == PtxForm::kEdge || found.form == PtxForm::kCountedEdge ||
             found.form == PtxForm::kEndless;
  }
  if (loops > kPtxMaxLoops) return Refuse(0, "too many loops");
  return CheckWays(begin);
}

// Functions look before they are called, and none calls itself, also through others.
absl::Status CheckCalls(const Unit& unit) {
  std::unordered_map<std::string, size_t> open;
  std::unordered_set<std::string> done;
  for (const auto& [root, ignored] : unit.calls) {
    std::vector<std::pair<std::string, size_t>> stack;
    if (!done.contains(root)) stack.emplace_back(root, 0);
    open.clear();
    while (!stack.empty()) {
      auto& [name, next] = stack.back();
      const auto calls = unit.calls.find(name);
      open.emplace(name, 0);
      if (calls == unit.calls.end() || next == calls->second.size()) {
        open.erase(name);
        done.insert(name);
        stack.pop_back();
        continue;
      }
      const std::string& called = calls->second[next++];
      if (!unit.looking.contains(called)) {
        return absl::InternalError(absl::StrCat("'", called, "' is called and does not look"));
      }
      if (open.contains(called)) {
        return absl::InternalError(absl::StrCat("'", called, "' calls itself"));
      }
      if (!done.contains(called)) stack.emplace_back(called, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyPtx(std::string_view text, int architecture) {
  const auto parsed = ParsePtx(text, /*rewritten=*/true);
  if (!parsed.ok()) return absl::InternalError(parsed.status().message());
  Unit unit;
  for (const PtxItem& item : parsed->items) {
    if (!item.text.empty()) continue;
    RETURN_IF_ERROR(FunctionVerifier(item.function, architecture, &unit).Run());
  }
  return CheckCalls(unit);
}

}  // namespace resident
