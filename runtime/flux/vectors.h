// Test vectors: programs with their expected results, one JSON object on each line.
//
//   {"name": "halt", "bytecode": "00", "registers": [0], "error": 0, "cycles": 1}
//
//   name            text
//   bytecode        hexadecimal, two digits for each byte
//   initial         optional: up to 16 initial registers, starting at R0; the others are 0
//   max_cycles      optional: 0 to 4294967295; default 1,000,000
//   unknown_opcode  optional: "ERROR" (default) or "NOP"
//   registers       the expected registers: 1 to 16 values, starting at R0
//   error           the expected error, 0 to 8
//   cycles          the expected number of instructions executed
//   source          optional: text, the origin of the vector; ignored
//
// Empty lines are skipped. Anything else is an error that contains the line number.
//
// Thread safety: may be called from any thread.
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
  // The expected registers, starting at R0. Other registers are not compared.
  std::vector<int32_t> registers;
  uint32_t error = 0;
  uint32_t cycles = 0;
};

absl::StatusOr<std::vector<Vector>> ParseVectors(std::string_view text);

// Reads a file. Errors contain its path.
absl::StatusOr<std::vector<Vector>> ReadVectors(const std::string& path);

// Describes the differences, e.g. "R0 is 1, expected 2; cycles are 3, expected 4". Empty:
// there are none.
std::string Difference(const Vector& expected, const RunResult& actual);

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_VECTORS_H_
