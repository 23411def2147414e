#include "runtime/compile/ptx/ptx_rewriter.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/layout/confine.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/ptx/ptx_text.h"

namespace resident {
namespace {

// Loops with more statements are not counted ones: a look has to fit between their turns.
constexpr size_t kMaxCountedStatements = 512;

std::string Negate(const std::string& guard) {
  return guard[0] == '!' ? guard.substr(1) : "!" + guard;
}

// A loop by rule L2.
struct CountedLoop {
  size_t head = 0;
  // The statement that compares; the branch is behind it.
  size_t compare = 0;
  // Where the counter changes.
  size_t step_at = 0;
  std::string counter;
  std::string limit;
  std::string comparison;
  std::string type;
  int64_t step = 0;
};

class FunctionRewriter {
 public:
  FunctionRewriter(const PtxUnit& unit, const PtxFunction& function, int architecture,
                   uint32_t* next_number, RewrittenPtx* output)
      : unit_(unit),
        function_(function),
        architecture_(architecture),
        body_(function.statements),
        next_number_(next_number),
        counts_(output->counts),
        text_(output->text) {}

  absl::Status Run();

 private:
  struct Written {
    size_t count = 0;
    size_t at = 0;
  };
  struct Edge {
    size_t at;
    uint32_t number;
    std::optional<CountedLoop> counted;
  };

  absl::Status Refuse(const PtxStatement& statement, std::string_view rule,
                      const std::string& what) const {
    return PtxRefused(unit_.Describe(function_, statement), rule, what);
  }

  void FindWritten();
  void FindCosts();
  absl::Status FindLoops();
  std::optional<CountedLoop> FindCountedLoop(size_t head, size_t branch) const;
  bool IsShortLoop(size_t head, size_t branch) const;
  bool HasLoopInside(size_t head, size_t branch) const {
    return loops_before_[branch] != loops_before_[head + 1];
  }
  int64_t FindCost(size_t head, size_t branch) const {
    return std::clamp<int64_t>(costs_[branch + 1] - costs_[head], 1, kPtxBudget);
  }
  size_t CountWrites(size_t head, size_t branch, std::string_view reg, size_t* at) const;

  absl::Status AppendStatement(size_t at);
  void AppendHeads(const std::string& label);
  void AppendEdge(const Edge& edge);
  absl::Status AppendCall(const PtxStatement& statement);
  absl::Status AppendBarrier(const PtxStatement& statement);
  void AppendMeeting(const std::string& mask);
  absl::Status AppendWarpOperation(const PtxStatement& statement);
  void ForgetMask(const PtxStatement& statement);
  void AppendLook();
  bool MayLook(size_t at) const;
  void Append(const PtxStatement& statement) { absl::StrAppend(&text_, statement.Text(), "\n"); }

  const PtxUnit& unit_;
  const PtxFunction& function_;
  const int architecture_;
  const std::vector<PtxStatement>& body_;
  uint32_t* const next_number_;
  RewriteCounts& counts_;
  std::string& text_;

  std::unordered_map<std::string, size_t> labels_;
  // By label, in order.
  std::unordered_map<std::string, std::vector<Edge>> edges_;
  std::unordered_map<size_t, const Edge*> edge_at_;
  std::vector<bool> short_edge_;
  // Of statements that a counted loop has behind its branch.
  std::vector<bool> moved_;
  // No look may be in front of these.
  std::vector<bool> tight_;
  // The names are those of the statements.
  absl::flat_hash_map<std::string_view, Written> written_;
  // Of all statements before: their cost, and how many are heads of loops.
  std::vector<int64_t> costs_;
  std::vector<uint32_t> loops_before_;
  // The first and the last branch to a label.
  std::unordered_map<std::string, std::pair<size_t, size_t>> sources_;

  // How many statements may have been executed since the last look; -1: none, because control
  // cannot get here.
  int64_t distance_ = 0;
  std::unordered_map<std::string, int64_t> distance_at_;
  // Parameters of a call have been stored.
  bool in_call_ = false;
  // The mask for which the lanes are known to be together; empty: none.
  std::string met_;
};

void FunctionRewriter::FindWritten() {
  for (size_t i = 0; i < body_.size(); ++i) {
    const PtxStatement& statement = body_[i];
    if (statement.kind == PtxStatement::Kind::kLabel) labels_.emplace(statement.opcode, i);
    VisitWrittenPtxRegisters(statement, [&](std::string_view name) {
      Written& written = written_[name];
      ++written.count;
      written.at = i;
    });
  }
}

// Statements of short loops count for several turns.
void FunctionRewriter::FindCosts() {
  costs_.assign(1, 0);
  for (size_t i = 0; i < body_.size(); ++i) {
    int64_t cost = FindPtxCost(body_[i]);
    if (short_edge_[i]) {
      cost += kPtxShortLoopTurns * (costs_[i] + cost - costs_[labels_.at(body_[i].target)]);
    }
    costs_.push_back(costs_.back() + cost);
  }
}

absl::Status FunctionRewriter::FindLoops() {
  std::vector<bool> is_head(body_.size());
  size_t loops = 0;
  for (size_t i = 0; i < body_.size(); ++i) {
    if (!body_[i].Is(PtxClass::kBranch)) continue;
    const std::string& target = body_[i].target;
    sources_.emplace(target, std::pair{i, i}).first->second.second = i;
    if (labels_.at(target) > i) continue;
    edges_[target].push_back({i, 0, std::nullopt});
    is_head[labels_.at(target)] = true;
    if (++loops > kPtxMaxLoops) return Refuse(body_[i], "P3", "a function has too many loops");
  }
  loops_before_.assign(1, 0);
  for (size_t i = 0; i < body_.size(); ++i) {
    loops_before_.push_back(loops_before_.back() + (is_head[i] ? 1 : 0));
  }
  short_edge_.assign(body_.size(), false);
  moved_.assign(body_.size(), false);
  tight_.assign(body_.size(), false);
  FindCosts();
  for (auto& [label, edges] : edges_) {
    const size_t head = labels_.at(label);
    for (Edge& edge : edges) {
      edge_at_[edge.at] = &edge;
      if (edges.size() != 1 || HasLoopInside(head, edge.at)) continue;
      if (IsShortLoop(head, edge.at)) {
        short_edge_[edge.at] = true;
      } else if ((edge.counted = FindCountedLoop(head, edge.at))) {
        moved_[edge.counted->compare] = true;
      } else {
        continue;
      }
      std::fill(tight_.begin() + static_cast<ptrdiff_t>(head),
                tight_.begin() + static_cast<ptrdiff_t>(edge.at) + 1, true);
    }
  }
  FindCosts();
  // Loops are numbered in the order of the text.
  for (size_t i = 0; i < body_.size(); ++i) {
    const auto edges = edges_.find(body_[i].opcode);
    if (body_[i].kind != PtxStatement::Kind::kLabel || edges == edges_.end()) continue;
    for (Edge& edge : edges->second) {
      if (!short_edge_[edge.at]) edge.number = (*next_number_)++;
    }
  }
  return absl::OkStatus();
}

size_t FunctionRewriter::CountWrites(size_t head, size_t branch, std::string_view reg,
                                     size_t* at) const {
  size_t count = 0;
  for (size_t i = head; i <= branch; ++i) {
    VisitWrittenPtxRegisters(body_[i], [&](std::string_view name) {
      if (name != reg) return;
      ++count;
      *at = i;
    });
  }
  return count;
}

// An unsigned counter rises by 1 in each turn, below a limit of 8 bits.
bool FunctionRewriter::IsShortLoop(size_t head, size_t branch) const {
  const PtxStatement& jump = body_[branch];
  const PtxStatement& compare = body_[branch - 1];
  if (jump.guard.empty() || jump.guard[0] == '!' || compare.opcode != "setp.lt.u32" ||
      !compare.guard.empty() || compare.operands.size() != 3 || compare.operands[0] != jump.guard ||
      FindCost(head, branch) > kPtxMaxShortLoopCost) {
    return false;
  }
  const auto single = [&](const std::string& reg) -> const PtxStatement* {
    const auto found = written_.find(reg);
    if (found == written_.end() || found->second.count != 1) return nullptr;
    const PtxStatement* const statement = &body_[found->second.at];
    return statement->guard.empty() ? statement : nullptr;
  };
  const PtxStatement* const extended = single(compare.operands[2]);
  if (extended == nullptr || extended->opcode != "cvt.u32.u16") return false;
  const PtxStatement* const loaded = single(extended->operands[1]);
  if (loaded == nullptr || !absl::StartsWith(loaded->opcode, "ld.") ||
      !absl::EndsWith(loaded->opcode, ".u8") || loaded->operands[0][0] != '%') {
    return false;
  }
  size_t at = 0;
  const std::string& counter = compare.operands[1];
  if (CountWrites(head, branch, counter, &at) != 1) return false;
  if (!body_[at].guard.empty() ||
      body_[at].Text() != absl::StrCat("add.s32 ", counter, ", ", counter, ", 1;")) {
    return false;
  }
  for (size_t i = head + 1; i < branch; ++i) {
    const bool control = body_[i].Is(PtxClass::kBranch) || body_[i].Is(PtxClass::kCall) ||
                         body_[i].Is(PtxClass::kWarp) || body_[i].Is(PtxClass::kBarrier) ||
                         body_[i].Is(PtxClass::kReturn) ||
                         body_[i].kind == PtxStatement::Kind::kLabel;
    if (control) return false;
  }
  return true;
}

std::optional<CountedLoop> FunctionRewriter::FindCountedLoop(size_t head, size_t branch) const {
  const PtxStatement& jump = body_[branch];
  const PtxStatement& compare = body_[branch - 1];
  CountedLoop loop;
  loop.head = head;
  loop.compare = branch - 1;
  if (jump.guard.empty() || jump.guard[0] == '!' || branch - head > kMaxCountedStatements ||
      compare.kind != PtxStatement::Kind::kInstruction || !compare.guard.empty() ||
      compare.operands.size() != 3 || compare.operands[0] != jump.guard) {
    return std::nullopt;
  }
  for (const char* const comparison : {"lt", "gt", "ne"}) {
    for (const char* const type : {"s32", "u32", "s64", "u64"}) {
      if (compare.opcode != absl::StrCat("setp.", comparison, ".", type)) continue;
      loop.comparison = comparison;
      loop.type = type;
    }
  }
  if (loop.type.empty()) return std::nullopt;
  loop.counter = compare.operands[1];
  loop.limit = compare.operands[2];
  size_t ignored = 0;
  if (CountWrites(head, branch, loop.counter, &loop.step_at) != 1 ||
      CountWrites(head, branch, loop.limit, &ignored) != 0) {
    return std::nullopt;
  }
  const PtxStatement& step = body_[loop.step_at];
  if (step.opcode != absl::StrCat("add.s", loop.type.substr(1)) || !step.guard.empty() ||
      step.operands[0] != loop.counter || step.operands[1] != loop.counter ||
      !absl::SimpleAtoi(step.operands[2], &loop.step) || loop.step == 0 ||
      std::abs(loop.step) > kPtxBudget || (loop.comparison == "lt" && loop.step < 0) ||
      (loop.comparison == "gt" && loop.step > 0)) {
    return std::nullopt;
  }
  for (size_t i = head; i < branch; ++i) {
    const PtxStatement& statement = body_[i];
    // A loop that accesses memory hides the two instructions of the other form, which is cheaper
    // to enter.
    const bool other = statement.kind == PtxStatement::Kind::kInstruction &&
                       !statement.Is(PtxClass::kPure) && !statement.Is(PtxClass::kBranch);
    const bool control =
        statement.Is(PtxClass::kBranch) || statement.kind == PtxStatement::Kind::kLabel;
    const bool back = statement.Is(PtxClass::kBranch) && labels_.at(statement.target) <= i;
    if (other || back || (control && i > loop.step_at)) return std::nullopt;
    if (statement.kind == PtxStatement::Kind::kLabel) {
      const auto sources = sources_.find(statement.opcode);
      if (sources != sources_.end() &&
          (sources->second.first < head || sources->second.second > branch)) {
        return std::nullopt;
      }
      continue;
    }
    // The result of the comparison is known behind the loop only.
    bool reads = statement.guard == jump.guard || statement.guard == Negate(jump.guard);
    for (const std::string& operand : statement.operands) {
      VisitPtxRegisters(operand, [&](std::string_view name) { reads |= name == jump.guard; });
    }
    if (reads && i != loop.compare) return std::nullopt;
  }
  return loop;
}

void FunctionRewriter::AppendLook() {
  AppendPtxForm(PtxForm::kLook, {}, &text_);
  ++counts_.looks;
  distance_ = 0;
  met_.clear();
}

// A look has a branch, which must not be between the parts of a call.
bool FunctionRewriter::MayLook(size_t at) const {
  const bool ends_call = body_[at].of_call && !body_[at].Is(PtxClass::kStore);
  return !tight_[at] && !in_call_ && !ends_call;
}

void FunctionRewriter::AppendHeads(const std::string& label) {
  const auto edges = edges_.find(label);
  if (edges == edges_.end()) return;
  for (const Edge& edge : edges->second) {
    if (short_edge_[edge.at]) continue;
    ++distance_;
    PtxNames names{{"k", absl::StrCat(edge.number)}};
    if (!edge.counted) {
      AppendPtxForm(PtxForm::kHead, names, &text_);
      continue;
    }
    const CountedLoop& loop = *edge.counted;
    const int64_t turns = std::max<int64_t>(
        1, std::min(kPtxBudget / FindCost(loop.head, edge.at), kPtxMaxSpan / std::abs(loop.step)));
    const std::string bits = loop.type.substr(1);
    names.Set("bits", bits);
    names.Set("i", loop.counter);
    names.Set("span", absl::StrCat(turns * loop.step));
    names.Set("nearer", loop.step > 0 ? "min" : "max");
    names.Set("type", loop.comparison == "ne" ? "s" + bits : loop.type);
    names.Set("limit", loop.limit);
    AppendPtxForm(PtxForm::kCountedHead, names, &text_);
  }
}

void FunctionRewriter::AppendEdge(const Edge& edge) {
  const PtxStatement& jump = body_[edge.at];
  const int64_t cost = FindCost(labels_.at(jump.target), edge.at);
  PtxNames names{{"k", absl::StrCat(edge.number)},
                 {"loop", jump.target},
                 {"cost", absl::StrCat(cost)},
                 {"guard", jump.guard}};
  if (edge.counted) {
    const CountedLoop& loop = *edge.counted;
    const int64_t size = std::abs(loop.step);
    const int64_t each = (cost + size - 1) / size;
    const std::string bits = loop.type.substr(1);
    names.Set("bits", bits);
    names.Set("i", loop.counter);
    names.Set("limit", loop.limit);
    names.Set("inner", loop.step > 0 ? "lt" : "gt");
    names.Set("type", loop.comparison == "ne" ? "s" + bits : loop.type);
    names.Set("each", absl::StrCat(loop.step > 0 ? -each : each));
    names.Set("compare", loop.comparison);
    names.Set("compared", loop.type);
    AppendPtxForm(PtxForm::kCountedEdge, names, &text_);
    ++counts_.counted_loops;
    distance_ += kPtxUnseenLoop;
  } else if (jump.guard.empty()) {
    AppendPtxForm(PtxForm::kEndless, names, &text_);
    ++counts_.endless_loops;
    distance_ = -1;
  } else {
    names.Set("unless", Negate(jump.guard));
    AppendPtxForm(PtxForm::kEdge, names, &text_);
    ++counts_.loops;
  }
  met_.clear();
}

// The lanes of the mask are together behind it.
void FunctionRewriter::AppendMeeting(const std::string& mask) {
  if (met_ == mask) return;
  AppendPtxForm(mask == "-1" ? PtxForm::kMeeting : PtxForm::kPartialMeeting,
                {{"k", absl::StrCat((*next_number_)++)}, {"mask", mask}}, &text_);
  ++counts_.warp_operations;
  ++distance_;
  met_ = mask;
}

absl::Status FunctionRewriter::AppendWarpOperation(const PtxStatement& statement) {
  if (!statement.guard.empty()) {
    return Refuse(statement, "W3",
                  absl::StrCat("'", statement.opcode, "' waits for lanes, and has a predicate"));
  }
  const std::string mask = FindPtxMask(statement);
  if (IsPtxSpecialRegister(mask)) {
    return Refuse(statement, "W2", absl::StrCat("the mask of '", statement.opcode, "' changes"));
  }
  if (mask.find_first_of("|+[]{}!. ") != std::string::npos) {
    return Refuse(statement, "W2", absl::StrCat("'", mask, "' is not a mask"));
  }
  AppendMeeting(mask);
  Append(statement);
  ForgetMask(statement);
  return absl::OkStatus();
}

// The lanes are together for the mask that the register had.
void FunctionRewriter::ForgetMask(const PtxStatement& statement) {
  VisitWrittenPtxRegisters(statement, [&](std::string_view name) {
    if (name == met_) met_.clear();
  });
}

absl::Status FunctionRewriter::AppendCall(const PtxStatement& statement) {
  if (!unit_.functions.contains(statement.target)) {
    return Refuse(statement, "C1",
                  absl::StrCat("it calls '", statement.target, "', which it does not define"));
  }
  Append(statement);
  // The function looks where it begins.
  if (statement.guard.empty()) distance_ = 0;
  met_.clear();
  return absl::OkStatus();
}

absl::Status FunctionRewriter::AppendBarrier(const PtxStatement& statement) {
  const bool all = absl::EndsWith(statement.opcode, ".sync") ||
                   absl::EndsWith(statement.opcode, ".sync.aligned");
  if (!all) {
    return Refuse(statement, "B2", absl::StrCat("'", statement.opcode, "' is not supported"));
  }
  const bool some = statement.operands.size() > 1 && statement.operands[1][0] != '%';
  if (some || !statement.guard.empty()) {
    return Refuse(statement, "B1",
                  absl::StrCat("'", statement.opcode, "' is a barrier of some threads"));
  }
  AppendMeeting("-1");
  AppendPtxForm(PtxForm::kBarrier, {}, &text_);
  ++counts_.barriers;
  return absl::OkStatus();
}

absl::Status FunctionRewriter::AppendStatement(size_t at) {
  const PtxStatement& statement = body_[at];
  if (statement.kind == PtxStatement::Kind::kPragma) {
    Append(statement);
    return absl::OkStatus();
  }
  if (statement.kind == PtxStatement::Kind::kLabel) {
    // A loop in which there may be no look comes, and others may follow.
    if (tight_[at] && distance_ > kPtxLookDistance / 2) AppendLook();
    AppendHeads(statement.opcode);
    Append(statement);
    met_.clear();
    const auto found = distance_at_.find(statement.opcode);
    if (found != distance_at_.end()) distance_ = std::max(distance_, found->second);
    // A loop that is entered from below has no distance yet; its budget bounds it.
    distance_ = std::max<int64_t>(distance_, 0);
    return absl::OkStatus();
  }
  const int64_t distance = FindPtxDistance(statement);
  if (distance_ + distance > kPtxLookDistance && MayLook(at)) AppendLook();
  distance_ += distance;
  in_call_ = (in_call_ || (statement.of_call && statement.Is(PtxClass::kStore))) &&
             !statement.Is(PtxClass::kCall);
  switch (statement.opcode_class) {
    case PtxClass::kSleep:
      return absl::OkStatus();
    case PtxClass::kBranch: {
      if (const auto edge = edge_at_.find(at); edge != edge_at_.end()) {
        if (!short_edge_[at]) {
          AppendEdge(*edge->second);
          return absl::OkStatus();
        }
        ++counts_.short_loops;
        distance_ += kPtxUnseenLoop;
      } else {
        int64_t& known = distance_at_[statement.target];
        known = std::max(known, distance_);
      }
      Append(statement);
      if (statement.guard.empty()) distance_ = -1;
      met_.clear();
      return absl::OkStatus();
    }
    case PtxClass::kReturn:
      Append(statement);
      if (statement.guard.empty()) distance_ = -1;
      met_.clear();
      return absl::OkStatus();
    case PtxClass::kCall:
      return AppendCall(statement);
    case PtxClass::kBarrier:
      return AppendBarrier(statement);
    case PtxClass::kWarp:
      return AppendWarpOperation(statement);
    case PtxClass::kPure:
    case PtxClass::kLoad:
    case PtxClass::kStore:
    case PtxClass::kFence:
      if (!moved_[at]) Append(statement);
      ForgetMask(statement);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status FunctionRewriter::Run() {
  FindWritten();
  RETURN_IF_ERROR(FindLoops());
  const PtxStatement& last = body_.back();
  if ((!last.Is(PtxClass::kReturn) && !last.Is(PtxClass::kBranch)) || !last.guard.empty()) {
    return Refuse(last, "R1", absl::StrCat("the function '", function_.name, "' does not return"));
  }
  absl::StrAppend(&text_, function_.header, "\n{\n");
  for (const char* const declaration : kPtxReservedDeclarations) {
    absl::StrAppend(&text_, declaration, "\n");
  }
  AppendPtxDeclarations(function_, &text_);
  AppendPtxForm(PtxForm::kPrologue,
                {{"confine", absl::StrCat(ConfineAddress(static_cast<u32>(architecture_)))}},
                &text_);
  AppendPtxZeros(function_, &text_);
  for (const std::string& zero : function_.zero_results) absl::StrAppend(&text_, zero, "\n");
  if (!function_.entry) AppendPtxForm(PtxForm::kLook, {}, &text_);
  for (size_t i = 0; i < body_.size(); ++i) RETURN_IF_ERROR(AppendStatement(i));
  text_ += "}\n";
  return absl::OkStatus();
}

// Functions that call themselves, also through others.
absl::Status CheckRecursion(const PtxUnit& unit) {
  std::unordered_map<std::string, const PtxFunction*> functions;
  for (const PtxItem& item : unit.items) {
    if (item.text.empty()) functions[item.name] = &item.function;
  }
  enum class State : uint8_t { kNew, kOpen, kDone };
  std::unordered_map<std::string, State> states;
  struct Frame {
    const PtxFunction* function;
    size_t at = 0;
  };
  for (const auto& [name, root] : functions) {
    if (states[name] != State::kNew) continue;
    states[name] = State::kOpen;
    std::vector<Frame> stack{{root}};
    while (!stack.empty()) {
      Frame& frame = stack.back();
      if (frame.at == frame.function->statements.size()) {
        states[frame.function->name] = State::kDone;
        stack.pop_back();
        continue;
      }
      const PtxStatement& statement = frame.function->statements[frame.at++];
      const auto called = functions.find(statement.target);
      if (!statement.Is(PtxClass::kCall) || called == functions.end()) continue;
      State& state = states[statement.target];
      if (called->second->entry) {
        return PtxRefused(unit.Describe(*frame.function, statement), "C1",
                          absl::StrCat("it calls the operator '", statement.target, "'"));
      }
      if (state == State::kOpen) {
        return PtxRefused(unit.Describe(*frame.function, statement), "L6",
                          absl::StrCat("the function '", statement.target, "' calls itself"));
      }
      if (state == State::kDone) continue;
      state = State::kOpen;
      stack.push_back({called->second});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RewrittenPtx> RewritePtx(std::string_view text, int architecture) {
  ASSIGN_OR_RETURN(const PtxUnit unit, ParsePtx(text));
  RETURN_IF_ERROR(CheckRecursion(unit));
  RewrittenPtx output;
  output.text.reserve(2 * text.size());
  uint32_t next_number = 1;
  for (const PtxItem& item : unit.items) {
    if (item.variable && !unit.used_variables.contains(item.name)) continue;
    if (!item.text.empty()) {
      absl::StrAppend(&output.text, item.text, "\n");
      continue;
    }
    const absl::string_view header = item.function.header;
    if (absl::StartsWith(header, ".visible ")) output.functions.insert(item.name);
    if (absl::StartsWith(header, ".weak ")) output.weak_functions.insert(item.name);
    RETURN_IF_ERROR(
        FunctionRewriter(unit, item.function, architecture, &next_number, &output).Run());
  }
  output.variables.insert(unit.used_variables.begin(), unit.used_variables.end());
  return output;
}

}  // namespace resident
