// An interpreter of rewritten PTX, for tests of the verifier: one thread, in a hostile environment.
//
// What decides whether the thread ends is exact: the registers of the forms, counters, comparisons
// and branches. Everything else is random: what is loaded, results of other operations, the other
// lanes of the warp. Stores go nowhere, because it is not promised that an operator does not
// overwrite the stop word.
#ifndef RESIDENT_RUNTIME_COMPILE_PTX_PTX_INTERPRETER_FOR_TEST_H_
#define RESIDENT_RUNTIME_COMPILE_PTX_PTX_INTERPRETER_FOR_TEST_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "runtime/compile/ptx/ptx_text.h"

namespace resident {

class PtxInterpreter {
 public:
  // `unit` must outlive it; it was verified.
  explicit PtxInterpreter(const PtxUnit& unit);

  struct Run {
    // Statements until the stop word is set, and the limit after that.
    uint64_t stop_after = 0;
    uint64_t limit = 0;
    uint64_t seed = 0;
  };
  struct Result {
    // Statements that were executed after the stop word was set.
    uint64_t after_stop = 0;
    // INTERNAL: a promise of the verifier is broken.
    absl::Status status;
  };
  // Calls the entry. `limit` should be Limit().
  Result Call(const Run& run);

  // How many statements the unit may execute after the stop word is set.
  uint64_t Limit() const { return limit_; }

 private:
  enum class Operation : uint8_t {
    kRandom,  // Writes random values.
    kNothing,
    kLabel,
    kMove,
    kAdd,
    kSubtract,
    kMultiplyAdd,
    kMin,
    kMax,
    kAnd,
    kXor,
    kShiftRight,
    kCompare,
    kConvert,
    kLoadStop,
    kStopOnce,
    kLeave,
    kLanes,
    kVote,
    kBranch,
    kCall,
    kReturn,
    kBarrier,
    kWarp,
  };
  struct Operand {
    // -1: the number.
    int32_t reg = -1;
    bool negated = false;
    // A special register, or something else that is not known.
    bool random = false;
    uint64_t number = 0;
  };
  struct Statement {
    Operation operation = Operation::kNothing;
    uint32_t guard = 0;
    bool guarded = false;
    bool negated = false;
    uint8_t bits = 32;
    bool is_signed = false;
    bool met = false;
    // The meeting is one of all lanes.
    bool all = false;
    char compare = ' ';
    std::vector<int32_t> written;
    std::vector<Operand> operands;
    // A branch's statement, a call's function.
    size_t target = 0;
    uint32_t line = 0;
  };
  struct Function {
    std::vector<Statement> statements;
    size_t registers = 0;
    // What a load of 8 bits may give.
  };

  void Translate(const PtxFunction& from, Function* to);
  Operand Read(const std::string& text, std::unordered_map<std::string, int32_t>* registers) const;

  std::vector<Function> functions_;
  std::map<std::string, size_t> numbers_;
  size_t entry_ = 0;
  uint64_t limit_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_PTX_PTX_INTERPRETER_FOR_TEST_H_
