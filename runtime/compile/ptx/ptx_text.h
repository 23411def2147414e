// A parser of the PTX that a unit may consist of.
//
// It reads the output of NVRTC and of nvcc, and what people write by hand, and refuses everything
// that it does not know. What it returns is flat: the scopes of a function are one, names of inner
// scopes have a number, and all registers have a percent sign. AppendPtx writes it again, one
// statement a line, without comments. ptxas reads only that text, so a statement that is hidden
// from this parser does not exist.
//
// Time is linear in the size of the text.
//
// Thread safety: pure functions.
//
//   ASSIGN_OR_RETURN(PtxUnit unit, ParsePtx(text));
//   for (const PtxItem& item : unit.items) ...
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_TEXT_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_TEXT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/compile/ptx/ptx_rules.h"

namespace resident {

// Limits of a unit.
inline constexpr size_t kMaxPtxBytes = 16u << 20;
inline constexpr uint32_t kMaxPtxRegisters = 1u << 20;
inline constexpr uint32_t kMaxPtxRanges = 64;
inline constexpr uint32_t kMaxPtxScopes = 1u << 16;
inline constexpr uint32_t kMaxPtxScopeDepth = 64;

struct PtxStatement {
  enum class Kind : uint8_t { kInstruction, kLabel, kPragma };

  Kind kind = Kind::kInstruction;
  PtxClass opcode_class = PtxClass::kPure;
  // Names a reserved register or label.
  bool reserved = false;
  // A ".param" of a call, and no parameter or result of the function, is read or written.
  bool of_call = false;
  // "%p1", "!%p1"; empty: none.
  std::string guard;
  // With its modifiers: "ld.global.u32". A label's or pragma's name.
  std::string opcode;
  // Canonical: "%r1", "-1", "[%rd1+4]", "{%r1, %r2}", "%p1|%p2", "(param0, param1)".
  std::vector<std::string> operands;
  // A label of a branch, the function of a call.
  std::string target;
  // Where it is in the text.
  uint32_t line = 0;
  // The number of ".loc" before it.
  uint32_t locations = 0;

  bool Is(PtxClass of_class) const {
    return kind == Kind::kInstruction && opcode_class == of_class;
  }
  // "@%p1 bra $L1;", "$L1:".
  std::string Text() const;
  // Whether the opcode has this modifier.
  bool Has(std::string_view modifier) const;
};

// Registers of one declaration: `name` if `count` is 0, name0 to name<count - 1> otherwise.
struct PtxRegisters {
  std::string type;  // ".b32".
  std::string name;
  uint32_t count = 0;
};

struct PtxFunction {
  std::string name;
  // All in front of the body.
  std::string header;
  // Whether the kernel may call it: .visible, and keeps its caller's registers.
  bool entry = false;
  // Statements that set the results to 0.
  std::vector<std::string> zero_results;
  std::vector<PtxRegisters> registers;
  // ".local" and ".param".
  std::vector<std::string> declarations;
  // In order, with at least one instruction.
  std::vector<PtxStatement> statements;
  uint32_t first_location = 0;
};

struct PtxItem {
  // A variable's or function's name; empty: ".version" and the like.
  std::string name;
  // Empty: `function` is defined here.
  std::string text;
  bool variable = false;
  PtxFunction function;
};

struct PtxUnit {
  std::vector<PtxItem> items;
  // Functions that are defined here.
  std::unordered_set<std::string> functions;
  // Variables that statements name.
  std::unordered_set<std::string> used_variables;

  struct Location {
    uint32_t file;
    uint32_t line;
  };
  std::vector<Location> locations;
  std::unordered_map<uint32_t, std::string> files;

  // "swish.cc:14": the line of the author's source that a statement comes from, or
  // "line 120 of the PTX".
  std::string Describe(const PtxFunction& function, const PtxStatement& statement) const;
};

// INVALID_ARGUMENT: the text has something that a unit may not have. `rewritten`: reserved names
// are allowed, scopes and locations are not.
absl::StatusOr<PtxUnit> ParsePtx(std::string_view text, bool rewritten = false);

// Bytes of a type's value; 0: not a type of registers.
uint32_t FindPtxTypeBytes(std::string_view type);

// Appends the declarations of a function, without those of reserved registers.
void AppendPtxDeclarations(const PtxFunction& function, std::string* text);
// Appends a statement that sets the register to 0 for each register of the declarations.
void AppendPtxZeros(const PtxFunction& function, std::string* text);

// Calls `visit` for each register that an operand names, also special ones.
void VisitPtxRegisters(std::string_view operand, absl::FunctionRef<void(std::string_view)> visit);
// Calls `visit` for each register that the statement writes.
void VisitWrittenPtxRegisters(const PtxStatement& statement,
                              absl::FunctionRef<void(std::string_view)> visit);

// The mask of an operation of a warp: "-1" for all lanes, otherwise a register or a number.
std::string FindPtxMask(const PtxStatement& statement);
// What a statement counts in a loop, and on the way to the next look.
int64_t FindPtxCost(const PtxStatement& statement);
int64_t FindPtxDistance(const PtxStatement& statement);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_TEXT_H_
