// The input and the result of one run of a FLUX program, for host tools. docs/flux.md
// describes the machine.
//
// Thread safety: plain values.
#ifndef RESIDENT_RUNTIME_FLUX_RUN_H_
#define RESIDENT_RUNTIME_FLUX_RUN_H_

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/layout/task.h"

namespace resident::flux {

using Bytecode = std::vector<uint8_t>;
using RegisterValues = std::array<int32_t, 16>;

struct RunOptions {
  RegisterValues initial = {};
  // Maximum number of executed instructions.
  uint64_t max_cycles = 1'000'000;
  // Whether an unknown opcode is a no-op instead of error 4.
  bool unknown_nop = false;
};

struct RunResult {
  RegisterValues registers = {};
  // See flux::Error in kernels/flux/isa.h.
  uint32_t error = 0;
  uint32_t cycles = 0;
  // Not kOk: the program was refused and did not run.
  CompletionStatus status = CompletionStatus::kOk;

  friend bool operator==(const RunResult&, const RunResult&) = default;
};

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_RUN_H_
