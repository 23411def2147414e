// The table of rules (ptx_rules.inc), which the parser, the rewriter and the verifier share.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_RULES_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_RULES_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace resident {

enum class PtxClass : uint8_t {
  kPure,
  kLoad,   // Writes its first operand: also atomics with a result.
  kStore,  // Writes no register.
  kFence,
  kBranch,
  kCall,
  kReturn,
  kSleep,
  kBarrier,
  kWarp,
};

// What an opcode does to memory; for rules that confine accesses, which there are not yet.
enum class PtxAccess : uint8_t { kNone, kLoads, kStores, kCopies };

struct PtxOpcode {
  PtxClass opcode_class;
  PtxAccess access;
};

// Statements that count as much as the budget are executed between two looks at the stop word.
inline constexpr int32_t kPtxBudget = 4096;
// What a statement counts that accesses global or generic memory.
inline constexpr int64_t kPtxMemoryCost = 16;
// What a fence counts, also on the way to the next look: it waits for all stores.
inline constexpr int64_t kPtxFenceCost = 32;
// The rewriter looks after this many statements without a look; the verifier requires one after
// the latter number, because a look cannot be everywhere.
inline constexpr int64_t kPtxLookDistance = 1024;
inline constexpr int64_t kPtxMaxLookDistance = 2048;
// What a loop by rule L2 or L3 counts there, beside its statements: it runs without a look.
inline constexpr int64_t kPtxUnseenLoop = 128;
// Rule L3: a loop of at most 256 turns. Its statements count so often in the loops around it; most
// ranks are lower, and a look costs more than a turn.
inline constexpr int64_t kPtxMaxShortLoopCost = 32;
inline constexpr int64_t kPtxShortLoopTurns = 16;
// Rule L2: how far a counter may go between two looks; keeps the budget's register from wrapping.
inline constexpr int64_t kPtxMaxSpan = 1 << 16;
inline constexpr int64_t kPtxMaxCharge = 1 << 17;
inline constexpr uint32_t kPtxMaxLoops = 8192;

// Registers and labels that only the forms may name begin like this.
inline constexpr char kPtxReservedRegister[] = "%q_";
inline constexpr char kPtxReservedLabel[] = "$Q_";

// What an opcode is, with all its modifiers; nullopt and `rule` and `why`: it is refused.
std::optional<PtxOpcode> FindPtxOpcode(std::string_view opcode, std::string* rule,
                                       std::string* why);
bool IsPtxSpecialRegister(std::string_view name);

// The error for a unit that a rule refuses. `where`: "swish.cc:14", or empty.
absl::Status PtxRefused(std::string_view where, std::string_view rule, std::string_view what);
// The rules that refuse units, and the one that such an error names; "": it names none.
std::vector<std::string> PtxRefusingRules();
std::string FindRefusingPtxRule(std::string_view message);

enum class PtxForm : uint8_t {
  kPrologue,
  kLook,
  kHead,
  kEdge,
  kEndless,
  kCountedHead,
  kCountedEdge,
  kBarrier,
  kMeeting,
  kPartialMeeting,
};

// The names and texts that stand for a form's placeholders.
class PtxNames {
 public:
  PtxNames() = default;
  PtxNames(std::initializer_list<std::pair<std::string_view, std::string>> names) {
    for (const auto& [name, text] : names) texts_.emplace_back(name, text);
  }
  // Returns nullptr for a name without a text.
  const std::string* Find(std::string_view name) const;
  // The text, or "".
  const std::string& operator[](std::string_view name) const;
  int64_t Number(std::string_view name) const;
  void Set(std::string_view name, std::string_view text) {
    texts_.emplace_back(name, std::string(text));
  }

 private:
  std::vector<std::pair<std::string_view, std::string>> texts_;
};

// The statements of a form, with placeholders.
const std::vector<std::string>& PtxFormStatements(PtxForm form);
// Appends a form, one statement a line, to `text`.
void AppendPtxForm(PtxForm form, const PtxNames& names, std::string* text);
// Whether a statement is the one with the placeholders, and adds their texts to `names`. A reserved
// name does not stand for a placeholder.
bool MatchPtxStatement(std::string_view with_placeholders, std::string_view statement,
                       PtxNames* names);

// A hash of the table: part of the cache's key.
const std::string& PtxRulesHash();

// The declarations of the registers that the forms use.
inline constexpr const char* kPtxReservedDeclarations[] = {
    ".reg .pred %q_p, %q_go, %q_m;",
    ".reg .b32 %q_c, %q_b, %q_x, %q_s, %q_t, %q_n, %q_a, %q_w, %q_v, %q_u, %q_i32, %q_e32;",
    ".reg .b64 %q_i64, %q_e64;",
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_RULES_H_
