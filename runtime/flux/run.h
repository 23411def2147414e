// One run of a FLUX program as host tools see it: what it starts with and how it
// ends. docs/flux.md describes the machine.
//
// Thread safety: plain values.
#ifndef RESIDENT_RUNTIME_FLUX_RUN_H_
#define RESIDENT_RUNTIME_FLUX_RUN_H_

#include <array>
#include <cstdint>
#include <vector>

namespace resident::flux {

using Bytecode = std::vector<uint8_t>;
using RegisterValues = std::array<int32_t, 16>;

struct RunOptions {
  RegisterValues initial = {};
  // Instructions that may execute.
  uint64_t max_cycles = 1'000'000;
  // Whether an opcode outside the instruction set is a no-op, not error 4.
  bool unknown_nop = false;
};

struct RunResult {
  RegisterValues registers = {};
  // As flux::Error in kernels/flux/isa.h.
  uint32_t error = 0;
  uint32_t cycles = 0;

  friend bool operator==(const RunResult&, const RunResult&) = default;
};

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_RUN_H_
