// Test vectors: programs with their expected results, one JSON object a line.
//
//   {"name": "halt", "bytecode": "00", "registers": [0], "error": 0, "cycles": 1}
//
//   name            text
//   bytecode        hexadecimal, two digits a byte
//   initial         optional: up to 16 initial registers from R0 on; the others are 0
//   max_cycles      optional: 0 to 4294967295; 1,000,000 when absent
//   unknown_opcode  optional: "ERROR" (when absent) or "NOP"
//   registers       the expected registers: 1 to 16 values from R0 on
//   error           the expected error, 0 to 8
//   cycles          the expected number of instructions executed
//   source          optional: text, where the vector comes from; ignored
//
// Empty lines are skipped. Anything else is an error that names the line.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_FLUX_VECTORS_H_
#define RESIDENT_RUNTIME_FLUX_VECTORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/flux/run.h"

namespace resident::flux {

struct Vector {
  // Line of the file, from 1.
  size_t line = 0;
  std::string name;
  Bytecode bytecode;
  RunOptions options;
  // The expected registers from R0 on; those beyond are not compared.
  std::vector<int32_t> registers;
  uint32_t error = 0;
  uint32_t cycles = 0;
};

absl::StatusOr<std::vector<Vector>> ParseVectors(std::string_view text);

// Reads a file. The messages name it.
absl::StatusOr<std::vector<Vector>> ReadVectors(const std::string& path);

// What differs, e.g. "R0 is 1, expected 2; cycles are 3, expected 4". Empty when
// nothing does.
std::string Difference(const Vector& expected, const RunResult& actual);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_VECTORS_H_
